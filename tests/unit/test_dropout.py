"""Dropout as a CPU draws it, alone and inside attention: what it drops, what it keeps, and both on average."""

from __future__ import annotations

import pytest
import torch

from benchmarks.bert.data.batch import PackLayout
from benchmarks.bert.model.attention import split
from benchmarks.bert.model.dropout import dropout


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_elements_are_dropped_with_the_probability_given_and_the_others_scaled(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.full((400, 500), 3.0, dtype=dtype, requires_grad=True)
    out = dropout(x, p)
    out.float().sum().backward()
    assert out.dtype == dtype
    assert (out == 0).float().mean().item() == pytest.approx(p, abs=0.005)
    assert out[out != 0].float().unique().tolist() == pytest.approx([3 / (1 - p)], rel=0.01)
    assert x.grad is not None
    assert torch.equal(x.grad == 0, out == 0)


def test_nothing_is_dropped_with_probability_0() -> None:
    x = torch.randn(5, 7)
    assert torch.equal(dropout(x, 0.0), x)


def test_attention_drops_weights_and_is_right_on_average() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 9, 2, 8).unbind()
    layout = PackLayout((4, 5), torch.tensor([0, 4, 9], dtype=torch.int32))
    expected = split(q, k, v, layout, layout, 0.0)
    draws = torch.stack([split(q, k, v, layout, layout, 0.2) for _ in range(2000)])
    assert not torch.equal(draws[0], draws[1])
    error = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - expected).abs() < 5 * error + 1e-6).all()
    assert not ((0.8 * draws.mean(0) - expected).abs() < 5 * error + 1e-6).all()
