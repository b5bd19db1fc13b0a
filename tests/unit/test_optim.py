"""ADAM against its formula in float64, steps left out, decay groups and the learning-rate schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.bert.model.bert import Bert, BertShape
from benchmarks.bert.optim.adam import Adam
from benchmarks.bert.optim.groups import decay_groups
from benchmarks.bert.optim.lr import PolynomialSchedule

SETTINGS: dict[str, Any] = {"learning_rate": 1e-2, "betas": (0.9, 0.98), "epsilon": 1e-6}
SHAPES = ((7, 5), (5,), (3, 2))
STEPS = 50


def make_weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def make_groups(weights: Sequence[nn.Parameter], decay: float = 0.1) -> list[dict[str, object]]:
    return [
        {"params": [w for w in weights if w.ndim > 1], "weight_decay": decay},
        {"params": [w for w in weights if w.ndim == 1], "weight_decay": 0.0},
    ]


def make_gradients(steps: int = STEPS) -> list[list[Tensor]]:
    """Gradients whose size changes by orders of magnitude, as a run's does."""
    generator = torch.Generator().manual_seed(2)
    return [
        [10 ** (-4 * t / steps) * torch.randn(shape, generator=generator) for shape in SHAPES] for t in range(steps)
    ]


def rate(step: int) -> float:
    return 1e-2 * min(step / 10, (STEPS + 1 - step) / 40)


def oracle(
    weights: Sequence[Tensor], gradients: Sequence[Sequence[Tensor]], decays: Sequence[float]
) -> list[np.ndarray]:
    """ADAM with decoupled weight decay in float64, from the formula."""
    (b1, b2), epsilon = SETTINGS["betas"], SETTINGS["epsilon"]
    results = []
    for i, decay in enumerate(decays):
        w = weights[i].detach().double().numpy().copy()
        m, v = np.zeros_like(w), np.zeros_like(w)
        for t, step_gradients in enumerate(gradients, start=1):
            g = step_gradients[i].double().numpy()
            m = b1 * m + (1 - b1) * g
            v = b2 * v + (1 - b2) * g * g
            w = w - rate(t) * ((m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + epsilon) + decay * w)
        results.append(w)
    return results


def train(optimizer: Adam, weights: Sequence[nn.Parameter], gradients: Sequence[Sequence[Tensor]]) -> None:
    for step, step_gradients in enumerate(gradients, start=1):
        for weight, gradient in zip(weights, step_gradients, strict=True):
            weight.grad = gradient.clone()
        optimizer.set_learning_rate(rate(step))
        optimizer.step_unless(torch.zeros(()))


def snapshot(optimizer: Adam, weights: Sequence[nn.Parameter]) -> list[Tensor]:
    """Weights, moments and step counts."""
    return [w.detach().clone() for w in weights] + [
        value.clone() for w in weights for _, value in sorted(optimizer.state[w].items())
    ]


def test_fifty_steps_are_those_of_the_formula_in_float64() -> None:
    weights, gradients = make_weights(), make_gradients()
    expected = oracle(weights, gradients, decays=[0.1, 0.0, 0.1])
    train(Adam(make_groups(weights), **SETTINGS), weights, gradients)
    for weight, right in zip(weights, expected, strict=True):
        assert np.linalg.norm(weight.detach().double().numpy() - right) < 1e-5 * np.linalg.norm(right)


def test_decay_that_enters_the_gradient_would_differ() -> None:
    weights, gradients = make_weights(), make_gradients()
    expected = oracle(weights, gradients, decays=[0.1, 0.0, 0.1])
    coupled = [[g + 0.1 * w.detach() for g, w in zip(step, weights, strict=True)] for step in gradients]
    train(Adam(make_groups(weights, decay=0.0), **SETTINGS), weights, coupled)
    assert np.linalg.norm(weights[0].detach().double().numpy() - expected[0]) > 1e-3 * np.linalg.norm(expected[0])


