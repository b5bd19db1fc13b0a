"""On logs that nobody wrote, our reading of mlperf-logging's rules comes to its own checker's verdict as well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.compliance.test_official import RULESETS, verdict
from tests.support.log_mutations import text_of
from tests.support.logs import (
    MARK,
    all_of,
    closed_lines,
    dropped,
    fields,
    first,
    inserted,
    line_of,
    open_lines,
    record,
    write,
)
from tests.support.official_checker import official_verdict
from tests.support.rule_case import Edit, Lines

many = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def few_evaluations(lines: Lines) -> Lines:
    """Three of eighteen."""
    return dropped(
        lines, *(i for key in ("eval_start", "eval_accuracy", "eval_stop") for i in all_of(lines, key)[1:-2])
    )


BASES = [few_evaluations(closed_lines(weights=False)), few_evaluations(open_lines())]
WHOLE = few_evaluations(closed_lines())
ODD = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        0.5,
        0.72,
        1.0,
        448,
        8192,
        1e400,
        float("nan"),
        10**20,
        "",
        "bert",
        "closed",
        "open",
    ),
    *("../x", "/etc/passwd", "Closed", "a\x00b", "0.72", "Ü", [], ["closed"], [1, [2]], {}, {"a": None}, "{}"),
]
OTHER_KEYS = [
    "eval_error",
    "opt_sgd_momentum",
    "model_bn_span",
    "submission_poc_name",
    "quality",
    "weights_initialization",
]
FACTS = ["epoch_num", "samples_count", "first_epoch_num", "epoch_count", "status", "tensor"]
SELECTING = ["submission_division", "submission_benchmark", "submission_status", "submission_org"]
RAW = [
    *("", "step 12", "MLLOG {}", ":::MLLOG", ":::MLLOG ", ":::MLLOG null", ":::MLLOG []", ":::MLLOG 7", ":::MLLOG {}"),
    *(':::MLLOG {"time_ms": 1, "key": "x", "value": 1}', ':::MLLOG {"time_ms": "x"}', ":::MLLOG :::MLLOG null"),
]
odd = st.one_of(st.sampled_from(ODD), st.integers(), st.floats(), st.text(max_size=4))
odd_metadata = st.one_of(st.dictionaries(st.sampled_from(FACTS), odd, max_size=4), odd)
odd_time = st.one_of(odd, st.sampled_from(["1e3", "nan", " 5 ", 1.5, 10**400, 1_748_000_000_000]))
place = st.integers(0, 1000)


def changed(index: int, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Edit:
    """With one record changed, where the line is a record."""

    def edit(lines: Lines) -> Lines:
        at = index % len(lines)
        try:
            old = fields(lines[at])
        except ValueError:
            return lines
        return [*lines[:at], line_of(change(old)), *lines[at + 1 :]] if isinstance(old, dict) else lines

    return edit


def with_fields(index: int, new: dict[str, Any]) -> Edit:
    return changed(index, lambda old: old | new)


def without_field(index: int, name: str) -> Edit:
    return changed(index, lambda old: {key: value for key, value in old.items() if key != name})


def with_line(index: int, line: str) -> Edit:
    return lambda lines: inserted(lines, index % (len(lines) + 1), line)


def without_line(index: int) -> Edit:
    return lambda lines: dropped(lines, index % len(lines)) if len(lines) > 1 else lines


def copied(index: int, to: int) -> Edit:
    return lambda lines: inserted(lines, to % (len(lines) + 1), lines[index % len(lines)])


def exchanged(index: int, other: int) -> Edit:
    def edit(lines: Lines) -> Lines:
        lines = list(lines)
        one, two = index % len(lines), other % len(lines)
        lines[one], lines[two] = lines[two], lines[one]
        return lines

    return edit


def selecting(key: str, value: Any) -> Edit:
    """Another value in each record of a key that the choice of rules hangs on."""

    def edit(lines: Lines) -> Lines:
        for index in all_of(lines, key):
            lines = with_fields(index, {"value": value})(lines)
        return lines

    return edit


keys = st.one_of(odd, st.sampled_from(FACTS))
other_records = st.builds(record, st.sampled_from(OTHER_KEYS), odd)
edits = st.lists(
    st.one_of(
        st.builds(without_line, place),
        st.builds(copied, place, place),
        st.builds(exchanged, place, place),
        st.builds(lambda index, value: with_fields(index, {"value": value}), place, odd),
        st.builds(lambda index, value: with_fields(index, {"metadata": value}), place, odd_metadata),
        st.builds(lambda index, value: with_fields(index, {"time_ms": value}), place, odd_time),
        st.builds(
            lambda index, value: with_fields(index, {"key": value}), place, st.one_of(odd, st.sampled_from(FACTS))
        ),
        st.builds(without_field, place, st.sampled_from(["time_ms", "key", "value", "metadata", "namespace"])),
        st.builds(
            lambda index, key, value: with_line(index, record(key, value)), place, st.sampled_from(OTHER_KEYS), odd
        ),
        st.builds(with_line, place, st.sampled_from(RAW)),
        st.builds(selecting, st.sampled_from(SELECTING), odd),
    ),
    min_size=1,
    max_size=4,
)


def same_verdict(path: Path, ruleset: str) -> str:
    ours = verdict(path, ruleset)
    assert ours == official_verdict(path, ruleset)
    return ours


@given(st.sampled_from(BASES), edits, st.sampled_from(RULESETS))
@many
def test_a_log_with_odd_records(tmp_path: Path, lines: Lines, changes: list[Edit], ruleset: str) -> None:
    for change in changes:
        lines = change(lines)
    same_verdict(write(tmp_path / "result_0.txt", lines), ruleset)


@given(edits, st.sampled_from(["1.1.0", "2.0.0", "2.1.0"]))
@settings(many, max_examples=40)
def test_a_log_with_all_its_weights(tmp_path: Path, changes: list[Edit], ruleset: str) -> None:
    lines = WHOLE
    for change in changes:
        lines = change(lines)
    same_verdict(write(tmp_path / "result_0.txt", lines), ruleset)


@given(st.sampled_from(BASES), st.lists(place, max_size=6), st.binary(max_size=6), st.sampled_from(RULESETS))
@many
def test_a_log_with_odd_bytes(tmp_path: Path, lines: Lines, places: list[int], odd_bytes: bytes, ruleset: str) -> None:
    data = bytearray(text_of(lines).encode("latin-1"))
    for index in places:
        data[index * 7919 % len(data) : index * 7919 % len(data)] = odd_bytes
    path = tmp_path / "result_0.txt"
    path.write_bytes(bytes(data))
    same_verdict(path, ruleset)


# --- what the generated logs may miss

SPACES = [" ", "\t", "\xa0", "\x0b", "\x0c", "\x1c", "\x85"]


@pytest.mark.parametrize("space", SPACES, ids=[f"{ord(space):02x}" for space in SPACES])
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_space_around_a_record(space: str, where: str, tmp_path: Path) -> None:
    lines = list(BASES[0])
    index = first(lines, "opt_name")
    body = lines[index].removeprefix(MARK)
    lines[index] = MARK + (space + body if where == "before" else body + space)
    assert same_verdict(write(tmp_path / "result_0.txt", lines), "5.0.0") in ("pass", "fail")


@pytest.mark.parametrize("num_broken", [1, 19, 20, 21, 200])
@pytest.mark.parametrize("line", [":::MLLOG {}", ":::MLLOG {"], ids=["crash", "fail"])
def test_the_worst_line_counts_however_many_came_before(line: str, num_broken: int, tmp_path: Path) -> None:
    lines = [*BASES[0], *[":::MLLOG x"] * (num_broken - 1), line]
    assert same_verdict(write(tmp_path / "result_0.txt", lines), "5.0.0") == ("fail" if line[-1] == "{" else "crash")


@pytest.mark.parametrize("value", ["../training_5.0.0/closed", "../training_4.1.0/open"], ids=["closed", "open"])
def test_a_division_that_leads_to_rules_by_a_path_fails(value: str, tmp_path: Path) -> None:
    """Here we are not as it is: it opens the file that the log names."""
    path = write(tmp_path / "result_0.txt", selecting("submission_division", value)(BASES[0]))
    assert (verdict(path, "5.0.0"), official_verdict(path, "5.0.0")) == ("crash", "fail")


def test_the_two_can_differ(tmp_path: Path) -> None:
    """The comparison is one: with rules of another round it comes out otherwise."""
    path = write(tmp_path / "result_0.txt", BASES[0])
    assert verdict(path, "5.0.0") != official_verdict(path, "2.0.0")
