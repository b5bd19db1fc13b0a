"""The environment in, its growth plan drawn out: `python -m benchmarks.bert.growth show`.

Exit status 2 with one line for each problem where the configuration is refused.
"""

from __future__ import annotations

import sys

import torch

from benchmarks.bert.complaint import REFUSED, complain
from benchmarks.bert.config import Config, ConfigError, load
from benchmarks.bert.growth.cost import Sample, dropping_flops, stage_flops, summed
from benchmarks.bert.growth.plan import GrowthPlan, Stage
from benchmarks.bert.growth.stages import freeze, of_stage, plan_of
from benchmarks.bert.model.bert import Bert, BertShape
from benchmarks.bert.trainer import shape_of

_MASKED_SHARE = 0.15
_HEADING: tuple[str, ...] = (
    "stage",
    "from step",
    "layers",
    "train",
    "parameters trained",
    "reduced, MiB",
    "FLOPs",
    "lowest first",
)
_LEGEND = {
    "t": "trains",
    "f": "frozen",
    "c": "new, a copy, trains",
    "n": "new, drawn, trains",
    "d": "left out by chance",
}
_NEW = {"copy": "c", "stack": "c", "deepen": "c", "fresh": "n"}  # by origin


def main() -> int:
    if sys.argv[1:] != ["show"]:
        return complain("usage: python -m benchmarks.bert.growth show", REFUSED)
    try:
        config = load()
    except ConfigError as error:
        return complain(error, REFUSED)
    print("\n".join(drawn(config)))
    return 0


def drawn(config: Config) -> list[str]:
    """A line for each stage, and what a step costs in the mean."""
    plan = plan_of(config)
    vocabulary, source = _vocabulary(config)
    sample = Sample(config.max_length, round(_MASKED_SHARE * config.max_length))
    full = Stage(1, plan.stages[-1].size)
    whole = stage_flops(model_of(config, full, vocabulary).shape, full, sample, config.last_layer)
    rows, costs = [_HEADING], {}
    for number, stage in enumerate(plan.stages):
        model = model_of(config, stage, vocabulary)
        costs[stage] = _flops(config, plan, stage, model.shape, sample) / whole
        num_before = plan.stages[number - 1].size.num_layers if number else 0
        rows.append(_row(number + 1, stage, model, costs[stage], bar(plan, stage, num_before)))
    mean = summed(plan, config.decay_steps, costs.__getitem__) / config.decay_steps
    used = "".join(row[-1] for row in rows[1:])
    return [
        f"GROWTH={config.growth}, {full.size} (layers x width), {config.decay_steps:,} steps",
        f"a vocabulary of {vocabulary:,} ({source}); FLOPs of a sample of {sample.num_tokens} tokens, full model's = 1",
        "",
        *_aligned([*rows, ("mean", *[""] * 5, f"{mean:.2f}", "")]),
        "",
        ", ".join(f"{letter} {what}" for letter, what in _LEGEND.items() if letter in used),
    ]


def model_of(config: Config, stage: Stage, num_vocabulary: int) -> Bert:
    """The stage's model without memory for its weights or kernels to run it, what it freezes frozen."""
    with torch.device("meta"):
        model = Bert(shape_of(of_stage(config, stage), num_vocabulary))
    freeze(model, stage)
    return model


def bar(plan: GrowthPlan, stage: Stage, num_before: int) -> str:
    """A letter for each layer; `num_before` are those of the stage before, 0 for the first."""
    num_layers = stage.size.num_layers
    if plan.layer_drop is not None:
        return "t" + "d" * (num_layers - 1)
    letters = ["f"] * stage.num_frozen + ["t"] * (num_layers - stage.num_frozen)
    new = range(1, num_layers, 2) if stage.origin == "deepen" else range(num_before, num_layers)
    for layer in new if stage.origin in _NEW else ():
        letters[layer] = _NEW[stage.origin]
    return "".join(letters)


def _flops(config: Config, plan: GrowthPlan, stage: Stage, shape: BertShape, sample: Sample) -> float:
    if plan.layer_drop is not None:
        return dropping_flops(shape, plan.layer_drop, config.decay_steps, sample, config.last_layer)
    return stage_flops(shape, stage, sample, config.last_layer)


def _row(number: int, stage: Stage, model: Bert, cost: float, letters: str) -> tuple[str, ...]:
    training = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return (
        str(number),
        f"{stage.first_step:,}",
        str(stage.size),
        str(stage.size.num_layers - stage.num_frozen),
        f"{sum(parameter.numel() for parameter in training):,}",
        f"{sum(parameter.nbytes for parameter in training) / 2**20:.1f}",
        f"{cost:.2f}",
        letters,
    )


def _vocabulary(config: Config, default: int = BertShape.num_vocabulary) -> tuple[int, str]:
    """Its entries, and where that is known from."""
    path = config.data_dir / "vocab.txt"
    try:
        return len(path.read_bytes().removesuffix(b"\n").split(b"\n")), str(path)
    except OSError:
        return default, f"BERT's; {path} is not there"


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Numbers to the right, the last column to the left."""
    *widths, _ = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([*(text.rjust(width) for text, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]


if __name__ == "__main__":
    sys.exit(main())
