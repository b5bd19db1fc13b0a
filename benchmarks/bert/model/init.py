"""A model in, the same model with initial weights out, drawn from torch's generator."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.bert.model.bert import Bert

_OFFSETS = (-1, 1, -2, 2)  # what heads 0 to 3 of the first layer look at: the neighbours
_POSITION_AMPLITUDE = 0.1
_GAIN = 2.5


def standard(model: Bert, std: float) -> None:
    """The reference's: weights from a normal of `std` cut at two deviations, biases 0, norms 1; padding rows 0."""
    word, num_vocabulary = model.embeddings.word, model.shape.num_vocabulary
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            weight = module.weight[:num_vocabulary] if module is word else module.weight
            nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    nn.init.zeros_(word.weight[num_vocabulary:])


def relative_offset(model: Bert, std: float) -> None:
    """`standard`, then the first layer's heads 0 to 3 attend to the tokens at -1, +1, -2 and +2.

    It replaces the phase-1 training that the benchmark's checkpoint stands for: from `standard` a small BERT copies
    words for longer than its whole run before it finds its neighbours (docs/default-run.md). Positions become
    sinusoids; a rotation by the offset times each frequency maps the position of a token onto its neighbour's. All of
    it stays trainable, nothing of it comes from data.
    """
    standard(model, std)
    embeddings, attention = model.embeddings, model.layers[0].attention
    max_length, hidden_size = embeddings.position.weight.shape
    head_width = hidden_size // attention.num_heads
    frequency_F = 3 * 10000 ** (-2 * torch.arange(hidden_size // 2) / hidden_size)
    angle_SF = torch.arange(max_length)[:, None] * frequency_F
    with torch.no_grad():
        embeddings.position.weight[:, 0::2] = _POSITION_AMPLITUDE * angle_SF.sin()
        embeddings.position.weight[:, 1::2] = _POSITION_AMPLITUDE * angle_SF.cos()
        for head, offset in enumerate(_OFFSETS[: attention.num_heads]):
            rows = slice(head * head_width, (head + 1) * head_width)
            rotation = _rotation(offset * frequency_F[: head_width // 2])
            attention.query.weight[rows, :head_width] += _GAIN * rotation
            attention.key.weight[rows, :head_width] += _GAIN * torch.eye(head_width)


def _rotation(angle_F: Tensor) -> Tensor:
    """Block-diagonal rotations of the pairs (sin, cos): the pair at angle x goes to the pair at x + angle."""
    blocks = [torch.tensor([[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]]) for a in angle_F.tolist()]
    return torch.block_diag(*blocks)


INITIALISATIONS: dict[str, Callable[[Bert, float], None]] = {"standard": standard, "relative_offset": relative_offset}
