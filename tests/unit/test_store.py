"""Samples by number from a folder of shards: right ones, each shard opened once, and every fault of a file named."""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.bert.data import store as store_module
from benchmarks.bert.data.batch import PackedBatch, PackLayout, pack
from benchmarks.bert.data.dataset import check_shards
from benchmarks.bert.data.manifest import ManifestError, samples_of_node, shards_with
from benchmarks.bert.data.shards import DTYPES, ShardError, write_shard
from benchmarks.bert.data.store import SampleStore
from tests.support.stores import VOCABULARY, Made, make_folder, samples_of

ROOT = Path(__file__).resolve().parents[2]
COUNTS = (40, 0, 1, 25)
ALL = np.random.default_rng(5).permutation(sum(COUNTS))
both_checks = pytest.mark.parametrize("check", ["content", "headers"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A folder that no test alters."""
    return make_folder(tmp_path_factory.mktemp("whole"), COUNTS)


@pytest.fixture
def own(tmp_path: Path) -> Made:
    """A folder to damage."""
    return make_folder(tmp_path / "own", COUNTS)


class Opened:
    """Counts what is opened, by file name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        opening = store_module.os.open

        def counted(path: Any, *arguments: Any, **options: Any) -> int:
            self.names.append(Path(path).name)
            return opening(path, *arguments, **options)

        monkeypatch.setattr(store_module.os, "open", counted)


@both_checks
def test_samples_come_in_the_order_asked_for(whole: Made, check: str) -> None:
    found = whole.data.open(check).read(ALL)
    assert samples_of(found) == whole.expected(ALL)
    assert samples_of(found) != whole.expected(ALL[::-1])
    for name, array in found.items():
        assert array.dtype == np.dtype(DTYPES[name])


def test_a_pack_from_files_is_bit_for_bit_the_pack_of_the_arrays(whole: Made) -> None:
    first = np.cumsum([0, *COUNTS])
    shards = np.searchsorted(first, ALL, side="right") - 1
    expected = pack([(whole.shards[s], int(n - first[s])) for s, n in zip(shards, ALL, strict=True)])
    assert_equal(whole.data.open("content").pack(ALL), expected)
    with pytest.raises(AssertionError):
        assert_equal(whole.data.open("content").pack(ALL[::-1]), expected)


def assert_equal(found: PackedBatch, expected: PackedBatch) -> None:
    for name, value in vars(expected).items():
        other = getattr(found, name)
        if isinstance(value, PackLayout):
            assert other.lengths == value.lengths
            value, other = value.cu_lengths, other.cu_lengths
        assert other.dtype == value.dtype, name
        assert torch.equal(other, value), name


@pytest.mark.parametrize("number", [-1, sum(COUNTS)])
def test_a_number_beyond_the_samples_is_an_error(whole: Made, number: int) -> None:
    with pytest.raises(IndexError, match="no sample"):
        whole.data.open("headers").read([0, number])


# Opening


def test_a_shard_is_opened_when_it_is_first_touched_and_never_twice(
    whole: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(monkeypatch)
    store = whole.data.open("content")
    assert opened.names == []
    for _ in range(3):
        store.prefetch([0, 41])
        store.read([41, 0, 5])
    assert sorted(opened.names) == ["0.hdf5", "3.hdf5"]
    whole.data.open("content").read([0])
    assert sorted(opened.names) == ["0.hdf5", "0.hdf5", "3.hdf5"]


def test_threads_that_touch_a_shard_at_once_open_it_once(whole: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(monkeypatch)
    store = whole.data.open("content")
    together = threading.Barrier(8)

    def read() -> None:
        together.wait()
        store.read(ALL)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(opened.names) == ["0.hdf5", "2.hdf5", "3.hdf5"]


def test_a_refused_shard_is_refused_again_without_being_opened_again(
    own: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.path(0).write_bytes(b"")
    opened = Opened(monkeypatch)
    store = own.data.open("content")
    for _ in range(2):
        store.prefetch([0])  # says nothing: it is for `read` to meet
        with pytest.raises(ShardError, match=r"0\.hdf5: an empty file"):
            store.read([0])
    assert opened.names == ["0.hdf5"]
    assert samples_of(store.read([41])) == own.expected([41])


def test_no_more_files_stay_open_than_shards_were_touched(whole: Made) -> None:
    def num_open() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = num_open()
    store = whole.data.open("content")
    store.read(ALL)
    assert num_open() == before + 3
    del store
    assert num_open() == before


MANY_SHARDS = """
import resource, sys
from pathlib import Path
import numpy as np
from benchmarks.bert.data.manifest import Manifest
from benchmarks.bert.data.store import SampleStore
resource.setrlimit(resource.RLIMIT_NOFILE, (100, int(sys.argv[1])))
shards = tuple((f"{i}.hdf5", 1, "") for i in range(2000))
try:
    SampleStore(Path("x"), Manifest(2000, 2000, 8, 1, "", "", "", shards), np.ones(2000))
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize(("hard", "says"), [(4000, "2256"), (2000, "x: 2000 shards .* may open 2000 files; raise")])
def test_as_many_files_may_be_open_as_there_are_shards_or_it_is_said(hard: int, says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MANY_SHARDS, str(min(hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.match(says, done.stdout), done.stdout


# What a check finds


def flip(path: Path, name: str, element: int = 0) -> None:
    with h5py.File(path) as file:
        place = file[name].id.get_offset() + element * file[name].dtype.itemsize
    content = bytearray(path.read_bytes())
    content[place] ^= 64
    path.write_bytes(content)


def test_content_finds_a_flipped_bit_where_headers_does_not(own: Made) -> None:
    flip(own.path(0), "tokens")
    with pytest.raises(ShardError, match=r"0\.hdf5: its content's sha256 is .*altered or damaged; .*init_datasets"):
        own.data.open("content").read([3])
    assert samples_of(own.data.open("headers").read([3])) == own.expected([3])
    assert samples_of(own.data.open("headers").read([0])) != own.expected([0])


@pytest.mark.parametrize(
    ("name", "element", "sample"),
    [("token_offsets", 3, 3), ("mlm_offsets", 3, 3), ("mlm_positions", 0, 0), ("boundary", 0, 0)],
)
def test_a_sample_that_does_not_fit_its_length_is_named_under_both_checks(
    own: Made, name: str, element: int, sample: int
) -> None:
    flip(own.path(0), name, element)
    complaint = rf"0\.hdf5: sample {sample} is not of the length that lengths\.npy tells"
    with pytest.raises(ShardError, match=complaint):
        own.data.open("headers").read([30, sample, 31])
    own.data.open("headers").read([30, 31])
    with pytest.raises(ShardError, match="altered or damaged"):
        own.data.open("content").read([30])


def other_samples(made: Made) -> None:
    write_shard(
        made.path(0),
        make_folder(made.path(0).parent / "x", (40,), 9).shards[0],
        vocabulary_sha256=VOCABULARY,
        recipe="",
    )


def other_vocabulary(made: Made) -> None:
    write_shard(made.path(0), made.shards[0], vocabulary_sha256="0" * 64, recipe="")


def cut(made: Made) -> None:
    os.truncate(made.path(0), made.path(0).stat().st_size - 1)


def vanish(made: Made) -> None:
    made.path(0).unlink()


def a_folder(made: Made) -> None:
    made.path(0).unlink()
    made.path(0).mkdir()


def compressed(made: Made) -> None:
    with h5py.File(made.path(0), "r+") as file:
        tokens = file["tokens"][:]
        del file["tokens"]
        file.create_dataset("tokens", data=tokens, compression="gzip")


def shorter_data_set(made: Made) -> None:
    with h5py.File(made.path(0), "r+") as file:
        boundary = file["boundary"][:-1]
        del file["boundary"]
        file["boundary"] = boundary


@both_checks
@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (other_samples, "sha256 is .*altered or damaged"),
        (other_vocabulary, "made with another vocabulary"),
        (cut, "not a whole HDF5 shard, perhaps truncated"),
        (vanish, "no such shard"),
        (a_folder, "not a whole HDF5 shard"),
        (compressed, "tokens is not contiguous"),
        (shorter_data_set, "size of boundary does not fit"),
    ],
)
def test_a_shard_that_cannot_be_used_is_refused_by_name_when_it_is_first_touched(
    own: Made, check: str, damage: Callable[[Made], None], complaint: str
) -> None:
    damage(own)
    store = own.data.open(check)
    assert samples_of(store.read([41, 50])) == own.expected([41, 50])
    with pytest.raises(ShardError, match=rf"0\.hdf5: .*{complaint}.*run \./init_datasets\.sh"):
        store.read([50, 0])


# While a run reads


def test_a_shard_that_is_replaced_is_read_as_it_was(own: Made) -> None:
    store = own.data.open("content")
    store.read([0])
    other = make_folder(own.data.folder.parent / "other", COUNTS, seed=9)
    os.replace(other.path(0), own.path(0))
    assert samples_of(store.read(range(40))) == own.expected(range(40))
    with pytest.raises(ShardError, match="altered or damaged"):  # the twin: who opens it now sees the new one
        own.data.open("headers").read([0])


def rewritten(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))  # a clock may be coarser than the test is fast


def appended(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"x")


def halved(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("change", [rewritten, appended, halved])
def test_a_shard_that_is_written_to_while_a_run_reads_it_is_refused(own: Made, change: Callable[[Path], None]) -> None:
    store = own.data.open("content")
    store.read([0])
    change(own.path(0))
    with pytest.raises(ShardError, match=r"0\.hdf5: it was changed while the run reads it"):
        store.read([0])
    assert samples_of(store.read([41])) == own.expected([41])


def test_a_file_that_is_cut_between_check_and_read_is_an_error_and_no_signal(
    own: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a memory map this would be SIGBUS, the end of the process: see the twin."""
    store = own.data.open("content")
    store.read([0])
    os.truncate(own.path(0), 100)
    monkeypatch.setattr(store_module._Shard, "check_unchanged", lambda _: None)
    with pytest.raises(ShardError, match=r"0\.hdf5: \w+ end before element \d+: cut"):
        store.read([39])


MAPPED = """
import os, sys
import numpy as np
mapped = np.memmap(sys.argv[1], np.uint8, "r")
os.truncate(sys.argv[1], 100)
print(mapped[-1])
"""


def test_a_memory_map_of_a_file_that_is_cut_ends_the_process(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(100_000))
    done = subprocess.run([sys.executable, "-c", MAPPED, str(tmp_path / "x")], capture_output=True, check=False)
    assert done.returncode == -signal.SIGBUS


def test_short_reads_are_asked_for_again(whole: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, asked = os.pread, []

    def short(descriptor: int, size: int, start: int) -> bytes:
        asked.append(size)
        return reading(descriptor, min(size, 3), start)

    monkeypatch.setattr(store_module.os, "pread", short)
    assert samples_of(whole.data.open("content").read(ALL[:9])) == whole.expected(ALL[:9])
    assert max(asked) > 3


def test_a_disk_that_fails_is_named(whole: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    store = whole.data.open("content")
    store.read([0])
    monkeypatch.setattr(store_module.os, "pread", fail)
    with pytest.raises(ShardError, match=r"0\.hdf5: cannot read it \(Input/output error\); mend the disk"):
        store.read([0])
    with pytest.raises(ShardError, match=r"3\.hdf5: cannot read it \(Input/output error\)"):
        store.read([41])


# Forked processes: known faults 19 and 21


class Numbered(Dataset[list[dict[str, list[int]]]]):
    def __init__(self, store: SampleStore) -> None:
        self._store = store

    def __len__(self) -> int:
        return len(ALL)

    def __getitem__(self, number: int) -> list[dict[str, list[int]]]:
        return samples_of(self._store.read([number]))


def first_of(batch: list[Any]) -> Any:
    return batch[0]


@pytest.mark.parametrize("num_workers", [0, 1, 4])
def test_workers_forked_off_an_open_store_read_the_same(whole: Made, num_workers: int) -> None:
    store = whole.data.open("content")
    store.read([0])  # one shard is open before the fork, the others are not
    stream = DataLoader(
        Numbered(store), num_workers=num_workers, collate_fn=first_of, multiprocessing_context=FORK[num_workers]
    )
    assert [sample for batch in stream for sample in batch] == whole.expected(range(len(ALL)))


FORK = {0: None, 1: get_context("fork"), 4: get_context("fork")}


def read_at_random(store: SampleStore, made: Made, seed: int) -> bool:
    rng = np.random.default_rng(seed)
    found = []

    def read() -> None:
        for _ in range(250):
            numbers = rng.integers(len(ALL), size=4)
            found.append(samples_of(store.read(numbers)) == made.expected(numbers))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(found) == 500 and all(found)


def test_random_reads_by_two_processes_of_two_threads_are_those_of_one(whole: Made) -> None:
    store = whole.data.open("headers")
    store.read([0])
    children = []
    for seed in range(2):
        child = os.fork()
        if not child:
            os._exit(0 if read_at_random(store, whole, seed) else 1)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]


# One node's samples


def test_nodes_runs_of_samples_cover_all_once() -> None:
    for num_samples, num_nodes in [(66, 1), (66, 4), (7, 5), (156_725_653, 128)]:
        runs = [samples_of_node(num_samples, node, num_nodes) for node in range(num_nodes)]
        assert [runs[0].start, *(run.stop for run in runs)] == [*(run.start for run in runs), num_samples]


def test_the_shards_of_a_run_are_those_that_hold_some_of_it(whole: Made) -> None:
    manifest = whole.data.manifest

    def names(start: int, stop: int) -> list[str]:
        return [name for name, *_ in shards_with(manifest, range(start, stop))]

    assert names(0, 66) == ["0.hdf5", "2.hdf5", "3.hdf5"]
    assert names(0, 40) == ["0.hdf5"]
    assert names(39, 41) == ["0.hdf5", "2.hdf5"]
    assert names(41, 42) == ["3.hdf5"]
    assert names(40, 40) == []


def test_shards_that_are_missing_are_named_where_they_are_needed(own: Made) -> None:
    own.path(0).unlink()
    own.path(2).unlink()
    check_shards(own.data, range(41, 66))
    with pytest.raises(ManifestError, match=r"own/0\.hdf5: no such shard \(nor 2\.hdf5\); .*LOADING=stratified_local"):
        check_shards(own.data, range(66))
    with pytest.raises(ManifestError, match=r"own/2\.hdf5: no such shard; "):
        check_shards(own.data, range(40, 66))
