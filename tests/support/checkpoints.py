"""Runs that keep checkpoints, checkpoints altered, and saves that end at each of their file operations."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.bert.checkpoint import saver
from benchmarks.bert.checkpoint.saver import Saver
from benchmarks.bert.checkpoint.store import MANIFEST, Manifest, folder_of, read_manifest
from benchmarks.bert.config import Config
from benchmarks.bert.files import sha256_of
from benchmarks.bert.random_states import RandomStates
from benchmarks.bert.world import World
from tests.support.ranks import run_trial
from tests.support.records import read_records
from tests.support.tiny import tiny_environment

# Wide initial weights give accuracies that differ from one evaluation to the next; six steps are an epoch.
VARIED = {
    "DROPOUT": "0.1",
    "INIT_STD": "0.3",
    "LEARNING_RATE": "3e-3",
    "BATCH_SIZE": "32",
    "EVAL_START_SAMPLES": "128",
    "EVAL_INTERVAL_SAMPLES": "128",
    "TARGET_ACCURACY": "0.99",
    "MAX_STEPS": "12",
    "DECAY_STEPS": "24",
    "CHECKPOINT_KEEP": "9",
}


def trial(
    data: Path,
    folder: Path,
    *,
    name: str = "result.txt",
    num_ranks: int = 2,
    hook: Callable[[], Any] | None = None,
    **changed: str,
) -> list[tuple[int, str, Any]]:
    """A run that keeps every second step's checkpoint in folder/checkpoints and its log in folder/name."""
    keeping = {"CHECKPOINT_DIR": str(folder / "checkpoints"), "CHECKPOINT_INTERVAL_STEPS": "2"}
    changed = VARIED | keeping | {"RANKS_PER_NODE": str(num_ranks)} | changed
    return run_trial([tiny_environment(data, folder / name, **changed)] * num_ranks, hook)


def statuses(ranks: list[tuple[int, str, Any]]) -> list[int]:
    return [status for status, *_ in ranks]


def said(ranks: list[tuple[int, str, Any]]) -> list[str]:
    return [line for _, stderr, _ in ranks for line in stderr.splitlines()]


def errors(ranks: list[tuple[int, str, Any]]) -> list[str]:
    return [line for line in said(ranks) if line.startswith("error:")]


def evaluations(log: Path) -> list[tuple[int, float]]:
    """Samples and accuracy of each."""
    return [(each.metadata["epoch_num"], each.value) for each in read_records(log) if each.key == "eval_accuracy"]


def stop_of(log: Path) -> dict[str, Any]:
    (stop,) = [record.metadata for record in read_records(log) if record.key == "run_stop"]
    return stop


def at_step(directory: Path, step: int) -> Manifest:
    return read_manifest(folder_of(directory, step))


def alter_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    fields = json.loads((folder / MANIFEST).read_text("utf-8"))
    change(fields)
    (folder / MANIFEST).write_text(json.dumps(fields), "utf-8")


def reseal(folder: Path) -> None:
    """Make the manifest say of every file what it is now."""

    def change(fields: dict[str, Any]) -> None:
        fields["files"] = {name: [(folder / name).stat().st_size, sha256_of(folder / name)] for name in fields["files"]}

    alter_manifest(folder, change)


class ToyTrainer:
    """What a saver needs of a trainer; its one tensor is the step."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.value = torch.zeros(1000)
        self.random = RandomStates(self.device, seed=0, ranks=[0])

    def tensors(self) -> dict[str, Tensor]:
        return {"model/value": self.value}

    def own_tensors(self) -> dict[str, Tensor]:
        return {}


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def toy_saver(trainer: ToyTrainer, config: Config, rank: int = 0, num_ranks: int = 1, earlier: Any = ()) -> Saver:
    world = World(rank, num_ranks, rank, num_ranks, None)
    return Saver(config, trainer, world, Manifest(0, 7, (), {"of": "toys"}), "run", earlier)  # type: ignore[arg-type]


def save_step(trainer: ToyTrainer, savers: list[Saver], step: int) -> None:
    """Of all ranks, the last one first: what rank 0 waits for is then there or never comes."""
    trainer.value.fill_(step)
    for each in reversed(savers):
        each.after(step, [step / 100])
        each.finish()


class _Points:
    """The file operations of a save, as Python tells of them before it does them; at the `last` one an end is made."""

    WATCHED = frozenset({"open", "os.mkdir", "os.chmod", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"})

    def __init__(self, last: int, end: Callable[[str], None]) -> None:
        self._last, self._end = last, end
        self._count = 0
        self.armed = False
        self.reached = False
        sys.addaudithook(lambda event, arguments: self._pass(event, arguments) if event in self.WATCHED else None)

    def _pass(self, event: str, arguments: tuple[Any, ...]) -> None:
        self.pass_by(
            f"{event} {Path(os.fsdecode(arguments[0])).name}" if isinstance(arguments[0], str | Path) else event
        )

    def pass_by(self, name: str, last_words: Callable[[], None] = lambda: None) -> None:
        if not self.armed:
            return
        self._count += 1
        if self._count == self._last:
            self.armed, self.reached = False, True
            last_words()
            self._end(name)


def save_up_to_each_point(
    rank: int, folder: Path, how: str, change: Callable[[], None] | None = None
) -> list[tuple[Path, str, bool]]:
    """Two ranks' checkpoint of step 2 over one of step 1, again and again, each ended one file operation later.

    `how` is "dies", at once and with all its threads, or "fails", by the error of a full disk; what failed goes on to
    step 3. Of each: the folder, the operation it did not come to, and whether a warning was printed.
    """
    ends: list[tuple[Path, str, bool]] = []
    while True:
        directory = folder / str(len(ends) + 1)
        directory.mkdir(parents=True)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(os.open(directory / "stderr", os.O_CREAT | os.O_WRONLY), 2)
            _save_up_to(directory, len(ends) + 1, how, change, writing)
        os.close(writing)
        os.waitpid(child, 0)
        with open(reading, encoding="utf-8") as pipe:
            name = pipe.read()
        if not name:
            return ends
        ends.append((directory, name, "warning: rank" in (directory / "stderr").read_text("utf-8")))


def _save_up_to(directory: Path, point: int, how: str, change: Callable[[], None] | None, told: int) -> None:
    def end(name: str) -> None:
        os.write(told, name.encode())
        if how == "dies":
            os._exit(9)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    points = _Points(point, end)
    write = saver.save_file

    def half_written(tensors: dict[str, Tensor], path: Path) -> None:
        points.pass_by(f"before {path.name}")
        write(tensors, path)
        points.pass_by(f"half of {path.name}", lambda: os.truncate(path, path.stat().st_size // 2))

    saver.save_file = half_written
    saver.time = Clock()  # type: ignore[assignment]
    os.fsync = lambda _: None  # what a killed process has written is there; only a machine's end could lose it
    if change:
        change()
    config = Config(checkpoint_dir=directory, checkpoint_interval_steps=1, checkpoint_keep=1, collective_timeout_s=1)
    trainer = ToyTrainer()
    savers = [toy_saver(trainer, config, rank, 2) for rank in range(2)]
    save_step(trainer, savers, 1)
    points.armed = True
    save_step(trainer, savers, 2)
    points.armed = False
    if points.reached:
        save_step(trainer, savers, 3)
    os._exit(0)
