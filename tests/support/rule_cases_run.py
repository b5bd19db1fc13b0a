"""Cases of the rules about lines, events and times."""

from __future__ import annotations

from typing import Any

from tests.support.logs import (
    BATCH,
    all_of,
    at_time,
    fields,
    first,
    inserted,
    last,
    line_of,
    moved,
    record,
    replaced,
    time_of,
    without,
    without_fields,
)
from tests.support.rule_case import (
    ERROR,
    WARNING,
    Case,
    Edit,
    Lines,
    last_meta,
    meta,
    pairs,
    same,
    then,
    value,
)
from tools.verify.rules import clock, events, lines

MINUTE_MS = 60_000


def cut_before(key: str) -> Edit:
    return lambda log: log[: first(log, key)]


def after(key: str, text: str) -> Edit:
    """With something on the line of the key's first record, behind it."""
    return lambda log: [line + text if index == first(log, key) else line for index, line in enumerate(log)]


def ahead(key: str, text: str) -> Edit:
    return lambda log: [text + line if index == first(log, key) else line for index, line in enumerate(log)]


def insert_before(key: str, *new: str) -> Edit:
    return lambda log: inserted(log, first(log, key), *new)


def again(key: str, before: str, **new: Any) -> Edit:
    """With the key's first record a second time."""

    def edit(log: Lines) -> Lines:
        index = first(log, before)
        log = inserted(log, index, log[first(log, key)])
        return replaced(log, index, **new)

    return edit


def drop(*keys: str) -> Edit:
    return lambda log: without(log, *keys)


def move(key: str, before: str) -> Edit:
    return lambda log: moved(log, [first(log, key)], first(log, before))


def unnamed(*names: str) -> Edit:
    return lambda log: without_fields(log, first(log, "opt_name"), *names)


def time(key: str, like: str, more_ms: float = 0) -> Edit:
    """The key's first record at the time of another key's, or later."""
    return lambda log: at_time(log, key, time_of(log, like) + more_ms)


def last_evaluation_at(like: str, more_ms: int) -> Edit:
    return lambda log: replaced(log, last(log, "eval_accuracy"), time_ms=time_of(log, like) + more_ms)


def first_evaluation_at(like: str, more_ms: int) -> Edit:
    return time("eval_accuracy", like, more_ms)


def run_begins_late(late_ms: int) -> Edit:
    """run_start, and what stands between init_stop and the first evaluation, that much later; training takes 72 s."""

    def edit(log: Lines) -> Lines:
        for index in range(first(log, "init_stop"), first(log, "eval_start")):
            log = replaced(log, index, time_ms=fields(log[index])["time_ms"] + late_ms)
        return log

    return edit


def run_of_growth_begins_late(growth: str) -> Edit:
    """Early intervals faster than the others, in a log whose configuration has that plan."""

    def edit(log: Lines) -> Lines:
        index = first(log, "init_stop")
        configuration = record("configuration", {"GROWTH": {"value": growth}}, time_of(log, "init_start"))
        return run_begins_late(25_000)(inserted(log, index, configuration))

    return edit


def evaluation_again(times: int, **new: Any) -> Edit:
    """The first evaluation so many times more, as other ranks log it."""

    def edit(log: Lines) -> Lines:
        index = first(log, "eval_accuracy")
        return inserted(log, index + 1, *times * [line_of(fields(log[index]) | new)])

    return edit


def then_run_again(*, whole: bool) -> Edit:
    """With a second run, two hours later, behind the first; or with what init_start to init_stop logs alone."""

    def edit(log: Lines) -> Lines:
        more = [line_of(record | {"time_ms": record["time_ms"] + 120 * MINUTE_MS}) for record in map(fields, log)]
        return [*log, *(more if whole else more[: first(log, "init_stop")])]

    return edit


def with_text(key: str, old: str, new: str) -> Edit:
    """Other text in the line of the key's first record."""
    return lambda log: [line.replace(old, new) if index == first(log, key) else line for index, line in enumerate(log)]


