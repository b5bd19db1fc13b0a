"""One rank's plan and a data folder in, its packed micro-batches out, prepared ahead by one thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from benchmarks.bert.data.batch import PackedBatch, pack
from benchmarks.bert.data.manifest import LENGTHS, MANIFEST, Manifest
from benchmarks.bert.data.shards import SampleArrays, ShardError, open_shard

_AHEAD = 2  # steps prepared before they are asked for


class SampleStore:
    """All samples of a data folder by number, through memory maps; opening it is the first touch of the data."""

    def __init__(self, folder: Path, manifest: Manifest, lengths: np.ndarray, *, max_length: int) -> None:
        """Raises ShardError for a shard that cannot be used, or whose samples are not those that `lengths` tell of."""
        self._shards: list[SampleArrays] = [
            open_shard(
                folder / name, vocabulary_sha256=manifest.vocabulary_sha256, max_length=max_length, sha256=checksum
            )
            for name, _, checksum in manifest.shards
        ]
        self._first = np.cumsum([0, *(len(shard) for shard in self._shards)])
        for (name, count, _), shard, first in zip(manifest.shards, self._shards, self._first, strict=False):
            if len(shard) != count or not np.array_equal(shard.lengths, lengths[first : first + count]):
                raise ShardError(
                    f"{folder / name}: its samples' number or lengths are not those of {MANIFEST} and {LENGTHS}; "
                    f"delete {folder / MANIFEST} and run ./init_datasets.sh"
                )

    def pack(self, numbers: Sequence[int] | np.ndarray) -> PackedBatch:
        """The samples of these numbers as one packed batch, in the order given."""
        shards = np.searchsorted(self._first, numbers, side="right") - 1
        return pack([(self._shards[s], int(n - self._first[s])) for s, n in zip(shards, numbers, strict=True)])


def as_packed(batch: PackedBatch) -> PackedBatch:
    return batch


def micro_batches(
    store: SampleStore,
    plan: Iterable[np.ndarray],
    *,
    num_micro_batches: int,
    device: torch.device,
    finish: Callable[[PackedBatch], PackedBatch] = as_packed,
) -> Iterator[list[PackedBatch]]:
    """For each row of a rank's plan, its samples of a step: these as `num_micro_batches` packed batches on `device`.

    A row of fewer samples makes as many micro-batches as it has samples.

    `finish` is what the reading thread does to each before it goes there. An error of that thread is raised at the
    step that it concerns.
    """

    def prepare(row_K: np.ndarray) -> list[PackedBatch]:
        # Every n-th sample: samples come longest first, and micro-batches are to be level too.
        count = min(num_micro_batches, len(row_K))
        shares = (row_K[first::count] for first in range(count))
        return [finish(store.pack(share)).to(device) for share in shares]

    rows = iter(plan)
    with ThreadPoolExecutor(1, thread_name_prefix="loader") as reader:
        ahead: deque[Future[list[PackedBatch]]] = deque(reader.submit(prepare, row) for row in islice(rows, _AHEAD))
        try:
            while ahead:
                ready = ahead.popleft().result()
                ahead.extend(reader.submit(prepare, row) for row in islice(rows, 1))
                yield ready
        finally:
            for waiting in ahead:
                waiting.cancel()
