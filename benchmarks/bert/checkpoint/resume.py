"""A folder of checkpoints in, the newest that this run can go on from out; the same one on every rank."""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.bert.checkpoint.state import check_fit, forms_on_all_ranks, read_tensors, spread
from benchmarks.bert.checkpoint.store import (
    REPLICATED,
    CheckpointError,
    Manifest,
    check_file,
    checkpoints_in,
    code_sha256,
    files_of_all,
    lock,
    rank_file,
    read_manifest,
)
from benchmarks.bert.config import Config
from benchmarks.bert.data.manifest import Manifest as DataManifest
from benchmarks.bert.data.plan import STRATEGIES
from benchmarks.bert.random_states import drawn
from benchmarks.bert.trainer import Trainer
from benchmarks.bert.world import World
from mlperf_log_utils import Outcome, RunLog

_SEEN_WITHIN_S = 5


def identity_of(config: Config, training: DataManifest, device: torch.device) -> dict[str, Any]:
    """All that the numbers of a step depend on beside its state: another value of any of them, another run."""
    processor = torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else torch.cuda.get_device_name(device)
    return config.of_steps() | {
        "GLOBAL_BATCH": str(config.global_batch),
        "training data": hashlib.sha256(json.dumps(asdict(training)).encode()).hexdigest(),
        "torch": torch.__version__,
        "numpy": np.__version__,  # whose generators draw the order of samples
        "processor": processor,
        "threads": torch.get_num_threads(),  # which sums are cut by
    }


def not_compared(config: Config) -> frozenset[str]:
    """What of the identity may be another, with RESUME_WORLD=any: how a global batch is shared out.

    The number of nodes only where the samples of a step do not depend on it.
    """
    if config.resume_world == "same":
        return frozenset({"GLOBAL_BATCH"})  # which follows from the others
    of_nodes = {"NUM_NODES"} if STRATEGIES[config.loading].promises.any_nodes else set()
    of_ranks = {"RANKS_PER_NODE", "VIRTUAL_RANKS", "BATCH_SIZE", "GRADIENT_ACCUMULATION_STEPS", "threads"}
    return frozenset(of_ranks | of_nodes)


@dataclass(frozen=True)
class Start:
    """Where training begins: a checkpoint, or step 0."""

    step: int = 0
    accuracies: tuple[float, ...] = ()
    seed: int | None = None
    folder: Path | None = None
    usable: tuple[Path, ...] = ()  # this run's checkpoints, the newest first
    has_own_file: bool = True  # whether a process like this one was there when the checkpoint was made

    def restore(self, trainer: Trainer, world: World) -> None:
        """Put the checkpoint's state into a warmed-up trainer: weights, moments, loss scale and random states."""
        if self.folder is None:
            return
        if self.has_own_file:
            own = read_tensors(self.folder / rank_file(world.rank))
        else:
            own = drawn(trainer.device, self.seed or 0, self.step, trainer.random.ranks)
        check_fit(self.folder, own, trainer.random.tensors())
        live = trainer.tensors() | trainer.own_tensors()
        forms = forms_on_all_ranks(live)
        kept: dict[str, Tensor] = {}
        if world.is_main:
            for name in files_of_all(read_manifest(self.folder)):
                kept |= read_tensors(self.folder / name)
            check_fit(self.folder, kept, forms)
        dist.barrier()  # nobody's state changes before every rank's file is known to fit
        spread(forms, live, kept, trainer.device)
        trainer.random.restore(own)

    def announce(self, log: RunLog, outcome: Outcome, config: Config, trainer: Trainer) -> None:
        """What is known of the run so far; and that one which begins with trained weights is no result."""
        outcome.accuracies.extend(self.accuracies)
        outcome.samples = (self.step - int(trainer.skipped_steps)) * config.global_batch
        if self.folder is not None:
            log.event("tracked_stats", {"resumed_from_step": self.step})
            outcome.invalid = f"resumed from step {self.step}: not one whole execution, so not a result"
        elif (config.initial_checkpoint / REPLICATED).is_file():
            outcome.invalid = (
                f"INITIAL_CHECKPOINT={config.initial_checkpoint} is a trained one, so this is not a result"
            )


