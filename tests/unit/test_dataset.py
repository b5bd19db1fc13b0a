"""What is known of a data folder before the clock starts is checked before the clock starts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from benchmarks.bert.data.dataset import check_lengths, count_vocabulary, read_data_set
from benchmarks.bert.data.manifest import Manifest, ManifestError, write_lengths, write_manifest
from benchmarks.bert.files import sha256_of


def make_data_set(folder: Path, lengths: np.ndarray, **changed: object) -> None:
    """A folder whose metadata alone exist; checksums are right whatever the content is."""
    folder.mkdir(exist_ok=True)
    checksum = write_lengths(folder, lengths)
    shards = (("a.hdf5", 2, "x"), ("b.hdf5", len(lengths) - 2, "y"))
    manifest = Manifest(len(lengths), int(lengths.sum()), 16, 3, "vocabulary", "", checksum, shards)
    write_manifest(folder, dataclasses.replace(manifest, **changed))


def test_a_sound_folder_is_read(tmp_path: Path) -> None:
    make_data_set(tmp_path, np.array([3, 4, 5]))
    assert read_data_set(tmp_path).lengths.tolist() == [3, 4, 5]


def test_lengths_of_zero_are_refused(tmp_path: Path) -> None:
    make_data_set(tmp_path, np.array([3, 0, 5]))
    with pytest.raises(ManifestError, match="above 0"):
        read_data_set(tmp_path)


def test_another_number_of_lengths_than_samples_is_refused(tmp_path: Path) -> None:
    make_data_set(tmp_path, np.array([3, 4, 5]))
    checksum = write_lengths(tmp_path, np.array([3, 4]))
    shards = (("a.hdf5", 2, "x"), ("b.hdf5", 1, "y"))
    write_manifest(tmp_path, Manifest(3, 12, 16, 3, "vocabulary", "", checksum, shards))
    with pytest.raises(ManifestError, match="expected 3 uint16"):
        read_data_set(tmp_path)


def test_a_shard_that_is_listed_twice_is_refused(tmp_path: Path) -> None:
    make_data_set(tmp_path, np.array([3, 4, 5, 6]), shards=(("a.hdf5", 2, "x"), ("a.hdf5", 2, "x")))
    with pytest.raises(ManifestError, match="listed twice"):
        read_data_set(tmp_path)


def test_an_empty_data_set_and_a_sample_that_is_too_long_are_refused(tmp_path: Path) -> None:
    make_data_set(tmp_path, np.array([3, 4, 17]))
    data = read_data_set(tmp_path)
    check_lengths(data, 17)
    with pytest.raises(ManifestError, match=r"sample 2 has 17 tokens, more than MAX_LENGTH=16"):
        check_lengths(data, 16)
    with pytest.raises(ManifestError, match="no samples"):
        check_lengths(dataclasses.replace(data, lengths=np.empty(0, np.uint16)), 16)


def test_every_data_set_must_be_of_the_vocabulary(tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]\nline\u2028separator\nform\ffeed\n", "utf-8")
    make_data_set(tmp_path / "train", np.array([3, 4, 5]), vocabulary_sha256=sha256_of(vocabulary))
    make_data_set(tmp_path / "eval", np.array([3, 4, 5]))
    training, foreign = (read_data_set(tmp_path / part) for part in ("train", "eval"))
    assert count_vocabulary(vocabulary, training) == 3
    with pytest.raises(ManifestError, match=rf"{tmp_path}/eval was made with a vocabulary of sha256 vocabulary"):
        count_vocabulary(vocabulary, training, foreign)
