"""A folder of shards and sample numbers in, those samples as flat arrays out; a shard is opened when first touched.

Samples are read by `pread`, not through memory maps. A page of a map that cannot be read, because the file was cut or
the disk fails, ends the process by SIGBUS; here it is an error that names the shard. And while a read waits for the
disk, other threads run.
"""

from __future__ import annotations

import hashlib
import os
import resource
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from benchmarks.bert.data.batch import PackedBatch, pack_arrays
from benchmarks.bert.data.manifest import LENGTHS, MANIFEST, Manifest
from benchmarks.bert.data.shards import (
    DTYPES,
    REMEDY,
    SampleArrays,
    ShardError,
    check_sha256,
    check_vocabulary,
    read_header,
)

_SIZES = {name: np.dtype(dtype).itemsize for name, dtype in DTYPES.items()}
_OFFSETS = ("token_offsets", "mlm_offsets")
_OF_SAMPLES = ("boundary", "nsp")
_CHUNK_BYTES = 1 << 20
_WILL_NEED = os.POSIX_FADV_WILLNEED
_OTHER_FILES = 256  # of this process, beside the shards


class SampleStore:
    """All samples of a data folder by number. Several threads may read, and processes that were forked off it."""

    def __init__(self, folder: Path, manifest: Manifest, lengths: np.ndarray, *, check: str = "content") -> None:
        """`check` is what a shard is held against the manifest and the lengths by when it is opened.

        "headers": its attributes, sizes and counts; "content": its checksum and every length too. Each sample's own
        length and masked positions are checked whenever it is read. Touches no shard. Raises ShardError where not as
        many files as there are shards may be open.
        """
        self._folder, self._manifest, self._lengths = folder, manifest, np.asarray(lengths)
        self._checks_content = check == "content"
        self._first = np.cumsum([0, *(count for _, count, _ in manifest.shards)])
        self._shards: list[_Shard | ShardError | None] = [None] * len(manifest.shards)
        self._locks = [threading.Lock() for _ in manifest.shards]
        _allow_open_files(folder, len(manifest.shards))

    def pack(self, numbers: Sequence[int] | np.ndarray) -> PackedBatch:
        """The samples of these numbers as one packed batch, in the order given."""
        return pack_arrays(self.read(numbers))

    def read(self, numbers: Sequence[int] | np.ndarray) -> SampleArrays:
        """The samples of these numbers, end to end in the order given.

        Raises ShardError where a shard cannot be used or read, or where a sample is not of the length it should be,
        IndexError for a number that there is none of.
        """
        numbers_B = np.asarray(numbers, np.int64)
        shards, rows = self._locate(numbers_B)
        for shard in set(shards):
            shard.check_unchanged()
        token_bounds_B2, mlm_bounds_B2 = (_gather(name, shards, rows, 2).reshape(-1, 2) for name in _OFFSETS)
        boundary_B, nsp_B = (_gather(name, shards, rows, 1) for name in _OF_SAMPLES)
        lengths_B, counts_B = np.diff(token_bounds_B2)[:, 0], np.diff(mlm_bounds_B2)[:, 0]
        is_sound_B = (lengths_B == self._lengths[numbers_B]) & (counts_B >= 0) & (boundary_B <= lengths_B)
        for bounds_B2, name in ((token_bounds_B2, "tokens"), (mlm_bounds_B2, "mlm_ids")):
            is_sound_B &= (bounds_B2[:, 0] >= 0) & (bounds_B2[:, 1] <= [shard.sizes[name] for shard in shards])
        self._refuse_unsound(is_sound_B, shards, rows)
        tokens = _gather("tokens", shards, token_bounds_B2[:, 0].tolist(), lengths_B.tolist())
        places, ids = (
            _gather(name, shards, mlm_bounds_B2[:, 0].tolist(), counts_B.tolist())
            for name in ("mlm_positions", "mlm_ids")
        )
        if len(outside := np.flatnonzero(places >= np.repeat(lengths_B, counts_B))):
            self._refuse_unsound(np.cumsum(counts_B) <= outside[0], shards, rows)
        return SampleArrays(
            tokens=tokens,
            token_offsets=np.concatenate([[0], np.cumsum(lengths_B)]),
            boundary=boundary_B,
            mlm_positions=places,
            mlm_ids=ids,
            mlm_offsets=np.concatenate([[0], np.cumsum(counts_B)]),
            nsp=nsp_B,
        )

    def prefetch(self, numbers: Sequence[int] | np.ndarray) -> None:
        """Ask the kernel to read these samples' pages, many at once. What cannot be read is left for `read` to meet."""
        with suppress(ShardError):
            shards, rows = self._locate(np.asarray(numbers, np.int64))
            for offsets, names in (("token_offsets", ("tokens",)), ("mlm_offsets", ("mlm_positions", "mlm_ids"))):
                bounds_B2 = _gather(offsets, shards, rows, 2).reshape(-1, 2)
                firsts, counts = bounds_B2[:, 0].tolist(), np.diff(bounds_B2)[:, 0].tolist()
                for name in names:
                    _will_need(name, shards, firsts, counts)

    def _locate(self, numbers_B: np.ndarray) -> tuple[list[_Shard], list[int]]:
        """The shard that holds each sample, opened, and its row there."""
        if len(numbers_B) and not 0 <= numbers_B.min() <= numbers_B.max() < self._first[-1]:
            raise IndexError(f"{self._folder}: no sample {numbers_B.max()}, {self._first[-1]} are there")
        shard_B = np.searchsorted(self._first, numbers_B, side="right") - 1
        return [self._shard(shard) for shard in shard_B.tolist()], (numbers_B - self._first[shard_B]).tolist()

    def _shard(self, number: int) -> _Shard:
        """Opened once, and refused once: later touches meet the same error."""
        shard = self._shards[number]
        if shard is None:
            with self._locks[number]:
                shard = self._shards[number]
                if shard is None:
                    try:
                        shard = self._open(number)
                    except ShardError as error:
                        shard = error
                    self._shards[number] = shard
        if isinstance(shard, ShardError):
            raise shard
        return shard

    def _open(self, number: int) -> _Shard:
        name, count, checksum = self._manifest.shards[number]
        shard = _Shard(self._folder / name)
        check_vocabulary(shard.path, shard.header, self._manifest.vocabulary_sha256)
        check_sha256(shard.path, str(shard.header.attributes["sha256"]), checksum)
        own_lengths = self._lengths[self._first[number] : self._first[number + 1]]
        if shard.sizes["nsp"] != count or shard.sizes["tokens"] != own_lengths.sum(dtype=np.int64):
            self._refuse_lengths(shard.path)
        if self._checks_content:
            check_sha256(shard.path, shard.sha256(), checksum)
            if not np.array_equal(np.diff(shard.whole("token_offsets")), own_lengths):
                self._refuse_lengths(shard.path)
        return shard

    def _refuse_lengths(self, path: Path) -> None:
        raise ShardError(
            f"{path}: its samples' number or lengths are not those of {MANIFEST} and {LENGTHS}; "
            f"delete {self._folder / MANIFEST} and run ./init_datasets.sh"
        )

    def _refuse_unsound(self, is_sound_B: np.ndarray, shards: list[_Shard], rows: list[int]) -> None:
        if not is_sound_B.all():
            at = int(np.argmin(is_sound_B))
            raise ShardError(
                f"{shards[at].path}: sample {rows[at]} is not of the length that {LENGTHS} tells, or has a masked "
                f"position or a boundary outside: altered or damaged; {REMEDY}"
            )


