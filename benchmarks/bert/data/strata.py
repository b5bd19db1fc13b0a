"""Sample lengths in, strata and quotas out.

Strata are equal ranges of length, (0, S/n], (S/n, 2S/n] …, as in *Breaking MLPerf Training* (1-128, 129-256,
257-384, 385-512 for S = 512). Quotas are proportional to what is left, by largest remainder carried from step to step.
"""

from __future__ import annotations

import numpy as np


def stratum_of(lengths: np.ndarray, num_strata: int, max_length: int) -> np.ndarray:
    """Stratum of each sample, 0-based, shape of `lengths`; upper bounds are inclusive."""
    if lengths.size and not 1 <= lengths.min() <= lengths.max() <= max_length:
        raise ValueError(f"lengths from {lengths.min()} to {lengths.max()}, expected 1 to {max_length}")
    return (lengths.astype(np.int64) * num_strata - 1) // max_length


def quotas_GS(counts: np.ndarray, batch: int) -> np.ndarray:
    """How many samples each of G global batches takes from each of S strata.

    `counts` are the strata's sizes. Every batch sums to `batch`; each stratum's column never exceeds its size;
    G is as many whole batches as there are. Each quota is the floor or the ceiling of the stratum's share of what is
    *left*, so every stratum ends together and nothing is dropped but the last incomplete batch. The ceilings go to
    the strata that are furthest behind their share of the epoch so far (ties to the first), which holds every stratum
    to about one sample of it: the remainders of one step alone would favour the same strata for most of an epoch,
    and the mean length would drift with them.
    """
    counts = counts.astype(np.int64)
    total = int(counts.sum())
    left = counts.copy()
    rows = []
    for step in range(1, total // batch + 1):
        quota, remainder = np.divmod(batch * left, int(left.sum()))
        behind = step * batch * counts - total * (counts - left + quota)  # in samples times `total`: stays whole
        behind[remainder == 0] = np.iinfo(np.int64).min + 1  # a whole share has no ceiling
        quota[np.argsort(-behind, kind="stable")[: batch - int(quota.sum())]] += 1
        left -= quota
        rows.append(quota)
    return np.array(rows, np.int64).reshape(-1, len(counts))
