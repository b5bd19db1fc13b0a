"""Bucket-wise clipping on gloo ranks against a float64 oracle written from its formula."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.bert.data.batch import synthetic_batch
from benchmarks.bert.loss import pretraining_loss
from benchmarks.bert.optim.adam import Adam
from benchmarks.bert.optim.groups import decay_groups
from benchmarks.bert.warm_up import warm_up
from tests.support.clipping import (
    BUCKET_MB,
    ONE_BUCKET_MB,
    SHAPES,
    Given,
    Gradients,
    Recorded,
    assert_equal,
    assert_equal_bits,
    backward,
    drawn,
    oracle,
    take_steps,
    unreduced,
)
from tests.support.ranks import RankFailedError, run_ranks
from tests.support.trainers import NUM_VOCABULARY, make_trainer

CLEAN_STEPS = 4


class Unreduced(Recorded):
    reduce = unreduced


def wrapped(
    max_norm: float, *, bucket_mb: float = BUCKET_MB, kind: type[Recorded] = Recorded, model: nn.Module | None = None
) -> tuple[DistributedDataParallel, Recorded]:
    ddp = DistributedDataParallel(model or Given(), bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)
    return ddp, kind(ddp, max_norm)


def discover(ddp: DistributedDataParallel, clip: Recorded) -> None:
    with clip.discovering():
        for _ in range(2):
            ddp(drawn(0, 0)).backward()
    clip.layout.clear()
    ddp.zero_grad()


def assert_is_oracle(results: Sequence[dict[str, Any]], max_norm: float, num_micro_batches: int = 1) -> None:
    """Every rank's gradients of every step are the oracle's."""
    num_units = len(results) * num_micro_batches
    for rank, result in enumerate(results):
        for step, gradients in enumerate(result["gradients"], start=1):
            expected = oracle([drawn(step, unit) for unit in range(num_units)], result["layout"], max_norm)
            assert_equal(gradients, expected, f"rank {rank}, step {step}")


def train_given(rank: int, max_norm: float, num_micro_batches: int, kind: type[Recorded] = Recorded) -> dict[str, Any]:
    """A few steps of Adam; gradients and weights after each, the bucket layout and count."""
    ddp, clip = wrapped(max_norm, kind=kind)
    discover(ddp, clip)
    optimizer = Adam(decay_groups(ddp.module, 0.01), learning_rate=0.1, betas=(0.9, 0.99), epsilon=1e-6)
    steps = [
        [drawn(step, rank * num_micro_batches + micro) for micro in range(num_micro_batches)]
        for step in range(1, CLEAN_STEPS + 1)
    ]
    taken = take_steps(ddp, clip, optimizer, steps)
    return taken | {"layout": clip.layout, "num_buckets": clip.num_buckets}


@pytest.mark.parametrize("num_micro_batches", [1, 3])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_the_result_is_the_formulas_at_every_step_and_weights_stay_bit_equal(
    num_ranks: int, num_micro_batches: int
) -> None:
    results = run_ranks(train_given, num_ranks, 1.0, num_micro_batches)
    assert_is_oracle(results, 1.0, num_micro_batches)
    for step in range(CLEAN_STEPS):
        assert_equal_bits([result["weights"][step] for result in results])
    assert all(result["found"] == [0.0] * CLEAN_STEPS for result in results)


def test_the_bucket_count_is_above_one_equal_on_ranks_and_that_of_the_rebuilt_buckets() -> None:
    results = run_ranks(train_given, 4, 1.0, 1)
    assert len({result["num_buckets"] for result in results}) == 1
    assert results[0]["num_buckets"] > 2
    assert all(len(result["layout"]) == result["num_buckets"] for result in results)
    assert all(result["layout"] == results[0]["layout"] for result in results)


def test_a_hook_that_does_not_reduce_is_seen_by_these_comparisons() -> None:
    results = run_ranks(train_given, 2, 1.0, 1, Unreduced)
    with pytest.raises(AssertionError, match="relative error"):
        assert_is_oracle(results, 1.0)
    with pytest.raises(AssertionError, match="differs"):
        assert_equal_bits([result["weights"][0] for result in results])


def test_the_wrong_threshold_is_seen_by_the_comparison_with_the_oracle() -> None:
    results = run_ranks(train_given, 2, 1.0, 1)
    with pytest.raises(AssertionError, match="relative error"):
        assert_is_oracle(results, 1.01)


def test_micro_batches_on_two_ranks_are_as_many_ranks_of_one() -> None:
    wide = run_ranks(train_given, 4, 1.0, 1)
    deep = run_ranks(train_given, 2, 1.0, 2)
    for step in range(CLEAN_STEPS):
        for a, b in zip(wide[0]["gradients"][step], deep[0]["gradients"][step], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def clipped_norms(rank: int, max_norm: float) -> list[float]:
    ddp, clip = wrapped(max_norm)
    discover(ddp, clip)
    norms = []
    for step in range(1, 40):
        scale = 10.0 ** (step % 7 - 3)
        # Every other step all ranks agree on the direction: nothing cancels in the mean.
        unit = [gradient * scale for gradient in drawn(step, rank if step % 2 else 0)]
        averaged = backward(ddp, clip, [unit])
        norms.append(math.sqrt(sum(float((g.double() ** 2).sum()) for g in averaged)))
    return norms


@pytest.mark.parametrize("max_norm", [1.0, 0.01])
def test_the_averaged_norm_never_exceeds_max_norm_and_reaches_it(max_norm: float) -> None:
    for norms in run_ranks(clipped_norms, 2, max_norm):
        assert max(norms) <= max_norm * (1 + 1e-5)
        assert max(norms) > max_norm * 0.9


def without_and_with_hook(rank: int) -> tuple[list[Gradients], list[Gradients]]:
    plain = DistributedDataParallel(Given(), bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True)
    ddp, clip = wrapped(math.inf)
    discover(ddp, clip)
    ours, theirs = [], []
    for step in range(1, CLEAN_STEPS + 1):
        ours.append(backward(ddp, clip, [drawn(step, rank)]))
        plain.zero_grad()
        plain(drawn(step, rank)).backward()
        theirs.append([weight.grad.clone() for weight in plain.module.parameters()])
    return ours, theirs


def test_an_infinite_norm_on_two_ranks_is_ddp_without_a_hook_bit_for_bit() -> None:
    for ours, theirs in run_ranks(without_and_with_hook, 2):
        for step in range(CLEAN_STEPS):
            assert_equal_bits([ours[step], theirs[step]])


def test_an_infinite_norm_on_three_ranks_is_ddp_without_a_hook_to_rounding() -> None:
    for ours, theirs in run_ranks(without_and_with_hook, 3):
        for step in range(CLEAN_STEPS):
            for a, b in zip(ours[step], theirs[step], strict=True):
                assert float((a - b).abs().max()) <= 1e-6 * float(b.abs().max())


def beside_torch(rank: int) -> list[tuple[Gradients, Gradients]]:
    ddp, clip = wrapped(1.0, bucket_mb=ONE_BUCKET_MB)
    discover(ddp, clip)
    assert clip.num_buckets == 1
    pairs = []
    for step in range(1, CLEAN_STEPS + 1):
        for scale in (1e-4, 1.0, 100.0):
            unit = [gradient * scale for gradient in drawn(step, 0)]
            model = Given()
            model(unit).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            pairs.append((backward(ddp, clip, [unit]), [weight.grad for weight in model.parameters()]))
    return pairs


def test_one_bucket_on_one_rank_is_clip_grad_norm() -> None:
    # torch divides by norm + 1e-6: for norms near 1 that is a relative difference of up to 1e-6.
    for ours, theirs in run_ranks(beside_torch, 1)[0]:
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-12)


def large_and_small(rank: int) -> Tensor:
    ddp, clip = wrapped(1.0, bucket_mb=ONE_BUCKET_MB, model=Given([(4,)]))
    local = [torch.tensor([10.0, 0.0, 0.0, 0.0]), torch.tensor([0.0, 0.1, 0.0, 0.0])][rank]
    with clip.discovering():
        for _ in range(2):
            ddp([local]).backward()
    return backward(ddp, clip, [[local]])[0]


def test_norms_of_10_and_a_tenth_are_clipped_before_they_are_averaged() -> None:
    for averaged in run_ranks(large_and_small, 2):
        # Clipping after the mean would give (5, 0.05) / 5.00025 = (0.99995, 0.01).
        torch.testing.assert_close(averaged, torch.tensor([0.5, 0.05, 0.0, 0.0]))


FAULTS = {
    f"{name} in parameter{'s' * (len(places) > 1)} {places} of rank {rank}": (value, places, rank)
    for name, value in (("nan", math.nan), ("inf", math.inf), ("-inf", -math.inf))
    for places in (((0, 0),), ((5, 10),), ((0, 3), (5, 0)))  # (parameter, index): one bucket or two
    for rank in (0, 1)
} | {
    "a finite gradient whose norm overflows": (3e38, ((2, 0), (2, 1)), 1),
    "all of a bucket infinite on both ranks, in opposite directions": (math.inf, ((1, 4),), -1),
}


def poisoned(step: int, rank: int, value: float, places: tuple[tuple[int, int], ...], on: int) -> Gradients:
    unit = drawn(step, rank)
    for number, index in places:
        if on in (rank, -1):
            unit[number].view(-1)[index] = value if on == rank or rank == 0 else -value
    return unit


def train_with_fault(
    rank: int, fault: tuple[float, tuple[tuple[int, int], ...], int], num_micro_batches: int
) -> dict[str, Any]:
    """Two clean steps, the faulty one, two clean ones; and the same without the faulty one."""
    value, places, on = fault
    ddp, clip = wrapped(1.0)
    discover(ddp, clip)
    control_ddp, control_clip = wrapped(1.0)
    discover(control_ddp, control_clip)

    def adam(of: DistributedDataParallel) -> Adam:
        return Adam(decay_groups(of.module, 0.01), learning_rate=0.1, betas=(0.9, 0.99), epsilon=1e-6)

    optimizer, control_optimizer = adam(ddp), adam(control_ddp)
    found, weights = [], []
    for step in range(1, 6):
        # The fault is in the first micro-batch, which is kept before it is reduced.
        units = [drawn(step, 10 + rank + micro) for micro in range(1, num_micro_batches)]
        first = poisoned(step, rank, value, places, on) if step == 3 else drawn(step, rank)
        backward(ddp, clip, [first, *units])
        found.append(float(clip.found_non_finite()))
        optimizer.step_unless(clip.found_non_finite())
        weights.append([weight.detach().clone() for weight in ddp.module.parameters()])
        if step != 3:
            backward(control_ddp, control_clip, [first, *units])
            control_optimizer.step_unless(control_clip.found_non_finite())
    control = [weight.detach().clone() for weight in control_ddp.module.parameters()]
    return {"found": found, "weights": weights, "control": control}


def train_with_each_fault(rank: int, num_micro_batches: int) -> dict[str, dict[str, Any]]:
    return {name: train_with_fault(rank, fault, num_micro_batches) for name, fault in FAULTS.items()}


@pytest.mark.parametrize("num_micro_batches", [1, 2])
def test_a_gradient_that_is_not_finite_on_one_rank_skips_the_step_on_all_and_leaves_no_trace(
    num_micro_batches: int,
) -> None:
    results = run_ranks(train_with_each_fault, 2, num_micro_batches)
    for name in FAULTS:
        of_ranks = [result[name] for result in results]
        for result in of_ranks:
            assert result["found"] == [0.0, 0.0, 1.0, 0.0, 0.0], name
            assert_equal_bits([result["weights"][1], result["weights"][2]])
            assert_equal_bits([result["weights"][4], result["control"]])
            assert not torch.equal(result["weights"][2][0], result["weights"][3][0]), name
        for step in range(5):
            assert_equal_bits([result["weights"][step] for result in of_ranks])


def zero_on(rank: int, zero_ranks: tuple[int, ...]) -> Gradients:
    ddp, clip = wrapped(1.0)
    discover(ddp, clip)
    unit = [torch.zeros(shape) for shape in SHAPES] if rank in zero_ranks else drawn(1, rank)
    return backward(ddp, clip, [unit])


def test_a_zero_gradient_stays_zero() -> None:
    for averaged in run_ranks(zero_on, 2, (0, 1)):
        assert all(not gradient.any() for gradient in averaged)


def test_a_zero_gradient_on_one_rank_leaves_half_of_the_others() -> None:
    for averaged in run_ranks(zero_on, 2, (0,)):
        assert all(gradient.isfinite().all() and gradient.any() for gradient in averaged)


def without_discovering(rank: int) -> None:
    ddp, clip = wrapped(1.0)
    backward(ddp, clip, [drawn(1, rank)])


def with_one_discovering_pass(rank: int) -> None:
    ddp, clip = wrapped(1.0)
    with clip.discovering():
        ddp(drawn(0, 0)).backward()
    backward(ddp, clip, [drawn(1, rank)])


@pytest.mark.parametrize("careless", [without_discovering, with_one_discovering_pass])
def test_a_pass_with_an_undiscovered_bucket_count_raises(careless: Any) -> None:
    with pytest.raises(RankFailedError, match=r"gradient buckets.*discovering\(\)"):
        run_ranks(careless, 2)


def train_bert(rank: int) -> dict[str, Any]:
    trainer, config = make_trainer(rank, 2, num_layers=2, learning_rate=1e-2, max_steps=10)
    warm_up(trainer, config)
    initial = [weight.detach().clone() for weight in trainer.ddp.parameters()]
    weights = []
    for step in (1, 2, 3):
        batch = synthetic_batch(3, 8 + rank + step, NUM_VOCABULARY, 2)
        for micro_batch in trainer.gradient.accumulate([batch]):
            pretraining_loss(trainer.ddp(micro_batch), micro_batch).backward()
        trainer.optimizer.set_learning_rate(trainer.learning_rate.at(step))
        trainer.optimizer.step_unless(trainer.gradient.found_non_finite())
        trainer.optimizer.zero_grad()
        weights.append([weight.detach().clone() for weight in trainer.ddp.parameters()])
    return {"initial": initial, "weights": weights, "num_buckets": trainer.gradient.num_buckets}


def test_the_trainers_bert_has_several_buckets_and_bit_equal_weights_after_each_step() -> None:
    results = run_ranks(train_bert, 2)
    assert results[0]["num_buckets"] == results[1]["num_buckets"] > 3
    assert_equal_bits([result["initial"] for result in results])
    for step in range(3):
        assert_equal_bits([result["weights"][step] for result in results])
    assert not torch.equal(results[0]["initial"][0], results[0]["weights"][2][0])
