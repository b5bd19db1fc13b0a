"""`a|b|c` in, a checked choice between values out."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.bert.config import VARIABLES
from tools.tune.names import RangeError
from tools.tune.placeholders import placeholders_in
from tools.tune.ranges import Range, number

SEPARATOR = "|"
_EXPECTED = {int: "whole numbers", float: "finite numbers", bool: "0 or 1"}


@dataclass(frozen=True)
class Choice:
    """Of a variable or a placeholder."""

    name: str
    values: tuple[str, ...]

    @property
    def ends(self) -> tuple[str, str]:
        return self.values[0], self.values[-1]

    @property
    def text(self) -> str:
        """As on the command line."""
        return f"{self.name}={SEPARATOR.join(self.values)}"

    def value(self, value: str) -> str:
        return value


AnyRange = Range | Choice


def parse_choice(name: str, text: str, option: str) -> Choice:
    """`option` is the whole of it, for messages. Raises RangeError with all values of which one thing is wrong."""
    values = tuple(text.split(SEPARATOR))
    if "" in values:
        raise RangeError(f"{option}: a value is empty; expected two or more with one {SEPARATOR} between each two")
    if holders := [value for value in values if placeholders_in(value)]:
        raise RangeError(f"{option}: {_listed(holders)} with a placeholder, which only a value of --set may hold")
    kind = type(VARIABLES[name].default) if name in VARIABLES else str
    meant = [_meant(kind, value) for value in values]
    if unread := [value for value, of in zip(values, meant, strict=True) if of is None]:
        raise RangeError(f"{option}: {_listed(unread)}; expected {_EXPECTED[kind]}")
    if again := [value for index, value in enumerate(values) if meant[index] in meant[:index]]:
        raise RangeError(f"{option}: {_listed(again)} given twice; expected different values")
    if name in VARIABLES:
        check = VARIABLES[name].metadata["check"]
        if bad := [value for value, of in zip(values, meant, strict=True) if not check.accepts(of)]:
            raise RangeError(f"{option}: {_listed(bad)}; {name} must be {check.allowed}")
    return Choice(name, values)


def _meant(kind: type, value: str) -> float | str | None:
    """What it is to its variable's check; None where it is nothing of that kind."""
    if kind is bool:
        return value if value in ("0", "1") else None
    if kind not in (int, float):
        return value
    try:
        return number(kind, value, "")
    except RangeError:
        return None


def _listed(values: list[str]) -> str:
    return ", ".join(map(repr, values))
