"""Public results marked `fit` in, the constants of a cluster that are fitted to them out.

Rate and half-rate tokens from the time of a step with its share of an evaluation, by least squares on logarithms (Gauss
and Newton); the two parts of the start-up, which enter no step, from when the first accuracy came. Deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tools.simulate.cluster import Cluster, with_constants
from tools.simulate.deal import lengths_of_ranks
from tools.simulate.results import Result
from tools.simulate.run import Run, simulate_dealt

OF_STEP = ("matmul_flops_per_s", "half_tokens")
OF_START = ("start_s", "workers_s")
STEPS, SEED = 20, 1  # of a simulation that validates or fits
_ROUNDS = 12
_NUDGE = 1e-3  # of a logarithm, for derivatives
_FARTHEST = 0.7  # that a logarithm may move in one round


@dataclass(frozen=True)
class Dealt:
    """A result and what the planner deals for it."""

    result: Result
    share_L: np.ndarray
    lengths_GRK: np.ndarray

    @classmethod
    def of(cls, result: Result, share_L: np.ndarray) -> Dealt:
        return cls(result, share_L, lengths_of_ranks(result.job, share_L, STEPS, SEED))

    def run(self, cluster: Cluster) -> Run:
        return simulate_dealt(self.result.job, cluster, self.share_L, self.lengths_GRK, SEED)


def fitted(cluster: Cluster, rows: Sequence[Dealt]) -> Cluster:
    """The cluster with its four constants fitted to these results of it; raises ValueError where there are too few."""
    rows = [row for row in rows if not math.isnan(row.result.interval_s)]
    if len(rows) < len(OF_STEP):
        raise ValueError(
            f"{cluster.name}: {len(rows)} rows marked fit that tell the interval between evaluations; "
            f"{len(OF_STEP)} constants of a step need as many"
        )

    def residuals(logs: np.ndarray) -> np.ndarray:
        tried = with_constants(cluster, of_step(logs))
        return np.array([math.log(row.run(tried).interval_s / row.result.interval_s) for row in rows])

    logs = least_squares(residuals, np.log([getattr(cluster, name) for name in OF_STEP]))
    return with_constants(cluster, of_step(logs) | _start(rows))


def of_step(logs: np.ndarray) -> dict[str, float]:
    """The constants of a step from their logarithms."""
    return dict(zip(OF_STEP, np.exp(logs).tolist(), strict=True))


def least_squares(residuals: Callable[[np.ndarray], np.ndarray], start: np.ndarray) -> np.ndarray:
    x = start
    for _ in range(_ROUNDS):
        here = residuals(x)
        slopes = np.stack([(residuals(x + nudge) - here) / _NUDGE for nudge in _NUDGE * np.eye(len(x))], axis=1)
        x = x + np.clip(np.linalg.lstsq(slopes, -here, rcond=None)[0], -_FARTHEST, _FARTHEST)
    return x


def _start(rows: Sequence[Dealt]) -> dict[str, float]:
    """Geometric means of what came before the first interval, without workers and with; of none, nothing is said."""
    logs: dict[bool, list[float]] = {False: [], True: []}
    for row in rows:
        start_s = row.result.first_accuracy_s - row.result.interval_s
        if start_s > 0:  # not NaN
            logs[row.result.job.habits.starts_workers].append(math.log(start_s))
    means = {workers: math.exp(np.mean(values)) for workers, values in logs.items() if values}
    if False not in means:
        return {}
    return {"start_s": means[False]} | ({"workers_s": max(0.0, means[True] - means[False])} if True in means else {})
