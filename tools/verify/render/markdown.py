"""A report in, GitHub-flavoured Markdown out; no text of a log can act as markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from tools.verify.finding import Finding, Severity
from tools.verify.render import facts, words
from tools.verify.render.groups import Group, briefly_where, findings_of, groups, place, where
from tools.verify.report import Check, Folder, Report

_MOST_PLACES = 40
_MARKS = {"passed": "✅ Passed", "failed": "❌ Failed"}
# Entities where a backslash could be undone by what stands before it or by the splitting of a table into cells.
_ESCAPES = {ord(char): f"&#{ord(char)};" for char in "&<>|`\\"} | {ord(char): f"\\{char}" for char in "*_[]~#!$"}


def render_markdown(report: Report) -> str:
    """The report as sections separated by blank lines; texts of logs as escaped text or code."""
    form = _log if facts.is_single(report) else _tree if facts.is_tree(report) else _single_folder
    title = f"# {_MARKS[facts.verdict(report)]}: {escape(report.path)}"
    rules = f"Ruleset {escape(report.ruleset)} ({escape(report.ruleset_from)}), rules {escape(report.rules)}."
    return "\n\n".join([title, rules, *form(report)]) + "\n"


def escape(text: object) -> str:
    """One line that shows as it is, in a table too: no markup, no HTML, no link, no new cell or row."""
    return words.one_line(text).translate(_ESCAPES).replace("://", "&#58;//")


def code(text: str) -> str:
    """The text as a code block whose fence it cannot close."""
    text = words.one_line(text)
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
    return f"{fence}text\n{text}\n{fence}"


def _log(report: Report) -> Iterator[str]:
    folder = report.folders[0]
    run = folder.runs[0]
    yield from _findings((*report.findings, *findings_of(folder)), folder)
    yield _facts([*facts.run_facts(run), *facts.run_details(run)])
    yield from _not_applicable(folder, "##")


def _single_folder(report: Report) -> Iterator[str]:
    folder = report.folders[0] if report.folders else None
    yield from _findings((*report.findings, *(findings_of(folder) if folder else ())), folder)
    if folder:
        yield from _folder(folder, "##")


def _tree(report: Report) -> Iterator[str]:
    yield from _findings(report.findings, None)
    yield from _checks(report.checks, "## Official checks of the tree")
    yield _table(facts.FOLDER_HEADS, [facts.folder_row(folder, report) for folder in report.folders])
    for folder in report.folders:
        yield f"## {_MARKS[facts.verdict(folder)]}: {escape(words.within(folder.path, report.path))}"
        yield from _findings(findings_of(folder), folder)
        yield from _folder(folder, "###")


def _folder(folder: Folder, level: str) -> Iterator[str]:
    yield _facts(facts.folder_facts(folder))
    if folder.runs:
        yield f"{level} Logs"
        yield _table(facts.RUN_HEADS, facts.run_rows(folder))
    yield from _checks(folder.checks, f"{level} Official checks")
    if folder.rcp:
        yield f"{level} Reference convergence points"
        yield _facts(facts.rcp_facts(folder.rcp))
    if folder.score:
        yield f"{level} Score"
        yield _facts(facts.score_facts(folder.score))
    yield from _not_applicable(folder, level)


def _checks(checks: Sequence[Check], title: str) -> Iterator[str]:
    if checks:
        yield title
        yield _table(("check", "outcome", "detail"), [(check.name, check.outcome, check.detail) for check in checks])


def _not_applicable(folder: Folder, level: str) -> Iterator[str]:
    if folder.not_applicable:
        yield f"{level} Not applicable"
        yield "\n".join(f"- {escape(text)}" for text in folder.not_applicable)


def _findings(findings: Iterable[Finding], folder: Folder | None) -> Iterator[str]:
    excuse = facts.excused(folder) if folder else ""
    if excuse:
        yield escape(excuse)
    made = groups(findings)
    for group in made:
        if group.severity is not Severity.NOTE:
            yield "\n\n".join(_finding(group, folder))
    notes = [group for group in made if group.severity is Severity.NOTE]
    if notes:
        yield "**Notes**"
        yield "\n".join(f"- {escape(note.first.message)}{_aside(note, folder)}" for note in notes)


def _finding(group: Group, folder: Folder | None) -> Iterator[str]:
    finding = group.first
    yield f"**{finding.severity.name.title()}: {escape(finding.message)}**"
    if places := where(group, folder, _MOST_PLACES):
        yield escape(places)
    if finding.text:
        yield code(finding.text)
    wants = [(label, text) for label, text in (("Expected", finding.expected), ("Fix", finding.mend)) if text]
    rule = f"Rule: {escape(finding.rule.id)}, {escape(finding.rule.source)} ({escape(finding.rule.title)})"
    yield "\n".join([*(f"- {label}: {escape(text)}" for label, text in wants), f"- {rule}"])
    if group.consequences:
        yield _details(f"and {len(group.consequences):,} more that only follow from it", group.consequences)
    if not group.alike:
        yield _details("each in its own words", group.findings)


def _aside(group: Group, folder: Folder | None) -> str:
    places = briefly_where(group, folder)
    return f" ({escape(places)})" if places else ""


def _details(summary: str, findings: Sequence[Finding]) -> str:
    items = [f"- {escape(' '.join((place(finding), finding.message)))}" for finding in findings[:_MOST_PLACES]]
    if len(findings) > _MOST_PLACES:
        items.append(f"- and {len(findings) - _MOST_PLACES:,} more")
    return "\n".join([f"<details><summary>{summary}</summary>", "", *items, "", "</details>"])


def _facts(pairs: Iterable[tuple[str, str]]) -> str:
    return _table(("", ""), list(pairs))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rules = ["---:" if head in facts.NUMBERS else "---" for head in heads]
    return "\n".join("| " + " | ".join(row) + " |" for row in (heads, rules, *(map(escape, row) for row in rows)))
