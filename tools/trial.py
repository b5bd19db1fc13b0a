"""Variables and a folder in, what one run of them came to out; a finished log is read, not run again.

The run is one process without a launcher: a configuration of several ranks becomes as many virtual ranks. All that is
known of it afterwards is in its log.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from benchmarks.bert.complaint import REFUSED
from benchmarks.bert.config import VARIABLES, Config, ConfigError, exports_in, load
from benchmarks.bert.data.plan import STRATEGIES
from benchmarks.bert.files import atomic_write
from benchmarks.bert.names import nearest
from benchmarks.bert.prepare.lock import FolderError, only_writer
from benchmarks.bert.world import LAUNCHERS
from tools.verify.log import Log, UnreadableLogError, milliseconds, read_log

ROOT = Path(__file__).resolve().parents[1]
LOG, ERRORS, PRUNED, PROFILE = "result.txt", "errors.txt", "pruned.txt", "profile"
_POLL_S = 0.2
_GRACE_S = 30.0  # above what a run takes to end its log after SIGTERM
# What each trial sets itself: all that it writes lies in its folder, and what was killed begins anew.
_IN_ITS_FOLDER = {"RESULT_FILE": LOG, "CHECKPOINT_DIR": "checkpoints", "PROFILE_DIR": PROFILE}
_ALWAYS = {"CHECKPOINT_INTERVAL_STEPS": "0", "RESUME": "no"}
OWN = {*_IN_ITS_FOLDER, *_ALWAYS}
_NOT_REACHED = "not reached within MAX_STEPS"  # what train.py gives as its reason

Evaluations = tuple[tuple[int, float], ...]  # samples trained on, masked-LM accuracy
Stop = Callable[[Evaluations], str]  # the evaluations so far in, why to stop out; empty to go on


class TrialError(RuntimeError):
    """A run broke, or its folder holds something else; the message names the file."""


class RefusedTrialError(TrialError):
    """The configuration or the data were refused before the run began; the message is the refusal."""


class OutOfTimeError(TrialError):
    """The deadline came first; what the run had done is not kept."""


@dataclass(frozen=True)
class Trial:
    reached: bool  # the target
    samples: int | None  # to the target
    evaluations: Evaluations
    seconds: float  # from run_start to run_stop
    reason: str  # why it ended
    pruned: bool = False

    @property
    def best_accuracy(self) -> float:
        return max((accuracy for _, accuracy in self.evaluations), default=0.0)

    @property
    def rank(self) -> tuple[int, float]:
        """The less, the better: those that reached the target by their samples, then the others by their accuracy."""
        return (0, float(self.samples)) if self.samples is not None else (1, -self.best_accuracy)


def never(evaluations: Evaluations) -> str:
    """The `Stop` of a run that takes its course."""
    return ""


def run_trial(
    variables: Mapping[str, str],
    folder: Path,
    *,
    threads: int = 1,
    stop: Stop = never,
    deadline: float = math.inf,
    cancelled: Callable[[], bool] = lambda: False,
) -> Trial:
    """Run `variables` as one process with its log in `folder`, or read the log of such a run that is there.

    A run that `stop` ends is pruned, also when it is read again; one that misses the target within MAX_STEPS is no
    error. What a killed run left is set aside and the run starts again. `deadline` is a time of `time.monotonic`;
    `cancelled` is asked a few times a second whether to end the run.
    Raises RefusedTrialError, OutOfTimeError, and TrialError for a run that broke or was cancelled, or a folder of
    another configuration.
    """
    folder = folder.resolve()
    ours = as_one_process(variables) | _ALWAYS | {name: str(folder / part) for name, part in _IN_ITS_FOLDER.items()}
    config = checked(ours)
    if (known := read_trial(folder, config)) is not None:
        return known
    _check_may_go_on(folder, deadline, cancelled)
    folder.mkdir(parents=True, exist_ok=True)
    _set_aside(folder)
    with open(folder / ERRORS, "wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bert.train"],
            cwd=ROOT,
            env=_environment(ours, threads),
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
        )
        try:
            status = _watch(process, folder, stop, lambda: _check_may_go_on(folder, deadline, cancelled))
        finally:
            _end(process)
    if status == REFUSED:
        raise RefusedTrialError(_said(folder))
    if (trial := read_trial(folder, config)) is None:
        raise TrialError(f"{folder / ERRORS}: the run ended with status {status}: {_said(folder)}")
    return trial


def checked(variables: Mapping[str, str], path: Path | None = None) -> Config:
    """The configuration of these variables alone, or on a file's. Raises RefusedTrialError with every problem."""
    for name in variables:
        if name not in VARIABLES:
            raise RefusedTrialError(
                f"{name}: unknown variable; the nearest valid one is {nearest(name, VARIABLES, always=True)}"
            )
    try:
        return load({**variables, "CONFIG": str(path)} if path else variables)
    except ConfigError as error:
        raise RefusedTrialError(str(error)) from error


def exports_of(path: Path) -> dict[str, str]:
    """What a configuration file sets, as it stands there: a 0 that means another value goes on meaning it.

    Raises RefusedTrialError.
    """
    checked({}, path)
    return exports_in(path)


