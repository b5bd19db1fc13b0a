"""Layers in, the same layers replayed from CUDA graphs out: one launch each way in place of some forty.

It pays where a rank has so few tokens that a GPU waits for the host. A graph holds for one number of tokens only, so
packs are padded to a multiple of `max_length` by a sequence that nothing reads (`pad_tail`), and the few sizes near the
mean are captured before the clock starts; a pack of another size runs as it would without graphs. Each layer is a graph
of its own: its gradients are there, and their all-reduce starts, as soon as its own backward pass is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.bert.data.batch import PackedBatch, PackLayout
from benchmarks.bert.model.bert import Layer, inner_layers

_SIZES_EACH_SIDE = 2  # of the mean, in multiples


def graph_sizes(lengths: np.ndarray, num_samples: int, multiple: int) -> list[int]:
    """Numbers of tokens that padded packs of `num_samples` mostly have, given the lengths of all samples."""
    mean = int(lengths.mean() * num_samples) // multiple + 1
    return [multiple * n for n in range(max(1, mean - _SIZES_EACH_SIDE), mean + _SIZES_EACH_SIDE + 1)]


class _TensorsOnly(nn.Module):
    """A layer as capture wants it. Of the lengths only the greatest is read on the host: the greatest possible."""

    def __init__(self, layer: Layer, max_length: int) -> None:
        super().__init__()
        self.layer = layer
        self.max_length = max_length

    def forward(self, x_TH: Tensor, cu_lengths: Tensor) -> Tensor:
        layout = PackLayout((self.max_length,), cu_lengths)
        return self.layer(x_TH, x_TH, layout, layout)


class GraphedLayers:
    """All layers but the last. Made before DDP wraps the model, in training mode, inside autocast without its cache."""

    def __init__(
        self, layers: Sequence[Layer], sizes: Sequence[int], num_sequences: int, max_length: int, dtype: torch.dtype
    ) -> None:
        """`num_sequences` are those of a pack, without the one that pads it; `dtype` is that of activations."""
        self._dtype = dtype
        self._graphs: dict[int, tuple[Callable[..., Tensor], ...]] = {}
        device = next(layers[0].parameters()).device
        for size in sizes:
            shells = tuple(_TensorsOnly(layer, max_length) for layer in layers)
            bounds = torch.linspace(0, size, num_sequences + 2, device=device).int()
            x_TH = torch.zeros(size, layers[0].ffn_out.out_features, dtype=dtype, device=device, requires_grad=True)
            self._graphs[size] = torch.cuda.make_graphed_callables(shells, ((x_TH, bounds),) * len(shells))  # type: ignore[assignment]  # typed for any result

    def __call__(self, layers: Sequence[Layer], x_TH: Tensor, batch: PackedBatch) -> Tensor:
        graphs = self._graphs.get(len(x_TH))
        if graphs is None or not torch.is_grad_enabled():
            return inner_layers(layers, x_TH, batch)
        x_TH = x_TH.to(self._dtype)
        for graph in graphs:
            x_TH = graph(x_TH, batch.layout.cu_lengths)
        return x_TH
