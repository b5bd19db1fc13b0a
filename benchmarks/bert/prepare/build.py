"""Corpus files and a vocabulary in, a folder of shards with its manifest out; resumable, in parallel."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import sha256
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread

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
from benchmarks.bert.data.shards import SampleArrays, ShardError, open_shard, read_attributes, write_shard
from benchmarks.bert.files import sha256_of
from benchmarks.bert.prepare.corpus import CorpusError, Document, read_corpus
from benchmarks.bert.prepare.samples import Recipe, Sample, SpecialIds, make_samples
from benchmarks.bert.prepare.wordpiece import CLS, MASK, SEP, encode, read_vocabulary


@dataclass(frozen=True)
class _Part:
    """One shard to make: everything its process needs."""

    shard: Path
    documents: tuple[Document, ...]
    vocabulary: Path
    recipe: Recipe
    identity: str


def build(
    texts: Sequence[Path],
    vocabulary: Path,
    folder: Path,
    *,
    recipe: Recipe,
    num_shards: int,
    num_processes: int,
    say: Callable[[str], None] = print,
) -> Manifest:
    """Make `folder`: documents are dealt round-robin over `num_shards` parts, each part becomes one shard.

    Shards that an earlier, interrupted call made from the same text, vocabulary and recipe are kept. A random
    next sentence comes from the same part, as in the reference.
    """
    documents = list(read_corpus(texts))
    if len(documents) < 2 * num_shards:
        raise CorpusError(
            f"{', '.join(map(str, texts)) or 'no text'}: {len(documents)} documents, at least two for each of "
            f"{num_shards} shards are needed; give more text or fewer shards"
        )
    vocabulary_sha256 = sha256_of(vocabulary)
    parts = []
    for index in range(num_shards):
        own = tuple(documents[index::num_shards])
        text_sha256 = sha256(json.dumps(own).encode()).hexdigest()
        identity = json.dumps({**asdict(recipe), "vocabulary": vocabulary_sha256, "text": text_sha256}, sort_keys=True)
        name = f"part_{index:05d}_of_{num_shards:05d}.hdf5"
        parts.append(_Part(folder / name, own, vocabulary, recipe, identity))
    if (finished := _finished(folder, parts)) is not None:
        say(f"{folder}: complete, {finished.num_samples:,} samples")
        return finished
    (folder / MANIFEST).unlink(missing_ok=True)  # from here on the folder is unfinished
    with ProcessPoolExecutor(num_processes, get_context("spawn"), initializer=_die_with_parent) as pool:
        made = []
        for part, (count, checksum, lengths) in zip(parts, pool.map(_make_shard, parts), strict=True):
            say(f"{part.shard}: {count:,} samples")
            made.append((part.shard.name, count, checksum, lengths))
    lengths = np.concatenate([lengths for *_, lengths in made])
    if not len(lengths):
        raise CorpusError(f"{', '.join(map(str, texts))}: not one word in it; give another text")
    manifest = Manifest(
        num_samples=len(lengths),
        num_tokens=int(lengths.sum(dtype=np.int64)),
        max_length=recipe.max_length,
        max_predictions=recipe.max_predictions,
        vocabulary_sha256=vocabulary_sha256,
        recipe=json.dumps(asdict(recipe), sort_keys=True),
        lengths_sha256=write_lengths(folder, lengths),
        shards=tuple((name, count, checksum) for name, count, checksum, _ in made),
    )
    write_manifest(folder, manifest)
    return manifest


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
            and manifest.vocabulary_sha256 == sha256_of(parts[0].vocabulary)
        )
    except (ManifestError, ShardError):
        return None
    return manifest if same else None


def _die_with_parent() -> None:
    """End this worker when the build is killed; the pool alone would let it wait for work for ever."""

    def watch() -> None:
        if parent := parent_process():
            parent.join()
            os._exit(1)

    Thread(target=watch, daemon=True).start()


def _make_shard(part: _Part) -> tuple[int, str, np.ndarray]:
    """Samples in the shard, its checksum and its samples' lengths; made only if a whole one is not there already."""
    vocabulary_sha256 = sha256_of(part.vocabulary)
    try:
        if read_attributes(part.shard)["recipe"] == part.identity:
            kept = open_shard(part.shard, vocabulary_sha256=vocabulary_sha256, max_length=part.recipe.max_length)
            return len(kept), str(read_attributes(part.shard)["sha256"]), kept.lengths
    except ShardError:
        pass  # absent, or not whole: make it
    vocabulary = read_vocabulary(part.vocabulary)
    special = SpecialIds(vocabulary.index(CLS), vocabulary.index(SEP), vocabulary.index(MASK))
    encoded = encode(part.documents, vocabulary)
    arrays = to_arrays(make_samples(encoded, part.recipe, special, len(vocabulary)))
    checksum = write_shard(part.shard, arrays, vocabulary_sha256=vocabulary_sha256, recipe=part.identity)
    return len(arrays), checksum, arrays.lengths


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