def as_one_process(variables: Mapping[str, str]) -> dict[str, str]:
    """The same run on one process that acts as all the ranks, of one node. Raises RefusedTrialError."""
    config = checked(variables)
    ranks = config.num_nodes * config.ranks_per_node * config.virtual_ranks
    if config.num_nodes > 1 and not STRATEGIES[config.loading].promises.any_nodes:
        raise RefusedTrialError(
            f"LOADING={config.loading} draws other samples on one node, as which a trial runs, than on NUM_NODES="
            f"{config.num_nodes}; use LOADING=stratified_presort, or NUM_NODES=1"
        )
    one = {**variables, "NUM_NODES": "1", "RANKS_PER_NODE": "1", "VIRTUAL_RANKS": str(ranks)}
    try:
        checked(one)
    except RefusedTrialError as error:
        raise RefusedTrialError(f"as one process, VIRTUAL_RANKS={ranks}: {error}") from error
    return one


def read_trial(folder: Path, config: Config) -> Trial | None:
    """What the log in `folder` says of a run that ended by itself or was pruned; None for any other, or none at all.

    Raises TrialError for a run of another configuration, and for a log that cannot be read.
    """
    path = folder / LOG
    if not path.exists() or not path.stat().st_size:
        return None
    log = _readable(path)
    _check_same(log, config)
    stopped = log.first("run_stop")
    reason = str((stopped and stopped.meta("reason")) or "")
    reached = stopped is not None and stopped.meta("status") == "success"
    pruned = not reached and _NOT_REACHED not in reason and (folder / PRUNED).exists()
    if not reached and not pruned and _NOT_REACHED not in reason:
        return None
    evaluations = _evaluations(log)
    return Trial(
        reached=reached,
        samples=evaluations[-1][0] if reached else None,
        evaluations=evaluations,
        seconds=_seconds(log),
        reason="target reached" if reached else (folder / PRUNED).read_text("utf-8") if pruned else reason,
        pruned=pruned,
    )


@contextmanager
def only_user(folder: Path) -> Iterator[None]:
    """Make `folder` and hold its lock, which ends with the process. Raises TrialError where another one holds it."""
    try:
        with only_writer(folder, busy="another process works there", instead="another folder"):
            yield
    except FolderError as error:
        raise TrialError(str(error)) from error


def _readable(path: Path) -> Log:
    try:
        return read_log(path)
    except UnreadableLogError as error:
        raise TrialError(f"{error}; move it away, and its run starts again") from error


def _check_same(log: Log, config: Config) -> None:
    logged = log.value("configuration") or {}  # absent where the run was killed before it came to that
    for name, entry in config.resolved().items():
        if name not in OWN and name in logged and logged[name]["value"] != entry["value"]:
            raise TrialError(
                f"{log.path}: a run with {name}={logged[name]['value']}, not {entry['value']}; choose another folder"
            )


def _evaluations(log: Log) -> Evaluations:
    return tuple((int(record.meta("samples_count")), float(record.value)) for record in log.evaluations)


def _seconds(log: Log) -> float:
    start = milliseconds(log.first("run_start"))
    stop = milliseconds(log.last)  # of a run that was killed while it was pruned, its last record
    return (stop - start) / 1000 if start is not None and stop is not None else 0.0


def _environment(variables: Mapping[str, str], threads: int) -> dict[str, str]:
    """This process's, without what would configure another run."""
    foreign = {*VARIABLES, *LAUNCHERS, "MASTER_ADDR", "MASTER_PORT", "CONFIG"}
    kept = {name: value for name, value in os.environ.items() if name not in foreign}
    return kept | {"OMP_NUM_THREADS": str(threads), **variables}


def _set_aside(folder: Path) -> None:
    """A killed run's log and traces get free names; a mark without a log means nothing."""
    (folder / PRUNED).unlink(missing_ok=True)
    number = next(number for number in count(1) if not any(folder.glob(f"killed_{number}[._]*")))
    for name, free in ((LOG, f"killed_{number}.txt"), (PROFILE, f"killed_{number}_{PROFILE}")):
        if (folder / name).exists():
            (folder / name).rename(folder / free)


def _check_may_go_on(folder: Path, deadline: float, cancelled: Callable[[], bool]) -> None:
    if cancelled():
        raise TrialError(f"{folder}: not run to its end, what it belongs to ends")
    if time.monotonic() >= deadline:
        raise OutOfTimeError(f"{folder}: not run to its end, no time is left")


def _watch(process: subprocess.Popen[bytes], folder: Path, stop: Stop, check: Callable[[], None]) -> int:
    """Until the run ends, is told to by `stop`, or `check` raises; its exit status."""
    num_seen = 0
    while True:
        try:
            return process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            check()
        evaluations = _evaluations(_readable(folder / LOG)) if (folder / LOG).exists() else ()
        if len(evaluations) > num_seen and (why := stop(evaluations)):
            with atomic_write(folder / PRUNED) as mark:  # before the signal: after a kill in between it still counts
                mark.write_text(why, "utf-8")
            return _end(process)
        num_seen = len(evaluations)


def _end(process: subprocess.Popen[bytes]) -> int:
    process.terminate()
    try:
        return process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _said(folder: Path) -> str:
    """The errors that the run complained of, else its last line."""
    lines = (folder / ERRORS).read_text("utf-8", "replace").splitlines()
    complaints = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return "\n".join(complaints or lines[-1:]) or "it said nothing"
