"""A report in, one self-contained HTML page out: no network, no script; every text from a log is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from tools.verify.finding import Finding, Severity
from tools.verify.render import facts, words
from tools.verify.render.groups import Group, briefly_where, findings_of, groups, place, where
from tools.verify.render.plots import accuracy_plot, time_plot
from tools.verify.report import Check, Folder, Report

_STYLE = Path(__file__).with_name("page.css")
_MOST_PLACES = 20  # listed of a group, and of consequences
_MOST_POINTS = 12_000  # of all curves of the page together: about 150 kB
_SIGNS = {"passed": "✓", "failed": "✗", "error": "✗", "warning": "!", "note": "i"}
_VERDICTS = {"passed": "passed", "failed": "failed", "pass": "passed", "fail": "failed", "crash": "failed"}
_ROLES = {"counted": "counted", "dropped": "dropped from the mean", "failed": "failed or not converged"}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def render_html(report: Report) -> str:
    """The page; curves are thinned and long lists cut, so that it stays small whatever the logs hold."""
    form = _log if facts.is_single(report) else _tree if facts.is_tree(report) else _single_folder
    verdict = facts.verdict(report)
    head = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f'<link rel="icon" href="data:,"><title>{verdict.title()}: {_text(report.path)}</title>',
        f"<style>\n{_STYLE.read_text('utf-8')}</style></head>",
    ]
    body = [f'<body><main><header class="{verdict}">', _badge(verdict), f"<h1>{_path(report.path)}</h1>"]
    end = ["</main></body></html>"]
    return "\n".join([*head, *body, _rules(report), "</header>", *form(report), *end]) + "\n"


def _rules(report: Report) -> str:
    chosen = f"Ruleset <b>{_text(report.ruleset)}</b> ({_text(report.ruleset_from)}), rules {_text(report.rules)}"
    return f'<p class="faint">{chosen}</p>'


def _log(report: Report) -> Iterator[str]:
    folder = report.folders[0]
    run = folder.runs[0]
    findings = list(_findings((*report.findings, *findings_of(folder)), folder))
    yield from _cause_first(report.failed, findings, _facts(facts.run_facts(run), "headline"))
    yield from _plots(folder, report, 0)
    yield from _section("This log", [_facts(facts.run_details(run))])
    yield from _not_applicable(folder)


def _single_folder(report: Report) -> Iterator[str]:
    folder = report.folders[0] if report.folders else None
    if folder is None:
        yield from _findings(report.findings, None)
        return
    findings = list(_findings((*report.findings, *findings_of(folder)), folder))
    yield from _cause_first(report.failed, findings, _facts(facts.folder_facts(folder), "headline"))
    yield from _folder(folder, report, 0)


def _tree(report: Report) -> Iterator[str]:
    yield from _findings(report.findings, None)
    yield from _checks(report.checks, "Official checks of the tree")
    yield from _section("Folders", [_table(facts.FOLDER_HEADS, _linked_rows(report))])
    for number, folder in enumerate(report.folders):
        name = _path(words.within(folder.path, report.path))
        verdict = facts.verdict(folder)
        yield f'<section class="folder {verdict}" id="folder-{number}"><h2 class="name">{_badge(verdict)} {name}</h2>'
        findings = list(_findings(findings_of(folder), folder))
        yield from _cause_first(folder.failed, findings, _facts(facts.folder_facts(folder), "headline"))
        yield from _folder(folder, report, number)
        yield "</section>"


def _linked_rows(report: Report) -> Iterator[list[str]]:
    for number, folder in enumerate(report.folders):
        name, *cells = map(_text, facts.folder_row(folder, report))
        yield [f'<a href="#folder-{number}">{name}</a>', *cells]


def _cause_first(failed: bool, findings: Sequence[str], headline: str) -> Iterator[str]:
    """What is wrong stands above the figures where it made the verdict, below them where it did not."""
    yield from (*findings, headline) if failed else (headline, *findings)


def _folder(folder: Folder, report: Report, number: int) -> Iterator[str]:
    yield from _plots(folder, report, number)
    if folder.runs:
        rows = [list(map(_text, row)) for row in facts.run_rows(folder)]
        yield from _section("Logs", [_table(facts.RUN_HEADS, rows)])
    yield from _checks(folder.checks, "Official checks")
    if folder.rcp:
        yield from _section("Reference convergence points", [_facts(facts.rcp_facts(folder.rcp))])
    if folder.score:
        yield from _section("Score", [_facts(facts.score_facts(folder.score))])
    yield from _not_applicable(folder)


def _checks(checks: Iterable[Check], title: str) -> Iterator[str]:
    rows = [[_text(check.name), _text(check.outcome), _text(check.detail)] for check in checks]
    if rows:
        yield from _section(title, [_table(("check", "outcome", "detail"), rows)])


def _not_applicable(folder: Folder) -> Iterator[str]:
    if folder.not_applicable:
        items = "".join(f"<li>{_text(text)}</li>" for text in folder.not_applicable)
        yield from _section("Not applicable", [f"<ul>{items}</ul>"])


def _plots(folder: Folder, report: Report, number: int) -> Iterator[str]:
    num_runs = sum(len(each.runs) for each in report.folders)
    accuracy = accuracy_plot(folder, max(16, min(400, _MOST_POINTS // max(1, num_runs))))
    times = time_plot(folder, f"hatch-{number}") if len(folder.runs) > 1 else ""
    figures = [
        f"<figure><figcaption>{caption}</figcaption>{plot}</figure>"
        for caption, plot in (("Accuracy over time", accuracy), ("Time of each run", times))
        if plot
    ]
    if figures:
        yield f'<div class="figures">{"".join(figures)}</div>{_legend(folder)}'


def _legend(folder: Folder) -> str:
    present = {facts.role(folder, index) for index in range(len(folder.runs))}
    items = "".join(f'<li class="{role}">{text}</li>' for role, text in _ROLES.items() if role in present)
    return f'<ul class="legend">{items}</ul>' if len(present) > 1 else ""


def _findings(findings: Iterable[Finding], folder: Folder | None) -> Iterator[str]:
    excuse = facts.excused(folder) if folder else ""
    if excuse:
        yield f"<p>{_text(excuse)}</p>"
    made = groups(findings)
    yield from ("".join(_finding(group, folder)) for group in made if group.severity is not Severity.NOTE)
    notes = [group for group in made if group.severity is Severity.NOTE]
    if notes:
        items = "".join(f"<li>{_text(note.first.message)}{_aside(note, folder)}</li>" for note in notes)
        yield f"<details open><summary>{words.plural(len(notes), 'note')}</summary><ul>{items}</ul></details>"


def _finding(group: Group, folder: Folder | None) -> Iterator[str]:
    finding, severity = group.first, group.severity.name.lower()
    yield f'<article class="{severity}"><h3><span class="severity">{_SIGNS[severity]} {severity.title()}</span> '
    yield f"{_text(finding.message)}</h3>"
    pairs = (("Fix", finding.mend), ("Expected", finding.expected), ("Where", where(group, folder, _MOST_PLACES)))
    yield _facts([(label, text) for label, text in pairs if text], "finding")
    if finding.text:
        yield f"<pre>{_text(finding.text)}</pre>"
    if group.consequences:
        yield _details(f"{len(group.consequences):,} more that only follow from it", group.consequences)
    if not group.alike:
        yield _details("each in its own words", group.findings)
    rule = finding.rule
    yield f'<p class="faint"><code>{_text(rule.id)}</code> {_text(rule.title)} · {_text(rule.source)}</p></article>'


def _aside(group: Group, folder: Folder | None) -> str:
    places = briefly_where(group, folder)
    return f' <span class="faint">{_text(places)}</span>' if places else ""


def _details(summary: str, findings: Sequence[Finding]) -> str:
    items = [
        f"<li>{_text(finding.message)} <span class='faint'>{_text(place(finding))}</span></li>"
        for finding in findings[:_MOST_PLACES]
    ]
    if len(findings) > _MOST_PLACES:
        items.append(f"<li>and {len(findings) - _MOST_PLACES:,} more</li>")
    return f"<details><summary>{summary}</summary><ul>{''.join(items)}</ul></details>"


def _section(title: str, parts: Iterable[str]) -> Iterator[str]:
    yield from (f"<section><h2>{title}</h2>", *parts, "</section>")


def _badge(verdict: str) -> str:
    return f'<span class="badge {verdict}">{_SIGNS[verdict]} {verdict.title()}</span>'


def _facts(pairs: Iterable[tuple[str, str]], kind: str = "facts") -> str:
    rows = "".join(f"<div><dt>{_text(label)}</dt><dd>{_text(value)}</dd></div>" for label, value in pairs)
    return f'<dl class="{kind}">{rows}</dl>' if rows else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls inside its own box; the cells are HTML already."""
    kinds = [' class="number"' if head in facts.NUMBERS else "" for head in heads]
    head = "".join(f'<th scope="col"{kind}>{text}</th>' for kind, text in zip(kinds, heads, strict=True))
    body = "".join(f"<tr>{_cells(row, kinds)}</tr>" for row in rows)
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cells(row: Sequence[str], kinds: Sequence[str]) -> str:
    return "".join(f"<td{kind}>{_marked(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))


def _marked(cell: str) -> str:
    verdict = _VERDICTS.get(cell)
    return f'<span class="{verdict}">{_SIGNS[verdict]} {cell}</span>' if verdict else cell


def _text(text: object) -> str:
    return escape(words.plain(text))


def _path(path: object) -> str:
    """A path that a narrow screen breaks behind a slash."""
    return _text(path).replace("/", "/<wbr>")
