"""Rows in, a Markdown table out; and a page with a part of it between two marks replaced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"


def percent(share: float) -> str:
    return f"{share:+.1%}".replace("%", " %")


def between_marks(page: str, name: str, text: str) -> str:
    """The page with `text` between `<!-- name: begin -->` and its end. Raises ValueError without these lines."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found_begin, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"there must be one line {begin} and below it one line {end}")
    return f"{before}{begin}\n{text}\n{end}{after}"
