"""Cases of the rules about the benchmark, and of those that mlperf-logging brings."""

from __future__ import annotations

from tests.support.logs import (
    BATCH,
    INTERVAL,
    NUM_EVALS,
    all_of,
    dropped,
    first,
    inserted,
    record,
    samples_at,
    with_metadata,
)
from tests.support.rule_case import (
    ERROR,
    NOTE,
    WARNING,
    Case,
    Edit,
    Lines,
    meta,
    pairs,
    same,
    then,
    value,
)
from tests.support.rule_cases_run import again, best_accuracy, drop, insert_before
from tools.verify.rules import bert, official

LAST = samples_at(NUM_EVALS)


def first_evaluation_after(samples: int) -> Edit:
    return meta("eval_accuracy", epoch_num=samples, samples_count=samples)


def placeholders(log: Lines) -> Lines:
    """epoch_num is the epoch, as some published logs have it."""
    for index in all_of(log, "eval_accuracy"):
        log = with_metadata(log, index, epoch_num=1)
    return log


def first_interval_gone(log: Lines) -> Lines:
    return dropped(log, *all_of(log, "eval_accuracy")[:1])


def caches(*values: object) -> Edit:
    """One cache_clear for each node."""

    def edit(log: Lines) -> Lines:
        return inserted(drop("cache_clear")(log), 0, *(record("cache_clear", value, node=0) for value in values))

    return edit


def wrong_tensor(log: Lines) -> Lines:
    return with_metadata(log, first(log, "weights_initialization"), tensor="bert/embeddings/words")


def tensors_in_another_order(log: Lines) -> Lines:
    indices = all_of(log, "weights_initialization")
    turned = dict(zip(indices, reversed(indices), strict=True))
    return [log[turned.get(index, index)] for index in range(len(log))]


SUBMISSION = [
    *pairs(bert.BENCHMARK, ERROR, "submission_benchmark", [("BERT", "bert"), ("bert ", "bert"), (["bert"], "bert")]),
    *pairs(bert.BENCHMARK, ERROR, "submission_benchmark", [(None, "bert")], division="open"),
    *pairs(bert.DIVISION, ERROR, "submission_division", [("Closed", "closed"), ("", "open"), (["open"], "open")]),
    Case(bert.DIVISION, ERROR, "missing", drop("submission_division"), same),
    *pairs(bert.STATUS, ERROR, "submission_status", [("foo", "cloud"), ("Preview", "preview")], ruleset="4.0.0"),
    *pairs(bert.STATUS, WARNING, "submission_status", [("foo", "onprem"), (3, "research")], ruleset="4.1.0"),
    *pairs(bert.STATUS, ERROR, "submission_status", [("foo", "cloud")], ruleset="4.0.0", division="open"),
]

