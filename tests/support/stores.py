"""Numbers of samples in, a data folder of as many shards of made-up samples out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.bert.bench.made_up import made_up_samples
from benchmarks.bert.data.dataset import DataSet, read_data_set
from benchmarks.bert.data.manifest import Manifest, write_lengths, write_manifest
from benchmarks.bert.data.shards import DTYPES, SampleArrays, write_shard

VOCABULARY = "5a" * 32
MAX_LENGTH = 32


@dataclass(frozen=True)
class Made:
    """A data folder and what was written into it."""

    data: DataSet
    shards: list[SampleArrays]

    def path(self, number: int) -> Path:
        return self.data.folder / self.data.manifest.shards[number][0]

    def expected(self, numbers: Sequence[int]) -> list[dict[str, list[int]]]:
        """The samples of these numbers, one by one."""
        return [self._one(int(number)) for number in numbers]

    def _one(self, number: int) -> dict[str, list[int]]:
        for shard in self.shards:
            if number < len(shard):
                return sample_of(shard, number)
            number -= len(shard)
        raise IndexError(number)


def sample_of(arrays: SampleArrays, row: int) -> dict[str, list[int]]:
    tokens = slice(arrays.token_offsets[row], arrays.token_offsets[row + 1])
    masked = slice(arrays.mlm_offsets[row], arrays.mlm_offsets[row + 1])
    return {
        "tokens": arrays.tokens[tokens].tolist(),
        "boundary": [int(arrays.boundary[row])],
        "mlm_positions": arrays.mlm_positions[masked].tolist(),
        "mlm_ids": arrays.mlm_ids[masked].tolist(),
        "nsp": [int(arrays.nsp[row])],
    }


def samples_of(arrays: SampleArrays) -> list[dict[str, list[int]]]:
    return [sample_of(arrays, row) for row in range(len(arrays))]


def make_folder(folder: Path, counts: Sequence[int], seed: int = 0, vocabulary: str = VOCABULARY) -> Made:
    rng = np.random.default_rng(seed)
    arrays = [_of_stored_types(rng.integers(3, MAX_LENGTH + 1, count), seed + at) for at, count in enumerate(counts)]
    entries = []
    for at, shard in enumerate(arrays):
        checksum = write_shard(folder / f"{at}.hdf5", shard, vocabulary_sha256=vocabulary, recipe="")
        entries.append((f"{at}.hdf5", len(shard), checksum))
    lengths = np.concatenate([shard.lengths for shard in arrays])
    sha256 = write_lengths(folder, lengths)
    total = int(lengths.sum())
    write_manifest(folder, Manifest(len(lengths), total, MAX_LENGTH, 5, vocabulary, "", sha256, tuple(entries)))
    return Made(read_data_set(folder), arrays)


def _of_stored_types(lengths: np.ndarray, seed: int) -> SampleArrays:
    if not len(lengths):
        return SampleArrays(**{name: np.zeros(int("offsets" in name), dtype) for name, dtype in DTYPES.items()})
    made = made_up_samples(lengths, 30_000, seed)
    return SampleArrays(**{name: array.astype(DTYPES[name]) for name, array in made.items()})
