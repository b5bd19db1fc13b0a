"""Packs padded for CUDA graphs give what they give without; the graphs themselves are only called where they hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.bert.config import Config, ConfigError
from benchmarks.bert.data.batch import PackedBatch, PackLayout, pad_tail
from benchmarks.bert.loss import pretraining_loss
from benchmarks.bert.model.attention import plain, split
from benchmarks.bert.model.bert import Bert
from benchmarks.bert.model.graphs import GraphedLayers, graph_sizes
from benchmarks.bert.trainer import build_trainer
from benchmarks.bert.world import World
from tests.unit.test_model import SHAPE, make_model, make_pack, make_rows

MULTIPLE = SHAPE.max_length


def loss_and_gradients(model: Bert, batch: PackedBatch) -> list[Tensor]:
    model.zero_grad()
    loss = pretraining_loss(model(batch), batch)
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.mark.parametrize("attention", [plain, split])
@pytest.mark.parametrize("last_layer", ["only_read", "whole"])
@pytest.mark.parametrize("lengths", [(5, 16, 1), (16, 16), (1,), (15,)])
def test_a_tail_that_nothing_reads_leaves_loss_and_gradients(
    attention: Any, last_layer: str, lengths: tuple[int, ...]
) -> None:
    model, batch = make_model(attention=attention), make_pack(make_rows(lengths))
    padded = pad_tail(batch, MULTIPLE)
    assert len(padded.tokens_T) % MULTIPLE == 0
    assert len(batch.tokens_T) < len(padded.tokens_T) <= len(batch.tokens_T) + MULTIPLE
    assert len(padded.layout.lengths) == len(padded.read_layout.lengths) == len(lengths) + 1
    for found, expected in zip(loss_and_gradients(model, padded), loss_and_gradients(model, batch), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_a_tail_that_is_no_sequence_of_its_own_would_change_them() -> None:
    model, batch = make_model(), make_pack(make_rows((5, 7)))
    padded = pad_tail(batch, MULTIPLE)
    *others, last, tail = padded.layout.lengths
    joined = PackLayout((*others, last + tail, 0), padded.layout.cu_lengths)
    merged = pad_tail(batch, MULTIPLE).__class__(**{**vars(padded), "layout": joined})
    assert abs(loss_and_gradients(model, merged)[0] - loss_and_gradients(model, batch)[0]) > 1e-4


def by_bounds(q: Tensor, k: Tensor, v: Tensor, q_layout: PackLayout, layout: PackLayout, dropout: float) -> Tensor:
    """As the varlen kernels: where sequences lie is read from the device alone."""

    def on_host(of: PackLayout) -> PackLayout:
        return PackLayout(tuple(of.cu_lengths.diff().tolist()), of.cu_lengths)

    return split(q, k, v, on_host(q_layout), on_host(layout), dropout)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Capture stands aside on a CPU: a graph is the layer itself, and each call of one is noted by its tokens."""
    calls: list[int] = []

    def graphed(shells: Sequence[Callable[..., Tensor]], arguments: Sequence[tuple[Tensor, ...]]) -> Any:
        def replay(shell: Callable[..., Tensor], x_TH: Tensor, bounds: Tensor) -> Tensor:
            calls.append(len(x_TH))
            return shell(x_TH, bounds)

        assert len(shells) == len(arguments)
        return tuple((lambda x, bounds, shell=shell: replay(shell, x, bounds)) for shell in shells)

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", graphed)
    return calls


def test_only_packs_of_a_captured_size_are_replayed_and_only_in_training(replays: list[int]) -> None:
    model = make_model(attention=by_bounds)
    small, large = (pad_tail(make_pack(make_rows(lengths)), MULTIPLE) for lengths in ((5, 7), (16, 16)))
    expected = [loss_and_gradients(model, batch) for batch in (small, large)]
    model.inner_layers = GraphedLayers(model.layers[:-1], [MULTIPLE], 2, MULTIPLE, torch.float32)
    assert len(dict(model.named_parameters())) == len(dict(make_model().named_parameters()))
    for batch, of_batch in zip((small, large), expected, strict=True):
        for found, right in zip(loss_and_gradients(model, batch), of_batch, strict=True):
            torch.testing.assert_close(found, right, atol=1e-6, rtol=1e-5)
    assert replays == [MULTIPLE]  # one inner layer, the small pack
    with torch.no_grad():
        model(small)
    assert replays == [MULTIPLE]


def test_the_sizes_lie_around_the_mean_pack() -> None:
    assert graph_sizes(np.full(100, 250), 8, 512) == [512 * n for n in (2, 3, 4, 5, 6)]
    assert graph_sizes(np.full(100, 10), 2, 512) == [512, 1024, 1536]


def test_graphs_on_a_cpu_are_refused() -> None:
    config = Config(cuda_graphs=True, device="cpu", num_layers=2, hidden_size=16, num_heads=2, ffn_size=16)
    alone = World(rank=0, num_ranks=1, local_rank=0, ranks_per_node=1, rendezvous=None)
    with pytest.raises(ConfigError, match="CUDA_GRAPHS=1 needs a GPU"):
        build_trainer(config, alone, torch.device("cpu"), 1, num_vocabulary=30, sizes=[512])
