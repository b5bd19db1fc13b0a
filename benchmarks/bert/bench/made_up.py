"""Lengths in, samples of made-up tokens out, masked as the benchmark's are: 15 % of a sample, 1 to 76 places."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.bert.data.batch import PackedBatch, pack
from benchmarks.bert.data.shards import SampleArrays

_MASKED_SHARE, _MOST_MASKED = 0.15, 76


def num_masked(lengths: np.ndarray) -> np.ndarray:
    """Masked places of samples of these lengths, the same shape; lengths are at least 2."""
    return np.clip(np.rint(_MASKED_SHARE * lengths), 1, _MOST_MASKED).astype(np.int64)


def made_up_samples(lengths: np.ndarray, num_vocabulary: int, seed: int = 0) -> SampleArrays:
    generator = np.random.default_rng(seed)
    masked = num_masked(lengths)
    places = [np.sort(1 + generator.permutation(s - 1)[:m]) for s, m in zip(lengths, masked, strict=True)]
    return SampleArrays(
        tokens=generator.integers(num_vocabulary, size=lengths.sum()),
        token_offsets=np.cumsum([0, *lengths]),
        boundary=lengths // 2,
        mlm_positions=np.concatenate(places),
        mlm_ids=generator.integers(num_vocabulary, size=masked.sum()),
        mlm_offsets=np.cumsum([0, *masked]),
        nsp=generator.integers(2, size=len(lengths)),
    )


def made_up_batches(
    lengths: np.ndarray, per_rank: int, num_vocabulary: int, *, rank: int = 0, num_ranks: int = 1
) -> Iterator[PackedBatch]:
    """One rank's batches of steps that each have the lengths' mix; a remainder below a global batch is left out."""
    lengths = np.sort(lengths)
    arrays = made_up_samples(lengths, num_vocabulary)
    num_steps = len(lengths) // (per_rank * num_ranks)
    for step in range(num_steps):
        own = range(step, num_steps * per_rank * num_ranks, num_steps)[rank::num_ranks]
        yield pack([(arrays, row) for row in own])
