"""A rank and settings in, the trainer of a small BERT out, and the batches of its steps."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.bert.comm.hook import CLIP_VARIANTS
from benchmarks.bert.config import Config
from benchmarks.bert.data.batch import PackedBatch, synthetic_batch
from benchmarks.bert.trainer import OPTIMIZERS, Trainer, build_trainer
from benchmarks.bert.world import World

NUM_VOCABULARY = 101
SMALL: dict[str, Any] = {
    "device": "cpu",
    "max_length": 32,
    "num_layers": 1,
    "hidden_size": 32,
    "num_heads": 2,
    "ffn_size": 64,
    "bucket_mb": 0.02,  # several buckets
    "decay_steps": 10,
}

Case = tuple[str, str, str, int]  # optimizer, clipping, precision, micro-batches
TIMES: list[tuple[str, int]] = [("fp32", 1), ("fp32", 2), ("fp16", 2)]
CASES: list[Case] = [(name, clip, *each) for name in OPTIMIZERS for clip in CLIP_VARIANTS for each in TIMES]


def make_trainer(rank: int, num_ranks: int, **changed: Any) -> tuple[Trainer, Config]:
    """As built, not warmed up, and the configuration that it was built from."""
    config = Config(**(SMALL | {"ranks_per_node": num_ranks} | changed))
    world = World(rank, num_ranks, rank, num_ranks, rendezvous=None)
    return build_trainer(config, world, torch.device("cpu"), seed=3, num_vocabulary=NUM_VOCABULARY), config


def make_case(rank: int, num_ranks: int, case: Case, **changed: Any) -> tuple[Trainer, Config]:
    """The same with dropout, and a norm that the first gradients exceed."""
    optimizer, clip, precision, count = case
    values: dict[str, Any] = {
        "dropout": 0.1,
        "batch_size": 4,
        "max_norm": 0.1,
        "optimizer": optimizer,
        "clip": clip,
        "precision": precision,
        "gradient_accumulation_steps": count,
    }
    return make_trainer(rank, num_ranks, **(values | changed))


def micro_batches(rank: int, step: int, count: int) -> list[PackedBatch]:
    return [synthetic_batch(2, 8 + 2 * rank + step + micro, NUM_VOCABULARY, 2) for micro in range(count)]
