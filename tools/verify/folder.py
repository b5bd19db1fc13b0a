"""A folder of logs in, the judgement of its runs together out."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.verify import checks, rcp
from tools.verify.finding import Finding, Severity, fold
from tools.verify.log import UnreadableLogError
from tools.verify.report import Folder, Run
from tools.verify.rules import across, package
from tools.verify.run import judge
from tools.verify.score import score

_BYPASS = {"rcp-bypass", "rcp_bypass"}


def result_files(folder: Path) -> list[Path]:
    """In the order of their numbers."""
    return sorted(folder.glob("result_*.txt"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.stem)] or [0])


def judge_log(path: Path, ruleset: str, *, as_submitted: bool) -> Folder:
    run, _ = judge(path, ruleset, as_submitted=as_submitted)
    return Folder(path, run.platform or path.parent.name, (run,), (), (), None, None, _not_applicable([run], ruleset))


def judge_folder(folder: Path, ruleset: str, *, as_submitted: bool, num_runs: int) -> Folder:
    """Raises UnreadableLogError where a result file cannot be read or is of another benchmark."""
    judged = [judge(path, ruleset, as_submitted=as_submitted) for path in result_files(folder)]
    if not judged:
        raise UnreadableLogError(f"{folder}: no file result_*.txt in it")
    runs, logs = [run for run, _ in judged], [log for _, log in judged]
    compared = rcp.compare(runs, logs, ruleset)
    official = checks.of_folder(folder, runs, logs, ruleset, num_runs, compared)
    description_path = system_description(folder)
    described = read_json(description_path) if description_path else None
    if description_path and described is not None:
        official.append(checks.system_description(description_path, ruleset))
    findings: list[Finding] = [
        *across.check(runs, logs, num_runs, compared, bypass=_asks_for_bypass(folder)),
        *checks.findings(official, ruleset, as_submitted=as_submitted),
        *(package.check_description(description_path, described, runs) if description_path else ()),
        *package.check_folder(folder, compared.scaling if compared else 1.0, _scaling(folder)),
    ]
    place = folder.resolve()
    failed = any(finding.severity is Severity.ERROR for finding in findings)
    return Folder(
        path=folder,
        system=place.parent.name if place.name.lower() == "bert" else place.name,
        runs=tuple(runs),
        findings=tuple(finding.at(folder) for finding in fold(findings)),
        checks=tuple(official),
        rcp=compared,
        score=score(runs, compared, _num_accelerators(described), counts=not failed),
        not_applicable=_not_applicable(runs, ruleset),
    )


def system_description(folder: Path) -> Path | None:
    """Where the tree that the folder belongs to describes its system; None outside a tree."""
    folder = folder.resolve()
    if folder.name.lower() != "bert" or len(folder.parents) < 3 or folder.parents[1].name != "results":
        return None
    return folder.parents[2] / "systems" / f"{folder.parent.name}.json"


def read_json(path: Path) -> Any:
    """None for a file that is not there, False for one that is no JSON, or has a name twice in one object."""
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text("utf-8"), object_pairs_hook=_unique)
    except (OSError, ValueError, RecursionError):
        return False


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name is there twice")
    return dict(pairs)


def _scaling(folder: Path) -> Any:
    content = read_json(folder / "scaling.json")
    return content.get("scaling_factor") if isinstance(content, dict) else "no JSON" if content is False else content


def _asks_for_bypass(folder: Path) -> bool:
    """As the official package checker, in any spelling and with or without an end of line."""
    for params in (place / "package_checker_params" for place in (folder, folder.resolve().parent)):
        try:
            lines = params.read_text("latin-1").splitlines() if params.is_file() else []
        except OSError:
            continue  # which cannot ask for anything
        if not _BYPASS.isdisjoint(line.strip().removeprefix("--") for line in lines):
            return True
    return False


def _num_accelerators(description: Any) -> int | None:
    if not isinstance(description, dict):
        return None
    try:
        return int(description["number_of_nodes"]) * int(description["accelerators_per_node"]) or None
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _not_applicable(runs: Sequence[Run], ruleset: str) -> tuple[str, ...]:
    said = []
    if runs and all(run.division == "open" for run in runs):
        said = [
            "open division: no hyperparameter keys, accuracy target, seed or RCP check by the official rules",
            "open division: BERT's constants, intervals and the optimizer give warnings, the RCPs information",
        ]
    if ruleset == "0.7.0":
        said.append("round 0.7: there were no RCPs")
    return tuple(said)