def find_start(config: Config, identity: Mapping[str, Any], world: World, say: Callable[[str], None]) -> Start:
    """The newest checkpoint that is whole and of this very run; collective.

    Each one that cannot be used is named with its reason. Raises CheckpointError where another run holds the folder,
    where RESUME=no and it holds any, and where there are some, or RESUME=yes, and none can be used.
    """
    if not config.keeps_checkpoints:
        return Start()
    directory = config.checkpoint_dir
    folders = _take(directory, world)
    if config.resume == "no":
        if folders:
            raise CheckpointError(
                f"CHECKPOINT_DIR={directory}: holds checkpoints of an earlier run, the newest {folders[0].name}; "
                "RESUME=yes continues that run, another folder keeps both"
            )
        return Start()
    ignored = not_compared(config)
    for at, folder in enumerate(folders):
        manifest, reason = _judge(folder, identity, config.seed, world, ignored)
        reasons: list[str | None] = [None] * world.num_ranks
        dist.all_gather_object(reasons, reason)
        refusals = [each for each in reasons if each]
        if not refusals and manifest:
            older = (each for each in folders[at + 1 :] if not _why_not(each, identity, manifest.seed, ignored))
            if manifest.step >= config.max_steps:
                raise CheckpointError(
                    f"{folder}: MAX_STEPS={config.max_steps} are done; raise it (and set DECAY_STEPS to what it was) "
                    "to go on"
                )
            say(f"resuming from {folder}")
            if manifest.code != code_sha256():
                say("warning: the code of this project has changed since; the steps may be others than before")
            if others := [
                name for name in sorted(ignored - {"GLOBAL_BATCH"}) if manifest.identity.get(name) != identity.get(name)
            ]:
                say(f"warning: not bit for bit the run that it was: its {', '.join(others)} was another")
            is_there = _has_own_file(manifest, identity, world)
            return Start(manifest.step, manifest.accuracies, manifest.seed, folder, (folder, *older), is_there)
        say(f"not resuming from {folder.name}: {refusals[0]}")
    if folders or config.resume == "yes":
        raise CheckpointError(
            f"CHECKPOINT_DIR={directory}: RESUME={config.resume}, but of {len(folders)} checkpoints there none can be "
            "used; name another folder, or RESUME=no and an empty one to start afresh"
        )
    return Start()


def _take(directory: Path, world: World) -> list[Path]:
    """Rank 0 locks the folder; its checkpoints, or its refusal, on every rank."""
    taken: list[Any] = [None]
    if world.is_main:
        try:
            lock(directory)
            taken = [checkpoints_in(directory)]
        except CheckpointError as error:
            taken = [error]
    dist.broadcast_object_list(taken, src=0)
    if isinstance(taken[0], CheckpointError):
        raise taken[0]
    _check_shared(directory, world)
    return taken[0]


def _check_shared(directory: Path, world: World) -> None:
    """Raise CheckpointError, on every rank, where some rank sees another folder than rank 0; collective."""
    token = [f".seen-by-all.{uuid.uuid4().hex[:8]}"]
    dist.broadcast_object_list(token, src=0)
    path = directory / token[0]
    if world.is_main:
        path.touch()
    dist.barrier()
    seen = [False] * world.num_ranks
    dist.all_gather_object(seen, _appears(path))
    if world.is_main:
        path.unlink()
    if blind := [rank for rank, sees in enumerate(seen) if not sees]:
        raise CheckpointError(
            f"CHECKPOINT_DIR={directory}: ranks {blind} see another folder there than rank 0; name one that all nodes "
            "share"
        )


def _appears(path: Path) -> bool:
    """Whether a file is seen soon: a network file system may take its time."""
    deadline = time.monotonic() + _SEEN_WITHIN_S
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _judge(
    folder: Path, identity: Mapping[str, Any], seed: int, world: World, ignored: frozenset[str]
) -> tuple[Manifest | None, str | None]:
    """The manifest, and why this rank cannot go on from there, or None."""
    if reason := _why_not(folder, identity, seed, ignored):
        return None, reason
    try:
        manifest = read_manifest(folder)
        expects_own = manifest.identity == identity or _has_own_file(manifest, identity, world)
        names = [rank_file(world.rank)] if expects_own else []
        for name in names + (files_of_all(manifest) if world.is_main else []):
            check_file(folder, manifest, name)
    except CheckpointError as error:
        return None, str(error)
    return manifest, None


def _has_own_file(manifest: Manifest, identity: Mapping[str, Any], world: World) -> bool:
    """Whether the random states of just the ranks that this process acts as were kept."""
    same_ranks = manifest.identity.get("VIRTUAL_RANKS") == identity.get("VIRTUAL_RANKS")
    return same_ranks and rank_file(world.rank) in manifest.files


def _why_not(folder: Path, identity: Mapping[str, Any], seed: int, ignored: frozenset[str]) -> str | None:
    """Why a checkpoint is not one of this run, by its manifest; or None."""
    try:
        manifest = read_manifest(folder)
    except CheckpointError as error:
        return str(error)
    then, now = {"SEED": manifest.seed, **manifest.identity}, {"SEED": seed, **identity}
    if seed < 0:  # any: the run goes on with the one that it had
        now["SEED"] = manifest.seed
    differing = [name for name in sorted((then.keys() | now.keys()) - ignored) if then.get(name) != now.get(name)]
    if differing:
        changes = "; ".join(f"{name} was {then.get(name)}, is now {now.get(name)}" for name in differing)
        return f"{folder}: another run's: {changes}"
    return None
