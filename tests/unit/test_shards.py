"""The shard file: what is written comes back as memory maps, and what was not written whole is refused."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import h5py
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.bert import files
from benchmarks.bert.data.shards import (
    DTYPES,
    FORMAT,
    SampleArrays,
    ShardError,
    open_shard,
    read_attributes,
    sha256_of,
    write_shard,
)
from benchmarks.bert.files import atomic_write
from benchmarks.bert.prepare.build import to_arrays
from tests.support.corpora import SHORT_RECIPE, make_arrays

VOCABULARY = "5a" * 32
REMEDY = r"run \./init_datasets\.sh"
CHECKOUT = Path(__file__).parents[2]

# Flips one bit at each of many places of a shard; the HDF5 library must neither crash, nor hang, nor be believed.
FLIP_EVERYWHERE = """
import json, sys
from pathlib import Path
from benchmarks.bert.data.shards import ShardError, open_shard, sha256_of
path, vocabulary, checksum = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
whole, outcomes = path.read_bytes(), {"refused": 0, "unharmed": 0, "believed": 0}
for place in range(0, len(whole), 17):
    damaged = bytearray(whole)
    damaged[place] ^= 1 << place % 8
    path.write_bytes(damaged)
    try:
        same = sha256_of(open_shard(path, vocabulary_sha256=vocabulary, max_length=32)) == checksum
        outcomes["unharmed" if same else "believed"] += 1
    except ShardError:
        outcomes["refused"] += 1
print(json.dumps(outcomes))
"""

KILLED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from benchmarks.bert.files import atomic_write
with atomic_write(Path(sys.argv[1])) as temporary:
    temporary.write_text("half of the new content")
    {death}
"""

KILLED_BEFORE_THE_SHARD_HAS_ITS_NAME = """
import os, signal, sys
from pathlib import Path
from benchmarks.bert import files
from benchmarks.bert.data.shards import write_shard
from tests.support.corpora import make_arrays
files.os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
write_shard(Path(sys.argv[1]), make_arrays(), vocabulary_sha256="v", recipe="r")
"""

SHARD_LARGER_THAN_THE_DISK = """
import resource, signal, sys
from pathlib import Path
from benchmarks.bert.data.shards import write_shard
from tests.support.corpora import make_arrays
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    write_shard(Path(sys.argv[1]), make_arrays(), vocabulary_sha256="v", recipe="r")
except OSError as error:
    print(error)
"""


def run_python(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False)


def write(path: Path, arrays: SampleArrays) -> str:
    return write_shard(path, arrays, vocabulary_sha256=VOCABULARY, recipe='{"seed": 1}')


def reopen(path: Path, *, max_length: int = SHORT_RECIPE.max_length, sha256: str | None = None) -> SampleArrays:
    return open_shard(path, vocabulary_sha256=VOCABULARY, max_length=max_length, sha256=sha256)


def assert_equal(found: SampleArrays, expected: SampleArrays) -> None:
    for (name, left), (_, right) in zip(found.items(), expected.items(), strict=True):
        np.testing.assert_array_equal(left, right, err_msg=name)


