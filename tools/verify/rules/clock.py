"""A log in, what is wrong with its times out."""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Callable, Iterator
from itertools import pairwise

from tools.verify import rounds
from tools.verify.finding import Finding, Rule, shorten, shown
from tools.verify.log import YEARS_MS, Log, Record, milliseconds
from tools.verify.rules.events import samples_of

_RUN = "training rules, Run Results"
_TIMED = ("init_start", "init_stop", "run_start", "run_stop", "eval_accuracy")
_BACKWARDS_MS = 1000  # several threads of one process may log out of order by less
_LATE = ("eval_start", "eval_accuracy", "eval_stop", "run_stop")  # logged after their time by an offline evaluation
_IDLE_S = 60
_MAX_PACE = 1.5
_MIN_INTERVALS = 4

UNIT = Rule(
    "time.unit",
    "mllog: time_ms is an integer of milliseconds since 1970",
    "times are whole milliseconds",
    explains=("time.order", "init.limit", "eval.inside", "run.target", "key:init_stop"),
)
ORDER = Rule("time.order", _RUN, "time does not run backwards", explains=("run.target",))
LIMIT = Rule("init.limit", _RUN, "initialisation stays within its limit", explains=("key:init_stop",))
PACE = Rule("run.pace", _RUN, "training is no faster at one time than at another")
IDLE = Rule("init.idle", _RUN, "the clock starts when initialisation ends")


def check(log: Log, ruleset: str) -> Iterator[Finding]:
    yield from _unit(log)
    yield from _order(log)
    yield from _init(log, ruleset)
    yield from _pace(log)


def _pace(log: Log) -> Iterator[Finding]:
    """Between evaluations; published logs differ by at most a fifth, and a clock that starts late shows as speed.

    A model that grows, as it may in the open division, is faster while it is small.
    """
    if _grows(log):
        return
    start = log.first("run_start")
    points = [(start, 0.0)] if start else []
    points += [(record, samples) for record in log.evaluations if (samples := samples_of(record)) is not None]
    speeds = [
        ((count - before) / (record.time_ms - earlier.time_ms), record)
        for (earlier, before), (record, count) in pairwise(points)
        if is_time(earlier) and is_time(record) and record.time_ms > earlier.time_ms and count > before
    ]
    if len(speeds) < _MIN_INTERVALS:
        return
    middle = statistics.median(speed for speed, _ in speeds)
    fastest, record = max(speeds, key=lambda item: item[0])
    if fastest > _MAX_PACE * middle:
        yield PACE.warning(
            f"{1000 * fastest:,.0f} samples/s before this evaluation, {1000 * middle:,.0f} in the median interval",
            key="eval_accuracy",
            expected=f"at most {_MAX_PACE} times as fast",
            mend="look at the times of run_start and of the evaluations: one of them is late or early",
            line=record.line,
            text=shorten(record.text),
        )


def _grows(log: Log) -> bool:
    if log.value("submission_division") != "open":
        return False
    configuration = log.value("configuration")
    growth = configuration.get("GROWTH") if isinstance(configuration, dict) else None
    return isinstance(growth, dict) and growth.get("value", "none") != "none"


def _unit(log: Log) -> Iterator[Finding]:
    if log.odd_times is None:
        return
    timed = [
        record
        for key in _TIMED
        for record in ((log.seen[key].first, log.seen[key].last) if key in log.seen else ())
        if not is_time(record)
    ] + [record for record in log.evaluations if not is_time(record)]
    record = min(timed, key=lambda record: record.place, default=log.odd_times.first)
    finding = UNIT.error if timed else UNIT.warning
    time = record.time_ms
    hint = "seconds, it seems: " if isinstance(time, float | int) and 1e9 < abs(time) < 1e10 else ""
    yield finding(
        f"{hint}time_ms is {shown(time)} ({log.odd_times.count:,} records)",
        key=record.key,
        expected="an integer of milliseconds since 1970: in another unit the score is wrong by that factor",
        mend="int(time.time() * 1000), as mllog does",
        line=record.line,
        text=shorten(record.text),
    )


def is_time(record: Record) -> bool:
    earliest, latest = YEARS_MS
    return type(record.time_ms) is int and earliest <= record.time_ms < latest


def _order(log: Log) -> Iterator[Finding]:
    milestones = [record for key in ("init_start", "init_stop", "run_start", "run_stop") if (record := log.first(key))]
    for before, after in pairwise(milestones):
        if before.place < after.place and _backwards_ms(before, after) > 0:
            yield _backwards(before, after, ORDER.error, "eval.inside", "init.limit")
            return
    beyond = [pair for pair in log.backwards if _backwards_ms(*pair) > _BACKWARDS_MS]
    if beyond:
        wrong = [pair for pair in beyond if pair[1].key not in _LATE] if _is_offline(log) else beyond
        worst = max(wrong or beyond, key=lambda pair: _backwards_ms(*pair))
        yield _backwards(*worst, ORDER.error if wrong else ORDER.warning)


def _is_offline(log: Log) -> bool:
    """Evaluated from checkpoints beside or after the training: each evaluation has the time at which a block ended.

    As some published logs; a run_stop with the time of the checkpoint that passed may then precede later blocks.
    """
    ends = sorted(log.ends_ms)

    def at_an_end(record: Record) -> bool:
        place = bisect.bisect(ends, record.time_ms)
        return any(abs(end - record.time_ms) <= _BACKWARDS_MS for end in ends[max(0, place - 1) : place + 1])

    return all(is_time(record) and at_an_end(record) for record in log.evaluations)


def _backwards_ms(before: Record, after: Record) -> float:
    return (milliseconds(before) or 0) - (milliseconds(after) or 0) if is_time(before) and is_time(after) else 0


def _backwards(before: Record, after: Record, finding: Callable[..., Finding], *explains: str) -> Finding:
    return finding(
        f"{after.key} is {_backwards_ms(before, after) / 1000:,.3f} s earlier than {before.key} (line {before.line:,})",
        key=after.key,
        expected="times that grow down the file",
        mend="one process logs the run's events; its clock must not be set back meanwhile",
        line=after.line,
        text=shorten(after.text),
        explains=(*explains, *(("key:init_stop",) if before.key == "init_stop" else ())),  # which has a limit in time
    )


def _init(log: Log, ruleset: str) -> Iterator[Finding]:
    began, stopped, started = (log.first(key) for key in ("init_start", "init_stop", "run_start"))
    if began is None or started is None or not is_time(began) or not is_time(started):
        return
    limit = rounds.init_limit_minutes(ruleset, log.value("submission_division"))
    minutes = (started.time_ms - began.time_ms) / 60_000
    if minutes >= limit:
        yield LIMIT.error(
            f"{minutes:,.1f} minutes from init_start to run_start",
            key="init_stop",
            expected=f"less than {limit} minutes; what is more belongs into the run",
            mend="start the clock when the limit is used up",
            line=started.line,
            text=shorten(started.text),
        )
    if stopped is not None and is_time(stopped) and (idle := (started.time_ms - stopped.time_ms) / 1000) > _IDLE_S:
        yield IDLE.warning(
            f"{idle:,.0f} s between init_stop and run_start",
            key="run_start",
            expected="run_start right after init_stop",
            mend="log init_stop last before the run",
            line=started.line,
            text=shorten(started.text),
        )
