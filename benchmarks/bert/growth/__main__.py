"""The environment in, its growth plan drawn out: `python -m benchmarks.bert.growth show`.

Exit status 2 with one line for each problem where the configuration is refused.
"""

from __future__ import annotations

import sys

import torch

from benchmarks.bert.complaint import REFUSED, complain
from benchmarks.bert.config import Config, ConfigError, load
from benchmarks.bert.growth.plan import GrowthPlan, Size, Stage
from benchmarks.bert.growth.relative import sample_of, stage_cost, vocabulary_of, whole_steps
from benchmarks.bert.growth.stages import freeze, of_stage, plan_of
from benchmarks.bert.model.bert import Bert
from benchmarks.bert.trainer import shape_of

_HEADING: tuple[str, ...] = (
    "stage",
    "from step",
    "layers",
    "train",
    "parameters trained",
    "reduced, MiB",
    "FLOPs",
    "embeddings|layers",
)
_LEGEND = {
    "t": "trains",
    "f": "frozen",
    "c": "new, a copy, trains",
    "n": "new, drawn, trains",
    "d": "left out by chance",
    "h": "as the head's matrix alone",
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
    """A line for each stage, and what a step costs in the mean of a run that takes MAX_STEPS."""
    plan = plan_of(config)
    vocabulary, source = vocabulary_of(config)
    mean = whole_steps(config, config.max_steps, vocabulary) / config.max_steps
    rows = [_HEADING]
    for number, stage in enumerate(plan.stages):
        cost = mean if plan.layer_drop else stage_cost(config, stage, vocabulary)
        num_before = plan.stages[number - 1].size.num_layers if number else 0
        model = model_of(config, stage, vocabulary)
        rows.append(_row(number + 1, stage, model, cost, bar(plan, stage, num_before)))
    used = "".join(row[-1] for row in rows[1:])
    return [
        f"GROWTH={config.growth}, {Size(config.num_layers, config.hidden_size)} (layers x width), {_steps(config)}",
        f"a vocabulary of {vocabulary:,} ({source}); FLOPs of a sample of {sample_of(config).num_tokens} tokens, "
        "full model's = 1",
        "",
        *_aligned([*rows, ("mean", *[""] * 5, f"{mean:.2f}", "")]),
        "",
        ", ".join(f"{letter} {what}" for letter, what in _LEGEND.items() if letter in used),
        *_never(config, plan),
    ]


def _steps(config: Config) -> str:
    if config.decay_steps == config.max_steps or len(plan_of(config).stages) == 1:
        return f"{config.max_steps:,} steps"
    return f"parts of DECAY_STEPS={config.decay_steps:,} steps, a run of at most MAX_STEPS={config.max_steps:,}"


def _never(config: Config, plan: GrowthPlan) -> list[str]:
    """The stages that the run ends before."""
    late = [str(number) for number, stage in enumerate(plan.stages, 1) if stage.first_step > config.max_steps]
    return [f"never begun, MAX_STEPS is {config.max_steps:,}: stage {', '.join(late)}"] if late else []


def model_of(config: Config, stage: Stage, num_vocabulary: int) -> Bert:
    """The stage's model without memory for its weights or kernels to run it, what it freezes frozen."""
    with torch.device("meta"):
        model = Bert(shape_of(of_stage(config, stage), num_vocabulary))
    freeze(model, stage)
    return model


def bar(plan: GrowthPlan, stage: Stage, num_before: int) -> str:
    """A letter for the embeddings and one for each layer; `num_before` are those of the stage before, or 0."""
    num_layers = stage.size.num_layers
    if plan.layer_drop is not None:
        return "t|t" + "d" * (num_layers - 1)
    embeddings = "t" if stage.embeddings_train else "h" if stage.decoder_trains else "f"
    letters = ["f"] * stage.num_frozen + ["t"] * (num_layers - stage.num_frozen)
    new = range(1, num_layers, 2) if stage.origin == "deepen" else range(num_before, num_layers)
    for layer in new if stage.origin in _NEW else ():
        letters[layer] = _NEW[stage.origin]
    return f"{embeddings}|{''.join(letters)}"


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


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Numbers to the right, the last column to the left."""
    *widths, _ = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([*(text.rjust(width) for text, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]


if __name__ == "__main__":
    sys.exit(main())
