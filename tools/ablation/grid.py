"""Cells and a way to run a trial in, the trials of every cell out, a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait

from tools.ablation.plan import Cell, Run, most_urgent, next_run, samples_to_beat
from tools.pool import trial_pool
from tools.trial import OutOfTimeError, Trial

Results = dict[Cell, dict[tuple[int, int], Trial]]
# Of the run, the samples after which it may be ended, and whether it has to end.
RunOne = Callable[[Run, float, Callable[[], bool]], Trial]


def fill(
    cells: Sequence[Cell],
    run_one: RunOne,
    *,
    seeds: Sequence[int],
    num_rates: int,
    jobs: int = 1,
    after: Callable[[Run, Trial, Results], None] = lambda run, trial, results: None,
) -> Results:
    """Run what is due until nothing is; a cell has one run at a time, since the next depends on it.

    A cell whose run finds no time left is not asked again. Other errors of `run_one` end the whole, and
    so does a signal: what runs is told so.
    """
    results: Results = {cell: {} for cell in cells}
    open_cells = list(cells)
    running: dict[Future[Trial], Run] = {}
    with trial_pool(jobs) as (pool, cancelled):
        while True:
            while len(running) < jobs and (run := _due(open_cells, running, results, seeds, num_rates)):
                to_beat = samples_to_beat(run, results[run.cell], seeds[0])
                running[pool.submit(run_one, run, to_beat, cancelled)] = run
            if not running:
                return results
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                run = running.pop(future)
                try:
                    trial = future.result()
                except OutOfTimeError:
                    open_cells.remove(run.cell)
                    continue
                results[run.cell][run.place, run.seed] = trial
                after(run, trial, results)


def _due(
    cells: Sequence[Cell],
    running: Mapping[Future[Trial], Run],
    results: Results,
    seeds: Sequence[int],
    num_rates: int,
) -> Run | None:
    busy = {run.cell for run in running.values()}
    candidates = [
        (run, len(results[cell]))
        for cell in cells
        if cell not in busy and (run := next_run(cell, results[cell], seeds, num_rates))
    ]
    return most_urgent(candidates) if candidates else None
