"""Lengths and a seed in, which samples form each global batch out: any places of any step's batch, at once.

A draw is made in two moves. What depends on the lengths alone is found once, when the object is made. `epoch` then
takes the words of a key and gives a function of steps (G, int64) and places in their batches (G, J, uint32) to sample
numbers (G, J, int64). Over the steps of an epoch, `num_samples // batch`, no number comes twice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Protocol

import numpy as np

from benchmarks.bert.data.permutation import Permutation, key_of
from benchmarks.bert.data.strata import Strata, StrataIndex, taken_GS

Numbers = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Draw(Protocol):
    def epoch(self, *words: int) -> Numbers: ...


class Shuffled:
    """A plain shuffle of all samples."""

    def __init__(self, lengths: np.ndarray, batch: int) -> None:
        self._num_samples, self._batch = len(lengths), batch

    def epoch(self, *words: int) -> Numbers:
        order = Permutation(self._num_samples, key_of(*words))
        return lambda steps_G, places_GJ: order((steps_G * self._batch).astype(np.uint32)[:, None] + places_GJ)


class Stratified:
    """Every stratum's quota of the samples from `low` to `high` - 1, drawn at random within it.

    A batch lists its strata from short to long.
    """

    def __init__(self, index: StrataIndex, batch: int, low: int, high: int) -> None:
        self._index, self._batch = index, batch
        self._before_S = index.counts_before(low)
        self._counts_S = index.counts_before(high) - self._before_S

    def epoch(self, *words: int) -> Numbers:
        orders = _orders(self._counts_S, *words)

        def numbers(steps_G: np.ndarray, places_GJ: np.ndarray) -> np.ndarray:
            taken = taken_GS(self._counts_S, self._batch, steps_G)
            quotas = taken_GS(self._counts_S, self._batch, steps_G + 1) - taken
            ends = np.cumsum(quotas, axis=1)
            starts = ends - quotas
            found = np.empty(places_GJ.shape, np.int64)
            for s, order in orders.items():
                rows, columns = np.nonzero((places_GJ >= starts[:, s, None]) & (places_GJ < ends[:, s, None]))
                places = taken[rows, s] + places_GJ[rows, columns] - starts[rows, s]
                found[rows, columns] = self._index.find(s, self._before_S[s] + order(places))
            return found

        return numbers


class InParts:
    """As many equal runs of sample numbers as there are parts, a stratified draw of each; place j is of part j mod P.

    Part p holds the samples from floor(n p / P) to floor(n (p + 1) / P) - 1. A row asks for places of one part.
    """

    def __init__(self, index: StrataIndex, num_samples: int, batch: int, num_parts: int) -> None:
        bounds = [num_samples * p // num_parts for p in range(num_parts + 1)]
        self._parts = [Stratified(index, batch // num_parts, low, high) for low, high in pairwise(bounds)]

    def epoch(self, *words: int) -> Numbers:
        @cache
        def of_part(p: int) -> Numbers:
            return self._parts[p].epoch(*words, p)

        def numbers(steps_G: np.ndarray, places_GJ: np.ndarray) -> np.ndarray:
            part_G = places_GJ[:, 0] % len(self._parts)
            found = np.empty(places_GJ.shape, np.int64)
            for p in np.unique(part_G).tolist():
                found[part_G == p] = of_part(p)(steps_G[part_G == p], places_GJ[part_G == p] // len(self._parts))
            return found

        return numbers


class OneBin:
    """Batches of one stratum each, as LDDL's bins, in an order drawn at random; the last few hold what is left over.

    Whole batches of a stratum come in the order of a shuffle, which is to draw a stratum at each step with a
    probability proportional to the batches that it has left. What is less than a batch in each stratum is strung
    together from short to long and makes batches of neighbouring strata, as many as it fills, at random steps too.
    """

    def __init__(self, index: StrataIndex, num_samples: int, batch: int) -> None:
        self._index, self._batch = index, batch
        self._counts_S = index.counts_before(num_samples)
        self._num_steps = num_samples // batch

    def epoch(self, *words: int) -> Numbers:
        orders = _orders(self._counts_S, *words)
        kinds = Permutation(self._num_steps, key_of(*words, len(self._counts_S)))
        whole_S = self._counts_S // self._batch
        rest_S = self._counts_S - whole_S * self._batch
        # As samples strung together: first all whole batches, stratum by stratum, then all rests.
        first_2S = np.concatenate([[0], np.cumsum(np.concatenate([whole_S * self._batch, rest_S]))])

        def numbers(steps_G: np.ndarray, places_GJ: np.ndarray) -> np.ndarray:
            strung = kinds(steps_G)[:, None] * self._batch + places_GJ
            of_2S = np.searchsorted(first_2S, strung, side="right") - 1
            found = np.empty(places_GJ.shape, np.int64)
            for of in np.unique(of_2S).tolist():
                s = of % len(whole_S)
                here = of_2S == of
                before = whole_S[s] * self._batch if of >= len(whole_S) else 0
                found[here] = self._index.find(s, orders[s](before + strung[here] - first_2S[of]))
            return found

        return numbers


def _orders(counts_S: np.ndarray, *words: int) -> dict[int, Permutation]:
    """The order of each stratum that is not empty."""
    return {s: Permutation(count, key_of(*words, s)) for s, count in enumerate(counts_S.tolist()) if count}


def shuffled(lengths: np.ndarray, batch: int, strata: Strata, num_nodes: int) -> Draw:
    return Shuffled(lengths, batch)


def stratified(lengths: np.ndarray, batch: int, strata: Strata, num_nodes: int) -> Draw:
    return Stratified(StrataIndex(lengths, strata), batch, 0, len(lengths))


def stratified_in_parts(lengths: np.ndarray, batch: int, strata: Strata, num_nodes: int) -> Draw:
    return InParts(StrataIndex(lengths, strata), len(lengths), batch, num_nodes)


def one_bin(lengths: np.ndarray, batch: int, strata: Strata, num_nodes: int) -> Draw:
    return OneBin(StrataIndex(lengths, strata), len(lengths), batch)
