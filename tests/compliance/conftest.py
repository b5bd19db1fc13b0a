"""What tests of this folder ask for: a log, results, a tree, a package's sources, the verifier's command."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.command import Verify
from tests.support.packages import Build, write_sources
from tests.support.submissions import run_records, write_records, write_results, write_tree


@pytest.fixture(scope="module")
def full_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A passing log that this project wrote; not to be changed."""
    from tests.support.run_logs import write_full_log  # it needs torch, the verifier's tests do not

    path = tmp_path_factory.mktemp("full") / "log"
    write_full_log(path, "open")
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log that stands, to be spoiled."""
    path = tmp_path / "result_0.txt"
    write_records(path, run_records())
    return path


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder of ten logs that stand, to be spoiled."""
    return write_results(tmp_path / "box" / "bert")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree that stands; not to be changed."""
    return write_tree(tmp_path_factory.mktemp("whole") / "org")


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    """A tree to be spoiled."""
    return Path(shutil.copytree(whole, tmp_path / "org"))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a package is built from; not to be changed."""
    folder = tmp_path_factory.mktemp("sources")
    write_sources(folder)
    return folder


@pytest.fixture
def build(sources: Path, tmp_path: Path) -> Build:
    """A build of a package, to be spoiled."""
    return Build(Path(shutil.copytree(sources, tmp_path / "work")))


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Verify:
    return Verify(monkeypatch, capsys)
