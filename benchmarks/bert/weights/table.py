"""A table of sorted keys and values in LevelDB's format in, a dictionary out, and back: a checkpoint's `.index` file.

Blocks of entries, each with its masked CRC32C; a block that lists them; 48 bytes at the end that say where that one is.
Format: https://github.com/google/leveldb/blob/main/doc/table_format.md
"""

from __future__ import annotations

from benchmarks.bert.weights.checksum import masked_crc
from benchmarks.bert.weights.wire import FormatError, read_varint, varint

_MAGIC = bytes.fromhex("57fb808b247547db")
_FOOTER_BYTES, _TRAILER_BYTES = 48, 5  # trailer: how the block is compressed (1 byte), its checksum (4)
_UNCOMPRESSED = 0


def parse_table(table: bytes) -> dict[bytes, bytes]:
    """All entries; their checksums are verified.

    Raises:
        FormatError: not such a table, cut off, damaged, or compressed.
    """
    if len(table) < _FOOTER_BYTES or table[-8:] != _MAGIC:
        raise FormatError("its last 8 bytes are not those of a TensorFlow index, or it is cut off")
    footer = table[-_FOOTER_BYTES:]
    _, _, place = _handle(footer, 0)  # of the block on blocks, which is empty
    start, size, _ = _handle(footer, place)
    found: dict[bytes, bytes] = {}
    for handle in _entries(_block(table, start, size)).values():
        start, size, _ = _handle(handle, 0)
        found |= _entries(_block(table, start, size))
    return found


def _handle(data: bytes, place: int) -> tuple[int, int, int]:
    """A block's start and size, and the place behind them."""
    start, place = read_varint(data, place)
    size, place = read_varint(data, place)
    return start, size, place


def _block(table: bytes, start: int, size: int) -> bytes:
    if start + size + _TRAILER_BYTES > len(table) - _FOOTER_BYTES:
        raise FormatError(f"the block at {start} goes beyond its end; it is cut off or damaged")
    block, stored = table[start : start + size + 1], table[start + size + 1 : start + size + _TRAILER_BYTES]
    if masked_crc(block) != int.from_bytes(stored, "little"):
        raise FormatError(f"the checksum of the block at {start} is wrong; it is damaged")
    if block[-1] != _UNCOMPRESSED:
        raise FormatError(f"the block at {start} is compressed (type {block[-1]}), which TensorFlow's own are not")
    return block[:-1]


def _entries(block: bytes) -> dict[bytes, bytes]:
    """A block's entries: each key says how many bytes it shares with the one before it."""
    end = len(block) - 4
    if end < 0:
        raise FormatError("a block is too short")
    end -= 4 * int.from_bytes(block[end:], "little")  # the places where keys are whole; we read from the start
    found, key, place = {}, b"", 0
    while place < end:
        num_shared, place = read_varint(block, place)
        num_own, place = read_varint(block, place)
        num_value, place = read_varint(block, place)
        if num_shared > len(key) or place + num_own + num_value > end:
            raise FormatError("a block's entry goes beyond its end")
        key = key[:num_shared] + block[place : place + num_own]
        found[key] = block[place + num_own : place + num_own + num_value]
        place += num_own + num_value
    return found


def build_table(content: dict[bytes, bytes]) -> bytes:
    """A table of one block, in which every key is whole."""
    keys = sorted(content)
    table = _sealed({key: content[key] for key in keys})
    handles, parts = [], [table]
    for block in ({}, {keys[-1]: _encoded_handle(0, table)}):
        sealed = _sealed(block)
        handles.append(_encoded_handle(sum(map(len, parts)), sealed))
        parts.append(sealed)
    return b"".join(parts) + b"".join(handles).ljust(_FOOTER_BYTES - len(_MAGIC), b"\0") + _MAGIC


def _sealed(content: dict[bytes, bytes]) -> bytes:
    """A block and its trailer."""
    block, whole_keys = bytearray(), []
    for key, value in content.items():
        whole_keys.append(len(block))
        block += varint(0) + varint(len(key)) + varint(len(value)) + key + value
    whole_keys = whole_keys or [0]  # an empty block has one all the same
    for place in (*whole_keys, len(whole_keys)):
        block += place.to_bytes(4, "little")
    block.append(_UNCOMPRESSED)
    return bytes(block) + masked_crc(bytes(block)).to_bytes(4, "little")


def _encoded_handle(start: int, sealed: bytes) -> bytes:
    return varint(start) + varint(len(sealed) - _TRAILER_BYTES)
