"""A job and shares of lengths in, the lengths of the samples that every rank has at every step out.

Shapes: G steps, R ranks, K samples of a rank and step, L lengths. Where a rank has fewer than K samples, zeros stand
behind its last.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from benchmarks.bert.data.deal import token_work
from benchmarks.bert.data.packing import Packing, pack_histogram
from benchmarks.bert.data.plan import Planner
from benchmarks.bert.data.strata import Strata
from tools.simulate.job import Job
from tools.simulate.lengths import draw

_DEPTH = 12  # samples of a pack at most; two on average, as in the published packings
_PACKED = 1 << 20  # samples that packs are made of
_AT_ONCE = 1 << 21  # samples dealt at a time: a few dozen megabytes


def lengths_of_ranks(job: Job, share_L: np.ndarray, num_steps: int, seed: int) -> np.ndarray:
    """By the project's own planner, or its own packs; shape (G, R, K), uint16."""
    return _packs(job, share_L, num_steps, seed) if job.packed else _planned(job, share_L, num_steps, seed)


def _planned(job: Job, share_L: np.ndarray, num_steps: int, seed: int) -> np.ndarray:
    longest = len(share_L) - 1
    lengths = draw(share_L, num_steps * job.layout.global_batch, seed)
    planner = Planner(
        lengths,
        job.layout,
        Strata(min(job.num_strata, longest), longest),
        strategy=job.loading,
        per_token=token_work(job.shape.hidden_size, job.shape.ffn_size),
    )
    plan = planner.epoch(seed, 0)
    at_once = max(1, _AT_ONCE // job.layout.global_batch)
    parts = []
    for first in range(0, num_steps, at_once):
        rows_GRK = plan.all_rows(np.arange(first, min(first + at_once, num_steps)))
        parts.append(np.where(rows_GRK < 0, 0, lengths[rows_GRK]).astype(np.uint16))
    widest = max(part.shape[2] for part in parts)
    return np.concatenate([np.pad(part, ((0, 0), (0, 0), (0, widest - part.shape[2]))) for part in parts])


def _packs(job: Job, share_L: np.ndarray, num_steps: int, seed: int) -> np.ndarray:
    """Packs at random: half as many as the rank has samples on average."""
    packing = _packing(share_L.tobytes(), len(share_L))
    lengths_PJ = np.zeros((len(packing.counts), max(map(len, packing.counts))), np.uint16)
    for row, pack in zip(lengths_PJ, packing.counts, strict=True):
        row[: len(pack)] = pack
    share_P = np.cumsum(list(packing.counts.values())) / packing.num_packs
    num_ranks, num_packs = job.layout.num_ranks, max(1, round(job.layout.per_rank / 2))
    drawn = np.random.default_rng(seed).random((num_steps, num_ranks, num_packs), np.float32)
    kinds_GRP = np.minimum(np.searchsorted(share_P, drawn), len(share_P) - 1)
    return lengths_PJ[kinds_GRP].reshape(num_steps, num_ranks, -1)


@lru_cache(maxsize=8)
def _packing(shares: bytes, num_lengths: int) -> Packing:
    share_L = np.frombuffer(shares, np.float64, num_lengths)
    return pack_histogram(np.rint(share_L * _PACKED).astype(np.int64), depth=_DEPTH)
