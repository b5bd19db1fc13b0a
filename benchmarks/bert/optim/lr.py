"""A step in, its learning rate out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PolynomialSchedule:
    """Linear warm-up, then polynomial decay to `end` at `decay_steps`, then `end`.

    Warm-up counts from `start_warmup_step`: a negative value starts it part of the way up.
    """

    base: float
    end: float
    warmup_steps: int
    start_warmup_step: int
    decay_steps: int
    power: float

    def at(self, step: int) -> float:
        """The rate of the `step`-th optimizer step; the first is 1."""
        warm = step - self.start_warmup_step
        if warm < self.warmup_steps:
            return self.base * warm / self.warmup_steps
        peak_step = self.warmup_steps + self.start_warmup_step
        done = min(1.0, (step - peak_step) / max(1, self.decay_steps - peak_step))
        return self.end + (self.base - self.end) * (1.0 - done) ** self.power
