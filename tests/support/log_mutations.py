"""One way each in which a log goes wrong that mlperf-logging judges wrongly or unhelpfully, made from a log of ours.

A mutation takes the lines of a log that stands and gives the text of one that does not, with the number of the line
that is to blame: None where something is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support.logs import (
    all_of,
    at_time,
    dropped,
    fields,
    first,
    inserted,
    last,
    line_of,
    moved,
    replaced,
    time_of,
    with_metadata,
    without,
    without_fields,
)

ACCUMULATION = "gradient_accumulation_steps"
Lines = list[str]
Spoilt = tuple[str, int | None]


@dataclass(frozen=True)
class Mutation:
    name: str  # as in the table of official verdicts
    spoil: Callable[[Lines], Spoilt]
    rule: str | None  # id of the one root cause; None where nothing is wrong
    official: str  # what mlperf-logging makes of it, "pass", "fail" or "crash", in rounds that it fails in
    variant: str = ""
    fails_from: str = "1.0.0"  # ruleset from which on it fails; a warning before
    fails_before: str = "9.9.9"  # ruleset from which on it fails no more, a warning as well

    @property
    def id(self) -> str:
        return f"{self.name}-{self.variant}" if self.variant else self.name

    def fails(self, ruleset: str) -> bool:
        return self.rule is not None and self.fails_from <= ruleset < self.fails_before

    def official_verdict(self, ruleset: str) -> str:
        return "pass" if ruleset >= self.fails_before else self.official


def text_of(lines: Lines, end: str = "\n") -> str:
    return "".join(line + end for line in lines)


# --- ways to spoil a log


def value(key: str, new: Any, which: Callable[[Lines, str], int] = first) -> Callable[[Lines], Spoilt]:
    def spoil(lines: Lines) -> Spoilt:
        index = which(lines, key)
        return text_of(replaced(lines, index, value=new)), index + 1

    return spoil


def metadata(key: str, which: Callable[[Lines, str], int] = first, **new: Any) -> Callable[[Lines], Spoilt]:
    def spoil(lines: Lines) -> Spoilt:
        index = which(lines, key)
        return text_of(with_metadata(lines, index, **new)), index + 1

    return spoil


def every_epoch_num(new: Any) -> Callable[[Lines], Spoilt]:
    """The first evaluation is to blame."""

    def spoil(lines: Lines) -> Spoilt:
        for index in all_of(lines, "eval_accuracy"):
            lines = with_metadata(lines, index, epoch_num=new)
        return text_of(lines), first(lines, "eval_accuracy") + 1

    return spoil


def missing(*keys: str) -> Callable[[Lines], Spoilt]:
    return lambda lines: (text_of(without(lines, *keys)), None)


def every_time(change: Callable[[int], Any]) -> Callable[[Lines], Spoilt]:
    """The first time that counts, init_start's, is to blame."""

    def spoil(lines: Lines) -> Spoilt:
        new = [line_of(record | {"time_ms": change(record["time_ms"])}) for record in map(fields, lines)]
        return text_of(new), first(lines, "init_start") + 1

    return spoil


def one_time(key: str, change: Callable[[int], Any]) -> Callable[[Lines], Spoilt]:
    def spoil(lines: Lines) -> Spoilt:
        return text_of(at_time(lines, key, change(time_of(lines, key)))), first(lines, key) + 1

    return spoil


def second_run_start(lines: Lines) -> Spoilt:
    time_ms = time_of(lines, "run_stop") - 60_000
    index = next(index for index, line in enumerate(lines) if fields(line)["time_ms"] > time_ms)
    again = line_of(fields(lines[first(lines, "run_start")]) | {"time_ms": time_ms})
    return text_of(inserted(lines, index, again)), index + 1


def stop_earlier_than_start(lines: Lines) -> Spoilt:
    spoilt = at_time(lines, "run_stop", time_of(lines, "run_start") - 1_000_000)
    return text_of(spoilt), first(lines, "run_stop") + 1