class _Shard:
    """One open file. No HDF5 handle stays open: a copy of one in a forked process would share its state."""

    def __init__(self, path: Path) -> None:
        """Raises ShardError for what is no whole shard of this format."""
        self.path = path
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise ShardError(f"{path}: no such shard; {REMEDY}") from error
        except OSError as error:
            raise ShardError(f"{path}: cannot open it ({error.strerror}); mend the disk, or {REMEDY}") from error
        weakref.finalize(self, os.close, self.descriptor)
        self._state = self._found()
        # By the descriptor: this very file, even if another one takes its name meanwhile.
        self.header = read_header(path, Path(f"/proc/self/fd/{self.descriptor}"))
        self.starts = {name: start for name, (start, _) in self.header.places.items()}
        self.sizes = {name: size for name, (_, size) in self.header.places.items()}
        self._check_sizes()
        # A fifth of the file, by which the samples are found: read as a whole, not a page for each sample.
        for name in (*_OFFSETS, *_OF_SAMPLES):
            self.will_need(name, 0, self.sizes[name])

    def read(self, name: str, first: int, count: int) -> bytes:
        """Of `count` elements of a data set. Raises ShardError for what the disk does not give."""
        size = _SIZES[name]
        content = self._pread(self.starts[name] + first * size, count * size)
        while len(content) < count * size:  # the file system may give less than it was asked for
            more = self._pread(self.starts[name] + first * size + len(content), count * size - len(content))
            if not more:
                raise ShardError(f"{self.path}: {name} end before element {first + count}: cut; {REMEDY}")
            content += more
        return content

    def whole(self, name: str) -> np.ndarray:
        return np.frombuffer(self.read(name, 0, self.sizes[name]), DTYPES[name])

    def will_need(self, name: str, first: int, count: int) -> None:
        size = _SIZES[name]
        if count > 0:  # of 0 bytes means all that follow
            with suppress(OSError):
                os.posix_fadvise(self.descriptor, self.starts[name] + first * size, count * size, _WILL_NEED)

    def sha256(self) -> str:
        """Of the content, as `shards.sha256_of`."""
        digest = hashlib.sha256()
        for name, count in self.sizes.items():
            at_once = _CHUNK_BYTES // _SIZES[name]
            for first in range(0, count, at_once):
                digest.update(self.read(name, first, min(at_once, count - first)))
        return digest.hexdigest()

    def check_unchanged(self) -> None:
        """Refuse a file that was written to since it was opened. One that only lost its name is the old one still."""
        if self._found() != self._state:
            raise ShardError(f"{self.path}: it was changed while the run reads it; {REMEDY}")

    def _pread(self, start: int, size: int) -> bytes:
        try:
            return os.pread(self.descriptor, size, start)
        except OSError as error:
            raise ShardError(f"{self.path}: cannot read it ({error.strerror}); mend the disk, or {REMEDY}") from error

    def _found(self) -> tuple[int, int]:
        found = os.fstat(self.descriptor)
        return found.st_size, found.st_mtime_ns

    def _check_sizes(self) -> None:
        num_samples = self.sizes["nsp"]
        expected = {
            "boundary": num_samples,
            "token_offsets": num_samples + 1,
            "mlm_offsets": num_samples + 1,
            "mlm_ids": self.sizes["mlm_positions"],
        }
        wrong = [name for name, count in expected.items() if self.sizes[name] != count]
        wrong += [
            name for name, start in self.starts.items() if start + self.sizes[name] * _SIZES[name] > self._state[0]
        ]
        for offsets, values in (("token_offsets", "tokens"), ("mlm_offsets", "mlm_ids")):
            edges = b"" if wrong else self.read(offsets, 0, 1) + self.read(offsets, num_samples, 1)
            if edges != np.array([0, self.sizes[values]], DTYPES[offsets]).tobytes():
                wrong.append(offsets)
        if wrong:
            raise ShardError(f"{self.path}: the size of {wrong[0]} does not fit: altered or damaged; {REMEDY}")


