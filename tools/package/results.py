"""A folder of logs in, what they say alike of the system that ran and of how out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bert.config import VARIABLES
from tools.package.names import PackageError, checked_name, shown
from tools.verify.folder import result_files
from tools.verify.log import Log, read_log
from tools.verify.rules.events import number, samples_of

NOT_SET = "none"  # what the configuration says where nobody said who submits on what
_OF_ONE_TRIAL = ("SEED", "RESULT_FILE", "CLEAR_CACHES", "CACHES_CLEARED")


@dataclass(frozen=True)
class Results:
    """The runs of one system."""

    folder: Path
    logs: tuple[Log, ...]  # in the order of their numbers
    stray: tuple[str, ...]  # files and folders beside them, which are not packaged
    system: str  # a plain name
    organisation: str
    division: str
    status: str
    configuration: dict[str, Any]  # variable -> value, those that one trial has for itself left out


def read_results(folder: Path) -> Results:
    """Raises PackageError where the logs cannot be of one system and one configuration of this project."""
    if not folder.is_dir():
        raise PackageError(f"{folder}: no such folder; give folders that hold result_*.txt of one system each")
    files = result_files(folder)
    if not files:
        raise PackageError(f"{folder}: no file result_*.txt in it")
    for path in files:
        if not path.is_file():  # opening a pipe would wait for a writer
            raise PackageError(f"{path}: no regular file, and no log therefore; remove it")
    logs = tuple(read_log(path) for path in files)
    system = checked_name(f"{folder}: the logs' submission_platform", _common(logs, "submission_platform"))
    if system == NOT_SET or system.casefold() == "implementations":
        raise PackageError(f"{folder}: the logs' submission_platform is {system!r}, which names no system; set it")
    return Results(
        folder=folder,
        logs=logs,
        stray=tuple(sorted(path.name for path in folder.iterdir() if path not in set(files))),
        system=system,
        organisation=_common(logs, "submission_org"),
        division=_common(logs, "submission_division"),
        status=_common(logs, "submission_status"),
        configuration=_alike(logs, _configuration),
    )


def _common(logs: Sequence[Log], key: str) -> str:
    value = _alike(logs, lambda log: text if isinstance(text := log.value(key), str) else None)
    if not value:
        raise PackageError(f"{logs[0].path}: no {key} in it, or no text; is this a whole log of this project?")
    return str(value)


def _alike(logs: Sequence[Log], read: Callable[[Log], Any]) -> Any:
    first, *others = ((log.path, read(log)) for log in logs)
    for path, value in others:
        if value != first[1]:
            raise PackageError(
                f"{path}: {_difference(value, first[1])} in {first[0].name}; a folder holds runs of one system and "
                "one configuration, put others into a folder of their own"
            )
    return first[1]


def _difference(value: Any, other: Any) -> str:
    if isinstance(value, dict) and isinstance(other, dict):
        name = next(name for name in sorted({*value, *other}) if value.get(name) != other.get(name))
        return f"{name} is {shown(value.get(name))}, but {shown(other.get(name))}"
    return f"{shown(value)}, but {shown(other)}"


def _configuration(log: Log) -> dict[str, Any]:
    seen = log.seen.get("configuration")
    record = seen.first.value if seen and not seen.others else None
    if not isinstance(record, dict):
        raise PackageError(
            f"{log.path}: {'several configurations' if seen else 'no configuration'} in it; only logs that this "
            "project wrote, whole, say how to repeat the run"
        )
    values = {name: entry.get("value") for name, entry in record.items() if isinstance(entry, dict)}
    for name in record:
        if name not in VARIABLES or not isinstance(values.get(name), str | int | float):
            raise PackageError(
                f"{log.path}: the configuration's {shown(name)} is {shown(values.get(name))}, which is no variable "
                "and value of this version; package with the version that ran"
            )
    return {name: value for name, value in values.items() if name not in _OF_ONE_TRIAL}


def check_distinct(results: Sequence[Results]) -> None:
    """Raises PackageError, with both names, where two folders are of one system or two files are of one run."""
    systems: dict[str, Path] = {}
    known: dict[object, Path] = {}
    for each in results:
        for log in each.logs:
            for identity, what in _identities(log):
                if identity in known:
                    raise PackageError(f"{log.path} {what} {known[identity]}; remove the copy and run again")
                known[identity] = log.path
        if (other := systems.setdefault(each.system.casefold(), each.folder)) is not each.folder:
            raise PackageError(f"{other} and {each.folder} are both of the system {each.system}; give one folder of it")


def _identities(log: Log) -> list[tuple[object, str]]:
    """What no other log has: its content, when which trial began, and what was measured, to the last digit."""
    with open(log.path, "rb") as file:
        identities: list[tuple[object, str]] = [(hashlib.file_digest(file, "sha256").digest(), "is a copy of")]
    if start := log.first("run_start"):
        trial = ("trial", repr(start.time_ms), repr(log.value("seed")))
        identities.append((trial, "is of the same run (one run_start, one seed) as"))
    measured = tuple((samples_of(record), number(record.value)) for record in log.evaluations)
    if len(measured) > 1:  # times and seeds are easily changed in a copy
        identities.append((("measured", measured), "is of the same run (every evaluation is equal) as"))
    return identities
