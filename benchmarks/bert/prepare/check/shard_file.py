"""A shard file in, ranges of its data sets out, read with plain reads of the one open file.

A memory map would end the process where the disk fails; a file that is replaced meanwhile stays the old one here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from benchmarks.bert.data.shards import DTYPES, ShardError

_PART_VALUES = 1 << 20


class ShardFile:
    """`sizes` of the data sets, `attributes`, and their values. Every refusal is a ShardError without the path."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self._identity = _identity(os.fstat(descriptor))
        self._offsets: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        with os.fdopen(os.dup(descriptor), "rb") as raw, h5py.File(raw, "r") as file:
            self.attributes = {
                name: value.decode() if isinstance(value, bytes) else value for name, value in file.attrs.items()
            }
            for name, dtype in DTYPES.items():
                data_set = file.get(name)
                if not isinstance(data_set, h5py.Dataset) or data_set.dtype != np.dtype(dtype) or data_set.ndim != 1:
                    raise ShardError(f"data set {name} is missing or not one row of {dtype}")
                self.sizes[name] = len(data_set)
                self._offsets[name] = data_set.id.get_offset() or 0
                if self.sizes[name] and not self._offsets[name]:
                    raise ShardError(f"data set {name} is not contiguous")

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        dtype = np.dtype(DTYPES[name])
        content = bytearray((stop - start) * dtype.itemsize)
        place = self._offsets[name] + start * dtype.itemsize
        done = 0
        while done < len(content):
            part = os.pread(self._descriptor, len(content) - done, place + done)
            if not part:
                raise ShardError(f"it ends at byte {place + done:,}, within data set {name}")
            content[done : done + len(part)] = part
            done += len(part)
        return np.frombuffer(content, dtype)

    def sha256(self) -> str:
        """Of the content, as `data.shards.sha256_of`."""
        digest = hashlib.sha256()
        for name, size in self.sizes.items():
            for start in range(0, size, _PART_VALUES):
                digest.update(self.read(name, start, min(start + _PART_VALUES, size)).data)
        return digest.hexdigest()

    def is_replaced(self) -> bool:
        """Whether the path names another file by now, or this one was written since it was opened."""
        try:
            return _identity(os.stat(self._path)) != self._identity
        except FileNotFoundError:
            return True


@contextmanager
def open_shard_file(path: Path) -> Iterator[ShardFile]:
    """Raises ShardError for what cannot be read, now or while the file is open."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            yield _opened(path, descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ShardError(f"cannot read it ({error.strerror or ' '.join(str(error).split())})") from error


def _opened(path: Path, descriptor: int) -> ShardFile:
    try:
        return ShardFile(path, descriptor)
    except ShardError:
        raise
    except (RuntimeError, KeyError, ValueError) as error:  # the HDF5 library's, of a damaged file
        raise ShardError(f"cannot read it ({' '.join(str(error).split())})") from error


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
