"""HDF5 of the published trees: padded rows of one width, and rows of their own lengths."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.bert.data.shards import SampleArrays
from benchmarks.bert.prepare.forms import fixed_hdf5, varlen_hdf5
from benchmarks.bert.prepare.forms.form import FIXED, VARLEN, find_form
from benchmarks.bert.prepare.forms.source import Rules, SourceError
from tests.support.sample_files import (
    BENCHMARK_RULES,
    REFERENCE_DIGEST,
    SHORT_RULES,
    changed,
    digest,
    joined,
    make_word_samples,
    padded,
    ragged,
    reference_file,
    rows_of,
    same,
    with_a_padded_row,
    write_hdf5,
    write_varlen,
)

SAMPLES = make_word_samples()
THREE = with_a_padded_row(SAMPLES)
Columns = dict[str, np.ndarray]
Ragged = dict[str, list[np.ndarray]]


def read_fixed(path: Path, rules: Rules = SHORT_RULES) -> SampleArrays:
    return joined(fixed_hdf5.read(path, 0, fixed_hdf5.count(path), rules))


def read_varlen(path: Path, rules: Rules = SHORT_RULES) -> SampleArrays:
    return joined(varlen_hdf5.read(path, 0, varlen_hdf5.count(path), rules))


@pytest.mark.parametrize(
    ("name", "form", "read"), [("fixed512", FIXED, read_fixed), ("varlen", VARLEN, read_varlen)], ids=[FIXED, VARLEN]
)
def test_the_references_files_have_the_references_samples(
    tmp_path: Path, name: str, form: str, read: Callable[[Path, Rules], SampleArrays]
) -> None:
    path = tmp_path / "a.hdf5"
    path.write_bytes(lzma.decompress(reference_file(f"a_{name}.hdf5.xz").read_bytes()))
    assert find_form(path) == form
    found = read(path, BENCHMARK_RULES)
    assert digest(found) == REFERENCE_DIGEST
    # One has another [CLS] inside, one another [SEP].
    inside = np.delete(found.tokens, np.concatenate([found.token_offsets[:-1], found.token_offsets[1:] - 1]))
    assert np.count_nonzero(inside == 101) == 1
    assert np.count_nonzero(inside == 102) == len(found) + 1
    assert same(read(reference_file(f"a_first64_{name}.hdf5"), BENCHMARK_RULES), rows_of(found, 0, 64))


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("dtype", ["int16", "int32", "int64"])
def test_fixed_samples_come_back_as_they_were_written(tmp_path: Path, dtype: str, weights: bool) -> None:
    path = write_hdf5(tmp_path / "x", padded(SAMPLES, weights=weights), dtype)
    assert find_form(path) == FIXED
    assert same(read_fixed(path), SAMPLES)
    assert not same(read_fixed(path), changed(SAMPLES, "boundary", 3, 1))


def test_varlen_samples_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = write_varlen(tmp_path / "x", ragged(SAMPLES))
    assert find_form(path) == VARLEN
    assert same(read_varlen(path), SAMPLES)
    assert not same(read_varlen(path), changed(SAMPLES, "nsp", 3, 1 - SAMPLES.nsp[3]))


def test_rows_that_are_asked_for(tmp_path: Path) -> None:
    fixed = write_hdf5(tmp_path / "f", padded(SAMPLES))
    varlen = write_varlen(tmp_path / "v", ragged(SAMPLES))
    for start, stop in ((0, 1), (3, 9), (5, len(SAMPLES))):
        assert same(joined(fixed_hdf5.read(fixed, start, stop, SHORT_RULES)), rows_of(SAMPLES, start, stop))
        assert same(joined(varlen_hdf5.read(varlen, start, stop, SHORT_RULES)), rows_of(SAMPLES, start, stop))


@pytest.mark.parametrize("read", [read_fixed, read_varlen])
def test_sixteen_bits_with_a_sign_hold_large_ids(tmp_path: Path, read: Callable[[Path, Rules], SampleArrays]) -> None:
    large = changed(SAMPLES, "tokens", 1, 65000)
    path = tmp_path / "x"
    if read is read_fixed:
        write_hdf5(path, padded(large).copy(), "uint16")
        with h5py.File(path, "r+") as file:
            values = file["input_ids"][:].view(np.int16)
            del file["input_ids"]
            file["input_ids"] = values
    else:
        write_varlen(path, ragged(large))
    rules = Rules(SHORT_RULES.max_length, SHORT_RULES.max_predictions, 65536, SHORT_RULES.cls, SHORT_RULES.sep)
    assert same(read(path, rules), large)
    with pytest.raises(SourceError, match="row 0: token id 65000, the vocabulary has 306 entries"):
        read(path, SHORT_RULES)


@settings(deadline=None, max_examples=10)
@example(seed=1, tokens=[0])
@given(seed=st.integers(0, 1000), tokens=st.lists(st.integers(0, 305), min_size=1, max_size=9))
def test_whatever_stands_inside_a_sample_comes_back(
    tmp_path_factory: pytest.TempPathFactory, seed: int, tokens: list[int]
) -> None:
    """[PAD], [CLS] and [SEP] among them."""
    samples = make_word_samples(3, seed)
    values = samples.tokens.copy()
    places = np.setdiff1d(
        np.arange(len(values)), np.concatenate([samples.token_offsets[:-1], samples.token_offsets[1:] - 1])
    )
    for number, token in enumerate(tokens):
        values[places[number * 7919 % len(places)]] = token
    samples = SampleArrays(values, *(array for name, array in samples.items() if name != "tokens"))
    samples = changed(samples, "mlm_ids", 0, tokens[0])
    folder = tmp_path_factory.mktemp("inside")
    assert same(read_fixed(write_hdf5(folder / "f", padded(samples, weights=False))), samples)
    assert same(read_varlen(write_varlen(folder / "v", ragged(samples))), samples)


def _set(name: str, *values: object) -> Callable[[Columns], None]:
    def change(columns: Columns) -> None:
        *place, value = values
        columns[name][(1, *place)] = value

    return change


ODD_FIXED = {
    "a hole in the mask": (_set("input_mask", 1, 0), "input_mask is 1 again behind a 0"),
    "an empty sample": (_set("input_mask", slice(None), 0), "input_mask is all 0"),
    "a token behind the end": (_set("input_ids", -1, 7), "input_ids holds 7 in the padding"),
    "segments that fall": (_set("segment_ids", 1, 1), "segment_ids are not 0…0 1…1"),
    "a segment behind the end": (_set("segment_ids", -1, 1), "segment_ids are not 0…0 1…1"),
    "a hole in the positions": (_set("masked_lm_positions", 0, 0), "masked_lm_positions is not 0 again"),
    "a label without position": (_set("masked_lm_ids", -1, 7), "masked_lm_ids holds 7 in the padding"),
    "a position outside": (_set("masked_lm_positions", 0, 31), "masked position 31 in a sample of"),
    "a negative id": (_set("input_ids", 1, -3), "input_ids holds -3, expected 0 to 65535"),
    "no prediction": (_set("masked_lm_positions", slice(None), 0), "masked_lm_ids holds"),
}


@pytest.mark.parametrize(("change", "message"), ODD_FIXED.values(), ids=ODD_FIXED)
def test_an_odd_row_of_the_fixed_form_is_named(tmp_path: Path, change: Callable[[Columns], None], message: str) -> None:
    columns = padded(THREE, weights=False)
    change(columns)
    path = write_hdf5(tmp_path / "x", columns)
    with pytest.raises(SourceError, match=f"row 1: {message}") as error:
        read_fixed(path)
    assert str(error.value).startswith(str(path))


def _row(name: str, make: Callable[[np.ndarray], np.ndarray]) -> Callable[[Ragged], None]:
    def change(columns: Ragged) -> None:
        columns[name][1] = make(np.asarray(columns[name][1]))

    return change


def _as_under_numpy_2(columns: Ragged) -> None:
    for name in ("input_ids", "segment_ids"):
        columns[name][1] = np.append(columns[name][1], np.zeros(2, columns[name][1].dtype))
    columns["segment_ids"][1][-2:] = 1


ODD_VARLEN = {
    "no tokens": (_row("input_ids", lambda row: row[:0]), "input_ids is empty"),
    "segments of another length": (_row("segment_ids", lambda row: row[:-1]), r"\d+ segment_ids and \d+ input_ids"),
    "labels of another number": (_row("masked_lm_ids", lambda row: row[:-1]), r"\d masked_lm_ids and \d masked_lm_pos"),
    "segments that fall": (_row("segment_ids", lambda row: row[::-1]), "segment_ids are not 0…0 1…1"),
    "a segment 2": (_row("segment_ids", lambda row: 2 * row), "segment_ids holds 2, expected 0 or 1"),
    "a position outside": (_row("masked_lm_positions", lambda row: row + 32), "masked position"),
    "positions that fall": (_row("masked_lm_positions", lambda row: row[::-1]), "does not lie behind"),
    "no predictions": (
        lambda columns: [_row(name, lambda row: row[:0])(columns) for name in _PREDICTED],
        "no prediction",
    ),
    "a wrong length": (_as_under_numpy_2, r"end with 0, expected \[SEP\].* under NumPy 2"),
}
_PREDICTED = ("masked_lm_positions", "masked_lm_ids")


@pytest.mark.parametrize(("change", "message"), ODD_VARLEN.values(), ids=ODD_VARLEN)
def test_an_odd_row_of_the_varlen_form_is_named(
    tmp_path: Path, change: Callable[[Ragged], object], message: str
) -> None:
    columns = ragged(THREE)
    change(columns)
    with pytest.raises(SourceError, match=f"row 1: .*{message}|row 1: {message}"):
        read_varlen(write_varlen(tmp_path / "x", columns))


def _narrow(file: h5py.File) -> None:
    _replace("masked_lm_ids", lambda values: values[:, :-1])(file)


def _replace(name: str, make: Callable[[np.ndarray], np.ndarray]) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        values = make(file[name][:])
        del file[name]
        file[name] = values

    return change


ODD_FILES = {
    "no mask": (lambda file: file.pop("input_mask"), "lacks input_mask, has input_ids, masked"),
    "no labels": (lambda file: file.pop("next_sentence_labels"), "lacks next_sentence_labels"),
    "a group": (lambda file: (file.pop("input_mask"), file.create_group("input_mask")), "lacks input_mask"),
    "fewer rows": (_replace("segment_ids", lambda values: values[:-1]), r"segment_ids has shape \(2, 32\)"),
    "flat": (_replace("input_ids", np.ravel), r"input_ids has shape \(96,\)"),
    "narrow labels": (_narrow, r"masked_lm_ids has shape \(3, 4\)"),
    "floats": (_replace("input_ids", lambda values: values.astype(float)), "input_ids holds float64"),
    "labels as a column": (_replace("next_sentence_labels", lambda values: values[:, None]), "has shape"),
}


@pytest.mark.parametrize(("change", "message"), ODD_FILES.values(), ids=ODD_FILES)
def test_missing_keys_and_wrong_shapes_are_named(
    tmp_path: Path, change: Callable[[h5py.File], object], message: str
) -> None:
    path = write_hdf5(tmp_path / "x", padded(THREE))
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(SourceError, match=message):
        fixed_hdf5.count(path)


def test_another_width_is_refused_with_the_option_to_give(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "x", padded(THREE))
    with pytest.raises(SourceError, match=r"input_ids has 32 columns, expected 512; give it as --max-length"):
        read_fixed(path, BENCHMARK_RULES)


@pytest.mark.parametrize("name", ["segment_ids", "masked_lm_ids", "next_sentence_labels"])
def test_a_varlen_file_without_a_key_is_refused(tmp_path: Path, name: str) -> None:
    path = write_varlen(tmp_path / "x", ragged(THREE))
    with h5py.File(path, "r+") as file:
        del file[name]
    with pytest.raises(SourceError, match=f"lacks {name}"):
        varlen_hdf5.count(path)


@pytest.mark.parametrize("share", [0.02, 0.5, 0.99])
def test_a_cut_file_is_refused(tmp_path: Path, share: float) -> None:
    for path, read in (
        (write_hdf5(tmp_path / "f", padded(SAMPLES)), read_fixed),
        (write_varlen(tmp_path / "v", ragged(SAMPLES)), read_varlen),
    ):
        path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
        with pytest.raises(SourceError, match=rf"{path}: cannot read it \(.*\); copy the file again"):
            read(path)


def test_a_disk_that_fails_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_hdf5(tmp_path / "x", padded(THREE))

    def fail(*arguments: object) -> None:
        raise OSError("Can't synchronously read data (errno = 5, error message = 'Input/output error')")

    monkeypatch.setattr(h5py.Dataset, "__getitem__", fail)
    with pytest.raises(SourceError, match=r"cannot read it \(.*Input/output error.*\); copy the file again"):
        read_fixed(path)


def test_a_file_that_is_replaced_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "x", padded(THREE))
    blocks = fixed_hdf5.read(path, 0, 3, SHORT_RULES)
    next(blocks)
    write_hdf5(tmp_path / "y", padded(SAMPLES)).replace(path)
    with pytest.raises(SourceError, match="changed while it was read"):
        list(blocks)
