"""A rule, a log on which it speaks and one nearly the same on which it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support.logs import first, last, with_metadata, with_value
from tools.verify.finding import Rule, Severity

Lines = list[str]
Edit = Callable[[Lines], Lines]
NOTE, WARNING, ERROR = Severity


@dataclass(frozen=True)
class Case:
    rule: Rule
    severity: Severity
    name: str
    speaks: Edit  # makes a log on which the rule speaks
    silent: Edit  # makes its near twin
    division: str = "closed"
    ruleset: str = "5.0.0"
    weights: bool = False  # the log has the 398 weights_initialization

    @property
    def id(self) -> str:
        return f"{self.rule.id}-{self.division}-{self.ruleset}-{self.name}".replace(" ", "_")


def same(lines: Lines) -> Lines:
    return lines


def then(*edits: Edit) -> Edit:
    def edit(lines: Lines) -> Lines:
        for one in edits:
            lines = one(lines)
        return lines

    return edit


def value(key: str, new: Any) -> Edit:
    """Of the key's first record."""
    return lambda lines: with_value(lines, key, new)


def meta(key: str, **new: Any) -> Edit:
    """Further metadata, or others, of the key's first record."""
    return lambda lines: with_metadata(lines, first(lines, key), **new)


def last_meta(key: str, **new: Any) -> Edit:
    return lambda lines: with_metadata(lines, last(lines, key), **new)


def pairs(rule: Rule, severity: Severity, key: str, values: list[tuple[Any, Any]], **fields: Any) -> list[Case]:
    """Cases of one key: a value that the rule speaks about, one that it does not."""
    return [
        Case(rule, severity, f"{key}_{wrong!r}_not_{right!r}", value(key, wrong), value(key, right), **fields)
        for wrong, right in values
    ]
