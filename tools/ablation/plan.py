"""Cells and the trials that are done in, the trial that is due next out. No state of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tools.trial import Trial

OPTIMIZERS = ("adam", "lamb", "lans")
CLIPS = ("none", "global_after", "global_before", "bucket_before")
BATCHES = (64, 512, 2048)
UNIT = 8  # samples of a virtual rank
FACTOR = 10**0.25  # between neighbours of the grid of learning rates
# At batch 64; a cell's is larger by the root of its batch, the usual first guess for all three.
CENTRES = {"adam": 3e-3, "lamb": 6e-3, "lans": 1e-2}

Done = Mapping[tuple[int, int], Trial]  # of a cell, by place on its grid and seed


@dataclass(frozen=True)
class Cell:
    optimizer: str
    clip: str
    batch: int

    def rate(self, place: int) -> str:
        """The learning rate at a place of the grid, 0 its centre, of three digits."""
        return f"{CENTRES[self.optimizer] * math.sqrt(self.batch / 64) * FACTOR**place:.3g}"


@dataclass(frozen=True)
class Run:
    cell: Cell
    place: int
    seed: int


def cells_of(batches: Sequence[int]) -> list[Cell]:
    """The smallest batch first."""
    return [Cell(optimizer, clip, batch) for batch in sorted(batches) for optimizer in OPTIMIZERS for clip in CLIPS]


def tries(done: Done, seed: int) -> dict[int, Trial]:
    """Of the learning rates, by place: the runs with the first seed."""
    return {place: trial for (place, of), trial in done.items() if of == seed}


def best_place(tried: Mapping[int, Trial]) -> int:
    """Of equals the one nearest to the centre."""
    return min(tried, key=lambda place: (*tried[place].rank, abs(place), place))


def is_at_edge(tried: Mapping[int, Trial]) -> bool:
    """Whether the best rate lacks a neighbour: a better one may lie beyond."""
    best = best_place(tried)
    return best - 1 not in tried or best + 1 not in tried


def next_place(tried: Mapping[int, Trial], num_rates: int) -> int | None:
    """The centre, then what the best rate lacks of its two neighbours; None when it has both, or all tries are used.

    The rule and `num_rates` are the same for every cell.
    """
    if not tried:
        return 0
    if len(tried) >= num_rates:
        return None
    best = best_place(tried)
    return next((place for place in (best + 1, best - 1) if place not in tried), None)


def next_run(cell: Cell, done: Done, seeds: Sequence[int], num_rates: int) -> Run | None:
    """The ladder of rates with the first seed, then the best rate with the others."""
    first, *others = seeds
    tried = tries(done, first)
    if (place := next_place(tried, num_rates)) is not None:
        return Run(cell, place, first)
    best = best_place(tried)
    return next((Run(cell, best, seed) for seed in others if (best, seed) not in done), None)


def samples_to_beat(run: Run, done: Done, first_seed: int) -> float:
    """A rate that has taken as many samples without reaching the target is not the cell's best: no need to go on.

    Infinite for what has to take its course.
    """
    if run.seed != first_seed:
        return math.inf
    return min((trial.samples for trial in done.values() if trial.samples is not None), default=math.inf)


def most_urgent(due: Sequence[tuple[Run, int]]) -> Run:
    """Of runs with the number that their cell has done: all cells of a batch advance together, the smallest first."""
    return min(due, key=lambda entry: (entry[0].cell.batch, entry[1]))[0]
