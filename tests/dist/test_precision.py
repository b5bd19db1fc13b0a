"""Loss scaling and 16 bit on gloo ranks: the fp32 gradients come out, and an overflow anywhere is a step left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.bert.comm.hook import CLIP_VARIANTS
from benchmarks.bert.config import Config
from benchmarks.bert.data.batch import PackedBatch, synthetic_batch
from benchmarks.bert.loss import pretraining_loss
from benchmarks.bert.optim.loss_scale import UNSCALED, LossScale
from benchmarks.bert.trainer import OPTIMIZERS, Trainer, build_trainer
from benchmarks.bert.warm_up import warm_up
from benchmarks.bert.world import World
from tests.support.trainers import SMALL
from tests.support.ranks import run_ranks

NUM_VOCABULARY = 101
SCALE = 2.0**10
MAX_NORM = 0.5  # below the norm of the first gradients, which is about 3
CPU = torch.device("cpu")


def make(rank: int, num_ranks: int, scale: float | None = None, **changed: Any) -> Trainer:
    """A warmed-up trainer; `scale` is a loss scale that even fp32 is given."""
    values = SMALL | {
        "ranks_per_node": num_ranks,
        "dropout": 0.0,
        "init_std": 0.1,
        "batch_size": 4,
        "decay_steps": 100,
        "max_norm": MAX_NORM,
        "learning_rate": 1e-2,
        "loss_scale": SCALE,
    }
    config = Config(**(values | changed))
    world = World(rank, num_ranks, rank, num_ranks, rendezvous=None)
    trainer = build_trainer(config, world, CPU, seed=3, num_vocabulary=NUM_VOCABULARY)
    if scale is not None:
        trainer = replace(trainer, loss_scale=LossScale(scale, config.loss_scale_growth_steps, CPU))
        trainer.gradient._loss_scale = trainer.loss_scale
    warm_up(trainer, config)
    return trainer


def micro_batches(rank: int, count: int) -> list[PackedBatch]:
    return [synthetic_batch(3, 10 + 3 * rank + micro, NUM_VOCABULARY, 2) for micro in range(count)]


def gradients(trainer: Trainer, batches: Sequence[PackedBatch]) -> dict[str, Tensor]:
    """What backward and the comm hook leave for the optimizer."""
    for batch in trainer.gradient.accumulate(batches):
        with trainer.precision():
            loss = pretraining_loss(trainer.ddp(batch), batch)
        trainer.loss_scale.scaled(loss).backward()
    assert trainer.gradient.found_non_finite() == 0
    found = {name: weight.grad.clone() for name, weight in trainer.model.named_parameters() if weight.grad is not None}
    trainer.optimizer.zero_grad()
    return found


def norm_of(found: dict[str, Tensor]) -> float:
    return torch.stack([gradient.double().square().sum() for gradient in found.values()]).sum().sqrt().item()


def differing(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> list[str]:
    assert ours.keys() == theirs.keys()
    return [name for name, tensor in ours.items() if not torch.equal(tensor, theirs[name])]


Case = tuple[str, int]  # clipping, micro-batches
CASES: list[Case] = [(clip, count) for clip in CLIP_VARIANTS for count in (1, 2)]


def scaled_and_not(rank: int, num_ranks: int) -> dict[Case, dict[str, dict[str, Tensor]]]:
    """By case and kind: gradients without a scale, with two of them, and in 16 bit."""
    results = {}
    for clip, count in CASES:
        batches = micro_batches(rank, count)
        results[clip, count] = {
            "plain": gradients(make(rank, num_ranks, clip=clip, gradient_accumulation_steps=count), batches),
            "scaled": gradients(make(rank, num_ranks, SCALE, clip=clip, gradient_accumulation_steps=count), batches),
            "odd scale": gradients(make(rank, num_ranks, 999.0, clip=clip, gradient_accumulation_steps=count), batches),
            "fp16": gradients(
                make(rank, num_ranks, clip=clip, gradient_accumulation_steps=count, precision="fp16"), batches
            ),
        }
    return results


@pytest.fixture(scope="module", params=[1, 2], ids=["1 rank", "2 ranks"])
def of_ranks(request: pytest.FixtureRequest) -> list[dict[Case, dict[str, dict[str, Tensor]]]]:
    return run_ranks(scaled_and_not, request.param, request.param)


Results = list[dict[Case, dict[str, dict[str, Tensor]]]]


def test_a_scale_that_is_a_power_of_two_changes_no_bit_of_the_gradients(of_ranks: Results) -> None:
    for of_rank in of_ranks:
        for case in CASES:
            assert differing(of_rank[case]["scaled"], of_rank[case]["plain"]) == [], case
            assert differing(of_rank[case]["scaled"], of_ranks[0][case]["scaled"]) == [], case


def test_any_other_scale_changes_rounding_only(of_ranks: Results) -> None:
    for case in CASES:
        plain, odd = of_ranks[0][case]["plain"], of_ranks[0][case]["odd scale"]
        assert differing(odd, plain), case
        largest = max(gradient.abs().max() for gradient in plain.values())
        for name, gradient in plain.items():
            assert (odd[name] - gradient).abs().max() < 1e-5 * largest, (case, name)


def test_clipping_binds_in_these_cases(of_ranks: Results) -> None:
    """Else they would not tell a norm of scaled gradients from one of unscaled ones."""
    for case in CASES:
        norm = norm_of(of_ranks[0][case]["plain"])
        assert norm > 2 * MAX_NORM if case[0] == "none" else norm <= MAX_NORM * (1 + 1e-5), case


def small(rank: int) -> dict[str, list[float]]:
    """Norms where clipping would not bind: right, and with a hook that does not know of the scale."""
    results = {}
    for clip in CLIP_VARIANTS:
        norms = []
        for known in (True, False):
            trainer = make(rank, 1, SCALE, clip=clip, max_norm=100.0)
            if not known:
                trainer.gradient._loss_scale = UNSCALED
            norms.append(norm_of(gradients(trainer, micro_batches(rank, 1))))
        results[clip] = norms
    return results


def test_without_unscaling_the_clipped_norm_would_be_the_maximum_or_the_scaled_one() -> None:
    for clip, (right, wrong) in run_ranks(small, 1)[0].items():
        assert 1 < right < 10, clip
        assert wrong > 5 * right, clip


def test_the_gradients_of_fp16_are_those_of_fp32_but_for_its_rounding(of_ranks: Results) -> None:
    for case in CASES:
        plain, fp16 = of_ranks[0][case]["plain"], of_ranks[0][case]["fp16"]
        assert all(gradient.dtype == torch.float32 for gradient in fp16.values())
        difference = norm_of({name: fp16[name] - gradient for name, gradient in plain.items()})
        assert 1e-5 * norm_of(plain) < difference < 1e-2 * norm_of(plain), case


# --- steps that overflow


def state_of(trainer: Trainer) -> dict[str, Tensor]:
    """Weights and the optimizer's state."""
    return {
        name: tensor.detach().clone()
        for name, tensor in trainer.tensors().items()
        if name.startswith(("model/", "optimizer/"))
    }


