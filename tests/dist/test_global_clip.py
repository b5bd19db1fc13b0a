"""The clip variants side by side on gloo ranks, each against a float64 oracle written from its formula."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.bert.comm.hook import CLIP_VARIANTS, BucketClip, GlobalClipAfter, GlobalClipBefore
from benchmarks.bert.config import CLIPS
from benchmarks.bert.data.batch import synthetic_batch
from benchmarks.bert.loss import pretraining_loss
from benchmarks.bert.optim.groups import decay_groups
from benchmarks.bert.optim.lamb import Lamb
from benchmarks.bert.warm_up import warm_up
from tests.support import clipping
from tests.support.clipping import (
    BUCKET_MB,
    ONE_BUCKET_MB,
    Given,
    Gradients,
    Recorded,
    assert_equal,
    assert_equal_bits,
    backward,
    drawn,
    take_steps,
    unreduced,
)
from tests.support.ranks import run_ranks
from tests.support.trainers import NUM_VOCABULARY, make_trainer

MAX_NORM = 1.0
HUGE_NORM = 1e30
STEPS = 6
KINDS: dict[str, type[BucketClip]] = CLIP_VARIANTS | {"bucket_before": Recorded}  # whose oracle needs the layout
CLIPPING = ("bucket_before", "global_before", "global_after")


def unit(step: int, number: int) -> Gradients:
    """Gradients of one rank's one micro-batch: within MAX_NORM in some, and alike for all units in every third step."""
    scale = 1e-4 if (step + number) % 2 and step % 3 else 1.0
    return [gradient * scale for gradient in drawn(step, number if step % 3 else 0)]


class UnreducedBefore(GlobalClipBefore):
    """The fault that the comparisons of this file must see: every rank keeps its own gradient."""

    def _after_backward(self) -> None:
        group, self._group = self._group, dist.new_subgroups(1)[0]
        super()._after_backward()
        self._group = group


class UnreducedAfter(GlobalClipAfter):
    reduce = unreduced


def wrapped(kind: type[BucketClip], max_norm: float, bucket_mb: float) -> tuple[DistributedDataParallel, BucketClip]:
    """Given, wrapped as the trainer wraps Bert, once the bucket count is known."""
    ddp = DistributedDataParallel(Given(), bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)
    clip = kind(ddp, max_norm)
    with clip.discovering():
        for _ in range(2):
            backward(ddp, clip, [unit(0, 0)])
    if isinstance(clip, Recorded):
        clip.layout.clear()
    return ddp, clip


def train_given(
    rank: int, kinds: dict[str, type[BucketClip]], num_micro_batches: int, max_norm: float, bucket_mb: float
) -> dict[str, dict[str, Any]]:
    """A few steps of LAMB with each variant; its gradients and weights after each."""
    results = {}
    for name, kind in kinds.items():
        ddp, clip = wrapped(kind, max_norm, bucket_mb)
        lamb = Lamb(decay_groups(ddp.module, 0.01), learning_rate=0.1, betas=(0.9, 0.99), epsilon=1e-6)
        steps = [
            [unit(step, rank * num_micro_batches + micro) for micro in range(num_micro_batches)]
            for step in range(1, STEPS + 1)
        ]
        results[name] = take_steps(ddp, clip, lamb, steps) | {
            "num_buckets": clip.num_buckets,
            "layout": clip.layout if isinstance(clip, Recorded) else {},
        }
    return results


@cache
def trained(
    num_ranks: int, num_micro_batches: int, max_norm: float = MAX_NORM, bucket_mb: float = BUCKET_MB
) -> list[dict[str, dict[str, Any]]]:
    """By rank and variant; each run is made once for all tests."""
    return run_ranks(train_given, num_ranks, KINDS, num_micro_batches, max_norm, bucket_mb)


def whole_norm(gradients: Sequence[Any]) -> float:
    return math.sqrt(sum(float((np.asarray(gradient, dtype=np.float64) ** 2).sum()) for gradient in gradients))


