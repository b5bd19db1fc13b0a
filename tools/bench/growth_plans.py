"""A model's depth and the steps of a run in, the plans that are compared on it out: their variables and folders.

growth.sh holds the rest of the model. All plans have one schedule, over their own steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.bert.config import Config
from benchmarks.bert.growth.plan import GrowthPlan, Stage
from benchmarks.bert.growth.stages import plan_of
from tools.bench.growth_table import BASE, name_of
from tools.trial import checked, exports_of

CONFIG = Path(__file__).with_name("growth.sh")
SHORTER = (0.25, 0.5, 0.75)  # parts of the steps, of runs without growth that end sooner
_EQUAL_PARTS, _LONG_ENDS = "0.21,0.21,0.21,0.21", "0.3,0.1,0.1,0.1"
_TUNED = "0.45,0.05,0.05,0.05"  # by tools.tune, docs/growth.md

Variables = dict[str, str]


@dataclass(frozen=True)
class Plans:
    """Of a model that is grown in quarters of `num_layers`, a multiple of 4."""

    num_layers: int
    num_steps: int

    @property
    def alone(self) -> str:
        """The name of what any growth has to be worth more than: the first stage's model, never grown."""
        return f"{self._quarters()[0]} layers alone"

    @property
    def main(self) -> dict[str, Variables]:
        """By name, what differs from a run of the whole model. The last one's stage is that of plans before it."""
        one, two, _, all_of_them = self._quarters()
        return {
            BASE: {},
            "mslt": self._mslt(_EQUAL_PARTS),
            "mslt, embeddings=frozen": self._mslt(_EQUAL_PARTS, "embeddings=frozen"),
            "progressive_stacking": {"GROWTH": f"progressive_stacking:{one},{two},{all_of_them}@0.125,0.175,0.7"},
            self.alone: {"NUM_LAYERS": str(one)},
        }

    @property
    def variants(self) -> dict[str, Variables]:
        """What the paper leaves open, and longer first and joint stages."""
        return {
            "mslt, init=fresh": self._mslt(_EQUAL_PARTS, "init=fresh"),
            "mslt, moments=reset": self._mslt(_EQUAL_PARTS, "moments=reset"),
            "mslt, rewarm": self._mslt(_EQUAL_PARTS, f"rewarm={self.num_steps // 20}"),
            "mslt, decoder=train": self._mslt(_EQUAL_PARTS, "embeddings=frozen:decoder=train"),
            "mslt, joint 0.4": self._mslt(_LONG_ENDS),
            "mslt, tuned parts": self._mslt(_TUNED),
            "mslt, joint 0.4, embeddings=frozen": self._mslt(_LONG_ENDS, "embeddings=frozen"),
        }

    @property
    def shorter(self) -> dict[str, Variables]:
        """Runs without growth whose schedule ends sooner."""
        return {f"{BASE}, {part:g} of the steps": {"MAX_STEPS": str(round(part * self.num_steps))} for part in SHORTER}

    @property
    def of_all_steps(self) -> dict[str, Variables]:
        return self.main | self.variants

    def runs_due(self, num_seeds: int, num_variant_seeds: int) -> list[tuple[str, int]]:
        """Names and seeds, those of the main plans first."""
        main = [*self.main, *self.shorter]
        seeds = ((main, num_seeds), (list(self.variants), num_variant_seeds))
        return [(name, seed) for names, count in seeds for seed in range(1, count + 1) for name in names]

    def variables_of(self, name: str, seed: int) -> dict[str, str]:
        return self.base | (self.of_all_steps | self.shorter)[name] | {"SEED": str(seed)}

    def folder_of(self, out: Path, name: str, seed: int) -> Path:
        of_name = "".join(letter if letter.isalnum() else "_" for letter in name)
        return self.folder(out) / of_name / f"seed_{seed}"

    def folder(self, out: Path) -> Path:
        return out / f"{self.num_steps}_steps"

    @property
    def base(self) -> dict[str, str]:
        own = {"NUM_LAYERS": str(self.num_layers), "MAX_STEPS": str(self.num_steps), "GROWTH": "none"}
        return _exports() | own

    @property
    def config(self) -> Config:
        """Of the whole model and all steps."""
        return checked(self.variables_of(BASE, 1))

    def plan_named(self, name: str) -> GrowthPlan:
        return plan_of(checked(self.variables_of(name, 1)))

    @property
    def full_stage(self) -> Stage:
        return self.plan_named(BASE).stages[0]

    def distinct_stages(self) -> list[tuple[str, str, int]]:
        """Of all plans, those that cost something of their own: name, a plan that has it, its number there."""
        found: dict[str, tuple[str, str, int]] = {}
        for name in self.of_all_steps:
            growth = self.variables_of(name, 1)["GROWTH"]
            for number, stage in enumerate(self.plan_named(name).stages):
                found.setdefault(name_of(stage), (name_of(stage), growth, number))
        return list(found.values())

    def _quarters(self) -> list[int]:
        return [self.num_layers * number // 4 for number in range(1, 5)]

    def _mslt(self, parts: str, *options: str) -> Variables:
        layers = ",".join(map(str, self._quarters()))
        return {"GROWTH": ":".join([f"mslt:{layers}@{parts}+joint", *options])}


@cache
def _exports() -> dict[str, str]:
    return exports_of(CONFIG)
