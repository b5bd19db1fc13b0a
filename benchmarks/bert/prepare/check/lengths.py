"""How many samples have each length in, why no text can have made them by this recipe out.

The recipe fills nine of ten documents' samples up to the maximum, where what is longer is cut, and gives the others
targets from 2 tokens on. So there is a peak at the maximum, if documents are that long, and every other length occurs:
neighbouring lengths are about equally frequent.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.bert.prepare.check.rows import SHORTEST

_NEIGHBOURS = 8  # lengths on a side
_MANY = 200  # samples of each neighbour: with ten duplicates, of some 20 documents
_MANY_NEAR = 100  # samples in the longest eighth


def what_is_odd(num_lengths: np.ndarray) -> Iterator[str]:
    """`num_lengths` is int64 (max_length + 1,): samples of each length. Few samples say nothing."""
    present = np.flatnonzero(num_lengths)
    if not len(present):
        return
    most = len(num_lengths) - 1
    shortest, longest = int(present[0]), int(present[-1])
    near = num_lengths[most - most // 8 : most].sum()
    if num_lengths[most] == 0 and near >= _MANY_NEAR:
        yield f"no sample of {most} tokens, the maximum, but {near:,} of {most - most // 8} to {most - 1}"
    elif longest < most and num_lengths[longest] >= _MANY_NEAR:
        below = num_lengths[max(0, longest - _NEIGHBOURS) : longest].mean()
        if num_lengths[longest] > 3 * below:
            yield (
                f"a peak at {longest} tokens ({num_lengths[longest]:,} samples, {below:,.0f} of each length before) "
                f"and none longer: made for {longest} tokens, not {most}"
            )
    # Where every sentence is long, no sample is short; but then the shortest are rare.
    usual = num_lengths[shortest:most].mean() if shortest < most else 0
    if shortest > SHORTEST and num_lengths[shortest : shortest + _NEIGHBOURS].mean() >= max(_MANY, usual / 2):
        yield f"no sample shorter than {shortest} tokens, but {num_lengths[shortest]:,} of {shortest}"
    absent = np.flatnonzero(num_lengths[shortest : longest + 1] == 0) + shortest
    for run in np.split(absent, np.flatnonzero(np.diff(absent) > 1) + 1):
        if not len(run):
            continue
        before = num_lengths[max(shortest, run[0] - _NEIGHBOURS) : run[0]]
        behind = num_lengths[run[-1] + 1 : min(longest, most - 1, run[-1] + _NEIGHBOURS) + 1]
        sides = [side.mean() for side in (before, behind) if len(side)]
        if min(sides) >= _MANY:
            span = f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}"
            yield f"no sample of {span} tokens, but about {min(sides):,.0f} of each length beside"
