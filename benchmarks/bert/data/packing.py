"""A histogram of lengths in, packs of several samples that fill a fixed size out, before any run.

First-fit on the histogram (Krell et al., *Efficient Sequence Packing without Cross-contamination*), which takes as
long for a thousand samples as for a hundred million: lengths go from longest to shortest, each into an open pack that
has room, and a new one is begun where none has. Two rules choose the pack:

    LONGEST_FIRST    (LPFHP) the pack with the least room, and as many samples of the length at once as it holds
    SHORTEST_FIRST   (SPFHP) the pack with the most room, one sample

`assign` then says which samples lie in which pack. docs/plan.md says what packs cost and promise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from benchmarks.bert.data.permutation import Permutation, key_of

Pack = tuple[int, ...]  # lengths, longest first


@dataclass(frozen=True)
class Rule:
    choose: Callable[[Iterable[int]], int]  # of the rooms that are large enough
    repeats: bool


LONGEST_FIRST = Rule(min, repeats=True)
SHORTEST_FIRST = Rule(max, repeats=False)


@dataclass(frozen=True)
class Packing:
    """How many packs there are of each kind; all have the same size."""

    size: int
    counts: dict[Pack, int]

    @property
    def num_packs(self) -> int:
        return sum(self.counts.values())

    @property
    def num_samples(self) -> int:
        return sum(len(pack) * count for pack, count in self.counts.items())

    @property
    def efficiency(self) -> float:
        """The share of the packs' tokens that is no padding."""
        return sum(sum(pack) * count for pack, count in self.counts.items()) / (self.size * self.num_packs)

    def lengths(self) -> np.ndarray:
        """How many samples of each length there are, from 0 to `size`."""
        counts = np.zeros(self.size + 1, np.int64)
        for pack, count in self.counts.items():
            np.add.at(counts, list(pack), count)
        return counts


def pack_histogram(counts_L: np.ndarray, *, depth: int, rule: Rule = LONGEST_FIRST) -> Packing:
    """Packs of at most `depth` samples. `counts_L[l]` samples have length l; the largest l is the size of a pack.

    Every sample is in one pack. Raises ValueError for a depth below 1 and for samples of length 0.
    """
    if depth < 1 or counts_L[0]:
        raise ValueError(f"a depth of {depth} and {counts_L[0]} samples of length 0, expected at least 1 and none")
    size = len(counts_L) - 1
    opened: defaultdict[int, list[tuple[Pack, int]]] = defaultdict(list)  # by room
    closed: defaultdict[Pack, int] = defaultdict(int)
    for length in range(size, 0, -1):
        left = int(counts_L[length])
        while left:
            rooms = [room for room, packs in opened.items() if room >= length and packs]
            room = rule.choose(rooms) if rooms else size
            pack, available = opened[room].pop() if rooms else ((), left)
            times = min(room // length, depth - len(pack), left) if rule.repeats else 1
            count = min(available, left // times)
            if rooms and available > count:
                opened[room].append((pack, available - count))
            grown, room = pack + (length,) * times, room - times * length
            if room and len(grown) < depth:
                opened[room].append((grown, count))
            else:
                closed[grown] += count
            left -= times * count
    for pack, count in (each for packs in opened.values() for each in packs):
        closed[pack] += count
    return Packing(size, dict(closed))


def assign(lengths: np.ndarray, packing: Packing, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Which samples lie in each pack: numbers of all packs end to end, and where each begins (one more than packs).

    Samples of a length are interchangeable and go to packs at random, as do packs to places. All in memory, some 50
    bytes for each sample: what is larger is cut, and each piece packed for itself. Raises ValueError where `lengths`
    do not have the packing's histogram.
    """
    found = np.bincount(lengths, minlength=packing.size + 1)
    if not np.array_equal(found, packing.lengths()):
        raise ValueError(f"{len(lengths)} samples whose lengths are not those of the {packing.num_samples} packed")
    shuffled = Permutation(len(lengths), key_of(seed, 0))(np.arange(len(lengths)))
    by_length = shuffled[np.argsort(lengths[shuffled], kind="stable")]
    next_L = np.cumsum(found) - found
    place = Permutation(packing.num_packs, key_of(seed, 1))(np.arange(packing.num_packs))
    kinds = list(packing.counts.items())
    sizes = np.empty(packing.num_packs, np.int64)
    sizes[place] = np.repeat([len(pack) for pack, _ in kinds], [count for _, count in kinds])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    numbers = np.empty(len(lengths), np.int64)
    first = 0
    for pack, count in kinds:
        begin = starts[place[first : first + count]]
        for column, length in enumerate(pack):
            numbers[begin + column] = by_length[next_L[length] : next_L[length] + count]
            next_L[length] += count
        first += count
    return numbers, starts