def _gather(name: str, shards: list[_Shard], firsts: list[int], counts: list[int] | int) -> np.ndarray:
    """Elements `first` and those after it of a data set, `count` for each of the shards, end to end."""
    if isinstance(counts, int):
        counts = [counts] * len(shards)
    size = _SIZES[name]
    wanted = list(zip(shards, firsts, counts, strict=True))
    with suppress(OSError):
        parts = [os.pread(shard.descriptor, n * size, shard.starts[name] + first * size) for shard, first, n in wanted]
        content = b"".join(parts)
        if len(content) == sum(counts) * size:
            return np.frombuffer(content, DTYPES[name])
    # Once more and one by one: what the file system gave only in part is asked for again, what fails is named.
    return np.frombuffer(b"".join([shard.read(name, first, n) for shard, first, n in wanted]), DTYPES[name])


def _will_need(name: str, shards: list[_Shard], firsts: list[int], counts: list[int]) -> None:
    for shard, first, count in zip(shards, firsts, counts, strict=True):
        shard.will_need(name, first, count)


def _allow_open_files(folder: Path, num_shards: int) -> None:
    """Every shard stays open, so that none is opened twice; the system's default is 1,024 files a process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = num_shards + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise ShardError(
                f"{folder}: {num_shards} shards are to be open at once, but this process may open {hard} files; "
                "raise that limit (ulimit -Hn), or prepare fewer and larger shards"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
