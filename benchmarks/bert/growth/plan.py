"""A step in, its stage out: which layers exist, and which of them train. `notation.py` makes a plan from a string."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    num_layers: int
    hidden_size: int

    def __str__(self) -> str:
        return f"{self.num_layers}x{self.hidden_size}"


@dataclass(frozen=True)
class Stage:
    """What holds from `first_step` on, until the next stage's. The heads always train."""

    first_step: int  # counted from 1
    size: Size
    origin: str = "same"  # how its weights come from those of the stage before; `operators.py` has the list
    num_frozen: int = 0  # lowest layers, which only run forward
    embeddings_train: bool = True
    decoder_trains: bool = True  # the word embeddings as the head's matrix, where the embeddings do not train
    keeps_moments: bool = True  # of what trained before and trains on


@dataclass(frozen=True)
class LayerDrop:
    """Progressive layer dropping: probabilities to keep a layer, falling from 1 (arXiv 2010.13369)."""

    final: float
    rate: float

    def keep(self, step: int, num_layers: int) -> tuple[float, ...]:
        """Of each layer, the lowest first: 1 - i/L (1 - theta), theta = (1 - final) exp(-rate step) + final."""
        return self._keep(math.exp(-self.rate * step), num_layers)

    def mean_keep(self, num_steps: float, num_layers: int) -> tuple[float, ...]:
        """The mean of `keep` over the first steps, at least one."""
        return self._keep(-math.expm1(-self.rate * num_steps) / math.expm1(self.rate) / num_steps, num_layers)

    def _keep(self, decayed: float, num_layers: int) -> tuple[float, ...]:
        theta = (1 - self.final) * decayed + self.final
        return tuple(1 - layer / num_layers * (1 - theta) for layer in range(num_layers))


@dataclass(frozen=True)
class GrowthPlan:
    stages: tuple[Stage, ...]
    rewarm_steps: int = 0
    layer_drop: LayerDrop | None = None

    def number_at(self, step: int) -> int:
        """Of the stage that the `step`-th optimizer step belongs to; steps count from 1, stages from 0."""
        return bisect.bisect_right(self.stages, step, key=lambda stage: stage.first_step) - 1

    def at(self, step: int) -> Stage:
        return self.stages[self.number_at(step)]

    def rate_factor(self, step: int) -> float:
        """What the schedule's learning rate is multiplied by: rising from a boundary on, if so planned, else 1."""
        number = self.number_at(step)
        if number == 0 or not self.rewarm_steps:
            return 1.0
        return min(1.0, (step - self.stages[number].first_step + 1) / self.rewarm_steps)
