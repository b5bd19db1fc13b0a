"""Corpus files and a vocabulary in, a folder of shards with its manifest out; resumable, in parallel."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from benchmarks.bert.data.manifest import (
    MANIFEST,
    Manifest,
    ManifestError,
    read_lengths,
    read_manifest,
    write_lengths,
    write_manifest,
)
from benchmarks.bert.data.shards import SampleArrays, ShardError, open_shard, read_attributes
from benchmarks.bert.files import sha256_of
from benchmarks.bert.prepare import pool
from benchmarks.bert.prepare.corpus import CorpusError
from benchmarks.bert.prepare.draws import fastest
from benchmarks.bert.prepare.estimate import Estimate, check_room, estimate
from benchmarks.bert.prepare.lock import only_writer
from benchmarks.bert.prepare.meter import Meter
from benchmarks.bert.prepare.samples import Recipe, Sample, SpecialIds, draw_samples
from benchmarks.bert.prepare.sources import Source, dealt, whole_files
from benchmarks.bert.prepare.streamed import write_drawn
from benchmarks.bert.prepare.wordpiece import CLS, MASK, SEP, Encoder, read_vocabulary, tokenize

_LOOKED_AT_BYTES = 1 << 19  # for the check of the disk's room
_MANY_SENTENCES = 0.5  # of the lines


@dataclass(frozen=True)
class _Part:
    """One shard to make: everything its process needs."""

    shard: Path
    source: Source
    vocabulary: Path
    vocabulary_sha256: str
    recipe: Recipe
    identity: str


@dataclass(frozen=True)
class _Made:
    num_samples: int
    sha256: str
    lengths: np.ndarray  # uint16
    kept: bool  # from an earlier call


def build(
    texts: Sequence[Path],
    vocabulary: Path,
    folder: Path,
    *,
    recipe: Recipe,
    num_shards: int | None,
    num_processes: int,
    say: Callable[[str], None] = print,
    warn: Callable[[str], None] = print,
) -> Manifest:
    """Make `folder`: documents are dealt round-robin over `num_shards` parts, each part becomes one shard.

    Without `num_shards` each text file becomes one shard, and its samples are those that the reference makes of this
    file alone. Shards that an earlier, interrupted call made from the same text, vocabulary and recipe are kept. A
    random next sentence comes from the same part, as in the reference.
    """
    sources = whole_files(texts) if num_shards is None else dealt(texts, num_shards)
    vocabulary_sha256 = _sha256_of_vocabulary(vocabulary)
    fields = asdict(recipe) | ({"recipe": "reference"} if num_shards is None else {})
    parts = []
    for index, source in enumerate(sources):
        identity = json.dumps({**fields, "vocabulary": vocabulary_sha256, "text": source.sha256}, sort_keys=True)
        name = f"part_{index:05d}_of_{len(sources):05d}.hdf5"
        parts.append(_Part(folder / name, source, vocabulary, vocabulary_sha256, recipe, identity))
    if (finished := _finished(folder, parts)) is not None:
        say(f"{folder}: complete, {finished.num_samples:,} samples")
        return finished
    expected = estimate_samples(texts, vocabulary, recipe, num_bytes=_LOOKED_AT_BYTES)
    if expected.several_sentences_share > _MANY_SENTENCES:
        warn(
            f"{', '.join(map(str, texts))}: {expected.several_sentences_share:.0%} of the lines hold several "
            "sentences, so that A and B will be paragraphs; one sentence a line is expected (prepare wiki splits them)"
        )
    with only_writer(folder):
        check_room(folder, expected.output_bytes(len(parts)) - _bytes_of_shards(parts))
        (folder / MANIFEST).unlink(missing_ok=True)  # from here on the folder is unfinished
        made = _make_shards(parts, num_processes, say)
        lengths = np.concatenate([each.lengths for each in made])
        if not len(lengths):
            raise CorpusError(f"{', '.join(map(str, texts))}: not one word in it; give another text")
        manifest = Manifest(
            num_samples=len(lengths),
            num_tokens=int(lengths.sum(dtype=np.int64)),
            max_length=recipe.max_length,
            max_predictions=recipe.max_predictions,
            vocabulary_sha256=vocabulary_sha256,
            recipe=json.dumps(fields, sort_keys=True),
            lengths_sha256=write_lengths(folder, lengths),
            shards=tuple(
                (part.shard.name, each.num_samples, each.sha256) for part, each in zip(parts, made, strict=True)
            ),
        )
        write_manifest(folder, manifest)
    return manifest


def estimate_samples(texts: Sequence[Path], vocabulary: Path, recipe: Recipe, *, num_bytes: int) -> Estimate:
    """What the samples of these texts will come to, from about `num_bytes` of them."""
    encoder, special, num_vocabulary = _vocabulary(vocabulary, _sha256_of_vocabulary(vocabulary))
    return estimate(texts, encoder, recipe, special, num_vocabulary, num_bytes=num_bytes)


def _sha256_of_vocabulary(path: Path) -> str:
    read_vocabulary(path)  # its refusals first
    return sha256_of(path)


@lru_cache(maxsize=1)
def _vocabulary(path: Path, sha256: str) -> tuple[Encoder, SpecialIds, int]:
    """The tools of a vocabulary. A process makes all its shards with one encoder, which has met most words soon."""
    vocabulary = read_vocabulary(path)
    special = SpecialIds(vocabulary.index(CLS), vocabulary.index(SEP), vocabulary.index(MASK))
    return Encoder(vocabulary), special, len(vocabulary)


def _finished(folder: Path, parts: Sequence[_Part]) -> Manifest | None:
    """The folder's manifest if its lengths and every shard are there and were made from these very parts."""
    try:
        manifest = read_manifest(folder)
        read_lengths(folder, manifest)
        found = [read_attributes(part.shard) for part in parts]
        same = (
            [(part.shard.name, attributes["sha256"]) for part, attributes in zip(parts, found, strict=True)]
            == [(name, checksum) for name, _, checksum in manifest.shards]
            and [attributes["recipe"] for attributes in found] == [part.identity for part in parts]
            and manifest.vocabulary_sha256 == parts[0].vocabulary_sha256
        )
    except (ManifestError, ShardError):
        return None
    return manifest if same else None


