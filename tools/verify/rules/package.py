"""A submission tree in, what is wrong with its files out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.verify.finding import Finding, Rule, shorten
from tools.verify.report import Run

_STRUCTURE = "submission rules, Directory structure"
_MAX_SCANNED = 50_000_000  # bytes of a file in which home folders are looked for

NAME = Rule("package.benchmark-name", _STRUCTURE, "BERT's results lie in a folder bert")
FILES = Rule("package.files", _STRUCTURE, "what it takes to repeat the run is there")
DOTFILES = Rule("package.dotfiles", "mlperf-logging, repo_checker", "no hidden files")
COMPILED = Rule("package.compiled", _STRUCTURE, "no compiled leftovers")
HOMES = Rule("package.homes", _STRUCTURE, "no absolute paths of somebody's home")
LINKS = Rule("package.links", _STRUCTURE, "no links to folders or out of the tree")
PLACE = Rule("package.place", _STRUCTURE, "results lie in results/SYSTEM/BENCHMARK")
STRAY = Rule("package.stray", _STRUCTURE, "results are named result_*.txt")
SCALING = Rule("package.scaling", "mlperf-logging, result_summarizer", "scaling.json says what the RCPs say")
DESCRIPTION = Rule(
    "system.description",
    "submission rules, System description",
    "every system with results is described",
    explains=("official.system-description",),
)
DIVISION = Rule(
    "system.division",
    "mlperf-logging, package_checker: checks seeds and RCPs only where it says 'closed'",
    "logs and system description are of one division",
)
SUBMITTER = Rule(
    "system.submitter", "submission rules, System description", "logs and system description name one submitter"
)
STRINGS = Rule(
    "system.strings",
    "mlperf-logging, system_desc_checker",
    "values of the system description are strings",
    explains=("official.system-description",),
)

_REQUIRED = ("README.md", "setup.sh", "init_datasets.sh", "run_and_time.sh", "LICENSE")
_COMPILED = re.compile(r"(\.(pyc|pyo|o|so|a|egg|whl|class|obj|dll)|\.so\.\d.*)$")
_COMPILED_FOLDERS = {"__pycache__", "node_modules"}
_HOME = re.compile(rb"(?<![\w.])(?<!\w[\"'])/(?:home|Users)/[A-Za-z0-9_][\w.-]*|(?<![\w./])(?<!\w[\"'])/root/[\w.-]+")


def check_tree(root: Path) -> Iterator[Finding]:
    code = root / "benchmarks"
    if code.is_dir():
        yield from _required(code)
        yield from _leftovers(code)
        yield from _homes(code)
    else:
        yield FILES.warning(
            "no benchmarks folder: the code of the submission is not checked",
            expected=f"benchmarks/bert with {', '.join(_REQUIRED)}",
            mend="build the tree with python -m tools.package",
            path=root,
        )
    yield from _links(root)
    hidden = [path for path in sorted(root.rglob("*")) if path.name.startswith(".")]
    yield from _listed(DOTFILES, hidden, root, "hidden files", "names without a leading dot", "remove them")


def _required(code: Path) -> Iterator[Finding]:
    bert = code / "bert"
    names = {path.name.lower() for path in bert.rglob("*") if path.is_file() and path.stat().st_size}
    missing = [name for name in _REQUIRED if name.lower() not in names]
    if missing:
        yield FILES.error(
            f"missing in benchmarks/bert: {', '.join(missing)}",
            expected=", ".join(_REQUIRED),
            mend="build the tree with python -m tools.package",
            path=bert,
        )


def _links(root: Path) -> Iterator[Finding]:
    """Links lead into the tree or nowhere that a reviewer has; a folder that is one is not looked into."""
    inside = root.resolve()
    bad = [
        path
        for path in sorted(root.rglob("*"))
        if path.is_symlink() and (path.is_dir() or (path.exists() and not path.resolve().is_relative_to(inside)))
    ]
    yield from _listed(LINKS, bad, root, "links out of the tree or to folders", "files", "put the files there")


def _leftovers(code: Path) -> Iterator[Finding]:
    found = [
        path
        for path in sorted(code.rglob("*"))
        if (path.is_dir() and path.name in _COMPILED_FOLDERS) or _COMPILED.search(path.name)
    ]
    yield from _listed(COMPILED, found, code, "compiled leftovers", "sources only", "take the code from a commit")


def _homes(code: Path) -> Iterator[Finding]:
    for path in sorted(code.rglob("*")):
        try:
            content = _text_of(path)
        except OSError as error:
            yield HOMES.error(f"cannot read it ({error.strerror})", mend="make it readable", path=path)
            continue
        if match := _HOME.search(content):
            line = content.count(b"\n", 0, match.start()) + 1
            yield HOMES.error(
                f"{match[0].decode('latin-1')}",
                expected="paths that exist on any machine",
                mend="take the path from the environment",
                path=path,
                line=line,
                text=shorten(content.split(b"\n")[line - 1].decode("latin-1")),
            )


def _text_of(path: Path) -> bytes:
    """Nothing for what is no text file, or too long."""
    if not path.is_file() or path.is_symlink() or path.stat().st_size > _MAX_SCANNED:
        return b""
    content = path.read_bytes()
    return b"" if b"\0" in content[:1024] else content


def _listed(rule: Rule, paths: Sequence[Path], root: Path, what: str, expected: str, mend: str) -> Iterator[Finding]:
    if paths:
        shown = ", ".join(str(path.relative_to(root)) for path in paths[:5])
        more = f" and {len(paths) - 5:,} more" if len(paths) > 5 else ""
        yield rule.error(f"{len(paths):,} {what}: {shown}{more}", expected=expected, mend=mend, path=paths[0])


def check_description(path: Path, description: Any, runs: Sequence[Run]) -> Iterator[Finding]:
    """`description` is the content of the system's JSON file; None where there is no such file."""
    if not isinstance(description, dict):
        yield DESCRIPTION.error(
            "no such file" if description is None else "not a JSON object whose names are unique",
            expected="a JSON object that describes the system",
            mend="write it with python -m tools.package",
            path=path,
        )
        return
    yield from _division(path, description, runs)
    yield from _submitter(path, description, runs)
    numbers = [key for key, value in description.items() if isinstance(value, int | float)]
    if numbers:
        yield STRINGS.error(
            f"numbers where the official checker joins strings: {', '.join(numbers)}",
            expected='strings, as "8"',
            mend="put the numbers into quotes",
            path=path,
        )


