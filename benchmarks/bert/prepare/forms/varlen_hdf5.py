"""HDF5 files of samples of their own lengths in, flat samples out: NVIDIA's form since round v2.0.

One data set of shape (rows,) a key; its rows are arrays. There is no input_mask: the length of input_ids says it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from benchmarks.bert.data.shards import SampleArrays
from benchmarks.bert.prepare.forms.padded import LABELS, PREDICTION_KEYS
from benchmarks.bert.prepare.forms.source import (
    Rows,
    Rules,
    SourceError,
    as_flags,
    as_ids,
    checked,
    offsets_of,
    reading,
)

_ROWS = 1 << 11  # at once
_KEYS = ("input_ids", "segment_ids", *PREDICTION_KEYS)
_AS_PUBLISHED = "; the keys and shapes are in docs/import.md"


def count(path: Path) -> int:
    """Rows of the file."""
    with reading(path), h5py.File(path, "r") as file:
        return _num_rows(path, file)


def read(path: Path, start: int, stop: int, rules: Rules) -> Iterator[SampleArrays]:
    """The samples of rows `start` to before `stop`, block by block."""
    with reading(path), h5py.File(path, "r") as file:
        _num_rows(path, file)
        for first in range(start, stop, _ROWS):
            block = slice(first, min(first + _ROWS, stop))
            yield _flat({key: file[key][block] for key in (*_KEYS, LABELS)}, rules, Rows(path, first))


def _flat(block: dict[str, np.ndarray], rules: Rules, rows: Rows) -> SampleArrays:
    sizes = {key: np.array([len(row) for row in block[key]], np.int64) for key in _KEYS}
    lengths, counts = sizes["input_ids"], sizes["masked_lm_positions"]
    rows.refuse(lengths == 0, lambda row: "input_ids is empty, an empty sample")
    for like, key in (("input_ids", "segment_ids"), PREDICTION_KEYS):
        differ = sizes[like] != sizes[key]
        rows.refuse(
            differ,
            lambda row, like=like, key=key: f"{sizes[key][row]} {key} and {sizes[like][row]} {like}",  # type: ignore[misc]
        )
    owners = np.repeat(np.arange(len(lengths)), lengths)
    predictors = np.repeat(np.arange(len(counts)), counts)

    def ids(key: str, owners: np.ndarray) -> np.ndarray:
        return as_ids(np.concatenate(block[key].tolist()), key, rows, owners)

    segments = as_flags(np.concatenate(block["segment_ids"].tolist()), "segment_ids", rows, owners)
    boundary = lengths - np.bincount(owners[segments], minlength=len(lengths))
    offsets = offsets_of(lengths)
    odd = segments != (np.arange(len(owners)) - offsets[owners] >= boundary[owners])
    rows.refuse(
        np.bincount(owners[odd], minlength=len(lengths)) > 0, lambda row: "segment_ids are not 0…0 1…1 over the sample"
    )
    arrays = SampleArrays(
        tokens=ids("input_ids", owners),
        token_offsets=offsets,
        boundary=boundary.astype(np.uint16),
        mlm_positions=ids("masked_lm_positions", predictors),
        mlm_ids=ids("masked_lm_ids", predictors),
        mlm_offsets=offsets_of(counts),
        nsp=as_flags(block[LABELS], LABELS, rows).astype(np.uint8),
    )
    return checked(arrays, rules, rows)


def _num_rows(path: Path, file: h5py.File) -> int:
    """Refuses missing keys and other shapes than one row a sample."""
    keys = (*_KEYS, LABELS)
    if missing := [key for key in keys if not isinstance(file.get(key), h5py.Dataset)]:
        raise SourceError(f"{path}: lacks {', '.join(missing)}, has {', '.join(file) or 'nothing'}{_AS_PUBLISHED}")
    for key in keys:
        if file[key].ndim != 1 or file[key].shape != file[LABELS].shape:
            raise SourceError(
                f"{path}: {key} has shape {file[key].shape}, {LABELS} {file[LABELS].shape}: they do not fit"
                f"{_AS_PUBLISHED}"
            )
        element = file[key].dtype if key == LABELS else h5py.check_vlen_dtype(file[key].dtype)
        if element is None or np.dtype(element).kind not in "iu":
            expected = "integers" if key == LABELS else "arrays of integers as rows"
            raise SourceError(f"{path}: {key} holds {element or file[key].dtype}, expected {expected}{_AS_PUBLISHED}")
    return len(file[LABELS])
