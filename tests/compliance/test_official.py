"""Our reading of mlperf-logging's rules comes to its own checker's verdict: pass, fail or crash."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import pytest
import yaml

from tests.support.log_mutations import MUTATIONS, Mutation
from tests.support.logs import closed_lines, open_lines, with_value, without, write
from tests.support.official_checker import official_verdict, rule_files
from tests.support.rule_case import Lines
from tools.verify import official
from tools.verify.finding import Severity
from tools.verify.log import read_log
from tools.verify.official import Compliance
from tools.verify.report import Run
from tools.verify.run import judge

RESULTS = Path(__file__).parents[3] / "shared" / "data" / "results"
VERDICTS = RESULTS.parent / "verdicts.tsv"
SOME_RULESETS = ("0.7.0", "1.0.0", "2.1.0", "4.0.0", "5.0.0")  # whose rules differ most
RULESETS = ("0.7.0", "1.0.0", "1.1.0", "2.0.0", "2.1.0", "3.0.0", "4.0.0", "4.1.0", "5.0.0")
needs_results = pytest.mark.skipif(not VERDICTS.exists(), reason="../shared, which holds the public logs, is not here")


def verdict(path: Path, ruleset: str) -> str:
    compliance = Compliance(ruleset, as_submitted=False)
    log = read_log(path, compliance.feed)
    complaints = compliance.complaints(log)
    return "crash" if any(complaint.kind == "crash" for complaint in complaints) else "fail" if complaints else "pass"


# --- the logs that we have


@pytest.mark.parametrize("ruleset", SOME_RULESETS)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.id for mutation in MUTATIONS])
def test_of_every_mutation(mutation: Mutation, ruleset: str, tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    lines = closed_lines(weights=ruleset in ("1.1.0", "2.0.0", "2.1.0"))
    path.write_bytes(mutation.spoil(lines)[0].encode("latin-1"))
    assert verdict(path, ruleset) == official_verdict(path, ruleset)


def public_logs() -> list[tuple[Path, str, str]]:
    """Path, ruleset and verdict in it."""
    with open(VERDICTS, encoding="utf-8", newline="") as rows:
        return [
            (
                RESULTS / row["round"] / row["submitter"] / "results" / row["system"] / "bert" / row["file"],
                row["ruleset"],
                row["outcome"].lower(),
            )
            for row in csv.DictReader(rows, delimiter="\t")
        ]


@needs_results
def test_of_every_public_log_in_its_round() -> None:
    logs = public_logs()
    assert len(logs) == 60
    for path, ruleset, outcome in logs:
        assert (path, verdict(path, ruleset), official_verdict(path, ruleset)) == (path, outcome, outcome)


@needs_results
def test_of_every_public_log_in_other_rounds() -> None:
    rulesets = itertools.cycle(RULESETS)
    for path, _, _ in public_logs():
        ruleset = next(rulesets)
        assert (path, ruleset, verdict(path, ruleset)) == (path, ruleset, official_verdict(path, ruleset))


@pytest.mark.parametrize("path", rule_files(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_both_yaml_loaders_read_the_rules_alike(path: Path) -> None:
    """Ours is the fast one where it is built."""
    text = path.read_text("utf-8")
    assert yaml.load(text, Loader=official._Loader) == yaml.load(text, Loader=yaml.BaseLoader)


# --- rules that changed after their round

NO_WEIGHTS = closed_lines(weights=False)
OLD_EPSILON, NEW_EPSILON = (without(closed_lines(), key) for key in ("opt_lamb_epsilon", "opt_epsilon"))


def judged(lines: Lines, ruleset: str, folder: Path, *, as_submitted: bool) -> Run:
    return judge(write(folder / "result_0.txt", lines), ruleset, as_submitted=as_submitted)[0]


@pytest.mark.parametrize(
    ("lines", "ruleset", "submitted", "shipped"),
    [
        (NO_WEIGHTS, "1.1.0", "pass", "fail"),
        (NO_WEIGHTS, "2.1.0", "fail", "fail"),
        (OLD_EPSILON, "2.1.0", "pass", "fail"),
        (NEW_EPSILON, "2.1.0", "fail", "pass"),
        (OLD_EPSILON, "1.1.0", "pass", "pass"),
        (NEW_EPSILON, "1.1.0", "fail", "fail"),
        (closed_lines(), "1.1.0", "pass", "pass"),
        (closed_lines(), "2.1.0", "pass", "pass"),
        (OLD_EPSILON, "2.0.0", "pass", "pass"),
        (NEW_EPSILON, "3.0.0", "pass", "pass"),
        (OLD_EPSILON, "3.0.0", "fail", "fail"),
        (open_lines(), "2.1.0", "pass", "pass"),
    ],
    ids=[
        *("1.1-no_weights", "2.1-no_weights", "2.1-old_epsilon", "2.1-new_epsilon", "1.1-old_epsilon"),
        *("1.1-new_epsilon", "1.1-both", "2.1-both", "2.0-old_epsilon", "3.0-new_epsilon", "3.0-old_epsilon", "open"),
    ],
)
def test_both_verdicts_are_given_and_a_note_where_they_differ(
    lines: Lines, ruleset: str, submitted: str, shipped: str, tmp_path: Path
) -> None:
    for as_submitted in (True, False):
        run = judged(lines, ruleset, tmp_path, as_submitted=as_submitted)
        assert (run.official, run.official_shipped) == (submitted if as_submitted else shipped, shipped)
        assert run.failed == (run.official == "fail")
        notes = [finding for finding in run.findings if finding.rule.id == "official.changed"]
        assert [note.severity for note in notes] == ([Severity.NOTE] if submitted != shipped else [])
    assert official_verdict(tmp_path / "result_0.txt", ruleset) == shipped


@pytest.mark.parametrize(
    ("lines", "ruleset", "as_submitted", "parts"),
    [
        (NO_WEIGHTS, "1.1.0", True, ["today would fail", "weights_initialization", "2022-03-29", "4c04112"]),
        (NO_WEIGHTS, "1.1.0", False, ["weights_initialization", "2022-03-29", "the round itself pass"]),
        (OLD_EPSILON, "2.1.0", True, ["today would fail", "opt_lamb_epsilon", "2022-11-22", "d82b94d"]),
        (OLD_EPSILON, "2.1.0", False, ["opt_lamb_epsilon", "2022-11-22", "the round itself pass"]),
        (NEW_EPSILON, "2.1.0", True, ["today would pass"]),
        (NEW_EPSILON, "2.1.0", False, ["the round itself fail"]),
    ],
    ids=lambda given: "" if isinstance(given, list) else str(given),
)
def test_the_note_says_what_changed_when_and_what_the_other_rules_say(
    lines: Lines, ruleset: str, as_submitted: bool, parts: list[str], tmp_path: Path
) -> None:
    run = judged(lines, ruleset, tmp_path, as_submitted=as_submitted)
    (note,) = [finding for finding in run.findings if finding.rule.id == "official.changed"]
    assert [part for part in parts if part not in note.message] == []
    assert bool(note.mend) == (not as_submitted)


# --- names of rule files out of a log


@pytest.mark.parametrize("name", ["../x", "/x", "./x", "x", "common", ["closed"], None])
def test_what_a_log_asks_for_opens_no_file_and_ends(
    name: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mlperf-logging opens any path, executes what it finds, and with "common" for a benchmark goes on for ever."""
    opened = []
    really_open = official.rule_file

    def note(rules: str, as_submitted: bool) -> object:
        opened.append(rules)
        return really_open(rules, as_submitted)

    monkeypatch.setattr(official, "rule_file", note)
    for key in ("submission_division", "submission_benchmark"):
        path = write(tmp_path / "result_0.txt", with_value(closed_lines(weights=False), key, name))
        assert verdict(path, "5.0.0") == "crash"
    parts = [f"{division}_{kind}" for division in ("closed", "open") for kind in ("common", "bert")]
    assert set(opened) == {f"training_5.0.0/{part}.yaml" for part in ("common", *parts)}
