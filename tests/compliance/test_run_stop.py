"""How a run's log ends: with one run_stop that is true, on every way out; and what cannot be written is an error."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mlperf_log_utils import RunLog, close_log
from tests.support.run_logs import keys_of, only, release

HERE = "tests/compliance/test_run_stop.py"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("loss is nan"), "ValueError: loss is nan"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (SystemExit(3), "SystemExit: 3"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_an_exception_stops_the_run_once_as_aborted_though_the_target_was_reached(
    tmp_path: Path, error: BaseException, reason: str
) -> None:
    path = tmp_path / "log"

    def run() -> None:
        with RunLog(path).run_phase(eval_samples=1) as outcome:
            outcome.reached = True
            raise error

    with pytest.raises(type(error)):
        run()
    metadata = only(path, "run_stop")["metadata"]
    assert metadata["status"] == "aborted"
    assert metadata["reason"].startswith(reason)


def test_a_run_that_reached_nothing_is_aborted_with_its_reason(tmp_path: Path) -> None:
    with RunLog(tmp_path / "log").run_phase(eval_samples=1) as outcome:
        outcome.accuracies.append(0.99)
    metadata = only(tmp_path / "log", "run_stop")["metadata"]
    assert (metadata["status"], metadata["reason"]) == ("aborted", "target not reached")


def test_a_success_has_no_reason(full_log: Path) -> None:
    assert "reason" not in only(full_log, "run_stop")["metadata"]


def test_abort_from_a_thread_stops_the_run_once_though_the_target_was_reached(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = RunLog(path)
    with log.run_phase(eval_samples=1) as outcome:
        outcome.reached = True
        thread = threading.Thread(target=lambda: log.abort("SIGTERM"))
        thread.start()
        thread.join()
        log.abort("SIGINT")
    metadata = only(path, "run_stop")["metadata"]
    assert (metadata["status"], metadata["reason"], metadata["file"]) == ("aborted", "SIGTERM", HERE)
    assert keys_of(path)[-1] == "run_stop"


def test_abort_and_the_runs_own_end_at_once_write_one_run_stop_and_whole_lines(tmp_path: Path) -> None:
    for number in range(30):
        path = tmp_path / f"log_{number}"
        log, gate = RunLog(path), threading.Barrier(2)

        def abort(log: RunLog = log, gate: threading.Barrier = gate) -> None:
            gate.wait()
            log.abort("SIGTERM")

        thread = threading.Thread(target=abort)
        thread.start()
        with log.run_phase(eval_samples=1) as outcome:
            outcome.reached = True
            gate.wait()
            log.event("tracked_stats", {"x": 1})
        thread.join()
        assert keys_of(path).count("run_stop") == 1


def test_abort_outside_a_run_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = RunLog(path)
    with log.init_phase():
        log.abort("SIGTERM")
    with log.run_phase(eval_samples=1):
        pass
    log.abort("SIGTERM")
    assert keys_of(path).count("run_stop") == 1


def test_an_exception_in_init_leaves_no_log(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log")
    with pytest.raises(ValueError, match="boo"), log.init_phase():
        raise ValueError("boo")
    assert not (tmp_path / "log").exists()


def test_a_log_that_holds_records_is_refused_and_an_empty_file_is_taken(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    log = RunLog(tmp_path / "log")
    log.event("seed", 1)
    release(log)
    with pytest.raises(FileExistsError):
        RunLog(tmp_path / "log")
    assert keys_of(tmp_path / "log") == ["seed"]


def test_a_log_that_is_being_written_is_refused_and_not_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlperf_log_utils._LAST_WORDS_S", 0.2)
    log = RunLog(tmp_path / "log")
    with pytest.raises(FileExistsError):
        RunLog(tmp_path / "log")
    log._emit("start", "run_start")
    with pytest.raises(FileExistsError):
        close_log(tmp_path / "log")
    assert keys_of(tmp_path / "log") == ["run_start"]


# --- what cannot be written is an error


def test_a_record_that_the_disk_refuses_raises_and_names_the_file() -> None:
    log = RunLog(Path("/dev/full"))
    with pytest.raises(OSError, match=r"No space left on device.*/dev/full"):
        log.event("seed", 1)
    with pytest.raises(OSError, match=r"No space left on device.*/dev/full"), log.run_phase(eval_samples=1):
        pass


def test_a_value_that_json_cannot_hold_raises_instead_of_leaving_the_record_out(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        RunLog(tmp_path / "log").event("seed", object())
    assert keys_of(tmp_path / "log") == []


def test_metadata_that_would_hide_the_place_of_the_call_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="file"):
        RunLog(tmp_path / "log").event("seed", 1, file="elsewhere")
