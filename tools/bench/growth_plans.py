"""A plan's name and a seed in, the variables and the folder of that run out: what growth is measured on.

growth.sh holds the model. Plans last as many steps and samples, on one schedule.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from benchmarks.bert.config import Config
from benchmarks.bert.growth.plan import GrowthPlan, Stage
from benchmarks.bert.growth.stages import plan_of
from tools.bench.growth_table import BASE, name_of
from tools.trial import checked, exports_of

CONFIG = Path(__file__).with_name("growth.sh")
_MSLT = "mslt:3,6,9,12@0.21,0.21,0.21,0.21+joint"
MAIN = {
    BASE: "none",
    "mslt": _MSLT,
    "progressive_stacking": "progressive_stacking:3,6,12@0.125,0.175,0.7",
}
_LONGER_ENDS = "mslt:3,6,9,12@0.3,0.1,0.1,0.1+joint"
# One seed each: what the paper leaves open, and longer first and joint stages.
VARIANTS = {
    "mslt, joint 0.4": _LONGER_ENDS,
    "mslt, init=fresh": f"{_MSLT}:init=fresh",
    "mslt, moments=reset": f"{_MSLT}:moments=reset",
    "mslt, embeddings=train": f"{_MSLT}:embeddings=train",
    "mslt, decoder=train": f"{_MSLT}:decoder=train",
    "mslt, joint 0.4, embeddings=train": f"{_LONGER_ENDS}:embeddings=train",
}
PLANS = MAIN | VARIANTS


def runs_due(num_seeds: int) -> list[tuple[str, int]]:
    """The first seed of all plans, then the others of the main ones."""
    return [(name, 1) for name in PLANS] + [(name, seed) for seed in range(2, num_seeds + 1) for name in MAIN]


@cache
def base() -> dict[str, str]:
    return exports_of(CONFIG)


def variables_of(name: str, seed: int) -> dict[str, str]:
    return base() | {"GROWTH": PLANS[name], "SEED": str(seed)}


def folder_of(out: Path, name: str, seed: int) -> Path:
    return out / "".join(letter if letter.isalnum() else "_" for letter in name) / f"seed_{seed}"


def config() -> Config:
    """Of the full model."""
    return checked(variables_of(BASE, 1))


def plan_named(name: str) -> GrowthPlan:
    return plan_of(checked(variables_of(name, 1)))


def full_stage() -> Stage:
    return plan_named(BASE).stages[0]


def distinct_stages() -> list[tuple[str, str, int]]:
    """Of all plans, those that cost something of their own: name, a plan that has it, its number there."""
    found: dict[str, tuple[str, str, int]] = {}
    for name, plan in PLANS.items():
        for number, stage in enumerate(plan_named(name).stages):
            found.setdefault(name_of(stage), (name_of(stage), plan, number))
    return list(found.values())
