"""A log in, where it is not the BERT benchmark out. Errors in the closed division, warnings in the open one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from tools.verify import rounds
from tools.verify.finding import Finding, Rule, shorten, shown
from tools.verify.log import Log, Record
from tools.verify.rules.events import number, samples_of, target_of

_HYPERPARAMETERS = "training rules, Hyperparameters (bert, lamb)"
_QUALITY = "training rules, Quality measure"
_DATA = "training rules, Data State at Start of Run"
_REFERENCE = "reference implementation of BERT"

BENCHMARK = Rule(
    "submission.benchmark",
    "mlperf-logging, common.yaml",
    "the benchmark is 'bert'",
    explains=("key:submission_benchmark", "official.none-passes", "official.crash"),
)
DIVISION = Rule(
    "submission.division",
    "mlperf-logging, common.yaml",
    "the division is 'closed' or 'open'",
    explains=("key:submission_division", "key:init_stop", "official.crash"),
)
STATUS = Rule(
    "submission.status",
    "submission rules, system availability",
    "the status is known",
    explains=("key:submission_status",),
)
BATCH = Rule(
    "global_batch_size.positive",
    _HYPERPARAMETERS,
    "the global batch is a positive integer",
    explains=("key:global_batch_size", "bert.interval"),
)
ACCUMULATION = Rule(
    "gradient_accumulation_steps.positive",
    _HYPERPARAMETERS,
    "accumulation is a positive integer",
    explains=("key:gradient_accumulation_steps",),
)
HYPERPARAMETER = Rule("hyperparameter.range", _HYPERPARAMETERS, "hyperparameters are numbers that can train")
ONCE = Rule("setting.once", _HYPERPARAMETERS, "a setting has one value")
OPTIMIZER = Rule("optimizer.allowed", "training rules, Allowed Optimizers", "the optimizer is LAMB")
LENGTH = Rule("bert.max-length", _REFERENCE, "sequences have at most 512 tokens")
PREDICTIONS = Rule("bert.max-predictions", _REFERENCE, "at most 76 masked tokens a sequence")
EVAL_SAMPLES = Rule("bert.eval-samples", _QUALITY, "10,000 evaluation samples", explains=("key:eval_samples",))
TRAIN_SAMPLES = Rule(
    "bert.train-samples",
    "mlperf-logging, RCP checker",
    "train_samples agree with the last evaluation",
    explains=("key:train_samples",),
)
INTERVAL = Rule("bert.interval", _QUALITY, "evaluations come as often as the rules want")
CACHE = Rule("cache.cleared", _DATA, "caches are cleared before the run", explains=("key:cache_clear",))
SEED = Rule("seed.logged", "training rules, Random numbers", "the seed is logged and an integer")
SCALED = Rule(
    "bert.scaled-down", "none: the open division may train another model on other data", "the benchmark's task"
)

_MAX_DRIFT = 1.25  # of the interval: packing and whole batches shift evaluations; beyond, evaluations are missing
_MAX_EXTRA_EVAL = 1.05  # of 10,000: some published logs count the padding of the last batch
_MAX_COUNT = 1_000_000_000  # of a batch or of accumulated micro-batches: beyond, no run had so many
_STATUSES = ("cloud", "onprem", "preview", "research")


def check(log: Log, ruleset: str) -> Iterator[Finding]:
    yield from _submission(log, ruleset)
    yield from _hyperparameters(log)
    yield from _once(log)
    yield from _seed(log, ruleset)
    yield from _cache(log)
    yield from _train_samples(log)
    if is_scaled_down(log):
        yield _scaled_down(log)
    else:
        yield from _task(log)
        yield from _interval(log, ruleset)


def is_open(log: Log) -> bool:
    return bool(log.value("submission_division") == "open")


def is_scaled_down(log: Log) -> bool:
    """An open-division run of another task than the benchmark's: its constants say nothing of it."""
    return is_open(log) and (
        log.value("max_sequence_length") not in (None, rounds.MAX_LENGTH)
        or target_of(log, rounds.LATEST) not in (rounds.TARGET, 0.712, 0.706)
    )


