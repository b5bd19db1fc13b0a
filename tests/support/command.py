"""The verifier's command line, in this process or in one of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.support.tiny import ROOT, clean_environment
from tools.verify.__main__ import main

PASSED, FAILED, NOT_JUDGED = 0, 1, 2


class Verify:
    """The command, run in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        self.out = self.err = ""

    def __call__(self, *arguments: object) -> int:
        """The exit status."""
        self._monkeypatch.setattr(sys, "argv", ["verify", *map(str, arguments)])
        try:
            status: object = main()
        except SystemExit as end:  # argparse
            status = end.code
        self.out, self.err = self._capsys.readouterr()
        assert isinstance(status, int)
        return status


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tools.verify", *map(str, arguments)]


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    defaults: dict[str, Any] = {
        "env": clean_environment(),
        "cwd": ROOT,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    return subprocess.run(command(*arguments), timeout=60, **(defaults | options))
