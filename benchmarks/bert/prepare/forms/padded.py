"""Samples padded to one width in, the same without padding out: what TFRecords and fixed-length HDF5 have in common.

The length is what `input_mask` says: a sample may hold [PAD] inside, for the random tokens come from the whole
vocabulary. Where B begins is what `segment_ids` say, for the same reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.bert.data.shards import SampleArrays
from benchmarks.bert.prepare.forms.source import Rows, Rules, as_flags, as_ids, checked, offsets_of

TOKEN_KEYS = ("input_ids", "input_mask", "segment_ids")  # (rows, max_length)
PREDICTION_KEYS = ("masked_lm_positions", "masked_lm_ids")  # (rows, max_predictions)
WEIGHTS = "masked_lm_weights"  # the same, may be absent
LABELS = "next_sentence_labels"  # (rows,)


@dataclass(frozen=True)
class Padded:
    """A block of rows as its file holds it: the keys above, integers of any type (the weights may be floats)."""

    input_ids: np.ndarray
    input_mask: np.ndarray
    segment_ids: np.ndarray
    masked_lm_positions: np.ndarray
    masked_lm_ids: np.ndarray
    masked_lm_weights: np.ndarray | None
    next_sentence_labels: np.ndarray


def without_padding(block: Padded, rules: Rules, rows: Rows) -> SampleArrays:
    """The block's samples; raises SourceError for the first row that is not padded as the reference pads."""
    mask = as_flags(block.input_mask, "input_mask", rows)
    lengths = mask.sum(1, dtype=np.int64)
    columns = np.arange(mask.shape[1])
    rows.refuse(lengths == 0, lambda row: "input_mask is all 0, an empty sample")
    rows.refuse(
        (mask != (columns < lengths[:, None])).any(1), lambda row: "input_mask is 1 again behind a 0, expected 1…1 0…0"
    )
    ids = as_ids(block.input_ids, "input_ids", rows)
    tokens = ids[mask]
    _refuse_behind(ids, tokens, mask, "input_ids", rows)
    segments = as_flags(block.segment_ids, "segment_ids", rows)
    boundary = lengths - segments.sum(1, dtype=np.int64)
    rows.refuse(
        (segments != (mask & (columns >= boundary[:, None]))).any(1),
        lambda row: "segment_ids are not 0…0 1…1 over the sample and 0 behind it",
    )
    positions = as_ids(block.masked_lm_positions, "masked_lm_positions", rows)
    labels = as_ids(block.masked_lm_ids, "masked_lm_ids", rows)
    if block.masked_lm_weights is not None:
        chosen, name = as_flags(block.masked_lm_weights, WEIGHTS, rows), WEIGHTS
    else:
        chosen, name = positions != 0, "masked_lm_positions"  # [CLS] stands at 0 and is never masked
    counts = chosen.sum(1, dtype=np.int64)
    rows.refuse(
        (chosen != (np.arange(chosen.shape[1]) < counts[:, None])).any(1),
        lambda row: f"{name} is not 0 again behind a 0, expected all predictions first",
    )
    arrays = SampleArrays(
        tokens=tokens,
        token_offsets=offsets_of(lengths),
        boundary=boundary.astype(np.uint16),
        mlm_positions=positions[chosen],
        mlm_ids=labels[chosen],
        mlm_offsets=offsets_of(counts),
        nsp=as_flags(block.next_sentence_labels, LABELS, rows).astype(np.uint8),
    )
    _refuse_behind(positions, arrays.mlm_positions, chosen, "masked_lm_positions", rows)
    _refuse_behind(labels, arrays.mlm_ids, chosen, "masked_lm_ids", rows)
    return checked(arrays, rules, rows)


def _refuse_behind(values: np.ndarray, own: np.ndarray, is_own: np.ndarray, name: str, rows: Rows) -> None:
    """Refuse a row with anything but 0 where nothing is its own; `own` are the values that are."""
    if np.count_nonzero(values) != np.count_nonzero(own):
        odd = (values != 0) & ~is_own
        rows.refuse(odd.any(1), lambda row: f"{name} holds {values[row][odd[row]][0]} in the padding, expected 0")
