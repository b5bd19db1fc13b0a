"""Each clip variant at its edges: every precision with accumulation, 16-bit buckets, new buckets, missing gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.bert.comm import clip as factors
from benchmarks.bert.comm.hook import CLIP_VARIANTS, BucketClip
from benchmarks.bert.data.batch import PackedBatch
from benchmarks.bert.loss import pretraining_loss
from benchmarks.bert.optim.adam import Adam
from benchmarks.bert.optim.groups import decay_groups
from benchmarks.bert.trainer import Trainer
from tests.dist import test_clip as by_bucket
from tests.support.clipping import BUCKET_MB, Given, Gradients, assert_equal_bits
from tests.dist.test_global_clip import CLIPPING, oracle
from tests.dist.test_precision import MAX_NORM, gradients, make, micro_batches
from tests.support.ranks import RankFailedError, run_ranks

PRECISIONS = ("fp32", "bf16", "fp16")
Layout = dict[int, list[int]]  # by bucket: the numbers of its parameters


def note_layout(clip: BucketClip, parameters: list[nn.Parameter]) -> Layout:
    """What it returns is filled by the next passes."""
    numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
    layout: Layout = {}
    original = clip.add

    def add(bucket: dist.GradBucket) -> Tensor:
        layout[bucket.index()] = [numbers[id(parameter)] for parameter in bucket.parameters()]
        return original(bucket)

    clip.add = add  # type: ignore[method-assign]
    return layout


def relative_error(ours: Gradients, theirs: list[np.ndarray]) -> float:
    """The largest difference by the largest value."""
    pairs = list(zip(ours, theirs, strict=True))
    return max(np.abs(a.double().numpy() - b).max() for a, b in pairs) / max(np.abs(b).max() for _, b in pairs)


# --- every precision, with and without accumulation, of the trainer's own BERT

Case = tuple[str, str, int]  # precision, clipping, micro-batches
CASES: list[Case] = [(precision, clip, count) for precision in PRECISIONS for clip in CLIP_VARIANTS for count in (1, 2)]


def alone(trainer: Trainer, batch: PackedBatch) -> Gradients:
    """One unit's gradient without DDP, hook and clipping, out of scale again: exact, as the scale is a power of two."""
    with trainer.precision():
        loss = pretraining_loss(trainer.model(batch), batch)
    found = torch.autograd.grad(trainer.loss_scale.scaled(loss), list(trainer.model.parameters()))
    return [gradient / trainer.loss_scale.scale for gradient in found]


def beside_units(rank: int) -> dict[Case, tuple[list[Tensor], list[Gradients], Layout]]:
    """By case: what the optimizer sees, this rank's units, and the buckets."""
    results = {}
    for precision, clip, count in CASES:
        trainer = make(rank, 2, precision=precision, clip=clip, gradient_accumulation_steps=count)
        units = [alone(trainer, batch) for batch in micro_batches(rank, count)]
        layout = note_layout(trainer.gradient, list(trainer.model.parameters()))
        found = gradients(trainer, micro_batches(rank, count))
        results[precision, clip, count] = (list(found.values()), units, layout)
    return results


Beside = list[dict[Case, tuple[list[Tensor], list[Gradients], Layout]]]


@pytest.fixture(scope="module")
def of_ranks() -> Beside:
    return run_ranks(beside_units, 2, timeout_s=180)


@pytest.mark.parametrize("count", [1, 2], ids=["1 micro-batch", "2 micro-batches"])
@pytest.mark.parametrize("clip", CLIP_VARIANTS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_variant_is_its_formula_in_each_precision(of_ranks: Beside, precision: str, clip: str, count: int) -> None:
    case = (precision, clip, count)
    ours, _, layout = of_ranks[0][case]
    assert len(layout) > 2
    assert_equal_bits([of_rank[case][0] for of_rank in of_ranks])
    units = [unit for of_rank in of_ranks for unit in of_rank[case][1]]
    assert relative_error(ours, oracle(clip, units, layout, MAX_NORM)) < 1e-6
    for other in {"none", "global_before", "global_after"} - {clip}:
        assert relative_error(ours, oracle(other, units, layout, MAX_NORM)) > 1e-4, other
    if clip in CLIPPING:
        norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in ours))
        assert norm <= MAX_NORM * (1 + 1e-6)
        assert relative_error(ours, oracle(clip, units, layout, 1.001 * MAX_NORM)) > 1e-4


def test_the_precisions_differ(of_ranks: Beside) -> None:
    for clip in CLIP_VARIANTS:
        fp32, *halves = [of_ranks[0][precision, clip, 2][0] for precision in PRECISIONS]
        for half in halves:
            assert 1e-5 < relative_error(half, [gradient.double().numpy() for gradient in fp32]) < 0.1


