"""A round's name or a path in, what the rules of that round say of BERT out."""

from __future__ import annotations

import math
import re
from pathlib import Path

RULESETS = ("0.7.0", "1.0.0", "1.1.0", "2.0.0", "2.1.0", "3.0.0", "3.1.0", "4.0.0", "4.1.0", "5.0.0")  # with BERT
LATEST = RULESETS[-1]
NUM_RUNS = 10  # training rules, "Benchmark Results"
TARGET = 0.720  # masked-LM accuracy from round 1.0 on
EVAL_SAMPLES = 10_000
MAX_LENGTH = 512  # tokens
MAX_PREDICTIONS = 76  # masked tokens of a sample

_IN_PATH = re.compile(r"v(\d)[._](\d)|training_results_v(\d)[._](\d)(?!\d).*")


class UnknownRoundError(ValueError):
    pass


def ruleset_named(name: str) -> str:
    """`v2.1`, `2.1` or `2.1.0` as `2.1.0`. Raises UnknownRoundError for a round without BERT."""
    ruleset = name.removeprefix("v")
    ruleset += ".0" * (2 - ruleset.count("."))
    if ruleset not in RULESETS:
        rounds = ", ".join("v" + known.removesuffix(".0") for known in RULESETS)
        raise UnknownRoundError(f"{name!r} is no round with BERT; those are {rounds}")
    return ruleset


def ruleset_of_path(path: Path) -> str | None:
    """The round that a folder's name tells, as in training_results_v2.1/ORG/results or v2.1/ORG."""
    for part in reversed(path.absolute().parts):
        match = _IN_PATH.fullmatch(part)
        if match and (ruleset := f"{match[1] or match[3]}.{match[2] or match[4]}.0") in RULESETS:
            return ruleset
    return None


def at_least(ruleset: str, other: str) -> bool:
    return RULESETS.index(ruleset) >= RULESETS.index(other)


def target(ruleset: str, batch: int | None) -> float:
    """Masked-LM accuracy that ends a run (the official checker's closed_bert.yaml)."""
    if ruleset == "0.7.0":
        return 0.712 if batch is None or batch < 8192 else 0.706
    return TARGET


def init_limit_minutes(ruleset: str, division: str | None) -> int:
    """Initialisation outside the clock (training rules, "Run Results"; common.yaml of the round)."""
    if ruleset == "0.7.0":
        return 20
    return 240 if division == "open" and at_least(ruleset, "2.0.0") else 30


def eval_interval(ruleset: str, batch: int) -> int:
    """Samples between evaluations: training rules, "Quality measure", BERT."""
    if ruleset == "0.7.0":
        return 500_000
    return math.floor(0.05 * (230.23 * batch + 3_000_000) / 25_000) * 25_000


def first_eval(ruleset: str, batch: int) -> int:
    """Samples before the first evaluation."""
    return 3_000_000 if ruleset == "0.7.0" else eval_interval(ruleset, batch)
