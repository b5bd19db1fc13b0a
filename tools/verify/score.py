"""Runs of a folder in, the score out (training rules, Benchmark Results)."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from tools.verify.report import Rcp, Run, Score


def score(runs: Sequence[Run], rcp: Rcp | None, num_accelerators: int | None, *, counts: bool) -> Score | None:
    """None where fewer than three runs leave nothing between the fastest and the slowest."""
    if len(runs) < 3:
        return None
    minutes = tuple(run.minutes if run.converged else None for run in runs)
    order = sorted(range(len(runs)), key=lambda index: (minutes[index] is None, minutes[index] or 0.0))
    counted = order[1:-1]
    times = [time for index in counted if (time := minutes[index]) is not None]
    mean = statistics.fmean(times) if len(times) == len(counted) else None
    scored = [runs[index] for index in counted if runs[index].converged]
    return Score(
        minutes=minutes,
        dropped=(order[0], order[-1]),
        mean_minutes=mean,
        scaling=rcp.scaling if rcp and rcp.applies and rcp.passed else 1.0,
        spread=statistics.stdev(times) / mean if mean and len(times) > 1 else None,
        samples=_mean(run.samples for run in scored),
        samples_per_s=_mean(run.samples_per_s for run in scored),
        num_accelerators=num_accelerators,
        init_s=_mean(run.init_s for run in scored),
        eval_share=_mean(run.eval_share for run in scored),
        startup_s=_mean(run.startup_s for run in scored),
        counts=counts and mean is not None,
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
