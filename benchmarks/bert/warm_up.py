"""A trainer in, the same trainer out, its weights and optimizer bit for bit as before, but nothing left to be made.

What a first step would make inside the clock: DDP's final buckets, communicators, compiled kernels, the allocator's
memory, the optimizer's moments. It runs on made-up tokens and touches no data.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.bert.config import Config
from benchmarks.bert.data.batch import PackedBatch, synthetic_batch
from benchmarks.bert.trainer import Trainer

# DDP lays its buckets out anew after the first pass, which therefore stands alone; the third step shows that they stay.
# Lengths differ, so that compiled kernels learn that they may.
_FRACTIONS = (1.0, 0.75, 1.0)


def warm_up(trainer: Trainer, config: Config) -> None:
    """Whole steps with accumulation and all-reduce, and evaluation passes; then everything put back."""
    before = {name: tensor.clone() for name, tensor in _live(trainer).items()}
    num_micro_batches = config.gradient_accumulation_steps
    devices = [trainer.device] if trainer.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        with trainer.gradient.discovering():
            for count, fraction in zip((1, num_micro_batches, num_micro_batches), _FRACTIONS, strict=True):
                batch = _made_up(trainer, config, config.batch_size // num_micro_batches, fraction)
                trainer.step(1, [batch] * count)
        trainer.model.eval()
        with torch.no_grad(), trainer.precision():
            for fraction in _FRACTIONS:
                trainer.model(_made_up(trainer, config, config.eval_batch_size, fraction))
        trainer.model.train()
    for name, tensor in _live(trainer).items():
        _put_back(tensor, before.get(name))


def _live(trainer: Trainer) -> dict[str, Tensor]:
    return trainer.tensors() | trainer.own_tensors()


def _put_back(tensor: Tensor, before: Tensor | None) -> None:
    """What the first step made, the optimizer's state, starts from zeros."""
    if before is None:
        tensor.zero_()
    else:
        tensor.copy_(before)


def _made_up(trainer: Trainer, config: Config, num_sequences: int, fraction: float) -> PackedBatch:
    """On a GPU as many tokens as a batch can have, so that its memory is there; on a CPU few, for size is time."""
    length = config.max_length
    if trainer.device.type == "cpu":
        num_sequences, length = 2, 8
    length = int(length * fraction)
    return synthetic_batch(
        num_sequences=num_sequences,
        length=length,
        num_vocabulary=trainer.model.shape.num_vocabulary,
        num_masked=-(-length * 15 // 100),  # of each length another count
    ).to(trainer.device)
