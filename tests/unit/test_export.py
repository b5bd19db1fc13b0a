"""Export to fixed-length HDF5: the form of the published trees, and the way back gives the same samples."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.data.manifest import Manifest, ManifestError, write_lengths, write_manifest
from benchmarks.bert.data.shards import SampleArrays, ShardError, write_shard
from benchmarks.bert.prepare.exporting import ExportError, export_fixed
from benchmarks.bert.prepare.forms import fixed_hdf5
from tests.support.sample_files import (
    BENCHMARK_RULES,
    REFERENCE_DIGEST,
    SHORT_RULES,
    changed,
    digest,
    joined,
    make_word_samples,
    padded,
    reference_file,
    same,
    use_threads,
)

PARTS = [make_word_samples(8, seed) for seed in range(2)]
KEYS = {
    "input_ids": ("int32", 32),
    "input_mask": ("int8", 32),
    "segment_ids": ("int8", 32),
    "masked_lm_positions": ("int32", 5),
    "masked_lm_ids": ("int32", 5),
    "next_sentence_labels": ("int8", None),
}


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    use_threads(monkeypatch)


def write_folder(folder: Path, parts: list[SampleArrays], max_length: int = 32, max_predictions: int = 5) -> Path:
    shards = []
    for number, part in enumerate(parts):
        name = f"part_{number:05d}_of_{len(parts):05d}.hdf5"
        shards.append((name, len(part), write_shard(folder / name, part, vocabulary_sha256="v", recipe="{}")))
    lengths = np.concatenate([part.lengths for part in parts])
    write_manifest(
        folder,
        Manifest(
            len(lengths),
            int(lengths.sum()),
            max_length,
            max_predictions,
            "v",
            "{}",
            write_lengths(folder, lengths),
            tuple(shards),
        ),
    )
    return folder


def export(folder: Path, out: Path, dtype: str = "int32") -> list[Path]:
    export_fixed(folder, out, dtype=dtype, num_processes=1, say=lambda line: None)
    return sorted(out.glob("*.hdf5"))


@pytest.mark.parametrize("dtype", ["int32", "int16"])
def test_files_are_as_the_published_trees_read_them(tmp_path: Path, dtype: str) -> None:
    paths = export(write_folder(tmp_path / "in", PARTS), tmp_path / "out", dtype)
    assert [path.name for path in paths] == ["part_00000_of_00002.hdf5", "part_00001_of_00002.hdf5"]
    for path, part in zip(paths, PARTS, strict=True):
        expected = padded(part, weights=False)
        with h5py.File(path) as file:
            assert set(file) == set(KEYS)
            for key, (type_, width) in KEYS.items():
                data_set = file[key]
                assert data_set.dtype == np.dtype(dtype if type_ == "int32" else type_)
                assert data_set.shape == ((len(part), width) if width else (len(part),))
                assert data_set.chunks is None
                assert data_set.compression is None
                assert np.array_equal(data_set[:], expected[key])


def test_the_references_samples_go_out_as_they_came_in(tmp_path: Path) -> None:
    source = reference_file("a_first64_fixed512.hdf5")
    samples = joined(fixed_hdf5.read(source, 0, 64, BENCHMARK_RULES))
    (path,) = export(write_folder(tmp_path / "in", [samples], 512, 76), tmp_path / "out")
    with h5py.File(source) as theirs, h5py.File(path) as ours:
        assert list(theirs) == list(ours)
        for key in theirs:
            assert theirs[key].dtype == ours[key].dtype
            assert np.array_equal(theirs[key][:], ours[key][:])
    assert digest(samples) != REFERENCE_DIGEST  # of 64 samples, not all


@settings(deadline=None, max_examples=10)
@given(
    seed=st.integers(0, 1 << 16),
    ids=st.lists(st.integers(0, 305), min_size=1, max_size=20),
    dtype=st.sampled_from(["int32", "int16"]),
)
def test_there_and_back_is_the_identity(
    tmp_path_factory: pytest.TempPathFactory, seed: int, ids: list[int], dtype: str
) -> None:
    """Known fault 41; tokens of any id inside, [PAD] too."""
    samples = make_word_samples(4, seed)
    rng = np.random.default_rng(seed)
    edges = np.concatenate([samples.token_offsets[:-1], samples.token_offsets[1:] - 1])
    places = rng.choice(np.setdiff1d(np.arange(len(samples.tokens)), edges), len(ids), replace=False)
    tokens = samples.tokens.copy()
    tokens[places] = ids
    samples = SampleArrays(tokens, *(values for name, values in samples.items() if name != "tokens"))
    folder = tmp_path_factory.mktemp("trip")
    (path,) = export(write_folder(folder / "in", [samples]), folder / "out", dtype)
    assert same(joined(fixed_hdf5.read(path, 0, len(samples), SHORT_RULES)), samples)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    large = write_folder(tmp_path / "large", [changed(PARTS[0], "mlm_ids", 7, 40000)])
    row = int(np.searchsorted(PARTS[0].mlm_offsets, 7, side="right")) - 1
    with pytest.raises(ExportError, match=rf"row {row}: id 40000 does not fit int16; give --dtype int32"):
        export(large, tmp_path / "out", "int16")
    assert not list((tmp_path / "out").glob("*.hdf5"))
    assert export(large, tmp_path / "out", "int32")
    first = write_folder(tmp_path / "first", [changed(PARTS[0], "mlm_positions", 0, 0)])
    with pytest.raises(ExportError, match=r"row 0: \[CLS\] is masked"):
        export(first, tmp_path / "other")


def test_a_data_folder_is_not_written_over(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "in", PARTS)
    with pytest.raises(ExportError, match="choose another --out"):
        export(folder, folder)
    with pytest.raises(ManifestError, match="no such data folder"):
        export(tmp_path / "nowhere", tmp_path / "out")


def test_a_damaged_shard_is_not_exported(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "in", PARTS)
    shard = folder / "part_00001_of_00002.hdf5"
    shard.write_bytes(shard.read_bytes()[:-50])
    with pytest.raises(ShardError, match="perhaps truncated"):
        export(folder, tmp_path / "out")
