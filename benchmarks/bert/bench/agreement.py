"""A device in, how far the model's loss and gradients on it are from those of fp32 on the CPU out.

Every attention and fusion that this kind of device has to run is tried in each precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from benchmarks.bert.bench.lengths import representative, wikipedia_shares
from benchmarks.bert.bench.made_up import made_up_batches
from benchmarks.bert.data.batch import PackedBatch
from benchmarks.bert.loss import pretraining_loss
from benchmarks.bert.model.attention import KernelError
from benchmarks.bert.model.bert import LAST_LAYER, Bert, BertShape
from benchmarks.bert.model.init import standard
from benchmarks.bert.model.kernels import PORTABLE, Kernels, choose_kernels
from benchmarks.bert.trainer import DTYPES, choose_precision

SHAPE = BertShape(1000, 512, num_layers=3, hidden_size=128, num_heads=2, ffn_size=512, dropout=0.0)
_STD = 0.1  # larger than a run's, so that attention is far from uniform
# Largest relative difference allowed of the loss, and of any tensor's gradient (by norm). What rounding alone makes is
# about a quarter of it; a token that attends to another sequence, or a bias left out, makes ten times as much.
TOLERANCES = {"fp32": (1e-5, 1e-3), "fp16": (2e-3, 2e-2), "bf16": (1e-2, 1e-1)}
# What a tensor's norm is at least taken to be, of the whole gradient's: that of keys' biases is 0 but for rounding.
_FLOOR = 1e-2
_SCALE = 1024.0  # of the loss: keeps fp16 gradients in range


@dataclass(frozen=True)
class Agreement:
    name: str
    loss: float  # relative differences
    gradient: float
    tensor: str  # whose gradient differs most
    tolerances: tuple[float, float]

    @property
    def is_good(self) -> bool:
        return self.loss <= self.tolerances[0] and self.gradient <= self.tolerances[1]  # false for NaN

    def __str__(self) -> str:
        verdict = "ok" if self.is_good else "FAILED"
        return (
            f"{self.name:40} loss {self.loss:.1e} of {self.tolerances[0]:.0e}, gradient {self.gradient:.1e} of "
            f"{self.tolerances[1]:.0e} at most, in {self.tensor}: {verdict}"
        )


def agreements(device: torch.device) -> Iterator[Agreement]:
    """One for each way to compute. Raises KernelError for one that this kind of device should have but has not."""
    lengths = representative(wikipedia_shares(), 6, SHAPE.max_length)
    [batch] = made_up_batches(lengths, len(lengths), SHAPE.num_vocabulary)
    torch.manual_seed(0)
    reference = Bert(SHAPE, PORTABLE, "whole")
    standard(reference, _STD)
    weights = reference.state_dict()
    expected = _loss_and_gradients(reference, batch, "fp32")
    for attention, fusion, last_layer, precision in _ways(device):
        kernels = _kernels(attention, fusion, device, precision)
        model = Bert(SHAPE, kernels, last_layer).to(device)
        model.load_state_dict(weights)
        found = _loss_and_gradients(model, batch.to(device), precision)
        yield compare(f"{precision}, {kernels.name}, {last_layer}", found, expected, TOLERANCES[precision])


def _ways(device: torch.device) -> Iterator[tuple[str, str, str, str]]:
    """(attention, fusion, last layer, precision); compiled kernels know nothing of attention, so one stands for all."""
    if device.type == "cpu":
        yield from product(("split",), ("eager",), LAST_LAYER, TOLERANCES)
        return
    for attention, last_layer, precision in product(("flash", "efficient", "split"), LAST_LAYER, TOLERANCES):
        if (attention, precision) != ("flash", "fp32"):  # it is for 16 bit
            yield attention, "eager", last_layer, precision
    for precision in TOLERANCES:
        yield "efficient", "compiled", "only_read", precision


def _kernels(attention: str, fusion: str, device: torch.device, precision: str) -> Kernels:
    head_width = SHAPE.hidden_size // SHAPE.num_heads
    try:
        return choose_kernels(attention, fusion, device=device, dtype=DTYPES[precision], head_width=head_width)
    except KernelError as error:
        raise KernelError(f"{error}: this kind of device should run it") from error


def _loss_and_gradients(model: Bert, batch: PackedBatch, precision: str) -> dict[str, Tensor]:
    with choose_precision(precision, batch.tokens_T.device)():
        loss = pretraining_loss(model(batch), batch)
    (loss * _SCALE).backward()
    gradients = {name: p.grad.double().cpu() / _SCALE for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach().double().cpu()} | gradients


def compare(
    name: str, found: dict[str, Tensor], expected: dict[str, Tensor], tolerances: tuple[float, float]
) -> Agreement:
    """The tensors by name, `loss` among them."""
    gradients = [each for each in expected if each != "loss"]
    least = _FLOOR * torch.stack([expected[each].norm() for each in gradients]).norm()
    differences = {
        each: ((found[each] - expected[each]).norm() / expected[each].norm().clamp(min=least)).item()
        for each in gradients
    }
    worst = max(differences, key=lambda each: (differences[each] != differences[each], differences[each]))
    loss = ((found["loss"] - expected["loss"]).abs() / expected["loss"]).item()
    return Agreement(name, loss, differences[worst], worst, tolerances)