def averaged(units: Sequence[Sequence[Any]]) -> list[np.ndarray]:
    return [np.mean([np.asarray(g, dtype=np.float64) for g in alike], axis=0) for alike in zip(*units, strict=True)]


def clipped(gradients: Sequence[Any], max_norm: float) -> list[np.ndarray]:
    norm = whole_norm(gradients)
    return [np.asarray(g, dtype=np.float64) * (min(1.0, max_norm / norm) if norm > 0 else 1.0) for g in gradients]


def oracle(name: str, units: Sequence[Gradients], layout: dict[int, list[int]], max_norm: float) -> list[np.ndarray]:
    """What the variant `name` leaves of all ranks' micro-batches, in float64."""
    if name == "none":
        return averaged(units)
    if name == "global_after":
        return clipped(averaged(units), max_norm)
    if name == "global_before":
        return averaged([clipped(one, max_norm) for one in units])
    return clipping.oracle(units, layout, max_norm)


def assert_is_oracle(
    results: Sequence[dict[str, dict[str, Any]]], name: str, num_micro_batches: int, *, of: str = "", max_norm: float
) -> None:
    """Every rank's gradients of every step are those of the variant `of`, by default of `name` itself."""
    num_units = len(results) * num_micro_batches
    for rank, of_rank in enumerate(results):
        assert len(of_rank[name]["gradients"]) == STEPS
        for step, gradients in enumerate(of_rank[name]["gradients"], start=1):
            units = [unit(step, number) for number in range(num_units)]
            expected = oracle(of or name, units, of_rank[name]["layout"], max_norm)
            assert_equal(gradients, expected, f"rank {rank}, step {step}")


def test_the_configurations_variants_are_those_of_the_hook() -> None:
    assert set(CLIP_VARIANTS) == set(CLIPS) == {"none", *CLIPPING}


@pytest.mark.parametrize("name", CLIP_VARIANTS)
@pytest.mark.parametrize(("num_ranks", "num_micro_batches"), [(1, 1), (2, 1), (2, 3), (1, 6)])
def test_each_variant_is_its_formula_at_every_step_and_ranks_stay_bit_equal(
    num_ranks: int, num_micro_batches: int, name: str
) -> None:
    results = trained(num_ranks, num_micro_batches)
    assert results[0][name]["num_buckets"] > 2
    assert_is_oracle(results, name, num_micro_batches, max_norm=MAX_NORM)
    for step in range(STEPS):
        assert_equal_bits([of_rank[name]["gradients"][step] for of_rank in results])
        assert_equal_bits([of_rank[name]["weights"][step] for of_rank in results])
    assert all(of_rank[name]["found"] == [0.0] * STEPS for of_rank in results)


def test_units_above_and_below_the_maximum_are_among_the_drawn() -> None:
    norms = [whole_norm(unit(step, number)) for step in range(1, STEPS + 1) for number in (0, 1)]
    assert min(norms) < 0.5 * MAX_NORM
    assert max(norms) > 10 * MAX_NORM


@pytest.mark.parametrize("num_micro_batches", [1, 3])
def test_each_variants_formula_refuses_every_other_variant_and_another_maximum(num_micro_batches: int) -> None:
    results = trained(2, num_micro_batches)
    for name in CLIP_VARIANTS:
        for other in {"none", "global_before", "global_after"} - {name}:
            with pytest.raises(AssertionError, match="relative error"):
                assert_is_oracle(results, name, num_micro_batches, of=other, max_norm=MAX_NORM)
    for name in CLIPPING:
        with pytest.raises(AssertionError, match="relative error"):
            assert_is_oracle(results, name, num_micro_batches, max_norm=1.01 * MAX_NORM)


