"""A pre-LN model and the layers to keep in, the same model without the others in its next training steps out.

Progressive layer dropping (arXiv 2010.13369): a layer that is left out is not computed, and of one that is kept both
branches are multiplied, by one over its probability to be kept. Evaluation uses all layers as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from benchmarks.bert.data.batch import PackedBatch, PackLayout
from benchmarks.bert.model.bert import Bert, LayerFunction, PreNormLayer, inner_layers, whole_encoder


def keep_layers(model: Bert, kept: Sequence[bool], scales: Sequence[float]) -> None:
    """From now on train with the layers that are `kept` alone, the lowest first, each with its scale.

    All ranks must keep the same ones. Those that are left out have a gradient of zeros: what waits for it, as DDP's
    buckets do, is not kept waiting. An optimizer still moves them by their moments and decays them. Raises ValueError
    for a post-LN model, which cannot do without a layer, and where there are more or fewer layers.
    """
    if not all(isinstance(layer, PreNormLayer) for layer in model.layers):
        raise ValueError("a post-LN model cannot leave layers out; set NORM=pre")
    if not len(kept) == len(scales) == len(model.layers):
        raise ValueError(f"{len(kept)} layers and {len(scales)} scales for a model of {len(model.layers)} layers")
    model.encode = _SomeLayers(
        tuple(
            partial(layer, scale=scale) if is_kept else partial(_left_out, layer)
            for layer, is_kept, scale in zip(model.layers, kept, scales, strict=True)
        )
    )


@dataclass(frozen=True)
class _SomeLayers:
    layers: tuple[LayerFunction, ...]

    def __call__(self, model: Bert, batch: PackedBatch) -> Tensor:
        if not model.training:
            return whole_encoder(model, batch)
        *inner, last = self.layers
        return model.last_layer(last, inner_layers(inner, model.embeddings(batch), batch), batch)


def _left_out(layer: nn.Module, x_QH: Tensor, x_TH: Tensor, q_layout: PackLayout, layout: PackLayout) -> Tensor:
    """What goes into the layer, as if it came out of it."""
    return _ZeroGradients.apply(x_QH, *layer.parameters())


class _ZeroGradients(torch.autograd.Function):
    """The first tensor as it is; the others have no part in it, but their gradients are zeros rather than missing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *unused: Tensor) -> Tensor:
        ctx.unused = unused
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return gradient, *map(torch.zeros_like, ctx.unused)
