"""A report in, lines for a terminal out: the verdict first, then what is wrong and how to mend it, then figures."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tools.verify.finding import Finding, Severity
from tools.verify.render import facts, words
from tools.verify.render.groups import Group, briefly_where, findings_of, groups, place, where
from tools.verify.report import Check, Folder, Report

_WIDTH = 100  # columns
_GUTTER = 9  # columns of severities and labels
_MOST_PLACES = 10  # and rule ids, unless verbose
_MOST_OTHERS = 4  # findings listed of a group that differ, unless verbose
_INKS = {"failed": "1;31", "passed": "1;32", "error": "31", "warning": "33", "note": "2", "bold": "1", "faint": "2"}


@dataclass(frozen=True)
class _Style:
    colour: bool
    verbose: bool

    def paint(self, text: str, ink: str) -> str:
        return f"\033[{_INKS[ink]}m{text}\033[0m" if self.colour else text


def render_text(report: Report, *, colour: bool, verbose: bool = False) -> str:
    """The report in 100 columns where it fits; `verbose` shows every place, every consequence and more figures."""
    style = _Style(colour, verbose)
    form = _log if facts.is_single(report) else _tree if facts.is_tree(report) else _single_folder
    return "\n".join([_verdict(report, style), *form(report, style)])


def _verdict(report: Report, style: _Style) -> str:
    verdict = facts.verdict(report)
    return f"{style.paint(f'{verdict.upper():<{_GUTTER}}', verdict)}{words.one_line(report.path)}, " + (
        f"ruleset {words.one_line(report.ruleset)}{' (assumed)' if report.ruleset_from.startswith('assumed') else ''}"
    )


def _log(report: Report, style: _Style) -> Iterator[str]:
    folder = report.folders[0]
    run = folder.runs[0]
    yield from _facts(facts.run_facts(run))
    yield from _findings((*report.findings, *findings_of(folder)), folder, style)
    if style.verbose:
        yield from _block("details", _facts([*facts.run_details(run), *facts.rules_facts(report)]), style)
        yield from _block("not applicable", _bullets(folder.not_applicable), style)


def _single_folder(report: Report, style: _Style) -> Iterator[str]:
    folder = report.folders[0] if report.folders else None
    if folder:
        yield from _facts(facts.folder_facts(folder))
    yield from _findings((*report.findings, *(findings_of(folder) if folder else ())), folder, style)
    if folder:
        yield from _folder(folder, style)
    yield from _block("rules", _facts(facts.rules_facts(report)), style)


def _tree(report: Report, style: _Style) -> Iterator[str]:
    yield from _findings(report.findings, None, style)
    yield from _block("official checks of the tree", _checks(report.checks), style)
    rows = [facts.folder_row(folder, report) for folder in report.folders]
    yield from _block("folders", _table(facts.FOLDER_HEADS, rows, style), style)
    yield from _block("rules", _facts(facts.rules_facts(report)), style)
    for folder in report.folders:
        verdict = facts.verdict(folder)
        yield ""
        yield style.paint("─" * _WIDTH, "faint")
        yield style.paint(f"{verdict.upper():<{_GUTTER}}", verdict) + words.within(folder.path, report.path)
        yield from _facts(facts.folder_facts(folder))
        yield from _findings(findings_of(folder), folder, style)
        yield from _folder(folder, style)


def _folder(folder: Folder, style: _Style) -> Iterator[str]:
    yield from _block("logs", _table(facts.RUN_HEADS, facts.run_rows(folder), style), style)
    yield from _block("official checks", _checks(folder.checks), style)
    if folder.rcp:
        yield from _block("reference convergence points", _facts(facts.rcp_facts(folder.rcp)), style)
    if folder.score:
        yield from _block("score", _facts(facts.score_facts(folder.score)), style)
    yield from _block("not applicable", _bullets(folder.not_applicable), style)


def _findings(findings: Iterable[Finding], folder: Folder | None, style: _Style) -> Iterator[str]:
    excuse = facts.excused(folder) if folder else ""
    if excuse:
        yield ""
        yield from _wrapped("", excuse)
    spaced = True  # a blank line before the first note as well, none between notes
    for group in groups(findings):
        note = group.severity is Severity.NOTE
        if not note or spaced:
            yield ""
        spaced = not note
        yield from _note(group, folder, style) if note else _finding(group, folder, style)


def _finding(group: Group, folder: Folder | None, style: _Style) -> Iterator[str]:
    finding, indent = group.first, " " * _GUTTER
    yield from _severity(group.severity, finding.message, style)
    yield from _places(group, folder, style)
    if finding.text:
        yield from _wrapped(f"{indent}> ", words.one_line(finding.text))
    for label, text in (("expected", finding.expected), ("fix", finding.mend)):
        if text:
            yield from _wrapped(f"{indent}{label:<9}", words.plain(text))
    yield indent + style.paint(f"[{_rule(finding)}]", "faint")
    if not group.alike:
        yield from _others(group, folder, len(group.findings) if style.verbose else _MOST_OTHERS)
    yield from _consequences(group, style)


def _note(group: Group, folder: Folder | None, style: _Style) -> Iterator[str]:
    places = where(group, folder, len(group.findings)) if style.verbose else briefly_where(group, folder)
    aside = f" ({places})" if places else ""
    message, rule = words.one_line(group.first.message), words.one_line(group.first.rule.id)
    yield from _severity(group.severity, f"{message}{aside} [{rule}]", style)


def _severity(severity: Severity, message: str, style: _Style) -> Iterator[str]:
    name = severity.name.lower()
    first, *rest = _wrapped(f"{name:<{_GUTTER}}", words.plain(message))
    yield style.paint(name, name) + first[len(name) :]
    yield from rest


def _places(group: Group, folder: Folder | None, style: _Style) -> Iterator[str]:
    indent = " " * _GUTTER
    if places := where(group, folder, len(group.findings) if style.verbose else _MOST_PLACES):
        yield from _wrapped(indent, places)


def _others(group: Group, folder: Folder | None, most: int) -> Iterator[str]:
    """The findings after the first, where their values differ from its."""
    indent, others = " " * _GUTTER, group.findings[1:]
    yield f"{indent}shown is the first; the others:"
    for finding in others[:most]:
        where = place(finding, folder.path if folder else None)
        yield from _wrapped(f"{indent}- ", f"{where}: {words.one_line(finding.message)}".lstrip(": "))
    if len(others) > most:
        yield f"{indent}- and {len(others) - most:,} more"


def _consequences(group: Group, style: _Style) -> Iterator[str]:
    if not group.consequences:
        return
    indent = " " * _GUTTER
    ids = group.consequence_ids if style.verbose else group.consequence_ids[:_MOST_PLACES]
    ellipsis = ", …" if len(ids) < len(group.consequence_ids) else ""
    named = ", ".join(map(words.one_line, ids)) + ellipsis
    yield from _wrapped(indent, f"and {len(group.consequences):,} more that only follow from it ({named})")
    if style.verbose:
        for finding in group.consequences:
            where = f"{place(finding)}: " if place(finding) else ""
            yield from _wrapped(f"{indent}- ", f"{where}{words.one_line(finding.message)} [{_rule(finding)}]")


def _rule(finding: Finding) -> str:
    return ", ".join(words.one_line(text) for text in (finding.rule.id, finding.rule.source) if text)


def _block(title: str, lines: Iterable[str], style: _Style) -> Iterator[str]:
    """A titled block after a blank line; nothing where there are no lines."""
    lines = list(lines)
    if lines:
        yield from ("", style.paint(title, "bold"), *lines)


def _facts(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    pairs = list(pairs)
    longest = max((len(label) for label, _ in pairs), default=0)
    gutter = _GUTTER if longest < _GUTTER else longest + 2
    for label, value in pairs:
        yield from _wrapped(f"{label:<{gutter}}", value)


def _checks(checks: Iterable[Check]) -> Iterator[str]:
    yield from _facts(
        (words.one_line(check.name), f"{words.one_line(check.outcome)}: {words.plain(check.detail)}".rstrip(": "))
        for check in checks
    )


def _bullets(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from _wrapped("- ", words.plain(text))


def _wrapped(first: str, text: str) -> list[str]:
    """The text beside `first`; words longer than a line, such as paths, stay whole."""
    width = _WIDTH - len(first)
    lines = [
        line
        for paragraph in text.split("\n")
        for line in textwrap.wrap(paragraph, width, break_long_words=False, break_on_hyphens=False) or [""]
    ]
    return [(" " * len(first) if number else first) + line for number, line in enumerate(lines)]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], style: _Style) -> Iterator[str]:
    if not rows:
        return
    cells = [[words.cut(cell, 48) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    yield style.paint(_row(heads, heads, widths), "faint")
    for row in cells:
        line = _row(heads, row, widths)
        yield style.paint(line, "error") if "failed" in row else line


def _row(heads: Sequence[str], cells: Sequence[str], widths: Sequence[int]) -> str:
    aligned = (
        f"{cell:>{width}}" if head in facts.NUMBERS else f"{cell:<{width}}"
        for head, cell, width in zip(heads, cells, widths, strict=True)
    )
    return "  ".join(aligned).rstrip()
