"""Layers left out on two gloo ranks behind DDP and its hook: nobody waits, zeros arrive, weights stay equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks.bert.comm.hook import CLIP_VARIANTS, BucketClip
from benchmarks.bert.loss import pretraining_loss
from benchmarks.bert.model import layer_drop
from benchmarks.bert.model.bert import Bert
from benchmarks.bert.model.layer_drop import keep_layers
from benchmarks.bert.optim.adam import Adam
from benchmarks.bert.optim.groups import decay_groups
from tests.support.clipping import assert_equal_bits
from tests.support.ranks import RankFailedError, run_ranks
from tests.unit.test_model import SHAPE, make_model, make_pack, make_rows

NUM_LAYERS = 4
# The layers kept at each step: some, none of the upper ones, all, the last left out.
STEPS = ((True, False, True, True), (True, False, False, False), (True,) * 4, (True, True, True, False))


def gradient_of(model: Bert, rank: int, step: int) -> dict[str, Tensor]:
    batch = make_pack(make_rows(seed=10 * step + rank))
    model.zero_grad()
    pretraining_loss(model(batch), batch).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def pre_norm_model() -> Bert:
    return make_model(replace(SHAPE, num_layers=NUM_LAYERS, norm="pre"))


def wrapped(model: Bert, clip: str) -> tuple[DistributedDataParallel, BucketClip]:
    """Its buckets found in two passes with all layers."""
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.01, gradient_as_bucket_view=True)
    gradient = CLIP_VARIANTS[clip](ddp, 1e6)
    with gradient.discovering():
        for _ in range(2):
            batch = make_pack(make_rows())
            pretraining_loss(ddp(batch), batch).backward()
    ddp.zero_grad()
    return ddp, gradient


def train(rank: int, clip: str, keep: Callable[[Bert, int, int], None]) -> list[dict[str, Any]]:
    """After each step: gradients, weights, and the mean that they are to be, computed without DDP."""
    model, alone = pre_norm_model(), pre_norm_model()
    ddp, gradient = wrapped(model, clip)
    assert gradient.num_buckets > NUM_LAYERS
    optimizer = Adam(decay_groups(model, 0.01), learning_rate=1e-2, betas=(0.9, 0.999), epsilon=1e-6)
    found = []
    for step in range(len(STEPS)):
        keep(model, rank, step)
        keep_layers(alone, STEPS[step], [1.0, 1.1, 1.2, 1.3])
        alone.load_state_dict(model.state_dict())
        of_ranks = [gradient_of(alone, each, step) for each in range(2)]
        for batch in gradient.accumulate([make_pack(make_rows(seed=10 * step + rank))]):
            pretraining_loss(ddp(batch), batch).backward()
        gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        optimizer.step_unless(gradient.found_non_finite())
        optimizer.zero_grad()
        found.append(
            {
                "gradients": gradients,
                "expected": {name: (of_ranks[0][name] + of_ranks[1][name]) / 2 for name in gradients},
                "weights": [parameter.detach().clone() for parameter in model.parameters()],
            }
        )
    return found


def same_layers(model: Bert, rank: int, step: int) -> None:
    keep_layers(model, STEPS[step], [1.0, 1.1, 1.2, 1.3])


def other_layers_on_rank_1(model: Bert, rank: int, step: int) -> None:
    """The fault that the comparison must see: each rank draws for itself."""
    keep_layers(model, STEPS[(step + rank) % len(STEPS)], [1.0, 1.1, 1.2, 1.3])


def is_in_dropped(name: str, step: int) -> bool:
    return any(name.startswith(f"layers.{layer}.") for layer in range(NUM_LAYERS) if not STEPS[step][layer])


def assert_gradients(results: list[list[dict[str, Any]]]) -> None:
    for step in range(len(STEPS)):
        for result in results:
            for name, gradient in result[step]["gradients"].items():
                expected = result[step]["expected"][name]
                torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-4, msg=f"step {step}, {name}")


@pytest.mark.parametrize("clip", ["bucket_before", "global_before"])
def test_gradients_are_the_mean_of_both_ranks_zeros_for_what_is_left_out_and_weights_stay_equal(clip: str) -> None:
    results = run_ranks(train, 2, clip, same_layers)
    assert_gradients(results)
    for step in range(len(STEPS)):
        assert_equal_bits([result[step]["weights"] for result in results])
        for name, gradient in results[0][step]["gradients"].items():
            if is_in_dropped(name, step):
                assert not gradient.any(), f"step {step}, {name}"
    assert not torch.equal(results[0][0]["weights"][0], results[0][1]["weights"][0])


def test_ranks_that_leave_out_different_layers_are_seen_by_the_comparison() -> None:
    results = run_ranks(train, 2, "bucket_before", other_layers_on_rank_1)
    with pytest.raises(AssertionError, match="step 0"):
        assert_gradients(results)


def two_passes(rank: int, has_zeros: bool) -> int:
    """With a layer left out; by how much the buckets that the second reduced are not all."""
    if not has_zeros:
        layer_drop._left_out = lambda layer, x_QH, *_: x_QH
    model = pre_norm_model()
    ddp, gradient = wrapped(model, "bucket_before")
    same_layers(model, rank, 0)
    for batch in (make_pack(make_rows(seed=seed)) for seed in range(2)):
        for micro_batch in gradient.accumulate([batch]):
            pretraining_loss(ddp(micro_batch), micro_batch).backward()
    return len(gradient._reduced) - gradient.num_buckets


def test_without_gradients_of_zero_buckets_are_not_filled_which_is_an_error() -> None:
    assert run_ranks(two_passes, 2, True) == [0, 0]
    with pytest.raises(RankFailedError, match="took no part in the loss, so its bucket was not filled"):
        run_ranks(two_passes, 2, False)