# --- buckets of 16 bit, as a module in 16 bit has them

LARGE = [(5000,), (200,)]  # in bf16 a running sum of as many equal squares stands still at the 256th
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def in_16_bit(rank: int, num_micro_batches: int) -> dict[tuple[str, str], tuple[Gradients, Layout, list[torch.dtype]]]:
    """By precision and variant: averaged gradients, buckets, and the types of the factors."""
    results = {}
    for precision, dtype in HALVES.items():
        for name, kind in CLIP_VARIANTS.items():
            ddp = DistributedDataParallel(Given(LARGE).to(dtype), bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True)
            clip = kind(ddp, MAX_NORM)
            layout = note_layout(clip, list(ddp.module.parameters()))
            with clip.discovering():
                for _ in range(2):
                    by_bucket.backward(ddp, clip, [ones(dtype, 0)])
            layout.clear()
            units = [ones(dtype, rank * num_micro_batches + micro) for micro in range(num_micro_batches)]
            averaged = by_bucket.backward(ddp, clip, units)
            results[precision, name] = averaged, layout, [gradient.dtype for gradient in averaged]
    return results


def ones(dtype: torch.dtype, number: int) -> Gradients:
    """Of a unit: all alike, in every other unit smaller, and half as large in the small parameter."""
    size = 6.0 if number % 2 else 8.0
    return [torch.full(shape, size / (1 + index), dtype=dtype) for index, shape in enumerate(LARGE)]


@pytest.mark.parametrize("num_micro_batches", [1, 3])
def test_norms_of_16_bit_buckets_are_added_up_in_fp32(num_micro_batches: int) -> None:
    results = run_ranks(in_16_bit, 2, num_micro_batches)
    for precision, dtype in HALVES.items():
        rounding = torch.finfo(dtype).eps
        for name in CLIP_VARIANTS:
            averaged, layout, dtypes = results[0][precision, name]
            assert set(dtypes) == {dtype}
            assert len(layout) == 2
            units = [[g.float() for g in ones(dtype, number)] for number in range(2 * num_micro_batches)]
            exact = oracle(name, units, layout, MAX_NORM)
            for ours, theirs in zip(averaged, exact, strict=True):
                error = np.abs(ours.float().numpy() / theirs - 1).max()
                assert error <= 4 * rounding, f"{precision}, {name}"  # of products and sums


def running_sum(gradient_P: Tensor) -> Tensor:
    total = torch.zeros((), dtype=gradient_P.dtype)
    for square in gradient_P.square():
        total = total + square
    return total.float()


def with_norms_in_16_bit(rank: int) -> dict[tuple[str, str], tuple[Gradients, Layout, list[torch.dtype]]]:
    """The fault: squares are added up one after the other in the bucket's own type."""
    factors._squares = running_sum
    return in_16_bit(rank, 1)


def test_a_norm_added_up_in_16_bit_would_be_seen() -> None:
    results = run_ranks(with_norms_in_16_bit, 2)
    units = [[g.float() for g in ones(torch.float32, number)] for number in (0, 1)]
    for precision, name in [case for case in results[0] if case[1] in CLIPPING]:
        averaged, layout, _ = results[0][precision, name]
        exact = oracle(name, units, layout, MAX_NORM)
        error = np.abs(averaged[0].float().numpy() / exact[0] - 1).max()
        assert not error <= 0.25, f"{precision}, {name}"


# --- buckets that DDP lays out anew


def rebuilt(rank: int) -> dict[str, dict[str, Any]]:
    """By variant: the buckets of each of four passes, the first three of them discovering; what the fourth leaves."""
    results = {}
    for name, kind in CLIP_VARIANTS.items():
        ddp = DistributedDataParallel(Given(), bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True)
        clip = kind(ddp, 1.0)
        seen = note_layout(clip, list(ddp.module.parameters()))
        layouts = []
        with clip.discovering():
            for _ in range(3):
                by_bucket.backward(ddp, clip, [by_bucket.drawn(0, rank)])
                layouts.append(dict(seen))
                seen.clear()
        averaged = by_bucket.backward(ddp, clip, [by_bucket.drawn(1, rank)])
        results[name] = {"layouts": [*layouts, seen], "averaged": averaged, "num_buckets": clip.num_buckets}
    return results


