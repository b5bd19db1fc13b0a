"""The only door to `mllog`: run events in, an MLPerf result log out.

Phases are context managers, so that no exit path can forget a stop event. The file and line recorded are those of
the code that opened the phase or logged the event, not of this module.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import inspect
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlperf_logging.mllog import constants
from mlperf_logging.mllog.mllog import MLLogger

_ROOT = re.escape(str(Path(__file__).resolve().parent))  # mllog takes the prefix to trim as a regular expression
_LAST_WORDS_S = 10.0  # above the time that a dying writer takes (benchmarks/bert/shutdown.py)
_OWN_FILES = {__file__, contextlib.__file__}


@dataclass
class Outcome:
    """What a run has come to so far; the loop writes it, the log's end reads it."""

    samples: int = 0  # trained on, as of the last evaluation
    accuracies: list[float] = field(default_factory=list)  # of the evaluations so far
    reached: bool = False  # the target
    reason: str = "target not reached"  # why the run ends without it
    invalid: str = ""  # why it is no result, whatever it reaches

    @property
    def is_result(self) -> bool:
        return self.reached and not self.invalid

    @property
    def why_not(self) -> str:
        return "; ".join(why for why in (self.invalid, "" if self.reached else self.reason) if why)

    @property
    def status(self) -> str:
        return constants.SUCCESS if self.is_result else constants.ABORTED


class RunLog:
    """One run's log.

    With `path=None`, as on every rank but the first, it writes nothing and costs nothing.
    """

    def __init__(self, path: Path | None) -> None:
        """Raises FileExistsError where `path` holds anything or another process writes it; an empty file is free."""
        self._file = _ResultFile(path) if path is not None else None
        if self._file and self._file.holds_records:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        self._lock = threading.RLock()
        self._running: Outcome | None = None  # between run_start and run_stop

    def event(self, key: str, value: Any = None, **metadata: Any) -> None:
        """A point in time."""
        self._emit("event", key, value, metadata)

    @contextlib.contextmanager
    def init_phase(self) -> Iterator[None]:
        """init_start … init_stop. An exception removes the log: no run began, so there is no result to keep."""
        self._emit("start", constants.INIT_START)
        try:
            yield
        except BaseException:
            if self._file:
                self._file.remove()
            raise
        self._emit("end", constants.INIT_STOP)

    @contextlib.contextmanager
    def run_phase(self, *, eval_samples: int) -> Iterator[Outcome]:
        """run_start … run_stop, whatever happens in between; success is what the outcome says, never assumed."""
        outcome = Outcome()
        self._emit("start", constants.RUN_START)
        self._running = outcome
        block = {constants.FIRST_EPOCH_NUM: 1, constants.EPOCH_COUNT: 1}
        self._emit("start", constants.BLOCK_START, metadata=block)
        try:
            yield outcome
        except BaseException as error:
            outcome.reached = False
            outcome.reason = f"{type(error).__name__}: {error}"
            raise
        finally:
            with self._lock:
                if self._running is not None:
                    self._emit("end", constants.BLOCK_STOP, metadata={constants.FIRST_EPOCH_NUM: 1})
                    self.event("train_samples", outcome.samples)
                    self.event(constants.EVAL_SAMPLES, eval_samples)
                    self._stop_run(outcome)

    @contextlib.contextmanager
    def evaluation(self, samples: int) -> Iterator[None]:
        """eval_start … eval_stop; `samples` trained on so far stand for the epoch, as BERT's rules have it."""
        at = {constants.EPOCH_NUM: samples, constants.SAMPLES_COUNT: samples}
        self._emit("start", constants.EVAL_START, metadata=at)
        try:
            yield
        finally:
            self._emit("end", constants.EVAL_STOP, metadata=at)

    def accuracy(self, value: float, samples: int) -> None:
        at = {constants.EPOCH_NUM: samples, constants.SAMPLES_COUNT: samples}
        self._emit("event", constants.EVAL_ACCURACY, value, at)

    def abort(self, reason: str) -> None:
        """End an open run as aborted, from any thread: for a process whose main thread cannot be reached."""
        if not self._lock.acquire(timeout=1):  # the main thread hangs in writing a record
            return
        try:
            if self._running is not None:
                self._running.reached = False
                self._running.reason = reason
                self._stop_run(self._running)
        finally:
            self._lock.release()

    def _stop_run(self, outcome: Outcome) -> None:
        self._running = None
        metadata = {"status": outcome.status} | ({} if outcome.is_result else {"reason": outcome.why_not})
        self._emit("end", constants.RUN_STOP, metadata=metadata)
        if self._file:
            self._file.finish()
            self._file = None

    def _emit(self, kind: str, key: str, value: Any = None, metadata: dict[str, Any] | None = None) -> None:
        with self._lock:
            if self._file:
                getattr(self._file.mllogger, kind)(key, value, metadata or {}, stack_offset=1 + _frames_to_caller())


