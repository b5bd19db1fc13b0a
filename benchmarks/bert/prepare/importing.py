"""Sample files of other harnesses in, a folder of shards with its manifest out; resumable, in parallel, in order.

File i becomes shard i, or all samples, in the order of the files, are cut into a given number of shards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.bert.data.manifest import MANIFEST, Manifest, write_lengths, write_manifest
from benchmarks.bert.data.shards import ShardError, open_shard, read_attributes
from benchmarks.bert.files import sha256_of
from benchmarks.bert.prepare import pool
from benchmarks.bert.prepare.forms.form import Contents, look, read
from benchmarks.bert.prepare.forms.source import Rules, SourceError, reading
from benchmarks.bert.prepare.lock import only_writer
from benchmarks.bert.prepare.meter import Meter
from benchmarks.bert.prepare.spool import Spool
from benchmarks.bert.prepare.wordpiece import CLS, SEP, read_vocabulary


@dataclass(frozen=True)
class _File:
    """A file as it was looked at."""

    path: Path
    contents: Contents
    sha256: str


@dataclass(frozen=True)
class _Piece:
    """Rows of a file; without `file` all of them, of a file that nobody has looked at."""

    path: Path
    file: _File | None = None
    start: int = 0
    stop: int = 0


@dataclass(frozen=True)
class _Part:
    """One shard to make: everything its process needs."""

    shard: Path
    pieces: tuple[_Piece, ...]
    form: str | None
    rules: Rules
    vocabulary_sha256: str


@dataclass(frozen=True)
class _Made:
    num_bytes: int  # read
    sha256: str
    lengths: np.ndarray  # uint16
    forms: frozenset[str]
    kept: bool  # from an earlier call


def import_files(
    files: Sequence[Path],
    vocabulary: Path,
    folder: Path,
    *,
    form: str | None = None,
    max_length: int,
    max_predictions: int,
    num_shards: int | None = None,
    num_processes: int,
    say: Callable[[str], None] = print,
    warn: Callable[[str], None] = print,
) -> Manifest:
    """Make `folder` from the samples of `files`; raises SourceError, naming file and row, where they cannot be samples.

    Shards that an earlier, interrupted call made from the same files are kept. Without `form` each file's is found.
    """
    entries = read_vocabulary(vocabulary)
    rules = Rules(max_length, max_predictions, len(entries), entries.index(CLS), entries.index(SEP))
    _check_names(files, folder)
    with only_writer(folder):
        pieces: list[tuple[_Piece, ...]] = [(_Piece(path),) for path in files]
        if num_shards is not None:
            pieces = _cut(_look_at_all(files, form, num_processes), num_shards)
        vocabulary_sha256 = sha256_of(vocabulary)
        parts = [
            _Part(folder / f"part_{index:05d}_of_{len(pieces):05d}.hdf5", own, form, rules, vocabulary_sha256)
            for index, own in enumerate(pieces)
        ]
        made = _make_shards(parts, num_processes, say)
        _warn_of_repeats(parts, made, warn)
        lengths = np.concatenate([each.lengths for each in made])
        forms = sorted(frozenset().union(*(each.forms for each in made)))
        recipe = {"imported": forms, "max_length": max_length, "max_predictions": max_predictions}
        manifest = Manifest(
            num_samples=len(lengths),
            num_tokens=int(lengths.sum(dtype=np.int64)),
            max_length=max_length,
            max_predictions=max_predictions,
            vocabulary_sha256=vocabulary_sha256,
            recipe=json.dumps(recipe, sort_keys=True),
            lengths_sha256=write_lengths(folder, lengths),
            shards=tuple(
                (part.shard.name, len(each.lengths), each.sha256) for part, each in zip(parts, made, strict=True)
            ),
        )
        write_manifest(folder, manifest)
    return manifest


def _check_names(files: Sequence[Path], folder: Path) -> None:
    if twice := next((path for number, path in enumerate(files) if path in files[:number]), None):
        raise SourceError(f"{twice}: named twice; name each file once")
    if inside := next((path for path in files if path.resolve().parent == folder.resolve()), None):
        raise SourceError(f"{inside}: lies in the folder to be made; choose another --out")


def _look_at_all(files: Sequence[Path], form: str | None, num_processes: int) -> list[_File]:
    found: list[_File | None] = [None] * len(files)
    for number, file in pool.each(_look, [(path, form) for path in files], num_processes=num_processes):
        found[number] = file
    return [file for file in found if file is not None]


def _look(task: tuple[Path, str | None]) -> _File:
    path, form = task
    contents = look(path, form)
    if not contents.num_rows:
        raise SourceError(f"{path}: holds no sample; leave it out, or make it again")
    with reading(path):
        return _File(path, contents, sha256_of(path))


def _cut(files: Sequence[_File], num_shards: int) -> list[tuple[_Piece, ...]]:
    """The files' rows end to end, cut into shards whose sizes differ by one at most."""
    total = sum(file.contents.num_rows for file in files)
    if total < num_shards:
        raise SourceError(f"{total:,} samples do not fill {num_shards:,} shards; give fewer --shards")
    shards: list[list[_Piece]] = [[] for _ in range(num_shards)]
    bounds = [total * number // num_shards for number in range(num_shards + 1)]
    first = 0
    for file in files:
        for number in range(num_shards):
            start = max(0, bounds[number] - first)
            stop = min(file.contents.num_rows, bounds[number + 1] - first)
            if start < stop:
                shards[number].append(_Piece(file.path, file, start, stop))
        first += file.contents.num_rows
    return [tuple(own) for own in shards]


def _make_shards(parts: Sequence[_Part], num_processes: int, say: Callable[[str], None]) -> list[_Made]:
    made: list[_Made | None] = [None] * len(parts)
    meter = Meter("import", sum(map(_num_bytes, parts)), "samples")
    try:
        for number, each in pool.each(_make_shard, parts, num_processes=num_processes):
            made[number] = each
            if each.kept:
                meter.kept(each.num_bytes)
            else:
                meter.done(each.num_bytes, len(each.lengths))
            meter.close()
            say(f"{parts[number].shard}: {len(each.lengths):,} samples")
    finally:
        meter.close()
    return [each for each in made if each is not None]


def _num_bytes(part: _Part) -> int:
    """Of the files; of a piece of one, about its share."""
    total = 0.0
    for piece in part.pieces:
        if piece.path.is_file():
            share = (piece.stop - piece.start) / piece.file.contents.num_rows if piece.file else 1
            total += share * piece.path.stat().st_size
    return round(total)


def _make_shard(part: _Part) -> _Made:
    """The shard, made only if a whole one of the same samples is not there already."""
    pieces = [_whole(piece, part.form) if piece.file is None else (piece, piece.file) for piece in part.pieces]
    identity = _identity(part, pieces)
    forms = frozenset(file.contents.form for _, file in pieces)
    num_bytes = _num_bytes(part)
    try:
        if read_attributes(part.shard)["recipe"] == identity:
            found = open_shard(part.shard, vocabulary_sha256=part.vocabulary_sha256, max_length=part.rules.max_length)
            checksum = str(read_attributes(part.shard)["sha256"])
            return _Made(num_bytes, checksum, found.lengths.astype(np.uint16), forms, kept=True)
    except ShardError:
        pass  # absent, or not whole: make it
    (part.shard.parent / MANIFEST).unlink(missing_ok=True)  # from here on the folder is unfinished
    with Spool(part.shard.parent) as spool:
        for piece, file in pieces:
            for samples in read(file.path, file.contents, piece.start, piece.stop, part.rules):
                spool.add(samples)
        checksum = spool.write(part.shard, vocabulary_sha256=part.vocabulary_sha256, recipe=identity)
        return _Made(num_bytes, checksum, spool.lengths, forms, kept=False)


def _whole(piece: _Piece, form: str | None) -> tuple[_Piece, _File]:
    file = _look((piece.path, form))
    return _Piece(piece.path, file, 0, file.contents.num_rows), file


def _identity(part: _Part, pieces: Sequence[tuple[_Piece, _File]]) -> str:
    """Text that is the same where the shard would be."""
    return json.dumps(
        {
            "imported": [
                {"form": file.contents.form, "sha256": file.sha256, "rows": [piece.start, piece.stop]}
                for piece, file in pieces
            ],
            "max_length": part.rules.max_length,
            "max_predictions": part.rules.max_predictions,
            "vocabulary": part.vocabulary_sha256,
        },
        sort_keys=True,
    )


def _warn_of_repeats(parts: Sequence[_Part], made: Sequence[_Made], warn: Callable[[str], None]) -> None:
    """The fault of a published tree: every shard holds the same samples."""
    first: dict[str, Path] = {}
    repeats = 0
    for part, each in zip(parts, made, strict=True):
        repeats += first.setdefault(each.sha256, part.shard) != part.shard
    if repeats:
        warn(
            f"{parts[0].shard.parent}: {repeats:,} of {len(parts):,} shards hold the same samples as another; "
            "the files were made wrongly (see prepare check)"
        )
