"""The hashes of every shard's samples in, which samples stand twice and where out, in bounded memory.

The hashes wait in a nameless file (8 bytes a sample, in TMPDIR) and are compared range by range: whatever the number of
samples, some 16 million are sorted at once.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType

import numpy as np

from benchmarks.bert.prepare.check.hashes import has_many_predictions

_AT_ONCE = 1 << 24
_PART = 1 << 20  # hashes read at once


@dataclass
class Repeats:
    """Samples that are the same as an earlier one."""

    num_long: int = 0  # with so many predictions that chance cannot have made them
    first_long: tuple[int, int, int, int] | None = None  # shard and row of one, shard and row of that before
    across: Counter[tuple[int, int]] = field(
        default_factory=Counter
    )  # by its shard and the other's: in different shards


class Hashes:
    """As a context manager."""

    def __init__(self, at_once: int = _AT_ONCE) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._places: dict[int, tuple[int, int]] = {}  # by shard: first byte in the file, and how many hashes
        self._at_once = at_once

    def __enter__(self) -> Hashes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, shard: int, hashes: np.ndarray) -> None:
        self._places[shard] = self._file.tell(), len(hashes)
        self._file.write(np.ascontiguousarray(hashes, "<u8").data)

    def find(self) -> Repeats:
        found = Repeats()
        total = sum(size for _, size in self._places.values())
        num_ranges = 1 << max(0, -(-total // self._at_once) - 1).bit_length()
        for number in range(num_ranges):
            parts = list(self._of_range(number, num_ranges.bit_length() - 1))
            if parts:
                hashes, shards, rows = (np.concatenate(column) for column in zip(*parts, strict=True))
                _compare(hashes, shards, rows, found)
        return found

    def _of_range(self, number: int, bits: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Hash, shard and row of the samples whose hash begins with these bits."""
        for shard, (place, size) in sorted(self._places.items()):
            self._file.seek(place)
            for start in range(0, size, _PART):
                hashes = np.frombuffer(self._file.read(8 * min(_PART, size - start)), "<u8")
                own = np.flatnonzero(hashes >> np.uint64(64 - bits) == number) if bits else np.arange(len(hashes))
                yield hashes[own], np.full(len(own), shard, np.int32), (own + start).astype(np.uint32)


def _compare(hashes: np.ndarray, shards: np.ndarray, rows: np.ndarray, found: Repeats) -> None:
    order = np.argsort(hashes, kind="stable")
    hashes, shards, rows = hashes[order], shards[order], rows[order]
    again = np.flatnonzero(hashes[1:] == hashes[:-1]) + 1
    if not len(again):
        return
    long = again[has_many_predictions(hashes[again])]
    found.num_long += len(long)
    if len(long) and found.first_long is None:
        at = long[0]
        found.first_long = int(shards[at]), int(rows[at]), int(shards[at - 1]), int(rows[at - 1])
    pairs = np.stack([shards[again], shards[again - 1]], 1)
    pairs, counts = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0, return_counts=True)
    for (shard, other), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        found.across[shard, other] += count
