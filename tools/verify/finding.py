"""What a rule says of a log: severity, place, what was found, what was expected, how to mend it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

_BEFORE_KEY = re.compile(r'^[^\n]*?:::MLLOG \{[^\n]*?(?="key")')
_TEXT_SEARCHED = 2_000  # characters, before they are cut to those shown
_TEXT_LIMIT = 160  # characters of an offending line that a report shows


class Severity(IntEnum):
    NOTE = 0  # worth knowing; changes no verdict
    WARNING = 1  # reviewers may ask; changes no verdict
    ERROR = 2  # the log or the submission does not stand


@dataclass(frozen=True)
class Rule:
    """One thing that is checked. `explains` names what only follows from it: ids of rules, or keys as "key:NAME"."""

    id: str
    source: str  # section of the rules, or file of the official checker
    title: str
    explains: tuple[str, ...] = ()

    def error(self, message: str, **fields: Any) -> Finding:
        return Finding(self, Severity.ERROR, message, **fields)

    def warning(self, message: str, **fields: Any) -> Finding:
        return Finding(self, Severity.WARNING, message, **fields)

    def note(self, message: str, **fields: Any) -> Finding:
        return Finding(self, Severity.NOTE, message, **fields)


@dataclass(frozen=True)
class Finding:
    rule: Rule
    severity: Severity
    message: str  # what was found, with its value
    expected: str = ""
    mend: str = ""
    key: str = ""  # of the records concerned
    path: Path | None = None
    line: int | None = None  # in the file, from 1
    text: str = ""  # the offending line, shortened
    explains: tuple[str, ...] = ()  # as the rule's, for this finding
    absent: bool = False  # says only that there is no record of its key
    run_outcome: bool = False  # says that the run failed, not that its log is wrong: one such run of ten may be dropped
    consequences: tuple[Finding, ...] = field(default=())

    def at(self, path: Path) -> Finding:
        """The same finding, with its file filled in where it has none."""
        return replace(
            self, path=self.path or path, consequences=tuple(finding.at(path) for finding in self.consequences)
        )


def shown(value: object) -> str:
    """A logged value as a message shows it."""
    try:
        return shorten(repr(value))
    except RecursionError:
        return "a value nested too deeply to show"


def shorten(text: str) -> str:
    """A line as a report shows it: printable, at most 160 characters, a record from its key on."""
    text = _BEFORE_KEY.sub(":::MLLOG {… ", text[:_TEXT_SEARCHED], count=1)
    text = "".join(character if character.isprintable() else "·" for character in text.strip()[: _TEXT_LIMIT + 1])
    return text if len(text) <= _TEXT_LIMIT else text[: _TEXT_LIMIT - 1] + "…"


def fold(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings with those that only follow from another under that other, worst and earliest first.

    A finding follows from another if that, or its rule, explains this one's rule; or, as "key:NAME", if it only says
    that there is no record of this key, or is an official one about it, which says less well what is wrong with the
    record. The first such cause takes it. What is as severe or worse takes what is not, never the reverse.
    """
    findings = list(findings)
    root_of = _roots(findings)
    consequences: dict[int, list[Finding]] = {}
    for index, root in enumerate(root_of):
        if root != index:
            consequences.setdefault(root, []).append(findings[index])
    roots = [
        replace(finding, consequences=(*finding.consequences, *consequences.get(index, ())))
        for index, finding in enumerate(findings)
        if root_of[index] == index
    ]
    return tuple(sorted(roots, key=lambda finding: (-finding.severity, finding.line or float("inf"))))


def _roots(findings: list[Finding]) -> list[int]:
    """For each finding the index of its root cause, itself where it has none; of a ring the first is the cause."""
    root_of: list[int | None] = [None] * len(findings)

    def give(index: int, root: int) -> None:
        """`root` to this finding and to all that follows from it."""
        root_of[index] = root
        for other, finding in enumerate(findings):
            if root_of[other] is None and _explains(findings[index], finding):
                give(other, root)

    def has_no_cause(index: int) -> bool:
        return not any(_explains(cause, findings[index]) for cause in findings)

    for index in range(len(findings)):
        if root_of[index] is None and has_no_cause(index):
            give(index, index)
    for index in range(len(findings)):  # what is left hangs on rings
        if root_of[index] is None:
            give(index, index)
    return [index if root is None else root for index, root in enumerate(root_of)]


def _explains(cause: Finding, finding: Finding) -> bool:
    if cause.rule is finding.rule or cause.severity < finding.severity:
        return False
    explained = cause.rule.explains + cause.explains
    about = f"key:{finding.key}" if finding.absent or finding.rule.id.startswith("official.") else ""
    return finding.rule.id in explained or about in explained
