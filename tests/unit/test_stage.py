"""One node's shards on its own disk: what it reads and no more, each file checked, again without copying twice."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from benchmarks.bert.data.dataset import check_shards, read_data_set
from benchmarks.bert.data.manifest import ManifestError, samples_of_node
from benchmarks.bert.files import sha256_of
from benchmarks.bert.prepare import stage as stage_module
from benchmarks.bert.prepare.lock import FolderError, only_writer
from benchmarks.bert.prepare.stage import StageError, stage
from tests.support.stores import Made, make_folder, samples_of

COUNTS = (10, 10, 10, 10, 8)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """A DATA_DIR's training samples; beside them its evaluation samples and vocabulary."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "vocab.txt").write_text("a\nb\n")
    sha256 = sha256_of(folder / "vocab.txt")
    make_folder(folder / "eval", (4,), seed=7, vocabulary=sha256)
    return make_folder(folder / "train", COUNTS, vocabulary=sha256)


def staged_shards(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "train").glob("*.hdf5"))


def test_each_node_has_what_it_reads_and_the_rest_is_refused(made: Made, tmp_path: Path) -> None:
    everything: set[str] = set()
    for node in range(3):
        out = tmp_path / str(node)
        done = stage(made.data.folder.parent, out, node=node, num_nodes=3)
        assert done.num_samples == 16
        assert done.num_bytes == done.copied_bytes > 0
        everything |= set(staged_shards(out))
        assert len(staged_shards(out)) == done.num_shards < len(COUNTS)
        data, own = read_data_set(out / "train"), samples_of_node(48, node, 3)
        check_shards(data, own)
        assert samples_of(data.open("content").read(own)) == made.expected(own)
        with pytest.raises(ManifestError, match=rf"{out}/train/\d\.hdf5: no such shard .*LOADING=stratified_local"):
            check_shards(data, range(48))
        check_shards(read_data_set(out / "eval"), range(4))
        assert (out / "vocab.txt").read_text() == "a\nb\n"
    assert everything == {f"{number}.hdf5" for number in range(len(COUNTS))}


def test_what_is_there_already_is_kept_and_what_is_damaged_is_copied_again(made: Made, tmp_path: Path) -> None:
    folder, out = made.data.folder.parent, tmp_path / "out"
    stage(folder, out, node=0, num_nodes=3)
    kept = out / "train" / "0.hdf5"
    inode = kept.stat().st_ino
    assert stage(folder, out, node=0, num_nodes=3).copied_bytes == 0
    damaged = out / "train" / "1.hdf5"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    assert stage(folder, out, node=0, num_nodes=3).copied_bytes == damaged.stat().st_size
    assert damaged.read_bytes() == (folder / "train" / "1.hdf5").read_bytes()
    assert kept.stat().st_ino == inode


def test_an_interrupted_copy_has_no_manifest_and_goes_on_where_it_stopped(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = made.data.folder.parent, tmp_path / "out"
    copying = shutil.copyfile

    def interrupted(source: Path, copy: Path) -> None:
        copying(source, copy)
        if Path(source).name == "1.hdf5":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stage_module.shutil, "copyfile", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stage(folder, out, node=0, num_nodes=3)
    assert staged_shards(out) == ["0.hdf5"]
    with pytest.raises(ManifestError, match="unfinished"):
        read_data_set(out / "train")
    done = stage(folder, out, node=0, num_nodes=3)
    assert 0 < done.copied_bytes < done.num_bytes
    assert staged_shards(out) == ["0.hdf5", "1.hdf5"]


def test_two_stagings_do_not_write_one_folder(made: Made, tmp_path: Path) -> None:
    folder, out = made.data.folder.parent, tmp_path / "out"
    with only_writer(out), pytest.raises(FolderError, match=r"out: another preparation is writing it; wait"):
        stage(folder, out, node=0, num_nodes=3)
    assert staged_shards(out) == []
    stage(folder, out, node=0, num_nodes=3)


def test_a_damaged_or_missing_source_is_named_and_no_copy_of_it_left(made: Made, tmp_path: Path) -> None:
    folder, out = made.data.folder.parent, tmp_path / "out"
    os.truncate(made.path(1), 200)
    with pytest.raises(StageError, match=rf"{made.path(1)}: cannot be staged"):
        stage(folder, out, node=0, num_nodes=3)
    assert staged_shards(out) == ["0.hdf5"]
    assert not (out / "train" / "manifest.json").exists()
    made.path(1).unlink()
    with pytest.raises(StageError, match=rf"{made.path(1)}: no such file, but the manifest lists it"):
        stage(folder, out, node=0, num_nodes=3)
    stage(folder, tmp_path / "other", node=2, num_nodes=3)  # which does not need that shard


def test_a_folder_of_other_samples_and_nodes_that_are_not_there_are_refused(made: Made, tmp_path: Path) -> None:
    folder, out = made.data.folder.parent, tmp_path / "out"
    make_folder(out / "train", (3,), seed=99)
    with pytest.raises(StageError, match=r"out/train/manifest\.json: of other samples"):
        stage(folder, out, node=0, num_nodes=3)
    for node in (-1, 3):
        with pytest.raises(StageError, match=f"--node {node}: of 3 nodes"):
            stage(folder, tmp_path / "new", node=node, num_nodes=3)
    with pytest.raises(StageError, match="the data itself"):
        stage(folder, folder, node=0, num_nodes=3)
    assert not (tmp_path / "new").exists()
