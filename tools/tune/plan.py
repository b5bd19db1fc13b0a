"""A base with placeholders, ranges, and a value of each in, a trial's variables out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.bert.config import VARIABLES
from benchmarks.bert.growth.notation import NONE
from tools.tune.choices import AnyRange
from tools.tune.names import RangeError
from tools.tune.placeholders import filled, placeholders_in

NO_PRUNER = "none"
# What else a plan of growth costs depends on.
_OF_GROWTH = {"GROWTH", "DECAY_STEPS", "NUM_LAYERS", "HIDDEN_SIZE", "FFN_SIZE", "LAST_LAYER"}


@dataclass(frozen=True)
class Plan:
    """What makes a study the one that it is."""

    base: Mapping[str, str]  # variables
    ranges: Sequence[AnyRange]
    seeds: Sequence[int]  # of the runs of each trial
    pruner: str = "median"
    sampler_seed: int = 0

    def identity(self) -> dict[str, Any]:
        """Ready for JSON."""
        ranges = {each.name: each.text for each in self.ranges}
        own = {"seeds": list(self.seeds), "pruner": self.pruner, "sampler seed": self.sampler_seed}
        return {**self.base, **{f"--range {name}": text for name, text in ranges.items()}, **own}

    def variables(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Of a trial: the base with these values in it."""
        texts = {each.name: each.value(values[each.name]) for each in self.ranges}
        of_variables = {name: text for name, text in texts.items() if name in VARIABLES}
        return {**{name: filled(value, texts) for name, value in self.base.items()}, **of_variables}

    def ends(self) -> list[dict[str, str]]:
        """The variables of two trials: with the first or lowest of all values, and with the last or highest."""
        return [self.variables({each.name: each.ends[end] for each in self.ranges}) for end in (0, -1)]

    def tuned(self) -> set[str]:
        """The variables that trials differ in."""
        with_placeholders = {name for name, value in self.base.items() if placeholders_in(value)}
        return with_placeholders | {each.name for each in self.ranges} & set(VARIABLES)


def check_pruner(plan: Plan) -> None:
    """Raises RangeError for one that would compare what cannot be compared."""
    tuned = plan.tuned()
    grows = "GROWTH" in tuned or plan.base.get("GROWTH", NONE) != NONE
    if plan.pruner != NO_PRUNER and grows and (other := sorted(tuned & _OF_GROWTH)):
        raise RangeError(
            f"--pruner {plan.pruner}: ends runs that are behind at equal samples, but with GROWTH and another "
            f"{other[0]} samples cost more or less, so that says nothing; use --pruner {NO_PRUNER}"
        )
