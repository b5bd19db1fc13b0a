"""One rank's plan and a store of samples in, its packed micro-batches out, handed on by an NVIDIA DALI pipeline.

DALI has no reader of samples of any length at any place of a file, so what is packed comes to it from outside: from
`loader.micro_batches`, whose thread reads and packs ahead. DALI would call a source of its own on the thread that asks
for the next step, and training would wait while it reads. The pipeline keeps further steps in its queue, and its
threads bring them to the GPU.

A DALI batch is a step and a DALI sample a micro-batch, so steps may have different numbers of micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any, cast

import numpy as np
import torch
from nvidia.dali import Pipeline, fn

from benchmarks.bert.data import loader
from benchmarks.bert.data.batch import PackedBatch, PackLayout, synthetic_batch
from benchmarks.bert.data.loader import Store, as_packed

_HOST = torch.device("cpu")
_TENSORS = ("tokens_T", "segments_T", "positions_T", "read_Q", "masked_M", "labels_M", "nsp_B")
_LAYOUTS = ("layout", "read_layout")
_QUEUE = 2  # steps on their way to the device


def micro_batches(
    store: Store,
    plan: Iterable[np.ndarray],
    *,
    num_micro_batches: int,
    device: torch.device,
    finish: Callable[[PackedBatch], PackedBatch] = as_packed,
) -> Iterator[list[PackedBatch]]:
    """As `loader.micro_batches`: the same batches, and the same errors at the same steps."""
    packed = loader.micro_batches(store, plan, num_micro_batches=num_micro_batches, device=_HOST, finish=finish)
    failures: list[Exception] = []

    def feed() -> Iterator[list[list[np.ndarray]]]:
        # An error raised here would come out of `run` while earlier steps are in the queue. An end comes after them.
        try:
            for batches in packed:
                yield [list(arrays) for arrays in zip(*map(_to_arrays, batches), strict=True)]
        except Exception as error:
            failures.append(error)

    with closing(cast("Generator[list[PackedBatch]]", packed)):
        pipeline = _pipeline(feed(), num_micro_batches, device)
        # What DALI frees may be filled anew only after this stream's work, so nobody waits for a batch's last use.
        stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        while True:
            try:
                columns = pipeline.run(stream)
            except StopIteration:
                break
            yield [_to_batch(values) for values in zip(*columns, strict=True)]
        if failures:
            raise failures[0]


def warm_up(device: torch.device) -> None:
    """Have DALI load its libraries and start once, before the clock, on a made-up batch."""
    for _ in micro_batches(_MadeUp(), [np.zeros(1, np.int64)], num_micro_batches=1, device=device):
        pass


class _MadeUp:
    def pack(self, numbers: np.ndarray) -> PackedBatch:
        return synthetic_batch(num_sequences=len(numbers), length=8, num_vocabulary=8, num_masked=1)


def _pipeline(source: Iterator[list[list[np.ndarray]]], num_micro_batches: int, device: torch.device) -> Pipeline:
    """What the source gives, on the device, and once more on the host the ends of sequences, which are split by."""
    pipeline = Pipeline(
        batch_size=num_micro_batches,  # at most
        num_threads=1,
        device_id=device.index if device.type == "cuda" else None,
        prefetch_queue_depth=_QUEUE,
        exec_dynamic=True,  # outputs live as long as someone holds them
    )
    with pipeline:
        fed = fn.external_source(source, num_outputs=len(_TENSORS) + len(_LAYOUTS))
        moved = [each.gpu() for each in fed] if device.type == "cuda" else fed
        pipeline.set_outputs(*moved, *fed[-len(_LAYOUTS) :])
    return pipeline


def _to_arrays(batch: PackedBatch) -> list[np.ndarray]:
    tensors = [getattr(batch, name) for name in _TENSORS] + [getattr(batch, name).cu_lengths for name in _LAYOUTS]
    return [tensor.numpy() for tensor in tensors]


def _to_batch(values: tuple[object, ...]) -> PackedBatch:
    """Values as `_pipeline` puts them out; the tensors are DALI's own memory."""
    tensors = [torch.from_dlpack(value) for value in values]
    values_of: dict[str, Any] = dict(zip(_TENSORS, tensors, strict=False))
    on_device, on_host = tensors[len(_TENSORS) :][: len(_LAYOUTS)], tensors[-len(_LAYOUTS) :]
    for name, cu_lengths, ends in zip(_LAYOUTS, on_device, on_host, strict=True):
        values_of[name] = PackLayout(tuple(ends.diff().tolist()), cu_lengths)
    return PackedBatch(**values_of)
