"""Findings in, groups of findings that are shown once out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.verify.finding import Finding, Severity
from tools.verify.render.words import plural, within
from tools.verify.report import Folder

_MOST_OF_A_RULE = 3  # findings that are shown apart although one rule made them


@dataclass(frozen=True)
class Group:
    """One or more findings of one rule and severity; the first speaks for all."""

    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding:
        return self.findings[0]

    @property
    def severity(self) -> Severity:
        return self.first.severity

    @property
    def alike(self) -> bool:
        return len({finding.message for finding in self.findings}) == 1

    @property
    def consequences(self) -> tuple[Finding, ...]:
        return tuple(consequence for finding in self.findings for consequence in finding.consequences)

    @property
    def consequence_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(finding.rule.id for finding in self.consequences))


def groups(findings: Iterable[Finding]) -> tuple[Group, ...]:
    """Worst first. One group for findings that differ in their place only, and for more than 3 of one rule."""
    made = [
        Group(tuple(part))
        for same_rule in _parts(findings, lambda finding: (finding.severity, finding.rule.id))
        for part in ([same_rule] if len(same_rule) > _MOST_OF_A_RULE else _parts(same_rule, _said))
    ]
    return tuple(sorted(made, key=lambda group: -group.severity))


def findings_of(folder: Folder) -> tuple[Finding, ...]:
    """Those about the folder, then those of its logs, each once."""
    of_runs = (finding for run in folder.runs for finding in run.findings)
    return tuple(dict.fromkeys((*of_runs, *folder.findings)))  # what a log is failed for before that it failed


def tally(findings: Iterable[Finding]) -> str:
    """How many groups of each severity, worst first: "1 error, 2 warnings"."""
    severities = [group.severity for group in groups(findings)]
    counts = [(severities.count(severity), severity.name.lower()) for severity in reversed(Severity)]
    return ", ".join(plural(number, name) for number, name in counts if number) or "none"


def place(finding: Finding, base: Path | None = None) -> str:
    """file:line, as seen from `base`; empty where the finding has no file."""
    if finding.path is None:
        return "" if finding.line is None else f"line {finding.line}"
    return within(finding.path, base) + ("" if finding.line is None else f":{finding.line}")


def spread_of(group: Group, folder: Folder | None) -> str:
    """Over how many logs, or how many places, a group of several findings goes."""
    paths = {finding.path for finding in group.findings}
    logs = {run.path for run in folder.runs} if folder else set()
    if len(logs) > 1 and paths <= logs:
        return f"in {len(paths)} of {len(logs)} logs"
    return f"{len(group.findings):,} times"


def where(group: Group, folder: Folder | None, most: int) -> str:
    """The place of a finding alone as given; of several how many there are, and the first `most` within the folder."""
    if len(group.findings) == 1:
        return place(group.first)
    base = folder.path if folder else None
    found = list(dict.fromkeys(filter(None, (place(finding, base) for finding in group.findings))))
    more = f", and {len(found) - most:,} more" if len(found) > most else ""
    return spread_of(group, folder) + (f": {', '.join(found[:most])}{more}" if found else "")


def briefly_where(group: Group, folder: Folder | None) -> str:
    """As `where`, without the places of several: for notes."""
    return place(group.first) if len(group.findings) == 1 else spread_of(group, folder)


def _said(finding: Finding) -> Hashable:
    return finding.message, finding.expected, finding.mend


def _parts(findings: Iterable[Finding], key: Callable[[Finding], Hashable]) -> Iterator[list[Finding]]:
    parts: dict[Hashable, list[Finding]] = {}
    for finding in findings:
        parts.setdefault(key(finding), []).append(finding)
    yield from parts.values()
