"""A log file in, what the rules need of it out: one pass, memory that does not grow with the file."""

from __future__ import annotations

import contextlib
import json
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

MARK = ":::MLLOG "
_MAX_KEPT = 8  # records of one key, beyond the first and the last, that differ in value
_MAX_FLAWS = 20
_MAX_EVALUATIONS = 10_000
_MAX_KEYS = 5_000  # a log has some fifty; of those that a rule may ask for none is left out
_ASKED_FOR = re.compile(
    "(submission|init|run|eval|opt)_|(seed|cache_clear|target_accuracy|configuration|global_batch_size|"
    "gradient_accumulation_steps|max_sequence_length|max_predictions_per_seq|num_warmup_steps|start_warmup_step|"
    "train_samples|weights_initialization)$"
)
_MAX_SEEDS = 1_000
_MAX_TEXT = 400  # characters of a line that are kept
_MAX_SEARCHED = 10_000  # characters of a broken line in which keys are looked for
YEARS_MS = (1_262_304_000_000, 4_102_444_800_000)  # 2010 to 2100
_DECODE = json.JSONDecoder().raw_decode
_INTERVALS = ("block", "epoch", "eval")
_ENDS = {"block_stop", "epoch_stop"}
_MILESTONES = {"init_stop", "run_start", "run_stop", "eval_accuracy"} | {
    f"{interval}_{end}" for interval in _INTERVALS for end in ("start", "stop")
}  # one process logs them as they happen
_KEY = re.compile(r'"key"\s*:\s*"?([A-Za-z_][\w.]{0,80})')


class UnreadableLogError(ValueError):
    """There is no log here that can be judged; the message says why."""


class Record(NamedTuple):
    line: int  # in the file, from 1
    key: str
    value: Any
    time_ms: Any  # as logged; the rules want an integer
    metadata: Any  # as logged; the rules want a mapping
    text: str  # the line, its first 400 characters
    named: bool  # it says its namespace and its event type
    place: int = 0  # in the file's order, also where only carriage returns divide records of one line

    def meta(self, name: str) -> Any:
        return self.metadata.get(name) if isinstance(self.metadata, dict) else None


class Flaw(NamedTuple):
    """A line that is no record."""

    line: int
    crashes: bool  # the official checker ends with a traceback on it, instead of refusing the line
    error: str
    text: str
    keys: tuple[str, ...]  # that the line seems to hold


@dataclass
class Seen:
    """The records of one key: how many, the first, the last, and the first of each further value."""

    first: Record
    last: Record
    count: int = 1
    others: list[Record] = field(default_factory=list)  # whose value differs from the first's; at most 8


@dataclass
class Log:
    path: Path
    num_lines: int = 0
    num_records: int = 0
    size_bytes: int = 0
    cut: bool = False  # the last line has no end
    flaws: list[Flaw] = field(default_factory=list)  # the first 20, and the first that crashes
    num_flaws: int = 0
    glued: list[tuple[Record, list[str]]] = field(default_factory=list)  # whose line holds others before, of these keys
    seen: dict[str, Seen] = field(default_factory=dict)
    evaluations: list[Record] = field(
        default_factory=list
    )  # eval_accuracy, in file order; the first 10,000 and the last
    seeds: list[Record] = field(default_factory=list)  # the first 1,000
    ends_ms: list[int] = field(default_factory=list)  # of blocks and epochs; the first 10,000
    doubled: list[tuple[Record, str]] = field(default_factory=list)  # a record with a name twice, and the name; 20
    lost_keys: set[str] = field(default_factory=set)  # that broken lines seem to hold; at most 100
    eval_ms: float = 0.0  # between eval_start and eval_stop, in all
    unnamed: Seen | None = None  # records without namespace or event type
    odd_times: Seen | None = None  # records whose time_ms is no integer of milliseconds since 1970
    backwards: list[tuple[Record, Record]] = field(default_factory=list)  # milestones out of time order; the first 20
    last: Record | None = None

    def first(self, key: str) -> Record | None:
        seen = self.seen.get(key)
        return seen.first if seen else None

    def count(self, key: str) -> int:
        seen = self.seen.get(key)
        return seen.count if seen else 0

    def value(self, key: str) -> Any:
        """Of the key's first record; None without one."""
        record = self.first(key)
        return record.value if record else None


def read_log(path: Path, *visitors: Callable[[Record], None]) -> Log:
    """Read the file once; every whole record is shown to each visitor.

    Raises UnreadableLogError where the file cannot be read, OSError never.
    """
    log = Log(path)
    keep = _keeper(log)
    with _opened(path, log) as lines:
        for record in _records(lines, log):
            if isinstance(record.key, str):
                keep(record)
            for visit in visitors:
                visit(record)
    return log


def first_value(path: Path, key: str) -> Any:
    """Of the key's first record, reading no further; None without one. Raises UnreadableLogError as read_log."""
    log = Log(path)
    with _opened(path, log) as lines:
        return next((record.value for record in _records(lines, log) if record.key == key), None)


@contextlib.contextmanager
def _opened(path: Path, log: Log) -> Iterator[Iterable[str]]:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableLogError(f"{path}: cannot read the log (no regular file)")
        log.size_bytes = status.st_size
        # As the official parser: latin-1, so that any byte is some character.
        with open(path, encoding="latin-1", newline="") as lines:
            yield lines
    except OSError as error:
        raise UnreadableLogError(f"{path}: cannot read the log ({error.strerror})") from error


