"""A block of samples in, what is wrong with them out, and the counts that the whole folder is judged by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.bert.data.shards import SampleArrays
from benchmarks.bert.prepare.check import finding as kinds
from benchmarks.bert.prepare.check.finding import Finding, Kind

SHORTEST = 5  # [CLS] a [SEP] b [SEP]
_SPECIAL, _OUTSIDE = 1, 2  # bits of a token's class


@dataclass(frozen=True)
class Vocabulary:
    """What a check wants to know of it. Without the file, the size is that of 16 bits and [PAD] is not known."""

    size: int
    cls: int
    sep: int
    mask: int
    pad: int | None = None

    def name(self, token: int) -> str:
        names = {self.cls: "[CLS]", self.sep: "[SEP]", self.mask: "[MASK]", self.pad: "[PAD]"}
        return names.get(token, str(token))


@dataclass(frozen=True)
class Expected:
    """What samples of a recipe are like."""

    vocabulary: Vocabulary
    max_length: int
    num_predictions: np.ndarray  # int64 (max_length + 1,), by length


@dataclass
class Tally:
    """What adds up over blocks."""

    num_lengths: np.ndarray  # int64 (max_length + 1,): samples of each length
    shown: np.ndarray = field(default_factory=lambda: np.zeros(3, np.int64))  # [MASK], the token itself, another
    nsp: np.ndarray = field(default_factory=lambda: np.zeros(2, np.int64))
    found: dict[str, Finding] = field(default_factory=dict)  # by kind: the first row, and how many there are


class Rows:
    """Notes which rows of a shard's blocks are wrong."""

    def __init__(self, path: Path, tally: Tally) -> None:
        self._path, self._tally = path, tally
        self.first = 0  # number in the shard of the block's first row

    def note(self, kind: Kind, bad: np.ndarray, text: Callable[[int], str]) -> None:
        """`bad` is one bool a row; `text` says of a row what was found."""
        if not bad.any():
            return
        row, count = int(bad.argmax()), int(np.count_nonzero(bad))
        known = self._tally.found.get(kind.id)
        if known is None:
            known = Finding(kind, self._path, text(row), self.first + row)
        self._tally.found[kind.id] = Finding(kind, self._path, known.found, known.row, known.num_rows + count)


