"""Lengths in, how level each loading strategy keeps the ranks, and what planning costs, out.

    python -m benchmarks.bert.bench.balance                              # lengths of the default run's corpus
    python -m benchmarks.bert.bench.balance DIR                          # of another data folder
    python -m benchmarks.bert.bench.balance --histogram FILE.csv         # drawn from a table of length,count
    python -m benchmarks.bert.bench.balance --histogram FILE.csv --scale 156725653

The first three print mean over greatest work of a rank, with `--scale` what planning that many samples takes: seconds
per thousand steps for one rank, and the most memory that it holds beside the lengths, which are a memory map.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from benchmarks.bert.complaint import REFUSED, complain
from benchmarks.bert.data.dataset import read_data_set
from benchmarks.bert.data.deal import BERT_LARGE_TOKEN, work_of
from benchmarks.bert.data.manifest import ManifestError
from benchmarks.bert.data.packing import LONGEST_FIRST, SHORTEST_FIRST, pack_histogram
from benchmarks.bert.data.plan import STRATEGIES, Layout, Planner, cost_of_ranks, efficiency, plan_steps
from benchmarks.bert.data.strata import Strata

_LAYOUTS = [
    Layout(1, 8, 56),
    Layout(8, 8, 48),
    Layout(128, 8, 16),
    Layout(171, 8, 12),
    Layout(512, 8, 2),
    Layout(512, 8, 4),
]
_AT_SCALE = [Layout(128, 8, 16), Layout(171, 8, 12)]
_STRATA = {"stratified_presort": (4, 16), "same_bin": (8, 16)}  # as the paper's and finer; as LDDL's, for 512 tokens
_STEPS = 100  # that efficiency is taken over, where there are so many
_AT_A_TIME = 25  # steps
_TIMED_STEPS = 1000
_TRACED_STEPS = 50
_START = 3000  # of planning at scale, as if resumed there
_SEED = 1
_QUANTILES = 1 << 20
_CHUNK = 1 << 22


Result = TypeVar("Result")


class HistogramError(ValueError):
    """A table of lengths that cannot be used; the message says why."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bert.bench.balance")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("data/kjv"), help="a data folder")
    parser.add_argument("--histogram", type=Path, help="CSV of length,count with a heading, in place of a folder")
    parser.add_argument("--scale", type=int, default=0, help="measure planning of so many samples")
    parser.add_argument("--strategies", nargs="+", choices=list(STRATEGIES), default=list(STRATEGIES))
    options = parser.parse_args()
    try:
        if options.histogram:
            counts = read_histogram(options.histogram)
        else:
            data = read_data_set(options.folder / "train")
            counts = np.bincount(data.lengths, minlength=data.manifest.max_length + 1)
    except (HistogramError, ManifestError) as error:
        return complain(error, REFUSED)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lengths.npy"
        if options.scale:
            write_lengths(path, counts, options.scale)
            print_cost(np.load(path, mmap_mode="r"), len(counts) - 1, options.strategies)
        else:
            if options.histogram:
                write_lengths(path, counts, (1 + _STEPS) * max(layout.global_batch for layout in _LAYOUTS))
                lengths = np.load(path)
            else:
                lengths = data.lengths
            print_balance(lengths, len(counts) - 1, options.strategies)
            print_packing(counts)
    return 0


def read_histogram(path: Path) -> np.ndarray:
    """How many samples have each length from 0 on. Raises HistogramError."""
    try:
        with open(path, newline="") as file:
            rows = [(int(row["length"]), int(row["count"])) for row in csv.DictReader(file)]
    except OSError as error:
        raise HistogramError(f"{path}: cannot read it ({error.strerror})") from error
    except (KeyError, TypeError, ValueError) as error:
        raise HistogramError(f"{path}: expected whole numbers under the headings length,count ({error!r})") from error
    if not any(count for _, count in rows) or min(min(row) for row in rows) < 0:
        raise HistogramError(f"{path}: expected lengths and counts of at least 0, some above")
    counts = np.zeros(max(length for length, _ in rows) + 1, np.int64)
    np.add.at(counts, [length for length, _ in rows], [count for _, count in rows])
    return counts


def write_lengths(path: Path, counts_L: np.ndarray, num_samples: int) -> None:
    """So many lengths at random from the histogram, to one part in 2^20, as uint16."""
    shares = np.cumsum(counts_L) / counts_L.sum()
    quantiles = np.searchsorted(shares, (np.arange(_QUANTILES) + 0.5) / _QUANTILES).astype(np.uint16)
    generator = np.random.default_rng(_SEED)
    lengths = np.lib.format.open_memmap(path, "w+", np.uint16, (num_samples,))
    for start in range(0, num_samples, _CHUNK):
        count = min(_CHUNK, num_samples - start)
        lengths[start : start + count] = quantiles[generator.integers(0, _QUANTILES, count)]
    lengths.flush()


