"""Sample lengths in; strata, each stratum's samples and its quota of every step out.

Strata are equal ranges of length, (0, S/n], (S/n, 2S/n] …, as in *Breaking MLPerf Training* (1-128, 129-256,
257-384, 385-512 for S = 512). Quotas are proportional to the strata's sizes, by Webster's method of apportionment.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

_BLOCK = 128  # samples whose strata are counted together; at most 255, which a byte can hold
_AT_ONCE = 1 << 12  # samples looked for at a time
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Strata:
    """Equal ranges of length up to the longest sample allowed."""

    num_strata: int
    max_length: int

    def bounds(self) -> list[tuple[int, int]]:
        """Shortest and longest length of each."""
        tops = [(s * self.max_length) // self.num_strata for s in range(self.num_strata + 1)]
        return [(low + 1, high) for low, high in pairwise(tops)]


def taken_GS(counts: np.ndarray, batch: int, steps_G: np.ndarray) -> np.ndarray:
    """How many samples of each of S strata the global batches before each of `steps_G` hold together.

    `counts` are the strata's sizes, `steps_G` from 0 to as many as there are whole batches. The differences of a step
    and the next are its quotas: none is negative, they sum to `batch`, and no stratum gives more than it has.

    Webster's method of apportioning h seats: stratum s claims its j-th seat at (2j - 1) / 2 counts[s], and the h
    earliest claims are heard (ties to the first stratum). What is heard early stays heard, so quotas are not negative;
    and h seats follow without the h before them, so any step is had at once. With f a stratum's share of all samples,
    it is never further than ((1 - f) + f (S - 1)) / 2 samples from f h.
    """
    counts = counts.astype(np.int64)
    total, num_strata = int(counts.sum()), len(counts)
    heard_G = np.asarray(steps_G, np.int64) * batch
    # All claims up to (2h - S) / 2 total: at most h of them, at least h - S.
    taken = np.maximum(0, ((2 * heard_G[:, None] - num_strata) * counts + total) // (2 * total))
    for _ in range(num_strata):
        earliest = np.zeros(len(heard_G), np.int64)
        rows = np.arange(len(heard_G))
        for s in range(1, num_strata):
            is_earlier = (2 * taken[:, s] + 1) * counts[earliest] < (2 * taken[rows, earliest] + 1) * counts[s]
            earliest[is_earlier] = s
        taken[rows, earliest] += taken.sum(axis=1) < heard_G
    return taken


class StrataIndex:
    """Finds any sample of any stratum, with 4 bytes for every 128 samples and stratum beside the lengths."""

    def __init__(self, lengths: np.ndarray, strata: Strata) -> None:
        """Reads all lengths once. Raises ValueError where one is not from 1 to `strata.max_length`."""
        self._lengths = np.asarray(lengths)  # of a memory map too: as such every access costs some microseconds more
        self._bounds = strata.bounds()
        num_blocks = -(-len(lengths) // _BLOCK)
        before = np.zeros((strata.num_strata, num_blocks + 1), np.uint32)
        for start in range(0, len(lengths), _CHUNK):
            chunk = self._lengths[start : start + _CHUNK]
            padded = np.zeros(-(-len(chunk) // _BLOCK) * _BLOCK, chunk.dtype)
            padded[: len(chunk)] = chunk
            first = start // _BLOCK + 1
            for s in range(strata.num_strata):
                inside = self._is_in(s, padded).reshape(-1, _BLOCK).view(np.uint8)
                before[s, first : first + len(inside)] = np.add.reduce(inside, axis=1, dtype=np.uint8)
        self._before_SB = np.cumsum(before, axis=1, dtype=np.uint32)
        if len(lengths) and self._before_SB[:, -1].sum() != len(lengths):
            raise ValueError(f"lengths from {lengths.min()} to {lengths.max()}, expected 1 to {strata.max_length}")

    def counts_before(self, number: int) -> np.ndarray:
        """How many of the samples 0 to `number` - 1 are of each stratum, shape (S,)."""
        block = number // _BLOCK
        rest = self._lengths[block * _BLOCK : number]
        inside = [np.count_nonzero(self._is_in(s, rest)) for s in range(len(self._bounds))]
        return self._before_SB[:, block].astype(np.int64) + inside

    def find(self, stratum: int, places: np.ndarray) -> np.ndarray:
        """The numbers of those samples that come `places`-th in their stratum, counted from 0; 1-D, int64."""
        found = np.empty(len(places), np.int64)
        before_B = self._before_SB[stratum, :-1]
        for start in range(0, len(places), _AT_ONCE):
            wanted = places[start : start + _AT_ONCE].astype(np.uint32)
            block = np.searchsorted(before_B, wanted, side="right") - 1
            numbers = np.minimum(block[:, None] * _BLOCK + np.arange(_BLOCK), len(self._lengths) - 1)
            seen = np.cumsum(self._is_in(stratum, self._lengths.take(numbers)), axis=1, dtype=np.uint8)
            at = np.argmax(seen == (wanted - before_B[block] + 1)[:, None], axis=1)
            found[start : start + _AT_ONCE] = block * _BLOCK + at
        return found

    def _is_in(self, stratum: int, lengths: np.ndarray) -> np.ndarray:
        low, high = self._bounds[stratum]
        return (lengths >= low) & (lengths <= high)
