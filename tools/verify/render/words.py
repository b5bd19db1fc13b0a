"""Figures and texts from logs in, the words of a report out; what is not known becomes a dash."""

from __future__ import annotations

import math
from pathlib import Path

DASH = "–"  # noqa: RUF001
_MOST_CHARACTERS = 1000  # of one text; the JSON form has it whole


def plain(text: object, most: int = _MOST_CHARACTERS) -> str:
    """A text without control characters, direction marks and surrogates; line breaks stay."""
    lines = cut(str(text).strip(), most).replace("\r\n", "\n").replace("\t", " ").split("\n")
    return "\n".join("".join(char if char.isprintable() else "·" for char in line) for line in lines)


def one_line(text: object, most: int = _MOST_CHARACTERS) -> str:
    return cut(" ".join(plain(text).split()), most)


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def optional(text: object | None) -> str:
    return DASH if text is None else one_line(text)


def count(value: float | None) -> str:
    return fixed(value, 0)


def fixed(value: float | None, digits: int) -> str:
    if value is None:
        return DASH
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return f"{value:,.{digits}f}" if abs(value) < 1e15 else f"{float(value):.6g}"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def minutes(value: float | None) -> str:
    return DASH if value is None else f"{fixed(value, 3)} min"


def duration(seconds: float | None) -> str:
    """Seconds below ten minutes, else minutes."""
    if seconds is None:
        return DASH
    return f"{fixed(seconds, 1)} s" if seconds < 600 else f"{fixed(seconds / 60, 2)} min"


def percent(share: float | None) -> str:
    return DASH if share is None else f"{fixed(100 * share, 1)} %"


def within(path: Path, base: Path | None) -> str:
    """The path as seen from the folder `base`, or as given where it is not in there."""
    if base is not None and path != base and path.is_relative_to(base):
        path = path.relative_to(base)
    return one_line(path)
