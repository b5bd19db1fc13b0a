"""A device in, how the seconds of a piece of work are taken on it out; and the most memory that was used so far."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import torch


class Timer:
    """One thread of a CPU alone is timed by the processor time that it took, for other processes then disturb less."""

    def __init__(self, device: torch.device, num_ranks: int) -> None:
        self._device = device
        is_single = device.type == "cpu" and num_ranks == 1 and torch.get_num_threads() == 1
        self.now_s = time.process_time if is_single else time.perf_counter
        self.name = "processor time" if is_single else "wall time"

    def seconds(self, work: Callable[[], object]) -> float:
        """Waits for the device before and after."""
        self._wait()
        started = self.now_s()
        work()
        self._wait()
        return self.now_s() - started

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def peak_memory_bytes(device: torch.device) -> int:
    """Of the GPU by torch's allocator, of a CPU by what this process had resident; since it started."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
