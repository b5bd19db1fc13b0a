"""Steps in, how long the first one and a median one took out; on a GPU by its own clock, without waiting for it."""

from __future__ import annotations

import time
from statistics import median

import torch


class StepClock:
    """Started at run_start; the first step's time holds all that had to be made or read inside the clock."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._last = self._mark()
        self._unread: list[tuple[float | torch.cuda.Event, float | torch.cuda.Event]] = []
        self._durations_s: list[float] = []

    def tick(self) -> None:
        """A step is done."""
        now = self._mark()
        self._unread.append((self._last, now))
        self._last = now

    def pause(self) -> None:
        """What came since the last tick, an evaluation, belongs to no step."""
        self._last = self._mark()

    def statistics(self) -> dict[str, float]:
        """Call it where the device has been waited for anyway."""
        self._durations_s += [_between_s(*pair) for pair in self._unread]
        self._unread.clear()
        return {"first_step_s": round(self._durations_s[0], 6), "median_step_s": round(median(self._durations_s), 6)}

    def _mark(self) -> float | torch.cuda.Event:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _between_s(start: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    if isinstance(start, float) and isinstance(end, float):
        return end - start
    assert isinstance(start, torch.cuda.Event)
    assert isinstance(end, torch.cuda.Event)
    return start.elapsed_time(end) / 1000
