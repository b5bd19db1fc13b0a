"""A folder of shards in, the same samples as fixed-length HDF5 files out, as the published trees read them.

Shard i becomes part_I_of_N.hdf5: six data sets, padded with 0, without filters. `prepare import` of them gives the
samples back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from benchmarks.bert.data.manifest import MANIFEST, read_manifest
from benchmarks.bert.data.shards import SampleArrays, open_shard
from benchmarks.bert.prepare import pool
from benchmarks.bert.prepare.columns import new_hdf5
from benchmarks.bert.prepare.lock import only_writer
from benchmarks.bert.prepare.meter import Meter

DTYPES = ("int32", "int16")  # of ids and positions; the latter as NVIDIA's since round v1.1
_ROWS = 1 << 12  # at once


class ExportError(ValueError):
    """Samples cannot be exported; the message names the folder or the row, and the remedy."""


@dataclass(frozen=True)
class _Part:
    shard: Path
    sha256: str
    vocabulary_sha256: str
    out: Path
    max_length: int
    max_predictions: int
    dtype: str


def export_fixed(folder: Path, out: Path, *, dtype: str, num_processes: int, say: Callable[[str], None] = print) -> int:
    """Write the files; returns the number of samples. Each file is whole or absent."""
    manifest = read_manifest(folder)
    if (out / MANIFEST).exists():
        raise ExportError(f"{out}: holds a data set, whose shards have such names; choose another --out")
    total = len(manifest.shards)
    parts = [
        _Part(
            folder / name,
            checksum,
            manifest.vocabulary_sha256,
            out / f"part_{number:05d}_of_{total:05d}.hdf5",
            manifest.max_length,
            manifest.max_predictions,
            dtype,
        )
        for number, (name, _, checksum) in enumerate(manifest.shards)
    ]
    sizes = [count for _, count, _ in manifest.shards]
    meter = Meter("export", sum(sizes), "samples")
    with only_writer(out):
        try:
            for number, _ in pool.each(_export, parts, num_processes=num_processes):
                meter.done(sizes[number], sizes[number])
                meter.close()
                say(f"{parts[number].out}: {sizes[number]:,} samples")
        finally:
            meter.close()
    return manifest.num_samples


def _export(part: _Part) -> None:
    samples = open_shard(
        part.shard, vocabulary_sha256=part.vocabulary_sha256, max_length=part.max_length, sha256=part.sha256
    )
    _refuse_what_does_not_fit(part, samples)
    num_rows, ids = len(samples), np.dtype(part.dtype)
    with new_hdf5(part.out) as (file, disk):
        for key, width, type_ in (
            ("input_ids", part.max_length, ids),
            ("input_mask", part.max_length, np.int8),
            ("segment_ids", part.max_length, np.int8),
            ("masked_lm_positions", part.max_predictions, ids),
            ("masked_lm_ids", part.max_predictions, ids),
        ):
            file.create_dataset(key, (num_rows, width), type_)
        file.create_dataset("next_sentence_labels", (num_rows,), np.int8)
        for start in range(0, num_rows, _ROWS):
            _write(file, samples, slice(start, min(start + _ROWS, num_rows)), part)
            disk.check()


def _write(file: h5py.File, samples: SampleArrays, rows: slice, part: _Part) -> None:
    lengths = np.diff(samples.token_offsets[rows.start : rows.stop + 1])
    counts = np.diff(samples.mlm_offsets[rows.start : rows.stop + 1])
    columns = np.arange(part.max_length)
    mask = columns < lengths[:, None]
    chosen = np.arange(part.max_predictions) < counts[:, None]

    def padded(values: np.ndarray, offsets: np.ndarray, is_own: np.ndarray) -> np.ndarray:
        block = np.zeros(is_own.shape, part.dtype)
        block[is_own] = values[offsets[rows.start] : offsets[rows.stop]]
        return block

    file["input_ids"][rows] = padded(samples.tokens, samples.token_offsets, mask)
    file["input_mask"][rows] = mask
    file["segment_ids"][rows] = mask & (columns >= samples.boundary[rows, None])
    file["masked_lm_positions"][rows] = padded(samples.mlm_positions, samples.mlm_offsets, chosen)
    file["masked_lm_ids"][rows] = padded(samples.mlm_ids, samples.mlm_offsets, chosen)
    file["next_sentence_labels"][rows] = samples.nsp[rows]


def _refuse_what_does_not_fit(part: _Part, samples: SampleArrays) -> None:
    counts = np.diff(samples.mlm_offsets)
    if len(counts) and counts.max() > part.max_predictions:
        raise ExportError(
            f"{part.shard}: row {counts.argmax()}: {counts.max()} predictions, the manifest says at most "
            f"{part.max_predictions}; make the shard again"
        )
    if not samples.mlm_positions.all():  # readers count positions that are not 0
        row = np.searchsorted(samples.mlm_offsets, np.argmin(samples.mlm_positions != 0), side="right") - 1
        raise ExportError(
            f"{part.shard}: row {row}: [CLS] is masked, which this form cannot tell; make the shard again"
        )
    if part.dtype == "int16":
        for values, offsets in ((samples.tokens, samples.token_offsets), (samples.mlm_ids, samples.mlm_offsets)):
            if len(values) and (most := int(values.max())) > np.iinfo(np.int16).max:
                row = np.searchsorted(offsets, values.argmax(), side="right") - 1
                raise ExportError(f"{part.shard}: row {row}: id {most} does not fit int16; give --dtype int32")
