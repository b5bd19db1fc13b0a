"""A histogram of sample lengths, or a data folder, in; as many lengths as a simulation needs out."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.bert.bench.lengths import read_shares, representative, wikipedia_shares
from benchmarks.bert.data.dataset import read_data_set


def shares(histogram: Path | None, data: Path | None = None) -> np.ndarray:
    """The share of each length from 0 on: of a CSV of length,count, of a data folder's index, or of Wikipedia.

    Raises ValueError for a file that is no such table, ManifestError for a folder that is no data set.
    """
    if histogram is not None:
        return read_shares(histogram)
    if data is not None:
        counts_L = np.bincount(read_data_set(data / "train").lengths)
        return counts_L / counts_L.sum()
    return wikipedia_shares()


def draw(share_L: np.ndarray, num_samples: int, seed: int) -> np.ndarray:
    """So many lengths that follow the shares, in random order; uint16."""
    lengths = representative(share_L, num_samples, len(share_L) - 1).astype(np.uint16)
    return np.random.default_rng(seed).permutation(lengths)
