"""A folder of checkpoints: what each holds, which are whole, and that one run at a time writes there.

CHECKPOINT_DIR/step_00001200/manifest.json             written last; names every other file with size and sha256
                             replicated.safetensors    what all ranks hold alike: weights, moments, loss scale
                             rank_00000.safetensors    what is one rank's own: random states
                             share_00000.safetensors   the moments that one rank keeps for all, if they are sharded
CHECKPOINT_DIR/.step_00001800.<run>.partial/           being written by the run of that id
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.bert.files import atomic_write, sha256_of

MANIFEST, REPLICATED = "manifest.json", "replicated.safetensors"
_PACKAGE = Path(__file__).parents[1]
_NAME = re.compile(r"step_(\d{8,})")


class CheckpointError(ValueError):
    """A checkpoint cannot be used, or checkpoints cannot be kept here; the message names the folder and the remedy."""


@dataclass(frozen=True)
class Manifest:
    step: int  # optimizer steps done, those skipped included
    seed: int
    accuracies: tuple[float, ...]  # of the evaluations so far
    identity: Mapping[str, Any]  # what the steps depend on, by name: a run that differs cannot go on from here
    files: Mapping[str, tuple[int, str]] = field(default_factory=dict)  # name -> size in bytes, sha256
    code: str = ""  # what code_sha256 was


def code_sha256() -> str:
    """Of all modules that a run consists of: other code may take other steps."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def rank_file(rank: int) -> str:
    return f"rank_{rank:05d}.safetensors"


def share_file(rank: int) -> str:
    return f"share_{rank:05d}.safetensors"


def files_of_all(manifest: Manifest) -> list[str]:
    """Those that together hold what is no single rank's own: rank 0 reads them for all."""
    return [REPLICATED, *sorted(name for name in manifest.files if name.startswith("share_"))]


def folder_of(directory: Path, step: int) -> Path:
    return directory / f"step_{step:08d}"


def partial_of(directory: Path, step: int, run_id: str) -> Path:
    return directory / f".step_{step:08d}.{run_id}.partial"


def checkpoints_in(directory: Path) -> list[Path]:
    """The newest first, whole or not."""
    if not directory.is_dir():
        return []
    found = ((int(match[1]), path) for path in directory.iterdir() if (match := _NAME.fullmatch(path.name)))
    return [path for _, path in sorted(found, reverse=True)]


def read_manifest(folder: Path) -> Manifest:
    """Raises CheckpointError for what is no whole checkpoint."""
    path = folder / MANIFEST
    try:
        fields = json.loads(path.read_text("utf-8"))
        checked = {
            "step": int(fields["step"]),
            "seed": int(fields["seed"]),
            "accuracies": tuple(float(accuracy) for accuracy in fields["accuracies"]),
            "identity": dict(fields["identity"]),
            "files": {str(name): (int(size), str(sha256)) for name, (size, sha256) in fields["files"].items()},
        }
        return Manifest(**{**fields, **checked})
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder}: no {MANIFEST}, so it was not finished") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{path}: damaged ({error})") from error


def write_manifest(folder: Path, manifest: Manifest) -> None:
    with atomic_write(folder / MANIFEST) as temporary:
        temporary.write_text(json.dumps(asdict(manifest), indent=1) + "\n", "utf-8")


def check_file(folder: Path, manifest: Manifest, name: str) -> None:
    """Raises CheckpointError for a file that is not, byte for byte, the one that was written."""
    try:
        size, sha256 = manifest.files[name]
        found = (folder / name).stat().st_size
        if found != size:
            raise CheckpointError(f"{folder / name}: {found} bytes, {size} were written: torn")
        if sha256_of(folder / name) != sha256:
            raise CheckpointError(f"{folder / name}: its sha256 is not the one written: damaged")
    except KeyError as error:
        raise CheckpointError(f"{folder}: its manifest knows no {name}") from error
    except OSError as error:
        raise CheckpointError(f"{folder / name}: cannot read it ({error.strerror})") from error


def lock(directory: Path) -> int:
    """Take the folder for this process, until it ends; returns the descriptor that holds the lock.

    Raises CheckpointError where another run writes there or it cannot be written. What a killed run left half written
    is removed: with the lock held, nobody is writing it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise CheckpointError(f"CHECKPOINT_DIR={directory}: cannot write there ({error.strerror})") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise CheckpointError(
            f"CHECKPOINT_DIR={directory}: another run keeps its checkpoints there; name another folder"
        ) from error
    except OSError as error:  # a file system without locks
        os.close(descriptor)
        raise CheckpointError(f"CHECKPOINT_DIR={directory}: cannot lock it ({error.strerror})") from error
    for leftover in (*directory.glob(".step_*.partial"), *directory.glob(".step_*.deleting")):
        shutil.rmtree(leftover, ignore_errors=True)
    return descriptor


def publish(partial: Path, folder: Path, run_id: str) -> None:
    """Give a whole checkpoint its name, in one step. What had that name, refused at the start, steps aside."""
    if folder.exists():
        folder.rename(folder.with_name(f"{folder.name}.refused-{run_id}"))
    partial.rename(folder)
    sync(folder.parent)


def remove(folder: Path) -> None:
    """First its name, so that a half removed one is never taken for a checkpoint. One that is gone already is fine."""
    going = folder.with_name(f".{folder.name}.deleting")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(going)
        shutil.rmtree(going)


def sync(path: Path) -> None:
    """Bring a folder's entries, or a file's bytes, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
