"""Nothing, or a histogram's file in, the share of each sample length out; and lengths that follow it.

The benchmark's Wikipedia samples: 16,279,552 of 5 to 512 tokens, mean 255.8, mean square 98,826, 23.4 % of exactly
512. Their histogram is kept here in a coarse form that has the same mean and mean square within 0.02 %.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

_BIN = 16  # lengths in a bin: 1 to 16, 17 to 32 … 497 to 511, all of a bin alike
# Of 10,000 samples, by bin; 512 itself stands alone.
# fmt: off
_PER_10000 = (
    32, 327, 675, 724, 627, 512, 427, 370, 329, 294, 269, 248, 230, 213, 199, 187,
    176, 165, 156, 149, 141, 135, 129, 123, 117, 113, 109, 105, 100, 97, 94, 85,
)
# fmt: on
_PER_10000_OF_512 = 2343


def wikipedia_shares() -> np.ndarray:
    """The share of each length of the benchmark's samples, coarsely; shape (513,), sum 1."""
    count_L = np.zeros(len(_PER_10000) * _BIN + 1)
    for number, count in enumerate(_PER_10000):
        lengths = np.arange(number * _BIN + 1, min((number + 1) * _BIN + 1, len(count_L) - 1))
        count_L[lengths] = count / len(lengths)
    count_L[-1] = _PER_10000_OF_512
    return count_L / count_L.sum()


def read_shares(path: Path) -> np.ndarray:
    """The same from a file of lines `length,count` below a heading. Raises ValueError for any other file."""
    try:
        rows = np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.int64, ndmin=2)
        count_L = np.bincount(rows[:, 0], rows[:, 1])
    except (OSError, ValueError, IndexError) as error:
        raise ValueError(f"{path}: expected a heading and lines of length,count ({error})") from error
    if count_L.sum() <= 0 or count_L.min() < 0 or count_L[0]:
        raise ValueError(f"{path}: expected counts from 0, some above it, of lengths from 1")
    return count_L / count_L.sum()


def moments(share_L: np.ndarray) -> tuple[float, float]:
    """Mean and mean square of the length."""
    lengths = np.arange(len(share_L))
    return float(share_L @ lengths), float(share_L @ lengths**2)


def representative(share_L: np.ndarray, num_samples: int, max_length: int) -> np.ndarray:
    """Lengths that follow the shares as closely as `num_samples` can, ascending; longer than allowed are cut."""
    middle_N = (np.arange(num_samples) + 0.5) / num_samples
    return np.minimum(np.searchsorted(np.cumsum(share_L), middle_N * (1 - 1e-12)), max_length)
