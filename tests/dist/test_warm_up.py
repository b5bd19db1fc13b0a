"""The warm-up leaves a trainer bit for bit as it was built, with nothing left to be made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.bert import warm_up as module
from benchmarks.bert.config import Config
from benchmarks.bert.trainer import Trainer
from benchmarks.bert.warm_up import warm_up
from tests.support.ranks import run_ranks
from tests.support.trainers import CASES, Case, make_case, micro_batches

NUM_RANKS = 2
START_SCALE = 512.0


def make(rank: int, case: Case, **changed: Any) -> tuple[Trainer, Config]:
    """Its loss scale would grow so soon that a step of the warm-up that was not put back would show."""
    values: dict[str, Any] = {"loss_scale": START_SCALE, "loss_scale_growth_steps": 2}
    return make_case(rank, NUM_RANKS, case, **(values | changed))


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def leftovers(trainer: Trainer, before: dict[str, Tensor], generator: Tensor) -> list[str]:
    """What is not as a warm-up must leave it."""
    found = []
    after, parameters = trainer.tensors(), dict(trainer.model.named_parameters())
    for name, tensor in before.items():
        if not torch.equal(after[name], tensor):
            found.append(f"{name} changed")
    for name, parameter in parameters.items():
        state = trainer.optimizer.state[parameter]
        if len(state) != 3 or sum(each.shape == parameter.shape for each in state.values()) < 2:
            found.append(f"{name} has no moments")
        found += [f"{key} of {name} is not 0" for key, value in state.items() if value.any()]
        if parameter.grad is not None and parameter.grad.any():
            found.append(f"{name} has a gradient")
    if trainer.skipped_steps != 0:
        found.append("skipped steps")
    if trainer.loss_scale.scale not in (1.0, START_SCALE):
        found.append("loss scale")
    if not torch.equal(torch.get_rng_state(), generator):
        found.append("the generator was used")
    for kept in ("_of_rank", "_of_earlier_ranks", "_filled"):
        if getattr(trainer.gradient, kept, None):
            found.append(f"{kept} of the hook")
    if not trainer.model.training:
        found.append("evaluation mode")
    if trainer.gradient.num_buckets < 2:
        found.append("bucket count")
    return found


def warmed(rank: int, case: Case, times: int, **changed: Any) -> tuple[Trainer, list[str]]:
    trainer, config = make(rank, case, **changed)
    before, generator = copied(trainer.tensors()), torch.get_rng_state()
    for _ in range(times):
        warm_up(trainer, config)
    return trainer, leftovers(trainer, before, generator)


def look_at(rank: int) -> dict[Case, dict[str, Any]]:
    """By case: what is left over, and what three steps make of a trainer warmed up once and of one twice."""
    results = {}
    for case in CASES:
        once, of_once = warmed(rank, case, 1)
        batches = micro_batches(rank, 1, case[3])
        generator, num_buckets = torch.get_rng_state(), once.gradient.num_buckets
        losses = [once.step(step, batches).detach() for step in (1, 2, 3)]
        twice, of_twice = warmed(rank, case, 2)
        torch.set_rng_state(generator)
        losses_of_twice = [twice.step(step, batches).detach() for step in (1, 2, 3)]
        results[case] = {
            "left over": of_once + of_twice,
            "once": copied(once.tensors()) | {"losses": torch.stack(losses)},
            "twice": copied(twice.tensors()) | {"losses": torch.stack(losses_of_twice)},
            "buckets": {num_buckets, once.gradient.num_buckets, twice.gradient.num_buckets},
        }
    return results


def differing(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> list[str]:
    assert ours.keys() == theirs.keys()
    return [name for name, tensor in ours.items() if not torch.equal(tensor, theirs[name])]


def test_it_leaves_everything_as_it_was_and_a_second_one_changes_no_bit_of_the_steps_that_follow() -> None:
    of_ranks = run_ranks(look_at, NUM_RANKS, timeout_s=300.0)
    for case in CASES:
        for result in (of_rank[case] for of_rank in of_ranks):
            assert result["left over"] == [], case
            assert differing(result["once"], result["twice"]) == [], case
            assert len(result["buckets"]) == 1, case
            assert result["once"]["losses"].isfinite().all(), case
            assert result["once"]["skipped_steps"] == 0, case
        first, second = (of_rank[case] for of_rank in of_ranks)
        assert first["buckets"] == second["buckets"]
        assert differing(first["once"], second["once"]) == ["losses"], case


# --- what the look above must see


@contextmanager
def without_putting_back(part: str) -> Iterator[None]:
    """The fault: a part of what the warm-up changes is forgotten."""
    real = Trainer.tensors

    def all_but(trainer: Trainer) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in real(trainer).items() if not name.startswith(part)}

    with mock.patch.object(Trainer, "tensors", all_but):
        yield


@contextmanager
def with_the_generator() -> Iterator[None]:
    with mock.patch.object(module.torch.random, "fork_rng", return_value=nullcontext()):
        yield


def faulty(rank: int) -> dict[str, list[str]]:
    case: Case = ("adam", "bucket_before", "fp16", 1)
    results = {}
    for part in ("model/", "optimizer/", "loss_scale/", "skipped_steps"):
        trainer, config = make(rank, case, loss_scale=2.0**100 if part == "skipped_steps" else START_SCALE)
        before, generator = copied(trainer.tensors()), torch.get_rng_state()
        with without_putting_back(part):
            warm_up(trainer, config)
        results[part] = leftovers(trainer, before, generator)
    trainer, config = make(rank, case)
    before, generator = copied(trainer.tensors()), torch.get_rng_state()
    with with_the_generator():
        warm_up(trainer, config)
    results["generator"] = leftovers(trainer, before, generator)
    trainer, config = make(rank, case)
    before, generator = copied(trainer.tensors()), torch.get_rng_state()
    warm_up(trainer, config)
    trainer.gradient._of_rank[0] = torch.ones(3)
    next(iter(trainer.model.parameters())).grad = torch.ones_like(next(iter(trainer.model.parameters())))
    results["hook"] = leftovers(trainer, before, generator)
    trainer, _ = make(rank, case)
    results["none"] = leftovers(trainer, copied(trainer.tensors()), torch.get_rng_state())
    return results


def test_whatever_is_not_put_back_is_seen() -> None:
    results = run_ranks(faulty, NUM_RANKS)[0]
    assert "model/embeddings.word.weight changed" in results["model/"]
    assert "step of embeddings.word.weight is not 0" in results["optimizer/"]
    assert "exp_avg of embeddings.word.weight is not 0" in results["optimizer/"]
    assert "loss scale" in results["loss_scale/"]
    assert "skipped steps" in results["skipped_steps"]
    assert results["generator"] == ["the generator was used"]
    assert results["hook"] == ["embeddings.word.weight has a gradient", "_of_rank of the hook"]
    assert "embeddings.word.weight has no moments" in results["none"]
    assert "bucket count" in results["none"]


def overflowing(rank: int) -> tuple[list[str], float]:
    """A warm-up all of whose steps overflow."""
    trainer, config = make(rank, ("lamb", "global_after", "fp16", 2), loss_scale=2.0**100)
    before, generator = copied(trainer.tensors()), torch.get_rng_state()
    warm_up(trainer, config)
    return leftovers(trainer, before, generator), float(trainer.loss_scale.scale)


def test_a_warm_up_that_overflows_is_put_back_too() -> None:
    for found, scale in run_ranks(overflowing, NUM_RANKS):
        assert found == ["loss scale"]  # another than the cases' start
        assert scale == 2.0**100


def lengths_of_passes(rank: int) -> list[int]:
    """The numbers of tokens that the warm-up's passes have, training first."""
    trainer, config = make(rank, ("adam", "none", "fp32", 2))
    lengths = []
    trainer.model.embeddings.register_forward_pre_hook(lambda _, x: lengths.append(len(x[0].tokens_T)))
    warm_up(trainer, config)
    return lengths


def test_passes_differ_in_length_so_that_compiled_kernels_learn_that_they_may() -> None:
    lengths = run_ranks(lengths_of_passes, NUM_RANKS)[0]
    assert len(lengths) == 1 + 2 + 2 + 3  # steps of one, two and two micro-batches, and evaluation passes
    assert len(set(lengths[:5])) > 1
    assert len(set(lengths[5:])) > 1
