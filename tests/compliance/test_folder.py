"""The rules of a folder's runs together: each fires alone on a folder spoiled for it, none on the whole one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.reports import judge, only
from tests.support.submissions import (
    SYSTEM,
    Records,
    Spoil,
    abort,
    change,
    drop,
    keep_lines,
    line_of,
    results_of,
    run_records,
    set_description,
    set_value,
    snapshot,
    use_placeholder,
    write_records,
    write_results,
)
from tools.verify.finding import Severity
from tools.verify.verify import verify

ERROR, WARNING = Severity.ERROR, Severity.WARNING
DESCRIPTION = f"{SYSTEM}.json"
SETTINGS = {  # another value that a run may have
    "gradient_accumulation_steps": 2,
    "opt_name": "FusedLAMB",
    "opt_base_learning_rate": 0.0005,
    "opt_epsilon": 1e-7,
    "opt_lamb_epsilon": 1e-7,
    "opt_lamb_beta_1": 0.8,
    "opt_lamb_beta_2": 0.99,
    "opt_lamb_weight_decay_rate": 0.02,
    "opt_learning_rate_training_steps": 9000,
    "opt_learning_rate_warmup_steps": 10,
    "num_warmup_steps": 10,
    "start_warmup_step": -10,
    "global_batch_size": 256,
}


@pytest.fixture
def results(root: Path) -> Path:
    """Those of the tree."""
    return results_of(root)


def test_the_whole_tree_and_the_whole_folder_have_no_findings(whole: Path) -> None:
    report = verify(whole)
    assert list(report.all_findings()) == []
    assert list(verify(results_of(whole)).all_findings()) == []
    assert not report.failed
    assert {check.outcome for check in (*report.checks, *report.folders[0].checks)} == {"pass"}


def copy_run(folder: Path) -> None:
    shutil.copy(folder / "result_2.txt", folder / "result_6.txt")


def copy_run_in_disguise(folder: Path) -> None:
    """Later, with another seed."""

    def edit(records: Records) -> None:
        for record in records:
            record["time_ms"] += 4 * 3_600_000 + 17

    copy_run(folder)
    set_value(folder / "result_6.txt", "seed", 77)
    change(folder / "result_6.txt", edit)


def use_placeholder_in_run_6(folder: Path) -> None:
    use_placeholder(folder / "result_6.txt")


def same_seed(folder: Path) -> None:
    """On the same line of the code, as the official checker wants to see it."""
    set_value(folder / "result_6.txt", "seed", 1000)


def same_seed_elsewhere(folder: Path) -> None:
    same_seed(folder)

    def edit(records: Records) -> None:
        for record in records:
            record["metadata"]["lineno"] += 1

    change(folder / "result_6.txt", edit)


def overlap(folder: Path) -> None:
    """Run 6 starts ten minutes into run 5."""

    def edit(records: Records) -> None:
        for record in records:
            record["time_ms"] -= 3_000_000

    change(folder / "result_6.txt", edit)


def without_results(folder: Path, *numbers: int) -> None:
    for number in numbers:
        (folder / f"result_{number}.txt").unlink()


def add_run(folder: Path) -> None:
    write_records(folder / "result_10.txt", run_records(10))


def faster_than_the_reference(folder: Path) -> None:
    shutil.rmtree(folder)
    write_results(folder, num_evaluations=15)


def describe_otherwise(**fields: Any) -> Spoil:
    return lambda folder: set_description(folder.parents[2], **fields)


def describe_as(content: str) -> Spoil:
    return write_beside(f"../../../systems/{DESCRIPTION}", content)


def write_beside(name: str, content: str = "") -> Spoil:
    return lambda folder: (folder / name).write_text(content)


def of_run(number: int, key: str, value: Any) -> Spoil:
    return lambda folder: set_value(folder / f"result_{number}.txt", key, value)


SPOILS = [
    # (spoil, rule, severity, the file that is named, what the message holds)
    pytest.param(lambda folder: without_results(folder, 9), "runs.count", ERROR, "bert", "9 runs", id="nine runs"),
    pytest.param(add_run, "runs.count", ERROR, "bert", "11 runs", id="eleven runs"),
    pytest.param(
        lambda folder: abort(folder / "result_3.txt"),
        "runs.failed",
        WARNING,
        "result_3.txt",
        "one run did not converge (result_3.txt)",
        id="one aborted run",
    ),
    pytest.param(
        of_run(4, "eval_samples", 1), "runs.failed", ERROR, "bert", "1 of 10 logs do not stand", id="one wrong log"
    ),
    pytest.param(
        of_run(7, "submission_org", "Other"), "runs.submission", ERROR, "result_7.txt", "'Other'", id="organisation"
    ),
    pytest.param(
        of_run(7, "submission_platform", "b"), "runs.submission", WARNING, "result_7.txt", "platform", id="platform"
    ),
    *(
        pytest.param(of_run(5, key, value), "runs.settings", ERROR, "result_5.txt", f"{key} differs", id=key)
        for key, value in SETTINGS.items()
    ),
    pytest.param(copy_run, "runs.distinct", ERROR, "result_6.txt", "the same run as", id="a run twice"),
    pytest.param(copy_run_in_disguise, "runs.distinct", ERROR, "result_6.txt", "result_2.txt", id="a run in disguise"),
    pytest.param(
        use_placeholder_in_run_6, "runs.samples", ERROR, "result_6.txt", "none in result_6.txt", id="one placeholder"
    ),
    pytest.param(
        same_seed, "runs.seeds", ERROR, "result_6.txt", "seed 1000 is that of 2 runs: result_0.txt", id="one seed"
    ),
    pytest.param(
        same_seed_elsewhere, "runs.seeds", ERROR, "result_6.txt", "seed 1000", id="one seed on different lines"
    ),
    pytest.param(overlap, "runs.overlap", WARNING, "result_6.txt", "result_5.txt and result_6.txt", id="overlap"),
    pytest.param(faster_than_the_reference, "runs.rcp", ERROR, "bert", "RCP found: a mean of 2,250,304", id="too fast"),
    pytest.param(write_beside("notes.md"), "package.stray", WARNING, "bert", "not read: notes.md", id="a stray file"),
    pytest.param(write_beside("result-3.txt"), "package.stray", WARNING, "bert", "result-3.txt", id="a stray result"),
    pytest.param(
        write_beside("scaling.json", '{"scaling_factor": 1.5}'),
        "package.scaling",
        WARNING,
        "scaling.json",
        "says 1.5, the RCPs say 1.000000",
        id="a foreign scaling",
    ),
    pytest.param(
        write_beside("scaling.json", "{"), "package.scaling", WARNING, "scaling.json", "scaling.json", id="no scaling"
    ),
    pytest.param(
        lambda folder: (folder.parents[2] / "systems" / DESCRIPTION).unlink(),
        "system.description",
        ERROR,
        DESCRIPTION,
        "no such file",
        id="no description",
    ),
    pytest.param(describe_as("{"), "system.description", ERROR, DESCRIPTION, "not a JSON", id="broken JSON"),
    pytest.param(describe_as("[]"), "system.description", ERROR, DESCRIPTION, "not a JSON", id="a list"),
    pytest.param(describe_otherwise(division="Closed"), "system.division", ERROR, DESCRIPTION, "'Closed'", id="Closed"),
    pytest.param(describe_otherwise(division="open"), "system.division", ERROR, DESCRIPTION, "'open'", id="open"),
    pytest.param(describe_otherwise(division=None), "system.division", ERROR, DESCRIPTION, "None", id="no division"),
    pytest.param(
        describe_otherwise(submitter="Other"), "system.submitter", WARNING, DESCRIPTION, "'Other'", id="submitter"
    ),
    pytest.param(
        describe_otherwise(number_of_nodes=1), "system.strings", ERROR, DESCRIPTION, "number_of_nodes", id="a number"
    ),
]


@pytest.mark.parametrize(("spoil", "rule", "severity", "name", "said"), SPOILS)
def test_a_rule_fires_alone_where_the_folder_was_spoiled_for_it(
    spoil: Spoil, rule: str, severity: Severity, name: str, said: str, results: Path
) -> None:
    spoil(results)
    before = snapshot(results)
    folder = judge(results)
    finding = only(folder)
    assert (finding.rule.id, finding.severity) == (rule, severity)
    assert finding.path is not None
    assert finding.path.name == name
    assert said in finding.message
    assert folder.failed is (severity is ERROR)
    assert snapshot(results) == before


def test_a_setting_that_differs_names_its_line(results: Path) -> None:
    set_value(results / "result_5.txt", "opt_lamb_beta_1", 0.8)
    finding = only(judge(results))
    assert finding.line == line_of(results / "result_5.txt", "opt_lamb_beta_1")
    assert "0.8 in result_5.txt" in finding.message


def test_what_two_of_ten_runs_say_is_the_odd_value(results: Path) -> None:
    for number in (2, 8):
        set_value(results / f"result_{number}.txt", "opt_epsilon", 1e-7)
    assert "1e-07 in result_2.txt, result_8.txt" in only(judge(results)).message


@pytest.mark.parametrize("key", ["max_sequence_length", "max_predictions_per_seq"])
def test_a_constant_that_differs_fails_its_log_and_the_folder(key: str, results: Path) -> None:
    set_value(results / "result_5.txt", key, 64)
    assert {finding.rule.id for finding in judge(results).findings} == {"runs.settings", "runs.failed"}


@pytest.mark.parametrize("count", [3, 10, 40])
def test_settings_that_a_cut_log_does_not_hold_are_no_other_settings(count: int, results: Path) -> None:
    keep_lines(results / "result_5.txt", count)
    rules = {finding.rule.id for finding in judge(results).findings}
    assert "runs.failed" in rules
    assert not rules & {"runs.settings", "runs.submission"}


def test_settings_that_a_whole_log_does_not_hold_are_others(results: Path) -> None:
    drop(results / "result_5.txt", "opt_name")
    assert "None in result_5.txt" in only(judge(results)).message


def test_runs_of_two_divisions_are_no_submission(results: Path) -> None:
    set_value(results / "result_5.txt", "submission_division", "open")
    folder = judge(results)
    assert folder.failed
    assert "runs.submission" in {finding.rule.id for finding in folder.findings}