def _frames_to_caller() -> int:
    """How many frames lie between `_emit` and the first one outside this module and contextlib."""
    frames = inspect.stack(context=0)[1:]
    return next((depth for depth, frame in enumerate(frames) if frame.filename not in _OWN_FILES), len(frames) - 1)


class _ResultFile(logging.Handler):
    """A file of whole lines that raises when it cannot take one (mllog's own handlers would drop it in silence)."""

    def __init__(self, path: Path, wait_s: float = 0.0) -> None:
        """`wait_s` is for how long to wait for another writer to end."""
        super().__init__()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:  # the folder is a file; for `path` itself this error says that it exists
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path.parent)) from error
        self._path = path
        self._stream = open(path, "ab", buffering=0)  # noqa: SIM115 - open as long as the run
        deadline = time.monotonic() + wait_s
        while not self._lock():
            if time.monotonic() >= deadline:
                raise FileExistsError(errno.EEXIST, "another process is writing it", str(path))
            time.sleep(0.1)
        logger = logging.Logger(str(path), logging.INFO)
        logger.addHandler(self)
        self.mllogger = MLLogger(logger, root_dir=_ROOT)

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno > logging.INFO:  # mllog's own complaint, in place of the record that it could not write
            raise sys.exception() or ValueError(record.getMessage())
        line = f"{record.getMessage()}\n".encode()
        try:
            written = self._stream.write(line)
            if written != len(line):  # the disk is full: leave no half record, and let the next write say so
                os.truncate(self._path, os.path.getsize(self._path) - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def _lock(self) -> bool:
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    @property
    def holds_records(self) -> bool:
        return os.path.getsize(self._path) > 0

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)

    def finish(self) -> None:
        """Put it on the disk and let it go."""
        os.fsync(self._stream.fileno())
        self._stream.close()


def close_log(path: Path) -> bool:
    """End a log whose writer was killed: append run_stop, aborted, to a run that has none. Tells whether it did.

    Raises FileExistsError where the writer still lives after a few seconds.
    """
    with open(path, encoding="latin-1") as file:
        lines = file.readlines()
    keys = [_key(line) for line in lines]
    if constants.RUN_START not in keys or constants.RUN_STOP in keys:
        return False
    log = RunLog(None)
    log._file = _ResultFile(path, wait_s=_LAST_WORDS_S)
    if not lines[-1].endswith("\n"):  # killed inside a record
        with open(path, "ab") as file:
            file.write(b"\n")
    log._stop_run(Outcome(reason="the process that wrote this log was killed"))
    return True


def _key(line: str) -> str | None:
    """The key of an MLLOG line, None for any other line: a record cut short has none."""
    try:
        return json.loads(line.partition(":::MLLOG ")[2])["key"]
    except (ValueError, KeyError, TypeError):
        return None


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "close":
        sys.exit("usage: python -m mlperf_log_utils close LOG")
    try:
        close_log(Path(sys.argv[2]))
    except OSError as error:
        sys.exit(f"error: {sys.argv[2]}: {error.strerror}")
