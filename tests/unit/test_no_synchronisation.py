"""A whole training step asks the device for no value: nothing in it depends on data but data."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.bert.comm.hook import CLIP_VARIANTS
from benchmarks.bert.config import Config
from benchmarks.bert.data.batch import synthetic_batch
from benchmarks.bert.model.bert import LAST_LAYER
from benchmarks.bert.trainer import OPTIMIZERS, Trainer, build_trainer
from benchmarks.bert.warm_up import warm_up
from benchmarks.bert.world import World
from tests.support.ranks import run_ranks

CPU = torch.device("cpu")
ALONE = World(rank=0, num_ranks=1, local_rank=0, ranks_per_node=1, rendezvous=None)
NUM_VOCABULARY = 101

# The operators whose result's shape, or whose value in Python, depends on data: on a GPU the host waits for it.
_OPERATORS = {
    f"aten::{name}"
    for name in (
        "_local_scalar_dense",
        "item",
        "is_nonzero",
        "equal",
        "allclose",
        "nonzero",
        "nonzero_numpy",
        "argwhere",
        "masked_select",
        "unique_dim",
        "unique_consecutive",
        "_unique",
        "_unique2",
        "bincount",
        "repeat_interleave",
    )
}
_BY_MASK = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}  # with a mask as an index
# On a CPU these read the memory without an operator.
_METHODS = ("tolist", "numpy", "item", "__bool__", "__float__", "__int__", "__index__")


class Watch:
    """While this lasts, operators that run and those among them that synchronise a GPU, forward and backward."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._ran: set[str] = set()
        self._stack = ExitStack()

    def __enter__(self) -> Watch:
        self._stack.enter_context(_Operators(self))
        for name in _METHODS:
            self._stack.enter_context(mock.patch.object(Tensor, name, self._method(name)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ran(self, name: str) -> bool:
        return name in self._ran

    def _method(self, name: str) -> Callable[..., Any]:
        method = getattr(Tensor, name)

        def watched(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.seen.append(name)
            return method(tensor, *args, **kwargs)

        return watched

    def operator(self, name: str, args: tuple) -> None:
        self._ran.add(name)
        is_by_mask = name in _BY_MASK and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if name in _OPERATORS or is_by_mask:
            self.seen.append(name)


class _Operators(TorchDispatchMode):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        self._watch.operator(func.name().split(".")[0], args)
        return func(*args, **(kwargs or {}))


def warm_trainer(device: torch.device = CPU, **changed: Any) -> Trainer:
    """A tiny BERT's, on the group of this process alone."""
    values: dict[str, Any] = {
        "device": device.type,
        "max_length": 32,
        "num_layers": 2,
        "hidden_size": 32,
        "num_heads": 2,
        "ffn_size": 64,
        "batch_size": 4,
        "bucket_mb": 0.02,
        "decay_steps": 10,
        "max_norm": 0.1,
    }
    config = Config(**(values | changed))
    trainer = build_trainer(config, ALONE, device, seed=3, num_vocabulary=NUM_VOCABULARY)
    warm_up(trainer, config)
    return trainer


def step_of(trainer: Trainer, num_micro_batches: int) -> Callable[[], object]:
    batches = [synthetic_batch(2, 8 + i, NUM_VOCABULARY, 2).to(trainer.device) for i in range(num_micro_batches)]
    return lambda: trainer.step(1, batches)


CASES = {
    f"{optimizer}, {clip}, {precision}, {count} micro-batches": (optimizer, clip, precision, count)
    for optimizer in OPTIMIZERS
    for clip in CLIP_VARIANTS
    for precision, count in (("fp32", 2), ("fp16", 1), ("fp16", 2))
} | {"adam, bucket_before, bf16, 2 micro-batches": ("adam", "bucket_before", "bf16", 2)}


def watched_steps(rank: int) -> dict[str, tuple[list[str], bool]]:
    """By case: what synchronises in a step, and whether backward and the reduction were watched too."""
    results = {}
    for name, (optimizer, clip, precision, count) in CASES.items():
        trainer = warm_trainer(
            optimizer=optimizer, clip=clip, precision=precision, gradient_accumulation_steps=count, loss_scale=1024.0
        )
        step = step_of(trainer, count)
        with Watch() as watch:
            step()
        results[name] = (
            watch.seen,
            all(watch.ran(each) for each in ("aten::embedding_dense_backward", "aten::all", "c10d::allreduce_")),
        )
    return results


def test_no_step_asks_for_a_value_with_any_optimizer_clipping_and_precision() -> None:
    for name, (seen, is_whole) in run_ranks(watched_steps, 1)[0].items():
        assert is_whole, name
        assert seen == [], name


def watched_variants(rank: int) -> dict[str, list[str]]:
    results = {}
    for last_layer in LAST_LAYER:
        for attention in ("plain", "split"):
            step = step_of(warm_trainer(last_layer=last_layer, attention=attention), 1)
            with Watch() as watch:
                step()
            results[f"{last_layer}, {attention}"] = watch.seen
    return results


def test_nor_with_another_attention_or_the_whole_last_layer() -> None:
    results = run_ranks(watched_variants, 1)[0]
    assert len(results) == 4
    assert not any(results.values())


# --- what the watch must see


class Asking(nn.Module):
    """The fault: its forward looks at a value."""

    def __init__(self, inner: nn.Module, ask: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.inner, self.ask = inner, ask

    def forward(self, *inputs: Any) -> Any:
        result = self.inner(*inputs)
        self.ask(result)
        return result


FAULTS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "int": lambda x: int(x.sum()),
    "if": lambda x: 1 if x.isnan().any() else 0,
    "tolist": lambda x: x.detach().tolist(),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "a mask as an index": lambda x: x[x > 0],
    "a mask as an index that is written to": lambda x: x.detach().clone().__setitem__(x > 0, torch.ones(1)),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x + 1),
    "repeat_interleave": lambda x: torch.repeat_interleave(torch.ones(2, dtype=torch.long)),
}


def watched_faults(rank: int) -> dict[str, list[str]]:
    """Of a step of a model with the fault in its forward, and of one with it in its backward."""
    results = {}
    trainer = warm_trainer()
    norm = trainer.model.embeddings.norm
    step = step_of(trainer, 2)
    for name, fault in FAULTS.items():
        trainer.model.embeddings.norm = Asking(norm, fault)  # type: ignore[assignment]
        with Watch() as watch:
            step()
        results[f"{name}, forward"] = watch.seen
        trainer.model.embeddings.norm = norm
        handle = norm.weight.register_hook(lambda gradient, fault=fault: (fault(gradient), None)[1])
        with Watch() as watch:
            step()
        results[f"{name}, backward"] = watch.seen
        handle.remove()
    return results


def test_a_model_that_looks_at_a_value_is_caught_forward_and_backward() -> None:
    results = run_ranks(watched_faults, 1)[0]
    assert len(results) == 2 * len(FAULTS)
    assert [name for name, seen in results.items() if not seen] == []


# --- on a GPU, by torch's own watch


def strict_step(rank: int, optimizer: str, clip: str, precision: str, ask: bool) -> None:
    trainer = warm_trainer(torch.device("cuda", 0), optimizer=optimizer, clip=clip, precision=precision, num_layers=2)
    step = step_of(trainer, 2)
    if ask:
        trainer.model.embeddings.norm = Asking(trainer.model.embeddings.norm, FAULTS["item"])  # type: ignore[assignment]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    step()


on_gpu = pytest.mark.skipif(
    not (torch.cuda.is_available() and dist.is_nccl_available()), reason="only a GPU can be waited for"
)


@on_gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("clip", CLIP_VARIANTS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_on_a_gpu_does_not_wait_for_it(optimizer: str, clip: str, precision: str) -> None:
    run_ranks(strict_step, 1, optimizer, clip, precision, False)


@on_gpu
def test_a_model_that_looks_at_a_value_waits_for_the_gpu() -> None:
    with pytest.raises(AssertionError, match="synchroniz"):
        run_ranks(strict_step, 1, "adam", "bucket_before", "fp32", True)