HYPERPARAMETERS = [
    *pairs(bert.BATCH, ERROR, "global_batch_size", [(0, 1), (-1, 448), ("448", 448), (448.0, 448), (True, 448)]),
    *pairs(bert.BATCH, ERROR, "global_batch_size", [(0, 448)], division="open"),
    *pairs(bert.ACCUMULATION, ERROR, "gradient_accumulation_steps", [(0, 1), (0.5, 1), (1.0, 2)]),
    *pairs(bert.ACCUMULATION, ERROR, "gradient_accumulation_steps", [("1", 1)], division="open"),
    *pairs(bert.HYPERPARAMETER, ERROR, "opt_base_learning_rate", [(0, 1e-9), ("0.001", 0.001), (None, 1), (-1e-3, 1)]),
    *pairs(bert.HYPERPARAMETER, WARNING, "opt_base_learning_rate", [(0, 1e-9)], division="open"),
    *pairs(bert.HYPERPARAMETER, ERROR, "opt_lamb_epsilon", [(0.0, 1e-12)]),
    *pairs(bert.HYPERPARAMETER, ERROR, "opt_epsilon", [(0.0, 1e-12)]),
    *pairs(bert.HYPERPARAMETER, ERROR, "opt_lamb_beta_1", [(1, 0.999999), (-0.1, 0)]),
    *pairs(bert.HYPERPARAMETER, ERROR, "opt_lamb_beta_2", [(1.0, 0.999999), ("", 0)]),
    *pairs(bert.HYPERPARAMETER, ERROR, "opt_lamb_weight_decay_rate", [(-0.01, 0)]),
    *pairs(bert.HYPERPARAMETER, ERROR, "opt_learning_rate_training_steps", [(-1, 0), ([7100], 7100.0)]),
    *pairs(bert.HYPERPARAMETER, ERROR, "opt_learning_rate_warmup_steps", [(-1, 0)]),
    *pairs(bert.HYPERPARAMETER, ERROR, "num_warmup_steps", [(-1, 0)]),
    *pairs(bert.HYPERPARAMETER, ERROR, "start_warmup_step", [("0", 0), (float("inf"), -100.0)]),
    *pairs(bert.OPTIMIZER, ERROR, "opt_name", [("adam", "LAMB"), ("lambda-adam", "FusedLAMB"), (None, "nvlamb")]),
    Case(bert.OPTIMIZER, ERROR, "only_in_closed", value("opt_name", "lans"), value("submission_division", "open")),
    Case(bert.SEED, ERROR, "missing", drop("seed"), same, ruleset="4.1.0"),
    Case(bert.SEED, WARNING, "missing", drop("seed"), same, ruleset="4.0.0"),
    Case(
        bert.SEED,
        ERROR,
        "missing_is_free_in_open",
        drop("seed"),
        then(drop("seed"), value("submission_division", "open")),
    ),
    *pairs(bert.SEED, ERROR, "seed", [("x", "42"), (None, 42), ([1], -1), (7.5, 7.0)]),
    *pairs(bert.SEED, WARNING, "seed", [("x", "42")], division="open"),
]

ONCE = [
    Case(bert.ONCE, ERROR, key, again(key, "init_stop", value=other), again(key, "init_stop"))
    for key, other in (
        ("max_sequence_length", 128),
        ("max_predictions_per_seq", 20),
        ("opt_name", "adam"),
        ("target_accuracy", 0.5),
    )
]

