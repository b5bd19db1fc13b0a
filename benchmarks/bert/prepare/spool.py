"""Samples block by block in, one shard out, in the memory of a block: each data set grows in a nameless file first."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from benchmarks.bert.data.shards import DTYPES, SampleArrays
from benchmarks.bert.prepare.columns import write_columns

_PART_BYTES = 1 << 22


class Spool:
    """As a context manager; its files lie on the shard's disk, have no names and are gone whatever happens."""

    def __init__(self, folder: Path) -> None:
        self._stack = ExitStack()
        self._files: dict[str, BinaryIO] = {
            name: self._stack.enter_context(tempfile.TemporaryFile(dir=folder))  # noqa: SIM115
            for name in DTYPES
        }
        self._ends = {"token_offsets": 0, "mlm_offsets": 0}
        for name in self._ends:
            self._write(name, np.zeros(1, np.int64))
        self._lengths: list[np.ndarray] = []

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def lengths(self) -> np.ndarray:
        """Of all samples so far, uint16."""
        return np.concatenate([np.empty(0, np.uint16), *self._lengths])

    def add(self, samples: SampleArrays) -> None:
        for name, values in samples.items():
            if name in self._ends:
                self._write(name, values[1:] + self._ends[name])
                self._ends[name] += int(values[-1])
            else:
                self._write(name, values)
        self._lengths.append(samples.lengths.astype(np.uint16))

    def write(self, path: Path, *, vocabulary_sha256: str, recipe: str) -> str:
        """Make the shard; returns its checksum."""
        columns = {
            name: (file.tell() // np.dtype(DTYPES[name]).itemsize, _parts(file, DTYPES[name]))
            for name, file in self._files.items()
        }
        return write_columns(path, columns, vocabulary_sha256=vocabulary_sha256, recipe=recipe)

    def _write(self, name: str, values: np.ndarray) -> None:
        self._files[name].write(np.ascontiguousarray(values, DTYPES[name]).data)


def _parts(file: BinaryIO, dtype: str) -> Iterator[np.ndarray]:
    file.seek(0)
    while part := file.read(_PART_BYTES):
        yield np.frombuffer(part, dtype)
