"""A model's named tensors in, those of one twice as deep or wide with the same logits out, and ADAM's moments to them.

After staged training (Shen et al., arXiv 2203.06211); what follows is derived for this network. G is a tensor's
gradient, U its next ADAM update m / (sqrt(v) + eps), both in the small model; nothing is said of clipped gradients.

`deepen` puts a layer above each that hands on what it gets. It is a copy whose output projections are 0.

    pre-LN   x + 0 + 0 = x, exactly.
    post-LN  norm(norm(x + 0) + 0) with the new layer's norms is x only if x has mean 0 and variance 1. The last norm of
             the layer below gives that, without its gain and bias: these move to the last norm of the new layer, and
             the two norms between have gain 1 and bias 0. Exact but for the norms' epsilon.

    The gradient of every old tensor stays G: the new branches pass none on, and through two norms of what is normal
    already a gradient goes as through one, a projection that does nothing the second time. Old tensors keep their
    moments, the moved gain and bias theirs; so their next update is U. New tensors have first moments of 0 and the
    second moments of what they copy, which only say how large a step is.

`widen` makes of every activation x the pair [x, x], whose mean and variance are x's.

    tensor                                       becomes                    gradient
    embeddings (columns), biases, norms          [w, w]                     [G, G] / 2
    matrices                                     [[w, 0], [0, w]]           [[G, G], [G, G]] / 2
    masked-LM norm, sentence classifier (read)   [w, w] / 2                 [G, G]
    decoder's and classifier's bias              w                          G

    Two copies are read, so what reads them is halved, and with it every gradient below. Moments go where gradients do,
    with the factor and its square. So each entry's next update is that of the gradient's column without its factor: U
    at every w, up to eps, which counts twice. It is U also in the blocks that are 0, whose moments are those that this
    gradient has had all along; at 0 their first update would be (1 - b1) / sqrt(1 - b2) of a step, 3 steps with the
    usual b, whatever the gradient. And it is U where w was halved. So the same rate moves the function further.

    The two halves get equal gradients and stay equal: only dropout, which draws for each, tells them apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

_IN_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_OUTPUTS = ("attention.output.weight", "attention.output.bias", "ffn_out.weight", "ffn_out.bias")
_FIRST_NORM = ("attention_norm.weight", "attention_norm.bias")
_LAST_NORM = ("ffn_norm.weight", "ffn_norm.bias")


def layer_of(name: str) -> int | None:
    """The number of the layer that a tensor belongs to, None for embeddings and heads."""
    match = _IN_LAYER.fullmatch(name)
    return int(match[1]) if match else None


def in_layer(layer: int, name: str) -> str:
    """The same tensor's name in another layer."""
    return re.sub(r"^layers\.\d+\.", f"layers.{layer}.", name)


def deepened_weights(weights: Mapping[str, Tensor], norm: str) -> dict[str, Tensor]:
    """Layer l becomes 2l, with 2l + 1 above it."""
    moved = _LAST_NORM if norm == "post" else ()
    unit = _FIRST_NORM if norm == "post" else ()

    def lower(part: str, tensor: Tensor) -> Tensor:
        return _unit(part, tensor) if part in moved else tensor

    def upper(part: str, tensor: Tensor) -> Tensor:
        if part in _OUTPUTS:
            return torch.zeros_like(tensor)
        return _unit(part, tensor) if part in unit else tensor.clone()

    return _each_twice(weights, lower, upper)


def deepened_moments(moments: Mapping[str, Tensor], norm: str, power: int) -> dict[str, Tensor]:
    """Of first (`power` 1) or second (2) moments."""
    moved = _LAST_NORM if norm == "post" else ()

    def new(tensor: Tensor) -> Tensor:
        return torch.zeros_like(tensor) if power == 1 else tensor.clone()

    return _each_twice(
        moments,
        lambda part, tensor: new(tensor) if part in moved else tensor,
        lambda part, tensor: tensor.clone() if part in moved else new(tensor),
    )


def _unit(part: str, tensor: Tensor) -> Tensor:
    """A norm's gain of 1 or bias of 0."""
    return torch.ones_like(tensor) if part.endswith(".weight") else torch.zeros_like(tensor)


def _each_twice(
    tensors: Mapping[str, Tensor], lower: Callable[[str, Tensor], Tensor], upper: Callable[[str, Tensor], Tensor]
) -> dict[str, Tensor]:
    """All tensors, those of each layer as those of two: made by its part's name and the tensor."""
    grown = {}
    for name, tensor in tensors.items():
        match = _IN_LAYER.fullmatch(name)
        if match is None:
            grown[name] = tensor
            continue
        grown[in_layer(2 * int(match[1]), name)] = lower(match[2], tensor)
        grown[in_layer(2 * int(match[1]) + 1, name)] = upper(match[2], tensor)
    return grown


def widened_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Hidden, heads and feed-forward doubled; heads are as wide as before."""
    return {name: _rule(name, tensor).weight(tensor) for name, tensor in weights.items()}


def widened_moments(moments: Mapping[str, Tensor], power: int) -> dict[str, Tensor]:
    """Of first (`power` 1) or second (2) moments."""
    rules = {name: _rule(name, tensor) for name, tensor in moments.items()}
    return {name: rules[name].places(tensor) * rules[name].factor ** power for name, tensor in moments.items()}


@dataclass(frozen=True)
class _Rule:
    """What becomes of a tensor, and of its gradient: where that goes, times a factor."""

    weight: Callable[[Tensor], Tensor]
    places: Callable[[Tensor], Tensor]
    factor: float


def _pair(tensor: Tensor) -> Tensor:
    return torch.cat([tensor, tensor], dim=-1)


def _blocks(tensor: Tensor) -> Tensor:
    return tensor.repeat(2, 2)


_MATRIX = _Rule(lambda tensor: torch.block_diag(tensor, tensor), _blocks, 0.5)
_PAIR = _Rule(_pair, _pair, 0.5)
_READ = _Rule(lambda tensor: _pair(tensor) / 2, _pair, 1.0)
_OUTSIDE = _Rule(torch.clone, torch.clone, 1.0)
_SPECIAL = {
    "embeddings.word.weight": _PAIR,
    "embeddings.position.weight": _PAIR,
    "embeddings.segment.weight": _PAIR,
    "masked_lm.norm.weight": _READ,
    "masked_lm.norm.bias": _READ,
    "masked_lm.bias": _OUTSIDE,
    "next_sentence.classifier.weight": _READ,
    "next_sentence.classifier.bias": _OUTSIDE,
}


def _rule(name: str, tensor: Tensor) -> _Rule:
    return _SPECIAL.get(name, _MATRIX if tensor.ndim == 2 else _PAIR)
