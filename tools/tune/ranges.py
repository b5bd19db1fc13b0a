"""`NAME=low:high[:log]` in, a checked range of a variable out; and the ranges that are taken where none is given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.bert.config import VARIABLES, Config
from benchmarks.bert.names import nearest

# What samples to target are measured by, and what a trial sets itself.
_FIXED = {"SEED", "MAX_STEPS", "MAX_LENGTH", "NUM_NODES", "RANKS_PER_NODE", "VIRTUAL_RANKS"}
_FIXED_PREFIXES = ("EVAL_", "TARGET_", "CHECKPOINT_", "COLLECTIVE_", "PROFILE_")
_IN_THE_STUDY = "what a trial writes lies in --study"
_ANEW = "a trial keeps no checkpoints and begins anew"
_OWN = {  # of a trial, which would make `--set` of it void, and what to do
    "SEED": "use --seeds",
    "RESULT_FILE": _IN_THE_STUDY,
    "CHECKPOINT_DIR": _IN_THE_STUDY,
    "PROFILE_DIR": _IN_THE_STUDY,
    "CHECKPOINT_INTERVAL_STEPS": _ANEW,
    "RESUME": _ANEW,
}
_DIGITS = 4  # of a value that is tried, so that the configuration file can be read


class RangeError(ValueError):
    """An option of the command line that cannot be used; the message says what would be."""


@dataclass(frozen=True)
class Range:
    """Both ends are included."""

    name: str
    low: float
    high: float
    log: bool = False

    @property
    def is_whole(self) -> bool:
        return type(VARIABLES[self.name].default) is int

    @property
    def text(self) -> str:
        """As on the command line."""
        return f"{self.name}={self.low:g}:{self.high:g}{':log' if self.log else ''}"

    def value(self, value: float) -> str:
        """A value of this range as a variable's text: of four digits, unless that would leave the range."""
        if self.is_whole:
            return str(int(value))
        short = f"{value:.{_DIGITS}g}"
        return short if self.low <= float(short) <= self.high else repr(float(value))


def parse_range(text: str) -> Range:
    """Raises RangeError, with what is accepted."""
    name, _, ends = text.partition("=")
    _check_name(name)
    low, _, rest = ends.partition(":")
    high, _, scale = rest.partition(":")
    if scale not in ("", "log") or not low or not high:
        raise RangeError(f"--range {text}: expected NAME=low:high or NAME=low:high:log")
    given = Range(name, _number(name, low, text), _number(name, high, text), scale == "log")
    if given.low >= given.high:
        raise RangeError(f"--range {text}: the low end must be below the high end")
    if given.log and given.low <= 0:
        raise RangeError(f"--range {text}: a logarithmic range begins above 0; raise the low end or leave out :log")
    check = VARIABLES[name].metadata["check"]
    for end in (given.low, given.high):
        if not check.accepts(end):
            raise RangeError(f"--range {text}: {name} must be {check.allowed}")
    return given


def default_ranges(base: Config, but: Sequence[str]) -> list[Range]:
    """Rate, betas, warm-up, decay and weight decay, except the variables named `but`.

    The rate's is around the base's and those of steps are parts of its; of the others it does not depend on the base.
    """
    rate, steps = base.learning_rate, base.max_steps
    ranges = [
        Range("LEARNING_RATE", rate / 8, rate * 8, log=True),
        Range("BETA_1", 0.8, 0.98),
        Range("BETA_2", 0.8, 0.999),
        Range("WARMUP_STEPS", 0, max(1, steps // 8)),
        Range("DECAY_STEPS", max(1, steps // 4), max(2, steps)),
        Range("WEIGHT_DECAY", 1e-3, 0.1, log=True),
    ]
    return [each for each in ranges if each.name not in but]


def parse_set(text: str) -> tuple[str, str]:
    """`NAME=VALUE`. Raises RangeError for a name that is unknown or each trial's own.

    The value is the configuration's to judge.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise RangeError(f"--set {text}: expected NAME=VALUE")
    _check_known(name)
    if name in _OWN:
        raise RangeError(f"--set {text}: each trial has its own {name}; {_OWN[name]}")
    return name, value


def check_apart(ranges: Sequence[Range], fixed: Mapping[str, str]) -> None:
    """Raises RangeError for a variable with two ranges, or with a range and a value."""
    names = [each.name for each in ranges]
    for name in names:
        if names.count(name) > 1 or name in fixed:
            raise RangeError(f"{name} is given twice; leave one --range or --set of it")


def _check_known(name: str) -> None:
    if name not in VARIABLES:
        raise RangeError(
            f"{name}: unknown variable; the nearest valid one is {nearest(name, VARIABLES, always=True)} "
            "(all: python -m benchmarks.bert.config list)"
        )


def _check_name(name: str) -> None:
    _check_known(name)
    if type(VARIABLES[name].default) not in (int, float):
        raise RangeError(f"--range {name}: not a number, so it has no range; fix it by --set {name}=VALUE")
    if name in _FIXED or name.startswith(_FIXED_PREFIXES):
        raise RangeError(f"--range {name}: trials are compared by it, so it must be fixed; use --set {name}=VALUE")


def _number(name: str, text: str, whole: str) -> float:
    kind = int if type(VARIABLES[name].default) is int else float
    try:
        value: float = kind(text)
    except ValueError:
        expected = "whole numbers" if kind is int else "numbers"
        raise RangeError(f"--range {whole}: {text!r}, expected {expected} for {name}") from None
    if not math.isfinite(value):
        raise RangeError(f"--range {whole}: {text!r} is not finite")
    return value
