"""Bytes of a TensorFlow V2 checkpoint's index in, where each tensor lies out, and back.

The messages are BundleHeaderProto and BundleEntryProto of tensorflow/core/protobuf/tensor_bundle.proto.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.bert.weights.table import build_table, parse_table
from benchmarks.bert.weights.wire import (
    FormatError,
    as_bytes,
    as_int,
    bytes_field,
    fields,
    fixed32_field,
    number_field,
)

DTYPES = {1: torch.float32, 14: torch.bfloat16, 19: torch.float16}  # DataType of tensorflow/core/framework/types.proto
FLOAT32 = 1

_HEADER = b""  # the header's key, before all names
_VERSION = 1
_MOST_DIMENSIONS = 8  # a BERT's have two at most; the product of very many would take for ever


@dataclass(frozen=True)
class Entry:
    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    num_bytes: int
    crc: int  # masked
    sliced: bool = False


def parse_index(index: bytes) -> tuple[int, dict[str, Entry]]:
    """How many data files there are, and the entry of each tensor by its name.

    Raises:
        FormatError: not such an index, damaged, or of a kind that is not read.
    """
    content = parse_table(index)
    if _HEADER not in content:
        raise FormatError("it has no header, so it is no TensorFlow checkpoint")
    num_shards = _parse_header(content.pop(_HEADER))
    # A key that begins with a zero byte is a slice; the tensor that it is of has an entry and says so.
    named = {key: value for key, value in content.items() if not key.startswith(b"\0")}
    by_name = {key.decode("utf-8", "replace"): value for key, value in named.items()}
    return num_shards, {name: _parse_entry(name, value) for name, value in by_name.items()}


def _parse_header(message: bytes) -> int:
    found = {number: value for number, value in fields(message) if number in (1, 2)}
    if found.get(2, 0) != 0:
        raise FormatError("its tensors are big-endian; write it again on a little-endian machine")
    return as_int(found.get(1, 0))


def _parse_entry(name: str, message: bytes) -> Entry:
    found: dict[int, int | bytes] = dict(fields(message))
    shape: list[int] = []
    for number, dimension in fields(as_bytes(found.get(2, b""))):
        if number == 2:
            if len(shape) == _MOST_DIMENSIONS:
                raise FormatError(f"{name} has more than {_MOST_DIMENSIONS} dimensions, so it is damaged")
            sizes = dict(fields(as_bytes(dimension)))
            shape.append(as_int(sizes.get(1, 0)))
    dtype, shard, offset, num_bytes, crc = (as_int(found.get(number, 0)) for number in (1, 3, 4, 5, 6))
    return Entry(dtype, tuple(shape), shard, offset, num_bytes, crc, sliced=7 in found)


def build_index(entries: dict[str, Entry]) -> bytes:
    """The index of a checkpoint with one data file."""
    header = number_field(1, 1) + bytes_field(3, number_field(1, _VERSION))
    content = {name.encode(): _build_entry(entry) for name, entry in entries.items()}
    return build_table({_HEADER: header} | content)


def _build_entry(entry: Entry) -> bytes:
    shape = b"".join(bytes_field(2, number_field(1, size)) for size in entry.shape)
    return b"".join(
        [
            number_field(1, entry.dtype),
            bytes_field(2, shape),
            number_field(4, entry.offset) if entry.offset else b"",
            number_field(5, entry.num_bytes),
            fixed32_field(6, entry.crc),
        ]
    )