def _variants(strategies: Sequence[str]) -> list[tuple[str, int, str]]:
    """Strategy, number of strata and what to call it."""
    return [
        (strategy, num_strata, f"`{strategy}`" + (f", {num_strata} strata" if strategy in _STRATA else ""))
        for strategy in strategies
        for num_strata in _STRATA.get(strategy, (4,))
    ]


def print_balance(lengths: np.ndarray, max_length: int, strategies: Sequence[str]) -> None:
    layouts = [layout for layout in _LAYOUTS if layout.global_batch <= len(lengths)]
    work = work_of(max_length, BERT_LARGE_TOKEN)[lengths]
    print(f"mean / greatest work of a rank, {len(lengths):,} samples of {lengths.mean():.1f} tokens on average")
    _row("ranks x samples of each", *(f"{layout.num_ranks:,} x {layout.per_rank}" for layout in layouts))
    _row(*["---"] * (1 + len(layouts)))
    for strategy, num_strata, name in _variants(strategies):
        planners = [Planner(lengths, each, Strata(num_strata, max_length), strategy=strategy) for each in layouts]
        found = [_measured(planner, work) for planner in planners]
        _row(name, *(f"{share:.4f}" for share, *_ in found))
        if not STRATEGIES[strategy].promises.fixed_count:
            _row(f"{name}, samples of a rank", *(f"{fewest} to {most}" for _, fewest, most in found))


def _measured(planner: Planner, work: np.ndarray) -> tuple[float, int, int]:
    """Efficiency, and the fewest and most samples that a rank has."""
    plan = planner.epoch(_SEED, 0)
    costs, counts = [], []
    for first in range(0, min(_STEPS, planner.num_steps), _AT_A_TIME):
        plan_GRK = plan.all_rows(np.arange(first, min(first + _AT_A_TIME, planner.num_steps)))
        costs.append(cost_of_ranks(plan_GRK, work))
        counts.append((plan_GRK >= 0).sum(axis=2))
    counts_GR = np.concatenate(counts)
    return efficiency(np.concatenate(costs)), int(counts_GR.min()), int(counts_GR.max())


def print_packing(counts_L: np.ndarray) -> None:
    print(f"\npacks of {len(counts_L) - 1} tokens")
    _row("rule, samples in a pack at most", "tokens that are no padding", "samples in a pack", "kinds of packs")
    _row(*["---"] * 4)
    for name, rule in (("longest first", LONGEST_FIRST), ("shortest first", SHORTEST_FIRST)):
        for depth in (3, 12):
            packing = pack_histogram(counts_L, depth=depth, rule=rule)
            mean = packing.num_samples / packing.num_packs
            _row(f"{name}, {depth}", f"{packing.efficiency:.2%}", f"{mean:.4f}", f"{len(packing.counts)}")


def print_cost(lengths: np.ndarray, max_length: int, strategies: Sequence[str]) -> None:
    print(f"planning of {len(lengths):,} samples for one rank, from step {_START} on")
    _row("", "ranks x samples of each", "made once, s", "first step, s", "1,000 steps, s", "of it CPU, s", "peak, MB")
    _row(*["---"] * 7)
    for strategy, num_strata, name in _variants(strategies):
        for layout in _AT_SCALE:
            if len(lengths) < layout.global_batch:
                continue

            make = partial(Planner, lengths, layout, Strata(num_strata, max_length), strategy=strategy)
            start = min(_START, len(lengths) // layout.global_batch - 1)
            planner, made_s, _ = _timed(make)
            rows = plan_steps(planner, seed=_SEED, rank=layout.num_ranks // 2, start=start)
            _, first_s, _ = _timed(partial(next, rows))
            _, thousand_s, cpu_s = _timed(partial(list, islice(rows, _TIMED_STEPS)))
            del planner, rows
            peak = _peak_bytes(make, start)
            figures = (f"{figure:.2f}" for figure in (made_s, first_s, thousand_s, cpu_s))
            _row(name, f"{layout.num_ranks:,} x {layout.per_rank}", *figures, f"{peak / 1e6:.0f}")


def _timed(work: Callable[[], Result]) -> tuple[Result, float, float]:
    """What `work` gives, the seconds it took and those that the processor did."""
    started, cpu_started = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - started, time.process_time() - cpu_started


def _peak_bytes(make: Callable[[], Planner], start: int) -> int:
    tracemalloc.start()
    try:
        planner = make()
        for _ in islice(plan_steps(planner, seed=_SEED, rank=0, start=start), _TRACED_STEPS):
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _row(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
