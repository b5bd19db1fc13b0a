"""A folder of shards in, what may be known of it before the clock starts out: counts, checksums and lengths.

`manifest.json` and `lengths.npy` are metadata: reading them touches no training data (mlperf-rules: sizes of
documents are metadata). The manifest is written last, so a folder that has one is complete.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.bert.files import atomic_write, sha256_of

MANIFEST = "manifest.json"
LENGTHS = "lengths.npy"


class ManifestError(ValueError):
    """A folder is no complete data set; the message names it and the remedy."""


@dataclass(frozen=True)
class Manifest:
    num_samples: int
    num_tokens: int
    max_length: int  # of the recipe
    max_predictions: int
    vocabulary_sha256: str
    recipe: str
    lengths_sha256: str
    shards: tuple[tuple[str, int, str], ...]  # file name, samples, sha256 of the content; in sample order


def write_manifest(folder: Path, manifest: Manifest) -> None:
    with atomic_write(folder / MANIFEST) as temporary:
        temporary.write_text(json.dumps(asdict(manifest), indent=1) + "\n", "utf-8")


def write_lengths(folder: Path, lengths: np.ndarray) -> str:
    """Write the length of every sample, in sample order, as uint16; returns the file's sha256."""
    with atomic_write(folder / LENGTHS) as temporary, open(temporary, "wb") as file:
        np.save(file, lengths.astype(np.uint16))
    return sha256_of(folder / LENGTHS)


def read_manifest(folder: Path) -> Manifest:
    """Raises ManifestError for a missing folder, an unfinished preparation or a damaged manifest."""
    path = folder / MANIFEST
    if not folder.is_dir():
        raise ManifestError(
            f"{folder}: no such data folder; run ./init_datasets.sh, or set DATA_DIR to a prepared folder"
        )
    try:
        fields = json.loads(path.read_text("utf-8"))
        manifest = Manifest(**{**fields, "shards": tuple((str(n), int(c), str(s)) for n, c, s in fields["shards"])})
    except FileNotFoundError as error:
        raise ManifestError(f"{path}: missing, the preparation is unfinished; run ./init_datasets.sh again") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ManifestError(f"{path}: damaged ({error}); run ./init_datasets.sh again") from error
    if len({name for name, *_ in manifest.shards}) != len(manifest.shards):
        raise ManifestError(f"{path}: damaged (a shard is listed twice); run ./init_datasets.sh again")
    if sum(count for _, count, _ in manifest.shards) != manifest.num_samples:
        raise ManifestError(
            f"{path}: the shards' counts do not add up to {manifest.num_samples}; run ./init_datasets.sh again"
        )
    return manifest


def samples_of_node(num_samples: int, node: int, num_nodes: int) -> range:
    """The run of samples that a strategy with node-local data gives to one of the nodes."""
    return range(num_samples * node // num_nodes, num_samples * (node + 1) // num_nodes)


def shards_with(manifest: Manifest, samples: range) -> list[tuple[str, int, str]]:
    """The manifest's entries of those shards that hold any of the samples."""
    ends = np.cumsum([count for _, count, _ in manifest.shards])
    return [
        shard
        for shard, end in zip(manifest.shards, ends.tolist(), strict=True)
        if max(end - shard[1], samples.start) < min(end, samples.stop)
    ]


def read_lengths(folder: Path, manifest: Manifest) -> np.ndarray:
    """Length of every sample, shape (num_samples,), uint16."""
    path = folder / LENGTHS
    try:
        found = sha256_of(path)
    except OSError as error:
        raise ManifestError(
            f"{path}: cannot read the lengths ({error.strerror}); run ./init_datasets.sh again"
        ) from error
    if found != manifest.lengths_sha256:
        raise ManifestError(
            f"{path}: sha256 {found}, the manifest says {manifest.lengths_sha256}; run ./init_datasets.sh again"
        )
    lengths = np.load(path, mmap_mode="r")  # 313 MB at the benchmark's scale, in each rank
    if lengths.dtype != np.uint16 or lengths.shape != (manifest.num_samples,) or not lengths.all():
        raise ManifestError(
            f"{path}: holds {lengths.dtype} of shape {lengths.shape}, expected {manifest.num_samples} uint16 above 0; "
            "prepare the samples again"
        )
    return lengths
