"""One fault is one finding, wherever it lies; two faults are two."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.support.cheats import PUBLISHED, published_runs
from tests.support.log_mutations import garbage_after, glued, missing, no_metadata, text_of
from tests.support.logs import (
    all_of,
    at_time,
    closed_lines,
    dropped,
    first,
    keys,
    line_of,
    moved,
    replaced,
    time_of,
    without,
)
from tests.support.rule_case import Edit, Lines, meta, then, value
from tests.support.rule_cases_run import again, best_accuracy, drop, init_takes
from tools.verify.finding import Finding, Severity
from tools.verify.report import Run
from tools.verify.run import judge

LINES = closed_lines(weights=False)
KEYS = list(dict.fromkeys(keys(LINES)))
FREE_KEYS = {  # a log without them stands in round 5.0
    *("submission_org", "submission_platform", "submission_status", "target_accuracy", "opt_name", "opt_epsilon"),
    *("max_sequence_length", "max_predictions_per_seq", "eval_start", "eval_stop"),
}


each_source = pytest.mark.parametrize(
    "source",
    [
        "ours",
        pytest.param(
            "published",
            marks=pytest.mark.skipif(not PUBLISHED.is_dir(), reason="needs the published logs in ../shared/data"),
        ),
    ],
)


def lines_of(source: str) -> Lines:
    return LINES if source == "ours" else list(map(line_of, published_runs()[0]))


def judged(text: str, folder: Path, ruleset: str = "5.0.0") -> Run:
    path = folder / "result_0.txt"
    path.write_bytes(text.encode("latin-1"))
    return judge(path, ruleset, as_submitted=False)[0]


def errors(run: Run) -> list[Finding]:
    return [finding for finding in run.findings if finding.severity is Severity.ERROR]


# --- one fault


WAYS = {"no_metadata": no_metadata, "garbage_after": garbage_after, "glued_to_the_next": glued}
SPOILT = [(way, key) for way in WAYS for key in KEYS if (way, key) != ("glued_to_the_next", "run_stop")]  # the last one


@pytest.mark.parametrize(("way", "key"), SPOILT, ids=[f"{way}-{key}" for way, key in SPOILT])
def test_a_spoilt_record_is_one_finding_whichever_it_is(way: str, key: str, tmp_path: Path) -> None:
    text, line = WAYS[way](key)(LINES)
    rule = "line.single" if way == "glued_to_the_next" else "line.whole"
    assert [(finding.rule.id, finding.line) for finding in errors(judged(text, tmp_path))] == [(rule, line)]


@pytest.mark.parametrize("key", [key for key in KEYS if key not in FREE_KEYS])
def test_a_missing_key_is_one_finding(key: str, tmp_path: Path) -> None:
    (finding,) = errors(judged(missing(key)(LINES)[0], tmp_path))
    assert key in finding.message or key.removesuffix("_start").removesuffix("_stop") in finding.message


@pytest.mark.parametrize("key", sorted(FREE_KEYS))
def test_a_key_that_the_round_does_not_ask_for_may_be_missing(key: str, tmp_path: Path) -> None:
    assert not judged(missing(key)(LINES)[0], tmp_path).failed


def test_missing_weights_are_one_finding_in_the_rounds_that_want_them(tmp_path: Path) -> None:
    text = text_of(without(closed_lines(), "weights_initialization"))
    assert len(errors(judged(text, tmp_path, "2.0.0"))) == 1
    assert not judged(text, tmp_path, "5.0.0").failed


CUTS = [("before", key) for key in KEYS[1:]] + [("inside", key) for key in KEYS]


@pytest.mark.parametrize(("where", "key"), CUTS, ids=[f"{where}-{key}" for where, key in CUTS])
def test_a_log_cut_anywhere_is_one_finding(where: str, key: str, tmp_path: Path) -> None:
    index = first(LINES, key)
    text = text_of(LINES[:index]) + (LINES[index][:70] if where == "inside" else "")
    (finding,) = errors(judged(text, tmp_path))
    # Where run_stop alone is missing, it may as well have been forgotten.
    assert finding.rule.id in ("log.truncated", "run_stop.once" if (where, key) == ("before", "run_stop") else "")


def test_a_whole_log_without_the_end_of_its_last_line_stands(tmp_path: Path) -> None:
    assert not judged(text_of(LINES)[:-1], tmp_path).failed


# --- one fault of many records, or of an event


def metadata_is(key: str, metadata: object) -> Edit:
    return lambda log: replaced(log, first(log, key), metadata=metadata)


def to_the_end(key: str) -> Edit:
    return lambda log: moved(log, [first(log, key)], len(log))


def repeated_at_the_end(key: str) -> Edit:
    return lambda log: [*log, log[first(log, key)]]


def an_hour_later(key: str) -> Edit:
    return lambda log: at_time(log, key, time_of(log, key) + 3_600_000)


def colour_reset(log: Lines) -> Lines:
    """As a terminal's colours leave it behind each record."""
    return [line + "\x1b[0m" for line in log]


