"""Sample lengths in, strata and quotas out.

Strata are equal ranges of length, (0, S/n], (S/n, 2S/n] …, as in *Breaking MLPerf Training* (1-128, 129-256,
257-384, 385-512 for S = 512). Quotas are proportional to what is left, by largest remainder.
"""

from __future__ import annotations

import numpy as np


def stratum_of(lengths: np.ndarray, num_strata: int, max_length: int) -> np.ndarray:
    """Stratum of each sample, 0-based, shape of `lengths`; upper bounds are inclusive."""
    if lengths.size and not 1 <= lengths.min() <= lengths.max() <= max_length:
        raise ValueError(f"lengths from {lengths.min()} to {lengths.max()}, expected 1 to {max_length}")
    return ((lengths.astype(np.int64) - 1) * num_strata) // max_length


def largest_remainder(total: int, weights: np.ndarray) -> np.ndarray:
    """Integers that sum to `total`, each the floor or the ceiling of its proportional share.

    Ties go to the first. Never exceeds integer weights as long as `total` does not exceed their sum.
    """
    share, remainder = np.divmod(total * weights.astype(np.int64), max(1, int(weights.sum())))
    short = total - int(share.sum())
    share[np.argsort(-remainder, kind="stable")[:short]] += 1
    return share


def quotas_GS(counts: np.ndarray, batch: int) -> np.ndarray:
    """How many samples each of G global batches takes from each of S strata.

    `counts` are the strata's sizes. Every batch sums to `batch`; each stratum's column never exceeds its size;
    G is as many whole batches as there are. Drawing in proportion to what is *left* keeps the mix level to
    within one sample and lets every stratum end together, so nothing is dropped but the last incomplete batch.
    """
    left = counts.astype(np.int64)
    rows = []
    for _ in range(int(left.sum()) // batch):
        quota = largest_remainder(batch, left)
        left = left - quota
        rows.append(quota)
    return np.array(rows, np.int64).reshape(-1, len(counts))
