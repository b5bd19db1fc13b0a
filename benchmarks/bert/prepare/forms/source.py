"""A sample file of another harness in, what is common to its forms out: its refusals, its rules, the check of its rows.

Rows count from 0.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.bert.data.shards import SampleArrays


class SourceError(ValueError):
    """A file cannot be imported; the message names the file, the row, what is wrong and the remedy."""


@dataclass(frozen=True)
class Rules:
    """What every sample of an import must obey."""

    max_length: int
    max_predictions: int
    num_vocabulary: int
    cls: int
    sep: int


@dataclass(frozen=True)
class Rows:
    """Names the rows of a block for messages."""

    path: Path
    first: int  # number in the file of the block's first row

    def refuse(self, bad: np.ndarray, text: Callable[[int], str], remedy: str = "make the file again") -> None:
        """Raise SourceError for the first row that is `bad` (bool, one a row), if any; `text` says what it has."""
        if bad.any():
            row = int(bad.argmax())
            raise self.error(row, text(row), remedy)

    def error(self, row: int, text: str, remedy: str = "make the file again") -> SourceError:
        return SourceError(f"{self.path}: row {self.first + row}: {text}; {remedy}")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what a disk or the HDF5 library says into SourceError, and refuse a file that is replaced meanwhile."""
    try:
        before = _identity(path)
        yield
        if _identity(path) != before:
            raise SourceError(f"{path}: changed while it was read; import it again when it is final")
    except (OSError, RuntimeError, KeyError) as error:
        why = (isinstance(error, OSError) and error.strerror) or " ".join(str(error).split())
        raise SourceError(f"{path}: cannot read it ({why}); copy the file again, or mend its disk") from error


def _identity(path: Path) -> tuple[int, ...]:
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def as_ids(values: np.ndarray, name: str, rows: Rows, owners: np.ndarray | None = None) -> np.ndarray:
    """Numbers of any integer type as uint16, shape kept. 16 bits with a sign hold those above 32,767 as negative ones.

    `owners` are the values' rows where their first axis is not the rows.
    """
    if values.dtype == np.int16:
        return values.view(np.uint16)
    if values.dtype != np.uint16:
        _refuse_any((values < 0) | (values > 0xFFFF), values, f"{name} holds {{}}, expected 0 to 65535", rows, owners)
    return values.astype(np.uint16, copy=False)


def as_flags(values: np.ndarray, name: str, rows: Rows, owners: np.ndarray | None = None) -> np.ndarray:
    """Zeros and ones as bool, shape kept."""
    flags = values != 0
    if not np.array_equal(flags, values):
        _refuse_any(flags != values, values, f"{name} holds {{}}, expected 0 or 1", rows, owners)
    return flags


def _refuse_any(bad: np.ndarray, values: np.ndarray, text: str, rows: Rows, owners: np.ndarray | None) -> None:
    if bad.any():
        place = tuple(np.argwhere(bad)[0])
        raise rows.error(int(place[0] if owners is None else owners[place[0]]), text.format(values[place]))


def checked(arrays: SampleArrays, rules: Rules, rows: Rows) -> SampleArrays:
    """The samples as they are, if they are samples of this vocabulary and these sizes."""
    lengths, counts = arrays.lengths, np.diff(arrays.mlm_offsets)
    first, last = arrays.token_offsets[:-1], arrays.token_offsets[1:] - 1
    rows.refuse(
        lengths > rules.max_length,
        lambda row: f"{lengths[row]} tokens, at most {rules.max_length} are expected",
        "give their --max-length",
    )
    rows.refuse(
        counts > rules.max_predictions,
        lambda row: f"{counts[row]} predictions, at most {rules.max_predictions} are expected",
        "give their --max-predictions",
    )
    rows.refuse(counts == 0, lambda row: "no prediction")
    rows.refuse(
        arrays.tokens[first] != rules.cls,
        lambda row: f"begins with {arrays.tokens[first[row]]}, expected [CLS], which is {rules.cls}",
        "give the --vocab that it was made with",
    )
    rows.refuse(
        arrays.tokens[last] != rules.sep,
        lambda row: (
            f"its {lengths[row]} tokens end with {arrays.tokens[last[row]]}, expected [SEP], which is {rules.sep}"
        ),
        "its length is wrong (as written by convert_fixed2variable.py under NumPy 2, whose sum overflows int8) or it "
        "was made with another --vocab",
    )
    for name, values, offsets in (
        ("token", arrays.tokens, arrays.token_offsets),
        ("label", arrays.mlm_ids, arrays.mlm_offsets),
    ):
        if len(values) and values.max() >= rules.num_vocabulary:
            rows.refuse(
                np.maximum.reduceat(values, offsets[:-1]) >= rules.num_vocabulary,
                lambda row, name=name, values=values, offsets=offsets: (  # type: ignore[misc]
                    f"{name} id {values[slice(*offsets[row : row + 2])].max()}, "
                    f"the vocabulary has {rules.num_vocabulary:,} entries"
                ),
                "give the --vocab that it was made with",
            )
    _check_positions(arrays, rows)
    return arrays


def _check_positions(arrays: SampleArrays, rows: Rows) -> None:
    positions = arrays.mlm_positions.astype(np.int64)
    counts = np.diff(arrays.mlm_offsets)
    numbers = np.repeat(np.arange(len(arrays)), counts)

    def refuse(wrong: np.ndarray, text: str) -> None:
        """`wrong` is one bool a prediction."""
        if wrong.any():
            bad = np.bincount(numbers[wrong], minlength=len(arrays)) > 0
            found = positions[wrong]
            rows.refuse(bad, lambda row: text.format(found[0], arrays.lengths[row]))

    refuse(positions >= arrays.lengths[numbers], "masked position {} in a sample of {} tokens")
    falling = np.zeros(len(positions), bool)
    falling[1:] = (positions[1:] <= positions[:-1]) & (numbers[1:] == numbers[:-1])
    refuse(falling, "masked position {} does not lie behind the one before it")


def offsets_of(sizes: np.ndarray) -> np.ndarray:
    """Where each of these sizes begins, and the end: int64, one more."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