def _strict(log: Log, rule: Rule, message: str, record: Record, **fields: Any) -> Finding:
    """An error in the closed division, a warning in the open one."""
    return (rule.warning if is_open(log) else rule.error)(message, **_place(record), **fields)


def _place(record: Record) -> dict[str, Any]:
    return {"key": record.key, "line": record.line, "text": shorten(record.text)}


def _submission(log: Log, ruleset: str) -> Iterator[Finding]:
    benchmark, division, status = (log.first(f"submission_{name}") for name in ("benchmark", "division", "status"))
    if benchmark and benchmark.value != "bert":
        yield BENCHMARK.error(
            f"submission_benchmark is {shown(benchmark.value)}",
            key=benchmark.key,
            expected="'bert', in lower case: the official checker crashes on any other spelling",
            mend="log 'bert'",
            line=benchmark.line,
            text=shorten(benchmark.text),
        )
    if division is None or division.value not in ("closed", "open"):
        yield DIVISION.error(
            f"submission_division is {shown(division.value)}" if division else "no submission_division",
            key="submission_division",
            expected="'closed' or 'open', in lower case, before init_stop: it selects the rules",
            mend="log submission_division right after init_start",
            line=division.line if division else None,
            text=shorten(division.text) if division else "",
            absent=division is None,
        )
    if status and status.value not in _STATUSES:
        restricted = not rounds.at_least(ruleset, "4.1.0")
        yield (STATUS.error if restricted else STATUS.warning)(
            f"submission_status is {shown(status.value)}",
            key=status.key,
            expected=f"one of {', '.join(_STATUSES)}",
            mend="log the availability of the system",
            line=status.line,
            text=shorten(status.text),
        )


def _positive_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MAX_COUNT


def _hyperparameters(log: Log) -> Iterator[Finding]:
    for rule, key in ((BATCH, "global_batch_size"), (ACCUMULATION, "gradient_accumulation_steps")):
        record = log.first(key)
        if record and not _positive_integer(record.value):
            yield rule.error(
                f"{key} is {shown(record.value)}",
                key=key,
                expected=f"an integer from 1 to {_MAX_COUNT:,}",
                mend=f"log the {key} that the run used",
                line=record.line,
                text=shorten(record.text),
            )
    for key, (accepted, expected) in _RANGES.items():
        record = log.first(key)
        if record and not ((value := number(record.value)) is not None and accepted(value)):
            yield _strict(
                log,
                HYPERPARAMETER,
                f"{key} is {shown(record.value)}",
                record,
                expected=expected,
                mend="log the value that the optimizer used",
            )
    name = log.first("opt_name")
    if name and not is_open(log) and not re.search("lamb(?!da)", shown(name.value).lower()):
        yield OPTIMIZER.error(
            f"opt_name is {shown(name.value)}",
            key="opt_name",
            expected="LAMB in the closed division",
            mend="train with LAMB, or submit in the open division",
            line=name.line,
            text=shorten(name.text),
        )


_ANY: tuple[Callable[[float], bool], str] = (lambda value: True, "a number")
_BETA: tuple[Callable[[float], bool], str] = (lambda value: 0 <= value < 1, "a number from 0 to below 1")
_ABOVE_0: tuple[Callable[[float], bool], str] = (lambda value: value > 0, "a number above 0")
_FROM_0: tuple[Callable[[float], bool], str] = (lambda value: value >= 0, "a number from 0")
_RANGES = {
    "opt_base_learning_rate": _ABOVE_0,
    "opt_epsilon": _ABOVE_0,
    "opt_lamb_epsilon": _ABOVE_0,
    "opt_lamb_beta_1": _BETA,
    "opt_lamb_beta_2": _BETA,
    "opt_lamb_weight_decay_rate": _FROM_0,
    "opt_learning_rate_training_steps": _FROM_0,  # 0 in published logs whose schedule has no end
    "opt_learning_rate_warmup_steps": _FROM_0,
    "num_warmup_steps": _FROM_0,
    "start_warmup_step": _ANY,  # negative in published logs: a warm-up that began before the first step
}


