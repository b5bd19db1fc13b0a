"""A prefix of a TensorFlow V2 checkpoint in, its tensors by our names out, and back, without TensorFlow."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.bert.files import atomic_write
from benchmarks.bert.weights.account import Found, WeightsError, check_file
from benchmarks.bert.weights.bundle import DTYPES, FLOAT32, Entry, build_index, parse_index
from benchmarks.bert.weights.checksum import masked_crc
from benchmarks.bert.weights.names import count_layers, names
from benchmarks.bert.weights.wire import FormatError

# What optimizers leave beside the weights.
_LEFTOVERS = {"global_step", "beta1_power", "beta2_power"}
_SLOTS = {"adam_m", "adam_v"} | {
    f"{optimizer}{number}" for optimizer in ("Adam", "AdamWeightDecayOptimizer", "LAMB") for number in ("", "_1")
}
_COPY_AGAIN = "download or copy it again"


def index_file(prefix: Path) -> Path:
    return prefix.with_name(f"{prefix.name}.index")


def data_file(prefix: Path, shard: int, num_shards: int) -> Path:
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{num_shards:05d}")


def files(prefix: Path) -> list[Path]:
    """What `write` writes."""
    return [data_file(prefix, 0, 1), index_file(prefix)]


def read(prefix: Path) -> Found:
    """Tensors that are mapped from the data files, each verified; what optimizers left is not touched.

    Raises:
        WeightsError: a file is missing, cut off, damaged or of a kind that is not read, or google-crc32c is missing.
    """
    path = index_file(prefix)
    check_file(path)
    try:
        num_shards, entries = parse_index(path.read_bytes())
    except FormatError as error:
        raise WeightsError(f"{path}: {error}; {_COPY_AGAIN}") from error
    rows = {row.reference: row for row in names(count_layers(entries))}
    found = Found()
    shards: dict[int, np.ndarray] = {}
    for name, entry in entries.items():
        if name in rows:
            file = data_file(prefix, entry.shard, num_shards)
            if entry.shard not in shards:
                shards[entry.shard] = _map(file)
            tensor = _tensor(file, shards[entry.shard], name, entry)
            found.tensors[rows[name].ours] = tensor.T if rows[name].transposed else tensor
        elif name in _LEFTOVERS or name.rpartition("/")[2] in _SLOTS:
            found.ignored.append(name)
        else:
            found.problems.append(f"{name} is unknown")
    return found


def _map(file: Path) -> np.ndarray:
    if not file.exists():
        raise WeightsError(f"{file}: no such file, but the index names it; copy all files of the checkpoint")
    check_file(file)
    if not file.stat().st_size:
        return np.zeros(0, np.uint8)  # which cannot be mapped
    return np.memmap(file, np.uint8, mode="c")  # "c": torch wants memory that it may write; the file keeps its bytes


def _tensor(file: Path, shard: np.ndarray, name: str, entry: Entry) -> Tensor:
    if entry.sliced:
        raise WeightsError(f"{file}: {name} is stored in slices (a partitioned variable); save it whole")
    if entry.dtype not in DTYPES:
        raise WeightsError(f"{file}: {name} is of TensorFlow's type {entry.dtype}; float, half and bfloat16 are read")
    if 0 in entry.shape:  # beside which any size fits any number of bytes
        raise WeightsError(f"{file}: {name} of shape {entry.shape} is empty; {_COPY_AGAIN}")
    dtype = DTYPES[entry.dtype]
    if entry.num_bytes != math.prod(entry.shape) * dtype.itemsize:
        raise WeightsError(f"{file}: {name} of shape {entry.shape} has {entry.num_bytes} bytes; {_COPY_AGAIN}")
    content = shard[entry.offset : entry.offset + entry.num_bytes]
    if len(content) < entry.num_bytes:
        raise WeightsError(f"{file}: it ends before {name} does, at {len(shard):,} bytes; {_COPY_AGAIN}")
    if masked_crc(content) != entry.crc:
        raise WeightsError(f"{file}: the checksum of {name} is wrong, so it is damaged; {_COPY_AGAIN}")
    if entry.offset % dtype.itemsize:
        content = content.copy()  # torch reads aligned memory only
    return torch.from_numpy(content).view(dtype).reshape(entry.shape)


def write(prefix: Path, tensors: dict[str, Tensor]) -> None:
    """One data file, and the index that makes it a checkpoint; the same tensors make the same bytes."""
    ours = {row.reference: row for row in names(count_layers(tensors))}
    entries: dict[str, Entry] = {}
    data, index = files(prefix)
    with atomic_write(index) as new_index, atomic_write(data) as new_data:  # the data take their name first
        with open(new_data, "wb") as file:
            for name in sorted(ours):
                tensor = tensors[ours[name].ours]
                array = (tensor.T if ours[name].transposed else tensor).contiguous().numpy()
                entries[name] = Entry(FLOAT32, array.shape, 0, file.tell(), array.nbytes, masked_crc(array))
                file.write(array.data)
        new_index.write_bytes(build_index(entries))
