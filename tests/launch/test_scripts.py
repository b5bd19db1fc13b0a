"""Shell scripts pass shellcheck and shfmt, where those are there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted([*ROOT.glob("*.sh"), *ROOT.glob("*.sub"), *ROOT.glob("scripts/**/*.sh"), ROOT / ".ci" / "run"])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
@pytest.mark.parametrize("command", [["shellcheck", "-x"], ["shfmt", "-d", "-i", "2"]], ids=lambda command: command[0])
def test_a_script_is_clean(command: list[str], script: Path) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not on PATH")
    done = subprocess.run([*command, script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
