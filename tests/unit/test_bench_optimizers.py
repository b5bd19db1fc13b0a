"""What the measurement of the optimizers prints, and what it counts as made by a step."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from benchmarks.bert.bench import optimizers
from benchmarks.bert.bench.allocations import Allocations
from benchmarks.bert.config import OPTIMIZERS
from benchmarks.bert.trainer import OPTIMIZERS as BUILT


def test_there_is_a_row_for_torchs_adamw_and_each_optimizer(capsys: pytest.CaptureFixture[str]) -> None:
    optimizers.main(["--model", "tiny", "--steps", "2", "--device", "cpu"])
    title, _, _, *rows = capsys.readouterr().out.splitlines()
    assert re.match(r"46 tensors of 0\.0 M fp32 parameters on cpu, \d+ thread\(s\); times are ratios", title)
    names = [row.split(" | ")[0].removeprefix("| ") for row in rows]
    assert names == ["torch's AdamW, foreach", *(f"OPTIMIZER={name}" for name in OPTIMIZERS)]
    assert rows[0].split(" | ")[1:3] == ["1.00", "1.00"]
    assert all(len(row.split(" | ")) == 8 for row in rows)


def test_what_an_operation_returns_in_new_memory_is_counted_and_views_and_writing_in_place_are_not() -> None:
    weight = torch.ones(1000)
    with Allocations() as made:
        weight.mul_(2.0)
        weight.view(10, 100)[3].add_(1.0)
        torch._foreach_mul_([weight], 2.0)
    assert made.sizes_bytes == []
    with Allocations() as made:
        kept = weight * 2.0
        for _ in range(3):
            weight + kept
        torch._foreach_sqrt([weight, kept])
    assert made.sizes_bytes == [4000] * 6
    assert made.peak_bytes == 3 * 4000
    assert made.alive_bytes == 4000
    del kept
    assert made.alive_bytes == 0


def sizes_made_by_a_step(step: object, weights: list[nn.Parameter]) -> list[int]:
    assert callable(step)
    for _ in range(2):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        with Allocations() as made:
            step()
    return made.sizes_bytes  # of the second, in which state and scratch memory are there


def make_weights() -> list[nn.Parameter]:
    return [nn.Parameter(torch.randn(300, 200)), nn.Parameter(torch.randn(100, 400)), nn.Parameter(torch.randn(9000))]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_makes_no_tensor_as_large_as_a_parameter(name: str) -> None:
    weights = make_weights()
    optimizer = BUILT[name]([{"params": weights}], learning_rate=0.1, betas=(0.9, 0.99), epsilon=1e-6)
    sizes = sizes_made_by_a_step(lambda: optimizer.step_unless(torch.zeros(())), weights)
    assert max(sizes, default=0) < 9000


def test_torchs_foreach_adamw_makes_one_for_each() -> None:
    weights = make_weights()
    sizes = sizes_made_by_a_step(torch.optim.AdamW(weights, foreach=True).step, weights)
    assert sorted(sizes)[-3:] == [4 * 9000, 4 * 100 * 400, 4 * 300 * 200]
