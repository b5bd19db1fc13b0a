"""HDF5 files of padded samples in, one data set a key, as in NVIDIA's and Samsung's trees; flat samples out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py

from benchmarks.bert.data.shards import SampleArrays
from benchmarks.bert.prepare.forms.padded import LABELS, PREDICTION_KEYS, TOKEN_KEYS, WEIGHTS, Padded, without_padding
from benchmarks.bert.prepare.forms.source import Rows, Rules, SourceError, reading

_ROWS = 1 << 11  # at once
_WIDTHS = {"input_ids": "max_length", "masked_lm_positions": "max_predictions"}
_AS_PUBLISHED = "; the keys and shapes are in docs/import.md"


def count(path: Path) -> int:
    """Rows of the file."""
    with reading(path), h5py.File(path, "r") as file:
        return _num_rows(path, file)


def read(path: Path, start: int, stop: int, rules: Rules) -> Iterator[SampleArrays]:
    """The samples of rows `start` to before `stop`, block by block."""
    with reading(path), h5py.File(path, "r") as file:
        _num_rows(path, file)
        for key, option in _WIDTHS.items():
            expected = getattr(rules, option)
            if file[key].shape[1] != expected:
                raise SourceError(
                    f"{path}: {key} has {file[key].shape[1]} columns, expected {expected}; give it as "
                    f"--{option.replace('_', '-')}"
                )
        keys = [*TOKEN_KEYS, *PREDICTION_KEYS, *([WEIGHTS] if WEIGHTS in file else []), LABELS]
        for first in range(start, stop, _ROWS):
            block = {key: file[key][first : min(first + _ROWS, stop)] for key in keys}
            yield without_padding(Padded(**{WEIGHTS: None} | block), rules, Rows(path, first))


def _num_rows(path: Path, file: h5py.File) -> int:
    """Refuses missing keys and shapes that do not fit one another."""
    keys = (*TOKEN_KEYS, *PREDICTION_KEYS, LABELS)
    if missing := [key for key in keys if not isinstance(file.get(key), h5py.Dataset)]:
        raise SourceError(f"{path}: lacks {', '.join(missing)}, has {', '.join(file) or 'nothing'}{_AS_PUBLISHED}")
    num_rows = len(file[LABELS]) if file[LABELS].ndim else 0
    for like, others in (("input_ids", TOKEN_KEYS), ("masked_lm_positions", (*PREDICTION_KEYS, WEIGHTS))):
        width = file[like].shape[-1] if file[like].ndim == 2 else 0
        for key in others:
            if key in file and file[key].shape != (num_rows, width):
                raise SourceError(
                    f"{path}: {key} has shape {file[key].shape}, {LABELS} {file[LABELS].shape} and {like} "
                    f"{file[like].shape}: they do not fit{_AS_PUBLISHED}"
                )
    for key in keys:
        if file[key].dtype.kind not in "iu":
            raise SourceError(f"{path}: {key} holds {file[key].dtype}, expected integers{_AS_PUBLISHED}")
    if file[LABELS].shape != (num_rows,):
        raise SourceError(f"{path}: {LABELS} has shape {file[LABELS].shape}, expected one label a row{_AS_PUBLISHED}")
    return num_rows
