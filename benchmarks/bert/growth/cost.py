"""A plan and the sizes of a model in, what each stage costs out: in matrix products, and in units of layers.

Backward makes two products for each one of forward: the gradient of what it reads and that of its weight. What is
frozen below all that trains makes neither, and the lowest layer that trains no gradient of what it reads. Frozen layers
that a gradient has to pass, because embeddings below them train, make the first alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

from benchmarks.bert.growth.plan import GrowthPlan, LayerDrop, Stage
from benchmarks.bert.model.bert import BertShape
from benchmarks.bert.model.flops import mean_packed_flops


@dataclass(frozen=True)
class Sample:
    num_tokens: int
    num_masked: int


@dataclass(frozen=True)
class Forward:
    """Operations of one sample's forward pass, by part."""

    layer: float
    weightless: float  # of a layer's, the products of two activations
    last: float  # layer, computed where it is read
    heads: float
    read_input: float  # of a layer's, the products that read its input: query, key, value
    last_read_input: float
    decoder: float


def stage_flops(shape: BertShape, stage: Stage, sample: Sample, last_layer: str = "only_read") -> float:
    """Operations of one sample's step. `shape` is the stage's own."""
    part = forward(shape, sample, last_layer)
    whole = 3 * ((shape.num_layers - 1) * part.layer + part.last + part.heads)
    decoder = 0 if stage.decoder_trains else part.decoder
    if stage.embeddings_train:
        return whole - decoder - stage.num_frozen * (part.layer - part.weightless)
    lowest = part.last_read_input if stage.num_frozen == shape.num_layers - 1 else part.read_input
    return whole - decoder - stage.num_frozen * 2 * part.layer - lowest


def dropping_flops(shape: BertShape, drop: LayerDrop, num_steps: float, sample: Sample, last_layer: str) -> float:
    """What is expected of one sample's step, in the mean of the first steps."""
    part = forward(shape, sample, last_layer)
    layers = [part.layer] * (shape.num_layers - 1) + [part.last]
    kept = sum(share * of for share, of in zip(drop.mean_keep(num_steps, shape.num_layers), layers, strict=True))
    return 3 * (kept + part.heads)


def forward(shape: BertShape, sample: Sample, last_layer: str) -> Forward:
    heads = _forward(shape, 0, sample, "whole")
    layer = _forward(shape, 1, sample, "whole") - heads
    num_asking = sample.num_tokens if last_layer == "whole" else sample.num_masked + 1
    per_token = 2 * shape.hidden_size**2
    return Forward(
        layer=layer,
        weightless=4 * shape.hidden_size * sample.num_tokens**2,
        last=_forward(shape, 1, sample, last_layer) - heads,
        heads=heads,
        read_input=3 * per_token * sample.num_tokens,
        last_read_input=per_token * (2 * sample.num_tokens + num_asking),
        decoder=2 * shape.hidden_size * shape.num_padded_vocabulary * sample.num_masked,
    )


def _forward(shape: BertShape, num_layers: int, sample: Sample, last_layer: str) -> float:
    flops = mean_packed_flops(
        replace(shape, num_layers=num_layers),
        tokens=sample.num_tokens,
        pairs=sample.num_tokens**2,
        masked=sample.num_masked,
        read_pairs=(sample.num_masked + 1) * sample.num_tokens,
        last_layer=last_layer,
    )
    return flops / 3


def layer_cost(stage: Stage, full: Stage) -> float:
    """The usual model, of `full`'s step: forward 1, backward 2 a layer, 1 of frozen layers that a gradient passes.

    A layer's cost goes with the square of its width; embeddings and heads are left out.
    """
    num_layers = stage.size.num_layers
    backward = 2 * (num_layers - stage.num_frozen) + (stage.num_frozen if stage.embeddings_train else 0)
    width = stage.size.hidden_size / full.size.hidden_size
    return (num_layers + backward) * width**2 / (3 * full.size.num_layers)


def lengths_of(plan: GrowthPlan, num_steps: float) -> list[float]:
    """Steps of each stage in the first `num_steps` of a run."""
    starts = [min(num_steps, stage.first_step - 1) for stage in plan.stages]
    return [after - before for before, after in pairwise([*starts, num_steps])]


def summed(plan: GrowthPlan, num_steps: float, cost: Callable[[Stage], float]) -> float:
    """Of the first `num_steps` steps, what a step of each stage costs."""
    return sum(length * cost(stage) for length, stage in zip(lengths_of(plan, num_steps), plan.stages, strict=True))
