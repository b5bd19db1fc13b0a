"""Import of files into a folder of shards: order, shards, resumption, and what is no sample file."""

from __future__ import annotations

import bz2
import gzip
import lzma
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from benchmarks.bert.data.manifest import MANIFEST, Manifest, read_lengths, read_manifest
from benchmarks.bert.data.shards import SampleArrays, open_shard, write_shard
from benchmarks.bert.prepare import __main__ as command_line
from benchmarks.bert.prepare import importing
from benchmarks.bert.prepare.digest import content_digest
from benchmarks.bert.prepare.forms import tfrecord
from benchmarks.bert.prepare.forms.form import TFRECORD, find_form
from benchmarks.bert.prepare.forms.source import SourceError
from benchmarks.bert.prepare.importing import import_files
from benchmarks.bert.prepare.lock import FolderError, only_writer
from tests.support.corpora import SHORT_RECIPE, write_words
from tests.support.sample_files import (
    REFERENCE_DIGEST,
    digest,
    joined,
    make_word_samples,
    padded,
    ragged,
    reference_file,
    same,
    use_threads,
    write_hdf5,
    write_tfrecord,
    write_varlen,
)

CHECKOUT = Path(__file__).parents[2]
PARTS = [make_word_samples(6, seed) for seed in range(4)]
ALL = joined(PARTS)


