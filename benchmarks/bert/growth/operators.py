"""A model's named tensors and the sizes it has and is to have in, the named tensors of the grown model out.

One operator for each `Stage.origin`, for weights and for ADAM's two moments. Names are those of
`model.named_parameters()`; a moment's name is its parameter's. Nothing is changed in place, and no two tensors of a
result share memory; what stays as it is may be the tensor that came in.

    same     nothing                                                          the joint stage
    copy     on top copies of the topmost layers: 2d - d', ..., d - 1         multi-stage layerwise training
    fresh    on top layers as they are first drawn                            multi-stage layerwise training
    stack    the whole stack on itself: layer l + L is a copy of l            progressive stacking
    deepen   a layer that hands on what it gets above each, logits kept       staged training, `preserving.py`
    widen    hidden, heads and feed-forward doubled, logits kept              staged training, `preserving.py`

The moments of a copied layer are copies too. A name that is not in the moments has none, and neither have what is made
of it and what `fresh` draws: the optimizer begins them at 0, its step count too. For all others the count is that of
the tensor they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from benchmarks.bert.growth.notation import GrowthError
from benchmarks.bert.growth.plan import Size
from benchmarks.bert.growth.preserving import (
    deepened_moments,
    deepened_weights,
    in_layer,
    layer_of,
    widened_moments,
    widened_weights,
)

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Change:
    before: Size
    after: Size
    norm: str  # the model's, a key of NORMS


def grow_weights(origin: str, weights: Tensors, change: Change, drawn: Tensors) -> dict[str, Tensor]:
    """The grown model's weights. `drawn` are those that it was initialised with, for what is to begin afresh.

    Raises GrowthError where the operator makes no such size of the one before.
    """
    return _operator(origin, change).weights(weights, change, drawn)


def grow_moments(origin: str, moments: Tensors, change: Change, power: int) -> dict[str, Tensor]:
    """The grown model's first moments (`power` 1) or second ones (2), of as many parameters as there are.

    Of steps' counts, one for each element, it makes those of the grown model with `power` 0. Raises
    GrowthError where the operator makes no such size of the one before.
    """
    return _operator(origin, change).moments(moments, change, power)


@dataclass(frozen=True)
class Operator:
    follows: Callable[[Size, Size], bool]
    rule: str  # of the sizes, in words
    weights: Callable[[Tensors, Change, Tensors], dict[str, Tensor]]
    moments: Callable[[Tensors, Change, int], dict[str, Tensor]]


def _operator(origin: str, change: Change) -> Operator:
    operator = OPERATORS[origin]
    if not operator.follows(change.before, change.after):
        raise GrowthError(f"{origin} does not make {change.after} of {change.before}: it needs {operator.rule}")
    return operator


def _with_copies(tensors: Tensors, change: Change, distance: int) -> dict[str, Tensor]:
    """Each new layer is a copy of the one that lies `distance` below it."""
    below = change.before.num_layers - distance
    copies = {
        in_layer(layer + distance, name): tensor.clone()
        for name, tensor in tensors.items()
        if (layer := layer_of(name)) is not None and layer >= below
    }
    return {**tensors, **copies}


def _copied(tensors: Tensors, change: Change) -> dict[str, Tensor]:
    return _with_copies(tensors, change, change.after.num_layers - change.before.num_layers)


def _stacked(tensors: Tensors, change: Change) -> dict[str, Tensor]:
    return _with_copies(tensors, change, change.before.num_layers)


def _with_drawn(weights: Tensors, change: Change, drawn: Tensors) -> dict[str, Tensor]:
    return {name: weights[name] if name in weights else tensor.clone() for name, tensor in drawn.items()}


def _has_more_layers(before: Size, after: Size) -> bool:
    return before.num_layers < after.num_layers and before.hidden_size == after.hidden_size


def _has_at_most_twice(before: Size, after: Size) -> bool:
    return _has_more_layers(before, after) and after.num_layers <= 2 * before.num_layers


def _is_twice_as_deep(before: Size, after: Size) -> bool:
    return after == Size(2 * before.num_layers, before.hidden_size)


def _is_twice_as_wide(before: Size, after: Size) -> bool:
    return after == Size(before.num_layers, 2 * before.hidden_size)


_TWICE_THE_LAYERS = "twice the layers and the same width"

OPERATORS: dict[str, Operator] = {
    "same": Operator(
        lambda before, after: before == after,
        "the same size",
        lambda weights, change, drawn: dict(weights),
        lambda moments, change, power: dict(moments),
    ),
    "copy": Operator(
        _has_at_most_twice,
        "more layers, at most twice as many, and the same width",
        lambda weights, change, drawn: _copied(weights, change),
        lambda moments, change, power: _copied(moments, change),
    ),
    "fresh": Operator(
        _has_more_layers,
        "more layers and the same width",
        _with_drawn,
        lambda moments, change, power: dict(moments),
    ),
    "stack": Operator(
        _is_twice_as_deep,
        _TWICE_THE_LAYERS,
        lambda weights, change, drawn: _stacked(weights, change),
        lambda moments, change, power: _stacked(moments, change),
    ),
    "deepen": Operator(
        _is_twice_as_deep,
        _TWICE_THE_LAYERS,
        lambda weights, change, drawn: deepened_weights(weights, change.norm),
        lambda moments, change, power: deepened_moments(moments, change.norm, power),
    ),
    "widen": Operator(
        _is_twice_as_wide,
        "the same layers and twice the width",
        lambda weights, change, drawn: widened_weights(weights),
        lambda moments, change, power: widened_moments(moments, power),
    ),
}