def check_block(samples: SampleArrays, expected: Expected, rows: Rows, tally: Tally) -> np.ndarray:
    """Note what is wrong; returns the samples' tokens with the masked ones put back, uint16.

    Offsets must fit and no sample be empty.
    """
    vocabulary = expected.vocabulary
    tokens, first = samples.tokens, samples.token_offsets[:-1]
    lengths, boundary = samples.lengths, samples.boundary.astype(np.int64)
    is_short = lengths < SHORTEST
    rows.note(kinds.TOO_LONG, is_short | (lengths > expected.max_length), lambda row: f"{lengths[row]} tokens")
    no_pair = (boundary < 3) | (boundary > lengths - 2)
    rows.note(kinds.BOUNDARY, no_pair, lambda row: f"boundary {boundary[row]} in a sample of {lengths[row]} tokens")
    rows.note(kinds.FIRST_TOKEN, tokens[first] != vocabulary.cls, lambda row: f"begins with {tokens[first[row]]}")
    last = samples.token_offsets[1:] - 1
    a_end = first + np.clip(boundary - 1, 0, lengths - 1)
    rows.note(
        kinds.LAST_TOKEN,
        (tokens[last] != vocabulary.sep) | (~no_pair & (tokens[a_end] != vocabulary.sep)),
        lambda row: f"A ends with {tokens[a_end[row]]}, B with {tokens[last[row]]}",
    )
    rows.note(kinds.NSP, samples.nsp > 1, lambda row: f"next-sentence label {samples.nsp[row]}")
    tally.num_lengths += np.bincount(np.minimum(lengths, expected.max_length), minlength=expected.max_length + 1)
    tally.nsp += np.bincount(np.minimum(samples.nsp, 1), minlength=2)

    counts = np.diff(samples.mlm_offsets)
    usual = expected.num_predictions[np.minimum(lengths, expected.max_length)]
    rows.note(
        kinds.PREDICTIONS,
        (counts != usual) & (lengths <= expected.max_length),
        lambda row: f"{counts[row]} predictions in {lengths[row]} tokens, not {usual[row]}",
    )
    owners = np.repeat(np.arange(len(lengths)), counts)
    positions = samples.mlm_positions.astype(np.int64)
    labels = samples.mlm_ids

    def note(kind: Kind, wrong: np.ndarray, text: Callable[[int], str]) -> None:
        """`wrong` is one bool a prediction; `text` says what a prediction is."""
        if wrong.any():
            bad = np.bincount(owners[wrong], minlength=len(lengths)) > 0
            first_wrong = int(wrong.argmax())
            rows.note(kind, bad, lambda row: text(first_wrong))

    outside = positions >= lengths[owners]
    note(
        kinds.POSITION_OUTSIDE,
        outside,
        lambda at: f"masked position {positions[at]} in a sample of {lengths[owners[at]]} tokens",
    )
    falling = np.zeros(len(positions), bool)
    falling[1:] = (positions[1:] <= positions[:-1]) & (owners[1:] == owners[:-1])
    note(kinds.POSITION_ORDER, falling, lambda at: f"masked position {positions[at]} behind {positions[at - 1]}")
    places = first[owners] + np.where(outside, 0, positions)
    at_special = ~outside & ((places == first[owners]) | (places == last[owners]) | (places == a_end[owners]))
    note(kinds.POSITION_SPECIAL, at_special, lambda at: f"masked position {positions[at]} is that of [CLS] or [SEP]")
    note(kinds.MASK_LABEL, labels == vocabulary.mask, lambda at: f"label [MASK] at masked position {positions[at]}")
    classes = _classes(vocabulary)
    label_classes = classes[labels]
    note(
        kinds.SPECIAL_LABEL,
        (label_classes == _SPECIAL) & (labels != vocabulary.mask),
        lambda at: f"label {vocabulary.name(int(labels[at]))} at masked position {positions[at]}",
    )
    shown = tokens[places]
    note(
        kinds.OUT_OF_VOCABULARY,
        (label_classes == _OUTSIDE) | (classes[shown] == _OUTSIDE),
        lambda at: f"id {max(labels[at], shown[at])}, the vocabulary has {vocabulary.size:,} entries",
    )
    inside = ~outside
    is_mask, is_own = shown[inside] == vocabulary.mask, shown[inside] == labels[inside]
    num_mask, num_own = np.count_nonzero(is_mask), np.count_nonzero(is_own & ~is_mask)
    tally.shown += (num_mask, num_own, len(is_mask) - num_mask - num_own)

    text = tokens.copy()
    text[places[inside]] = labels[inside]
    _check_text(text, places[inside], samples, a_end, classes, vocabulary, rows)
    return text


def _check_text(
    text: np.ndarray,
    masked: np.ndarray,
    samples: SampleArrays,
    a_end: np.ndarray,
    classes: np.ndarray,
    vocabulary: Vocabulary,
    rows: Rows,
) -> None:
    """Tokens that are not predicted: none is special but at its place, none outside the vocabulary."""
    own = classes[text]
    for ruled in (masked, samples.token_offsets[:-1], samples.token_offsets[1:] - 1, a_end):
        own[ruled] = 0  # checked already
    odd = np.flatnonzero(own)
    if not len(odd):
        return
    owners = np.searchsorted(samples.token_offsets, odd, side="right") - 1
    for kind, class_, text_of in (
        (kinds.STRAY, _SPECIAL, lambda at: f"{vocabulary.name(int(text[at]))} at an unmasked place"),
        (
            kinds.OUT_OF_VOCABULARY,
            _OUTSIDE,
            lambda at: f"id {text[at]}, the vocabulary has {vocabulary.size:,} entries",
        ),
    ):
        wrong = own[odd] == class_
        if wrong.any():
            at = int(odd[wrong.argmax()])
            bad = np.bincount(owners[wrong], minlength=len(samples)) > 0
            rows.note(kind, bad, lambda row, text_of=text_of, at=at: text_of(at))  # type: ignore[misc]


def _classes(vocabulary: Vocabulary) -> np.ndarray:
    """For each id 0, _SPECIAL or _OUTSIDE."""
    classes = np.zeros(1 << 16, np.uint8)
    classes[
        [token for token in (vocabulary.cls, vocabulary.sep, vocabulary.mask, vocabulary.pad) if token is not None]
    ] = _SPECIAL
    classes[vocabulary.size :] = _OUTSIDE
    return classes
