"""A verifier's report or a folder in, the one finding or check of it that a test is about out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tools.verify.finding import Finding
from tools.verify.report import Check, Folder, Report
from tools.verify.verify import verify


def judge(folder: Path, **options: Any) -> Folder:
    (judged,) = verify(folder, **options).folders
    return judged


def only(judged: Report | Folder) -> Finding:
    """The finding, of which there must be one: of a report any, of a folder one about its runs together."""
    (finding,) = judged.all_findings() if isinstance(judged, Report) else judged.findings
    return finding


def check_of(judged: Report | Folder, name: str) -> Check:
    """The official check of that name, a report's own or one of its folders'."""
    folders = judged.folders if isinstance(judged, Report) else ()
    checks = [*judged.checks, *(check for folder in folders for check in folder.checks)]
    (check,) = [check for check in checks if check.name == name]
    return check
