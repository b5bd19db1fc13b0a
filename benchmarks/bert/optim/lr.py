"""A step in, its learning rate out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PolynomialSchedule:
    """Linear warm-up, then polynomial decay to `end` at `decay_steps`, then `end`.

    Warm-up counts from `start_warmup_step`: a negative value starts it part of the way up. The decay is a line (to the
    power) from `base` at `decay_start_step`, by default where the warm-up ends. Published schedules start it elsewhere:
    the record run's warm-up counts from its start step and its decay does not, so that the rate passes above `base`.
    """

    base: float
    end: float
    warmup_steps: int
    start_warmup_step: int
    decay_steps: int
    power: float
    decay_start_step: int = -1  # -1: where the warm-up ends

    def at(self, step: int) -> float:
        """The rate of the `step`-th optimizer step; the first is 1."""
        warm = step - self.start_warmup_step
        if warm < self.warmup_steps:
            return self.base * warm / self.warmup_steps
        start = self.warmup_steps + self.start_warmup_step if self.decay_start_step < 0 else self.decay_start_step
        done = min(1.0, (step - start) / max(1, self.decay_steps - start))
        return self.end + (self.base - self.end) * (1.0 - done) ** self.power
