"""TFRecord files of tf.train.Example in, flat samples out, without TensorFlow.

A record is its length (uint64, little endian), the masked CRC32C of that, the bytes, their masked CRC32C. The bytes are
an Example: a map from names to lists of numbers. A map has no order, and a list may be packed or not. What protobuf's
usual writers make is taken apart by `_usual`, for a block of records at once, and everything else by `_any`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import BinaryIO

import numpy as np

from benchmarks.bert.data.shards import SampleArrays
from benchmarks.bert.prepare.forms.padded import LABELS, PREDICTION_KEYS, TOKEN_KEYS, WEIGHTS, Padded, without_padding
from benchmarks.bert.prepare.forms.source import Rows, Rules, reading
from benchmarks.bert.weights.checksum import masked_crc
from benchmarks.bert.weights.wire import FormatError, as_bytes, as_int, fields, varint

PLACE_EVERY = 1 << 10  # records, of which `places` notes one

_READ_BYTES = 1 << 21
_MOST_BYTES = 1 << 26  # of one record
_HEADER, _CRC = Struct("<QI"), Struct("<I")
_LENGTH_BYTES = 8
_FLOATS, _NUMBERS = 2, 3  # fields of a Feature
_CUT = "the file is cut off; copy or write it again"
_DAMAGED = "the file is damaged; copy or write it again"

_LONGEST_NAME = 24

# By name, for each record: the field of Feature that holds its list, and the list's numbers, packed.
Lists = dict[str, tuple[np.ndarray, list[bytes]]]


@dataclass(frozen=True)
class _Block:
    """Some whole records: `data[start:end]` of each is its Example."""

    data: bytes
    ranges: list[tuple[int, int]]
    place: int  # in the file, of `data`


def begins(head: bytes) -> bool:
    """Whether a file with these first bytes can be a TFRecord: the checksum of its first length holds."""
    return len(head) >= _HEADER.size and _HEADER.unpack_from(head)[1] == masked_crc(head[:_LENGTH_BYTES])


def places(path: Path) -> tuple[int, array[int]]:
    """Number of records, and where each 1,024th begins. Verifies the lengths alone."""
    found, count = array("q"), 0
    with reading(path), open(path, "rb") as file:
        for block in _blocks(path, file, row=0, place=0, verify=False):
            for start, _ in block.ranges:
                if count % PLACE_EVERY == 0:
                    found.append(block.place + start - _HEADER.size)
                count += 1
    return count, found


def read(
    path: Path, start: int, stop: int | None, rules: Rules, places: array[int] | None = None
) -> Iterator[SampleArrays]:
    """The samples of records `start` to before `stop` (or the end), block by block; `places` spare reading others."""
    row, place = 0, 0
    if places is not None:
        row, place = start // PLACE_EVERY * PLACE_EVERY, places[start // PLACE_EVERY]
    with reading(path), open(path, "rb") as file:
        file.seek(place)
        for block in _blocks(path, file, row=row, place=place, verify=True):
            own = slice(max(0, start - row), None if stop is None else max(0, stop - row))
            if block.ranges[own]:
                yield _samples(block.data, block.ranges[own], rules, Rows(path, row + (own.start or 0)))
            row += len(block.ranges)
            if stop is not None and row >= stop:
                return


def _blocks(path: Path, file: BinaryIO, *, row: int, place: int, verify: bool) -> Iterator[_Block]:
    """Whole records from the file's position on, which is `place`, where record `row` begins."""
    verified: set[bytes] = set()  # headers; few differ
    rest = b""
    while True:
        new = file.read(_READ_BYTES)
        data = rest + new
        ranges: list[tuple[int, int]] = []
        at = 0
        while at + _HEADER.size <= len(data):
            header = data[at : at + _HEADER.size]
            size, crc = _HEADER.unpack(header)
            if header not in verified:
                if crc != masked_crc(header[:_LENGTH_BYTES]):
                    raise Rows(path, row).error(len(ranges), "the checksum of its length does not hold", _DAMAGED)
                if size > _MOST_BYTES:
                    raise Rows(path, row).error(len(ranges), f"{size:,} bytes are no sample", _DAMAGED)
                verified.add(header)
            start = at + _HEADER.size
            end = start + size
            if end + _CRC.size > len(data):
                break
            if verify and _CRC.unpack_from(data, end)[0] != masked_crc(data[start:end]):
                raise Rows(path, row).error(len(ranges), "its checksum does not hold", _DAMAGED)
            ranges.append((start, end))
            at = end + _CRC.size
        if ranges:
            yield _Block(data, ranges, place)
        elif not new:
            if data:
                raise Rows(path, row).error(0, f"{len(data)} bytes of a record are there", _CUT)
            return
        row += len(ranges)
        place += at
        rest = data[at:]


