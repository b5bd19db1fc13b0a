"""Gradients in, what a clipping hook leaves of them out, and what its formula leaves of them in float64."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from benchmarks.bert.comm.hook import BucketClip
from benchmarks.bert.optim.adam import Adam
from benchmarks.bert.optim.layerwise import Layerwise

SHAPES = ((7, 5), (30,), (12, 4), (3,), (20, 3), (11,))
BUCKET_MB = 0.0002  # 209 bytes: several buckets of these shapes
ONE_BUCKET_MB = 25.0

Gradients = list[Tensor]  # one for each of SHAPES


class Given(nn.Module):
    """A loss whose gradient is what it is given: the derivative of sum(w * g) by w is g."""

    def __init__(self, shapes: Sequence[tuple[int, ...]] = SHAPES) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.full(shape, 0.5)) for shape in shapes)

    def forward(self, gradients: Gradients) -> Tensor:
        return torch.stack([(w * g).sum() for w, g in zip(self.weights, gradients, strict=True)]).sum()


class Recorded(BucketClip):
    """Keeps which parameters DDP put into which bucket."""

    def __init__(self, ddp: DistributedDataParallel, max_norm: float) -> None:
        super().__init__(ddp, max_norm)
        self.numbers = {id(weight): number for number, weight in enumerate(ddp.module.parameters())}
        self.layout: dict[int, list[int]] = {}

    def clip(self, bucket: dist.GradBucket) -> Tensor:
        self.layout[bucket.index()] = [self.numbers[id(weight)] for weight in bucket.parameters()]
        return super().clip(bucket)


def unreduced(clip: BucketClip, bucket: dist.GradBucket) -> Future[Tensor]:
    """In place of `reduce`, the fault that comparisons must see: every rank keeps its own gradient."""
    gradient_P = clip.clip(bucket)
    clip._reduced.append(gradient_P)
    done: Future[Tensor] = Future()
    done.set_result(gradient_P)
    return done


def drawn(step: int, unit: int, shapes: Sequence[tuple[int, ...]] = SHAPES) -> Gradients:
    """Gradients of one rank's one micro-batch, the unit of clipping; norms spread over five decades."""
    rng = np.random.default_rng([step, unit])
    return [
        torch.from_numpy((rng.standard_normal(shape) * 10.0 ** rng.uniform(-3, 2)).astype(np.float32))
        for shape in shapes
    ]


def backward(ddp: DistributedDataParallel, clip: BucketClip, micro_batches: Sequence[Gradients]) -> Gradients:
    """One step's averaged gradients; what optimizer.zero_grad() does follows."""
    ddp.zero_grad()
    for micro_batch in clip.accumulate(micro_batches):
        ddp(micro_batch).backward()
    return [weight.grad.clone() for weight in ddp.module.parameters()]


def take_steps(
    ddp: DistributedDataParallel, clip: BucketClip, optimizer: Adam | Layerwise, steps: Iterable[Sequence[Gradients]]
) -> dict[str, Any]:
    """By step: the averaged gradients, whether one was not finite, and the weights after it."""
    gradients, found, weights = [], [], []
    for micro_batches in steps:
        gradients.append(backward(ddp, clip, micro_batches))
        found.append(float(clip.found_non_finite()))
        optimizer.step_unless(clip.found_non_finite())
        weights.append([weight.detach().clone() for weight in ddp.module.parameters()])
    return {"gradients": gradients, "found": found, "weights": weights}


def oracle(units: Sequence[Gradients], layout: dict[int, list[int]], max_norm: float) -> list[np.ndarray]:
    """Mean over units of each bucket times min(1, c / sqrt(B) / its norm), in float64."""
    exact = [[gradient.numpy().astype(np.float64) for gradient in unit] for unit in units]
    threshold = max_norm / math.sqrt(len(layout))
    total = [np.zeros(gradient.shape) for gradient in exact[0]]
    for unit in exact:
        for members in layout.values():
            norm = math.sqrt(sum(float((unit[number] ** 2).sum()) for number in members))
            factor = min(1.0, threshold / norm) if norm > 0 else 1.0
            for number in members:
                total[number] += factor * unit[number] / len(units)
    return total


def assert_equal(gradients: Gradients, expected: Sequence[np.ndarray], place: str) -> None:
    """To the rounding of fp32; `place` is what the error says besides the parameter."""
    for number, (ours, theirs) in enumerate(zip(gradients, expected, strict=True)):
        error = np.abs(ours.numpy() - theirs).max() / max(np.abs(theirs).max(), 1e-12)
        assert error < 2e-6, f"{place}, parameter {number}: relative error {error}"


def assert_equal_bits(states: Sequence[Sequence[Tensor]]) -> None:
    for rank, state in enumerate(states[1:], start=1):
        for number, (ours, first) in enumerate(zip(state, states[0], strict=True)):
            assert ours.numpy().tobytes() == first.numpy().tobytes(), f"rank {rank}, tensor {number} differs"
