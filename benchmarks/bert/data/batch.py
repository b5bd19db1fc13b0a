"""Rows of sample arrays in, one packed batch out: sequences end to end, no padding token.

Shapes: B sequences, T tokens of all sequences together, M masked positions, Q places that the heads read: each
sequence's [CLS] and its masked positions, so Q = B + M.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.bert.data.shards import SampleArrays


@dataclass(frozen=True)
class PackLayout:
    """Where sequences lie in a pack."""

    lengths: tuple[int, ...]  # B, on the host: splitting by it costs no synchronisation
    cu_lengths: Tensor  # B + 1, int32, on the device: sequence i is [cu_lengths[i], cu_lengths[i + 1])

    def to(self, device: torch.device) -> PackLayout:
        return PackLayout(self.lengths, _moved(self.cu_lengths, device))


@dataclass(frozen=True)
class PackedBatch:
    tokens_T: Tensor  # int64
    segments_T: Tensor  # int64, 0 or 1
    positions_T: Tensor  # int64, restart at 0 with each sequence
    layout: PackLayout  # of the T tokens
    read_Q: Tensor  # int64, the places that are read among the T, in order
    read_layout: PackLayout  # of the Q places; a sequence's first is its [CLS]
    masked_M: Tensor  # int64, which of the Q are masked tokens
    labels_M: Tensor  # int64, the tokens that stood there
    nsp_B: Tensor  # int64, of the first B sequences: 1 where the second sentence is a random one

    def to(self, device: torch.device) -> PackedBatch:
        moved: dict[str, Any] = {
            name: value.to(device) if isinstance(value, PackLayout) else _moved(value, device)
            for name, value in vars(self).items()
        }
        return PackedBatch(**moved)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """To a GPU from pinned memory, so that nobody waits for the copy."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def pack(parts: Sequence[tuple[SampleArrays, int]]) -> PackedBatch:
    """Pack samples, each given as (the arrays that hold it, its row), in the order given."""
    rows = [_row(arrays, row) for arrays, row in parts]
    return pack_arrays(
        SampleArrays(
            tokens=np.concatenate([tokens for tokens, *_ in rows]),
            token_offsets=np.cumsum([0, *(len(tokens) for tokens, *_ in rows)]),
            boundary=np.array([boundary for _, boundary, *_ in rows]),
            mlm_positions=np.concatenate([places for *_, places, _, _ in rows]),
            mlm_ids=np.concatenate([labels for *_, labels, _ in rows]),
            mlm_offsets=np.cumsum([0, *(len(places) for *_, places, _, _ in rows)]),
            nsp=np.array([nsp for *_, nsp in rows]),
        )
    )


def pack_arrays(samples: SampleArrays) -> PackedBatch:
    """All samples of these arrays as one pack, in their order; offsets are int64 and start at 0."""
    starts, lengths = samples.token_offsets[:-1], samples.lengths
    num_masked = np.diff(samples.mlm_offsets)
    positions = np.arange(len(samples.tokens)) - np.repeat(starts, lengths)
    first = samples.mlm_offsets[:-1] + np.arange(len(samples))  # where each sequence's [CLS] stands among the Q
    is_first = np.zeros(len(samples) + len(samples.mlm_ids), bool)
    is_first[first] = True
    masked = np.flatnonzero(~is_first)
    read = np.empty(len(is_first), np.int64)
    read[first] = starts
    read[masked] = samples.mlm_positions + np.repeat(starts, num_masked)
    return PackedBatch(
        tokens_T=_int64(samples.tokens),
        segments_T=_int64(positions >= np.repeat(samples.boundary, lengths)),
        positions_T=_int64(positions),
        layout=_layout(lengths),
        read_Q=_int64(read),
        read_layout=_layout(num_masked + 1),
        masked_M=_int64(masked),
        labels_M=_int64(samples.mlm_ids),
        nsp_B=_int64(samples.nsp),
    )


def pad_tail(batch: PackedBatch, multiple: int) -> PackedBatch:
    """The batch with one more sequence, of 1 to `multiple` made-up tokens, that brings T to a multiple.

    Nothing of it is read, so loss and gradients stay: it has no place among the Q and no sentence label.
    """
    num_tokens = len(batch.tokens_T)
    tail = multiple - num_tokens % multiple
    return replace(
        batch,
        tokens_T=F.pad(batch.tokens_T, (0, tail)),
        segments_T=F.pad(batch.segments_T, (0, tail)),
        positions_T=torch.cat([batch.positions_T, torch.arange(tail)]),
        layout=_layout(np.array([*batch.layout.lengths, tail])),
        read_layout=_layout(np.array([*batch.read_layout.lengths, 0])),
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
    tokens = np.arange(num_sequences * length) % num_vocabulary
    places = np.arange(1, num_masked + 1)
    made_up = SampleArrays(
        tokens=tokens,
        token_offsets=np.arange(num_sequences + 1) * length,
        boundary=np.full(num_sequences, length // 2),
        mlm_positions=np.tile(places, num_sequences),
        mlm_ids=np.tile(places % num_vocabulary, num_sequences),
        mlm_offsets=np.arange(num_sequences + 1) * num_masked,
        nsp=np.arange(num_sequences) % 2,
    )
    return pack([(made_up, row) for row in range(num_sequences)])
