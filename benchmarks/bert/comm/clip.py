"""A bucket of local gradients in, the factor that clips it out; no host synchronisation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def bucket_threshold(max_norm: float, num_buckets: int) -> float:
    """The norm allowed to each bucket, so that the whole gradient's never exceeds `max_norm`.

    B buckets of norm at most max_norm / sqrt(B) have a joint norm of at most max_norm, and so has their mean over
    ranks (*Breaking MLPerf Training*, bucket-wise clipping; record-runs.md, 1.5).
    """
    return max_norm / math.sqrt(num_buckets)


def clip_factor(gradient_P: Tensor, threshold: float | Tensor) -> Tensor:
    """min(1, threshold / norm) as an fp32 scalar on the gradient's device; NaN where the norm is not finite.

    NaN rather than 0: multiplied into the bucket it reaches every rank through the reduction, so that all of them
    skip the step, whereas 0 would hide the fault.
    """
    return _factor(_squares(gradient_P), threshold)


def whole_clip_factor(gradients: Sequence[Tensor], max_norm: float | Tensor) -> Tensor:
    """The same for the joint norm of several buckets."""
    return _factor(torch.stack([_squares(gradient_P) for gradient_P in gradients]).sum(), max_norm)


def _squares(gradient_P: Tensor) -> Tensor:
    # Not torch.linalg.vector_norm: on a CPU it adds up in one fp32 sum, 0.2 % short at 30 million elements.
    return gradient_P.float().square().sum()


def _factor(squares: Tensor, threshold: float | Tensor) -> Tensor:
    norm = squares.sqrt()
    # Not threshold / norm, which torch rounds differently for a number and for a tensor: a loss scale that is a power
    # of two is to change no bit. A zero gradient: 1 / 0 = inf, clamped to 1.
    factor = (norm.reciprocal() * threshold).clamp(max=1.0)
    return torch.where(norm.isfinite(), factor, torch.nan)