def unnamed_text(key: str) -> Edit:
    """Without namespace, however else the line stands."""
    return with_text(key, '"namespace": "", ', "")


def init_takes(minutes: float) -> Edit:
    """init_start, and what stands before it, that long before run_start."""
    return then(*(time(key, "run_start", -int(minutes * MINUTE_MS)) for key in ("cache_clear", "init_start")))


def init_takes_less_than(minutes: int) -> Edit:
    return then(
        init_takes(minutes),
        *(lambda log, key=key: at_time(log, key, time_of(log, key) + 1) for key in ("init_start",)),
    )


def idle_ms(pause: int) -> Edit:
    return time("init_stop", "run_start", -pause)


def best_accuracy(best: Any) -> Edit:
    """The last evaluation's; every other is at most 0.7."""

    def edit(log: Lines) -> Lines:
        *others, final = all_of(log, "eval_accuracy")
        for index in others:
            log = replaced(log, index, value=min(fields(log[index])["value"], 0.7))
        return replaced(log, final, value=best)

    return edit


def only_samples_count(log: Lines) -> Lines:
    index = last(log, "eval_accuracy")
    metadata = fields(log[index])["metadata"]
    return replaced(log, index, metadata={name: metadata[name] for name in metadata if name != "epoch_num"})


def no_samples(log: Lines) -> Lines:
    index = last(log, "eval_accuracy")
    return replaced(log, index, metadata={"file": "train.py", "lineno": 1})


def before_training(samples: int) -> Edit:
    """An evaluation of the model before the run began."""
    return lambda log: inserted(
        log,
        first(log, "run_start"),
        record("eval_accuracy", 0.34, time_of(log, "init_stop"), epoch_num=samples),
    )


def first_eval_stop_at(more_ms: int) -> Edit:
    """The first eval_stop that long after its eval_accuracy; less than 0 is back in time."""
    return time("eval_stop", "eval_accuracy", more_ms)


LINES = [
    Case(lines.EMPTY, ERROR, "no_record", lambda log: [], same),
    Case(lines.TRUNCATED, ERROR, "in_the_run", cut_before("eval_accuracy"), same),
    Case(lines.TRUNCATED, ERROR, "in_the_run", cut_before("eval_accuracy"), same, "open"),
    Case(lines.BROKEN, ERROR, "more_after_a_record", after("opt_name", " }"), after("opt_name", "  \t")),
    Case(lines.BROKEN, ERROR, "no_json", insert_before("opt_name", ":::MLLOG x"), insert_before("opt_name", "MLLOG x")),
    Case(lines.BROKEN, ERROR, "open", insert_before("opt_name", ":::MLLOG x"), insert_before("opt_name", "x"), "open"),
    Case(lines.GLUED, ERROR, "hides_one", ahead("num_warmup_steps", record("train_samples", 5)), same),
    Case(
        lines.GLUED,
        WARNING,
        "hides_a_part",
        ahead("opt_name", ':::MLLOG {"namespace": "", "time_ms": 17'),
        ahead("opt_name", '12: {"namespace": "", "time_ms": 17'),
    ),
    Case(lines.TWO_RUNS, ERROR, "two_runs", then_run_again(whole=True), then_run_again(whole=False)),
    Case(lines.TWO_RUNS, ERROR, "two_runs", then_run_again(whole=True), then_run_again(whole=False), "open"),
    Case(lines.DOUBLED, ERROR, "value", with_text("opt_name", '"value"', '"value": 1, "value"'), same),
    Case(
        lines.DOUBLED,
        ERROR,
        "metadata",
        with_text("run_stop", '"status"', '"status": "aborted", "status"'),
        with_text("run_stop", '"status"', '"value": "of another object", "status"'),
    ),
    Case(
        lines.DOUBLED,
        ERROR,
        "spaced_and_not_named",
        then(with_text("opt_name", '"value"', '"value" : 1, "value"'), unnamed_text("opt_name")),
        unnamed_text("opt_name"),
    ),
    Case(lines.UNNAMED, WARNING, "no_event_type", unnamed("event_type"), same),
    Case(lines.UNNAMED, WARNING, "no_namespace", unnamed("namespace"), same),
]

