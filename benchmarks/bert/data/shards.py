"""Samples to HDF5 shards and back as memory maps: flat token arrays plus offsets, no padding stored.

One shard holds n samples in seven contiguous data sets:

    tokens         uint16  every sample's tokens, end to end
    token_offsets  int64   n + 1; sample i is tokens[token_offsets[i]:token_offsets[i + 1]]
    boundary       uint16  n; leading tokens with segment id 0
    mlm_positions  uint16  masked positions within their sample, ascending, end to end
    mlm_ids        uint16  the original ids there
    mlm_offsets    int64   n + 1
    nsp            uint8   n; 1 where the second sentence is a random one

Attributes hold the counts, the vocabulary's and the recipe's identity and a checksum of all the above.
A data set folder is complete once its manifest (data/manifest.py) is there; shards are written before it.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from benchmarks.bert.files import atomic_write

FORMAT = "packed-bert-samples-1"
DTYPES = {
    "tokens": "<u2",
    "token_offsets": "<i8",
    "boundary": "<u2",
    "mlm_positions": "<u2",
    "mlm_ids": "<u2",
    "mlm_offsets": "<i8",
    "nsp": "|u1",
}
_CHUNK_BYTES = 1 << 20
REMEDY = "make it again: delete it and run ./init_datasets.sh"


class ShardError(ValueError):
    """A shard cannot be used; the message names the file, what is wrong and the remedy."""


@dataclass(frozen=True)
class SampleArrays:
    """n samples as flat arrays; the fields are the shard's data sets."""

    tokens: np.ndarray
    token_offsets: np.ndarray
    boundary: np.ndarray
    mlm_positions: np.ndarray
    mlm_ids: np.ndarray
    mlm_offsets: np.ndarray
    nsp: np.ndarray

    def __len__(self) -> int:
        return len(self.nsp)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.token_offsets)

    def items(self) -> list[tuple[str, np.ndarray]]:
        """(name, array) in the order in which the checksum takes them."""
        return [(name, getattr(self, name)) for name in DTYPES]


@dataclass(frozen=True)
class Header:
    """What a shard's file says of itself."""

    attributes: dict[str, object]
    places: dict[str, tuple[int, int]]  # by data set: where its bytes start in the file, and its number of elements


def sha256_of(arrays: SampleArrays) -> str:
    """SHA-256 over the arrays' bytes in their stored types, data set by data set."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(np.ascontiguousarray(array, DTYPES[name]).data)
    return digest.hexdigest()


def write_shard(path: Path, arrays: SampleArrays, *, vocabulary_sha256: str, recipe: str) -> str:
    """Write one shard, whole or not at all; returns its checksum. `recipe` is text that identifies how it was made."""
    checksum = sha256_of(arrays)
    attributes = {
        "format": FORMAT,
        "num_samples": len(arrays),
        "num_tokens": len(arrays.tokens),
        "vocabulary_sha256": vocabulary_sha256,
        "recipe": recipe,
        "sha256": checksum,
    }
    # In memory first: where a disk refuses a write, the HDF5 library can crash.
    content = io.BytesIO()
    # The newest file format checksums its own structures, but not the heap that holds text of variable length:
    # in older ones and in that heap one flipped bit can crash or hang the library on reading.
    with h5py.File(content, "w", libver="latest", alignment_threshold=1, alignment_interval=8) as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=np.ascontiguousarray(array, DTYPES[name]))
        for name, value in attributes.items():
            file.attrs[name] = np.bytes_(value.encode()) if isinstance(value, str) else value
    with atomic_write(path) as temporary:
        temporary.write_bytes(content.getbuffer())
    return checksum


def read_attributes(path: Path) -> dict[str, object]:
    """A shard's attributes; raises ShardError where it is not a shard of this format."""
    with _opened(path, path) as file:
        return _attributes(path, file)


def read_header(path: Path, file_name: Path | None = None) -> Header:
    """Attributes and places of the data sets; raises ShardError where it is not a shard of this format.

    `file_name` is another name of the file at `path`, which it is opened by.
    """
    with _opened(path, file_name or path) as file:
        attributes = _attributes(path, file)
        # By h5py's lower level: a run opens thousands of shards, and `file[name]` takes most of the time of that.
        opened = {name: h5py.h5d.open(file.id, name.encode()) for name in DTYPES}
        return Header(attributes, {name: _place(path, name, opened[name], dtype) for name, dtype in DTYPES.items()})


