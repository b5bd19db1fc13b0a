"""A log file in, its MLLOG records out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MARK = ":::MLLOG "


class UnreadableLogError(ValueError):
    """The file holds no log that can be judged; the message says why."""


@dataclass(frozen=True)
class Record:
    line: int  # in the file, from 1
    key: str
    value: Any
    time_ms: float
    metadata: dict[str, Any]


def read_log(path: Path) -> list[Record]:
    """All records in file order. Raises UnreadableLogError for no such file, no record or a line cut short."""
    try:
        # As the official parser: latin-1, so that any byte is some character, and no line ends but \n, \r and \r\n.
        lines = path.read_text("latin-1").split("\n")
    except OSError as error:
        raise UnreadableLogError(f"{path}: cannot read the log ({error.strerror})") from error
    records = [_record(path, number, line) for number, line in enumerate(lines, start=1) if _MARK in line]
    if not records:
        raise UnreadableLogError(f"{path}: no MLLOG record")
    return records


def _record(path: Path, number: int, line: str) -> Record:
    try:
        fields = json.loads(line[line.rindex(_MARK) + len(_MARK) :])
        return Record(number, fields["key"], fields["value"], float(fields["time_ms"]), dict(fields["metadata"] or {}))
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableLogError(
            f"{path}:{number}: not a whole MLLOG record ({type(error).__name__}: {error})"
        ) from error
