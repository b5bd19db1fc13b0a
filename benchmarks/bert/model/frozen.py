"""A model and what of it is to train in, the same model with the rest frozen out.

Shapes: T packed tokens, Q places that the heads read, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.bert.data.batch import PackedBatch
from benchmarks.bert.model.bert import Bert, inner_layers, whole_encoder


def train_only(model: Bert, num_frozen: int, *, embeddings: bool, decoder: bool) -> None:
    """Freeze the lowest `num_frozen` layers, and the embeddings unless `embeddings`; all else trains, the heads always.

    What is frozen has no gradient. Without `embeddings` it also keeps no activation: embeddings and frozen layers run
    without a graph. With `embeddings` their gradient has to pass the frozen layers, which so run with one, and hand
    it on; they themselves stay as they are. Frozen layers drop out as those that train do.

    `decoder` matters while the embeddings are frozen: the word matrix then trains as the masked-LM head's alone.

    Call it before DDP and the optimizer take the model's parameters: which of them require a gradient changes. Raises
    ValueError where no layer would train.
    """
    if not 0 <= num_frozen < len(model.layers):
        raise ValueError(f"{num_frozen} frozen layers of {len(model.layers)}: expected 0 to {len(model.layers) - 1}")
    model.requires_grad_(True)
    model.embeddings.requires_grad_(embeddings)
    for layer in model.layers[:num_frozen]:
        layer.requires_grad_(False)
    model.embeddings.word.weight.requires_grad_(embeddings or decoder)
    model.encode = whole_encoder if embeddings else _FrozenBelow(num_frozen)


@dataclass(frozen=True)
class _FrozenBelow:
    """Embeddings and the lowest layers without a graph, the others with one."""

    num_frozen: int

    def __call__(self, model: Bert, batch: PackedBatch) -> Tensor:
        *inner, last = model.layers
        with torch.no_grad():
            x_TH = inner_layers(inner[: self.num_frozen], model.embeddings(batch), batch)
        return model.last_layer(last, model.inner_layers(inner[self.num_frozen :], x_TH, batch), batch)
