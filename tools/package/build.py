"""A commit and results in, a submission tree that the verifier passes out: all of it, or nothing."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tools.package import system
from tools.package.commit import export
from tools.package.names import PackageError
from tools.package.readme import readme
from tools.package.results import Results
from tools.package.scripts import CONFIG, SCRIPTS, config_file, script
from tools.verify.report import Report
from tools.verify.verify import verify


@dataclass(frozen=True)
class Submission:
    organisation: str  # a plain name, that of the tree
    implementation: str  # a plain name
    repository: Path
    commit: str  # its full hash
    systems: tuple[tuple[Results, dict[str, str]], ...]  # results and the description of what ran


def build(
    submission: Submission, out: Path, *, round_name: str, num_runs: int, keep_failed: bool
) -> tuple[Report, list[str]]:
    """Write the tree `out`/<organisation>; nothing is there unless the verifier passes it.

    Returns the report, whose paths are of the folder meanwhile, and what was left out of the commit. A tree that fails
    is kept as `failed_name(out)` where that is asked for. Raises PackageError where one is in the way, OSError where
    nothing can be written.
    """
    if keep_failed and os.path.lexists(failed_name(out)):
        raise PackageError(f"{failed_name(out)}: exists; remove it, or name another --out")
    place = _beside(out)
    moved = False
    try:
        root = place / submission.organisation
        left_out = write_tree(root, submission)
        report = verify(root, round_name=round_name, num_runs=num_runs)
        if keep_failed or not report.failed:
            place.rename(failed_name(out) if report.failed else out)
            moved = True
    finally:
        if not moved:
            shutil.rmtree(place, ignore_errors=True)
    return report, left_out


def unfinished_name(out: Path) -> Path:
    """Where a tree grows until it is judged."""
    return out.with_name(f"{out.name}.unfinished")


def failed_name(out: Path) -> Path:
    return out.with_name(f"{out.name}.failed")


def check_place(out: Path) -> None:
    """Raises PackageError unless `out` is free."""
    if not out.parent.is_dir():
        raise PackageError(f"{out.parent}: no such folder; make it first")
    if os.path.lexists(out) and not (out.is_dir() and not out.is_symlink() and not any(out.iterdir())):
        raise PackageError(f"{out}: exists and is no empty folder; a package is never written over anything")


def _beside(out: Path) -> Path:
    """A new folder beside `out`; there is at most one, so that builds do not meet."""
    place = unfinished_name(out)
    try:
        place.mkdir()
    except FileExistsError:
        raise PackageError(
            f"{place}: exists: another package is being built for {out}, or a build was killed; remove it if so"
        ) from None
    return place


def write_tree(root: Path, submission: Submission) -> list[str]:
    """Returns what was left out of the commit."""
    benchmark = root / "benchmarks" / "bert"
    code = benchmark / "implementations" / submission.implementation
    code.mkdir(parents=True)
    left_out = export(submission.repository, submission.commit, code)
    for results, description in submission.systems:
        _write(root / "systems" / f"{results.system}.json", system.render(description))
        _write_scripts(benchmark / results.system, results, description, submission)
        runs = root / "results" / results.system / "bert"
        runs.mkdir(parents=True)
        for number, log in enumerate(results.logs):
            shutil.copyfile(log.path, runs / f"result_{number}.txt")
    return left_out


def _write_scripts(folder: Path, results: Results, description: dict[str, str], submission: Submission) -> None:
    implementation = submission.implementation
    text = readme(results, submitter=description["submitter"], implementation=implementation, commit=submission.commit)
    pair = {
        "system": results.system,
        "implementation": implementation,
        "commit": submission.commit,
        "configuration": CONFIG,
    }
    _write(folder / "README.md", text)
    _write(folder / f"{results.system}_{implementation}.json", json.dumps(pair, indent=4) + "\n")
    _write(folder / CONFIG, config_file(results.configuration))
    for name in SCRIPTS:
        _write(folder / name, script(name, implementation, results.configuration))
        (folder / name).chmod(0o755)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