def _division(path: Path, description: dict[str, Any], runs: Sequence[Run]) -> Iterator[Finding]:
    described, logged = description.get("division"), {run.division for run in runs if run.division}
    if len(logged) != 1:
        return
    division = logged.pop()
    if described != division:
        spelled = isinstance(described, str) and described.lower() == division
        yield DIVISION.error(
            f"division is {described!r}, the logs say {division!r}",
            expected=f"{division!r}, in lower case",
            mend="spell it so: otherwise the official tools skip the seed and RCP checks in silence"
            if spelled
            else "describe the system for the division of the results",
            path=path,
            explains=("official.system-description",) if described is None else (),
        )


def _submitter(path: Path, description: dict[str, Any], runs: Sequence[Run]) -> Iterator[Finding]:
    described, logged = str(description.get("submitter", "")), {run.organisation for run in runs if run.organisation}
    if logged and described.lower() not in {name.lower() for name in logged}:
        yield SUBMITTER.warning(
            f"submitter is {described!r}, the logs say {', '.join(sorted(logged))!r}",
            expected="one name",
            mend="log the name of the submitter",
            path=path,
        )


def check_folder(folder: Path, scaling: float, logged_scaling: Any) -> Iterator[Finding]:
    """Files around the results; `logged_scaling` is what a scaling.json there says, None without one."""
    known = {"scaling.json", "package_checker_params", "power"}
    stray = [
        path
        for path in sorted(folder.iterdir())
        if path.name not in known and not (path.name.startswith("result_") and path.suffix == ".txt")
    ]
    if stray:
        yield STRAY.warning(
            f"not read: {', '.join(path.name for path in stray[:5])}" + (" …" if len(stray) > 5 else ""),
            expected="result_*.txt and nothing else",
            mend="rename results, remove the rest",
            path=folder,
        )
    if logged_scaling is not None and not _equal(logged_scaling, scaling):
        yield SCALING.warning(
            f"scaling.json says {logged_scaling!r}, the RCPs say {scaling:.6f}",
            expected=f"{scaling:.6f}",
            mend="remove it: the official tools write it anew",
            path=folder / "scaling.json",
        )


def _equal(one: Any, other: float) -> bool:
    return isinstance(one, int | float) and abs(one) < 1e9 and abs(one - other) < 1e-6
