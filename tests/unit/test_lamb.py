"""LAMB against its formula in float64, its options and its trust ratio."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.bert.optim.adam import Adam
from benchmarks.bert.optim.lamb import Lamb
from tests.support.optim import (
    BETAS,
    DECAYS,
    EPSILON,
    MOST,
    OPTIONS,
    Gradients,
    Kind,
    differing,
    error,
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


def oracle(
    weights: Sequence[Tensor],
    gradients: Sequence[Gradients],
    *,
    betas: tuple[float, float] = BETAS,
    bias_correction: bool = True,
    max_trust_ratio: float = 0.0,
    trust: bool = True,
    trust_of_vectors: bool = False,
    coupled: bool = False,
) -> list[np.ndarray]:
    """LAMB in float64, from the formula; the last three, switched, make it another algorithm."""
    (b1, b2), results = betas, []
    for number, decay in enumerate(DECAYS):
        w = exact(weights[number])
        m, v, t = np.zeros_like(w), np.zeros_like(w), 0
        for step, step_gradients in enumerate(gradients, start=1):
            if (gradient := step_gradients[number]) is None:
                continue
            t += 1
            g = exact(gradient) + (decay * w if coupled else 0.0)
            m = b1 * m + (1 - b1) * g
            v = b2 * v + (1 - b2) * g * g
            c1, c2 = (1 - b1**t, 1 - b2**t) if bias_correction else (1.0, 1.0)
            u = (m / c1) / (np.sqrt(v / c2) + EPSILON) + (0.0 if coupled else decay * w)
            norms = np.linalg.norm(w), np.linalg.norm(u)
            ratio = 1.0
            if trust and (decay or trust_of_vectors):
                ratio = min(norms[0] / norms[1] if min(norms) > 0 else 1.0, max_trust_ratio or math.inf)
            w = w - rate(step) * ratio * u
        results.append(w)
    return results


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("betas", [(0.9, 0.98), (0.9, 0.999), (0.0, 0.5)], ids=str)
def test_fifty_steps_are_those_of_the_formula_in_float64(betas: tuple[float, float], options: dict[str, Any]) -> None:
    for each in errors(Lamb, oracle, betas=betas, **options):
        assert each < 1e-5


@pytest.mark.parametrize(
    ("other", "others"),
    [
        ({"trust": False}, (0, 2)),
        ({"trust_of_vectors": True}, (1, 3)),
        ({"coupled": True}, (0, 2)),
        ({"bias_correction": False}, (0, 1, 2, 3)),
        ({"max_trust_ratio": MOST}, (0, 2)),
    ],
    ids=str,
)
def test_another_algorithm_is_seen_by_this_comparison(other: dict[str, Any], others: tuple[int, ...]) -> None:
    assert differing(errors(Lamb, oracle, other)) == others


@pytest.mark.parametrize("kind", [Lamb, Adam])
@pytest.mark.parametrize("beta_2", [0.98, 0.999, 0.9999])
def test_updates_that_no_large_weight_hides_are_exact(beta_2: float, kind: Kind) -> None:
    """Vectors that start at zero. A beta rounded to fp32 lies another way below 1; torch's ADAM does without."""
    weights, gradients = make_weights(scale=0.0), [[None, g[1], None, g[3]] for g in make_gradients(10)]
    expected = oracle(weights, gradients, betas=(0.9, beta_2))
    train(make(kind, weights, betas=(0.9, beta_2), decay=0.0), weights, gradients)
    for number in (1, 3):
        assert error(weights[number], expected[number]) < 2e-6


def test_without_decay_the_ratio_is_1_and_lamb_is_adam() -> None:
    ours, theirs, gradients = make_weights(), make_weights(), make_gradients()
    train(make(Lamb, ours, decay=0.0), ours, gradients)
    train(make(Adam, theirs, decay=0.0), theirs, gradients)
    for weight, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(weight, right, atol=1e-6, rtol=1e-5)


def test_with_decay_lamb_is_not_adam() -> None:
    ours, theirs, gradients = make_weights(), make_weights(), make_gradients()
    train(make(Lamb, ours), ours, gradients)
    train(make(Adam, theirs), theirs, gradients)
    assert error(ours[0], exact(theirs[0])) > 1e-2


def test_zero_weights_take_ratio_1() -> None:
    gradient = make_gradients(1)[0][0]
    before, after = one_matrix(Lamb, torch.zeros(7, 5), gradient)
    first_update = exact(gradient) / (np.abs(exact(gradient)) + EPSILON)  # both corrections cancel the betas
    np.testing.assert_allclose(before - after, 0.5 * first_update, rtol=1e-5)


def test_zero_weights_and_a_zero_gradient_stay_zero() -> None:
    _, after = one_matrix(Lamb, torch.zeros(7, 5), torch.zeros(7, 5))
    assert not after.any()