EVENTS = [
    Case(events.INIT_STOP, ERROR, "missing", drop("init_stop"), same),
    Case(events.INIT_STOP, ERROR, "twice", again("init_stop", "run_start"), again("init_start", "init_stop")),
    Case(events.RUN_START, ERROR, "missing", drop("run_start"), same),
    Case(events.RUN_START, ERROR, "twice", again("run_start", "block_start"), again("opt_name", "init_stop")),
    Case(events.RUN_START, ERROR, "twice", again("run_start", "block_start"), same, "open"),
    Case(events.RUN_STOP, ERROR, "missing", drop("run_stop"), same),
    Case(events.RUN_STOP, ERROR, "twice", lambda log: [*log, log[-1]], lambda log: [*log, log[-1] * 0 + "done"]),
    Case(events.ORDER, ERROR, "run_start_first", move("run_start", "init_stop"), move("opt_name", "init_stop")),
    Case(events.ORDER, ERROR, "init_start_late", move("init_start", "run_start"), move("init_start", "init_stop")),
    Case(events.ORDER, ERROR, "run_stop_first", move("run_stop", "run_start"), same, "open"),
    Case(events.STATUS, ERROR, "aborted", meta("run_stop", status="aborted"), meta("run_stop", status="success")),
    Case(events.STATUS, ERROR, "spelling", meta("run_stop", status="Success"), meta("run_stop", reason="aborted")),
    Case(events.STATUS, ERROR, "none", meta("run_stop", status=None), same, "open"),
    Case(events.EVALUATED, ERROR, "none", drop("eval_accuracy"), drop("eval_start")),
    Case(events.EVALUATED, ERROR, "none", drop("eval_accuracy"), drop("eval_stop"), "open"),
    *pairs(events.ACCURACY, ERROR, "eval_accuracy", [(1.0, 0.9999), (-0.0001, 0.0), (True, 0), (None, 0.5)]),
    *pairs(events.ACCURACY, ERROR, "eval_accuracy", [(72.1, 0.5), (float("nan"), 0.0)], division="open"),
    Case(events.SAMPLES, ERROR, "words", last_meta("eval_accuracy", epoch_num="2700096"), same),
    Case(events.SAMPLES, ERROR, "neither", no_samples, only_samples_count),
    Case(events.SAMPLES, ERROR, "neither", no_samples, only_samples_count, "open"),
    Case(events.SAMPLES, ERROR, "two_counts", last_meta("eval_accuracy", samples_count=BATCH), same),
    Case(events.REPEATED, ERROR, "two_accuracies", evaluation_again(1, value=0.7), evaluation_again(8)),
    Case(events.REPEATED, ERROR, "two_accuracies", evaluation_again(1, value=0.7), evaluation_again(8), "open"),
    Case(events.REPEATED, ERROR, "over_10000", evaluation_again(10_001), evaluation_again(9_900)),
    Case(events.INSIDE, ERROR, "early", first_evaluation_at("run_start", -1), first_evaluation_at("run_start", 0)),
    Case(events.INSIDE, ERROR, "late", last_evaluation_at("run_stop", 1), last_evaluation_at("run_stop", 0)),
    Case(events.INSIDE, ERROR, "late", last_evaluation_at("run_stop", 1), last_evaluation_at("run_stop", 0), "open"),
    Case(events.INSIDE, ERROR, "before_training", before_training(BATCH), before_training(0)),
    Case(events.TARGET, ERROR, "0.7199", best_accuracy(0.7199), best_accuracy(0.72)),
    Case(events.TARGET, ERROR, "named", best_accuracy(0.7199), value("target_accuracy", 0.5), "open"),
    Case(
        events.TARGET,
        WARNING,
        "not_named",
        then(drop("target_accuracy"), best_accuracy(0.7199)),
        drop("target_accuracy"),
        "open",
    ),
    Case(
        events.TARGET,
        ERROR,
        "closed_takes_no_other",
        then(value("target_accuracy", 0.5), best_accuracy(0.7199)),
        value("target_accuracy", 0.99),
    ),
    Case(
        events.TARGET,
        ERROR,
        "round_0.7",
        best_accuracy(0.7119),
        best_accuracy(0.712),
        ruleset="0.7.0",
    ),
    Case(
        events.TARGET,
        ERROR,
        "round_0.7_large_batch",
        then(value("global_batch_size", 8191), best_accuracy(0.7119)),
        then(value("global_batch_size", 8192), best_accuracy(0.706)),
        ruleset="0.7.0",
    ),
]

