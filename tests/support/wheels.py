"""The name of a wheel in, its path or a skip out: large files that tests of the whole way need and no run does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_DEFAULT = Path(__file__).parents[2] / "data" / "wheels"


def find_wheel(package: str) -> Path:
    """A wheel of `package` in PREPARE_WHEELS (data/wheels); docs/prepare.md says how to fetch them."""
    folder = Path(os.environ.get("PREPARE_WHEELS", _DEFAULT))
    for path in sorted(folder.glob(f"{package}-*.whl")):
        return path
    pytest.skip(f"no wheel of {package} in {folder}: docs/prepare.md says how to fetch it")
