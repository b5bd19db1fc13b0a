"""A model's parameters in, DDP's gradient buckets out: their bytes, and when in backward each is full."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from benchmarks.bert.growth.plan import Stage
from benchmarks.bert.model.bert import Bert, BertShape
from benchmarks.bert.model.frozen import train_only
from benchmarks.bert.weights.shapes import Sizes, shapes

_FIRST_BYTES = 1 << 20  # torch's: the first bucket is small, so that the first all-reduce starts early
_MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Buckets:
    bytes_B: np.ndarray
    ready_B: np.ndarray  # share of backward after which each is full, ascending to 1

    @property
    def num_bytes(self) -> int:
        return int(self.bytes_B.sum())


def lay_out(sizes: Sequence[int], bucket_mb: float) -> list[list[int]]:
    """The indices of `sizes` (bytes, in the order in which gradients come) that share each bucket.

    As torch's `_compute_bucket_assignment_by_size` for tensors of one kind: a bucket ends with the tensor that brings
    it to its limit, which is 1 MiB for the first and `bucket_mb` for the others.
    """
    buckets: list[list[int]] = []
    open_bucket: list[int] = []
    filled, limit = 0, _FIRST_BYTES
    for index, size in enumerate(sizes):
        open_bucket.append(index)
        filled += size
        if filled >= limit:
            buckets.append(open_bucket)
            open_bucket, filled, limit = [], 0, int(bucket_mb * _MEBIBYTE)
    return [*buckets, open_bucket] if open_bucket else buckets


@lru_cache(maxsize=64)
def buckets_of(shape: BertShape, stage: Stage, bucket_mb: float, gradient_bytes: int) -> Buckets:
    """Of what trains of a model of this shape: gradients come in the reverse order of its parameters."""
    trained = list(reversed(trained_parameters(shape, stage).items()))
    sizes = [count * gradient_bytes for _, count in trained]
    done = _backward_done(trained)
    layout = lay_out(sizes, bucket_mb)
    return Buckets(
        bytes_B=np.array([sum(sizes[i] for i in bucket) for bucket in layout], np.int64),
        ready_B=np.array([max(done[i] for i in bucket) for bucket in layout]),
    )


def trained_parameters(shape: BertShape, stage: Stage) -> dict[str, int]:
    """How many numbers each parameter that trains holds, in the model's order.

    Names, order and what is frozen are those of a narrow model of as many layers: this needs no memory for weights.
    """
    model = Bert(replace(shape, num_vocabulary=8, max_length=8, hidden_size=8, num_heads=1, ffn_size=8))
    if stage.num_frozen or not stage.embeddings_train:
        train_only(model, stage.num_frozen, embeddings=stage.embeddings_train, decoder=stage.decoder_trains)
    width = {"final_norm.weight": (shape.hidden_size,), "final_norm.bias": (shape.hidden_size,)}  # of pre-LN models
    sizes = Sizes(shape.num_padded_vocabulary, shape.max_length, shape.num_layers, shape.hidden_size, shape.ffn_size)
    all_shapes = width | shapes(sizes) | {"masked_lm.bias": (shape.num_vocabulary,)}
    return {name: math.prod(all_shapes[name]) for name, p in model.named_parameters() if p.requires_grad}


def _backward_done(parameters: Sequence[tuple[str, int]]) -> np.ndarray:
    """The share of backward after which each gradient is complete; products take time in proportion to their weights.

    The word embeddings are the masked-LM head's matrix too: what that costs comes first, its gradient last of all.
    """
    counts = np.array([count for _, count in parameters], np.float64)
    is_embedding = np.array([name.startswith("embeddings.") for name, _ in parameters])
    passed = np.cumsum(np.where(is_embedding, 0, counts))
    return np.where(is_embedding, 1.0, passed / passed[-1])