class Inputs:
    """Four files in three forms, their vocabulary, and the import of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.vocabulary = write_words(root / "vocab.txt")
        self.folder = root / "out"
        self.files = [
            write_tfrecord(root / "a", PARTS[0]),
            write_hdf5(root / "b", padded(PARTS[1])),
            write_varlen(root / "c", ragged(PARTS[2])),
            write_tfrecord(root / "d", PARTS[3]),
        ]
        self.said: list[str] = []
        self.warned: list[str] = []

    def run(self, **options: object) -> Manifest:
        return import_files(
            **{  # type: ignore[arg-type]
                "files": self.files,
                "vocabulary": self.vocabulary,
                "folder": self.folder,
                "max_length": SHORT_RECIPE.max_length,
                "max_predictions": SHORT_RECIPE.max_predictions,
                "num_processes": 1,
                "say": self.said.append,
                "warn": self.warned.append,
            }
            | options
        )

    def shards(self) -> list[SampleArrays]:
        manifest = read_manifest(self.folder)
        return [
            open_shard(self.folder / name, vocabulary_sha256=manifest.vocabulary_sha256, max_length=32, sha256=checksum)
            for name, _, checksum in manifest.shards
        ]

    def times(self) -> list[int]:
        return [path.stat().st_mtime_ns for path in sorted(self.folder.glob("*.hdf5"))]


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inputs:
    use_threads(monkeypatch)
    return Inputs(tmp_path)


def test_each_file_becomes_a_shard_in_order(inputs: Inputs) -> None:
    manifest = inputs.run(num_processes=3)
    assert [count for _, count, _ in manifest.shards] == list(map(len, PARTS))
    assert all(same(found, written) for found, written in zip(inputs.shards(), PARTS, strict=True))
    assert np.array_equal(read_lengths(inputs.folder, manifest), ALL.lengths)
    assert content_digest(inputs.folder) == digest(ALL)
    inputs.files.reverse()
    inputs.run(folder=inputs.root / "reversed")
    assert content_digest(inputs.root / "reversed") != digest(ALL)


@pytest.mark.parametrize("num_shards", [1, 2, 3, 7])
def test_shards_are_cut_in_order(inputs: Inputs, monkeypatch: pytest.MonkeyPatch, num_shards: int) -> None:
    monkeypatch.setattr(tfrecord, "PLACE_EVERY", 4)
    manifest = inputs.run(num_shards=num_shards)
    counts = [count for _, count, _ in manifest.shards]
    assert len(counts) == num_shards
    assert max(counts) - min(counts) <= 1
    assert same(joined(inputs.shards()), ALL)


def test_more_shards_than_samples_are_refused(inputs: Inputs) -> None:
    with pytest.raises(SourceError, match="do not fill 1,000 shards; give fewer --shards"):
        inputs.run(num_shards=1000)
    assert not (inputs.folder / MANIFEST).exists()


@pytest.mark.parametrize("num_shards", [None, 3])
def test_a_second_call_keeps_what_is_there(inputs: Inputs, num_shards: int | None) -> None:
    inputs.run(num_shards=num_shards)
    times = inputs.times()
    inputs.run(num_shards=num_shards)
    assert inputs.times() == times
    write_tfrecord(inputs.files[0], PARTS[3])
    inputs.run(num_shards=num_shards)
    assert inputs.times() != times


def test_an_interrupted_call_goes_on(inputs: Inputs) -> None:
    whole = inputs.files[2].read_bytes()
    inputs.files[2].write_bytes(whole[:-9])
    with pytest.raises(SourceError, match="cannot read it"):
        inputs.run()
    assert not (inputs.folder / MANIFEST).exists()
    made = dict(zip(sorted(path.name for path in inputs.folder.glob("*.hdf5")), inputs.times(), strict=True))
    assert "part_00000_of_00004.hdf5" in made
    inputs.files[2].write_bytes(whole)
    inputs.run()
    assert content_digest(inputs.folder) == digest(ALL)
    assert all((inputs.folder / name).stat().st_mtime_ns == time for name, time in made.items())


def test_a_damaged_shard_is_made_again(inputs: Inputs) -> None:
    inputs.run()
    (shard := inputs.folder / "part_00001_of_00004.hdf5").write_bytes(shard.read_bytes()[:-100])
    inputs.run()
    assert content_digest(inputs.folder) == digest(ALL)


def test_nothing_is_left_of_a_file_that_breaks_off(inputs: Inputs) -> None:
    inputs.files = [inputs.files[0]]
    inputs.files[0].write_bytes(inputs.files[0].read_bytes()[:-1])
    with pytest.raises(SourceError, match="cut off"):
        inputs.run()
    assert [path.name for path in inputs.folder.iterdir()] == [".lock"]


def test_shards_that_repeat_each_other_are_warned_of(inputs: Inputs) -> None:
    inputs.run()
    assert inputs.warned == []
    write_tfrecord(inputs.files[3], PARTS[0])
    inputs.run()
    assert "1 of 4 shards hold the same samples as another" in inputs.warned[0]


def test_two_imports_do_not_write_one_folder(inputs: Inputs) -> None:
    with only_writer(inputs.folder), pytest.raises(FolderError, match="another preparation is writing it"):
        inputs.run()


def test_a_full_disk_leaves_no_manifest(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(importing.Spool, "write", refuse)
    with pytest.raises(OSError, match="No space left"):
        inputs.run()
    assert not (inputs.folder / MANIFEST).exists()


def test_a_file_named_twice_or_in_the_folder_is_refused(inputs: Inputs) -> None:
    with pytest.raises(SourceError, match="named twice"):
        inputs.run(files=[inputs.files[0], inputs.files[1], inputs.files[0]])
    with pytest.raises(SourceError, match="choose another --out"):
        inputs.run(folder=inputs.root)


def test_a_form_that_is_given_is_believed(inputs: Inputs) -> None:
    assert find_form(inputs.files[0]) == TFRECORD
    inputs.run(files=inputs.files[:1], form=TFRECORD)
    assert same(inputs.shards()[0], PARTS[0])
    with pytest.raises(SourceError, match="lacks input_mask"):
        inputs.run(files=inputs.files[2:3], form="fixed")


NO_SAMPLE_FILES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda whole: b"", "an empty file; copy or make it again"),
    "gz": (gzip.compress, r"packed with gzip; unpack it first \(gunzip "),
    "xz": (lzma.compress, r"packed with xz; unpack it first \(unxz "),
    "bz2": (bz2.compress, r"packed with bzip2; unpack it first \(bunzip2 "),
    "text": (lambda whole: "Ein Satz, äöü.\n".encode() * 99, "text, not samples; make samples of it with python -m"),
    "noise": (lambda whole: bytes(range(256)), "neither TFRecord nor HDF5"),
    "a damaged first byte": (lambda whole: bytes([whole[0] ^ 1]) + whole[1:], ".*damaged at its very beginning"),
    "its first 11 bytes": (lambda whole: whole[:11], "neither TFRecord nor HDF5"),
    "only the beginning of HDF5": (lambda whole: b"\x89HDF\r\n\x1a\n", r"cannot read it \("),
}


@pytest.mark.parametrize(("make", "message"), NO_SAMPLE_FILES.values(), ids=NO_SAMPLE_FILES)
def test_what_is_no_sample_file_is_refused(inputs: Inputs, make: Callable[[bytes], bytes], message: str) -> None:
    inputs.files[0].write_bytes(make(inputs.files[0].read_bytes()))
    with pytest.raises(SourceError, match=f"{inputs.files[0]}: {message}"):
        inputs.run()


def test_folders_and_our_own_shards_are_refused_with_the_way_to_go(inputs: Inputs) -> None:
    folder = inputs.root / "texts"
    folder.mkdir()
    with pytest.raises(SourceError, match="a folder; name the files in it"):
        inputs.run(files=[folder])
    (folder / "wiki.txt").write_text("A line.\n")
    with pytest.raises(SourceError, match=r"prepare samples .*/texts/\*\.txt --vocab VOCAB"):
        inputs.run(files=[folder])
    with pytest.raises(SourceError, match=r"nowhere: cannot read it \(No such file or directory\)"):
        inputs.run(files=[inputs.root / "nowhere"])
    write_shard(inputs.root / "own", PARTS[0], vocabulary_sha256="v", recipe="r")
    with pytest.raises(SourceError, match="a shard of this harness already"):
        inputs.run(files=[inputs.root / "own"])
    write_hdf5(inputs.root / "packed", padded(PARTS[0]) | {"packed_input_len": np.zeros(3)})
    with pytest.raises(SourceError, match="import the files that were packed"):
        inputs.run(files=[inputs.root / "packed"])


def arguments(inputs: Inputs, *files: Path) -> list[str]:
    sizes = ("--processes", "1", "--max-length", "32", "--max-predictions", "5")
    return [*map(str, ("import", *files, *sizes, "--vocab", inputs.vocabulary, "--out", inputs.folder))]


def test_the_command_works_with_real_processes(inputs: Inputs) -> None:
    command = [sys.executable, "-m", "benchmarks.bert.prepare", *arguments(inputs, *inputs.files)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"{len(ALL):,} samples" in done.stdout.splitlines()[-1]
    assert content_digest(inputs.folder) == digest(ALL)


def test_the_command_refuses_in_one_line(
    inputs: Inputs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["prepare", *arguments(inputs, inputs.root)])
    assert command_line.main() == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {inputs.root}: a folder of text")
    assert len(err.splitlines()) == 1


def test_four_forms_of_the_references_samples_give_one_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_threads(monkeypatch)
    sha256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
    # The import wants ids of [CLS] and [SEP] and the size of the vocabulary, not its words.
    words = [f"[unused{number}]" for number in range(30522)]
    words[0], words[100:104] = "[PAD]", ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(words) + "\n")
    assert importing.sha256_of(vocabulary) != sha256
    for name in ("a.tfrecord", "a_fixed512.hdf5", "a_varlen.hdf5"):
        (path := tmp_path / name).write_bytes(lzma.decompress(reference_file(f"{name}.xz").read_bytes()))
        import_files(
            [path],
            vocabulary,
            tmp_path / f"{name}.out",
            max_length=512,
            max_predictions=76,
            num_shards=None if name == "a.tfrecord" else 3,
            num_processes=1,
            say=lambda line: None,
        )
        assert content_digest(tmp_path / f"{name}.out") == REFERENCE_DIGEST
