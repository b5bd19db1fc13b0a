"""The factors that clip one bucket, and several by their joint norm: exact, at most 1, NaN for what is not finite."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from benchmarks.bert.comm.clip import clip_factor, whole_clip_factor

NOT_FINITE = {
    "nan": [math.nan, 1.0],
    "inf": [math.inf, 1.0],
    "-inf": [-math.inf, 1.0],
    "finite, but its norm overflows": [3e38, 3e38],
}


def test_the_norm_of_a_large_bucket_is_exact_to_fp32() -> None:
    """One running fp32 sum, as torch.linalg.vector_norm takes on a CPU, is 2e-4 short at this size."""
    gradient_P = torch.randn(8_000_000, generator=torch.Generator().manual_seed(0))
    exact = gradient_P.double().square().sum().sqrt().item()
    assert abs(clip_factor(gradient_P, 1.0).item() * exact - 1) < 1e-5
    parts = gradient_P.split([5_000_000, 10, 2_999_990])
    assert abs(whole_clip_factor(parts, 1.0).item() * exact - 1) < 1e-5


def test_the_joint_norm_is_the_root_of_the_sum_of_squares() -> None:
    three, four = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 0.0, -4.0])
    assert whole_clip_factor([three, four], 1.0).item() == pytest.approx(1 / 5, rel=1e-6)
    assert whole_clip_factor([three, four], 2.5).item() == pytest.approx(1 / 2, rel=1e-6)
    by_each_norm = clip_factor(three, 1.0).item(), clip_factor(four, 1.0).item()
    assert by_each_norm == pytest.approx((1 / 3, 1 / 4), rel=1e-6)


def test_for_one_bucket_both_are_equal_bit_for_bit() -> None:
    gradient_P = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    for max_norm in (1e-3, 1.0, 30.0, 1e6):
        assert torch.equal(clip_factor(gradient_P, max_norm), whole_clip_factor([gradient_P], max_norm))


@pytest.mark.parametrize("buckets", [[[0.3, 0.4]], [[0.3], [0.4]], [[0.0], [0.0, 0.0]]])
def test_a_norm_up_to_the_maximum_and_zero_are_left_alone(buckets: list[list[float]]) -> None:
    assert whole_clip_factor([torch.tensor(bucket) for bucket in buckets], 0.51).item() == 1.0


@pytest.mark.parametrize("bad", NOT_FINITE.values(), ids=NOT_FINITE.keys())
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_not_finite_in_any_bucket_makes_the_factor_nan(bad: list[float], place: int) -> None:
    buckets = [torch.ones(2), torch.ones(5), torch.zeros(3)]
    assert whole_clip_factor(buckets, 1.0).isfinite()
    buckets[place] = torch.tensor(bad)
    assert whole_clip_factor(buckets, 1.0).isnan()
    assert whole_clip_factor(buckets, math.inf).isnan()
    assert clip_factor(buckets[place], 1.0).isnan()


def test_the_squares_of_half_precision_are_added_in_fp32() -> None:
    """In bfloat16 a sum of ones stands still at 256."""
    halves: list[Tensor] = [torch.ones(5000, dtype=torch.bfloat16), torch.ones(5000, dtype=torch.bfloat16)]
    factor = whole_clip_factor(halves, 1.0)
    assert (factor.dtype, factor.shape) == (torch.float32, ())
    assert factor.item() == pytest.approx(0.01, rel=1e-6)