def _samples(data: bytes, ranges: list[tuple[int, int]], rules: Rules, rows: Rows) -> SampleArrays:
    lists = _usual(data, ranges) or _unusual(data, ranges, rows)
    columns = {key: _column(lists, key, rules.max_length, "--max-length", rows) for key in TOKEN_KEYS}
    for key in PREDICTION_KEYS:
        columns[key] = _column(lists, key, rules.max_predictions, "--max-predictions", rows)
    weights = _column(lists, WEIGHTS, rules.max_predictions, "--max-predictions", rows) if WEIGHTS in lists else None
    labels = _column(lists, LABELS, 1, "", rows)[:, 0]
    return without_padding(Padded(**columns, masked_lm_weights=weights, next_sentence_labels=labels), rules, rows)


def _usual(data: bytes, ranges: list[tuple[int, int]]) -> Lists | None:
    """The lists of Examples that have the same names in any order, all lists packed; None if one has not.

    Takes one step in all records at the same time, which is ten times faster than one record after the other.
    """
    source = np.frombuffer(data + bytes(_LONGEST_NAME), np.uint8)  # so that no step looks behind the end
    at, end = np.array(ranges, np.int64).T
    if not (at < end).all():
        return None
    open_ = _Opener(source, len(data))
    at, stop = open_(at, 0x0A)  # Example.features
    open_.demand(stop == end)
    ranges_of: dict[bytes, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}  # by name: kind, start, end for each record
    num_entries = 0
    while open_.usual and (at < end).any():
        at, entry_end = open_(at, 0x0A)  # Features.feature, one entry of the map
        at, name_end = open_(at, 0x0A)  # its key
        open_.demand((name_end - at <= _LONGEST_NAME) & (name_end <= len(data)))
        if not open_.usual:
            return None
        columns = np.arange(_LONGEST_NAME)
        names = np.where(columns < (name_end - at)[:, None], source[at[:, None] + columns], 0)
        at, feature_end = open_(name_end, 0x12)  # its value, a Feature
        kind = source[np.minimum(at, len(data))] >> 3
        open_.demand((kind == _NUMBERS) | (kind == _FLOATS))
        at, list_end = open_(at, kind << 3 | 2)
        at, numbers_end = open_(at, 0x0A)  # packed values
        for stop in (feature_end, list_end, numbers_end):
            open_.demand(stop == entry_end)
        open_.demand(entry_end <= end)
        for name, rows in _same(names):
            into = ranges_of.setdefault(name, tuple(np.full(len(ranges), -1) for _ in range(3)))  # type: ignore[arg-type]
            open_.demand(into[0][rows] < 0)  # not twice in a record
            for values, own in zip(into, (kind, at, numbers_end), strict=True):
                values[rows] = own[rows]
        num_entries += 1
        at = entry_end
    if not open_.usual or len(ranges_of) != num_entries:
        return None
    return {
        _text(name): (kinds, [data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)])
        for name, (kinds, starts, ends) in ranges_of.items()
    }


def _same(names: np.ndarray) -> Iterator[tuple[bytes, np.ndarray]]:
    """Each name, and the records (bool) that have it; `names` is uint8 (records, longest name)."""
    left = np.ones(len(names), bool)
    while left.any():
        first = names[left.argmax()]
        same = (names == first).all(1)
        left &= ~same
        yield first.tobytes().rstrip(b"\0"), same


