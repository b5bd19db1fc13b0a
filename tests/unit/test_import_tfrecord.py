"""TFRecords read without TensorFlow: every way to write an Example, and every way to damage a file."""

from __future__ import annotations

import io
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.data.shards import SampleArrays
from benchmarks.bert.prepare.forms import tfrecord
from benchmarks.bert.prepare.forms.form import TFRECORD, find_form
from benchmarks.bert.prepare.forms.source import SourceError
from benchmarks.bert.weights.wire import bytes_field
from tests.support.sample_files import (
    BENCHMARK_RULES,
    REFERENCE_DIGEST,
    SHORT_RULES,
    changed,
    digest,
    examples,
    feature,
    framed,
    joined,
    make_word_samples,
    padded,
    reference_file,
    rows_of,
    same,
    with_a_padded_row,
    write_tfrecord,
)

SAMPLES = make_word_samples()
FEW = rows_of(SAMPLES, 0, 3)
NAMES = list(padded(FEW))


def read(path: Path) -> SampleArrays:
    return joined(tfrecord.read(path, 0, None, SHORT_RULES))


def refusal(path: Path) -> str:
    with pytest.raises(SourceError) as error:
        read(path)
    return str(error.value)


def test_the_references_file_has_the_references_samples(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(lzma.decompress(reference_file("a.tfrecord.xz").read_bytes()))
    found = joined(tfrecord.read(path, 0, None, BENCHMARK_RULES))
    assert digest(found) == REFERENCE_DIGEST
    # The other file's features come in another order.
    first = joined(tfrecord.read(reference_file("a_first64.tfrecord"), 0, None, BENCHMARK_RULES))
    assert same(first, rows_of(found, 0, 64))
    assert digest(changed(found, "mlm_ids", 100, found.mlm_ids[100] ^ 1)) != REFERENCE_DIGEST


def test_samples_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = write_tfrecord(tmp_path / "x", SAMPLES)
    assert find_form(path) == TFRECORD
    assert same(read(path), SAMPLES)
    assert not same(read(path), changed(SAMPLES, "tokens", 5, 7))


@settings(deadline=None, max_examples=60)
@given(
    orders=st.lists(st.permutations(NAMES), min_size=3, max_size=3),
    packed=st.lists(st.booleans(), min_size=3, max_size=3),
    weights=st.booleans(),
)
def test_features_in_any_order_packed_or_not(
    tmp_path_factory: pytest.TempPathFactory, orders: list[list[str]], packed: list[bool], weights: bool
) -> None:
    path = tmp_path_factory.mktemp("order") / "x"
    columns = padded(FEW, weights=weights)
    records = []
    for row, (order, is_packed) in enumerate(zip(orders, packed, strict=True)):
        own = {name: values[row : row + 1] for name, values in columns.items()}
        records += examples(own, packed=is_packed, names=[name for name in order if name in columns])
    path.write_bytes(framed(records))
    assert same(read(path), FEW)


@settings(deadline=None, max_examples=40)
@given(values=st.lists(st.lists(st.integers(0, 65535), min_size=4, max_size=4), min_size=1, max_size=6))
def test_numbers_of_every_size_are_decoded(values: list[list[int]]) -> None:
    parts = [feature(np.array(row))[4:] for row in values]
    assert all(row[:1] for row in parts)
    counts, found = tfrecord._numbers(parts, np.array(list(map(len, parts))))
    assert counts.tolist() == [4] * len(values)
    assert found.tolist() == [value for row in values for value in row]


def test_numbers_beyond_three_bytes_are_decoded() -> None:
    values = [0, 1 << 20, 1 << 21, (1 << 63) - 1, -1, 127, 128]
    packed = b"".join(tfrecord.varint(value % (1 << 64)) for value in values)
    counts, found = tfrecord._numbers([packed], np.array([len(packed)]))
    assert counts.tolist() == [7]
    assert found.tolist() == values


def test_the_quick_way_and_the_slow_way_read_the_same() -> None:
    records = examples(padded(FEW))
    data = b"".join(records)
    ends = np.cumsum(list(map(len, records))).tolist()
    ranges = list(zip([0, *ends], ends, strict=False))
    quick = tfrecord._usual(data, ranges)
    assert quick is not None
    for row, record in enumerate(records):
        assert {name.encode(): (own[0][row], own[1][row]) for name, own in quick.items()} == tfrecord._any(record)
    unpacked = b"".join(examples(padded(FEW), packed=False))
    assert tfrecord._usual(unpacked, [(0, len(unpacked))]) is None


def test_an_unknown_feature_and_one_given_twice_are_read_as_protobuf_reads_them(tmp_path: Path) -> None:
    columns = padded(FEW)
    (record, *others) = examples(columns)
    twice = bytes_field(1, bytes_field(1, b"next_sentence_labels") + bytes_field(2, feature(np.array([1]))))
    unknown = bytes_field(1, bytes_field(1, b"my_notes") + bytes_field(2, bytes_field(1, bytes_field(1, b"text"))))
    path = tmp_path / "x"
    path.write_bytes(framed([record + bytes_field(1, twice + unknown), *others]))
    assert same(read(path), changed(FEW, "nsp", 0, 1))


def test_a_file_that_is_cut_anywhere_is_refused_or_ends_with_a_whole_record(tmp_path: Path) -> None:
    path = write_tfrecord(tmp_path / "x", FEW)
    whole = path.read_bytes()
    borders = [0]
    while borders[-1] < len(whole):
        borders.append(borders[-1] + 16 + int.from_bytes(whole[borders[-1] : borders[-1] + 8], "little"))
    assert borders[-1] == len(whole)
    for size in sorted({*borders[1:], *(border - 1 for border in borders[1:]), *range(1, len(whole), 5)}):
        path.write_bytes(whole[:size])
        if size in borders:
            assert len(read(path)) == borders.index(size)
            continue
        row = max(n for n, border in enumerate(borders) if border <= size)
        assert f"{path}: row {row}: " in refusal(path)
        assert "cut off" in refusal(path)


def test_a_flipped_bit_anywhere_is_refused_with_its_row(tmp_path: Path) -> None:
    path = write_tfrecord(tmp_path / "x", FEW)
    whole = path.read_bytes()
    size = 16 + int.from_bytes(whole[:8], "little")
    for place in range(size, 2 * size, 3):
        if place >= len(whole):
            break
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        assert "row 1: " in refusal(path)
        assert "checksum" in refusal(path)


@pytest.mark.parametrize("size", [1, 13, 1000])
def test_the_size_of_reads_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    path = write_tfrecord(tmp_path / "x", FEW)
    monkeypatch.setattr(tfrecord, "_READ_BYTES", size)
    assert same(read(path), FEW)


def test_short_reads_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(io.FileIO):
        def read(self, size: int = -1) -> bytes:
            return super().read(min(size, 17))

    path = write_tfrecord(tmp_path / "x", FEW)
    monkeypatch.setattr("builtins.open", lambda path, mode: Short(path, mode))
    assert same(read(path), FEW)


def test_a_disk_that_fails_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.FileIO):
        def read(self, size: int = -1) -> NoReturn:
            raise OSError(5, "Input/output error")

    path = write_tfrecord(tmp_path / "x", FEW)
    monkeypatch.setattr("builtins.open", lambda path, mode: Broken(path, mode))
    assert refusal(path) == f"{path}: cannot read it (Input/output error); copy the file again, or mend its disk"