DATA = [
    Case(bert.CACHE, ERROR, "false", value("cache_clear", False), value("cache_clear", True)),
    Case(bert.CACHE, WARNING, "false", value("cache_clear", False), value("cache_clear", True), "open"),
    Case(bert.CACHE, WARNING, "null", value("cache_clear", None), value("cache_clear", True)),
    Case(bert.CACHE, ERROR, "words", value("cache_clear", "yes"), value("cache_clear", True)),
    Case(bert.CACHE, ERROR, "one_node_of_three", caches(True, True, False), caches(True, True, True)),
    *pairs(bert.LENGTH, ERROR, "max_sequence_length", [(511, 512), (128, 512), ("512", 512)]),
    *pairs(bert.PREDICTIONS, ERROR, "max_predictions_per_seq", [(75, 76), (77, 76)]),
    *pairs(bert.PREDICTIONS, WARNING, "max_predictions_per_seq", [(80, 76)], division="open"),
    *pairs(bert.EVAL_SAMPLES, ERROR, "eval_samples", [(9999, 10_000), (10_501, 10_000), (1, 10_000), ("10000", 1e4)]),
    *pairs(bert.EVAL_SAMPLES, WARNING, "eval_samples", [(10_002, 10_000), (10_500, 10_000), ([10_000], 10_000)]),
    *pairs(bert.EVAL_SAMPLES, WARNING, "eval_samples", [(9999, 10_000), (10_002, 10_000)], division="open"),
    *pairs(bert.TRAIN_SAMPLES, ERROR, "train_samples", [(0, LAST), ("2700096", LAST), (None, LAST), (-5, LAST)]),
    *pairs(bert.TRAIN_SAMPLES, ERROR, "train_samples", [(LAST - BATCH - 1, LAST - BATCH)]),
    *pairs(bert.TRAIN_SAMPLES, WARNING, "train_samples", [(LAST - BATCH - 1, LAST - BATCH)], division="open"),
    *pairs(bert.TRAIN_SAMPLES, WARNING, "train_samples", [(LAST * 1001 // 1000 + 1, LAST * 1001 // 1000)]),
    Case(
        bert.TRAIN_SAMPLES,
        NOTE,
        "evaluations_name_an_epoch",
        placeholders,
        then(placeholders, value("train_samples", 1)),
    ),
    *pairs(bert.SCALED, NOTE, "max_sequence_length", [(128, 512)], division="open"),
    *pairs(bert.SCALED, NOTE, "target_accuracy", [(0.5, 0.72), (0.3, 0.712)], division="open"),
]

INTERVALS = [
    Case(
        bert.INTERVAL,
        WARNING,
        "a_batch_and_a_sample_late",
        first_evaluation_after(INTERVAL + BATCH + 1),
        first_evaluation_after(INTERVAL + BATCH),
    ),
    Case(
        bert.INTERVAL,
        ERROR,
        "a_quarter_and_a_sample_late",
        first_evaluation_after(INTERVAL * 5 // 4 + 1),
        first_evaluation_after(INTERVAL + 1),
    ),
    Case(
        bert.INTERVAL,
        WARNING,
        "a_quarter_late",
        first_evaluation_after(INTERVAL * 5 // 4),
        first_evaluation_after(INTERVAL),
    ),
    Case(
        bert.INTERVAL,
        WARNING,
        "a_quarter_and_a_sample_late",
        first_evaluation_after(INTERVAL * 5 // 4 + 1),
        first_evaluation_after(INTERVAL),
        "open",
    ),
    Case(bert.INTERVAL, ERROR, "one_missing", first_interval_gone, same),
    Case(
        bert.INTERVAL,
        ERROR,
        "samples_are_named",
        first_interval_gone,
        then(first_interval_gone, placeholders),
    ),
    Case(
        bert.INTERVAL,
        ERROR,
        "of_another_batch",  # 4096: every 175,000; 256: every 150,000
        then(value("global_batch_size", 256), first_interval_gone),
        then(value("global_batch_size", 40_960), first_interval_gone),
    ),
]

OFFICIAL = [
    Case(official.COUNT, ERROR, "missing", drop("opt_base_learning_rate"), same),
    Case(official.COUNT, ERROR, "missing", drop("train_samples"), drop("seed"), "open"),
    Case(
        official.COUNT,
        ERROR,
        "two_that_differ",
        again("opt_lamb_beta_1", "init_stop", value=0.8),
        again("opt_lamb_beta_1", "init_stop"),
    ),
    Case(official.COUNT, ERROR, "of_this_round", drop("opt_epsilon"), drop("opt_lamb_epsilon"), ruleset="1.0.0"),
    Case(
        official.ALTERNATIVES,
        ERROR,
        "no_start",
        drop("block_start"),
        then(insert_before("block_start", record("epoch_start", epoch_num=1)), drop("block_start")),
    ),
    Case(official.CHECK, ERROR, "no_epochs", meta("block_start", epoch_count=0), meta("block_start", epoch_count=1)),
    Case(official.CHECK, ERROR, "no_name", value("submission_org", ""), value("submission_org", "Ä"), "open", "4.1.0"),
    Case(
        official.NONE_PASSES,
        ERROR,
        "below_target",
        best_accuracy(0.7199),
        best_accuracy(0.72),
    ),
    Case(official.END, ERROR, "another_tensor", wrong_tensor, tensors_in_another_order, ruleset="2.0.0", weights=True),
    Case(official.UNPARSED, ERROR, "no_json", insert_before("opt_name", ":::MLLOG {"), insert_before("opt_name", "{")),
    Case(official.CRASH, ERROR, "words", best_accuracy("0.7206"), same),
    Case(official.CRASH, ERROR, "a_list", insert_before("opt_name", ":::MLLOG []"), insert_before("opt_name", "[]")),
    Case(official.CRASH, ERROR, "benchmark", value("submission_benchmark", "Bert"), same, "open"),
    Case(official.CHANGED, NOTE, "2.1", drop("opt_lamb_epsilon"), same, ruleset="2.1.0", weights=True),
]