class _Opener:
    """Steps into the fields at given places, one in each record; `usual` tells whether all were as asked for."""

    def __init__(self, source: np.ndarray, size: int) -> None:
        self._source, self._size = source, size
        self.usual = True

    def demand(self, holds: np.ndarray) -> None:
        self.usual = self.usual and bool(holds.all())

    def __call__(self, at: np.ndarray, tag: int | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the contents begin and end; fields must have this tag and a size below 16,384."""
        at = np.minimum(at, self._size)
        low, high = self._source[at + 1].astype(np.int64), self._source[at + 2].astype(np.int64)
        self.demand(self._source[at] == tag)
        is_long = low >= 0x80
        self.demand(~is_long | (high < 0x80))
        at = at + 2 + is_long
        return at, at + np.where(is_long, low & 0x7F | high << 7, low)


def _unusual(data: bytes, ranges: list[tuple[int, int]], rows: Rows) -> Lists:
    """The lists of Examples put together in any way."""
    found = []
    for row, (start, end) in enumerate(ranges):
        try:
            found.append(_any(data[start:end]))
        except FormatError as error:
            raise rows.error(row, f"not a tf.train.Example ({error})") from error
    names = dict.fromkeys(name for each in found for name in each)
    for name in {*TOKEN_KEYS, *PREDICTION_KEYS, LABELS} | ({WEIGHTS} & names.keys()):
        rows.refuse(
            np.array([name.encode() not in each for each in found]),
            lambda row, name=name: f"lacks {name}, has {_listed(found[row])}",  # type: ignore[misc]
        )
    lists = {_text(name): [each.get(name, (0, b"")) for each in found] for name in names}
    return {name: (np.array([kind for kind, _ in own]), [numbers for _, numbers in own]) for name, own in lists.items()}


def _any(example: bytes) -> dict[bytes, tuple[int, bytes]]:
    """The lists of an Example by name.

    As protobuf has it, later entries of a name and later kinds of a list count, and the parts of a message that comes
    in several are put together.
    """
    found: dict[bytes, tuple[int, bytes]] = {}
    for number, features in fields(example):
        if number != 1:
            continue
        for number, entry in fields(as_bytes(features)):
            if number != 1:
                continue
            name, feature = b"", b""
            for number, value in fields(as_bytes(entry)):
                if number == 1:
                    name = as_bytes(value)
                elif number == 2:
                    feature += as_bytes(value)  # messages in several parts merge as their bytes do
            found[name] = _list(feature)
    return found


def _list(feature: bytes) -> tuple[int, bytes]:
    kind, message = 0, b""
    for number, value in fields(feature):
        if number in (1, _FLOATS, _NUMBERS):
            message = message + as_bytes(value) if number == kind else as_bytes(value)
            kind = number
    if kind == 1:
        return kind, b""  # bytes, which no key of ours holds
    packed = bytearray()
    for number, value in fields(message):
        if number == 1:
            if isinstance(value, bytes):
                packed += value
            else:
                packed += value.to_bytes(4, "little") if kind == _FLOATS else varint(as_int(value))
    return kind, bytes(packed)


def _column(lists: Lists, key: str, width: int, option: str, rows: Rows) -> np.ndarray:
    """The key's list of each record, shape (records, width)."""
    if key not in lists:
        raise rows.error(0, f"lacks {key}, has {', '.join(sorted(lists)) or 'nothing'}")
    kind = _FLOATS if key == WEIGHTS else _NUMBERS
    kinds, parts = lists[key]
    rows.refuse(kinds != kind, lambda row: f"{key} is no list of {'floats' if kind == _FLOATS else 'integers'}")
    sizes = np.fromiter(map(len, parts), np.int64, len(parts))
    if kind == _FLOATS:
        counts, values = sizes / 4, np.frombuffer(b"".join(parts)[: sizes.sum() // 4 * 4], "<f4")
    else:
        try:
            counts, values = _numbers(parts, sizes)
        except FormatError as error:
            raise rows.error(_first_broken(parts), f"{key}: {error}") from error
    rows.refuse(
        counts != width,
        lambda row: f"{key} has {counts[row]:g} values, expected {width}",
        f"give it as {option}" if option else "make the file again",
    )
    return values.reshape(-1, width)


def _numbers(parts: Sequence[bytes], sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many varints each part holds, and the values of all: int64, int32, or bytes where each is one."""
    data = np.frombuffer(b"\0\0" + b"".join(parts), np.uint8)  # two more, so that each byte has two before it
    goes_on = data >= 0x80
    if not goes_on.any():
        return sizes, data[2:]
    part_ends = np.cumsum(sizes) + 2
    if goes_on[part_ends[sizes > 0] - 1].any():
        raise FormatError("it ends within a number")
    ends = np.flatnonzero(~goes_on[2:]) + 2  # each number's last byte
    counts = np.diff(np.searchsorted(ends, part_ends), prepend=0)
    if (goes_on[2:] & goes_on[1:-1] & goes_on[:-2]).any():
        return counts, _long_numbers(data, ends)
    second = data[ends - 1]
    values = data[ends].astype(np.int32)
    values = np.where(second >= 0x80, values << 7 | second & 0x7F, values)
    of_three = np.flatnonzero(goes_on[1:-1] & goes_on[:-2]) + 2  # their last bytes
    at = np.searchsorted(ends, of_three)
    values[at] = values[at] << 7 | data[of_three - 2] & 0x7F
    return counts, values


def _long_numbers(data: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The numbers that have these last bytes, of up to ten bytes, as int64."""
    longer = np.diff(ends, prepend=1) - 1
    if longer.max() > 9:
        raise FormatError("a number is too long")
    values = data[ends].astype(np.uint64)
    for back in range(1, int(longer.max()) + 1):
        has = np.flatnonzero(longer >= back)
        values[has] = values[has] << np.uint64(7) | (data[ends[has] - back] & 0x7F)
    return values.view(np.int64)


def _listed(names: Iterable[bytes]) -> str:
    return ", ".join(sorted(map(_text, names))) or "nothing"


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def _first_broken(parts: Sequence[bytes]) -> int:
    for row, part in enumerate(parts):
        try:
            _numbers([part], np.array([len(part)]))
        except FormatError:
            return row
    return 0
