"""A shape and a batch's lengths in, the floating-point operations of its matrix products out, forward and backward.

A product of (a, b) by (b, c) is 2abc. Backward makes two products of the same size for each one, so a step is three
times its forward pass; what a fused attention computes a second time is not counted. Shapes: T tokens, Q places that
the last layer is computed at, S length of a padded sequence, H hidden, V vocabulary, M masked positions, B sequences.
"""

from __future__ import annotations

import numpy as np

from benchmarks.bert.data.batch import PackedBatch
from benchmarks.bert.model.bert import BertShape


def packed_flops(shape: BertShape, batch: PackedBatch, last_layer: str = "only_read") -> int:
    """Of our step: tokens without padding, the masked-LM head at masked positions only."""
    return mean_packed_flops(
        shape,
        sequences=len(batch.layout.lengths),
        tokens=sum(batch.layout.lengths),
        pairs=sum(s * s for s in batch.layout.lengths),
        masked=len(batch.labels_M),
        read_pairs=sum(q * s for q, s in zip(batch.read_layout.lengths, batch.layout.lengths, strict=True)),
        last_layer=last_layer,
    )


def mean_packed_flops(
    shape: BertShape,
    *,
    sequences: int = 1,
    tokens: float,
    pairs: float,
    masked: float,
    read_pairs: float = 0,
    last_layer: str = "whole",
) -> int:
    """The same from sums over the sequences, or per sequence from means: of length, of its square, of masked places.

    `read_pairs` sums places read times length, which the last layer costs where it is `only_read`.
    """
    whole = _layer(shape, tokens, tokens, pairs)
    last = whole if last_layer == "whole" else _layer(shape, masked + sequences, tokens, read_pairs)
    layers = (shape.num_layers - 1) * whole + last
    return round(3 * (layers + _heads(shape, masked, sequences, shape.num_padded_vocabulary)))


def padded_flops(shape: BertShape, num_sequences: int, length: int) -> int:
    """Of a BERT that computes padding, all of every layer, and its head on every position."""
    tokens = num_sequences * length
    layers = shape.num_layers * _layer(shape, tokens, tokens, tokens * length)
    return round(3 * (layers + _heads(shape, tokens, num_sequences, shape.num_vocabulary)))


def mean_sequence_flops(shape: BertShape, share_L: np.ndarray, masked_L: np.ndarray) -> int:
    """Per sequence, for lengths of these shares and `masked_L` masked places; all layers whole."""
    lengths = np.arange(len(share_L))
    return mean_packed_flops(
        shape,
        tokens=float(share_L @ lengths),
        pairs=float(share_L @ lengths**2),
        masked=float(share_L @ masked_L),
    )


def _layer(shape: BertShape, asking: float, tokens: float, pairs: float) -> float:
    """Keys and values of all tokens; queries, attention, output and feed-forward of those that ask."""
    H, F = shape.hidden_size, shape.ffn_size
    return 4 * H * H * tokens + (4 * H * H + 4 * H * F) * asking + 4 * H * pairs


def _heads(shape: BertShape, predicted: float, sequences: float, num_vocabulary: int) -> float:
    H = shape.hidden_size
    return (2 * H * H + 2 * H * num_vocabulary) * predicted + (2 * H * H + 4 * H) * sequences
