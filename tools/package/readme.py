"""What the logs of a system say in, the README.md that suffices to repeat its runs out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from benchmarks.bert.config import VARIABLES
from tools.package.results import Results
from tools.package.scripts import CONFIG, SCRIPTS, data_dir
from tools.verify.log import Log
from tools.verify.render.markdown import escape

DEFAULT_DATA = "data/kjv"

_ORDER = {
    "random": "a shuffle of all samples, dealt to the ranks in turn",
    "stratified": "a quota from each of NUM_STRATA ranges of length, drawn at random within each range and dealt to "
    "the ranks in turn",
    "stratified_presort": "a quota from each of NUM_STRATA ranges of length, drawn at random within each range; its "
    "samples go to the nodes in turn and, inside each node, sorted by length, to its ranks in serpentine order",
    "global_presort": "a shuffle of all samples; its samples are sorted by length and dealt to all ranks in "
    "serpentine order",
    "stratified_local": "a quota from each of NUM_STRATA ranges of length for every node, drawn at random from the "
    "node's own run of samples and, sorted by length, dealt to its ranks in serpentine order",
    "least_loaded": "a shuffle of all samples; longest first, each of its samples goes to the rank with the least work "
    "so far, so that numbers of samples vary between ranks",
    "same_bin": "drawn at random from one of NUM_STRATA ranges of length, the same for all ranks, and dealt to the "
    "ranks in turn; the ranges follow one another at random, each as often as its samples fill batches",
}
_INITIAL = {
    "standard": "the reference's: a normal distribution of INIT_STD cut at two deviations, biases 0, norms 1",
    "relative_offset": "the reference's (a normal distribution of INIT_STD cut at two deviations, biases 0, norms 1), "
    "with sinusoids as positions and the first layer's heads 0 to 3 looking at the tokens at -1, +1, -2 and +2",
}
_OPTIMIZERS = {
    "adam": "ADAM with decoupled weight decay (torch's fused AdamW)",
    "lamb": "LAMB with LAMB_BIAS_CORRECTION and MAX_TRUST_RATIO as below",
    "lans": "LANS with LAMB_BIAS_CORRECTION and MAX_TRUST_RATIO as below",
}
_SCHEDULES = {
    "polynomial": "falls by a polynomial of DECAY_POWER",
    "lans": "stays there for CONSTANT_STEPS and falls along a line",
    "record": "falls along a line that leaves LEARNING_RATE at the step WARMUP_STEPS, not where the warm-up ends,",
}
_CLIPS = {
    "none": "Gradients are not clipped.",
    "bucket_before": "Each of the {num_buckets} gradient buckets of a rank's micro-batch is clipped to the norm "
    "MAX_NORM / sqrt({num_buckets}) before its all-reduce.",
    "global_before": "The gradient of each rank's micro-batch is clipped as a whole to the norm MAX_NORM before the "
    "all-reduce.",
    "global_after": "The mean gradient of all ranks and micro-batches is clipped as a whole to the norm MAX_NORM after "
    "the all-reduce.",
}
_LOGGED = (
    "global_batch_size",
    "gradient_accumulation_steps",
    "max_sequence_length",
    "max_predictions_per_seq",
    "target_accuracy",
    "eval_samples",
    "num_warmup_steps",
    "start_warmup_step",
)


def readme(results: Results, *, submitter: str, implementation: str, commit: str) -> str:
    configuration, log = results.configuration, results.logs[0]
    code = f"../implementations/{implementation}"
    sections = {
        "Run": _run(configuration, len(results.logs)),
        "Preprocessing": _preprocessing(configuration),
        "Data traversal order": _order(configuration),
        "Model": _model(configuration),
        "Initialisation": _initialisation(configuration),
        "Optimizer": _optimizer(configuration, log),
        "Evaluation": _evaluation(configuration, log),
        "Configuration and hyperparameters": "\n".join(_table(results)),
        "Runs": _runs(results),
    }
    parts = [
        f"# BERT on {escape(results.system)}, {escape(submitter)}, {escape(results.division)} division",
        f"The code is in [{code}]({code}), commit `{commit}`.",
        *(f"## {head}\n\n{text}" for head, text in sections.items()),
    ]
    return "\n\n".join(parts) + "\n"


def _run(configuration: dict[str, Any], num_runs: int) -> str:
    setup, data, trial = (f"./{name}" for name in SCRIPTS)
    commands = [
        f"{setup}    # once",
        f"{data}    # once" if is_default_data(configuration) else "# prepare the data, see below",
        *(() if data_dir(configuration) else ("export DATA_DIR=...    # the folder of the prepared data",)),
        f"for i in $(seq {num_runs}); do {trial}; done",
    ]
    words = (
        f"The scripts call those of the implementation. `{trial}` takes its configuration from `{CONFIG}` beside it; "
        "the caller's variables win over the file. Each trial draws its own seed from the operating system and writes "
        "the next free `results/<system>/result_<i>.txt` in the implementation's folder. `CLEAR_CACHES=1` drops the "
        "page caches first, as root; the log says whether that was done."
    )
    return "\n".join(["```", *commands, "```", "", words])


def _preprocessing(configuration: dict[str, Any]) -> str:
    made = (
        "Text becomes samples by the reference's recipe (`benchmarks/bert/prepare/samples.py`), and samples become "
        "shards without padding; both are untimed. The implementation's `docs/data.md` has the details."
    )
    if is_default_data(configuration):
        return f"{made} `./init_datasets.sh` downloads the default text by hash and prepares it, with every argument."
    where = data_dir(configuration)
    return (
        f"{made} The data ({f'`{where}`' if where else 'given as DATA_DIR'}) are not the default data set: their "
        "recipe and checksums are in `train/manifest.json` and `eval/manifest.json` there, and the implementation's "
        "`docs/your-own.md` has the commands."
    )


def is_default_data(configuration: dict[str, Any]) -> bool:
    return data_dir(configuration) == DEFAULT_DATA


def _order(configuration: dict[str, Any]) -> str:
    order = _of(_ORDER, configuration, "LOADING")
    return (
        f"A global batch is {order}. The order is drawn from the run's seed inside the clock and anew for each epoch; "
        "within an epoch no sample repeats, and only the last incomplete global batch is left out."
    )


def _model(configuration: dict[str, Any]) -> str:
    layers, width, heads, ffn, dropout, precision = (
        _value(configuration.get(name))
        for name in ("NUM_LAYERS", "HIDDEN_SIZE", "NUM_HEADS", "FFN_SIZE", "DROPOUT", "PRECISION")
    )
    return (
        f"BERT as its reference defines it: {layers} encoder layers of width {width}, {heads} heads, a feed-forward "
        f"part of {ffn}, post-layer-norm, erf GELU, the masked-LM decoder tied to the word embeddings, a next-sentence "
        f"head; dropout {dropout}, {precision} arithmetic. Sequences are packed end to end and attention stays within "
        "each, so no padding is computed."
    )


def _initialisation(configuration: dict[str, Any]) -> str:
    return f"Weights are drawn from the run's seed; they are {_of(_INITIAL, configuration, 'INITIALISATION')}."


def _optimizer(configuration: dict[str, Any], log: Log) -> str:
    clip = log.first("opt_clip")
    buckets = _value(clip.meta("num_buckets")) if clip else "B"
    return (
        f"{_of(_OPTIMIZERS, configuration, 'OPTIMIZER')}; biases and norms do not decay. The learning rate rises "
        "linearly over WARMUP_STEPS, counted from START_WARMUP_STEP, to LEARNING_RATE, "
        f"{_of(_SCHEDULES, {'SCHEDULE': 'polynomial'} | configuration, 'SCHEDULE')} to END_LEARNING_RATE at step "
        "DECAY_STEPS. "
        + _of(_CLIPS, configuration, "CLIP").replace("{num_buckets}", buckets)
        + " A step whose gradient is not finite is left out on all ranks."
    )


def _evaluation(configuration: dict[str, Any], log: Log) -> str:
    start, interval, target = (
        _value(configuration.get(name)) for name in ("EVAL_START_SAMPLES", "EVAL_INTERVAL_SAMPLES", "TARGET_ACCURACY")
    )
    samples = _value(log.value("eval_samples")) if log.first("eval_samples") else "all"
    return (
        f"At the first step that brings the samples trained on to {start}, and to every {interval} more, on {samples} "
        "held-out samples: masked-LM accuracy, correct masked tokens over masked tokens, counted in integers over all "
        f"ranks. The run stops at {target}, or without success after MAX_STEPS."
    )


def _table(results: Results) -> Iterator[str]:
    yield "| name | value | meaning |\n|---|---|---|"
    for name, value in results.configuration.items():
        if name != "DATA_DIR" or data_dir(results.configuration):
            yield f"| {name} | {_value(value)} | {escape(VARIABLES[name].metadata['what'])} |"
    log = results.logs[0]
    for key in (*_LOGGED, *sorted(key for key in log.seen if re.fullmatch(r"opt_\w+", key, re.ASCII))):
        if record := log.first(key):
            yield f"| {key} | {_value(record.value)} | as logged |"


def _runs(results: Results) -> str:
    rows = [f"| result_{number}.txt | {_value(log.value('seed'))} |" for number, log in enumerate(results.logs)]
    return "`SEED=<seed>` repeats a run.\n\n" + "\n".join(["| log | seed |", "|---|---|", *rows])


def _of(words: dict[str, str], configuration: dict[str, Any], name: str) -> str:
    """The words for the variable's value; the value itself where there are none."""
    value = str(configuration.get(name))
    return words.get(value, f"{name}={_value(value)}")


def _value(value: object) -> str:
    text = str(value)
    return f"`{text}`" if re.fullmatch(r"[\w.+:/@%=,-]+", text, re.ASCII) else escape(text)
