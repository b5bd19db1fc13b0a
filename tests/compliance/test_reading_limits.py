"""A log may be as long and as odd as it likes: memory stays flat, messages stay short, and the verdict the same."""

from __future__ import annotations

import contextlib
import json
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.log_mutations import text_of
from tests.support.logs import START, closed_lines, fields, first, inserted, line_of, record
from tests.support.rule_case import Lines
from tools.verify.finding import Finding
from tools.verify.log import Record, read_log
from tools.verify.report import Run
from tools.verify.run import judge

LINES = closed_lines(weights=False)
DIVISION = first(LINES, "submission_division")
IN_THE_RUN = first(LINES, "eval_stop")
EVALUATION = LINES[first(LINES, "eval_accuracy")]
NUM_EXTRA = 25_000  # of which a kilobyte each would break the bound
MAX_BYTES = 20_000_000
MAX_MESSAGE = 1_000  # characters


def judged(path: Path, lines: Lines) -> Run:
    path.write_bytes(text_of(lines).encode("latin-1"))
    return judge(path, "5.0.0", as_submitted=False)[0]


def flat(findings: tuple[Finding, ...]) -> Iterator[Finding]:
    for finding in findings:
        yield finding
        yield from flat(finding.consequences)


# --- memory

# Before which line the extra records stand, and what they are.
HARMLESS: dict[str, tuple[int, Callable[[int], str]]] = {
    "cache_clear_before_the_division": (1, lambda number: LINES[0]),
    "an_unknown_key": (IN_THE_RUN, lambda number: record("tracked_stats", number)),
    "unknown_keys": (IN_THE_RUN, lambda number: record(f"stat_{number}", number)),
    "batches_before_the_division": (DIVISION, lambda number: record("global_batch_size", 448)),
    "seeds": (DIVISION, lambda number: record("seed", number)),
    "text": (IN_THE_RUN, lambda number: f"step {number}"),
}
HARMFUL: dict[str, tuple[int, Callable[[int], str]]] = {
    "evaluations": (IN_THE_RUN, lambda number: EVALUATION),
    "evaluations_before_the_division": (DIVISION, lambda number: EVALUATION),
    "batches_that_differ": (IN_THE_RUN, lambda number: record("global_batch_size", number)),
    "broken_lines": (IN_THE_RUN, lambda number: ':::MLLOG {"key": "a'),
    "two_on_a_line": (IN_THE_RUN, lambda number: record("a") + record("b")),
    "runs_that_stop": (IN_THE_RUN, lambda number: record("run_stop", None, START * 1000 - number)),
}


def write_long(path: Path, place: int, line: Callable[[int], str]) -> None:
    with open(path, "w", encoding="latin-1") as file:
        file.writelines(f"{text}\n" for text in LINES[:place])
        file.writelines(f"{line(number)}\n" for number in range(NUM_EXTRA))
        file.writelines(f"{text}\n" for text in LINES[place:])


@pytest.fixture
def judged_in_little_memory(tmp_path: Path) -> Callable[[int, Callable[[int], str]], Run]:
    def judge_it(place: int, line: Callable[[int], str]) -> Run:
        path = tmp_path / "result_0.txt"
        write_long(path, place, line)
        tracemalloc.start()
        try:
            run, log = judge(path, "5.0.0", as_submitted=False)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < MAX_BYTES
        assert log.num_lines == len(LINES) + NUM_EXTRA
        return run

    return judge_it


@pytest.mark.parametrize("name", HARMLESS)
def test_a_long_log_takes_little_memory_and_is_judged_alike(
    name: str, judged_in_little_memory: Callable[..., Run]
) -> None:
    assert [finding for finding in judged_in_little_memory(*HARMLESS[name]).findings if finding.severity] == []


@pytest.mark.parametrize("name", HARMFUL)
def test_a_long_log_that_fails_takes_little_memory(name: str, judged_in_little_memory: Callable[..., Run]) -> None:
    assert judged_in_little_memory(*HARMFUL[name]).failed


