"""A count of samples in, whether an evaluation is due out."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class EvaluationSchedule:
    """Evaluate when `start` samples have been trained on, then every `interval`; each at the first whole step."""

    start: int
    interval: int

    def is_due(self, samples_before: int, samples_now: int) -> bool:
        """Whether a step that took the count from `samples_before` to `samples_now` reached a point of the schedule."""
        return self._points(samples_now) > self._points(samples_before)

    def _points(self, samples: int) -> int:
        return 0 if samples < self.start else 1 + (samples - self.start) // self.interval


def rule_interval(global_batch: int) -> int:
    """Samples between evaluations by the benchmark's rule: floor(0.05 (230.23 batch + 3,000,000), 25,000)."""
    return math.floor(0.05 * (230.23 * global_batch + 3_000_000) / 25_000) * 25_000
