"""A data folder, one node's number and a folder on its disk in, a copy of what that node reads out.

The copy is a DATA_DIR for LOADING=stratified_local: the vocabulary, the evaluation samples, and of the training samples
the manifest, all lengths and the shards that hold the node's own run of samples.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bert.data.manifest import LENGTHS, MANIFEST, Manifest, read_manifest, samples_of_node, shards_with
from benchmarks.bert.data.shards import ShardError, open_shard
from benchmarks.bert.files import atomic_write, sha256_of
from benchmarks.bert.prepare.lock import only_writer
from benchmarks.bert.prepare.meter import Meter
from benchmarks.bert.prepare.options import count

if TYPE_CHECKING:
    Steps = argparse._SubParsersAction[argparse.ArgumentParser]

VOCABULARY, TRAINING, HELD_OUT = "vocab.txt", "train", "eval"


class StageError(ValueError):
    """A node's samples cannot be copied; the message names the folder or the file, and the remedy."""


@dataclass(frozen=True)
class Staged:
    num_shards: int
    num_samples: int  # of training that the node reads
    num_bytes: int  # in its folder
    copied_bytes: int  # by this call; the rest was there


@dataclass(frozen=True)
class _File:
    source: Path
    copy: Path
    shard_of: Manifest | None = None
    sha256: str = ""  # of a shard's content, of another file's bytes

    def is_whole(self) -> bool:
        """Whether the copy is there, byte for byte as far as the checksum tells."""
        if not self.copy.is_file() or self.copy.stat().st_size != self.source.stat().st_size:
            return False
        try:
            self.check(self.copy)
        except ShardError:
            return False
        return True

    def check(self, path: Path) -> None:
        """Raise ShardError where the file is not the one that the manifest knows."""
        manifest = self.shard_of
        if manifest is not None:
            open_shard(
                path,
                vocabulary_sha256=manifest.vocabulary_sha256,
                max_length=manifest.max_length,
                sha256=self.sha256,
            )
        elif sha256_of(path) != self.sha256:
            raise ShardError(f"{path}: its sha256 is not {self.sha256}")


def stage(folder: Path, out: Path, *, node: int, num_nodes: int) -> Staged:
    """Copy what node `node` of `num_nodes` reads; each file is whole or absent, and what is there already is kept.

    Raises ShardError for a file that is not what the manifest knows it as, StageError where `out` holds other samples.
    """
    if not 0 <= node < num_nodes:
        raise StageError(f"--node {node}: of {num_nodes} nodes the first is 0, the last {num_nodes - 1}")
    if out.resolve() == folder.resolve():
        raise StageError(f"--out {out}: the data itself; choose another folder")
    training, held_out = (read_manifest(folder / part) for part in (TRAINING, HELD_OUT))
    own = samples_of_node(training.num_samples, node, num_nodes)
    shards = shards_with(training, own)
    _refuse_other_samples(folder, out)
    files = [_File(folder / VOCABULARY, out / VOCABULARY, sha256=training.vocabulary_sha256)]
    files += _files(folder / HELD_OUT, out / HELD_OUT, held_out, held_out.shards)
    files += _files(folder / TRAINING, out / TRAINING, training, shards)
    try:
        sizes = [file.source.stat().st_size for file in files]
    except FileNotFoundError as error:
        raise StageError(
            f"{error.filename}: no such file, but the manifest lists it; prepare {folder} again"
        ) from error
    copied = 0
    with only_writer(out):
        left = [(file, size) for file, size in zip(files, sizes, strict=True) if not file.is_whole()]
        _refuse_without_room(out, sum(size for _, size in left))
        meter = Meter("stage", sum(sizes), "MB")
        meter.kept(sum(sizes) - sum(size for _, size in left))
        for file, size in left:
            _copy(file)
            copied += size
            meter.done(size, size >> 20)
        for part in (HELD_OUT, TRAINING):  # last: a folder that has one is complete
            with atomic_write(out / part / MANIFEST) as temporary:
                shutil.copyfile(folder / part / MANIFEST, temporary)
        meter.close()
    return Staged(len(shards), len(own), sum(sizes), copied)


def _files(
    source: Path, copy: Path, manifest: Manifest, shards: list[tuple[str, int, str]] | tuple[tuple[str, int, str], ...]
) -> Iterator[_File]:
    yield _File(source / LENGTHS, copy / LENGTHS, sha256=manifest.lengths_sha256)
    for name, _, checksum in shards:
        yield _File(source / name, copy / name, manifest, checksum)


def _copy(file: _File) -> None:
    with atomic_write(file.copy) as temporary:
        try:
            shutil.copyfile(file.source, temporary)
        except OSError as error:  # which may name either of them, or none
            raise StageError(
                f"{file.source}: cannot be copied to {file.copy} ({error.strerror}); make room there or mend the disk "
                "that fails, then run it again"
            ) from error
        try:
            file.check(temporary)
        except ShardError as error:
            raise StageError(f"{file.source}: cannot be staged: {error}") from error


def _refuse_other_samples(folder: Path, out: Path) -> None:
    for part in (TRAINING, HELD_OUT):
        here = out / part / MANIFEST
        if here.exists() and here.read_bytes() != (folder / part / MANIFEST).read_bytes():
            raise StageError(f"{here}: of other samples than those in {folder}; delete it, or choose another --out")


def _refuse_without_room(out: Path, needed: int) -> None:
    if (free := shutil.disk_usage(out).free) < needed:
        raise StageError(f"{out}: {needed:,} bytes are to be copied, the disk has {free:,} left; make room")


def add_stage(steps: Steps) -> None:
    step = steps.add_parser("stage", help="what one node reads with LOADING=stratified_local, on its own disk")
    step.set_defaults(run=_stage)
    step.add_argument("folder", type=Path, help="the data folder: vocab.txt, train/ and eval/")
    step.add_argument("--node", type=int, required=True, help="from 0")
    step.add_argument("--nodes", type=count, required=True, help="how many nodes there are")
    step.add_argument("--out", type=Path, required=True, help="the node's own folder, its DATA_DIR")


def _stage(arguments: argparse.Namespace) -> None:
    staged = stage(arguments.folder, arguments.out, node=arguments.node, num_nodes=arguments.nodes)
    print(
        f"{arguments.out}: {staged.num_samples:,} samples of node {arguments.node} in {staged.num_shards:,} shards, "
        f"{staged.num_bytes:,} bytes, {staged.copied_bytes:,} of them copied now"
    )