def test_the_buckets_of_the_second_pass_are_new_ones_they_stay_and_the_first_step_is_right() -> None:
    results = run_ranks(rebuilt, 2)
    units = [by_bucket.drawn(1, rank) for rank in (0, 1)]
    for name in CLIP_VARIANTS:
        first, second, third, fourth = results[0][name]["layouts"]
        assert len(first) != len(second) == results[0][name]["num_buckets"], name
        assert second == third == fourth == results[1][name]["layouts"][3]
        assert_equal_bits([of_rank[name]["averaged"] for of_rank in results])
        for ours, theirs in zip(results[0][name]["averaged"], oracle(name, units, fourth, 1.0), strict=True):
            assert np.abs(ours.numpy() - theirs).max() < 2e-6 * max(np.abs(theirs).max(), 1e-12), name


# --- parameters that get no gradient


class Frozen(Given):
    """Its fourth parameter does not train."""

    def __init__(self) -> None:
        super().__init__()
        self.weights[3].requires_grad_(False)


def with_frozen(rank: int) -> dict[str, dict[str, Any]]:
    results = {}
    for name, kind in CLIP_VARIANTS.items():
        ddp = DistributedDataParallel(Frozen(), bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True)
        clip = kind(ddp, 1.0)
        parameters = list(ddp.module.parameters())
        layout = note_layout(clip, parameters)
        adam = Adam(decay_groups(ddp.module, 0.5), learning_rate=0.1, betas=(0.9, 0.99), epsilon=1e-6)
        with clip.discovering():
            for _ in range(2):
                ddp(by_bucket.drawn(0, rank)).backward()
        layout.clear()
        ddp.zero_grad()
        for unit in clip.accumulate([by_bucket.drawn(1, rank)]):
            ddp(unit).backward()
        averaged = [weight.grad.clone() for weight in parameters if weight.grad is not None]
        found = float(clip.found_non_finite())
        adam.step_unless(clip.found_non_finite())
        results[name] = {
            "averaged": averaged,
            "layout": layout,
            "found": found,
            "moved": [bool((weight != 0.5).any()) for weight in parameters],
        }
    return results


def test_a_frozen_parameter_is_in_no_bucket_counts_in_no_norm_and_stays() -> None:
    results = run_ranks(with_frozen, 2)
    trained = [number for number in range(len(by_bucket.SHAPES)) if number != 3]
    units = [[by_bucket.drawn(1, rank)[number] for number in trained] for rank in (0, 1)]
    for name in CLIP_VARIANTS:
        found = results[0][name]
        assert sorted(number for members in found["layout"].values() for number in members) == trained
        assert found["moved"] == [number in trained for number in range(len(by_bucket.SHAPES))]
        assert found["found"] == 0.0
        layout = {index: [trained.index(number) for number in members] for index, members in found["layout"].items()}
        for ours, theirs in zip(found["averaged"], oracle(name, units, layout, 1.0), strict=True):
            assert np.abs(ours.numpy() - theirs).max() < 2e-6 * max(np.abs(theirs).max(), 1e-12), name


class Unused(Given):
    """Its fourth parameter takes no part in the loss once `leaves_out` is set."""

    leaves_out = False

    def forward(self, gradients: Gradients) -> Tensor:
        taken = [number for number in range(len(gradients)) if not (self.leaves_out and number == 3)]
        return torch.stack([(self.weights[number] * gradients[number]).sum() for number in taken]).sum()


def without_part(rank: int, name: str, ranks: tuple[int, ...], discovered: bool) -> str:
    """The parameter is left out on `ranks`, from the first pass on or once the buckets are known."""
    model = Unused()
    model.leaves_out = not discovered and rank in ranks
    ddp = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True)
    clip = CLIP_VARIANTS[name](ddp, 1.0)
    with clip.discovering():
        for _ in range(2):
            for unit in clip.accumulate([by_bucket.drawn(0, rank)]):
                ddp(unit).backward()
    model.leaves_out = rank in ranks
    for step in (1, 2):
        for unit in clip.accumulate([by_bucket.drawn(step, rank)]):
            ddp(unit).backward()
    return "no error"


@pytest.mark.parametrize("discovered", [False, True], ids=["from the first pass on", "later"])
@pytest.mark.parametrize("ranks", [(0, 1), (1,)], ids=["on all ranks", "on one rank"])
@pytest.mark.parametrize("name", CLIP_VARIANTS)
def test_a_parameter_that_takes_no_part_in_the_loss_is_an_error(
    name: str, ranks: tuple[int, ...], discovered: bool
) -> None:
    with pytest.raises(RankFailedError, match="a parameter that trains took no part in the loss"):
        run_ranks(without_part, 2, name, ranks, discovered, timeout_s=20)


def all_take_part(rank: int) -> list[str]:
    return [without_part(rank, name, (), True) for name in CLIP_VARIANTS]


def test_parameters_that_all_take_part_are_no_error() -> None:
    assert run_ranks(all_take_part, 2) == [["no error"] * len(CLIP_VARIANTS)] * 2