EVENT_FAULTS: dict[str, tuple[Edit, str]] = {  # and the rule of the one cause
    "block_start metadata null": (metadata_is("block_start", None), "official.check"),
    "block_start metadata {}": (metadata_is("block_start", {}), "official.check"),
    "run_stop metadata null": (metadata_is("run_stop", None), "run_stop.status"),
    "run_stop metadata {}": (metadata_is("run_stop", {}), "run_stop.status"),
    "init_start repeated at the end": (repeated_at_the_end("init_start"), "official.check"),
    "run_start last": (to_the_end("run_start"), "run.order"),
    "init_stop an hour later": (an_hour_later("init_stop"), "time.order"),
    "a colour reset behind each record": (colour_reset, "line.whole"),
}


@each_source
@pytest.mark.parametrize("name", EVENT_FAULTS)
def test_a_fault_of_an_event_is_one_finding(name: str, source: str, tmp_path: Path) -> None:
    edit, rule = EVENT_FAULTS[name]
    assert errors(judged(text_of(lines_of(source)), tmp_path)) == []
    assert [finding.rule.id for finding in errors(judged(text_of(edit(lines_of(source))), tmp_path))] == [rule]


@each_source
def test_a_line_is_counted_as_grep_counts_it_whatever_progress_bars_stand_before(source: str, tmp_path: Path) -> None:
    log = metadata_is("run_stop", {"status": "aborted"})(lines_of(source))
    text = "".join(f"10%|#   |\r20%|##  |\r{line}\n 99%|###|\r\n" for line in log)
    (finding,) = errors(judged(text, tmp_path))
    numbers = [number for number, line in enumerate(text.split("\n"), 1) if '"run_stop"' in line]
    assert [finding.line] == numbers


# --- two faults


def no_samples_in_one(log: Lines) -> Lines:
    return replaced(log, all_of(log, "eval_accuracy")[3], metadata={"file": "train.py", "lineno": 1})


def one_before_the_run(log: Lines) -> Lines:
    return replaced(log, all_of(log, "eval_accuracy")[5], time_ms=time_of(log, "run_start") - 1)


def three_not_made(log: Lines) -> Lines:
    return dropped(log, *all_of(log, "eval_accuracy")[8:11])


def stop_time_in_words(log: Lines) -> Lines:
    return replaced(log, first(log, "run_stop"), time_ms=str(time_of(log, "run_stop")))


FAULTS: dict[str, Edit] = {
    "init_stop.once": again("init_stop", "run_start"),
    "init.limit": init_takes(31),
    "run_stop.once": lambda log: [*log, log[-1]],
    "run_stop.status": meta("run_stop", status="aborted"),
    "eval.accuracy": value("eval_accuracy", 1.0),
    "eval.samples": no_samples_in_one,
    "eval.inside": one_before_the_run,
    "bert.interval": three_not_made,
    "run.target": best_accuracy(0.7),
    "time.unit": stop_time_in_words,
    "bert.train-samples": value("train_samples", 5),
    "bert.eval-samples": value("eval_samples", 5),
    "seed.logged": drop("seed"),
    "official.count": drop("opt_base_learning_rate"),
    "official.check": meta("block_start", epoch_count=0),
    "cache.cleared": value("cache_clear", False),
}
FOLLOWING = {  # the first may be why there is the second
    ("run_stop.status", "run.target"),
    ("eval.accuracy", "run.target"),
    ("eval.samples", "run.target"),
    ("eval.samples", "bert.interval"),
    ("eval.samples", "bert.train-samples"),
    ("eval.inside", "run.target"),
    ("eval.inside", "bert.interval"),
    ("init.limit", "time.unit"),
    ("eval.inside", "time.unit"),
    ("run.target", "time.unit"),
}
APART = [pair for pair in itertools.combinations(FAULTS, 2) if pair not in FOLLOWING]


@pytest.mark.parametrize("rule", FAULTS)
def test_each_fault_alone_is_its_own_finding(rule: str, tmp_path: Path) -> None:
    assert [finding.rule.id for finding in errors(judged(text_of(FAULTS[rule](LINES)), tmp_path))] == [rule]


@pytest.mark.parametrize(("one", "other"), APART, ids=[f"{one}-{other}" for one, other in APART])
def test_two_faults_that_have_nothing_to_do_with_each_other_are_two_findings(
    one: str, other: str, tmp_path: Path
) -> None:
    run = judged(text_of(then(FAULTS[one], FAULTS[other])(LINES)), tmp_path)
    assert sorted(finding.rule.id for finding in errors(run)) == sorted([one, other])
