"""A loader's name in, the function that makes a rank's stream of micro-batches out, ready before the clock starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import numpy as np
import torch

from benchmarks.bert.config import ConfigError
from benchmarks.bert.data.batch import PackedBatch
from benchmarks.bert.data.loader import Store, as_packed, micro_batches

DALI_PACKAGE = "nvidia-dali-cuda120"


class MicroBatches(Protocol):
    """`loader.micro_batches`, or what makes the same stream in another way."""

    def __call__(
        self,
        store: Store,
        plan: Iterable[np.ndarray],
        *,
        num_micro_batches: int,
        device: torch.device,
        finish: Callable[[PackedBatch], PackedBatch] = as_packed,
    ) -> Iterator[list[PackedBatch]]: ...


def native(device: torch.device) -> MicroBatches:
    return micro_batches


def dali(device: torch.device) -> MicroBatches:
    try:
        from benchmarks.bert.data import dali_loader  # a package of 1 GB, which only this choice is to need
    except ImportError as error:
        raise ConfigError(
            f"LOADER=dali needs NVIDIA DALI, which cannot be imported ({error}); "
            f"run `python -m pip install -r requirements-dali.txt` ({DALI_PACKAGE}), or set LOADER=native"
        ) from error
    dali_loader.warm_up(device)
    return dali_loader.micro_batches


LOADERS: dict[str, Callable[[torch.device], MicroBatches]] = {"native": native, "dali": dali}


def choose_loader(name: str, device: torch.device) -> MicroBatches:
    """By name. Touches no data. Raises ConfigError for DALI where it is not installed."""
    return LOADERS[name](device)
