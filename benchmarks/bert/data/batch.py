"""Rows of sample arrays in, one packed batch out: sequences end to end, no padding token.

Shapes: B sequences, T tokens of all sequences together, M masked positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.bert.data.shards import SampleArrays


@dataclass(frozen=True)
class PackLayout:
    """Where sequences lie in a pack."""

    lengths: tuple[int, ...]  # B, on the host: splitting by it costs no synchronisation
    cu_lengths: Tensor  # B + 1, int32, on the device: sequence i is [cu_lengths[i], cu_lengths[i + 1])

    def to(self, device: torch.device) -> PackLayout:
        return PackLayout(self.lengths, self.cu_lengths.to(device, non_blocking=True))


@dataclass(frozen=True)
class PackedBatch:
    tokens_T: Tensor  # int64
    segments_T: Tensor  # int64, 0 or 1
    positions_T: Tensor  # int64, restart at 0 with each sequence
    layout: PackLayout
    masked_M: Tensor  # int64, places of the masked tokens among the T
    labels_M: Tensor  # int64, the tokens that stood there
    nsp_B: Tensor  # int64, 1 where the second sentence is a random one

    def to(self, device: torch.device) -> PackedBatch:
        tensors = {name: value.to(device, non_blocking=True) for name, value in vars(self).items() if name != "layout"}
        return PackedBatch(layout=self.layout.to(device), **tensors)


def pack(parts: Sequence[tuple[SampleArrays, int]]) -> PackedBatch:
    """Pack samples, each given as (the arrays that hold it, its row), in the order given."""
    rows = [_row(arrays, row) for arrays, row in parts]
    lengths = np.array([len(tokens) for tokens, *_ in rows], np.int64)
    starts = np.cumsum(lengths) - lengths
    positions = np.arange(lengths.sum()) - np.repeat(starts, lengths)
    boundaries = np.array([boundary for _, boundary, *_ in rows], np.int64)
    masked = [places.astype(np.int64) + start for (*_, places, _, _), start in zip(rows, starts, strict=True)]
    return PackedBatch(
        tokens_T=_int64(np.concatenate([tokens for tokens, *_ in rows])),
        segments_T=_int64(positions >= np.repeat(boundaries, lengths)),
        positions_T=_int64(positions),
        layout=_layout(lengths),
        masked_M=_int64(np.concatenate(masked)),
        labels_M=_int64(np.concatenate([labels for *_, labels, _ in rows])),
        nsp_B=_int64(np.array([nsp for *_, nsp in rows])),
    )


def _row(arrays: SampleArrays, row: int) -> tuple[np.ndarray, int, np.ndarray, np.ndarray, int]:
    tokens = slice(arrays.token_offsets[row], arrays.token_offsets[row + 1])
    masked = slice(arrays.mlm_offsets[row], arrays.mlm_offsets[row + 1])
    return (
        arrays.tokens[tokens],
        int(arrays.boundary[row]),
        arrays.mlm_positions[masked],
        arrays.mlm_ids[masked],
        int(arrays.nsp[row]),
    )


def _layout(lengths: np.ndarray) -> PackLayout:
    ends = np.cumsum(lengths)
    return PackLayout(tuple(lengths.tolist()), torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32)))


def _int64(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.astype(np.int64))


def synthetic_batch(num_sequences: int, length: int, num_vocabulary: int, num_masked: int) -> PackedBatch:
    """A batch of made-up tokens for warming up before the clock starts; it reads no data."""
    tokens = torch.arange(num_sequences * length) % num_vocabulary
    starts_B1 = torch.arange(num_sequences)[:, None] * length
    return PackedBatch(
        tokens_T=tokens,
        segments_T=torch.zeros_like(tokens),
        positions_T=torch.arange(length).repeat(num_sequences),
        layout=_layout(np.full(num_sequences, length)),
        masked_M=(starts_B1 + torch.arange(1, num_masked + 1)).flatten(),
        labels_M=torch.arange(num_sequences * num_masked) % num_vocabulary,
        nsp_B=torch.arange(num_sequences) % 2,
    )