@contextmanager
def _opened(path: Path, file_name: Path) -> Iterator[h5py.File]:
    try:
        # Unlocked: a shard never changes once it has its name, and thousands of ranks would lock it.
        with h5py.File(file_name, "r", locking=False) as file:
            yield file
    except ShardError:
        raise
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        raise ShardError(f"{path}: {_why_unreadable(path, error)}; {REMEDY}") from error


def _attributes(path: Path, file: h5py.File) -> dict[str, object]:
    attributes = {name: value.decode() if isinstance(value, bytes) else value for name, value in file.attrs.items()}
    if attributes.get("format") != FORMAT:
        raise ShardError(f"{path}: format is {attributes.get('format')!r}, expected {FORMAT!r}; {REMEDY}")
    if missing := [name for name in ("vocabulary_sha256", "recipe", "sha256") if name not in attributes]:
        raise ShardError(f"{path}: it lacks the attributes {', '.join(missing)}; {REMEDY}")
    return attributes


def _place(path: Path, name: str, dataset: h5py.h5d.DatasetID, dtype: str) -> tuple[int, int]:
    found, shape, offset = dataset.dtype, dataset.shape, dataset.get_offset()
    if found != np.dtype(dtype) or len(shape) != 1:
        raise ShardError(f"{path}: data set {name} is {found}, expected {dtype}; {REMEDY}")
    if offset is None and shape[0]:
        raise ShardError(f"{path}: data set {name} is not contiguous; {REMEDY}")
    return offset or 0, shape[0]


def open_shard(path: Path, *, vocabulary_sha256: str, max_length: int, sha256: str | None = None) -> SampleArrays:
    """Memory-map a shard and check it: its checksum (against `sha256` too, if given), vocabulary and lengths.

    Raises ShardError for a missing, empty, truncated or altered file, a foreign vocabulary or a sample that is
    longer than `max_length` tokens.
    """
    header = read_header(path)
    check_vocabulary(path, header, vocabulary_sha256)
    arrays = _memory_map(path, header)
    check_sha256(path, _read_sha256(path, header), str(header.attributes["sha256"]) if sha256 is None else sha256)
    if len(arrays) and (longest := int(arrays.lengths.max())) > max_length:
        row = int(arrays.lengths.argmax())
        raise ShardError(
            f"{path}: sample {row} has {longest} tokens, the model takes at most {max_length}; "
            f"raise MAX_LENGTH or {REMEDY}"
        )
    return arrays


def check_vocabulary(path: Path, header: Header, expected: str) -> None:
    if (found := header.attributes["vocabulary_sha256"]) != expected:
        raise ShardError(
            f"{path}: made with another vocabulary (sha256 {found}, this run's is {expected}); {REMEDY} "
            "with this vocabulary"
        )


def check_sha256(path: Path, found: str, expected: str) -> None:
    if found != expected:
        raise ShardError(f"{path}: its content's sha256 is {found}, expected {expected}: altered or damaged; {REMEDY}")


def _memory_map(path: Path, header: Header) -> SampleArrays:
    """Map each contiguous data set at its offset in the file; the maps stay valid without an HDF5 handle."""
    try:
        return SampleArrays(
            **{
                name: np.memmap(path, DTYPES[name], "r", offset, (size,)) if size else np.empty(0, DTYPES[name])
                for name, (offset, size) in header.places.items()
            }
        )
    except (OSError, ValueError) as error:
        raise ShardError(f"{path}: {_why_unreadable(path, error)}; {REMEDY}") from error


def _read_sha256(path: Path, header: Header) -> str:
    """As `sha256_of` the maps, but by plain reads: what a disk fails to give is an error here, in a map a signal."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for name, (start, size) in header.places.items():
                file.seek(start)
                left = size * np.dtype(DTYPES[name]).itemsize
                while left and (part := file.read(min(left, _CHUNK_BYTES))):
                    digest.update(part)
                    left -= len(part)
    except OSError as error:
        raise ShardError(f"{path}: cannot read it ({error.strerror}); mend the disk, or {REMEDY}") from error
    return digest.hexdigest()


def _why_unreadable(path: Path, error: Exception) -> str:
    if not path.exists():
        return "no such shard"
    if path.is_file() and path.stat().st_size == 0:
        return "an empty file, not a shard"
    return f"not a whole HDF5 shard, perhaps truncated ({' '.join(str(error).split())})"