def with_infinity(trainer: Trainer, batches: Sequence[PackedBatch], step: int) -> None:
    """A step in which one element of one gradient of this rank is infinite."""
    weight = trainer.model.layers[0].ffn_in.weight
    faulty = torch.zeros_like(weight).index_fill(0, torch.tensor(3), torch.inf)
    handle = weight.register_hook(lambda gradient: gradient + faulty)
    trainer.step(step, batches)
    handle.remove()


def overflow(rank: int, clip: str, optimizer: str, count: int, kind: str) -> dict[str, Any]:
    """A good step, one that overflows, two good ones; beside a run without the one that overflows."""
    trainer, undisturbed = (
        make(rank, 2, SCALE, clip=clip, optimizer=optimizer, gradient_accumulation_steps=count) for _ in range(2)
    )
    batches = micro_batches(rank, count)
    trainer.step(1, batches)
    undisturbed.step(1, batches)
    before = state_of(trainer)
    assert isinstance(trainer.loss_scale, LossScale)
    if kind == "infinity" and rank == 1:
        with_infinity(trainer, batches, step=2)
    else:
        if kind == "scale":
            trainer.loss_scale.scale.fill_(2.0**126)
        trainer.step(2, batches)
    after, scale = state_of(trainer), float(trainer.loss_scale.scale)
    trainer.loss_scale.scale.fill_(SCALE)
    for step in (3, 4):
        trainer.step(step, batches)
        undisturbed.step(step, batches)
    return {
        "changed": differing(after, before),
        "scale": scale,
        "skipped": float(trainer.skipped_steps),
        "end": state_of(trainer),
        "of undisturbed": state_of(undisturbed),
        "moved": len(differing(state_of(trainer), before)),
    }


