"""A log whose writer was killed, closed by another process: aborted, once, and nothing else touched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mlperf_log_utils import RunLog, close_log
from tests.support.run_logs import keys_of, only, release, write_log_that_speaks_of_run_stop
from tests.support.tiny import ROOT


def open_run(path: Path) -> RunLog:
    log = RunLog(path)
    log._emit("start", "run_start")
    return log


def test_a_killed_writers_log_gets_its_run_stop_aborted_and_only_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    release(open_run(path))
    assert close_log(path)
    assert not close_log(path)
    assert keys_of(path) == ["run_start", "run_stop"]
    metadata = only(path, "run_stop")["metadata"]
    assert metadata["status"] == "aborted"
    assert "killed" in metadata["reason"]


@pytest.mark.parametrize("cut", [1, 30, 100])
def test_a_log_that_was_killed_inside_a_record_keeps_the_torn_line_apart_and_is_closed_once(
    tmp_path: Path, cut: int
) -> None:
    path = tmp_path / "log"
    log = open_run(path)
    log.event("tracked_stats", {"skipped_steps": 0})
    release(log)
    whole = path.read_text()
    path.write_text(whole[:-cut])
    assert close_log(path)
    assert not close_log(path)
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    assert json.loads(lines[2].removeprefix(":::MLLOG "))["key"] == "run_stop"


def test_a_closed_or_never_started_log_is_left_as_it_is(full_log: Path, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(full_log.read_bytes())
    assert not close_log(path)
    assert path.read_bytes() == full_log.read_bytes()
    path.write_text("")
    assert not close_log(path)
    assert path.read_bytes() == b""


def test_close_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    release(open_run(path))
    command = [sys.executable, "-m", "mlperf_log_utils", "close", str(path)]
    assert subprocess.run(command, cwd=ROOT, timeout=30).returncode == 0
    assert keys_of(path) == ["run_start", "run_stop"]
    usage = subprocess.run(command[:-1], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert usage.returncode != 0
    assert "usage" in usage.stderr


def test_a_text_that_looks_like_a_run_stop_closes_nothing(tmp_path: Path) -> None:
    """Known fault 87: only a record's key says what it is."""
    path = tmp_path / "log"
    write_log_that_speaks_of_run_stop(path)
    assert close_log(path)
    assert keys_of(path) == ["configuration", "run_start", "tracked_stats", "run_stop"]
