"""A device in, how many batches a second can be packed for it out: from samples in memory, by one thread."""

from __future__ import annotations

import time

import torch

from benchmarks.bert.bench.lengths import representative, wikipedia_shares
from benchmarks.bert.bench.made_up import made_up_samples
from benchmarks.bert.data.batch import pack

_BATCH, _NUM_BATCHES, _SECONDS = 56, 20, 2.0


def loader_rate(device: torch.device) -> str:
    lengths = representative(wikipedia_shares(), _BATCH * _NUM_BATCHES, 512)
    arrays = made_up_samples(lengths, 30522)
    rows_GK = torch.randperm(len(lengths)).view(_NUM_BATCHES, _BATCH).tolist()
    packed, started = 0, time.perf_counter()
    while (passed_s := time.perf_counter() - started) < _SECONDS:
        pack([(arrays, row) for row in rows_GK[packed % _NUM_BATCHES]]).to(device)
        packed += 1
    rate = packed / passed_s
    return f"{rate:.1f} packed batches of {_BATCH} a second on {device.type}, {rate * _BATCH:.0f} samples/s"
