"""Ragged arrays in, one 64-bit hash of each row out, the same on every machine and in every process.

A row's hash is the sum of T[value] x r^place modulo 2^64: T is a table of random numbers, r an odd number. Two rows
that differ have one hash by chance once in some 2^54 pairs at worst (two values that changed places), usually 2^64.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from benchmarks.bert.data.shards import SampleArrays

_ODD = 0xD1342543DE82EF95
_INVERSE = pow(_ODD, -1, 1 << 64)
_MANY_PREDICTIONS = 8  # so many do not fall on the same places twice by chance


def of_samples(samples: SampleArrays) -> np.ndarray:
    """uint64 (samples,), of all that a sample holds; the lowest bit tells that it has 8 predictions or more."""
    hashes = _of_rows(0, samples.tokens, samples.token_offsets)
    for number, values in ((1, samples.mlm_positions), (2, samples.mlm_ids)):
        hashes = _mixed(hashes + _of_rows(number, values, samples.mlm_offsets))
    hashes = _mixed(hashes + (samples.boundary.astype(np.uint64) << np.uint64(8) | samples.nsp))
    has_many = np.diff(samples.mlm_offsets) >= _MANY_PREDICTIONS
    return hashes & ~np.uint64(1) | has_many


def has_many_predictions(hashes: np.ndarray) -> np.ndarray:
    return hashes & np.uint64(1) != 0


def of_ranges(values: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """uint64, of values[start:stop] for each range; ranges ascend, are not empty and do not overlap."""
    weighed = _table(0)[values] * _powers(_ODD, len(values))
    edges = np.stack([starts, stops], 1).ravel()
    if len(edges) and edges[-1] == len(values):
        weighed = np.append(weighed, np.uint64(0))
    sums = np.add.reduceat(weighed, edges)[::2] if len(edges) else np.empty(0, np.uint64)
    return _mixed(sums * _powers(_INVERSE, len(values))[starts])


def _of_rows(number: int, values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Of every row between offsets; an empty row's is 0."""
    hashes = np.zeros(len(offsets) - 1, np.uint64)
    has_some = np.flatnonzero(offsets[1:] > offsets[:-1])
    if len(has_some):
        starts = offsets[has_some]
        weighed = _table(number)[values] * _powers(_ODD, len(values))
        hashes[has_some] = np.add.reduceat(weighed, starts) * _powers(_INVERSE, len(values))[starts]
    return hashes


def _mixed(hashes: np.ndarray) -> np.ndarray:
    """A one-to-one scrambling of 64 bits (the end of splitmix64)."""
    hashes = (hashes ^ hashes >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ hashes >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return hashes ^ hashes >> np.uint64(31)


@lru_cache
def _table(number: int) -> np.ndarray:
    return _mixed(
        np.arange(1 << 16, dtype=np.uint64) * np.uint64(_ODD) + np.uint64((number + 1) * _INVERSE % (1 << 64))
    )


def _powers(base: int, count: int) -> np.ndarray:
    """base^0 … base^(count - 1) modulo 2^64."""
    return _many_powers(base, max(1 << 16, 1 << max(0, count - 1).bit_length()))[:count]


@lru_cache
def _many_powers(base: int, count: int) -> np.ndarray:
    factors = np.full(count, base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)
