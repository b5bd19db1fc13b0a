"""A BERT's tensors in, what a step of each optimizer costs out: time beside torch's foreach AdamW, memory and tensors.

    OMP_NUM_THREADS=1 python -m benchmarks.bert.bench optimizers

All take their steps in one process, in turn, on the same weights and gradients, so that a busy machine disturbs them
alike.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks.bert.bench.allocations import Allocations
from benchmarks.bert.bench.configurations import CONFIGURATIONS, TINY
from benchmarks.bert.config import OPTIMIZERS
from benchmarks.bert.model.bert import Bert, BertShape
from benchmarks.bert.optim.groups import decay_groups
from benchmarks.bert.trainer import OPTIMIZERS as BUILT
from benchmarks.bert.trainer import choose_device

# BERT-base has 110 million parameters, BERT-large 336 million. `tiny` is for tests, and too small to mean anything.
_LAYERS = {"base": 12, "large": 24}
_VOCABULARY = 30522
_REFERENCE = "torch's AdamW, foreach"
_MEBIBYTE = 2**20


@dataclass
class Measured:
    """One optimizer: a step, and what its steps took."""

    step: Callable[[], object]
    state_bytes: Callable[[], int]
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    held_bytes: int = 0  # that its first step made and that are no state
    steady: Allocations = field(default_factory=Allocations)  # of a later step


def main(argv: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(argv)
    device = choose_device(options.device, 0)
    model = _model(_shape(options.model), device)
    gradients = [torch.randn_like(parameter).mul_(1e-3) for parameter in model.parameters()]
    optimizers = dict(_optimizers(model))
    for optimizer in optimizers.values():
        _measure_memory(optimizer, model, gradients)
    for _ in range(options.steps):
        for optimizer in optimizers.values():
            _measure_time(optimizer, model, gradients, device)
    threads = f", {torch.get_num_threads()} thread(s)" if device.type == "cpu" else ""
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    print(
        f"{len(gradients)} tensors of {millions:.1f} M fp32 parameters on {device.type}{threads}; times are ratios to "
        f"those of {_REFERENCE}, median of {options.steps} steps"
    )
    for line in _table(optimizers):
        print(line)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bert.bench optimizers")
    parser.add_argument("--model", choices=[*_LAYERS, "tiny"], default="base", help="whose tensors (default base)")
    parser.add_argument("--steps", type=int, default=10, help="measured steps (default 10)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    return parser


def _shape(name: str) -> BertShape:
    if name == "tiny":
        return TINY
    like = CONFIGURATIONS[name]
    return BertShape(_VOCABULARY, 512, _LAYERS[name], like.hidden_size, like.num_heads, like.ffn_size)


def _model(shape: BertShape, device: torch.device) -> nn.Module:
    with torch.device("meta"):
        model = Bert(shape)
    model.to_empty(device=device)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    return model


def _optimizers(model: nn.Module) -> Iterator[tuple[str, Measured]]:
    def of_torch(**options: bool) -> Measured:
        adamw = torch.optim.AdamW(decay_groups(model, 0.01), lr=1e-5, eps=1e-6, **options)  # type: ignore[arg-type]
        return Measured(adamw.step, partial(_bytes, adamw.state))

    yield _REFERENCE, of_torch(foreach=True)
    for name in OPTIMIZERS:
        ours = BUILT[name](decay_groups(model, 0.01), learning_rate=1e-5, betas=(0.9, 0.999), epsilon=1e-6)
        found = torch.zeros((), device=next(model.parameters()).device)
        yield f"OPTIMIZER={name}", Measured(partial(ours.step_unless, found), partial(_bytes, ours.state))


def _bytes(state: dict[Tensor, dict[str, Tensor]]) -> int:
    return sum(value.nbytes for of_parameter in state.values() for value in of_parameter.values())


def _measure_memory(optimizer: Measured, model: nn.Module, gradients: Iterable[Tensor]) -> None:
    _give(model, gradients)
    with Allocations() as first:
        optimizer.step()
    optimizer.held_bytes = max(0, first.alive_bytes - optimizer.state_bytes())  # counts made of numbers are not seen
    _give(model, gradients)
    with optimizer.steady:
        optimizer.step()


def _measure_time(optimizer: Measured, model: nn.Module, gradients: Iterable[Tensor], device: torch.device) -> None:
    _give(model, gradients)
    _wait(device)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    optimizer.step()
    _wait(device)
    optimizer.wall_s.append(time.perf_counter() - wall_s)
    optimizer.cpu_s.append(time.process_time() - cpu_s)


def _give(model: nn.Module, gradients: Iterable[Tensor]) -> None:
    """Fresh ones to each, for LANS leaves others."""
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        parameter.grad.copy_(gradient)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _table(optimizers: dict[str, Measured]) -> Iterator[str]:
    yield "| | processor time | wall time | ms | held, MiB | made, MiB | tensors made | of 64 KiB or more |"
    yield "|---|---|---|---|---|---|---|---|"
    reference = optimizers[_REFERENCE]
    for name, each in optimizers.items():
        made = each.steady.sizes_bytes
        columns = [
            f"{_ratio(each.cpu_s, reference.cpu_s):.2f}",
            f"{_ratio(each.wall_s, reference.wall_s):.2f}",
            f"{1000 * median(each.wall_s):.1f}",
            f"{each.held_bytes / _MEBIBYTE:.1f}",
            f"{each.steady.peak_bytes / _MEBIBYTE:.1f}",
            str(len(made)),
            str(sum(size >= 2**16 for size in made)),
        ]
        yield f"| {name} | {' | '.join(columns)} |"


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return median(one / other for one, other in zip(ours, theirs, strict=True))


if __name__ == "__main__":
    main()