def _once(log: Log) -> Iterator[Finding]:
    """Settings that the official rules do not count."""
    for key in ("max_sequence_length", "max_predictions_per_seq", "opt_name", "target_accuracy"):
        seen = log.seen.get(key)
        if seen and seen.others:
            yield ONCE.error(
                f"{key} is {shown(seen.first.value)} (line {seen.first.line:,}) and {shown(seen.others[0].value)}",
                **_place(seen.others[0]),
                expected="one value",
                mend="log the value that the run used",
            )


def _seed(log: Log, ruleset: str) -> Iterator[Finding]:
    record = log.first("seed")
    if record is None:
        if not is_open(log):
            yield (SEED.error if rounds.at_least(ruleset, "4.1.0") else SEED.warning)(
                "no seed",
                key="seed",
                absent=True,
                expected="at least one in each closed run from round 4.1 on",
                mend="draw the seed from the clock or the system and log it",
            )
        return
    if seed_of(log) is None:
        yield _strict(
            log, SEED, f"seed is {shown(record.value)}", record, expected="an integer", mend="log the seed as a number"
        )


def seed_of(log: Log) -> int | None:
    """The first seed, as the official seed checker reads it; None for none and for what is no integer."""
    value = log.value("seed")
    try:
        return None if isinstance(value, float) and value != int(value) else int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _cache(log: Log) -> Iterator[Finding]:
    seen = log.seen.get("cache_clear")
    if seen is None:
        return
    dirty = [record for record in (seen.first, *seen.others) if record.value is not True]
    if dirty:
        record = dirty[0]
        plain = record.value is False or record.value == 0
        fields = {
            "expected": "true, one for each node",
            "mend": "drop the page caches before each run (root: echo 3 > /proc/sys/vm/drop_caches)",
        }
        if record.value is None:  # as some published logs have it: the event alone
            yield CACHE.warning("cache_clear says neither true nor false", **_place(record), **fields)
        else:
            message = "the caches were not cleared" if plain else f"cache_clear is {shown(record.value)}"
            yield _strict(log, CACHE, message, record, **fields)


def _task(log: Log) -> Iterator[Finding]:
    for rule, key, wanted in (
        (LENGTH, "max_sequence_length", rounds.MAX_LENGTH),
        (PREDICTIONS, "max_predictions_per_seq", rounds.MAX_PREDICTIONS),
    ):
        record = log.first(key)
        if record and record.value != wanted:
            message = f"{key} is {shown(record.value)}"
            yield _strict(
                log, rule, message, record, expected=str(wanted), mend="train and evaluate on the reference's samples"
            )
    yield from _eval_samples(log)


def _eval_samples(log: Log) -> Iterator[Finding]:
    record = log.first("eval_samples")
    if record is None or record.value == rounds.EVAL_SAMPLES:
        return
    value = record.value[0] if isinstance(record.value, list) and len(record.value) == 1 else record.value
    count = number(value)
    padded = count is not None and rounds.EVAL_SAMPLES <= count <= _MAX_EXTRA_EVAL * rounds.EVAL_SAMPLES
    fields = {"expected": "10000", "mend": "evaluate on the 10,000 samples and count no padding"}
    if padded:
        yield EVAL_SAMPLES.warning(f"eval_samples is {shown(record.value)}", **_place(record), **fields)
    else:
        yield _strict(log, EVAL_SAMPLES, f"eval_samples is {shown(record.value)}", record, **fields)


