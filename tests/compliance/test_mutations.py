"""Every mutation of a good log is judged right: verdict, the one root cause, its true line, how to mend it."""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.log_mutations import MUTATIONS, Mutation
from tests.support.logs import NUM_EVALS, SEED, accuracy_at, closed_lines, fields, open_lines, write
from tools.verify import rounds
from tools.verify.finding import Finding, Severity
from tools.verify.report import Run
from tools.verify.run import judge

TABLE = Path(__file__).parents[3] / "shared" / "data" / "log_mutations.tsv"
RULESETS = ("2.0.0", "5.0.0")
NAMES = {mutation.name for mutation in MUTATIONS}

needs_table = pytest.mark.skipif(not TABLE.exists(), reason="../shared, which holds the official verdicts, is not here")
each_ruleset = pytest.mark.parametrize("ruleset", RULESETS)
each_mutation = pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.id for mutation in MUTATIONS])
each_failure = pytest.mark.parametrize(
    "mutation",
    [mutation for mutation in MUTATIONS if mutation.rule],
    ids=[mutation.id for mutation in MUTATIONS if mutation.rule],
)


Spoilt = Callable[[Mutation, str], tuple[Run, int | None]]


@pytest.fixture(scope="module")
def spoilt_run(tmp_path_factory: pytest.TempPathFactory) -> Spoilt:
    """The judgement of a spoilt log in a round, and the number of the line to blame."""

    @functools.cache
    def judged(mutation: Mutation, ruleset: str) -> tuple[Run, int | None]:
        text, line = mutation.spoil(closed_lines())
        path = tmp_path_factory.mktemp("spoilt") / "result_0.txt"
        path.write_bytes(text.encode("latin-1"))
        return judge(path, ruleset, as_submitted=False)[0], line

    return judged


def of_severity(run: Run, severity: Severity) -> list[Finding]:
    return [finding for finding in run.findings if finding.severity is severity]


# --- the logs that are spoilt stand


@pytest.mark.parametrize("ruleset", rounds.RULESETS[1:])
@pytest.mark.parametrize("lines", [closed_lines(), open_lines()], ids=["closed", "open"])
def test_our_own_log_passes_without_a_finding(lines: list[str], ruleset: str, tmp_path: Path) -> None:
    run, log = judge(write(tmp_path / "result_0.txt", lines), ruleset, as_submitted=False)
    assert (run.findings, run.official, run.official_shipped) == ((), "pass", "pass")
    assert not run.failed
    assert log.num_records == log.num_lines == len(lines)


def test_our_own_log_is_at_the_scale_of_the_benchmark(tmp_path: Path) -> None:
    run, log = judge(write(tmp_path / "result_0.txt", closed_lines()), "5.0.0", as_submitted=False)
    assert (run.batch, run.seed, run.status, run.accuracy) == (448, SEED, "success", accuracy_at(NUM_EVALS, SEED))
    assert run.samples == 2_700_096
    assert [evaluation.samples for evaluation in run.evaluations[:3]] == [150_080, 300_160, 450_240]
    assert log.count("weights_initialization") == 398


def test_times_of_our_own_log_are_whole_milliseconds_that_grow() -> None:
    times = [fields(line)["time_ms"] for line in closed_lines(start=1_700_000_000, weights=False)]
    assert all(type(time_ms) is int for time_ms in times)
    assert times == sorted(set(times))
    assert times[0] // 1000 == 1_700_000_000


# --- the spoilt ones


@each_ruleset
@each_mutation
def test_the_verdict_is_right(mutation: Mutation, ruleset: str, spoilt_run: Spoilt) -> None:
    run, _ = spoilt_run(mutation, ruleset)
    assert run.failed == mutation.fails(ruleset)


@each_ruleset
@each_failure
def test_there_is_one_root_cause_with_its_rule_and_true_line(
    mutation: Mutation, ruleset: str, spoilt_run: Spoilt
) -> None:
    run, line = spoilt_run(mutation, ruleset)
    severity = Severity.ERROR if mutation.fails(ruleset) else Severity.WARNING
    assert [(finding.rule.id, finding.line) for finding in of_severity(run, severity)] == [(mutation.rule, line)]
    if severity is Severity.WARNING:
        assert of_severity(run, Severity.ERROR) == []


@each_ruleset
@each_failure
def test_the_root_cause_says_what_was_expected_and_how_to_mend_it(
    mutation: Mutation, ruleset: str, spoilt_run: Spoilt
) -> None:
    run, line = spoilt_run(mutation, ruleset)
    finding = run.findings[0]
    assert finding.message
    assert finding.expected
    assert finding.mend
    assert finding.path == run.path
    assert bool(finding.text) == (line is not None)


@each_failure
def test_the_line_shown_is_the_line_named(mutation: Mutation, spoilt_run: Spoilt) -> None:
    run, line = spoilt_run(mutation, "5.0.0")
    if line is not None:
        text = run.findings[0].text.removesuffix("…")
        shown = text.partition("{… ")[2] or text  # what stands before the key may be left out
        assert len(shown) > 30
        assert shown in run.path.read_text("latin-1").splitlines()[line - 1]


@each_ruleset
@each_mutation
def test_the_official_verdict_is_known(mutation: Mutation, ruleset: str, spoilt_run: Spoilt) -> None:
    run, _ = spoilt_run(mutation, ruleset)
    assert run.official_shipped == run.official == mutation.official_verdict(ruleset)


@pytest.mark.parametrize("name", [f"{number:02}" for number in range(41)])
def test_every_number_is_there(name: str) -> None:
    assert [known for known in NAMES if known.startswith(f"{name}_")]


# --- against the table of official verdicts


def table() -> list[dict[str, str]]:
    with open(TABLE, encoding="utf-8", newline="") as rows:
        return list(csv.DictReader(rows, delimiter="\t"))


@needs_table
def test_ours_are_the_mutations_of_the_table() -> None:
    assert {row["mutation"] for row in table()} == NAMES


@needs_table
@each_ruleset
@each_mutation
def test_the_official_verdict_is_the_tables(mutation: Mutation, ruleset: str, spoilt_run: Spoilt) -> None:
    (row,) = [row for row in table() if row["mutation"] == mutation.name]
    run, _ = spoilt_run(mutation, ruleset)
    assert run.official_shipped == row[f"official_{ruleset}"].lower()


@needs_table
@each_mutation
def test_our_verdict_is_what_the_table_wants(mutation: Mutation) -> None:
    """ "fail …", "pass …", or which rulesets fail it."""
    (row,) = [row for row in table() if row["mutation"] == mutation.name]
    wanted = row["should_be"]
    if "warning before" in wanted or "else warning" in wanted:
        assert mutation.fails("2.0.0") != mutation.fails("5.0.0")
        return
    fails = wanted.startswith("fail")
    assert fails or wanted.startswith("pass")
    assert (mutation.fails("2.0.0"), mutation.fails("5.0.0")) == (fails, fails)
    assert ("warning" in wanted) == (not fails and mutation.rule is not None)
