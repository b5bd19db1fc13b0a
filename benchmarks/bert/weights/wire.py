"""Bytes of varints and of protocol buffers' messages in, numbers and fields out, and back.

What cannot be read is a `FormatError`; its text says what, and the caller adds where.
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}


class FormatError(ValueError):
    """Bytes that do not follow their format."""


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    """The number at `place` and the place behind it."""
    value = 0
    for shift in range(0, 64, 7):
        if place >= len(data):
            raise FormatError("it ends within a number")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise FormatError("a number is too long")


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in order: number, and value as an unsigned number or as bytes."""
    place = 0
    while place < len(message):
        key, place = read_varint(message, place)
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            value, place = read_varint(message, place)
            yield number, value
            continue
        if wire_type == _BYTES:
            size, place = read_varint(message, place)
        elif wire_type in _FIXED_BYTES:
            size = _FIXED_BYTES[wire_type]
        else:
            raise FormatError(f"a field has the unknown wire type {wire_type}")
        if size > len(message) - place:
            raise FormatError("it ends within a field")
        content = message[place : place + size]
        place += size
        yield number, content if wire_type == _BYTES else int.from_bytes(content, "little")


def as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise FormatError("a number stands where a message is expected")
    return value


def as_int(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise FormatError("a message stands where a number is expected")
    return value


def number_field(number: int, value: int) -> bytes:
    return varint(number << 3 | _VARINT) + varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | _BYTES) + varint(len(value)) + value


def fixed32_field(number: int, value: int) -> bytes:
    return varint(number << 3 | _FIXED32) + value.to_bytes(4, "little")