def test_a_variant_that_does_not_reduce_is_seen_by_these_comparisons() -> None:
    faults: dict[str, type[BucketClip]] = {"global_before": UnreducedBefore, "global_after": UnreducedAfter}
    results = run_ranks(train_given, 2, faults, 1, MAX_NORM, BUCKET_MB)
    for name in faults:
        with pytest.raises(AssertionError, match="relative error"):
            assert_is_oracle(results, name, 1, max_norm=MAX_NORM)
        with pytest.raises(AssertionError, match="differs"):
            assert_equal_bits([of_rank[name]["weights"][0] for of_rank in results])


@pytest.mark.parametrize("num_micro_batches", [1, 3])
def test_the_averaged_norm_never_exceeds_max_norm_and_reaches_it(num_micro_batches: int) -> None:
    for of_rank in trained(2, num_micro_batches):
        norms = {name: [whole_norm(g) for g in of_rank[name]["gradients"]] for name in CLIP_VARIANTS}
        for name in CLIPPING:
            assert max(norms[name]) <= MAX_NORM * (1 + 1e-5), name
            assert max(norms[name]) > MAX_NORM * 0.75, name
        assert max(norms["none"]) > 10 * MAX_NORM


def test_micro_batches_are_as_many_ranks() -> None:
    wide, deep = trained(2, 3)[0], trained(1, 6)[0]
    for name in CLIP_VARIANTS:
        for step in range(STEPS):
            for a, b in zip(wide[name]["gradients"][step], deep[name]["gradients"][step], strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def of_torch(step: int) -> Gradients:
    """One unit's gradients after torch's own clipping; it divides by the norm + 1e-6, for a norm of 1 that shows."""
    model = Given()
    model(unit(step, 0)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    return [weight.grad for weight in model.parameters() if weight.grad is not None]


def test_one_unit_on_one_rank_is_clip_grad_norm_before_and_after_alike() -> None:
    results = trained(1, 1)[0]
    for step in range(STEPS):
        before, after = (results[name]["gradients"][step] for name in ("global_before", "global_after"))
        assert_equal_bits([before, after])
        for ours, theirs in zip(before, of_torch(step + 1), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=0.0)


def test_one_bucket_on_one_rank_is_the_same_by_bucket() -> None:
    results = trained(1, 1, MAX_NORM, ONE_BUCKET_MB)[0]
    for step in range(STEPS):
        by_variant = [results[name]["gradients"][step] for name in CLIPPING]
        assert results["bucket_before"]["num_buckets"] == 1
        assert_equal_bits(by_variant)
        for ours, theirs in zip(by_variant[0], of_torch(step + 1), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=0.0)


def test_several_buckets_on_one_rank_are_not_the_same_by_bucket() -> None:
    results = trained(1, 1)[0]
    with pytest.raises(AssertionError, match="differs"):
        assert_equal_bits([results[name]["gradients"][2] for name in CLIPPING])


@pytest.mark.parametrize(("num_ranks", "num_micro_batches"), [(2, 1), (2, 3)])
def test_below_a_huge_maximum_all_variants_are_equal_bit_for_bit(num_ranks: int, num_micro_batches: int) -> None:
    """Every factor is 1, and all divide and add in the same order."""
    for of_rank in trained(num_ranks, num_micro_batches, HUGE_NORM):
        for step in range(STEPS):
            assert_equal_bits([of_rank[name]["gradients"][step] for name in CLIP_VARIANTS])
            assert_equal_bits([of_rank[name]["weights"][step] for name in CLIP_VARIANTS])


def large_and_small(rank: int) -> dict[str, Tensor]:
    results = {}
    for name, kind in CLIP_VARIANTS.items():
        ddp = DistributedDataParallel(Given([(2,)]), gradient_as_bucket_view=True)
        clip = kind(ddp, 1.0)
        local = [torch.tensor([10.0, 0.0]), torch.tensor([0.0, 0.1])][rank]
        with clip.discovering():
            for _ in range(2):
                backward(ddp, clip, [[local]])
        results[name] = backward(ddp, clip, [[local]])[0]
    return results


def test_norms_of_10_and_a_tenth_show_what_each_variant_does() -> None:
    root = math.sqrt(5.0**2 + 0.05**2)
    for results in run_ranks(large_and_small, 2):
        torch.testing.assert_close(results["none"], torch.tensor([5.0, 0.05]))
        torch.testing.assert_close(results["bucket_before"], torch.tensor([0.5, 0.05]))
        torch.testing.assert_close(results["global_before"], torch.tensor([0.5, 0.05]))
        torch.testing.assert_close(results["global_after"], torch.tensor([5.0 / root, 0.05 / root]))


FAULTS = {"nan": math.nan, "-inf": -math.inf, "a norm that overflows": 3e38}
FAULTY_STEP = 2


def train_with_fault(
    rank: int, name: str, num_micro_batches: int, value: float | None, faulty_micro: int = 0
) -> dict[str, Any]:
    """A clean step, one that is faulty on rank 1 alone, two clean ones; without `value` the clean ones alone."""
    ddp, clip = wrapped(CLIP_VARIANTS[name], MAX_NORM, BUCKET_MB)
    lamb = Lamb(decay_groups(ddp.module, 0.01), learning_rate=0.1, betas=(0.9, 0.99), epsilon=1e-6)
    steps = {
        step: [unit(step, rank * num_micro_batches + micro) for micro in range(num_micro_batches)]
        for step in (1, 2, 3, 4)
    }
    if value is None:
        del steps[FAULTY_STEP]
    elif rank == 1:
        steps[FAULTY_STEP][faulty_micro][0][:] = value
    return take_steps(ddp, clip, lamb, steps.values())


def train_with_each_fault(rank: int, num_micro_batches: int) -> dict[str, dict[str, dict[str, Any]]]:
    """By variant and fault; the run without one is called "clean"."""
    results = {}
    for name in CLIP_VARIANTS:
        results[name] = {"clean": train_with_fault(rank, name, num_micro_batches, None)}
        for micro in {0, num_micro_batches - 1}:
            for fault, value in FAULTS.items():
                case = f"{fault} in micro-batch {micro}"
                results[name][case] = train_with_fault(rank, name, num_micro_batches, value, micro)
    return results


@pytest.mark.parametrize("num_micro_batches", [1, 3])
def test_a_gradient_that_is_not_finite_on_one_rank_skips_the_step_on_all_and_leaves_no_trace(
    num_micro_batches: int,
) -> None:
    results = run_ranks(train_with_each_fault, 2, num_micro_batches)
    for name in CLIP_VARIANTS:
        cases = set(results[0][name]) - {"clean"}
        assert len(cases) == len(FAULTS) * min(2, num_micro_batches)
        for case in cases:
            for of_rank in results:
                faulty, clean = of_rank[name][case], of_rank[name]["clean"]
                assert faulty["found"] == [0.0, 1.0, 0.0, 0.0], f"{name}, {case}"
                assert clean["found"] == [0.0, 0.0, 0.0], name
                assert_equal_bits([faulty["weights"][0], faulty["weights"][1]])
                assert_equal_bits([faulty["weights"][2], clean["weights"][1]])
                assert_equal_bits([faulty["weights"][3], clean["weights"][2]])
                assert not torch.equal(faulty["weights"][1][0], faulty["weights"][2][0]), f"{name}, {case}"
            assert_equal_bits([of_rank[name][case]["weights"][3] for of_rank in results])


def zero_on(rank: int) -> dict[tuple[str, int], tuple[Gradients, float]]:
    """By variant and number of ranks whose gradient is zero: the averaged gradient and whether it is not finite."""
    results = {}
    for name, kind in CLIP_VARIANTS.items():
        ddp, clip = wrapped(kind, MAX_NORM, BUCKET_MB)
        for num_zero in (1, 2):
            local = [gradient * (rank >= num_zero) for gradient in drawn(1, rank)]
            results[name, num_zero] = backward(ddp, clip, [local]), float(clip.found_non_finite())
    return results


def test_a_zero_gradient_is_finite_and_stays_zero_where_all_have_it() -> None:
    for results in run_ranks(zero_on, 2):
        for (name, num_zero), (gradients, found) in results.items():
            assert found == 0.0, name
            assert all(bool(gradient.any()) == (num_zero == 1) for gradient in gradients), name


def undiscovered(rank: int) -> dict[str, str]:
    errors = {}
    for name, kind in CLIP_VARIANTS.items():
        ddp = DistributedDataParallel(Given(), bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True)
        try:
            backward(ddp, kind(ddp, MAX_NORM), [unit(1, rank)])
        except RuntimeError as error:
            errors[name] = str(error)
    return errors


def test_a_pass_with_an_undiscovered_bucket_count_raises_in_each_variant() -> None:
    errors = run_ranks(undiscovered, 1)[0]
    assert set(errors) == set(CLIP_VARIANTS)
    assert all("run two passes inside BucketClip.discovering()" in error for error in errors.values())


def train_bert(rank: int) -> dict[str, dict[str, Any]]:
    """Three steps of two micro-batches with each variant and optimizer, as the loop takes them."""
    results = {}
    for name, optimizer in [*((name, "lamb") for name in CLIPS), ("global_after", "adam")]:
        changed = {"optimizer": optimizer, "clip": name, "max_norm": 0.1, "learning_rate": 1e-2, "max_steps": 10}
        trainer, config = make_trainer(rank, 2, **changed)
        warm_up(trainer, config)
        weights = [[weight.detach().clone() for weight in trainer.ddp.parameters()]]
        norms, found = [], 0.0
        for step in (1, 2, 3):
            batches = [synthetic_batch(3, 8 + 2 * rank + step + micro, NUM_VOCABULARY, 2) for micro in range(2)]
            for batch in trainer.gradient.accumulate(batches):
                with trainer.precision():
                    loss = pretraining_loss(trainer.ddp(batch), batch)
                loss.backward()
            non_finite = trainer.gradient.found_non_finite()
            norms.append(whole_norm([w.grad for w in trainer.ddp.parameters() if w.grad is not None]))
            trainer.optimizer.set_learning_rate(trainer.learning_rate.at(step))
            trainer.optimizer.step_unless(non_finite)
            trainer.optimizer.zero_grad()
            found += float(non_finite)
            weights.append([weight.detach().clone() for weight in trainer.ddp.parameters()])
        results[f"{name}, {optimizer}"] = {
            "weights": weights,
            "norms": norms,
            "found": found,
            "num_buckets": trainer.gradient.num_buckets,
            "optimizer": type(trainer.optimizer).__name__,
        }
    return results


def test_the_trainers_bert_is_clipped_and_bit_equal_after_each_step_with_each_variant() -> None:
    results = run_ranks(train_bert, 2)
    assert len(results[0]) == 5
    for case, first in results[0].items():
        of_ranks = [of_rank[case] for of_rank in results]
        assert first["optimizer"].lower() == case.split(", ")[1]
        assert of_ranks[0]["num_buckets"] == of_ranks[1]["num_buckets"] > 2, case
        for step in range(4):
            assert_equal_bits([of_rank["weights"][step] for of_rank in of_ranks])
        assert all(not torch.equal(a, b) for a, b in zip(first["weights"][0], first["weights"][3], strict=True)), case
        assert [of_rank["found"] for of_rank in of_ranks] == [0.0, 0.0], case
        is_clipped = max(first["norms"]) <= 0.1 * (1 + 1e-5)
        assert is_clipped == (not case.startswith("none")), case
    ends = [first["weights"][3] for first in results[0].values()]
    for number, end in enumerate(ends):
        for other in ends[:number]:
            assert not torch.equal(end[0], other[0])
