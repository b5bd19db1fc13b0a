"""A configuration in, its learning-rate schedule out: a function of the step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from benchmarks.bert.config import Config


@dataclass(frozen=True)
class Schedule:
    """What every schedule has. Steps are counted from 1."""

    base: float  # where the warm-up leads to
    end: float  # from `decay_steps` on
    warmup_steps: int
    start_warmup_step: int  # at most 0: a negative value starts the warm-up part of the way up
    decay_steps: int

    def at(self, step: int) -> float:
        """The rate of the `step`-th optimizer step; the first is 1."""
        warm = step - self.start_warmup_step
        if warm < self.warmup_steps:
            return self.base * warm / self.warmup_steps
        return self.after_warmup(step)

    def after_warmup(self, step: int) -> float:
        raise NotImplementedError

    def line(self, step: int, start: int) -> float:
        """What is left of the way down: 1 at `start`, 0 from `decay_steps` on, and above 1 before `start`."""
        return 1.0 - min(1.0, (step - start) / max(1, self.decay_steps - start))


@dataclass(frozen=True)
class PolynomialSchedule(Schedule):
    """Linear warm-up, then polynomial decay to `end` at `decay_steps`, then `end`.

    The decay is a line (to the power) from `base` at `decay_start_step`, by default where the warm-up ends; published
    schedules start it elsewhere.
    """

    power: float
    decay_start_step: int = -1  # -1: where the warm-up ends

    def after_warmup(self, step: int) -> float:
        start = self.warmup_steps + self.start_warmup_step if self.decay_start_step < 0 else self.decay_start_step
        return self.end + (self.base - self.end) * self.line(step, start) ** self.power


@dataclass(frozen=True)
class LansSchedule(Schedule):
    """Linear warm-up, `base` for `constant_steps` more, then a line to `end` at `decay_steps` (arXiv 2006.13484).

    The plateau raises the sum of all rates without raising the highest.
    """

    constant_steps: int

    def after_warmup(self, step: int) -> float:
        plateau_end = self.warmup_steps + self.start_warmup_step + self.constant_steps
        return self.end + (self.base - self.end) * min(1.0, self.line(step, plateau_end))


@dataclass(frozen=True)
class RecordSchedule(Schedule):
    """That of the record run (*Breaking MLPerf Training*; record-runs.md, 1.6), with its quirk.

    The warm-up counts from `start_warmup_step`, the line of the decay does not: it leaves `base` at the step
    `warmup_steps`. The warm-up ends before that, so that the rate jumps above `base` and comes down from there.
    """

    def after_warmup(self, step: int) -> float:
        return self.end + (self.base - self.end) * self.line(step, self.warmup_steps)


@dataclass(frozen=True)
class Rewarmed(Schedule):
    """Another schedule, each rate times a factor: growth lets it rise again where a stage begins."""

    inner: Schedule
    factor: Callable[[int], float]

    @classmethod
    def of(cls, inner: Schedule, factor: Callable[[int], float]) -> Rewarmed:
        return cls(**{field.name: getattr(inner, field.name) for field in fields(Schedule)}, inner=inner, factor=factor)

    def at(self, step: int) -> float:
        return self.inner.at(step) * self.factor(step)


SCHEDULES: dict[str, type[Schedule]] = {
    "polynomial": PolynomialSchedule,
    "lans": LansSchedule,
    "record": RecordSchedule,
}


def build_schedule(config: Config) -> Schedule:
    kind = SCHEDULES[config.schedule]
    values: dict[str, Any] = {
        "base": config.learning_rate,
        "end": config.end_learning_rate,
        "warmup_steps": config.warmup_steps,
        "start_warmup_step": config.start_warmup_step,
        "decay_steps": config.decay_steps,
        "constant_steps": config.constant_steps,
        "power": config.decay_power,
        "decay_start_step": config.decay_start_step,
    }
    return kind(**{field.name: values[field.name] for field in fields(kind)})
