"""A log in, what is wrong with its lines out."""

from __future__ import annotations

from collections.abc import Iterator

from tools.verify.finding import Finding, Rule, shorten
from tools.verify.log import Log, Record

_FORMAT = "mllog, one whole record a line"

EMPTY = Rule("log.empty", "training rules, Run Results", "a log holds records")
TRUNCATED = Rule(
    "log.truncated",
    "training rules, Run Results: a run is a complete execution",
    "a log ends with run_stop",
    explains=(
        "official.count",
        "official.alternatives",
        "official.none-passes",
        "official.end",
        "official.unparsed",
        "official.crash",
        "run_start.once",
        "run_stop.once",
        "init_stop.once",
        "eval.some",
        "run.target",
        "bert.train-samples",
        "submission.division",
        "seed.logged",
    ),
)
BROKEN = Rule(
    "line.whole", _FORMAT, "every record can be read", explains=("official.unparsed", "official.crash", "run.target")
)
GLUED = Rule("line.single", _FORMAT, "one record on a line", explains=("run.target",))
DOUBLED = Rule("record.names", _FORMAT, "a record's names are unique")
TWO_RUNS = Rule(
    "log.single",
    "training rules, Run Results",
    "a log holds one run",
    explains=(
        "official.count",
        "official.check",
        "init_stop.once",
        "run_start.once",
        "run_stop.once",
        "run.order",
        "eval.inside",
        "eval.repeated",
        "time.order",
        "bert.interval",
        "bert.train-samples",
        "setting.once",
    ),
)
UNNAMED = Rule("record.named", _FORMAT, "a record says its namespace and event type")

_BEFORE_STOP = ("train_samples", "eval_samples")
_FOLLOWS = {  # what else the want of a record explains: official checks of other keys, rules of our own
    "init_start": ("key:init_stop",),
    "init_stop": ("key:run_start", "key:block_start", "key:run_stop"),
    "run_start": ("key:block_start", "key:epoch_start", "key:run_stop"),
    "submission_division": ("key:init_stop",),
    "eval_accuracy": ("bert.interval", "bert.train-samples", "run.target"),
}


def lost(key: str) -> tuple[str, ...]:
    """What the want of a record explains."""
    return (f"key:{key}", *_FOLLOWS.get(key, ()))


def is_truncated(log: Log) -> bool:
    """It stops in the middle: inside a record, or without run_stop and what stands before one."""
    if log.count("run_stop"):
        return False
    inside_record = log.cut and any(flaw.line == log.num_lines for flaw in log.flaws)
    return inside_record or (log.num_records > 0 and not all(log.count(key) for key in _BEFORE_STOP))


def check(log: Log) -> Iterator[Finding]:
    if not log.num_records and not log.num_flaws:
        yield EMPTY.error(
            "the log holds no MLLOG record",
            expected="the records of a run",
            mend="leave it out, or run again: nothing was logged",
            explains=("official.unparsed", "official.count", "official.alternatives"),
        )
        return
    truncated = is_truncated(log)
    if truncated:
        yield _truncated(log, log.last)
    if all(log.count(key) > 1 for key in ("init_stop", "run_start", "run_stop")):
        again = log.seen["run_start"].last
        yield TWO_RUNS.error(
            f"{log.count('run_start'):,} runs in one log",
            expected="a log for each run",
            mend="write each run to a file of its own",
            line=again.line,
            text=shorten(again.text),
        )
    yield from _broken(log, truncated)
    for record, keys in log.glued:
        yield (GLUED.error if keys else GLUED.warning)(
            "two records on one line: the official parser reads the last and loses the others",
            expected="a line for each record",
            mend="only one process may write the file, and each record with one write",
            line=record.line,
            text=shorten(record.text),
            explains=tuple(name for key in keys for name in lost(key)),
        )
    for record, name in log.doubled:
        yield DOUBLED.error(
            f"{name!r} is there twice in one object; readers differ in which one they take",
            key=record.key,
            expected="each name once",
            mend="log through mlperf_logging.mllog",
            line=record.line,
            text=shorten(record.text),
        )
    if log.unnamed:
        yield UNNAMED.warning(
            f"{log.unnamed.count:,} records without namespace or event_type; the first is {log.unnamed.first.key}",
            expected="both, as mllog writes them",
            mend="log through mlperf_logging.mllog",
            line=log.unnamed.first.line,
            text=shorten(log.unnamed.first.text),
        )


def _broken(log: Log, truncated: bool) -> Iterator[Finding]:
    """One finding for all broken lines, at the first; the line at which a log was cut is not one of them."""
    flaws = [flaw for flaw in log.flaws if not (truncated and flaw.line == log.num_lines)]
    if flaws:
        first, more = flaws[0], log.num_flaws - (len(log.flaws) - len(flaws)) - 1
        yield BROKEN.error(
            f"not a whole MLLOG record: {first.error}" + (f" (and {more:,} more lines)" if more else ""),
            expected="one JSON object with key, value, time_ms and metadata after :::MLLOG",
            mend="only one process may write the file, and each record with one write",
            line=first.line,
            text=shorten(first.text),
            explains=tuple(name for key in sorted(log.lost_keys) for name in lost(key)),
        )


def _truncated(log: Log, last: Record | None) -> Finding:
    where = "in the run" if log.count("run_start") else "before the run began"
    return TRUNCATED.error(
        f"the log ends {where}, {'inside a record' if log.cut and log.flaws else 'without run_stop'}",
        expected="run_stop, with its status, as the end of the run",
        mend="the run was killed or the file cut: take the whole file, or run again",
        line=last.line if last else None,
        text=shorten(last.text) if last else "",
        run_outcome=log.count("run_start") > 0,
    )