@pytest.fixture(scope="module")
def arrays() -> SampleArrays:
    return make_arrays()


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory, arrays: SampleArrays) -> Path:
    """A whole shard that no test alters."""
    path = tmp_path_factory.mktemp("whole") / "whole.hdf5"
    write(path, arrays)
    return path


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place for damaged copies, shared by all examples of a property."""
    return tmp_path_factory.mktemp("damaged") / "damaged.hdf5"


def test_a_shard_comes_back_as_read_only_aligned_memory_maps_of_the_stored_types(
    shard: Path, arrays: SampleArrays
) -> None:
    found = reopen(shard)
    assert_equal(found, arrays)
    assert len(found) == len(arrays) > 10
    np.testing.assert_array_equal(found.lengths, np.diff(arrays.token_offsets))
    for name, array in found.items():
        assert isinstance(array, np.memmap)
        assert array.dtype == np.dtype(DTYPES[name])
        assert not array.flags.writeable
        assert array.flags.aligned


def test_no_padding_is_stored(shard: Path, arrays: SampleArrays) -> None:
    with h5py.File(shard) as file:
        assert {name: file[name].shape for name in file} == {name: array.shape for name, array in arrays.items()}
        assert all(file[name].chunks is None for name in file)
    assert len(arrays.tokens) == arrays.lengths.sum()


def test_attributes_tell_counts_vocabulary_recipe_and_checksum(shard: Path, arrays: SampleArrays) -> None:
    assert read_attributes(shard) == {
        "format": FORMAT,
        "num_samples": len(arrays),
        "num_tokens": len(arrays.tokens),
        "vocabulary_sha256": VOCABULARY,
        "recipe": '{"seed": 1}',
        "sha256": sha256_of(arrays),
    }


def test_memory_maps_outlive_the_files_name(tmp_path: Path, arrays: SampleArrays) -> None:
    write(tmp_path / "x.hdf5", arrays)
    found = reopen(tmp_path / "x.hdf5")
    (tmp_path / "x.hdf5").unlink()
    assert_equal(found, arrays)


def test_a_shard_of_no_samples_comes_back(tmp_path: Path) -> None:
    empty = to_arrays([])
    write(tmp_path / "x.hdf5", empty)
    found = reopen(tmp_path / "x.hdf5")
    assert len(found) == 0
    assert_equal(found, empty)


def test_the_same_samples_make_the_same_bytes(tmp_path: Path, shard: Path, arrays: SampleArrays) -> None:
    write(tmp_path / "x.hdf5", arrays)
    assert (tmp_path / "x.hdf5").read_bytes() == shard.read_bytes()


def test_a_missing_shard_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match=rf"absent\.hdf5: no such shard; .*{REMEDY}"):
        reopen(tmp_path / "absent.hdf5")


@pytest.mark.parametrize("content", [b"", b"text\n", b"\x89HDF\r\n\x1a\n", bytes(4096)])
def test_a_file_that_is_no_hdf5_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.hdf5").write_bytes(content)
    complaint = "not a whole HDF5 shard" if content else "an empty file"
    with pytest.raises(ShardError, match=rf"x\.hdf5: {complaint}.*{REMEDY}"):
        reopen(tmp_path / "x.hdf5")


def test_a_folder_in_place_of_a_shard_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match=rf"{tmp_path.name}: .*{REMEDY}"):
        reopen(tmp_path)


@settings(max_examples=150, deadline=None)
@example(share=0.0)
@example(share=1.0)
@given(share=st.floats(0, 1))
def test_a_truncated_shard_is_refused_wherever_it_ends(shard: Path, damaged: Path, share: float) -> None:
    whole = shard.read_bytes()
    damaged.write_bytes(whole[: round(share * (len(whole) - 1))])
    with pytest.raises(ShardError, match=rf"damaged\.hdf5: .*{REMEDY}"):
        reopen(damaged)


@pytest.mark.parametrize("name", DTYPES)
def test_a_flipped_bit_in_the_data_is_refused(shard: Path, damaged: Path, name: str) -> None:
    with h5py.File(shard) as file:
        start, size = file[name].id.get_offset(), file[name].id.get_storage_size()
    whole = shard.read_bytes()
    for place in sorted({*range(start, start + size, max(1, size // 60)), start + size - 1}):
        content = bytearray(whole)
        content[place] ^= 1 << place % 8
        damaged.write_bytes(content)
        with pytest.raises(ShardError, match=rf"damaged\.hdf5: .*altered or damaged; .*{REMEDY}"):
            reopen(damaged)


def test_a_flipped_bit_anywhere_neither_crashes_nor_hangs_nor_goes_unseen(shard: Path, tmp_path: Path) -> None:
    (tmp_path / "x.hdf5").write_bytes(shard.read_bytes())
    done = run_python(FLIP_EVERYWHERE, tmp_path / "x.hdf5", VOCABULARY, read_attributes(shard)["sha256"])
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert outcomes["believed"] == 0
    assert outcomes["refused"] > 3 * outcomes["unharmed"]


def test_a_whole_shard_in_anothers_place_is_refused(shard: Path, arrays: SampleArrays) -> None:
    assert_equal(reopen(shard, sha256=sha256_of(arrays)), arrays)
    with pytest.raises(ShardError, match=rf"whole\.hdf5: its content's sha256 is .*{REMEDY}"):
        reopen(shard, sha256="0" * 64)


def test_a_foreign_vocabulary_is_refused(shard: Path) -> None:
    with pytest.raises(ShardError, match=rf"whole\.hdf5: made with another vocabulary .*{REMEDY} with this vocabulary"):
        open_shard(shard, vocabulary_sha256="0" * 64, max_length=32)


def test_a_sample_longer_than_the_maximum_is_refused_and_named(shard: Path, arrays: SampleArrays) -> None:
    longest = int(arrays.lengths.max())
    row = int(arrays.lengths.argmax())
    assert_equal(reopen(shard, max_length=longest), arrays)
    complaint = rf"sample {row} has {longest} tokens, .* at most {longest - 1}; raise MAX_LENGTH or .*{REMEDY}"
    with pytest.raises(ShardError, match=rf"whole\.hdf5: {complaint}"):
        reopen(shard, max_length=longest - 1)


def remove_format(file: h5py.File) -> None:
    del file.attrs["format"]


def change_format(file: h5py.File) -> None:
    file.attrs["format"] = "packed-bert-samples-0"


def remove_checksum(file: h5py.File) -> None:
    del file.attrs["sha256"]


def remove_vocabulary(file: h5py.File) -> None:
    del file.attrs["vocabulary_sha256"]


def remove_data_set(file: h5py.File) -> None:
    del file["mlm_ids"]


def widen_data_set(file: h5py.File) -> None:
    tokens = file["tokens"][:]
    del file["tokens"]
    file["tokens"] = tokens.astype(np.int32)


def compress_data_set(file: h5py.File) -> None:
    tokens = file["tokens"][:]
    del file["tokens"]
    file.create_dataset("tokens", data=tokens, compression="gzip")


@pytest.mark.parametrize(
    "change",
    [
        remove_format,
        change_format,
        remove_checksum,
        remove_vocabulary,
        remove_data_set,
        widen_data_set,
        compress_data_set,
    ],
)
def test_hdf5_of_another_layout_is_refused(shard: Path, tmp_path: Path, change: Callable[[h5py.File], None]) -> None:
    (tmp_path / "x.hdf5").write_bytes(shard.read_bytes())
    with h5py.File(tmp_path / "x.hdf5", "r+") as file:
        change(file)
    with pytest.raises(ShardError, match=rf"x\.hdf5: .*{REMEDY}"):
        reopen(tmp_path / "x.hdf5")


def test_atomic_write_replaces_the_content_and_makes_folders(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x"
    for content in ("old", "new"):
        with atomic_write(path) as temporary:
            temporary.write_text(content)
            assert temporary.parent == path.parent
    assert path.read_text() == "new"
    assert os.listdir(path.parent) == ["x"]


@pytest.mark.parametrize("death", ["os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"])
@pytest.mark.parametrize("old", [None, "old"])
def test_a_kill_while_writing_leaves_the_final_name_as_it_was(tmp_path: Path, death: str, old: str | None) -> None:
    path = tmp_path / "x"
    if old is not None:
        path.write_text(old)
    done = run_python(KILLED_WHILE_WRITING.format(death=death), path)
    assert done.returncode in (3, -signal.SIGKILL)
    assert (path.read_text() if path.exists() else None) == old


def test_a_kill_before_a_shard_has_its_name_leaves_no_shard(tmp_path: Path) -> None:
    done = run_python(KILLED_BEFORE_THE_SHARD_HAS_ITS_NAME, tmp_path / "x.hdf5")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (tmp_path / "x.hdf5").exists()
    assert not list(tmp_path.glob("*.hdf5"))


def disk_full(*arguments: object, **options: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_shard_and_no_temporary(
    tmp_path: Path, shard: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    (tmp_path / "x.hdf5").write_bytes(shard.read_bytes())
    with monkeypatch.context() as patch:
        patch.setattr(files.os, call, disk_full)
        with pytest.raises(OSError, match=r"No space left on device.*x\.hdf5"):
            write(tmp_path / "x.hdf5", make_arrays(seed=1))
    assert os.listdir(tmp_path) == ["x.hdf5"]
    assert (tmp_path / "x.hdf5").read_bytes() == shard.read_bytes()


def test_an_exception_while_writing_leaves_no_temporary(tmp_path: Path) -> None:
    def interrupted() -> None:
        with atomic_write(tmp_path / "x") as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("limit", [100, 2500])
def test_a_write_that_the_disk_refuses_names_the_shard_and_leaves_the_old_one(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "x.hdf5"
    path.write_text("old")
    done = run_python(SHARD_LARGER_THAN_THE_DISK, path, limit)
    assert done.returncode == 0, done.stderr
    assert str(path) in done.stdout
    assert "File too large" in done.stdout
    assert os.listdir(tmp_path) == ["x.hdf5"]
    assert path.read_text() == "old"