def test_a_file_that_is_replaced_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = write_tfrecord(tmp_path / "x", FEW)
    blocks = tfrecord.read(path, 0, None, SHORT_RULES)
    next(blocks)
    write_tfrecord(tmp_path / "y", SAMPLES).replace(path)
    with pytest.raises(SourceError, match="changed while it was read"):
        list(blocks)


def test_records_from_any_place_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfrecord, "PLACE_EVERY", 4)
    path = write_tfrecord(tmp_path / "x", SAMPLES)
    count, places = tfrecord.places(path)
    assert (count, len(places)) == (len(SAMPLES), -(-len(SAMPLES) // 4))
    for start, stop in ((0, 3), (5, 9), (8, 8 + 1), (3, len(SAMPLES))):
        found = joined(tfrecord.read(path, start, stop, SHORT_RULES, places))
        assert same(found, rows_of(SAMPLES, start, stop))


Columns = dict[str, np.ndarray]


def _set(name: str, *values: object) -> Callable[[Columns], None]:
    def change(columns: Columns) -> None:
        *place, value = values
        columns[name][(1, *place)] = value

    return change


def _widen(columns: Columns) -> None:
    columns["input_mask"] = np.pad(columns["input_mask"], ((0, 0), (0, 1)))


def _drop(name: str) -> Callable[[Columns], None]:
    return lambda columns: columns.pop(name) is None


def _as_floats(columns: Columns) -> None:
    columns["input_ids"] = columns["input_ids"].astype(np.float32)


ODD_ROWS = {
    "a hole in the mask": (_set("input_mask", 1, 0), "input_mask is 1 again behind a 0"),
    "a mask of another value": (_set("input_mask", 1, 2), "input_mask holds 2, expected 0 or 1"),
    "an empty sample": (_set("input_mask", slice(None), 0), "input_mask is all 0"),
    "a token behind the end": (_set("input_ids", -1, 7), "input_ids holds 7 in the padding"),
    "segments that fall": (_set("segment_ids", 1, 1), "segment_ids are not 0…0 1…1"),
    "a weight of another value": (_set("masked_lm_weights", 0, 0.5), "masked_lm_weights holds 0.5"),
    "a hole in the weights": (_set("masked_lm_weights", 0, 0), "masked_lm_weights is not 0 again behind a 0"),
    "a label without weight": (_set("masked_lm_ids", -1, 7), "masked_lm_ids holds 7 in the padding"),
    "a position outside": (_set("masked_lm_positions", 0, 99), "masked position 99 in a sample of"),
    "positions that fall": (_set("masked_lm_positions", 1, 1), "does not lie behind the one before"),
    "an id too large for 16 bits": (_set("input_ids", 1, 70000), "input_ids holds 70000, expected 0 to 65535"),
    "a negative id": (_set("input_ids", 1, -3), "input_ids holds -3, expected 0 to 65535"),
    "an id outside the vocabulary": (_set("input_ids", 1, 306), "token id 306, the vocabulary has 306 entries"),
    "a label outside the vocabulary": (_set("masked_lm_ids", 0, 400), "label id 400, the vocabulary has 306"),
    "no [CLS]": (_set("input_ids", 0, 9), r"begins with 9, expected \[CLS\], which is 2"),
    "a next-sentence label of another value": (_set("next_sentence_labels", 2), "next_sentence_labels holds 2"),
    "another width": (_widen, "input_mask has 33 values, expected 32; give it as --max-length"),
    "no mask": (_drop("input_mask"), "lacks input_mask, has input_ids"),
    "floats": (_as_floats, "input_ids is no list of integers"),
}


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("change", "message"), ODD_ROWS.values(), ids=ODD_ROWS)
def test_an_odd_row_is_named(tmp_path: Path, change: Callable[[Columns], None], message: str, packed: bool) -> None:
    columns = padded(with_a_padded_row(SAMPLES))
    change(columns)
    path = tmp_path / "x"
    path.write_bytes(framed(examples(columns, packed=packed)))
    with pytest.raises(SourceError, match=message) as error:
        read(path)
    row = 0 if change in (_widen, _as_floats) or "lacks" in message else 1
    assert str(error.value).startswith(f"{path}: row {row}: ")


def test_what_is_no_example_is_refused_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(framed([examples(padded(FEW))[0], b"\x0a\x99"]))
    assert "row 1: not a tf.train.Example (it ends within a" in refusal(path)
