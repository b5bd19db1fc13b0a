"""Lengths of a rank's samples in, the FLOPs of its forward and backward pass and the seconds that they take out.

FLOPs are those that model/flops.py counts. With T tokens in a micro-batch a rank reaches T / (T + half) of its rate:
every kernel has a start and an end that do not depend on how much it computes, nor on FP8. CUDA graphs compute a
multiple of the longest length. Shapes: G steps, R ranks, K samples of a rank and step, L lengths.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from benchmarks.bert.bench.made_up import num_masked
from benchmarks.bert.growth.plan import Stage
from benchmarks.bert.model.bert import BertShape
from benchmarks.bert.model.flops import mean_packed_flops
from tools.simulate.cluster import Cluster
from tools.simulate.job import Job

_AT_ONCE = 1 << 21  # samples looked up at a time


@dataclass(frozen=True)
class Work:
    """Of each rank at each step."""

    forward_GR: np.ndarray  # FLOPs
    backward_GR: np.ndarray  # FLOPs
    tokens_GR: np.ndarray
    samples_GR: np.ndarray


def work_of(job: Job, stage: Stage, lengths_GRK: np.ndarray) -> Work:
    longest = int(lengths_GRK.max())
    forward_L, backward_L = flops_of_lengths(job, stage, longest)
    forward_GR, backward_GR, tokens_GR = (np.empty(lengths_GRK.shape[:2]) for _ in range(3))
    at_once = max(1, _AT_ONCE // lengths_GRK[0].size)
    for first in range(0, len(lengths_GRK), at_once):
        steps = slice(first, first + at_once)
        forward_GR[steps] = forward_L[lengths_GRK[steps]].sum(axis=2)
        backward_GR[steps] = backward_L[lengths_GRK[steps]].sum(axis=2)
        tokens_GR[steps] = lengths_GRK[steps].sum(axis=2, dtype=np.int64)
    if job.graphs:
        size = job.shape.max_length
        padded_GR = np.ceil(tokens_GR / size) * size
        forward_GR, backward_GR = (each * padded_GR / tokens_GR for each in (forward_GR, backward_GR))
        tokens_GR = padded_GR
    return Work(forward_GR, backward_GR, tokens_GR, np.count_nonzero(lengths_GRK, axis=2))


def flops_of_lengths(job: Job, stage: Stage, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Forward and backward, of a sample of each length from 0 on.

    Frozen layers have no backward pass; where embeddings below them train, the gradient still passes through, which is
    one of its two products.
    """
    shape = job.shape_at(stage)
    whole_L = _step_flops(shape, job.last_layer, longest)
    backward_L = whole_L * 2 / 3
    if stage.num_frozen:
        trained = replace(shape, num_layers=shape.num_layers - stage.num_frozen)
        frozen_L = whole_L - _step_flops(trained, job.last_layer, longest)
        backward_L = backward_L - frozen_L * (1 / 3 if stage.embeddings_train else 2 / 3)
    return whole_L / 3, backward_L


@lru_cache(maxsize=64)
def _step_flops(shape: BertShape, last_layer: str, longest: int) -> np.ndarray:
    length_L = np.arange(longest + 1)
    masked_L = num_masked(np.maximum(2, length_L))
    flops_L = np.zeros(longest + 1)
    for length, masked in zip(length_L.tolist()[1:], masked_L.tolist()[1:], strict=True):
        flops_L[length] = mean_packed_flops(
            shape,
            tokens=length,
            pairs=length**2,
            masked=masked,
            read_pairs=(masked + 1) * length,
            last_layer=last_layer,
        )
    return flops_L


def seconds_GR(flops_GR: np.ndarray, tokens_GR: np.ndarray, cluster: Cluster, job: Job) -> np.ndarray:
    """Of a rank at the cluster's mean speed, in `job.micro_batches` parts."""
    gain = cluster.fp8_gain if job.fp8 else 1.0
    half = cluster.half_tokens * job.micro_batches
    return flops_GR / cluster.matmul_flops_per_s * (1 / gain + half / np.maximum(1, tokens_GR))


def speeds_R(cluster: Cluster, num_ranks: int, seed: int) -> np.ndarray:
    """What each rank's times are multiplied by: lasting differences between accelerators of one model."""
    return np.exp(cluster.rank_spread * np.random.default_rng(seed).standard_normal(num_ranks))
