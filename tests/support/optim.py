"""A few small tensors and their gradients in, what an optimizer makes of them out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.bert.optim.adam import Adam
from benchmarks.bert.optim.lamb import Lamb
from benchmarks.bert.optim.lans import Lans
from benchmarks.bert.optim.layerwise import Layerwise

BETAS = (0.9, 0.98)
EPSILON = 1e-6
SHAPES = ((7, 5), (5,), (3, 2), (4,))
DECAYS = (0.1, 0.0, 0.1, 0.0)  # matrices, not vectors
STEPS = 50
MOST = 1.1  # a limit that some ratios reach and others do not
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias correction": {"bias_correction": False},
    "ratio limited": {"max_trust_ratio": MOST},
    "both": {"bias_correction": False, "max_trust_ratio": MOST},
}

Kind = type[Adam] | type[Lamb] | type[Lans]
Gradients = Sequence[Tensor | None]  # one for each weight
Oracle = Callable[..., list[np.ndarray]]


def make_weights(scale: float = 1.0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(scale * torch.randn(shape, generator=generator)) for shape in SHAPES]


def make_groups(weights: Sequence[nn.Parameter], decay: float = 0.1) -> list[dict[str, object]]:
    return [
        {"params": [w for w in weights if w.ndim > 1], "weight_decay": decay},
        {"params": [w for w in weights if w.ndim == 1], "weight_decay": 0.0},
    ]


def make(
    kind: Kind,
    weights: Sequence[nn.Parameter],
    *,
    betas: tuple[float, float] = BETAS,
    decay: float = 0.1,
    epsilon: float = EPSILON,
    **options: Any,
) -> Adam | Layerwise:
    return kind(make_groups(weights, decay), learning_rate=1e-2, betas=betas, epsilon=epsilon, **options)


def make_gradients(steps: int = STEPS) -> list[list[Tensor]]:
    """Gradients whose size changes by orders of magnitude, as a run's does."""
    generator = torch.Generator().manual_seed(2)
    return [
        [10 ** (-4 * t / steps) * torch.randn(shape, generator=generator) for shape in SHAPES] for t in range(steps)
    ]


def rate(step: int) -> float:
    return 1e-2 * min(step / 10, (STEPS + 1 - step) / 40)


def take(
    optimizer: Adam | Layerwise, weights: Sequence[nn.Parameter], gradients: Gradients, found: float = 0.0
) -> None:
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = None if gradient is None else gradient.clone()
    optimizer.step_unless(torch.tensor(found))


def train(optimizer: Adam | Layerwise, weights: Sequence[nn.Parameter], gradients: Sequence[Gradients]) -> None:
    for step, step_gradients in enumerate(gradients, start=1):
        optimizer.set_learning_rate(rate(step))
        take(optimizer, weights, step_gradients)


def one_matrix(
    kind: Kind, weight: Tensor, gradient: Tensor, decay: float = 0.1, **options: Any
) -> tuple[np.ndarray, np.ndarray]:
    """A matrix before and after one step of rate 0.5."""
    parameter = nn.Parameter(weight.clone())
    optimizer = make(kind, [parameter], decay=decay, **options)
    optimizer.set_learning_rate(0.5)
    take(optimizer, [parameter], [gradient])
    return exact(weight), exact(parameter)


def exact(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy().copy()


def error(ours: Tensor, theirs: np.ndarray) -> float:
    return float(np.linalg.norm(exact(ours) - theirs) / np.linalg.norm(theirs))


def errors(kind: Kind, oracle: Oracle, other: Mapping[str, Any] | None = None, **options: Any) -> list[float]:
    """Each tensor's after all steps, beside the oracle, which alone takes what `other` says."""
    weights, gradients = make_weights(), make_gradients()
    expected = oracle(weights, gradients, **options, **(other or {}))
    train(make(kind, weights, **options), weights, gradients)
    return [error(ours, theirs) for ours, theirs in zip(weights, expected, strict=True)]


def differing(found: Sequence[float]) -> tuple[int, ...]:
    """Which of the tensors are another result by these errors, and not one rounded otherwise."""
    return tuple(number for number, each in enumerate(found) if each > 1e-3)


def bits(optimizer: Adam | Layerwise, weights: Sequence[nn.Parameter]) -> list[bytes]:
    """Weights, moments and step counts."""
    return [weight.detach().numpy().tobytes() for weight in weights] + [
        value.numpy().tobytes() for weight in weights for _, value in sorted(optimizer.state[weight].items())
    ]


class Questions(TorchDispatchMode):
    """Counts what Python asks of a tensor's value: .item(), float(), bool()."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))
