"""A shard that becomes another while a run reads it: the old file is read on, or the run ends on all ranks by name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bert.data.manifest import read_manifest
from benchmarks.bert.progress import Progress
from tests.support.checkpoints import errors, evaluations, statuses, stop_of
from tests.support.ranks import run_trial
from tests.support.tiny import build_part, make_tiny_data, tiny_environment

AT_STEP = 6  # both shards have been read by then


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def own_data(data: Path, tmp_path: Path) -> Path:
    shutil.copytree(data, tmp_path / "own")
    return tmp_path / "own"


def replace(shard: Path, other: Path) -> None:
    """As rsync and every step of the preparation do: another file takes the name."""
    shutil.copyfile(other, shard.with_suffix(".new"))
    os.replace(shard.with_suffix(".new"), shard)


def overwrite(shard: Path, other: Path) -> None:
    """As cp does."""
    shutil.copyfile(other, shard)
    os.utime(shard, ns=(1, 1))  # a clock may be coarser than the test is fast


def cut(shard: Path, other: Path) -> None:
    os.truncate(shard, shard.stat().st_size // 2)


def changing(shard: Path, other: Path, change: Callable[[Path, Path], None]) -> Callable[[], None]:
    """Rank 0 changes the shard in the middle of the run."""
    show = Progress.step

    def step(self: Progress, number: int, loss: Any) -> None:
        show(self, number, loss)
        if number == AT_STEP:
            change(shard, other)

    Progress.step = step  # type: ignore[method-assign]
    return lambda: None


def trial(data: Path, result: Path, hook: Callable[[], Any] | None = None) -> list[tuple[int, str, Any]]:
    changed = {"TARGET_ACCURACY": "0.99", "MAX_STEPS": "40", "INIT_STD": "0.3", "COLLECTIVE_TIMEOUT_S": "10"}
    return run_trial([tiny_environment(data, result, **changed)] * 2, hook)


def shards_of(data: Path, tmp_path: Path) -> tuple[Path, Path]:
    """One that is read all the time, and one of the same name with other samples."""
    shutil.copytree(data, tmp_path / "other")
    build_part(tmp_path / "other", "train", num_shards=2, duplicates=2, seed=99)
    name = read_manifest(data / "train").shards[0][0]
    return data / "train" / name, tmp_path / "other" / "train" / name


def test_a_shard_whose_name_another_file_takes_is_read_to_the_end_as_it_was(
    data: Path, own_data: Path, tmp_path: Path
) -> None:
    shard, other = shards_of(own_data, tmp_path)
    changed = trial(own_data, tmp_path / "changed", partial(changing, shard, other, replace))
    undisturbed = trial(data, tmp_path / "undisturbed")
    assert statuses(changed) == statuses(undisturbed) == [1, 1]  # the target cannot be reached
    assert shard.read_bytes() == other.read_bytes()
    assert evaluations(tmp_path / "changed") == evaluations(tmp_path / "undisturbed")
    assert len({accuracy for _, accuracy in evaluations(tmp_path / "changed")}) > 1
    refused = trial(own_data, tmp_path / "next")  # the twin: a run that opens it now
    assert statuses(refused) == [2, 2]
    assert f"{shard}: its content's sha256 is" in errors(refused)[0]


@pytest.mark.parametrize("change", [overwrite, cut])
def test_a_shard_that_is_written_to_ends_the_run_on_all_ranks_by_its_name(
    own_data: Path, tmp_path: Path, change: Callable[[Path, Path], None]
) -> None:
    shard, other = shards_of(own_data, tmp_path)
    ranks = trial(own_data, tmp_path / "result.txt", partial(changing, shard, other, change))
    assert statuses(ranks) == [2, 2]
    (error,) = errors(ranks)
    assert error.startswith(f"error: {shard}: it was changed while the run reads it; ")
    stop = stop_of(tmp_path / "result.txt")
    assert stop["status"] == "aborted"
    assert f"{shard}: it was changed" in stop["reason"]
