"""LANS against its formula in float64, its options, zero norms, and what its normalised gradient brings about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.bert.optim.lamb import Lamb
from benchmarks.bert.optim.lans import Lans
from tests.support.optim import (
    BETAS,
    DECAYS,
    EPSILON,
    MOST,
    OPTIONS,
    Gradients,
    Kind,
    differing,
    errors,
    exact,
    make,
    make_gradients,
    make_weights,
    one_matrix,
    rate,
    take,
    train,
)


def length(array: np.ndarray) -> float:
    return float(np.linalg.norm(array))


def ratio(w: np.ndarray, update: np.ndarray, most: float) -> float:
    return min(length(w) / length(update) if length(w) and length(update) else 1.0, most or math.inf)


def oracle(
    weights: Sequence[Tensor],
    gradients: Sequence[Gradients],
    *,
    betas: tuple[float, float] = BETAS,
    bias_correction: bool = True,
    max_trust_ratio: float = 0.0,
    normalise: bool = True,
    nesterov: bool = True,
    trust: bool = True,
    trust_of_vectors: bool = True,
    coupled: bool = False,
) -> list[np.ndarray]:
    """LANS in float64, from the formula; the last five, switched, make it another algorithm."""
    (b1, b2), results = betas, []
    for number, decay in enumerate(DECAYS):
        w = exact(weights[number])
        m, v = np.zeros_like(w), np.zeros_like(w)
        has_ratio = trust and (trust_of_vectors or w.ndim > 1)
        for t, step_gradients in enumerate(gradients, start=1):
            given = step_gradients[number]
            assert given is not None
            g = exact(given)
            if normalise and length(g):
                g = g / length(g)
            g = g + (decay * w if coupled else 0.0)
            m = b1 * m + (1 - b1) * g
            v = b2 * v + (1 - b2) * g * g
            c1, c2 = (1 - b1**t, 1 - b2**t) if bias_correction else (1.0, 1.0)
            denominator = np.sqrt(v / c2) + EPSILON
            decayed = 0.0 if coupled else decay * w
            parts = ((b1 if nesterov else 1.0, m / c1 / denominator), ((1 - b1) * nesterov, g / denominator))
            step = np.zeros_like(w)
            for share, part in parts:
                update = part + decayed
                step = step + share * (ratio(w, update, max_trust_ratio) if has_ratio else 1.0) * update
            w = w - rate(t) * step
        results.append(w)
    return results


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("betas", [(0.9, 0.98), (0.9, 0.999), (0.0, 0.5)], ids=str)
def test_fifty_steps_are_those_of_the_formula_in_float64(betas: tuple[float, float], options: dict[str, Any]) -> None:
    for each in errors(Lans, oracle, betas=betas, **options):
        assert each < 1e-5


@pytest.mark.parametrize(
    ("other", "others"),
    [
        ({"normalise": False}, (0, 1, 2, 3)),
        ({"nesterov": False}, (0, 1, 2, 3)),
        ({"trust": False}, (0, 1, 2, 3)),
        ({"trust_of_vectors": False}, (1, 3)),
        ({"coupled": True}, (0, 2)),
        ({"bias_correction": False}, (0, 2)),  # without decay the correction is a factor, which the ratio undoes
        ({"max_trust_ratio": MOST}, (0, 1, 2, 3)),
    ],
    ids=str,
)
def test_another_algorithm_is_seen_by_this_comparison(other: dict[str, Any], others: tuple[int, ...]) -> None:
    assert differing(errors(Lans, oracle, other)) == others


def after_rescaled_gradients(kind: Kind) -> tuple[list[bytes], list[bytes]]:
    """The weights after ten steps, and after the same with each step's gradients times another power of two."""
    results = []
    for base in (1.0, 4.0):
        weights = make_weights()
        steps = [[base ** (-1) ** step * g for g in of_step] for step, of_step in enumerate(make_gradients(10))]
        train(make(kind, weights), weights, steps)
        results.append([weight.detach().numpy().tobytes() for weight in weights])
    return results[0], results[1]


def test_the_size_of_a_steps_gradient_changes_no_bit() -> None:
    one, other = after_rescaled_gradients(Lans)
    assert one == other


def test_in_lamb_it_counts() -> None:
    one, other = after_rescaled_gradients(Lamb)
    assert not any(mine == theirs for mine, theirs in zip(one, other, strict=True))


def test_the_first_step_is_as_long_as_rate_times_weights() -> None:
    """The first moment is then the gradient, so that both parts are one vector of the weights' length."""
    for scale in (1e-3, 1.0, 1e3):
        before, after = one_matrix(Lans, scale * make_weights()[0].detach(), make_gradients(1)[0][0])
        assert length(after - before) == pytest.approx(0.5 * length(before), rel=1e-5)


def test_no_step_is_longer() -> None:
    weights = make_weights()
    optimizer = make(Lans, weights)
    for of_step in make_gradients():
        before = [exact(weight) for weight in weights]
        take(optimizer, weights, of_step)
        for weight, old in zip(weights, before, strict=True):
            assert length(exact(weight) - old) <= 1e-2 * length(old) * (1 + 1e-5)


def test_zero_weights_take_ratio_1() -> None:
    gradient = make_gradients(1)[0][0]
    before, after = one_matrix(Lans, torch.zeros(7, 5), gradient)
    normalised = exact(gradient) / length(exact(gradient))
    np.testing.assert_allclose(before - after, 0.5 * normalised / (np.abs(normalised) + EPSILON), rtol=1e-5)


def test_zero_weights_and_a_zero_gradient_stay_zero() -> None:
    _, after = one_matrix(Lans, torch.zeros(7, 5), torch.zeros(7, 5))
    assert not after.any()


def test_a_zero_gradient_leaves_the_decay_whose_ratio_undoes_its_size() -> None:
    """r = c = decay * w, and both parts together have the length of w."""
    for decay in (1e-3, 0.1, 7.0):
        before, after = one_matrix(Lans, make_weights()[0].detach(), torch.zeros(7, 5), decay)
        np.testing.assert_allclose(after, 0.5 * before, rtol=1e-5)


def test_an_update_of_zero_leaves_the_weights() -> None:
    """One element of no moments: g = -1 and c = -1 + 0.5 * 2, so that |w| / |c| would be infinite, times c NaN."""
    weight, options = torch.full((1, 1), 2.0), {"betas": (0.0, 0.0), "epsilon": 1e-12}
    before, after = one_matrix(Lans, weight, torch.full((1, 1), -3.0), decay=0.5, **options)
    assert after.tobytes() == before.tobytes()
    before, after = one_matrix(Lans, weight, torch.full((1, 1), 3.0), decay=0.5, **options)
    np.testing.assert_allclose(after, 0.5 * before, rtol=1e-6)  # the twin: c = 2, ratio 1, rate 0.5


def test_the_norms_of_a_large_matrix_are_exact_to_fp32() -> None:
    """One running fp32 sum, as torch's norms take on a CPU, is 2e-4 short at this size."""
    weight = torch.randn(8000, 1000, generator=torch.Generator().manual_seed(0))
    gradient = torch.randn(8000, 1000, generator=torch.Generator().manual_seed(3))
    parameter = nn.Parameter(weight.clone())
    optimizer = make(Lans, [parameter])
    optimizer.set_learning_rate(0.5)
    take(optimizer, [parameter], [gradient])
    assert length(exact(parameter) - exact(weight)) == pytest.approx(0.5 * length(exact(weight)), rel=1e-5)
    m = exact(optimizer.state[parameter]["m"])
    np.testing.assert_allclose(length(m), 1 - BETAS[0], rtol=1e-6)
