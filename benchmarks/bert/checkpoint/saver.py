"""A trainer after a step in, a checkpoint on disk out, while the loop goes on.

The loop copies its state to host memory; one thread of each rank writes its own file, and rank 0's thread, once every
rank's file is there, the manifest, and gives the whole its name. Ranks meet in the folder alone: no collective.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.bert.checkpoint.resume import Start
from benchmarks.bert.checkpoint.state import copy_to_host
from benchmarks.bert.checkpoint.store import (
    REPLICATED,
    CheckpointError,
    Manifest,
    code_sha256,
    folder_of,
    partial_of,
    publish,
    rank_file,
    remove,
    share_file,
    sync,
    write_manifest,
)
from benchmarks.bert.complaint import describe
from benchmarks.bert.config import Config
from benchmarks.bert.files import atomic_write, sha256_of
from benchmarks.bert.trainer import Trainer
from benchmarks.bert.world import World

_LOOK_EVERY_S = 0.05


class Checkpoints(Protocol):
    def after(self, step: int, accuracies: list[float]) -> None:
        """Take a checkpoint if one is due; call it after each step's evaluation."""

    def finish(self) -> None:
        """Wait until the last one is on disk."""


class NoCheckpoints:
    def after(self, step: int, accuracies: list[float]) -> None: ...

    def finish(self) -> None: ...


class Saver:
    def __init__(
        self,
        config: Config,
        trainer: Trainer,
        world: World,
        kind: Manifest,
        run_id: str,
        earlier: Sequence[Path],
    ) -> None:
        """`kind` is a manifest without position and files; `earlier` are this run's checkpoints, the newest first.

        `run_id` is the same on every rank and no other run's.
        """
        self._directory = config.checkpoint_dir
        self._interval_steps = config.checkpoint_interval_steps
        self._num_kept = config.checkpoint_keep
        self._patience_s = config.collective_timeout_s / 2  # meanwhile the others may wait in a collective
        self._trainer = trainer
        self._world = world
        self._kind = kind
        self._run_id = run_id
        self._kept = list(reversed(earlier))
        self._live = {rank_file(world.rank): trainer.random.tensors}  # by file, what goes into it
        self._files_of_ranks = [REPLICATED, *(rank_file(rank) for rank in range(world.num_ranks))]
        if world.is_main:
            self._live[REPLICATED] = trainer.tensors
        if config.shard_optimizer:
            self._live[share_file(world.rank)] = trainer.own_tensors
            self._files_of_ranks += [share_file(rank) for rank in range(world.num_ranks)]
        self._files: dict[str, dict[str, Tensor]] = {name: {} for name in self._live}  # copies on the host
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def after(self, step: int, accuracies: list[float]) -> None:
        if step % self._interval_steps:
            return
        self.finish()
        for name, tensors in self._live.items():
            copy_to_host(tensors(), self._files[name])
        copied = None
        if self._trainer.device.type == "cuda":
            copied = torch.cuda.Event()
            copied.record()
        manifest = replace(self._kind, step=step, accuracies=tuple(accuracies))
        self._writing = self._writer.submit(self._write, manifest, copied)

    def finish(self) -> None:
        """A checkpoint that failed is said and left out; the run does not depend on it."""
        if self._writing is None:
            return
        try:
            self._writing.result()
        except (OSError, SafetensorError, CheckpointError) as error:
            print(f"warning: rank {self._world.rank}: no checkpoint: {describe(error)}", file=sys.stderr, flush=True)
        self._writing = None

    def _write(self, manifest: Manifest, copied: torch.cuda.Event | None) -> None:
        if copied is not None:
            copied.synchronize()
        partial = partial_of(self._directory, manifest.step, self._run_id)
        try:
            partial.mkdir(exist_ok=True)
            for name, tensors in self._files.items():
                _write_part(partial / name, tensors)
            if self._world.is_main:
                self._publish(partial, manifest)
        finally:
            if self._world.is_main:
                shutil.rmtree(partial, ignore_errors=True)  # of one that failed

    def _publish(self, partial: Path, manifest: Manifest) -> None:
        deadline = time.monotonic() + self._patience_s
        parts = {name: _read_part(partial / name, deadline) for name in self._files_of_ranks}
        for name in parts:
            _receipt(partial / name).unlink()
        write_manifest(partial, replace(manifest, files=parts))
        folder = folder_of(self._directory, manifest.step)
        publish(partial, folder, self._run_id)
        self._kept.append(folder)
        while len(self._kept) > self._num_kept:
            remove(self._kept.pop(0))


def keep_checkpoints(
    config: Config, trainer: Trainer, world: World, start: Start, identity: Mapping[str, Any], seed: int
) -> Checkpoints:
    """What the loop calls after each step; collective."""
    if not config.checkpoint_interval_steps:
        return NoCheckpoints()
    run_id = [uuid.uuid4().hex[:8]]
    dist.broadcast_object_list(run_id, src=0)
    return Saver(config, trainer, world, Manifest(0, seed, (), identity, code=code_sha256()), run_id[0], start.usable)


def _receipt(path: Path) -> Path:
    """The small file beside a part that says that it is whole."""
    return path.with_suffix(".json")


def _write_part(path: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, path)
    path.chmod(0o644)  # the library leaves it to the owner alone
    sync(path)
    with atomic_write(_receipt(path)) as temporary:
        temporary.write_text(json.dumps([os.path.getsize(path), sha256_of(path)]), "utf-8")


def _read_part(path: Path, deadline: float) -> tuple[int, str]:
    """Size and sha256 of a part, once its writer says that it is whole."""
    receipt = _receipt(path)
    while not receipt.exists():
        if not path.parent.exists():
            raise CheckpointError(f"{path.parent}: vanished while it was written")
        if time.monotonic() > deadline:
            raise CheckpointError(f"{path} was not written in time; that rank may be gone or the disk slow")
        time.sleep(_LOOK_EVERY_S)
    size, sha256 = json.loads(receipt.read_text("utf-8"))
    return size, sha256
