"""A disk that gives an error, or half of what it is asked for: the preparation's steps name the file, and none dies."""

from __future__ import annotations

import builtins
import bz2
import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bert.data.shards import ShardError, open_shard
from benchmarks.bert.files import sha256_of
from benchmarks.bert.prepare import stage as stage_module
from benchmarks.bert.prepare.corpus import CorpusError, read_corpus
from benchmarks.bert.prepare.digest import content_digest
from benchmarks.bert.prepare.extract import read_pages
from benchmarks.bert.prepare.sources import whole_files
from benchmarks.bert.prepare.stage import StageError, stage
from benchmarks.bert.prepare.wiki import _lines
from benchmarks.bert.prepare.wordpiece import read_vocabulary
from tests.support.corpora import make_documents, write_text, write_words
from tests.support.dumps import page, write_dump
from tests.support.stores import MAX_LENGTH, VOCABULARY, make_folder


class ShortFile(io.FileIO):
    """Gives a third of what it is asked for."""

    def readinto(self, buffer: Any) -> int:
        return super().readinto(memoryview(buffer)[: max(1, len(buffer) // 3)])


class FailingFile(io.FileIO):
    """Fails where one is to read beyond its first thousand bytes."""

    def readinto(self, buffer: Any) -> int:
        if self.tell() + len(buffer) > 1000:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().readinto(buffer)

    def readall(self) -> bytes:
        if os.fstat(self.fileno()).st_size > 1000:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().readall()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[io.FileIO]], None]:
    """From the call on, files that are opened for reading are of this kind."""
    opening = open

    def replace(kind: type[io.FileIO]) -> None:
        def opened(path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            if mode not in ("r", "rb"):
                return opening(path, mode, *rest, **options)
            binary = io.BufferedReader(kind(path))
            return binary if mode == "rb" else io.TextIOWrapper(binary, encoding=options.get("encoding"))

        monkeypatch.setattr(builtins, "open", opened)
        monkeypatch.setattr(io, "open", opened)
        monkeypatch.setattr(bz2, "_builtin_open", opened)

    return replace


def some_text(folder: Path) -> Path:
    return write_text(folder / "text.txt", make_documents(40))


def some_dump(folder: Path) -> Path:
    pages = (page(f"T{number}", os.urandom(40).hex(), number=number) for number in range(60))
    return write_dump(folder / "dump.xml.bz2", *pages)


def some_words(folder: Path) -> Path:
    return write_words(folder / "vocab.txt")


def some_shard(folder: Path) -> Path:
    return make_folder(folder, (60,)).path(0)


def read_shard(path: Path) -> list[int]:
    return list(open_shard(path, vocabulary_sha256=VOCABULARY, max_length=MAX_LENGTH).tokens)


READERS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Any]]] = {
    "text": (some_text, lambda path: list(read_corpus([path]))),
    "identity of a text": (some_text, lambda path: whole_files([path])[0].sha256),
    "extracted articles": (some_text, lambda path: list(_lines(path))),
    "dump": (some_dump, lambda path: [each.text for each in read_pages(path)]),
    "vocabulary": (some_words, read_vocabulary),
    "shard": (some_shard, read_shard),
    "digest of a folder": (some_shard, lambda path: content_digest(path.parent)),
    "any file": (some_text, sha256_of),
}


@pytest.mark.parametrize(("make", "read"), READERS.values(), ids=READERS)
def test_short_reads_give_the_whole(
    tmp_path: Path,
    disk: Callable[[type[io.FileIO]], None],
    make: Callable[[Path], Path],
    read: Callable[[Path], Any],
) -> None:
    path = make(tmp_path)
    expected = read(path)
    assert expected
    disk(ShortFile)
    assert read(path) == expected


@pytest.mark.parametrize(("make", "read"), READERS.values(), ids=READERS)
def test_a_disk_that_fails_is_an_error_that_names_the_file(
    tmp_path: Path,
    disk: Callable[[type[io.FileIO]], None],
    make: Callable[[Path], Path],
    read: Callable[[Path], Any],
) -> None:
    path = make(tmp_path)
    assert path.stat().st_size > 1000
    disk(FailingFile)
    with pytest.raises((CorpusError, ShardError, ValueError, OSError)) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "Input/output error" in str(caught.value)


def test_a_shard_that_cannot_be_staged_is_named_with_both_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vocab.txt").write_text("a\n")
    made = make_folder(tmp_path / "train", (20, 20), vocabulary=sha256_of(tmp_path / "vocab.txt"))
    make_folder(tmp_path / "eval", (4,), vocabulary=sha256_of(tmp_path / "vocab.txt"))
    copying, out = stage_module.shutil.copyfile, tmp_path / "out"

    def failing(source: Path, copy: Path) -> None:
        if source == made.path(1):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        copying(source, copy)

    monkeypatch.setattr(stage_module.shutil, "copyfile", failing)
    with pytest.raises(StageError, match=rf"^{made.path(1)}: cannot be copied to {out}/train/1\.hdf5 \(Input/output"):
        stage(tmp_path, out, node=0, num_nodes=1)
    assert [path.name for path in (out / "train").glob("*.hdf5*")] == ["0.hdf5"]
    assert not (out / "train" / "manifest.json").exists()
    monkeypatch.undo()
    assert stage(tmp_path, out, node=0, num_nodes=1).num_shards == 2
