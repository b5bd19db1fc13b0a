"""A prepared data folder in, what may be known of it before the clock starts out."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.bert.data.manifest import Manifest, ManifestError, read_lengths, read_manifest, shards_with
from benchmarks.bert.data.store import SampleStore
from benchmarks.bert.files import sha256_of


@dataclass(frozen=True)
class DataSet:
    """Training or evaluation samples: their number, lengths and checksums, but none of their tokens."""

    folder: Path
    manifest: Manifest
    lengths: np.ndarray

    def open(self, check: str) -> SampleStore:
        """What its samples are read through; reading is the first touch of the data, so not before run_start."""
        return SampleStore(self.folder, self.manifest, self.lengths, check=check)


def read_data_set(folder: Path) -> DataSet:
    manifest = read_manifest(folder)
    return DataSet(folder, manifest, read_lengths(folder, manifest))


def check_lengths(data: DataSet, max_length: int) -> None:
    """Raise ManifestError where there is no sample or one is longer than the model takes."""
    if not len(data.lengths):
        raise ManifestError(f"{data.folder}: no samples; prepare it from more text")
    if (longest := int(data.lengths.max())) > max_length:
        raise ManifestError(
            f"{data.folder}: sample {int(data.lengths.argmax())} has {longest} tokens, more than MAX_LENGTH="
            f"{max_length}; raise MAX_LENGTH or prepare the samples again with a smaller --max-length"
        )


def check_shards(data: DataSet, samples: range) -> None:
    """Raise ManifestError where a shard that holds some of these samples is not in the folder. None is opened."""
    present = set(os.listdir(data.folder))
    if missing := [name for name, *_ in shards_with(data.manifest, samples) if name not in present]:
        others = f" (nor {', '.join(missing[1:4])}{' …' if len(missing) > 4 else ''})" if missing[1:] else ""
        raise ManifestError(
            f"{data.folder / missing[0]}: no such shard{others}; run ./init_datasets.sh again, or, where the folder "
            "holds one node's shards alone, ./init_datasets.sh stage for the place that this node has now, and "
            "LOADING=stratified_local"
        )


def count_vocabulary(path: Path, *data: DataSet) -> int:
    """Entries of the vocabulary, which must be the one that all the samples were made with."""
    try:
        found = sha256_of(path)
    except OSError as error:
        raise ManifestError(f"{path}: cannot read the vocabulary ({error.strerror}); run ./init_datasets.sh") from error
    for each in data:
        if found != each.manifest.vocabulary_sha256:
            raise ManifestError(
                f"{path}: sha256 {found}, but {each.folder} was made with a vocabulary of sha256 "
                f"{each.manifest.vocabulary_sha256}; restore that file or prepare the samples again"
            )
    return len(path.read_bytes().removesuffix(b"\n").split(b"\n"))