def test_the_bound_is_one_that_keeping_every_record_would_break(tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    write_long(path, IN_THE_RUN, lambda number: EVALUATION)
    tracemalloc.start()
    kept: list[Record] = []
    read_log(path, kept.append)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(kept) > NUM_EXTRA
    assert peak > MAX_BYTES


# --- values of any size and depth

FIELDS = [
    *[(key, "value") for key in dict.fromkeys(fields(line)["key"] for line in LINES)],
    *[("run_stop", name) for name in ("status", "reason")],
    *[("eval_accuracy", name) for name in ("epoch_num", "samples_count")],
    *[(key, "time_ms") for key in ("init_start", "run_start", "run_stop")],
]


def with_raw(key: str, name: str, raw: str) -> Lines:
    """With JSON as it stands here in a field of the key's first record, or in one of its metadata."""
    index = first(LINES, key)
    found = fields(LINES[index])
    if name in found:
        found[name] = "@"
    else:
        found["metadata"] = {"status": "aborted"} | found["metadata"] | {name: "@"}
    return [*LINES[:index], line_of(found).replace('"@"', raw), *LINES[index + 1 :]]


@pytest.mark.parametrize(("key", "name"), FIELDS, ids=[f"{key}-{name}" for key, name in FIELDS])
@pytest.mark.parametrize(
    "raw", ['"' + "x" * 100_000 + '"', "[" + "1," * 50_000 + "1]", "9" * 4000], ids=["text", "list", "number"]
)
def test_messages_stay_short(key: str, name: str, raw: str, tmp_path: Path) -> None:
    run = judged(tmp_path / "result_0.txt", with_raw(key, name, raw))
    long = [
        finding.rule.id
        for finding in flat(run.findings)
        if max(map(len, (finding.message, finding.expected, finding.mend, finding.text))) > MAX_MESSAGE
    ]
    assert long == []


LISTS, OBJECTS = ("[", "[]", "[1]", "]"), ('{"a": ', '{"a": 1}', '{"a": 2}', "}")


def readable_depth(parts: tuple[str, str, str, str]) -> int:
    """To which json reads what is nested when it is called from here; from further down it reads less."""
    opening, _, _, closing = parts
    depth = sys.getrecursionlimit()
    while True:
        with contextlib.suppress(RecursionError):
            json.loads(opening * depth + "1" + closing * depth)
            return depth + 1  # with what stands inside
        depth -= 1


def nested(path: Path, key: str, name: str, depth: int, parts: tuple[str, str, str, str] = LISTS) -> bool:
    """Judges a log with such a value twice, once a little different; tells whether json could still read it."""
    opening, inner, other, closing = parts
    lines = with_raw(key, name, opening * (depth - 1) + inner + closing * (depth - 1))
    again = lines[first(lines, key)].replace(inner, other)
    path.write_bytes(text_of(inserted(lines, len(lines), again)).encode("latin-1"))
    _, log = judge(path, "5.0.0", as_submitted=False)
    return log.num_flaws == 0


NESTED = [(key, name) for key, name in FIELDS if name != "time_ms"]  # as a time it is refused as it is read


@pytest.mark.parametrize(("key", "name"), NESTED, ids=[f"{key}-{name}" for key, name in NESTED])
def test_values_nested_as_deep_as_can_be_read_are_judged(key: str, name: str, tmp_path: Path) -> None:
    """Just below Python's limit json still reads a value that nothing else can look at any more."""
    path = tmp_path / "result_0.txt"
    depth = readable_depth(LISTS)
    while not nested(path, key, name, depth):
        depth -= 1
    for less in range(12):
        assert nested(path, key, name, depth - less)


@pytest.mark.parametrize(("key", "name"), [("target_accuracy", "value"), ("run_stop", "status")])
def test_objects_nested_as_deep_as_can_be_read_are_judged(key: str, name: str, tmp_path: Path) -> None:
    """They are looked through for names that are there twice."""
    depth = readable_depth(OBJECTS)
    while not nested(tmp_path / "result_0.txt", key, name, depth, OBJECTS):
        depth -= 1
    assert nested(tmp_path / "result_0.txt", key, name, depth - 1, OBJECTS)


def test_a_value_nested_a_little_is_no_fault(tmp_path: Path) -> None:
    assert judged(tmp_path / "result_0.txt", with_raw("target_accuracy", "note", "[[[[]]]]")).findings == ()
