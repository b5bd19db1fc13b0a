"""One rank's plan and a store of samples in, its packed micro-batches out, prepared ahead by one thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from typing import Protocol

import numpy as np
import torch

from benchmarks.bert.complaint import describe
from benchmarks.bert.data.batch import PackedBatch

_AHEAD = 2  # steps prepared before they are asked for


class LoaderError(RuntimeError):
    """The reading thread was ended; the text says by what."""


class Store(Protocol):
    def pack(self, numbers: np.ndarray) -> PackedBatch:
        """The samples of these numbers as one packed batch, in the order given."""


def as_packed(batch: PackedBatch) -> PackedBatch:
    return batch


def micro_batches(
    store: Store,
    plan: Iterable[np.ndarray],
    *,
    num_micro_batches: int,
    device: torch.device,
    finish: Callable[[PackedBatch], PackedBatch] = as_packed,
) -> Iterator[list[PackedBatch]]:
    """For each row of a rank's plan, its samples of a step: these as `num_micro_batches` packed batches on `device`.

    A row of fewer samples makes as many micro-batches as it has samples.

    `finish` is what the reading thread does to each before it goes there. An error of that thread, or of the plan,
    which that thread goes through, is raised at the step that it concerns.
    """
    rows = iter(plan)

    def prepare() -> list[PackedBatch] | None:
        row_K = next(rows, None)
        if row_K is None:
            return None
        # Every n-th sample: samples come longest first, and micro-batches are to be level too.
        count = min(num_micro_batches, len(row_K))
        shares = (row_K[first::count] for first in range(count))
        return [finish(store.pack(share)).to(device) for share in shares]

    with ExitStack() as at_the_end:
        if isinstance(rows, Generator):
            at_the_end.callback(rows.close)  # after the reading thread, which goes through it
        reader = at_the_end.enter_context(ThreadPoolExecutor(1, thread_name_prefix="loader"))
        ahead: deque[Future[list[PackedBatch] | None]] = deque(
            reader.submit(_not_ended, prepare) for _ in range(_AHEAD)
        )
        try:
            while (ready := ahead.popleft().result()) is not None:
                ahead.append(reader.submit(_not_ended, prepare))
                yield ready
        finally:
            for waiting in ahead:
                waiting.cancel()


def by_step(batches: Iterable[list[PackedBatch]], num_turns: int) -> Iterator[list[list[PackedBatch]]]:
    """The micro-batches of `num_turns` rows together: those of each rank that a process acts as in a step."""
    rows = iter(batches)
    while of_ranks := list(islice(rows, num_turns)):
        yield of_ranks


def _not_ended(prepare: Callable[[], list[PackedBatch] | None]) -> list[PackedBatch] | None:
    """What would end a thread becomes an error of the run, which its other ranks hear of."""
    try:
        return prepare()
    except Exception:
        raise
    except BaseException as error:
        raise LoaderError(f"the reading thread was ended by {describe(error)}") from error
