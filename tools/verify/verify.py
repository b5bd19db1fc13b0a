"""A path in, the report on the log, the folders or the submission tree that it is out."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from tools.verify import checks, rounds
from tools.verify.finding import Finding, fold
from tools.verify.folder import judge_folder, judge_log, result_files
from tools.verify.log import UnreadableLogError, first_value
from tools.verify.report import Report
from tools.verify.rules import across, package
from tools.verify.run import OTHER_BENCHMARKS

ASSUMED = "assumed, as no folder's name tells the round; --round sets it"


def verify(
    path: Path, *, round_name: str | None = None, as_submitted: bool = True, num_runs: int = rounds.NUM_RUNS
) -> Report:
    """Judge a log, a folder of logs, or an organisation's tree. Reads only.

    Raises UnknownRoundError for a round without BERT, UnreadableLogError where there is nothing to judge.
    """
    try:
        path.stat()
    except FileNotFoundError as error:
        raise UnreadableLogError(f"{path}: no such file or folder") from error
    except OSError as error:
        raise UnreadableLogError(f"{path}: {error.strerror}") from error
    ruleset, ruleset_from = _ruleset(path, round_name)
    report = functools.partial(
        Report,
        path=path,
        ruleset=ruleset,
        ruleset_from=ruleset_from,
        rules="as-submitted" if as_submitted else "as-shipped",
    )
    if not path.is_dir():
        folder = judge_log(path, ruleset, as_submitted=as_submitted)
        return report(kind="log", findings=(), folders=(folder,))
    is_tree = (path / "results").is_dir()
    places = sorted({file.parent for file in (path / "results" if is_tree else path).rglob("result_*.txt")})
    of_bert = [place for place in places if not is_tree or place.name.lower() == "bert" or _holds_bert(place)]
    if not is_tree and any(_holds_bert(place) for place in places):
        of_bert = [place for place in places if _holds_bert(place)]  # and not those of other benchmarks beside them
    if not of_bert:
        raise UnreadableLogError(f"{path}: no file result_*.txt of BERT in it or below")
    if ruleset_from == ASSUMED:
        told = {told for place in of_bert if (told := rounds.ruleset_of_path(place))}
        if len(told) > 1:
            raise UnreadableLogError(
                f"{path}: results of rounds {', '.join(sorted(told))}; name one of them, or --round"
            )
        if told:
            ruleset, ruleset_from = told.pop(), "from the path"
            report = functools.partial(report, ruleset=ruleset, ruleset_from=ruleset_from)
    folders = tuple(judge_folder(place, ruleset, as_submitted=as_submitted, num_runs=num_runs) for place in of_bert)
    between = [*across.same_runs([run for folder in folders for run in folder.runs])] if len(folders) > 1 else []
    if not is_tree:
        return report(kind="folder", findings=tuple(between), folders=folders)
    judged = {place.resolve().parent.name for place in of_bert}  # systems whose description is checked with their logs
    descriptions = [file for file in sorted((path / "systems").glob("*.json")) if file.stem not in judged]
    others = [checks.system_description(file, ruleset) for file in descriptions]
    official = [*others, checks.repository(path)]
    found = [
        *between,
        *package.check_tree(path),
        *_places(path, of_bert),
        *checks.findings([*others, checks.repository(path, hidden=False)], ruleset, as_submitted=as_submitted),
    ]
    findings = tuple(finding.at(path) for finding in fold(found))
    return report(kind="tree", findings=findings, folders=folders, checks=tuple(official))


def _holds_bert(place: Path) -> bool:
    """By the first log that names a benchmark, in any spelling; a log that names none is taken for BERT's."""
    for file in result_files(place):
        benchmark = first_value(file, "submission_benchmark")
        if benchmark is not None:
            return benchmark not in OTHER_BENCHMARKS
    return True


def _ruleset(path: Path, round_name: str | None) -> tuple[str, str]:
    if round_name is not None:
        return rounds.ruleset_named(round_name), "as asked for"
    if ruleset := rounds.ruleset_of_path(path):
        return ruleset, "from the path"
    return rounds.LATEST, ASSUMED


def _places(root: Path, places: list[Path]) -> Iterator[Finding]:
    for place in places:
        if place.name != "bert":
            yield package.NAME.error(
                f"the folder is called {place.name}",
                expected="bert, in lower case: the official tools skip any other folder in silence",
                mend="rename it",
                path=place,
            )
        if len(place.relative_to(root).parts) != 3:
            yield package.PLACE.error(
                "results of BERT",
                expected="results/SYSTEM/bert, with systems/SYSTEM.json: the official tools look nowhere else",
                mend="move them",
                path=place,
            )
