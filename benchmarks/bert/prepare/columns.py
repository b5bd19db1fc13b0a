"""The data sets of a shard in parts in, the shard file out: byte for byte what `data.shards.write_shard` writes."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from benchmarks.bert.data.shards import DTYPES, FORMAT
from benchmarks.bert.files import atomic_write

Columns = Mapping[str, tuple[int, Iterable[np.ndarray]]]  # by data set: its size, and its values in parts


def write_columns(path: Path, columns: Columns, *, vocabulary_sha256: str, recipe: str) -> str:
    """Write one shard, whole or not at all; returns its checksum. `recipe` is text that identifies how it was made."""
    digest = hashlib.sha256()
    with new_hdf5(path, libver="latest", alignment_threshold=1, alignment_interval=8) as (file, disk):
        for name, dtype in DTYPES.items():
            size, parts = columns[name]
            data_set = file.create_dataset(name, (size,), dtype)
            written = 0
            for values in parts:
                part = np.ascontiguousarray(values, dtype)
                digest.update(part.data)
                data_set[written : written + len(part)] = part
                written += len(part)
                disk.check()
        attributes = {
            "format": FORMAT,
            "num_samples": columns["nsp"][0],
            "num_tokens": columns["tokens"][0],
            "vocabulary_sha256": vocabulary_sha256,
            "recipe": recipe,
            "sha256": digest.hexdigest(),
        }
        for name, value in attributes.items():
            file.attrs[name] = np.bytes_(value.encode()) if isinstance(value, str) else value
    return digest.hexdigest()


@contextmanager
def new_hdf5(path: Path, **options: Any) -> Iterator[tuple[h5py.File, Disk]]:
    """A new HDF5 file that takes its name when it is whole, and the disk below it, to be checked after each write."""
    with atomic_write(path) as temporary, Disk(temporary) as disk:
        with h5py.File(disk, "w", **options) as file:
            yield file, disk
        disk.check()


class Disk(io.FileIO):
    """A file whose refused writes are kept for `check`: where a write fails under it, the HDF5 library can crash."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self._error: OSError | None = None

    def write(self, content: memoryview) -> int:  # type: ignore[override]
        left = memoryview(content).cast("B")
        try:
            while left and self._error is None:
                left = left[super().write(left) :]
        except OSError as error:
            self._error = error
        return memoryview(content).nbytes

    def check(self) -> None:
        """Raise the first refusal."""
        if self._error is not None:
            raise self._error