CLOCK = [
    Case(clock.UNIT, ERROR, "float", time("run_stop", "run_stop", 0.5), same),
    Case(clock.UNIT, ERROR, "whole_float", time("run_start", "run_start", 0.0), time("run_start", "run_start", 0)),
    Case(clock.UNIT, ERROR, "words", lambda log: at_time(log, "run_stop", str(time_of(log, "run_stop"))), same, "open"),
    Case(clock.UNIT, ERROR, "1970", time("init_start", "init_start", -1_748_000_000_000), same),
    Case(
        clock.UNIT, ERROR, "microseconds", lambda log: at_time(log, "run_stop", time_of(log, "run_stop") * 1000), same
    ),
    Case(clock.UNIT, WARNING, "of_no_event", lambda log: at_time(log, "opt_name", 0), time("opt_name", "init_stop", 1)),
    Case(clock.ORDER, ERROR, "stop_first", time("run_stop", "run_start", -1), time("run_stop", "run_stop", 1)),
    Case(clock.ORDER, ERROR, "init_first", time("init_stop", "init_start", -1), time("init_stop", "init_start")),
    Case(clock.ORDER, ERROR, "stop_first", time("run_stop", "run_start", -1), same, "open"),
    Case(clock.ORDER, ERROR, "1001_ms", first_eval_stop_at(-1001), first_eval_stop_at(-1000)),
    Case(clock.PACE, WARNING, "the_run_begins_late", run_begins_late(25_000), run_begins_late(23_000)),
    Case(clock.PACE, WARNING, "the_run_begins_late", run_begins_late(25_000), run_begins_late(23_000), "open"),
    Case(
        clock.PACE,
        WARNING,
        "a_model_that_does_not_grow",
        run_of_growth_begins_late("none"),
        run_of_growth_begins_late("progressive_stacking:12,24@0.5,0.5"),
        "open",
    ),
    Case(
        clock.PACE,
        WARNING,
        "growth_in_the_closed_division",
        run_of_growth_begins_late("progressive_stacking:12,24@0.5,0.5"),
        run_begins_late(23_000),
    ),
    Case(clock.LIMIT, ERROR, "30_minutes", init_takes(30), init_takes_less_than(30)),
    Case(clock.LIMIT, ERROR, "30_minutes", init_takes(30), init_takes_less_than(30), ruleset="2.0.0", weights=True),
    Case(clock.LIMIT, ERROR, "20_minutes", init_takes(20), init_takes_less_than(20), ruleset="0.7.0"),
    Case(clock.LIMIT, ERROR, "4_hours", init_takes(240), init_takes_less_than(240), "open"),
    Case(clock.LIMIT, ERROR, "30_minutes", init_takes(30), init_takes_less_than(30), "open", "1.0.0"),
    Case(clock.IDLE, WARNING, "60_s", idle_ms(60_001), idle_ms(60_000)),
    Case(clock.IDLE, WARNING, "60_s", idle_ms(60_001), idle_ms(60_000), "open"),
]
