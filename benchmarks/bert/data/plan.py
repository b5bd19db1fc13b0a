"""Lengths, seed and world in, plan out: which samples each rank trains on at each step.

Every rank computes its own row of the plan, from the same lengths and seed, a window of steps at a time: balance costs
no communication, and any step can be the first. Within an epoch no sample repeats, and none is left out but the last
incomplete global batch. docs/plan.md has what each strategy promises, and the formulae.

A strategy is three choices, and `STRATEGIES` is the list of them:

    draw   which samples form the global batch of a step (`draw.py`)
    group  who shares them: a batch is given out in turn to each rank, to each node, or is not divided
    deal   who in a group gets which of its samples, sorted by length (`deal.py`)

Who is dealt to first is drawn: every rank once in as many steps as there are ranks. A fixed rotation can fall into
step with the quotas and favour a rank for a whole epoch.

Shapes: G steps, J samples of a group and step, R ranks, K samples of a rank and step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.bert.data.deal import BERT_LARGE_TOKEN, Deal, alone, least_loaded, serpentine, work_of
from benchmarks.bert.data.draw import Draw, one_bin, shuffled, stratified, stratified_in_parts
from benchmarks.bert.data.permutation import Permutation, hashed, key_of
from benchmarks.bert.data.strata import Strata

_WINDOW = 1 << 17  # samples of a group that are planned at a time; a few megabytes
_LONGEST_WINDOW = 128  # steps
_FIRST_RANKS = 1 << 20  # tells the key of who is dealt to first from those of strata


@dataclass(frozen=True)
class Layout:
    """Who shares a global batch: `num_nodes` nodes of `ranks_per_node` ranks, `per_rank` samples each on average."""

    num_nodes: int
    ranks_per_node: int
    per_rank: int

    @property
    def num_ranks(self) -> int:
        return self.num_nodes * self.ranks_per_node

    @property
    def global_batch(self) -> int:
        return self.num_ranks * self.per_rank


@dataclass(frozen=True)
class Promises:
    """What a strategy keeps to whatever the lengths are; tests/unit/test_plan_promises.py tries each."""

    balance: str  # in words
    random_order: bool = True  # every step has the same mix of lengths but for chance; if not, steps are shuffled
    fixed_count: bool = True  # every rank has `per_rank` samples at every step
    node_local: bool = False  # a node only ever reads its own, equal run of sample numbers
    any_nodes: bool = True  # a step's set of samples is the same for any number of nodes sharing the global batch


@dataclass(frozen=True)
class Strategy:
    draw: Callable[[np.ndarray, int, Strata, int], Draw]  # of lengths, global batch, strata, number of nodes
    num_groups: Callable[[Layout], int]
    deal: Deal
    promises: Promises

    @property
    def draws_at_random(self) -> bool:
        """Whether which samples form a global batch does not depend on their lengths."""
        return self.draw is shuffled


def _each_rank(layout: Layout) -> int:
    return layout.num_ranks


def _each_node(layout: Layout) -> int:
    return layout.num_nodes


def _all_at_once(layout: Layout) -> int:
    return 1


_OF_NODE = "the ranks of a node differ by at most one longest sample"
STRATEGIES = {
    "random": Strategy(shuffled, _each_rank, alone, Promises("none")),
    "stratified": Strategy(stratified, _each_rank, alone, Promises("every rank has its part of every quota")),
    "stratified_presort": Strategy(
        stratified, _each_node, serpentine, Promises(f"every node has its part of every quota; {_OF_NODE}")
    ),
    "stratified_local": Strategy(
        stratified_in_parts,
        _each_node,
        serpentine,
        Promises(f"every node has its own quotas; {_OF_NODE}", node_local=True, any_nodes=False),
    ),
    "global_presort": Strategy(
        shuffled, _all_at_once, serpentine, Promises("all ranks differ by at most one longest sample")
    ),
    "least_loaded": Strategy(
        shuffled,
        _all_at_once,
        least_loaded,
        Promises("all ranks differ by at most one longest sample's work", fixed_count=False),
    ),
    "same_bin": Strategy(
        one_bin, _each_rank, alone, Promises("all samples of a step are of one stratum", random_order=False)
    ),
}


class PlanError(ValueError):
    """No plan can be made; the message says which numbers do not fit and what to change."""


def check_plan(num_samples: int, layout: Layout) -> None:
    """Raise PlanError where there is less than one global batch of samples."""
    if num_samples < layout.global_batch:
        raise PlanError(
            f"{num_samples} training samples are fewer than one global batch of {layout.global_batch} "
            f"({layout.num_ranks} ranks x {layout.per_rank}); lower BATCH_SIZE or prepare more samples"
        )


class Planner:
    """What planning needs of the lengths, found once: nothing for a shuffle, an index of strata for the others.

    Nothing is drawn here: the seed comes with `epoch`.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        layout: Layout,
        strata: Strata,
        *,
        strategy: str,
        per_token: int = BERT_LARGE_TOKEN,
    ) -> None:
        """`lengths` may be a memory map. `per_token` is `token_work` of the model. Raises PlanError as `check_plan`."""
        check_plan(len(lengths), layout)
        self.layout = layout
        self.num_steps = len(lengths) // layout.global_batch  # of an epoch
        self._strategy = STRATEGIES[strategy]
        self._lengths = np.asarray(lengths)  # of a memory map too: as such every access costs some microseconds more
        self._draw = self._strategy.draw(self._lengths, layout.global_batch, strata, layout.num_nodes)
        self._work = work_of(strata.max_length, per_token)

    @property
    def window(self) -> int:
        """Steps to plan at a time: few enough that the first does not wait long for the others."""
        of_group = self.layout.global_batch // self._strategy.num_groups(self.layout)
        return min(_LONGEST_WINDOW, max(1, _WINDOW // of_group))

    def epoch(self, seed: int, epoch: int) -> EpochPlan:
        return EpochPlan(
            self.layout,
            self._strategy,
            self._lengths,
            self._work,
            self._draw.epoch(seed, epoch),
            key_of(seed, epoch, _FIRST_RANKS),
        )


class EpochPlan:
    """One epoch's plan; any part of it is computed when it is asked for."""

    def __init__(
        self,
        layout: Layout,
        strategy: Strategy,
        lengths: np.ndarray,
        work: np.ndarray,
        numbers: Callable[[np.ndarray, np.ndarray], np.ndarray],
        key: np.ndarray,
    ) -> None:
        self._layout, self._strategy = layout, strategy
        self._lengths, self._work, self._numbers = lengths, work, numbers
        self._num_groups = strategy.num_groups(layout)
        self._ranks_per_group = layout.num_ranks // self._num_groups
        self._rank_order = Permutation(layout.num_ranks, key)(np.arange(layout.num_ranks))
        self._rotation = key[0]

    def rows(self, steps_G: np.ndarray, rank: int) -> list[np.ndarray]:
        """The rank's samples at each of these steps, longest first, int64."""
        group, hand = divmod(rank, self._ranks_per_group)
        numbers_GJ, hands_GJ, first_G = self._dealt(steps_G, np.full(len(steps_G), group))
        hand_G = (hand - first_G) % self._ranks_per_group
        return [numbers[hands == hand] for numbers, hands, hand in zip(numbers_GJ, hands_GJ, hand_G, strict=True)]

    def all_rows(self, steps_G: np.ndarray) -> np.ndarray:
        """All ranks' rows, shape (G, R, K); where counts vary, K is the greatest and -1 stands behind the last."""
        groups = np.arange(self._num_groups)
        table_GRK = self._table(*self._dealt(np.repeat(steps_G, len(groups)), np.tile(groups, len(steps_G))))
        return table_GRK.reshape(len(steps_G), self._layout.num_ranks, -1)

    def _dealt(self, steps_G: np.ndarray, group_G: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What a group has of a step, longest first, and the hand that each is for, (G, J); the rank of hand 0, (G)."""
        first_group_G, first_G = np.divmod(self._first_rank(steps_G), self._ranks_per_group)
        if self._strategy.promises.node_local:
            first_group_G = np.zeros_like(first_group_G)
        num_samples = self._layout.global_batch // self._num_groups
        own_G = (group_G - first_group_G) % self._num_groups
        place_J = np.arange(num_samples, dtype=np.uint32) * np.uint32(self._num_groups)
        numbers_GJ = self._numbers(steps_G, own_G.astype(np.uint32)[:, None] + place_J)
        lengths_GJ = self._lengths.take(numbers_GJ)
        # Unsigned, and stable: equal lengths stay as they were drawn. 16 bits are sorted by radix.
        order_GJ = np.argsort(~lengths_GJ, axis=1, kind="stable")
        numbers_GJ, lengths_GJ = (np.take_along_axis(array, order_GJ, axis=1) for array in (numbers_GJ, lengths_GJ))
        return numbers_GJ, self._strategy.deal(lengths_GJ, self._work, self._ranks_per_group), first_G

    def _table(self, numbers_GJ: np.ndarray, hands_GJ: np.ndarray, first_G: np.ndarray) -> np.ndarray:
        """One row for each rank of a group, (G, ranks, K)."""
        order_GJ = np.argsort(hands_GJ, axis=1, kind="stable")
        numbers_GJ, hands_GJ = (np.take_along_axis(array, order_GJ, axis=1) for array in (numbers_GJ, hands_GJ))
        row_G1 = np.arange(len(first_G))[:, None]
        counts_GR = np.zeros((len(first_G), self._ranks_per_group), np.int64)
        np.add.at(counts_GR, (row_G1, hands_GJ), 1)
        starts_GR = np.cumsum(counts_GR, axis=1) - counts_GR
        place_GJ = np.arange(numbers_GJ.shape[1]) - np.take_along_axis(starts_GR, hands_GJ.astype(np.int64), axis=1)
        table_GRK = np.full((*counts_GR.shape, counts_GR.max()), -1, np.int64)
        table_GRK[row_G1, (hands_GJ + first_G[:, None]) % self._ranks_per_group, place_GJ] = numbers_GJ
        return table_GRK

    def _first_rank(self, steps_G: np.ndarray) -> np.ndarray:
        """One order of all ranks for the epoch, rotated at random in each round of as many steps."""
        rounds, places = np.divmod(steps_G, self._layout.num_ranks)
        rotation = hashed(rounds.astype(np.uint32), self._rotation) >> np.uint32(16)
        return (self._rank_order[places] + rotation.astype(np.int64)) % self._layout.num_ranks


def plan_steps(planner: Planner, *, seed: int, rank: int, start: int = 0) -> Iterator[np.ndarray]:
    """The rank's samples of each step from `start` on, epoch after epoch, without end: 1-D int64, longest first.

    Starting at t gives the suffix of starting at 0, and takes no longer: this is all that resuming needs.
    """
    epoch, step = divmod(start, planner.num_steps)
    while True:
        plan = planner.epoch(seed, epoch)
        for first in range(step, planner.num_steps, planner.window):
            yield from plan.rows(np.arange(first, min(first + planner.window, planner.num_steps)), rank)
        epoch, step = epoch + 1, 0


def plan_in_turns(planner: Planner, *, seed: int, ranks: Sequence[int], start: int = 0) -> Iterator[np.ndarray]:
    """The rows of several ranks: of each step one after the other, as a process takes them that acts as all of them."""
    for rows in zip(*(plan_steps(planner, seed=seed, rank=rank, start=start) for rank in ranks), strict=True):
        yield from rows


def plan_epoch(
    lengths: np.ndarray, layout: Layout, strata: Strata, *, strategy: str, seed: int, epoch: int
) -> np.ndarray:
    """One whole epoch for all ranks, shape (G, R, K), as `EpochPlan.all_rows`; for what is small enough to look at."""
    planner = Planner(lengths, layout, strata, strategy=strategy)
    return planner.epoch(seed, epoch).all_rows(np.arange(planner.num_steps))


def cost_of_ranks(plan_GRK: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """Sums of the ranks' samples, shape (G, R). `cost` is that of each sample of the data: its length, or its work."""
    return np.where(plan_GRK < 0, 0, cost[plan_GRK].astype(np.int64)).sum(axis=2)


def efficiency(cost_GR: np.ndarray) -> float:
    """Mean over greatest cost of a rank, weighted by time: the share that is no waiting; 1 is perfect."""
    return float(cost_GR.mean(axis=1).sum() / cost_GR.max(axis=1).sum())