OVERFLOWS = [
    (clip, optimizer, count, kind)
    for clip in CLIP_VARIANTS
    for optimizer, count in (("adam", 1), ("lamb", 2))
    for kind in ("scale", "infinity")
]


def overflows(rank: int) -> list[dict[str, Any]]:
    return [overflow(rank, *case) for case in OVERFLOWS]


def test_an_overflow_on_any_rank_leaves_the_step_out_on_all_halves_the_scale_on_all_and_leaves_no_trace() -> None:
    first, second = run_ranks(overflows, 2)
    for case, *of_both in zip(OVERFLOWS, first, second, strict=True):
        for found in of_both:
            assert found["changed"] == [], case
            assert found["scale"] == (2.0**125 if case[-1] == "scale" else SCALE / 2), case
            assert found["skipped"] == 1, case
            assert found["moved"] > 10, case
            assert differing(found["end"], found["of undisturbed"]) == [], case
        assert differing(of_both[0]["end"], of_both[1]["end"]) == [], case


def good_step_as_overflow(rank: int) -> dict[str, Any]:
    return overflow(rank, "bucket_before", "adam", 1, "none")


def test_a_step_that_does_not_overflow_is_not_left_out() -> None:
    found = run_ranks(good_step_as_overflow, 2)[0]
    assert len(found["changed"]) > 10
    assert (found["scale"], found["skipped"]) == (SCALE, 0)
    assert differing(found["end"], found["of undisturbed"])


# --- training


def losses(rank: int, optimizer: str) -> dict[str, list[float]]:
    """By precision, the loss of each of 12 steps on two micro-batches that stay; fp16 begins with a scale too large."""
    results = {}
    for precision in ("fp32", "bf16", "fp16"):
        trainer = make(
            rank, 2, precision=precision, optimizer=optimizer, gradient_accumulation_steps=2, loss_scale=2.0**17
        )
        batches = micro_batches(rank, 2)
        skipped, found, step = 0.0, [], 0
        while len(found) < 12:
            step += 1
            loss = float(trainer.step(len(found) + 1, batches))
            if float(trainer.skipped_steps) == skipped:
                found.append(loss)
            skipped = float(trainer.skipped_steps)
            assert step < 40, "it goes on overflowing"
        results[precision] = [*found, skipped]
    return results


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_twelve_steps_in_16_bit_reach_about_the_loss_of_fp32(optimizer: str) -> None:
    found = run_ranks(losses, 2, optimizer)[0]
    skipped = {precision: values.pop() for precision, values in found.items()}
    assert skipped["fp32"] == skipped["bf16"] == 0
    start, end = found["fp32"][0], found["fp32"][-1]
    assert end < start - 1
    for precision, tolerance in (("fp16", 0.01), ("bf16", 0.05)):
        assert found[precision] != found["fp32"]
        assert abs(found[precision][-1] - end) < tolerance * (start - end), (precision, found)