def _records(lines: Iterable[str], log: Log) -> Iterator[Record]:
    line = ""
    number = 1
    for place, line in enumerate(lines):
        first = line.find(MARK)
        if first >= 0 and (record := _record(number, place, line, first, log)):
            yield record
        if line[-1] == "\n":  # a lone carriage return ends a record, as in the official parser, but no line
            number += 1
    if log.count("eval_accuracy") > len(log.evaluations):
        log.evaluations.append(log.seen["eval_accuracy"].last)
    log.cut = bool(line) and not line.endswith("\n")
    log.num_lines = number if log.cut else number - 1


def _record(number: int, place: int, line: str, first: int, log: Log) -> Record | None:
    last = line.rfind(MARK)
    try:
        record, doubled = _parse(number, place, line, last + len(MARK))
    except Exception as error:  # whatever a hostile line makes of json: the official checker ends in a traceback
        log.num_flaws += 1
        flaw = _flaw(number, line, error)
        if len(log.flaws) < _MAX_FLAWS or (flaw.crashes and not any(kept.crashes for kept in log.flaws)):
            log.flaws.append(flaw)
        if len(log.lost_keys) < 100:
            log.lost_keys.update(flaw.keys)
        return None
    if last != first and len(log.glued) < _MAX_FLAWS:
        log.glued.append((record, _KEY.findall(line[: min(last, _MAX_SEARCHED)])))
    if doubled and len(log.doubled) < _MAX_FLAWS:
        log.doubled.append((record, doubled))
    return record


def _parse(number: int, place: int, line: str, start: int) -> tuple[Record, str]:
    """The record that begins at `start`, and a name that is there twice in one of its objects."""
    try:
        fields, end = _DECODE(line, start)
        rest = line[end:]
        if rest != "\n" and rest.strip():
            raise ValueError
    except ValueError:
        fields = json.loads(line[start:].rstrip())  # spaces before the record; or the error that the official one has
    if fields is None:
        raise ValueError("not a record")
    time_ms = fields["time_ms"]
    float(time_ms)  # before what else may be missing, as the official parser
    value, metadata = fields["value"], fields["metadata"]
    named = "event_type" in fields and "namespace" in fields
    record = Record(number, fields["key"], value, time_ms, metadata, line[:_MAX_TEXT], named, place)
    num_names = len(fields)
    for inner in (value, metadata):
        if type(inner) is dict:
            num_names += len(inner)
    # Where there are no more colons than different names, no name is there twice.
    return record, "" if line.count(":", start) <= num_names else _doubled_name(line, start)


def _doubled_name(line: str, start: int) -> str:
    """The first name that a JSON object holds twice: readers differ in which one they take."""
    names: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        given = [name for name, _ in pairs]
        names.extend(name for name in given if given.count(name) > 1)
        return dict(pairs)

    json.JSONDecoder(object_pairs_hook=note).raw_decode(line, line.index("{", start))
    return names[0] if names else ""


def _flaw(number: int, line: str, error: Exception) -> Flaw:
    crashes = not isinstance(error, ValueError)
    said = f"no {error.args[0]!r}" if isinstance(error, KeyError) else str(error)[:200]
    return Flaw(number, crashes, said, line[:_MAX_TEXT], tuple(_KEY.findall(line[:_MAX_SEARCHED])))


def milliseconds(record: Record | None) -> float | None:
    """A record's time as a number; None where it is none."""
    if record is None or isinstance(record.time_ms, bool) or not isinstance(record.time_ms, int | float):
        return None
    return float(record.time_ms) if abs(record.time_ms) < 1e300 else None


def _keeper(log: Log) -> Callable[[Record], None]:
    """What takes a record into the log."""
    earliest, latest = YEARS_MS
    seen = log.seen
    last_milestone: Record | None = None
    evaluation_began: float | None = None

    def keep(record: Record) -> None:
        log.num_records += 1
        log.last = record
        known = seen.get(record.key)
        if known is None:
            if len(seen) < _MAX_KEYS or _ASKED_FOR.match(record.key):
                seen[record.key] = Seen(record, record)
        else:
            known.count += 1
            known.last = record
            if len(known.others) < _MAX_KEPT and _differ(record.value, known.first.value):
                known.others.append(record)
        if not record.named:
            log.unnamed = _counted(log.unnamed, record)
        if type(record.time_ms) is not int or not earliest <= record.time_ms < latest:
            log.odd_times = _counted(log.odd_times, record)
        elif record.key in _MILESTONES:
            milestone(record)
        if record.key == "eval_accuracy" and len(log.evaluations) < _MAX_EVALUATIONS:
            log.evaluations.append(record)
        elif record.key == "seed" and len(log.seeds) < _MAX_SEEDS:
            log.seeds.append(record)

    def milestone(record: Record) -> None:
        nonlocal last_milestone, evaluation_began
        if last_milestone is not None and record.time_ms < last_milestone.time_ms and len(log.backwards) < _MAX_FLAWS:
            log.backwards.append((last_milestone, record))
        last_milestone = record
        if record.key in _ENDS and len(log.ends_ms) < _MAX_EVALUATIONS:
            log.ends_ms.append(record.time_ms)
        if record.key == "eval_start":
            evaluation_began = record.time_ms
        elif record.key == "eval_stop" and evaluation_began is not None:
            log.eval_ms += record.time_ms - evaluation_began
            evaluation_began = None

    return keep


def _counted(seen: Seen | None, record: Record) -> Seen:
    if seen is None:
        return Seen(record, record)
    seen.count += 1
    seen.last = record
    return seen


def _differ(value: Any, other: Any) -> bool:
    try:
        return bool(value != other)
    except RecursionError:  # nested as deep as json goes
        return True
