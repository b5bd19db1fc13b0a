"""Whatever bytes a file holds, it is judged or it is said why not; nothing else is raised."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.log_mutations import text_of
from tests.support.logs import MARK, closed_lines, fields, first, inserted, line_of, record, write
from tools.verify.finding import Severity
from tools.verify.log import Log, UnreadableLogError
from tools.verify.report import Run
from tools.verify.run import judge

LINES = closed_lines(weights=False)
TEXT = text_of(LINES)
STOP = first(LINES, "run_stop")
many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def judged(data: str | bytes, folder: Path, ruleset: str = "5.0.0") -> tuple[Run, Log]:
    path = folder / "result_0.txt"
    path.write_bytes(data if isinstance(data, bytes) else data.encode("latin-1"))
    return judge(path, ruleset, as_submitted=False)


def verdict(data: str | bytes, folder: Path) -> str:
    """pass, fail or unreadable."""
    try:
        run, _ = judged(data, folder)
    except UnreadableLogError:
        return "unreadable"
    return "fail" if run.failed else "pass"


def errors(run: Run) -> list[tuple[str, int | None]]:
    return [(finding.rule.id, finding.line) for finding in run.findings if finding.severity is Severity.ERROR]


# --- any bytes


@given(st.binary(max_size=400))
@many
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    assert verdict(data, tmp_path) == ("fail" if not data or MARK.encode() in data else "unreadable")


@given(
    st.lists(st.one_of(st.text(max_size=40), st.sampled_from(LINES)).map(lambda text: f":::MLLOG {text}"), max_size=8)
)
@many
def test_any_text_in_the_place_of_records(tmp_path: Path, lines: list[str]) -> None:
    assert verdict("\n".join(lines).encode("utf-8", "surrogatepass"), tmp_path) != "pass"


json_texts = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)


@given(st.integers(0, len(LINES) - 1), st.sampled_from(["key", "value", "time_ms", "metadata"]), json_texts)
@many
def test_any_json_in_a_field_of_a_record(tmp_path: Path, index: int, name: str, new: object) -> None:
    lines = [*LINES[:index], line_of(fields(LINES[index]) | {name: new}), *LINES[index + 1 :]]
    assert verdict(text_of(lines), tmp_path) in ("pass", "fail")


@given(st.lists(st.tuples(st.integers(0, len(TEXT)), st.integers(0, 9), st.binary(max_size=5)), min_size=1, max_size=5))
@many
def test_a_real_log_with_pieces_exchanged_for_any_bytes(tmp_path: Path, edits: list[tuple[int, int, bytes]]) -> None:
    data = bytearray(TEXT.encode("latin-1"))
    for place, length, new in edits:
        data[place : place + length] = new
    assert verdict(bytes(data), tmp_path) in ("pass", "fail")


# --- bytes that are known to turn up


def in_place_of(key: str, line: str) -> str:
    index = first(LINES, key)
    return text_of([*LINES[:index], line, *LINES[index + 1 :]])


def before_stop(line: str) -> str:
    return text_of(inserted(LINES, STOP, line))


PASSING = {
    "crlf": text_of(LINES, "\r\n"),
    "lone_cr": text_of(LINES, "\r"),
    "no_end_of_line": TEXT[:-1],
    "bom": "\xef\xbb\xbf" + TEXT,
    "latin_1": before_stop("température 40 °C"),
    "latin_1_in_a_record": before_stop(record("node", "x").replace('"x"', '"Zürich"')),
    "nul_bytes": before_stop("\0" * 100),
    "nul_bytes_at_the_end": TEXT + "\0" * 4096,
    "no_text": before_stop(bytes(range(256)).replace(b"\n", b"").decode("latin-1")),
    "rank_before_each_record": text_of([f"12: {line}" for line in LINES]),
    "nan_in_a_free_key": before_stop(record("x", float("nan"))),
    "key_is_a_list": before_stop(line_of(fields(record("x")) | {"key": ["run_stop"]})),
    "key_is_null": before_stop(line_of(fields(record("x")) | {"key": None})),
    "key_is_empty": before_stop(record("")),
    "metadata_is_null": before_stop(line_of(fields(record("x")) | {"metadata": None})),
    "metadata_is_text": before_stop(line_of(fields(record("x")) | {"metadata": "run_stop"})),
    "a_line_of_10_mb": before_stop("x" * 10_000_000),
    "a_record_of_10_mb": before_stop(record("x", "y" * 10_000_000)),
    "brackets_outside_a_record": before_stop("[" * 100_000),
    "next_line_character": before_stop("a\x85b\x0bc\x1cd"),
}


@pytest.mark.parametrize("name", PASSING)
def test_what_harms_nothing_passes(name: str, tmp_path: Path) -> None:
    run, _ = judged(PASSING[name], tmp_path)
    assert errors(run) == []
    assert run.official == "pass"


FAILING = {
    "infinite_accuracy": (in_place_of("eval_accuracy", record("eval_accuracy", float("inf"), epoch_num=1)), None),
    "nested_brackets": (before_stop(MARK + "[" * 100_000), "line.whole"),
    "nested_objects": (before_stop(MARK + '{"a":' * 100_000), "line.whole"),
    "an_integer_of_5000_digits": (before_stop(MARK + '{"time_ms": ' + "9" * 5000 + "}"), "line.whole"),
    "a_value_of_5000_digits": (before_stop(record("x").replace("null", "7" * 5000)), "line.whole"),
    "a_time_of_400_digits": (before_stop(record("x", time_ms=10**400)), "line.whole"),
    "no_value": (before_stop(MARK + '{"key": "x", "time_ms": 1, "metadata": {}}'), "line.whole"),
    "null": (before_stop(MARK + "null"), "line.whole"),
    "nothing": (before_stop(MARK), "line.whole"),
    "a_broken_record_of_10_mb": (before_stop(MARK + '{"key": "' + "y" * 10_000_000), "line.whole"),
    "nul_in_a_record": (before_stop(record("x").replace("null", "nu\0l")), "line.whole"),
    "latin_1_in_place_of_a_quote": (before_stop(record("x").replace('"x"', "«x»")), "line.whole"),
}


@pytest.mark.parametrize("name", FAILING)
def test_what_is_no_record_fails_at_its_line(name: str, tmp_path: Path) -> None:
    text, rule = FAILING[name]
    run, _ = judged(text, tmp_path)
    assert run.failed
    if rule:
        assert errors(run) == [(rule, STOP + 1)]


@pytest.mark.parametrize("line", [":::MLLOG x", record("x") + record("y")], ids=["broken", "two_on_a_line"])
def test_many_of_them_are_a_few_findings_that_say_what_to_do(line: str, tmp_path: Path) -> None:
    run, _ = judged(text_of(inserted(LINES, STOP, *[line] * 1000)), tmp_path)
    assert run.failed
    assert len(run.findings) <= 25
    assert [finding for finding in run.findings if not finding.expected or not finding.mend] == []


def test_a_partial_line_of_another_rank_in_front_hides_nothing(tmp_path: Path) -> None:
    index = first(LINES, "run_start")
    run, _ = judged(in_place_of("run_start", LINES[index][:40] + LINES[index]), tmp_path)
    (finding,) = run.findings
    assert (finding.rule.id, finding.severity, finding.line) == ("line.single", Severity.WARNING, index + 1)


def test_a_partial_line_of_another_rank_in_the_middle_spoils_both(tmp_path: Path) -> None:
    index = first(LINES, "run_start")
    torn = LINES[index][:60] + LINES[STOP][:30] + LINES[index][60:]
    run, _ = judged(in_place_of("run_start", torn), tmp_path)
    assert errors(run) == [("line.whole", index + 1)]


def test_two_records_on_one_line_are_told_where_one_is_lost(tmp_path: Path) -> None:
    index = first(LINES, "run_start")
    run, _ = judged(text_of([*LINES[:index], LINES[index] + LINES[index + 1], *LINES[index + 2 :]]), tmp_path)
    assert errors(run) == [("line.single", index + 1)]


def test_numbers_of_lines_count_every_line_of_the_file(tmp_path: Path) -> None:
    lines = inserted(LINES, STOP, "", "text", ":::MLLOG x", "")
    for end in ("\n", "\r\n", "\r\r\n"):
        run, log = judged(text_of(lines, end), tmp_path)
        assert errors(run) == [("line.whole", STOP + 3)]
        assert log.num_lines == len(lines)
        assert log.num_records == len(LINES)


def test_a_lone_carriage_return_ends_a_record_and_no_line(tmp_path: Path) -> None:
    run, log = judged(text_of(inserted(LINES, STOP, ":::MLLOG x"), "\r"), tmp_path)
    assert errors(run) == [("line.whole", 1)]
    assert (log.num_lines, log.num_records) == (1, len(LINES))


# --- a text is no event


@pytest.mark.parametrize(
    "line",
    [
        record("x", "run_stop", file="run_stop.py"),
        record("x", None, event="run_stop", note='"key": "run_stop"'),
        record("x", {"key": "run_stop"}),
        record("x", ":::MLLOG", note=":::MLLOG"),
        'said: {"key": "run_stop", "value": null, "time_ms": 1, "metadata": {}}',
        "run_start run_stop eval_accuracy",
    ],
    ids=["file_name", "metadata", "value", "mark_without_a_space", "no_mark", "words"],
)
def test_the_name_of_an_event_elsewhere_is_no_event(line: str, tmp_path: Path) -> None:
    run, log = judged(before_stop(line), tmp_path)
    assert run.findings == ()
    assert log.count("run_stop") == log.count("run_start") == 1


def test_the_mark_within_a_record_is_where_the_official_parser_begins(tmp_path: Path) -> None:
    run, log = judged(before_stop(record("x", ":::MLLOG y")), tmp_path)
    assert errors(run) == [("line.whole", STOP + 1)]
    assert log.count("run_stop") == 1


def test_a_real_second_event_is_one(tmp_path: Path) -> None:
    run, _ = judged(before_stop(LINES[STOP]), tmp_path)
    assert errors(run) == [("run_stop.once", STOP + 2)]


# --- files that hold no log


def folder_in_its_place(path: Path) -> None:
    path.mkdir()


def link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def link_to_nothing(path: Path) -> None:
    path.symlink_to(path.with_name("gone"))


@pytest.mark.parametrize("make", [folder_in_its_place, link_to_itself, link_to_nothing, lambda path: None])
def test_what_is_no_file_is_said_to_be_none(make: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    make(path)
    with pytest.raises(UnreadableLogError, match="cannot read the log"):
        judge(path, "5.0.0", as_submitted=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads any file")
def test_a_file_without_permission_is_said_to_be_unreadable(tmp_path: Path) -> None:
    path = write(tmp_path / "result_0.txt", LINES)
    path.chmod(0)
    with pytest.raises(UnreadableLogError, match="Permission"):
        judge(path, "5.0.0", as_submitted=False)


@pytest.mark.parametrize(
    "data",
    [TEXT.encode("utf-16"), b"\n", b"hello\n", b"\0" * 10_000, b'{"key": "run_stop"}'],
    ids=lambda data: f"{data[:9]}",
)
def test_a_file_without_records_is_no_log(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(UnreadableLogError, match="no MLLOG record"):
        judged(data, tmp_path)


def test_an_empty_file_is_a_failed_run(tmp_path: Path) -> None:
    run, log = judged(b"", tmp_path)
    assert errors(run) == [("log.empty", None)]
    assert (log.num_lines, log.size_bytes) == (0, 0)
