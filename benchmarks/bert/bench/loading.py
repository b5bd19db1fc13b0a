"""A number of made-up samples in, how fast they are loaded out: ours beside a plain DataLoader over fixed-length HDF5.

    python -m benchmarks.bert.bench loading                        # everything in the page cache
    python -m benchmarks.bert.bench loading --samples 400000 --cold  # ours with caches dropped (needs root)

The lengths are the benchmark's, the shards written by the project's own writer, the fixed-length files by its exporter.
A batch is 56 samples at random: of ours packed tensors, of the other padded ones. The plain DataLoader is measured in
two forms: rows read from the file as they are asked for, and whole files read into memory before, as published trees
do (that reading is not counted). Where NVIDIA DALI is installed, ours is measured through its pipeline too. Rounds
alternate, so that a neighbour on the machine slows all.

`--cold` prints what a consumer that takes a batch every 20 ms waits for it, with and without read-ahead, and what it
takes to open a shard: few samples in a shard (`--in-shard`) make many shards.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.bert.bench.lengths import representative, wikipedia_shares
from benchmarks.bert.bench.made_up import made_up_samples
from benchmarks.bert.config import ConfigError
from benchmarks.bert.data.ahead import read_ahead
from benchmarks.bert.data.dataset import read_data_set
from benchmarks.bert.data.loader import micro_batches
from benchmarks.bert.data.loaders import MicroBatches, choose_loader
from benchmarks.bert.data.manifest import Manifest, write_lengths, write_manifest
from benchmarks.bert.data.shards import write_shard
from benchmarks.bert.prepare.exporting import export_fixed

_BATCH, _EVERY_S = 56, 0.020
_SHORTEST, _MAX_LENGTH, _VOCABULARY = 5, 512, 30522
_ROUNDS, _ROUND_S = 3, 2.0
_ROWS = 200
_CPU = torch.device("cpu")
_DALI = "ours through DALI, `LOADER=dali`"
_DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bert.bench loading")
    parser.add_argument("--samples", type=int, default=40_000)
    parser.add_argument("--in-shard", type=int, default=10_000, help="samples of a shard")
    parser.add_argument("--cold", action="store_true", help="drop the page caches; the plain loaders are left out")
    parser.add_argument("--batches", type=int, default=150, help="taken for each line of --cold")
    parser.add_argument("--folder", type=Path, help="where the samples are written for the time; default: /tmp")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name) / "packed"
        _write(folder, options.samples, options.in_shard)
        if options.cold:
            _print_cold(folder, options.batches)
            _print_opening(folder)
        else:
            export_fixed(folder, Path(name) / "fixed", dtype="int16", num_processes=1, say=lambda _: None)
            _print_rates(folder, sorted((Path(name) / "fixed").glob("*.hdf5")))


def _write(folder: Path, num_samples: int, num_in_shard: int) -> None:
    lengths = representative(wikipedia_shares(), num_samples, _MAX_LENGTH)
    lengths = np.random.default_rng(0).permutation(np.maximum(lengths, _SHORTEST))
    shards = []
    for first in range(0, num_samples, num_in_shard):
        arrays = made_up_samples(lengths[first : first + num_in_shard], _VOCABULARY, seed=first)
        name = f"part_{first:09d}.hdf5"
        checksum = write_shard(folder / name, arrays, vocabulary_sha256="", recipe="")
        shards.append((name, len(arrays), checksum))
    lengths_sha256 = write_lengths(folder, lengths)
    total = int(lengths.sum())
    write_manifest(folder, Manifest(num_samples, total, _MAX_LENGTH, 76, "", "", lengths_sha256, tuple(shards)))


def _random_rows(num_samples: int) -> Iterator[np.ndarray]:
    generator = np.random.default_rng(1)
    while True:
        yield generator.integers(num_samples, size=_BATCH)


def _ours(folder: Path, *, ahead: bool = True, loader: MicroBatches = micro_batches) -> Iterator[object]:
    data = read_data_set(folder)
    store = data.open("headers")
    rows = _random_rows(len(data.lengths))
    plan = read_ahead(rows, store.prefetch) if ahead else rows
    return loader(store, plan, num_micro_batches=1, device=_CPU)


class _FixedRows(Dataset[dict[str, np.ndarray]]):
    """Rows of fixed-length files; an HDF5 handle is opened by the process that uses it."""

    def __init__(self, files: list[Path], *, in_memory: bool) -> None:
        self._files = files
        self._opened: list[dict[str, np.ndarray]] | list[h5py.File] = []
        if in_memory:
            self._opened = [{name: data[:] for name, data in h5py.File(file).items()} for file in files]
        counts = [len(h5py.File(file)["next_sentence_labels"]) for file in files]
        self._first = np.cumsum([0, *counts])

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        if not self._opened:
            self._opened = [h5py.File(file) for file in self._files]
        file = int(np.searchsorted(self._first, number, side="right")) - 1
        row = number - self._first[file]
        return {name: np.asarray(data[row], np.int64) for name, data in self._opened[file].items()}


def _plain(files: list[Path], *, num_workers: int, in_memory: bool) -> Iterator[object]:
    rows = _FixedRows(files, in_memory=in_memory)
    while True:
        yield from DataLoader(rows, _BATCH, shuffle=True, num_workers=num_workers, drop_last=True)


def _loaders(folder: Path, files: list[Path]) -> dict[str, Callable[[], Iterator[object]] | None]:
    """By name; None for what is not installed."""
    loaders: dict[str, Callable[[], Iterator[object]] | None] = {"ours, one thread": lambda: _ours(folder)}
    try:
        through_dali = choose_loader("dali", _CPU)
    except ConfigError:
        loaders[_DALI] = None
    else:
        loaders[_DALI] = lambda: _ours(folder, loader=through_dali)
    for in_memory in (False, True):
        for num_workers in (0, 2):
            kind = "files in memory" if in_memory else "rows from the file"
            loaders[f"DataLoader, {kind}, {num_workers} workers"] = lambda m=in_memory, n=num_workers: _plain(  # type: ignore[misc]
                files, num_workers=n, in_memory=m
            )
    return loaders


def _print_rates(folder: Path, files: list[Path]) -> None:
    loaders = _loaders(folder, files)
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(_ROUNDS):
        for name, make in loaders.items():
            if make:
                rates[name].append(_samples_per_s(make()))
    ours = rates["ours, one thread"]
    print(f"batches of {_BATCH}, everything in the page cache; median of {_ROUNDS} rounds of {_ROUND_S:.0f} s")
    print("| loader | samples/s | ours over it |")
    print("|---|---|---|")
    for name, rate in rates.items():
        if rate:
            ratio = statistics.median(a / b for a, b in zip(ours, rate, strict=True))
            print(f"| {name} | {statistics.median(rate):,.0f} | {ratio:.1f} |")
        else:
            print(f"| {name} | not installed | |")


def _samples_per_s(batches: Iterator[object]) -> float:
    for _ in islice(batches, 3):  # what starts only once
        pass
    started, count = time.perf_counter(), 0
    while (passed_s := time.perf_counter() - started) < _ROUND_S:
        next(batches)
        count += _BATCH
    return count / passed_s


def _print_cold(folder: Path, num_batches: int) -> None:
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{size / 1e6:,.0f} MB, {len(list(folder.glob('*.hdf5')))} shards, caches dropped before each line;")
    print(f"{num_batches} batches of {_BATCH}, one every {_EVERY_S * 1000:.0f} ms or as fast as they come")
    print("| | first batch, ms | then waited, mean ms | most ms | batches later than 1 ms | as fast as they come, ms |")
    print("|---|---|---|---|---|---|")
    for ahead in (False, True):
        first_ms, waits_ms = _waits(folder, num_batches, ahead=ahead, every_s=_EVERY_S)
        _, fastest_ms = _waits(folder, num_batches, ahead=ahead, every_s=0.0)
        print(
            f"| {'with' if ahead else 'without'} read-ahead | {first_ms:.1f} | {statistics.mean(waits_ms):.2f} | "
            f"{max(waits_ms):.1f} | {sum(wait > 1 for wait in waits_ms)} | {statistics.mean(fastest_ms):.2f} |"
        )


def _print_opening(folder: Path) -> None:
    """By the processor's time of this thread, the files in the page cache."""
    data = read_data_set(folder)
    store = data.open("headers")
    starts = np.cumsum([0, *(count for _, count, _ in data.manifest.shards[:-1])])
    before = time.thread_time()
    store.prefetch(starts)
    opened = time.thread_time()
    for row_K in islice(_random_rows(len(data.lengths)), _ROWS):
        store.pack(row_K)
    per_sample_s = (time.thread_time() - opened) / (_ROWS * _BATCH)
    print(f"opening a shard takes as long as reading {(opened - before) / len(starts) / per_sample_s:.0f} samples")


def _waits(folder: Path, num_batches: int, *, ahead: bool, every_s: float) -> tuple[float, list[float]]:
    """Milliseconds that the first and each later batch was waited for."""
    _sync(folder.iterdir())
    _DROP_CACHES.write_text("3")
    batches = _ours(folder, ahead=ahead)
    waits_ms = []
    for _ in range(num_batches):
        started = time.perf_counter()
        next(batches)
        waits_ms.append((time.perf_counter() - started) * 1000)
        time.sleep(every_s)
    return waits_ms[0], waits_ms[1:]


def _sync(files: Iterable[Path]) -> None:
    """Only what is on the disk can be dropped from the cache."""
    for file in files:
        with open(file, "rb+") as opened:
            os.fsync(opened.fileno())


if __name__ == "__main__":
    main()
