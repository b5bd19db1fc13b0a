"""LAMB against its formula in float64, its trust ratio, steps left out, and what others read of its groups."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.bert.config import OPTIMIZERS, Config
from benchmarks.bert.optim.adam import Adam
from benchmarks.bert.optim.lamb import Lamb
from benchmarks.bert.optim.lr import PolynomialSchedule
from benchmarks.bert.record import record_hyperparameters
from benchmarks.bert.trainer import OPTIMIZERS as BUILT
from mlperf_log_utils import RunLog

BETAS = (0.9, 0.98)
EPSILON = 1e-6
SHAPES = ((7, 5), (5,), (3, 2), (4,))
DECAYS = (0.1, 0.0, 0.1, 0.0)  # matrices, not vectors
STEPS = 50

Gradients = Sequence[Tensor | None]  # one for each weight


def make_weights(scale: float = 1.0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(scale * torch.randn(shape, generator=generator)) for shape in SHAPES]


def make_lamb(weights: Sequence[nn.Parameter], *, betas: tuple[float, float] = BETAS, decay: float = 0.1) -> Lamb:
    groups: list[dict[str, object]] = [
        {"params": [w for w in weights if w.ndim > 1], "weight_decay": decay},
        {"params": [w for w in weights if w.ndim == 1], "weight_decay": 0.0},
    ]
    return Lamb(groups, learning_rate=1e-2, betas=betas, epsilon=EPSILON)


def make_gradients(steps: int = STEPS) -> list[list[Tensor]]:
    """Gradients whose size changes by orders of magnitude, as a run's does."""
    generator = torch.Generator().manual_seed(2)
    return [
        [10 ** (-4 * t / steps) * torch.randn(shape, generator=generator) for shape in SHAPES] for t in range(steps)
    ]


def rate(step: int) -> float:
    return 1e-2 * min(step / 10, (STEPS + 1 - step) / 40)


def take(optimizer: Lamb | Adam, weights: Sequence[nn.Parameter], gradients: Gradients, found: float = 0.0) -> None:
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = None if gradient is None else gradient.clone()
    optimizer.step_unless(torch.tensor(found))


def train(optimizer: Lamb | Adam, weights: Sequence[nn.Parameter], gradients: Sequence[Gradients]) -> None:
    for step, step_gradients in enumerate(gradients, start=1):
        optimizer.set_learning_rate(rate(step))
        take(optimizer, weights, step_gradients)


