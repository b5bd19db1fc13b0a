"""mlperf-logging's checks of a folder and of a tree in, real passes and fails out.

Its tools answer on the terminal, leave 0 as exit status and write beside what they check; here only their parts run.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mlperf_logging.package_checker.power_checker import PowerChecker
from mlperf_logging.package_checker.seed_checker import SeedChecker
from mlperf_logging.repo_checker import repo_checker
from mlperf_logging.system_desc_checker import system_desc_checker

from tools.verify import rounds
from tools.verify.finding import Finding, Rule, Severity
from tools.verify.log import Log
from tools.verify.report import Check, Rcp, Run

_LOUD = logging.getLogger()

SEEDS = Rule("official.seeds", "mlperf-logging, seed_checker", "every run logs a seed of its own")
POWER = Rule("official.power", "mlperf-logging, power_checker", "power files are complete")
SYSTEM = Rule("official.system-description", "mlperf-logging, system_desc_checker", "the description has every field")
REPOSITORY = Rule("official.repository", "mlperf-logging, repo_checker", "git can hold the tree")


@contextlib.contextmanager
def heard() -> Iterator[io.StringIO]:
    """What the official tools say meanwhile, kept from the terminal."""
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    handler.setLevel(logging.WARNING)
    level = _LOUD.level
    _LOUD.addHandler(handler)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield said
    finally:
        _LOUD.removeHandler(handler)
        _LOUD.setLevel(level)


def _ask(name: str, question: Callable[[], bool]) -> Check:
    with heard() as said:
        try:
            passed = question()
        except Exception as error:  # a tool that ends in a traceback: no pass
            return Check(name, "crash", f"{type(error).__name__}: {error}")
    return Check(name, "pass" if passed else "fail", "" if passed else " ".join(said.getvalue().split()))


def of_folder(
    folder: Path, runs: Sequence[Run], logs: Sequence[Log], ruleset: str, num_runs: int, rcp: Rcp | None
) -> list[Check]:
    failing = [run.path.name for run in runs if run.official != "pass"]
    detail = f"{len(runs) - len(failing)} of {len(runs)} logs comply" + (
        f"; not {', '.join(failing)}" if failing else ""
    )
    checks = [
        Check("compliance", "pass" if len(failing) <= 1 else "fail", detail),
        Check("number of results", "pass" if len(runs) == num_runs else "fail", f"{len(runs)}, expected {num_runs}"),
    ]
    closed = any(run.division != "open" for run in runs)
    if closed:
        checks.append(_ask("seeds", lambda: _Seeds(ruleset, logs).check_seeds([log.path for log in logs])))
        checks.append(_rcp_check(rcp))
    else:
        checks += [Check(name, "not applicable", "open division") for name in ("seeds", "RCP")]
    if (folder / "power").is_dir():
        checks.append(_ask("power", lambda: _has_power(folder.resolve() / "power", logs, ruleset)))
    return checks


def _has_power(folder: Path, logs: Sequence[Log], ruleset: str) -> bool:
    _, without = PowerChecker(ruleset).check_power(str(folder), [str(log.path) for log in logs])
    return not without


def _rcp_check(rcp: Rcp | None) -> Check:
    if rcp is None:
        return Check("RCP", "not applicable", "no reference points for these runs")
    return Check("RCP", "pass" if rcp.passed else "fail", rcp.message)


class _Seeds(SeedChecker):
    """The official checker on logs that are read already."""

    def __init__(self, ruleset: str, logs: Sequence[Log]) -> None:
        super().__init__(ruleset)
        self._logs = {log.path: log for log in logs}

    def _get_seed_records(self, result_file: Path) -> list[tuple[str, int, int]]:
        return [
            (record.metadata["file"], record.metadata["lineno"], int(record.value))
            for record in self._logs[result_file].seeds
        ]


def system_description(path: Path, ruleset: str) -> Check:
    return _ask(
        f"system description {path.name}",
        lambda: bool(system_desc_checker.check_system_desc(str(path), "training", ruleset)[0]),
    )


def repository(root: Path, *, hidden: bool = True) -> Check:
    """Without `hidden` names, of which a rule of our own says more, only what else git cannot hold."""
    root = root.resolve()  # the official checker takes "." for a hidden folder
    paths = [path for path in root.rglob("*") if hidden or not path.name.startswith(".")]
    files = [str(path) for path in paths if not path.is_dir() and not (path.is_symlink() and path.exists())]
    folders = [str(root), *(str(path) for path in paths if path.is_dir())]

    def passes() -> bool:
        return all(
            [
                repo_checker._check_bad_filenames(files, folders),
                repo_checker._check_file_sizes(files),
                repo_checker._check_symbolic_links(str(root), files),
            ]
        )

    return _ask("repository", passes)


def findings(checks: Sequence[Check], ruleset: str, *, as_submitted: bool) -> Iterator[Finding]:
    """Of checks that no rule of our own speaks for: the others' findings say more."""
    rules = {"seeds": SEEDS, "power": POWER, "repository": REPOSITORY}
    for check in checks:
        rule = SYSTEM if check.name.startswith("system description") else rules.get(check.name)
        if rule is None or check.outcome not in ("fail", "crash"):
            continue
        later = rule is SEEDS and as_submitted and not rounds.at_least(ruleset, "4.1.0")
        yield Finding(
            rule,
            Severity.WARNING if later else Severity.ERROR,
            f"{check.name}: {check.detail or check.outcome}",
            mend="seeds became mandatory in round 4.1" if later else "",
        )