def only_the_final_accuracy(lines: Lines) -> Spoilt:
    spoilt = dropped(lines, *all_of(lines, "eval_accuracy")[:-1])
    return text_of(spoilt), first(spoilt, "eval_accuracy") + 1


def only_the_final_evaluation(lines: Lines) -> Spoilt:
    keys = ("eval_start", "eval_accuracy", "eval_stop")
    spoilt = dropped(lines, *(index for key in keys for index in all_of(lines, key)[:-1]))
    return text_of(spoilt), first(spoilt, "eval_accuracy") + 1


def cut_after(key: str, more: int = 0) -> Callable[[Lines], Spoilt]:
    """The last line that is there is the place."""

    def spoil(lines: Lines) -> Spoilt:
        index = first(lines, key) + more
        return text_of(lines[: index + 1]), index + 1

    return spoil


def cut_inside(key: str, more: int = 0) -> Callable[[Lines], Spoilt]:
    """The last whole line is the place."""

    def spoil(lines: Lines) -> Spoilt:
        index = first(lines, key) + more
        return text_of(lines[:index]) + lines[index][:70], index

    return spoil


def cut_in_half(lines: Lines) -> Spoilt:
    text = text_of(lines)
    text = text[: len(text) // 2]
    return text, text.count("\n")


def no_metadata(key: str) -> Callable[[Lines], Spoilt]:
    return lambda lines: (text_of(without_fields(lines, first(lines, key), "metadata")), first(lines, key) + 1)


def garbage_after(key: str, which: Callable[[Lines, str], int] = first) -> Callable[[Lines], Spoilt]:
    def spoil(lines: Lines) -> Spoilt:
        index = which(lines, key)
        return text_of([*lines[:index], lines[index] + " step 12", *lines[index + 1 :]]), index + 1

    return spoil


def glued(key: str) -> Callable[[Lines], Spoilt]:
    """The key's record loses the end of its line, so that the next one hides it."""

    def spoil(lines: Lines) -> Spoilt:
        index = first(lines, key)
        return text_of([*lines[:index], lines[index] + lines[index + 1], *lines[index + 2 :]]), index + 1

    return spoil


def unnamed(lines: Lines) -> Spoilt:
    for index in range(len(lines)):
        lines = without_fields(lines, index, "namespace", "event_type")
    return text_of(lines), 1


def slow_start(lines: Lines) -> Spoilt:
    """init_start, and what stands before it, 31 minutes before run_start, whose line says when."""
    for key in ("cache_clear", "init_start"):
        lines = at_time(lines, key, time_of(lines, "run_start") - 31 * 60_000)
    return text_of(lines), first(lines, "run_start") + 1


def evaluations_before_run(*keys: str) -> Callable[[Lines], Spoilt]:
    def spoil(lines: Lines) -> Spoilt:
        indices = sorted(index for key in keys for index in all_of(lines, key))
        spoilt = moved(lines, indices, first(lines, "run_start"))
        return text_of(spoilt), first(spoilt, "eval_accuracy") + 1

    return spoil


def two_batches(lines: Lines) -> Spoilt:
    index = first(lines, "global_batch_size") + 1
    other = line_of(fields(lines[index - 1]) | {"value": 512})
    return text_of(inserted(lines, index, other)), index + 1


def stop_before_last_evaluation(lines: Lines) -> Spoilt:
    """By its place and by its time."""
    place = last(lines, "eval_start")
    lines = at_time(lines, "run_stop", fields(lines[place])["time_ms"])
    spoilt = moved(lines, [first(lines, "run_stop")], place)
    return text_of(spoilt), last(spoilt, "eval_accuracy") + 1


def stop_time_before_evaluation(lines: Lines) -> Spoilt:
    before = fields(lines[last(lines, "eval_start")])["time_ms"]
    return text_of(at_time(lines, "run_stop", before)), last(lines, "eval_accuracy") + 1


# --- the table


MUTATIONS = (
    Mutation("00_original", lambda lines: (text_of(lines), None), None, "pass"),
    Mutation(
        "01_run_stop_status_aborted_but_acc_reached", metadata("run_stop", status="aborted"), "run_stop.status", "pass"
    ),
    Mutation("02_run_stop_status_garbage", metadata("run_stop", status="banana"), "run_stop.status", "pass"),
    Mutation("03_second_run_start_60s_before_stop", second_run_start, "run_start.once", "pass"),
    Mutation("04_run_stop_time_before_run_start", stop_earlier_than_start, "time.order", "pass"),
    Mutation("05_global_batch_size_minus1", value("global_batch_size", -1), "global_batch_size.positive", "pass"),
    Mutation("06_global_batch_size_string", value("global_batch_size", "lots"), "global_batch_size.positive", "pass"),
    Mutation("07_eval_samples_1", value("eval_samples", 1), "bert.eval-samples", "pass"),
    Mutation("08_train_samples_0", value("train_samples", 0), "bert.train-samples", "pass"),
    Mutation("09_only_final_eval_kept", only_the_final_accuracy, "bert.interval", "pass"),
    Mutation("09_only_final_eval_kept", only_the_final_evaluation, "bert.interval", "pass", "with_its_start_and_stop"),
    Mutation("10_no_seed", missing("seed"), "seed.logged", "pass", fails_from="4.1.0"),
    Mutation("11_eval_acc_string", value("eval_accuracy", "0.7206", last), "eval.accuracy", "crash"),
    Mutation("11_eval_acc_string", value("eval_accuracy", "0.5520"), "eval.accuracy", "crash", "first"),
    Mutation("12_eval_acc_1.0", value("eval_accuracy", 1.0, last), "eval.accuracy", "fail"),
    Mutation("13_no_eval_accuracy", missing("eval_accuracy"), "eval.some", "fail"),
    Mutation("14_epoch_num_string", metadata("eval_accuracy", last, epoch_num="x"), "eval.samples", "pass"),
    Mutation("14_epoch_num_string", metadata("eval_accuracy", epoch_num="1"), "eval.samples", "pass", "first"),
    Mutation("14_epoch_num_string", every_epoch_num("x"), "eval.samples", "pass", "all"),
    Mutation("15_truncated_half", cut_in_half, "log.truncated", "fail"),
    Mutation("15_truncated_half", cut_after("opt_name"), "log.truncated", "fail", "init_between_records"),
    Mutation("15_truncated_half", cut_inside("opt_name"), "log.truncated", "fail", "init_inside_a_record"),
    Mutation("15_truncated_half", cut_after("run_start", 20), "log.truncated", "fail", "run_between_records"),
    Mutation("15_truncated_half", cut_inside("run_start", 20), "log.truncated", "fail", "run_inside_a_record"),
    Mutation("16_empty", lambda lines: ("", None), "log.empty", "fail"),
    Mutation("17_line_without_metadata", no_metadata("global_batch_size"), "line.whole", "crash"),
    Mutation("17_line_without_metadata", no_metadata("cache_clear"), "line.whole", "crash", "first_line"),
    Mutation("17_line_without_metadata", no_metadata("run_start"), "line.whole", "crash", "run_start"),
    Mutation("17_line_without_metadata", no_metadata("eval_accuracy"), "line.whole", "crash", "evaluation"),
    Mutation("17_line_without_metadata", no_metadata("run_stop"), "line.whole", "crash", "run_stop"),
    Mutation("18_trailing_garbage_on_line", garbage_after("opt_lamb_beta_1"), "line.whole", "fail"),
    Mutation("18_trailing_garbage_on_line", garbage_after("init_stop"), "line.whole", "fail", "init_stop"),
    Mutation("18_trailing_garbage_on_line", garbage_after("run_start"), "line.whole", "fail", "run_start"),
    Mutation("18_trailing_garbage_on_line", garbage_after("eval_accuracy", last), "line.whole", "fail", "evaluation"),
    Mutation("18_trailing_garbage_on_line", garbage_after("submission_division"), "line.whole", "fail", "division"),
    Mutation("18_trailing_garbage_on_line", garbage_after("run_stop"), "line.whole", "fail", "last_line"),
    Mutation("19_two_records_on_one_line", glued("opt_lamb_beta_1"), "line.single", "fail"),
    Mutation("19_two_records_on_one_line", glued("init_stop"), "line.single", "fail", "init_stop"),
    Mutation("19_two_records_on_one_line", glued("run_start"), "line.single", "fail", "run_start"),
    Mutation("19_two_records_on_one_line", glued("train_samples"), "line.single", "fail", "train_samples"),
    Mutation("19_two_records_on_one_line", glued("submission_division"), "line.single", "fail", "division"),
    Mutation("20_final_acc_NaN", value("eval_accuracy", math.nan, last), "eval.accuracy", "fail"),
    Mutation("21_timems_string", every_time(str), "time.unit", "pass"),
    Mutation("21_timems_string", one_time("run_stop", str), "time.unit", "pass", "run_stop"),
    Mutation("22_timems_float_seconds", every_time(lambda ms: ms / 1000), "time.unit", "pass"),
    Mutation("22_timems_float_seconds", one_time("run_start", lambda ms: ms / 1000), "time.unit", "pass", "run_start"),
    Mutation("23_no_event_type_namespace", unnamed, "record.named", "pass", fails_from="never"),
    Mutation("24_base_lr_zero", value("opt_base_learning_rate", 0), "hyperparameter.range", "pass"),
    Mutation("25_no_opt_lr", missing("opt_base_learning_rate"), "official.count", "fail"),
    Mutation("26_unknown_optimizer", value("opt_name", "madgrad"), "optimizer.allowed", "pass"),
    Mutation("27_benchmark_uppercase", value("submission_benchmark", "BERT"), "submission.benchmark", "crash"),
    Mutation("28_division_missing", missing("submission_division"), "submission.division", "fail"),
    Mutation("29_max_seq_len_128", value("max_sequence_length", 128), "bert.max-length", "pass"),
    Mutation("30_init_over_30min", slow_start, "init.limit", "fail"),
    Mutation("31_all_evals_before_run_start", evaluations_before_run("eval_accuracy"), "eval.inside", "pass"),
    Mutation(
        "31_all_evals_before_run_start",
        evaluations_before_run("eval_start", "eval_accuracy", "eval_stop"),
        "eval.inside",
        "pass",
        "with_their_starts_and_stops",
    ),
    Mutation("32_grad_accum_0.5", value(ACCUMULATION, 0.5), f"{ACCUMULATION}.positive", "pass"),
    Mutation("33_accuracy_0.7199", value("eval_accuracy", 0.7199, last), "run.target", "fail"),
    Mutation("34_cache_clear_false", value("cache_clear", False), "cache.cleared", "pass"),
    Mutation("35_crlf", lambda lines: (text_of(lines, "\r\n"), None), None, "pass"),
    Mutation("36_status_foo", value("submission_status", "foo"), "submission.status", "fail", fails_before="4.1.0"),
    Mutation("37_run_start_missing", missing("run_start"), "run_start.once", "fail"),
    Mutation("38_two_different_gbs", two_batches, "official.count", "fail"),
    Mutation("39_no_cache_clear", missing("cache_clear"), "official.count", "fail"),
    Mutation("40_run_stop_before_passing_eval", stop_before_last_evaluation, "eval.inside", "pass"),
    Mutation("40_run_stop_before_passing_eval", stop_time_before_evaluation, "eval.inside", "pass", "by_the_clock"),
)