def _train_samples(log: Log) -> Iterator[Finding]:
    record = log.first("train_samples")
    if record is None:
        return
    count = number(record.value)
    fields = {"expected": "the samples trained on until the run ended", "mend": "count them in the training loop"}
    if count is None or count <= 0:
        yield TRAIN_SAMPLES.error(f"train_samples is {shown(record.value)}", **_place(record), **fields)
        return
    last = samples_of(log.evaluations[-1]) if log.evaluations else None
    if last is None or last == count or log.count("eval_accuracy") > len(log.evaluations):
        return
    message = f"train_samples is {count:,.0f}, the last evaluation was after {last:,.0f}"
    if has_placeholder(log):
        yield TRAIN_SAMPLES.note(
            f"every evaluation says epoch_num {last:,.0f}, which is no number of samples: nothing to compare with",
            **_place(log.evaluations[-1]),
        )
    elif count < last - (number(log.value("global_batch_size")) or 0):
        yield _strict(log, TRAIN_SAMPLES, message, record, **fields)
    elif count > last * 1.001:
        yield TRAIN_SAMPLES.warning(message, **_place(record), **fields)


def has_placeholder(log: Log) -> bool:
    """Its evaluations say no samples: every epoch_num is below one batch, so it counts epochs."""
    samples = [count for record in log.evaluations if (count := samples_of(record)) is not None]
    batch = number(log.value("global_batch_size")) or 1
    return bool(samples) and max(samples) < max(batch, 2)


def _interval(log: Log, ruleset: str) -> Iterator[Finding]:
    batch = log.value("global_batch_size")
    every = log.count("eval_accuracy") == len(log.evaluations)  # of very many, only the first are there
    if not _positive_integer(batch) or not every:
        return
    if has_placeholder(log):
        yield from _too_few(log, rounds.eval_interval(ruleset, batch))
        return
    interval = rounds.eval_interval(ruleset, batch)
    gaps = _gaps(log, late=rounds.first_eval(ruleset, batch) - interval)
    gap, record = max(gaps, default=(0.0, None), key=lambda found: found[0])
    if record is None or gap <= interval + batch:
        return
    message = f"{gap:,.0f} samples without an evaluation, before the one at {samples_of(record):,.0f}"
    fields = {
        "expected": f"every {interval:,} samples, within one batch of {batch:,}",
        "mend": "evaluate at each multiple of the interval, at the end of the batch that reaches it",
    }
    if gap > max(_MAX_DRIFT * interval, interval + batch):
        yield _strict(log, INTERVAL, message, record, **fields)
    else:
        yield INTERVAL.warning(message, **_place(record), **fields)


def _too_few(log: Log, interval: int) -> Iterator[Finding]:
    """Where evaluations name no samples, their number must fit those trained on."""
    trained, last = number(log.value("train_samples")), log.evaluations[-1]
    stop = log.first("run_stop")
    if trained is None or stop is None or stop.meta("status") != "success":
        return
    wanted = int(trained / (_MAX_DRIFT * interval))
    if len(log.evaluations) < wanted:
        yield _strict(
            log,
            INTERVAL,
            f"{len(log.evaluations)} evaluations in {trained:,.0f} samples",
            last,
            expected=f"at least {wanted}: one every {interval:,} samples",
            mend="evaluate at each multiple of the interval, and log its samples as epoch_num",
        )


def _gaps(log: Log, late: int) -> Iterator[tuple[float, Record]]:
    """Samples since the evaluation before; `late` is by how much the first may come later than the others."""
    before = float(late)
    for record in log.evaluations:
        samples = samples_of(record)
        if samples is not None and samples > 0:
            yield samples - before, record
            before = max(before, samples)


def _scaled_down(log: Log) -> Finding:
    said = [
        f"{key} {shown(log.value(key))}"
        for key in ("max_sequence_length", "eval_samples", "target_accuracy")
        if log.first(key)
    ]
    return SCALED.note(
        f"not the benchmark's task ({', '.join(said)}): its lengths, counts and intervals are not applied"
    )