def exact(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy().copy()


def oracle(
    weights: Sequence[Tensor],
    gradients: Sequence[Gradients],
    *,
    betas: tuple[float, float] = BETAS,
    trust: bool = True,
    bias_correction: bool = True,
    coupled: bool = False,
) -> list[np.ndarray]:
    """LAMB in float64, from the formula; what is switched off or on makes it another algorithm."""
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
            ratio = norms[0] / norms[1] if trust and decay and min(norms) > 0 else 1.0
            w = w - rate(step) * ratio * u
        results.append(w)
    return results


def error(ours: Tensor, theirs: np.ndarray) -> float:
    return float(np.linalg.norm(exact(ours) - theirs) / np.linalg.norm(theirs))


def bits(optimizer: Lamb, weights: Sequence[nn.Parameter]) -> list[bytes]:
    """Weights, moments and step counts."""
    return [weight.detach().numpy().tobytes() for weight in weights] + [
        optimizer.state[weight][name].numpy().tobytes() for weight in weights for name in ("m", "v", "t")
    ]


@pytest.mark.parametrize("betas", [(0.9, 0.98), (0.9, 0.999), (0.0, 0.5)])
def test_fifty_steps_are_those_of_the_formula_in_float64(betas: tuple[float, float]) -> None:
    weights, gradients = make_weights(), make_gradients()
    expected = oracle(weights, gradients, betas=betas)
    train(make_lamb(weights, betas=betas), weights, gradients)
    for weight, right in zip(weights, expected, strict=True):
        assert error(weight, right) < 1e-5


@pytest.mark.parametrize(
    ("other", "differing"),
    [({"trust": False}, (0, 2)), ({"bias_correction": False}, (0, 1, 2, 3)), ({"coupled": True}, (0, 2))],
)
def test_another_algorithm_is_seen_by_this_comparison(other: dict[str, bool], differing: tuple[int, ...]) -> None:
    weights, gradients = make_weights(), make_gradients()
    wrong = oracle(weights, gradients, **other)  # type: ignore[arg-type]
    train(make_lamb(weights), weights, gradients)
    assert tuple(n for n in range(len(SHAPES)) if error(weights[n], wrong[n]) > 1e-3) == differing


@pytest.mark.parametrize("kind", [Lamb, Adam])
@pytest.mark.parametrize("beta_2", [0.98, 0.999, 0.9999])
def test_updates_that_no_large_weight_hides_are_exact(beta_2: float, kind: type[Lamb] | type[Adam]) -> None:
    """Vectors that start at zero. A beta rounded to fp32 lies another way below 1; torch's ADAM does without."""
    weights, gradients = make_weights(scale=0.0), [[None, g[1], None, g[3]] for g in make_gradients(10)]
    expected = oracle(weights, gradients, betas=(0.9, beta_2))
    train(
        kind([{"params": weights, "weight_decay": 0.0}], learning_rate=1.0, betas=(0.9, beta_2), epsilon=EPSILON),
        weights,
        gradients,
    )
    for number in (1, 3):
        assert error(weights[number], expected[number]) < 2e-6


def test_without_decay_the_ratio_is_1_and_lamb_is_adam() -> None:
    ours, theirs, gradients = make_weights(), make_weights(), make_gradients()
    train(make_lamb(ours, decay=0.0), ours, gradients)
    adam = Adam([{"params": theirs, "weight_decay": 0.0}], learning_rate=1.0, betas=BETAS, epsilon=EPSILON)
    train(adam, theirs, gradients)
    for weight, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(weight, right, atol=1e-6, rtol=1e-5)


def test_with_decay_lamb_is_not_adam() -> None:
    ours, theirs, gradients = make_weights(), make_weights(), make_gradients()
    train(make_lamb(ours), ours, gradients)
    adam = Adam([{"params": theirs, "weight_decay": 0.1}], learning_rate=1.0, betas=BETAS, epsilon=EPSILON)
    train(adam, theirs, gradients)
    assert error(ours[0], exact(theirs[0])) > 1e-2


def one_matrix(
    weight: Tensor, gradient: Tensor, decay: float = 0.1, betas: tuple[float, float] = BETAS
) -> tuple[np.ndarray, np.ndarray]:
    """A matrix before and after one step of rate 0.5."""
    parameter = nn.Parameter(weight.clone())
    groups: list[dict[str, object]] = [{"params": [parameter], "weight_decay": decay}]
    lamb = Lamb(groups, learning_rate=0.5, betas=betas, epsilon=EPSILON)
    take(lamb, [parameter], [gradient])
    return exact(weight), exact(parameter)


def test_zero_weights_take_ratio_1() -> None:
    gradient = make_gradients(1)[0][0]
    before, after = one_matrix(torch.zeros(7, 5), gradient)
    first_update = exact(gradient) / (np.abs(exact(gradient)) + EPSILON)  # both corrections cancel the betas
    np.testing.assert_allclose(before - after, 0.5 * first_update, rtol=1e-5)


def test_zero_weights_and_a_zero_gradient_stay_zero() -> None:
    _, after = one_matrix(torch.zeros(7, 5), torch.zeros(7, 5))
    assert not after.any()


def test_a_zero_update_leaves_the_weights() -> None:
    """Without moments u = g / |g| + decay * w, here -1 + 0.5 * 2: |w| / |u| would be infinite, and times u NaN."""
    weight = torch.full((3, 2), 2.0)
    before, after = one_matrix(weight, torch.full((3, 2), -1e6), decay=0.5, betas=(0.0, 0.0))
    assert after.tobytes() == before.tobytes()
    before, after = one_matrix(weight, torch.full((3, 2), 1e6), decay=0.5, betas=(0.0, 0.0))
    np.testing.assert_allclose(after, 0.5 * before, rtol=1e-6)  # the twin: u = 2, ratio 1, rate 0.5


def test_a_zero_gradient_leaves_the_decay_whose_ratio_undoes_its_size() -> None:
    """u = decay * w, so the step is rate * w whatever the decay is."""
    for decay in (1e-3, 0.1, 7.0):
        before, after = one_matrix(make_weights()[0].detach(), torch.zeros(7, 5), decay)
        np.testing.assert_allclose(after, 0.5 * before, rtol=1e-5)


@pytest.mark.parametrize("weight_scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("gradient_scale", [1e-3, 1.0, 1e12])
def test_a_step_is_as_long_as_rate_times_weights_at_any_scale(weight_scale: float, gradient_scale: float) -> None:
    weight, gradient = weight_scale * make_weights()[0].detach(), gradient_scale * make_gradients(1)[0][0]
    before, after = one_matrix(weight, gradient)
    assert np.linalg.norm(after - before) == pytest.approx(0.5 * np.linalg.norm(before), rel=1e-5)


def test_without_the_ratio_the_length_would_depend_on_the_scale() -> None:
    weight, gradient = make_weights()[0].detach(), make_gradients(1)[0][0]
    lengths = []
    for scale in (1.0, 1e3):
        before, after = one_matrix(scale * weight, gradient, decay=0.0)
        lengths.append(np.linalg.norm(after - before) / np.linalg.norm(before))
    assert lengths[0] > 100 * lengths[1]


def test_the_ratio_of_a_large_matrix_is_exact_to_fp32() -> None:
    """One running fp32 sum, as torch's norms take on a CPU, is 2e-4 short at this size."""
    weight = torch.randn(8000, 1000, generator=torch.Generator().manual_seed(0))
    gradient = torch.ones_like(weight)
    gradient[::2] = -1.0
    before, after = one_matrix(weight, gradient)
    assert np.linalg.norm(after - before) == pytest.approx(0.5 * np.linalg.norm(before), rel=1e-5)


BAD = [1.0, 1e30, float("nan"), float("inf"), float("-inf")]


@pytest.mark.parametrize("bad", BAD)
def test_a_step_left_out_changes_no_bit(bad: float) -> None:
    weights = make_weights()
    lamb = make_lamb(weights)
    train(lamb, weights, make_gradients(3))
    before = bits(lamb, weights)
    take(lamb, weights, [torch.full_like(weight, bad) for weight in weights], found=1.0)
    assert len(before) == 4 * len(weights)
    assert bits(lamb, weights) == before


@pytest.mark.parametrize("bad", BAD)
def test_the_very_first_step_left_out_changes_no_bit(bad: float) -> None:
    weights = make_weights()
    before = [weight.detach().numpy().tobytes() for weight in weights]
    lamb = make_lamb(weights)
    take(lamb, weights, [torch.full_like(weight, bad) for weight in weights], found=1.0)
    assert [weight.detach().numpy().tobytes() for weight in weights] == before
    assert all(not value.any() for weight in weights for value in lamb.state[weight].values())


def test_the_same_step_taken_changes_weights_moments_and_count() -> None:
    weights = make_weights()
    lamb = make_lamb(weights)
    train(lamb, weights, make_gradients(3))
    before = bits(lamb, weights)
    take(lamb, weights, [torch.ones_like(weight) for weight in weights])
    assert not any(one == other for one, other in zip(before, bits(lamb, weights), strict=True))


@pytest.mark.parametrize("left_out", [(1,), (3,), (1, 2), (4, 6)])
def test_after_steps_left_out_the_run_is_as_if_they_had_not_been(left_out: tuple[int, ...]) -> None:
    without, with_some, gradients = make_weights(), make_weights(), make_gradients(6)
    control, lamb = make_lamb(without), make_lamb(with_some)
    train(control, without, gradients)
    for step, step_gradients in enumerate(gradients, start=1):
        lamb.set_learning_rate(rate(step))
        if step in left_out:
            take(lamb, with_some, [torch.full_like(weight, float("nan")) for weight in with_some], found=1.0)
        take(lamb, with_some, step_gradients)
    assert bits(lamb, with_some) == bits(control, without)


def test_a_parameter_without_gradient_stays_and_the_others_train_as_alone() -> None:
    weights, gradients = make_weights(), [[step[0], None, None, step[3]] for step in make_gradients()]
    before, expected = [exact(weight) for weight in weights], oracle(weights, gradients)
    lamb = make_lamb(weights)
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
    train(make_lamb(weights), weights, gradients)
    for weight, right in zip(weights, expected, strict=True):
        assert error(weight, right) < 1e-5


def test_no_gradient_at_all_is_no_step() -> None:
    weights = make_weights()
    before = [weight.detach().numpy().tobytes() for weight in weights]
    lamb = make_lamb(weights)
    take(lamb, weights, [None] * len(weights))
    assert [weight.detach().numpy().tobytes() for weight in weights] == before


class Questions(TorchDispatchMode):
    """Counts what Python asks of a tensor's value: .item(), float(), bool()."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("found", [0.0, 1.0])
def test_a_step_asks_the_host_nothing(found: float) -> None:
    weights = make_weights()
    lamb = make_lamb(weights)
    with Questions() as questions:
        take(lamb, weights, make_gradients(1)[0], found)
        take(lamb, weights, make_gradients(1)[0], found)
    assert questions.count == 0
    with Questions() as questions:
        bool(torch.tensor(found))
    assert questions.count == 1


def test_state_written_and_read_back_goes_on_bit_for_bit() -> None:
    weights, gradients = make_weights(), make_gradients(8)
    lamb = make_lamb(weights)
    train(lamb, weights, gradients[:4])
    file = io.BytesIO()
    torch.save(lamb.state_dict(), file)
    file.seek(0)
    resumed_weights = [nn.Parameter(weight.detach().clone()) for weight in weights]
    forgetful_weights = [nn.Parameter(weight.detach().clone()) for weight in weights]
    resumed, forgetful = make_lamb(resumed_weights, betas=(0.1, 0.1)), make_lamb(forgetful_weights)
    resumed.load_state_dict(torch.load(file))
    assert resumed.param_groups[0]["betas"] == BETAS
    train(lamb, weights, gradients[4:])
    train(resumed, resumed_weights, gradients[4:])
    train(forgetful, forgetful_weights, gradients[4:])
    assert bits(resumed, resumed_weights) == bits(lamb, weights)
    assert bits(forgetful, forgetful_weights) != bits(lamb, weights)


class Events:
    """What record.py writes, by key."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def event(self, key: str, value: object = None, **_: object) -> None:
        self.values[key] = value


def test_the_log_reads_the_live_optimizers_values() -> None:
    lamb = make_lamb(make_weights(), betas=(0.7, 0.77), decay=0.123)
    schedule = PolynomialSchedule(0.5, 0.0, warmup_steps=3, start_warmup_step=0, decay_steps=9, power=1.0)
    log = Events()
    record_hyperparameters(
        cast(RunLog, log), Config(optimizer="lamb"), lamb, schedule, num_buckets=1, max_predictions=76
    )
    read = {
        "opt_name": "lamb",
        "opt_lamb_beta_1": 0.7,
        "opt_lamb_beta_2": 0.77,
        "opt_lamb_weight_decay_rate": 0.123,
        "opt_lamb_epsilon": EPSILON,
        "opt_epsilon": EPSILON,
    }
    assert {key: log.values[key] for key in read} == read


def test_the_learning_rate_set_is_every_groups_and_scales_the_step() -> None:
    weights, gradient = make_weights(), make_gradients(1)[0]
    before = [exact(weight) for weight in weights]
    lamb = make_lamb(weights)
    assert [group["lr"] for group in lamb.param_groups] == [1e-2, 1e-2]
    lamb.set_learning_rate(0.125)
    assert [group["lr"] for group in lamb.param_groups] == [0.125, 0.125]
    take(lamb, weights, gradient)
    for number in (0, 2):
        length = np.linalg.norm(exact(weights[number]) - before[number])
        assert length == pytest.approx(0.125 * np.linalg.norm(before[number]), rel=1e-5)


def test_the_configurations_optimizers_are_those_that_are_built() -> None:
    assert set(BUILT) == set(OPTIMIZERS)
    assert BUILT["lamb"] is Lamb
