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
    ),
)
BROKEN = Rule(
    "line.whole", _FORMAT, "every record can be read", explains=("official.unparsed", "official.crash", "run.target")
)
GLUED = Rule("line.single", _FORMAT, "one record on a line", explains=("run.target",))
UNNAMED = Rule("record.named", _FORMAT, "a record says its namespace and event type")

_END_KEYS = ("block_stop", "epoch_stop", "train_samples", "eval_samples")


def is_truncated(log: Log) -> bool:
    """It stops in the middle: no run_stop and nothing of what stands around one."""
    last_keys = {log.last.key} if log.last else set()
    return bool(log.num_records) and not log.count("run_stop") and not last_keys.intersection(_END_KEYS)


def check(log: Log) -> Iterator[Finding]:
    if not log.num_records and not log.num_flaws:
        yield EMPTY.error(
            "the log holds no MLLOG record",
            expected="the records of a run",
            mend="leave it out, or run again: nothing was logged",
            explains=("official.unparsed", "official.count", "official.alternatives"),
            run_outcome=True,
        )
        return
    truncated = is_truncated(log)
    if truncated:
        yield _truncated(log, log.last)
    for flaw in log.flaws:
        if truncated and flaw.line == log.num_lines:
            continue  # the line at which it was cut
        yield BROKEN.error(
            f"not a whole MLLOG record: {flaw.error}",
            expected="one JSON object with key, value, time_ms and metadata after :::MLLOG",
            mend="only one process may write the file, and each record with one write",
            line=flaw.line,
            text=shorten(flaw.text),
            explains=tuple(f"key:{key}" for key in flaw.keys),
        )
    if log.num_flaws > len(log.flaws):
        yield BROKEN.error(f"{log.num_flaws - len(log.flaws):,} more lines are no whole MLLOG records")
    for record, lost in log.glued:
        yield (GLUED.error if lost else GLUED.warning)(
            "two records on one line: the official parser reads the last and loses the others",
            expected="a line for each record",
            mend="only one process may write the file, and each record with one write",
            line=record.line,
            text=shorten(record.text),
            explains=tuple(f"key:{key}" for key in lost),
        )
    if log.unnamed:
        yield UNNAMED.warning(
            f"{log.unnamed.count:,} records without namespace or event_type; the first is {log.unnamed.first.key}",
            expected="both, as mllog writes them",
            mend="log through mlperf_logging.mllog",
            line=log.unnamed.first.line,
            text=shorten(log.unnamed.first.text),
        )


def _truncated(log: Log, last: Record | None) -> Finding:
    where = "in the run" if log.count("run_start") else "before the run began"
    return TRUNCATED.error(
        f"the log ends {where}, {'inside a record' if log.cut and log.flaws else 'without run_stop'}",
        expected="run_stop, with its status, as the end of the run",
        mend="the run was killed or the file cut: take the whole file, or run again",
        line=last.line if last else None,
        text=shorten(last.text) if last else "",
        run_outcome=True,
    )
