"""Lengths, seed and world in, plan out: which sample each rank trains on at each step.

The plan is one integer array `plan_GRK` (G steps, R ranks, K samples per rank and step) of sample numbers. It is
computed alike on every rank from the same lengths and seed: balance costs no communication. Within an epoch no
sample repeats, and none is left out but the last incomplete global batch. The *set* of samples of a step depends on
the lengths, the seed and the global batch R * K alone, so it is the same for any split into ranks and nodes.

A strategy is two choices, and `STRATEGIES` is the list of them:

    draw   which samples form the global batch of a step: a plain shuffle, or quotas from length strata
    deal   who gets which of them: as drawn, like cards, or sorted by length and dealt in serpentine order,
           inside each node (*Breaking MLPerf Training*, local presorting) or over all ranks

Who is dealt to first is drawn: every rank once in as many steps as there are ranks, in an order that is new each
time. A fixed rotation can fall into step with the quotas and favour a rank for a whole epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.bert.data.strata import quotas_GS, stratum_of


@dataclass(frozen=True)
class Layout:
    """Who shares a global batch: `num_nodes` nodes of `ranks_per_node` ranks, `per_rank` samples each."""

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
class Strata:
    """Equal ranges of length up to the longest sample allowed."""

    num_strata: int
    max_length: int


class PlanError(ValueError):
    """No plan can be made; the message says which numbers do not fit and what to change."""


def draw_random(lengths: np.ndarray, batch: int, strata: Strata, generator: np.random.Generator) -> np.ndarray:
    """Global batches by a plain shuffle, shape (G, batch)."""
    order = generator.permutation(len(lengths))
    return order[: len(order) // batch * batch].reshape(-1, batch)


def draw_stratified(lengths: np.ndarray, batch: int, strata: Strata, generator: np.random.Generator) -> np.ndarray:
    """Global batches with every stratum's quota, shape (G, batch); a row lists its strata from short to long."""
    stratum = stratum_of(lengths, strata.num_strata, strata.max_length)
    members = [generator.permutation(np.flatnonzero(stratum == s)) for s in range(strata.num_strata)]
    quotas = quotas_GS(np.array([len(member) for member in members]), batch)
    batches = np.empty((len(quotas), batch), np.int64)
    taken = np.zeros(strata.num_strata, np.int64)
    for row, quota in zip(batches, quotas, strict=True):
        row[:] = np.concatenate([m[t : t + q] for m, t, q in zip(members, taken, quota, strict=True)])
        taken += quota
    return batches


def in_turn(batch_N: np.ndarray, num_hands: int, first: int) -> np.ndarray:
    """Sample j to hand (first + j) mod num_hands, shape (hands, samples of each)."""
    return np.roll(batch_N.reshape(-1, num_hands).T, first, axis=0)


def serpentine(batch_N: np.ndarray, lengths: np.ndarray, num_hands: int, first: int) -> np.ndarray:
    """Sort by length, longest first, and deal rows of `num_hands` alternately forwards and backwards."""
    order = batch_N[np.argsort(-lengths[batch_N].astype(np.int64), kind="stable")].reshape(-1, num_hands)
    order[1::2] = order[1::2, ::-1]
    return np.roll(order.T, first, axis=0)


def deal_in_turn(batch_N: np.ndarray, lengths: np.ndarray, layout: Layout, first: int) -> np.ndarray:
    """To all ranks in turn, shape (R, K): a batch listed by stratum gives every rank its quota of each."""
    return in_turn(batch_N, layout.num_ranks, first)


def deal_node_presorted(batch_N: np.ndarray, lengths: np.ndarray, layout: Layout, first: int) -> np.ndarray:
    """To nodes in turn, so that each holds every stratum's quota, then serpentine inside each node."""
    first_node, first_rank = divmod(first, layout.ranks_per_node)
    per_node = in_turn(batch_N, layout.num_nodes, first_node)
    return np.concatenate([serpentine(node, lengths, layout.ranks_per_node, first_rank) for node in per_node])


def deal_all_presorted(batch_N: np.ndarray, lengths: np.ndarray, layout: Layout, first: int) -> np.ndarray:
    """Serpentine over all ranks at once."""
    return serpentine(batch_N, lengths, layout.num_ranks, first)


Draw = Callable[[np.ndarray, int, Strata, np.random.Generator], np.ndarray]
Deal = Callable[[np.ndarray, np.ndarray, Layout, int], np.ndarray]

STRATEGIES: dict[str, tuple[Draw, Deal]] = {
    "random": (draw_random, deal_in_turn),
    "stratified": (draw_stratified, deal_in_turn),
    "stratified_presort": (draw_stratified, deal_node_presorted),
    "global_presort": (draw_random, deal_all_presorted),
}


def check_plan(num_samples: int, layout: Layout) -> None:
    """Raise PlanError where there is less than one global batch of samples."""
    if num_samples < layout.global_batch:
        raise PlanError(
            f"{num_samples} training samples are fewer than one global batch of {layout.global_batch} "
            f"({layout.num_ranks} ranks x {layout.per_rank}); lower BATCH_SIZE or prepare more samples"
        )


def plan_epoch(
    lengths: np.ndarray, layout: Layout, strata: Strata, *, strategy: str, seed: int, epoch: int
) -> np.ndarray:
    """The plan of one epoch, shape (G, R, K), int64. Raises PlanError as `check_plan` does."""
    check_plan(len(lengths), layout)
    draw, deal = STRATEGIES[strategy]
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch])))
    batches = draw(lengths, layout.global_batch, strata, generator)
    firsts = _first_ranks(len(batches), layout.num_ranks, generator)
    return np.stack([deal(batch, lengths, layout, first) for batch, first in zip(batches, firsts, strict=True)])


def _first_ranks(num_steps: int, num_ranks: int, generator: np.random.Generator) -> list[int]:
    rounds = np.tile(np.arange(num_ranks), (-(-num_steps // num_ranks), 1))
    return generator.permuted(rounds, axis=1).ravel()[:num_steps].tolist()


def plan_steps(
    lengths: np.ndarray, layout: Layout, strata: Strata, *, strategy: str, seed: int, start: int = 0
) -> Iterator[np.ndarray]:
    """Rows (R, K) of the plan from step `start` on, epoch after epoch, without end.

    Starting at t gives the suffix of starting at 0: this is all that resuming needs.
    """
    steps_per_epoch = len(lengths) // layout.global_batch
    epoch, skip = divmod(start, max(1, steps_per_epoch))
    while True:
        yield from plan_epoch(lengths, layout, strata, strategy=strategy, seed=seed, epoch=epoch)[skip:]
        epoch, skip = epoch + 1, 0


def imbalance(plan_GRK: np.ndarray, lengths: np.ndarray) -> float:
    """Tokens of the fullest rank over the mean rank's, averaged over steps; 1 is perfect."""
    tokens_GR = lengths[plan_GRK].astype(np.int64).sum(axis=2)
    return float((tokens_GR.max(axis=1) / tokens_GR.mean(axis=1)).mean())
