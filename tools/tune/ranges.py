"""`low:high[:log]` in, a checked range of numbers out; and the ranges that are taken where none is given."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from benchmarks.bert.config import VARIABLES, Config
from benchmarks.bert.growth.notation import NONE
from tools.tune.names import RangeError

_DIGITS = 4  # of a value that is tried, so that the configuration file can be read
_WHOLE = re.compile(r"0|-?[1-9]\d*", re.ASCII)
_OF_NUMBERS = re.compile(r"[-+.\da-zA-Z]+", re.ASCII)  # Python alone reads 1_000 as a number


@dataclass(frozen=True)
class Range:
    """Of a variable or a placeholder. Both ends are included; where both are `int`, so is what lies between."""

    name: str
    low: float
    high: float
    log: bool = False

    @property
    def ends(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def is_whole(self) -> bool:
        return type(self.low) is int and type(self.high) is int

    @property
    def text(self) -> str:
        """As on the command line; a placeholder's 1.0:2.0 is another range than 1:2."""
        form = "g" if self.name in VARIABLES else ""
        return f"{self.name}={self.low:{form}}:{self.high:{form}}{':log' if self.log else ''}"

    def value(self, value: float) -> str:
        """A value of this range as text: of four digits, unless that would leave the range; a variable's may be 1e-05.

        A placeholder's has no exponent: what it stands in need not be read as Python reads a number.
        """
        if self.is_whole:
            return str(int(value))
        short = f"{value:.{_DIGITS}g}"
        text = short if self.low <= float(short) <= self.high else repr(float(value))
        return text if self.name in VARIABLES else f"{Decimal(text):f}"


def parse_ends(name: str, ends: str, option: str) -> Range:
    """`option` is the whole of it, for messages. Raises RangeError, with what is accepted."""
    if name in VARIABLES and type(VARIABLES[name].default) not in (int, float):
        raise RangeError(
            f"{option}: {name} is not a number, so it has no ends; name two or more values, --range '{name}=a|b', or "
            f"fix it by --set {name}=VALUE"
        )
    low, _, rest = ends.partition(":")
    high, _, scale = rest.partition(":")
    if scale not in ("", "log") or not low or not high:
        raise RangeError(f"{option}: expected NAME=low:high, NAME=low:high:log, or values as in 'NAME=a|b'")
    kind = _kind(name, (low, high))
    given = Range(name, number(kind, low, option), number(kind, high, option), scale == "log")
    if given.low >= given.high:
        raise RangeError(f"{option}: the low end must be below the high end")
    if given.log and given.low <= 0:
        raise RangeError(f"{option}: a logarithmic range begins above 0; raise the low end or leave out :log")
    if name in VARIABLES:
        check = VARIABLES[name].metadata["check"]
        if not (check.accepts(given.low) and check.accepts(given.high)):
            raise RangeError(f"{option}: {name} must be {check.allowed}")
    return given


def number(kind: type, text: str, option: str) -> float:
    """Raises RangeError for what is none, of `kind` int or float, as the configuration reads it."""
    try:
        if not (_WHOLE if kind is int else _OF_NUMBERS).fullmatch(text):
            raise ValueError
        value: float = kind(text)
    except ValueError:
        raise RangeError(f"{option}: {text!r}, expected {'whole numbers' if kind is int else 'numbers'}") from None
    if not math.isfinite(value):
        raise RangeError(f"{option}: {text!r} is not finite")
    return value


def _kind(name: str, ends: Sequence[str]) -> type:
    if name in VARIABLES:
        return type(VARIABLES[name].default)
    return int if all(map(_WHOLE.fullmatch, ends)) else float


def default_ranges(base: Config, but: Sequence[str]) -> list[Range]:
    """Rate, betas, warm-up, decay and weight decay, except the variables named `but`.

    The rate's is around the base's and those of steps are parts of its; of the others it does not depend on the base.
    Where the model grows the decay stays, for stages are parts of it.
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
    fixed = {*but, *(["DECAY_STEPS"] if base.growth != NONE else [])}
    return [each for each in ranges if each.name not in fixed]