def test_it_is_torchs_unfused_adamw() -> None:
    ours, theirs = make_weights(), make_weights()
    train(Adam(make_groups(ours), **SETTINGS), ours, make_gradients())
    adamw = torch.optim.AdamW(
        make_groups(theirs), lr=1e-2, betas=SETTINGS["betas"], eps=SETTINGS["epsilon"], fused=False
    )
    for step, gradients in enumerate(make_gradients(), start=1):
        for weight, gradient in zip(theirs, gradients, strict=True):
            weight.grad = gradient.clone()
        for group in adamw.param_groups:
            group["lr"] = rate(step)
        adamw.step()
    for weight, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(weight, right, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("bad", [1.0, float("nan"), float("inf")])
def test_a_step_left_out_changes_no_bit(bad: float) -> None:
    weights = make_weights()
    optimizer = Adam(make_groups(weights), **SETTINGS)
    train(optimizer, weights, make_gradients(3))
    before = snapshot(optimizer, weights)
    for weight in weights:
        weight.grad = torch.full_like(weight, bad)
    optimizer.step_unless(torch.ones(()))
    after = snapshot(optimizer, weights)
    assert len(before) == len(after) == 4 * len(weights)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_the_same_step_taken_changes_weights_moments_and_count() -> None:
    weights = make_weights()
    optimizer = Adam(make_groups(weights), **SETTINGS)
    train(optimizer, weights, make_gradients(3))
    before = snapshot(optimizer, weights)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step_unless(torch.zeros(()))
    assert not any(torch.equal(one, other) for one, other in zip(before, snapshot(optimizer, weights), strict=True))


@pytest.mark.parametrize("left_out", [0, 2])
def test_after_a_step_left_out_the_run_is_as_if_it_had_not_been(left_out: int) -> None:
    without, with_one = make_weights(), make_weights()
    gradients = make_gradients(6)
    train(Adam(make_groups(without), **SETTINGS), without, gradients)
    optimizer = Adam(make_groups(with_one), **SETTINGS)
    for step, step_gradients in enumerate(gradients, start=1):
        optimizer.set_learning_rate(rate(step))
        if step == left_out + 1:
            for weight in with_one:
                weight.grad = torch.full_like(weight, float("nan"))
            optimizer.step_unless(torch.ones(()))
        for weight, gradient in zip(with_one, step_gradients, strict=True):
            weight.grad = gradient.clone()
        optimizer.step_unless(torch.zeros(()))
    assert all(torch.equal(one, other) for one, other in zip(without, with_one, strict=True))


def test_matrices_decay_and_biases_and_norms_do_not() -> None:
    with torch.device("meta"):
        model = Bert(BertShape(num_layers=2))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decaying, others = decay_groups(model, 0.01)
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.01, 0.0)
    assert {names[id(p)] for p in decaying["params"]} == {
        name for name in names.values() if name.endswith(".weight") and "norm" not in name
    }
    assert {names[id(p)] for p in others["params"]} == {
        name for name in names.values() if name.endswith(".bias") or "norm" in name
    }


def test_frozen_parameters_are_in_no_group() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    decaying, others = decay_groups(model, 0.01)
    assert [id(p) for p in decaying["params"]] == [id(model[1].weight)]
    assert [id(p) for p in others["params"]] == [id(model[1].bias)]


def test_the_learning_rate_set_is_every_groups() -> None:
    optimizer = Adam(make_groups(make_weights()), **SETTINGS)
    optimizer.set_learning_rate(0.125)
    assert [group["lr"] for group in optimizer.param_groups] == [0.125, 0.125]


def schedule(**changed: float) -> PolynomialSchedule:
    settings = {"base": 1.0, "end": 0.0, "warmup_steps": 10, "start_warmup_step": 0, "decay_steps": 110, "power": 1.0}
    return PolynomialSchedule(**(settings | changed))


@pytest.mark.parametrize(
    ("changed", "step", "expected"),
    [
        ({}, 1, 0.1),
        ({}, 5, 0.5),
        ({}, 9, 0.9),
        ({}, 10, 1.0),
        ({}, 11, 0.99),
        ({}, 60, 0.5),
        ({}, 109, 0.01),
        ({}, 110, 0.0),
        ({}, 111, 0.0),
        ({}, 10_000, 0.0),
        ({"end": 0.2}, 5, 0.5),
        ({"end": 0.2}, 60, 0.6),
        ({"end": 0.2}, 110, 0.2),
        ({"end": 0.2}, 10_000, 0.2),
        ({"power": 2.0}, 5, 0.5),
        ({"power": 2.0}, 60, 0.25),
        ({"power": 2.0, "end": 0.2}, 60, 0.4),
        ({"power": 0.5}, 85, 0.5),
        ({"start_warmup_step": -6}, 1, 0.7),
        ({"start_warmup_step": -6}, 3, 0.9),
        ({"start_warmup_step": -6}, 4, 1.0),
        ({"start_warmup_step": -6}, 57, 0.5),
        ({"start_warmup_step": -6}, 110, 0.0),
        ({"start_warmup_step": -20}, 1, 1 - 11 / 120),
        ({"warmup_steps": 0, "decay_steps": 100}, 1, 0.99),
        ({"warmup_steps": 0, "decay_steps": 100}, 50, 0.5),
        ({"decay_steps": 5}, 9, 0.9),
        ({"decay_steps": 5}, 10, 1.0),
        ({"decay_steps": 5}, 11, 0.0),
        ({"base": 4e-4, "warmup_steps": 82, "start_warmup_step": -16, "decay_steps": 8000}, 1, 4e-4 * 17 / 82),
    ],
)
def test_the_schedule_at_points_computed_by_hand(changed: dict[str, float], step: int, expected: float) -> None:
    assert schedule(**changed).at(step) == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_the_rate_rises_to_the_base_once_and_falls_to_the_end() -> None:
    rates = [schedule(end=0.1, power=2.0).at(step) for step in range(1, 130)]
    peak = rates.index(max(rates))
    assert (peak + 1, rates[peak]) == (10, 1.0)
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert set(rates[109:]) == {0.1}
