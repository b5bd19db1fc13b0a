"""A log in, what is wrong with the events of its run out: their number, their order, how the run ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

from tools.verify import rounds
from tools.verify.finding import Finding, Rule, shorten, shown
from tools.verify.log import Log, Record, milliseconds
from tools.verify.rules import lines

_RUN = "training rules, Run Results"
_QUALITY = "training rules, Quality measure"

INIT_STOP = Rule("init_stop.once", _RUN, "initialisation ends once", explains=("key:init_stop",))
RUN_START = Rule("run_start.once", _RUN, "the clock starts once", explains=("key:run_start",))
RUN_STOP = Rule("run_stop.once", _RUN, "the clock stops once", explains=("key:run_stop",))
ORDER = Rule(
    "run.order",
    _RUN,
    "init_start, init_stop, run_start, run_stop come in this order",
    explains=("key:init_start", "key:init_stop", "key:run_start", "key:run_stop", "eval.inside", "time.order"),
)
STATUS = Rule(
    "run_stop.status", _RUN, "a run ends with success", explains=("run.target", "official.none-passes", "key:run_stop")
)
EVALUATED = Rule("eval.some", _QUALITY, "a run is evaluated", explains=("key:eval_accuracy", "run.target"))
ACCURACY = Rule(
    "eval.accuracy", _QUALITY, "an accuracy is a number from 0 to below 1", explains=("key:eval_accuracy", "run.target")
)
SAMPLES = Rule(
    "eval.samples",
    "mlperf-logging, RCP checker: epoch_num of BERT holds samples",
    "an evaluation says after how many samples",
    explains=("key:eval_accuracy", "bert.train-samples", "bert.interval"),
)
INSIDE = Rule(
    "eval.inside",
    _QUALITY,
    "evaluations lie between run_start and run_stop",
    explains=("run.target", "bert.interval", "time.order"),
)
REPEATED = Rule("eval.repeated", _QUALITY, "an evaluation is made once")
TARGET = Rule("run.target", _QUALITY, "a successful run reached the target", explains=("official.none-passes",))


def number(value: object) -> float | None:
    """A finite number as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300 or math.isnan(value):
        return None
    return float(value)


def samples_of(record: Record) -> float | None:
    """After how many samples an evaluation was made, as the log has it."""
    metadata = record.metadata if isinstance(record.metadata, dict) else {}
    return number(metadata.get("epoch_num", metadata.get("samples_count")))


def _two_counts(record: Record) -> bool:
    """epoch_num and samples_count are both there, both of samples, and differ."""
    one, other = (number(record.meta(name)) for name in ("epoch_num", "samples_count"))
    return one is not None and other is not None and one != other and min(one, other) > 1


def target_of(log: Log, ruleset: str) -> float:
    """The accuracy that ends the run; in the open division the log may name its own."""
    own = number(log.value("target_accuracy"))
    if log.value("submission_division") == "open" and own is not None and 0 < own < 1:
        return own
    batch = number(log.value("global_batch_size"))
    return rounds.target(ruleset, None if batch is None else int(batch))


def is_inside(log: Log, record: Record) -> bool:
    """Between run_start and run_stop, by the order of lines and by the clock."""
    start, stop, time = log.first("run_start"), log.first("run_stop"), milliseconds(record)
    after_start = start is None or (start.place < record.place and not _less(time, milliseconds(start)))
    before_stop = stop is None or (record.place < stop.place and not _less(milliseconds(stop), time))
    return time is not None and after_start and before_stop


def reached(log: Log, ruleset: str) -> Record | None:
    """The first evaluation of the run that reached the target."""
    target = target_of(log, ruleset)
    for record in log.evaluations:
        accuracy = number(record.value)
        if accuracy is not None and target <= accuracy < 1 and is_inside(log, record):
            return record
    return None


def check(log: Log, ruleset: str) -> Iterator[Finding]:
    for rule, key in ((INIT_STOP, "init_stop"), (RUN_START, "run_start"), (RUN_STOP, "run_stop")):
        yield from _once(log, rule, key)
    yield from _order(log)
    yield from _status(log)
    yield from _evaluations(log)
    yield from _target(log, ruleset)


def _once(log: Log, rule: Rule, key: str) -> Iterator[Finding]:
    seen = log.seen.get(key)
    if seen is None:
        yield rule.error(
            f"no {key}",
            key=key,
            expected=f"exactly one {key}",
            mend=f"log {key} on one rank, once",
            explains=lines.lost(key),
            absent=True,
        )
    elif seen.count > 1:
        first, last = milliseconds(seen.first), milliseconds(seen.last)
        apart = f", {(last - first) / 1000:,.1f} s after the first" if first is not None and last is not None else ""
        yield rule.error(
            f"{seen.count:,} records of {key}; the last{apart}",
            key=key,
            expected=f"exactly one {key}: the official tools take the last for the score",
            mend=f"log {key} on one rank, once",
            line=seen.last.line,
            text=shorten(seen.last.text),
        )


def _order(log: Log) -> Iterator[Finding]:
    order = [record for key in ("init_start", "init_stop", "run_start", "run_stop") if (record := log.first(key))]
    for before, after in pairwise(order):
        if after.place < before.place:
            yield ORDER.error(
                f"{after.key} stands before {before.key} (line {before.line:,})",
                key=after.key,
                expected=f"{before.key} first",
                mend="log the events when they happen, from one process",
                line=after.line,
                text=shorten(after.text),
                explains=lines.lost(before.key),
            )
            return


