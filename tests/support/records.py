"""A log file in, all its records out."""

from __future__ import annotations

from pathlib import Path

from tools.verify.log import Record, read_log


def read_records(path: Path) -> list[Record]:
    records: list[Record] = []
    log = read_log(path, records.append)
    assert not log.flaws, log.flaws
    return records