def test_a_zero_update_leaves_the_weights() -> None:
    """Without moments u = g / |g| + decay * w, here -1 + 0.5 * 2: |w| / |u| would be infinite, and times u NaN."""
    weight = torch.full((3, 2), 2.0)
    before, after = one_matrix(Lamb, weight, torch.full((3, 2), -1e6), decay=0.5, betas=(0.0, 0.0))
    assert after.tobytes() == before.tobytes()
    before, after = one_matrix(Lamb, weight, torch.full((3, 2), 1e6), decay=0.5, betas=(0.0, 0.0))
    np.testing.assert_allclose(after, 0.5 * before, rtol=1e-6)  # the twin: u = 2, ratio 1, rate 0.5


def test_a_zero_gradient_leaves_the_decay_whose_ratio_undoes_its_size() -> None:
    """u = decay * w, so the step is rate * w whatever the decay is."""
    for decay in (1e-3, 0.1, 7.0):
        before, after = one_matrix(Lamb, make_weights()[0].detach(), torch.zeros(7, 5), decay)
        np.testing.assert_allclose(after, 0.5 * before, rtol=1e-5)


def test_a_limit_of_the_ratio_is_the_ratio_where_it_is_larger() -> None:
    """u = decay * w, so the ratio is 1 / decay, here 10 without a limit."""
    for most, ratio in ((2.0, 2.0), (9.9, 9.9), (10.1, 10.0), (0.0, 10.0)):
        before, after = one_matrix(Lamb, make_weights()[0].detach(), torch.zeros(7, 5), max_trust_ratio=most)
        np.testing.assert_allclose(after, before - 0.5 * ratio * 0.1 * before, rtol=1e-5)


def test_the_first_step_without_bias_correction_is_the_betas_alone() -> None:
    """m / sqrt(v) is 0.1 / sqrt(0.02) after one step from 0, and 1 with both corrections."""
    vector = torch.zeros(5)
    for corrected, size in ((True, 1.0), (False, 0.1 / math.sqrt(0.02))):
        _, after = one_matrix(Lamb, vector, torch.ones(5), decay=0.0, bias_correction=corrected)
        np.testing.assert_allclose(-after, 0.5 * size * np.ones(5), rtol=1e-5)


@pytest.mark.parametrize("weight_scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("gradient_scale", [1e-3, 1.0, 1e12])
def test_a_step_is_as_long_as_rate_times_weights_at_any_scale(weight_scale: float, gradient_scale: float) -> None:
    weight, gradient = weight_scale * make_weights()[0].detach(), gradient_scale * make_gradients(1)[0][0]
    before, after = one_matrix(Lamb, weight, gradient)
    assert np.linalg.norm(after - before) == pytest.approx(0.5 * np.linalg.norm(before), rel=1e-5)


def test_without_the_ratio_the_length_would_depend_on_the_scale() -> None:
    weight, gradient = make_weights()[0].detach(), make_gradients(1)[0][0]
    lengths = []
    for scale in (1.0, 1e3):
        before, after = one_matrix(Lamb, scale * weight, gradient, decay=0.0)
        lengths.append(np.linalg.norm(after - before) / np.linalg.norm(before))
    assert lengths[0] > 100 * lengths[1]


def test_the_ratio_of_a_large_matrix_is_exact_to_fp32() -> None:
    """One running fp32 sum, as torch's norms take on a CPU, is 2e-4 short at this size."""
    weight = torch.randn(8000, 1000, generator=torch.Generator().manual_seed(0))
    gradient = torch.ones_like(weight)
    gradient[::2] = -1.0
    before, after = one_matrix(Lamb, weight, gradient)
    assert np.linalg.norm(after - before) == pytest.approx(0.5 * np.linalg.norm(before), rel=1e-5)


def test_a_parameter_without_gradient_stays_and_the_others_train_as_alone() -> None:
    weights, gradients = make_weights(), [[step[0], None, None, step[3]] for step in make_gradients()]
    before, expected = [exact(weight) for weight in weights], oracle(weights, gradients)
    lamb = make(Lamb, weights)
    train(lamb, weights, gradients)
    for number in (1, 2):
        assert exact(weights[number]).tobytes() == before[number].tobytes()
        assert not lamb.state[weights[number]]
    for number in (0, 3):
        assert error(weights[number], expected[number]) < 1e-5


@pytest.mark.parametrize("late", [0, 1, 2, 3])
def test_a_parameter_whose_gradient_comes_late_has_its_own_count(late: int) -> None:
    weights = make_weights()
    gradients = [
        [None if number == late and step < 3 else gradient for number, gradient in enumerate(of_step)]
        for step, of_step in enumerate(make_gradients(8))
    ]
    expected = oracle(weights, gradients)
    train(make(Lamb, weights), weights, gradients)
    for weight, right in zip(weights, expected, strict=True):
        assert error(weight, right) < 1e-5


def test_the_learning_rate_scales_the_step() -> None:
    weights, gradient = make_weights(), make_gradients(1)[0]
    before = [exact(weight) for weight in weights]
    lamb = make(Lamb, weights)
    lamb.set_learning_rate(0.125)
    take(lamb, weights, gradient)
    for number in (0, 2):
        length = np.linalg.norm(exact(weights[number]) - before[number])
        assert length == pytest.approx(0.125 * np.linalg.norm(before[number]), rel=1e-5)