def _bytes_of_shards(parts: Sequence[_Part]) -> int:
    """What files that are kept or replaced hold already."""
    return sum(part.shard.stat().st_size for part in parts if part.shard.is_file())


def _make_shards(parts: Sequence[_Part], num_processes: int, say: Callable[[str], None]) -> list[_Made]:
    made: list[_Made | None] = [None] * len(parts)
    meter = Meter("samples", sum(part.source.num_bytes for part in parts), "samples")
    try:
        for index, each in pool.each(_make_shard, parts, num_processes=num_processes):
            made[index] = each
            num_bytes = parts[index].source.num_bytes
            if each.kept:
                meter.kept(num_bytes)
            else:
                meter.done(num_bytes, each.num_samples)
            meter.close()
            say(f"{parts[index].shard}: {each.num_samples:,} samples")
    finally:
        meter.close()
    say(fastest()[1])
    return [each for each in made if each is not None]


def _make_shard(part: _Part) -> _Made:
    """Samples in the shard, its checksum and its samples' lengths; made only if a whole one is not there already."""
    try:
        if read_attributes(part.shard)["recipe"] == part.identity:
            found = open_shard(part.shard, vocabulary_sha256=part.vocabulary_sha256, max_length=part.recipe.max_length)
            checksum = str(read_attributes(part.shard)["sha256"])
            return _Made(len(found), checksum, found.lengths.astype(np.uint16), kept=True)
    except ShardError:
        pass  # absent, or not whole: make it
    encoder, special, num_vocabulary = _vocabulary(part.vocabulary, part.vocabulary_sha256)
    drawn = draw_samples(tokenize(part.source.documents(), encoder), part.recipe, special, num_vocabulary)
    checksum = write_drawn(part.shard, drawn, vocabulary_sha256=part.vocabulary_sha256, recipe=part.identity)
    return _Made(len(drawn), checksum, drawn.lengths.astype(np.uint16), kept=False)


def to_arrays(samples: Sequence[Sample]) -> SampleArrays:
    """Samples as the flat arrays that a shard stores."""

    def flat(name: str) -> np.ndarray:
        return np.concatenate(
            [np.asarray(getattr(sample, name), np.uint16) for sample in samples] or [np.empty(0, np.uint16)]
        )

    def offsets(name: str) -> np.ndarray:
        return np.cumsum([0, *(len(getattr(sample, name)) for sample in samples)], dtype=np.int64)

    return SampleArrays(
        tokens=flat("tokens"),
        token_offsets=offsets("tokens"),
        boundary=np.array([sample.boundary for sample in samples], np.uint16),
        mlm_positions=flat("mlm_positions"),
        mlm_ids=flat("mlm_ids"),
        mlm_offsets=offsets("mlm_ids"),
        nsp=np.array([sample.is_random_next for sample in samples], np.uint8),
    )