def _status(log: Log) -> Iterator[Finding]:
    stop = log.first("run_stop")
    if stop is None or stop.meta("status") == "success":
        return
    status, reason = stop.meta("status"), stop.meta("reason")
    why = f" ({shorten(reason) if isinstance(reason, str) else shown(reason)})" if reason else ""
    yield STATUS.error(
        f"the run's status is {shown(status)}{why}",
        key="run_stop",
        expected="'success'",
        mend="run again; of the runs of a submission one may have failed"
        if status == "aborted"
        else "a status is 'success' or 'aborted'",
        line=stop.line,
        text=shorten(stop.text),
        run_outcome=status == "aborted",
    )


def _evaluations(log: Log) -> Iterator[Finding]:
    if not log.evaluations:
        yield EVALUATED.error(
            "no eval_accuracy",
            key="eval_accuracy",
            absent=True,
            expected="one for each evaluation",
            mend="evaluate inside the run and log eval_accuracy with epoch_num, the samples trained on so far",
        )
    yield from _first(ACCURACY, log, _accuracy_complaint, "a number; the target is a fraction, not a percentage")
    yield from _first(SAMPLES, log, _samples_complaint, "epoch_num = samples trained on so far, a number")
    yield from _repeated(log)
    inside = {_measured(record) for record in log.evaluations if is_inside(log, record)}
    yield from _first(
        INSIDE, log, lambda record: _outside_complaint(log, record, inside), "run_start, evaluations, run_stop"
    )


def _repeated(log: Log) -> Iterator[Finding]:
    """Ranks may each log an evaluation, but with one accuracy."""
    known: dict[float, Record] = {}
    for record in log.evaluations:
        samples = samples_of(record)
        if samples is None or samples <= 1:  # an epoch
            continue
        first = known.setdefault(samples, record)
        if shown(first.value) != shown(record.value):
            yield REPEATED.error(
                f"two accuracies after {samples:,.0f} samples: {shown(first.value)} (line {first.line:,}) and "
                f"{shown(record.value)}",
                key="eval_accuracy",
                expected="one evaluation, one accuracy",
                mend="log what was measured first",
                line=record.line,
                text=shorten(record.text),
            )
            return
    if log.count("eval_accuracy") > len(log.evaluations):
        yield REPEATED.error(
            f"{log.count('eval_accuracy'):,} evaluations, of which {len(log.evaluations):,} are looked at",
            key="eval_accuracy",
            expected="one evaluation each interval",
            mend="evaluate as often as the rules want",
        )


def _first(rule: Rule, log: Log, complaint: Callable[[Record], str], expected: str) -> Iterator[Finding]:
    """One finding for all evaluations that the complaint is about, at the first of them."""
    concerned = [record for record in log.evaluations if complaint(record)]
    if concerned:
        first, more = concerned[0], f" ({len(concerned):,} evaluations)" if len(concerned) > 1 else ""
        yield rule.error(
            f"{complaint(first)}{more}",
            key="eval_accuracy",
            expected=expected,
            mend="log eval_accuracy as it is measured, inside the run",
            line=first.line,
            text=shorten(first.text),
        )


def _accuracy_complaint(record: Record) -> str:
    accuracy = number(record.value)
    if accuracy is None or not 0 <= accuracy < 1:
        return f"an accuracy of {shown(record.value)}"
    return ""


def _samples_complaint(record: Record) -> str:
    if samples_of(record) is None:
        return f"an evaluation whose epoch_num is {shown(record.meta('epoch_num'))}"
    if _two_counts(record):
        return f"epoch_num is {record.meta('epoch_num')}, samples_count {record.meta('samples_count')}"
    return ""


def _outside_complaint(log: Log, record: Record, inside: set[tuple[float | None, str]]) -> str:
    if is_inside(log, record) or samples_of(record) == 0:  # the model before training may be measured before the run
        return ""
    if _measured(record) in inside:  # another rank's copy
        return ""
    start = log.first("run_start")
    after = start is None or (start.place < record.place and not _less(milliseconds(record), milliseconds(start)))
    return "an evaluation after run_stop" if after else "an evaluation before run_start"


def _measured(record: Record) -> tuple[float | None, str]:
    return samples_of(record), shown(record.value)


def _less(time: float | None, other: float | None) -> bool:
    return time is not None and other is not None and time < other


def _target(log: Log, ruleset: str) -> Iterator[Finding]:
    if not log.evaluations or reached(log, ruleset):
        return
    target = target_of(log, ruleset)
    best = max((accuracy for record in log.evaluations if (accuracy := number(record.value)) is not None), default=None)
    last = log.evaluations[-1]
    own_target = log.value("submission_division") == "open" and log.first("target_accuracy") is None
    stop = log.first("run_stop")
    finding = TARGET.warning if own_target else TARGET.error
    yield finding(
        f"no evaluation of the run reached {target:g}; the best is {best}",
        key="eval_accuracy",
        expected=f"a masked-LM accuracy from {target:g} to below 1",
        mend="train longer, or log the run as aborted"
        if not own_target
        else "log target_accuracy where the open division's target is another",
        line=last.line,
        text=shorten(last.text),
        run_outcome=stop is not None and stop.meta("status") == "aborted",
    )
