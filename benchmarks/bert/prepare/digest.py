"""A prepared folder in, the digest of its content out: the same for any file format and any number of shards.

SHA-256 over seven arrays of little-endian int32, one after the other: tokens, token_offsets, boundary, mlm_positions,
mlm_ids, mlm_offsets, nsp of the whole data set as one, its shards end to end in the manifest's order, the offsets going
on from shard to shard.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from benchmarks.bert.data.manifest import Manifest, ManifestError, read_manifest
from benchmarks.bert.data.shards import DTYPES, SampleArrays, open_shard

_AT_ONCE = 1 << 20  # values
_MOST = (1 << 31) - 1  # tokens; the offsets of more do not fit int32


def content_digest(folder: Path) -> str:
    """The digest; refuses an unfinished folder, a shard that is not as its manifest says, and too many tokens."""
    manifest = read_manifest(folder)
    if manifest.num_tokens > _MOST:
        raise ManifestError(
            f"{folder}: {manifest.num_tokens:,} tokens, the digest's int32 offsets reach {_MOST:,}; "
            "compare the checksums in manifest.json instead"
        )
    shards = _open(folder, manifest)
    digest = hashlib.sha256()
    for name in DTYPES:
        offset = 0
        for number, shard in enumerate(shards):
            values = getattr(shard, name)
            if name.endswith("_offsets"):
                _update(digest, values[1 if number else 0 :], offset)  # one border between two shards
                offset += int(values[-1])
            else:
                _update(digest, values, 0)
    return digest.hexdigest()


def _open(folder: Path, manifest: Manifest) -> list[SampleArrays]:
    return [
        open_shard(
            folder / name,
            vocabulary_sha256=manifest.vocabulary_sha256,
            max_length=manifest.max_length,
            sha256=checksum,
        )
        for name, _, checksum in manifest.shards
    ]


def _update(digest: hashlib._Hash, values: np.ndarray, offset: int) -> None:
    for start in range(0, len(values), _AT_ONCE):
        digest.update((values[start : start + _AT_ONCE].astype(np.int64) + offset).astype("<i4").tobytes())
