"""Checkpoints that are torn, damaged or another run's: each is named with what is wrong, and an older one is used."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.bert.checkpoint.resume import Start, find_start
from benchmarks.bert.checkpoint.store import (
    MANIFEST,
    REPLICATED,
    CheckpointError,
    checkpoints_in,
    folder_of,
    lock,
    partial_of,
    rank_file,
)
from benchmarks.bert.config import Config
from benchmarks.bert.world import World
from tests.support.checkpoints import (
    ToyTrainer,
    alter_manifest,
    at_step,
    errors,
    reseal,
    said,
    save_step,
    statuses,
    stop_of,
    toy_saver,
    trial,
)
from tests.support.ranks import run_ranks
from tests.support.tiny import build_part, make_tiny_data

NEWEST, OLDER = 4, 2
IDENTITY = {"LEARNING_RATE": "0.01", "threads": 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def kept(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of four steps with two checkpoints."""
    folder = tmp_path_factory.mktemp("kept")
    assert statuses(trial(data, folder, MAX_STEPS=str(NEWEST))) == [1, 1]
    assert [path.name for path in checkpoints_in(folder / "checkpoints")] == ["step_00000004", "step_00000002"]
    return folder


@pytest.fixture
def copied(kept: Path, tmp_path: Path) -> Path:
    shutil.copytree(kept / "checkpoints", tmp_path / "checkpoints")
    return tmp_path


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def truncated(name: str) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size - 1)


def altered(name: str) -> Callable[[Path], None]:
    def alter(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[-1] ^= 1
        (folder / name).write_bytes(content)

    return alter


def missing(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def of_another(name: str, value: Any) -> Callable[[Path], None]:
    return lambda folder: alter_manifest(folder, lambda fields: fields["identity"].update({name: value}))


def with_fields(**changed: Any) -> Callable[[Path], None]:
    return lambda folder: alter_manifest(folder, lambda fields: fields.update(changed))


def no_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("a file")


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "replicated truncated": (truncated(REPLICATED), f"{REPLICATED}: 4079 bytes, 4080 were written: torn"),
    "replicated altered": (altered(REPLICATED), f"{REPLICATED}: its sha256 is not the one written: damaged"),
    "replicated missing": (missing(REPLICATED), f"{REPLICATED}: cannot read it (No such file or directory)"),
    "rank 0 altered": (altered(rank_file(0)), f"{rank_file(0)}: its sha256 is not the one written: damaged"),
    "rank 1 truncated": (truncated(rank_file(1)), "were written: torn"),
    "rank 1 altered": (altered(rank_file(1)), f"{rank_file(1)}: its sha256 is not the one written: damaged"),
    "rank 1 missing": (missing(rank_file(1)), f"{rank_file(1)}: cannot read it (No such file or directory)"),
    "no manifest": (missing(MANIFEST), "no manifest.json, so it was not finished"),
    "manifest truncated": (truncated(MANIFEST), f"{MANIFEST}: damaged ("),
    "manifest empty": (lambda folder: os.truncate(folder / MANIFEST, 0), f"{MANIFEST}: damaged ("),
    "other JSON": (lambda folder: (folder / MANIFEST).write_text("[1]"), f"{MANIFEST}: damaged ("),
    "identity of a list": (with_fields(identity=["LEARNING_RATE"]), f"{MANIFEST}: damaged ("),
    "no files": (with_fields(files={}), "its manifest knows no "),
    "a file": (no_folder, f"{MANIFEST}: damaged ("),
    "learning rate": (of_another("LEARNING_RATE", "0.5"), "another run's: LEARNING_RATE was 0.5, is now 0.01"),
    "threads": (of_another("threads", 2), "another run's: threads was 2, is now 1"),
    "a new name": (of_another("DROP", "1"), "another run's: DROP was 1, is now None"),
    "seed": (with_fields(seed=8), "another run's: SEED was 8, is now 7"),
    "two": (
        with_fields(seed=8, identity=IDENTITY | {"threads": 2}),
        "another run's: SEED was 8, is now 7; threads was 2, is now 1",
    ),
    "nothing": (lambda folder: None, ""),  # the must-fail twin
}


def finding_starts(rank: int, directories: list[Path], seed: int) -> list[tuple[int, list[str], list[str]]]:
    """Of each directory: the step to go on from, -1 for none, what was said, and the checkpoints that stay usable."""
    found = []
    for directory in directories:
        lines: list[str] = []
        config = Config(checkpoint_dir=directory, resume="if_any", seed=seed)
        world = World(rank, 2, rank, 2, None)
        try:
            start = find_start(config, IDENTITY, world, lines.append)
            found.append((start.step, lines, [folder.name for folder in start.usable]))
        except CheckpointError as error:
            found.append((-1, [*lines, str(error)], []))
    return found


def toy_checkpoints(directory: Path) -> Path:
    directory.mkdir(parents=True)
    trainer = ToyTrainer()
    config = Config(checkpoint_dir=directory, checkpoint_interval_steps=1, checkpoint_keep=9)
    for step in (OLDER, NEWEST):
        save_step(trainer, [toy_saver(trainer, config, rank, 2) for rank in range(2)], step)
        alter_manifest(folder_of(directory, step), lambda fields: fields.update(identity=IDENTITY))
    return directory


def test_each_damage_and_each_difference_is_named_and_the_older_one_is_used_by_all_ranks(tmp_path: Path) -> None:
    sound = toy_checkpoints(tmp_path / "sound")
    directories = [tmp_path / "damaged" / name for name in DAMAGES]
    for directory, (damage, _) in zip(directories, DAMAGES.values(), strict=True):
        shutil.copytree(sound, directory)
        damage(folder_of(directory, NEWEST))
    before = [contents(directory) for directory in directories]
    of_rank_0, of_rank_1 = run_ranks(finding_starts, 2, directories, 7)
    for name, directory, mine, other in zip(DAMAGES, directories, of_rank_0, of_rank_1, strict=True):
        reason = DAMAGES[name][1]
        step = OLDER if reason else NEWEST
        assert mine[0] == other[0] == step, name
        refusal = [line for line in mine[1] if line.startswith("not resuming from step_00000004: ")]
        assert len(refusal) == (1 if reason else 0), name
        assert reason in "".join(refusal), (name, refusal)
        assert f"resuming from {folder_of(directory, step)}" in mine[1]
        assert mine[2] == [f"step_{each:08d}" for each in ((OLDER,) if reason else (NEWEST, OLDER))], name
    after = [contents(directory) for directory in directories]
    assert [{name: bytes_ for name, bytes_ in each.items() if name != ".lock"} for each in after] == before


def test_any_seed_will_do_where_none_is_asked_for_and_only_those_of_the_one_taken_stay(tmp_path: Path) -> None:
    mixed = toy_checkpoints(tmp_path / "mixed")
    with_fields(seed=8)(folder_of(mixed, NEWEST))
    for found in run_ranks(finding_starts, 2, [mixed], -1):
        assert (found[0][0], found[0][2]) == (NEWEST, ["step_00000004"])


def two_threads() -> Callable[[], None]:
    torch.set_num_threads(2)
    return lambda: None


def another_torch() -> Callable[[], None]:
    torch.__version__ = "1.0"
    return lambda: None


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"OPTIMIZER": "lamb"}, "OPTIMIZER was adam, is now lamb"),
        ({"LEARNING_RATE": "1e-2"}, "LEARNING_RATE was 0.003, is now 0.01"),
        ({"SEED": "8"}, "SEED was 7, is now 8"),
        ({"num_ranks": 1, "BATCH_SIZE": "64"}, "BATCH_SIZE was 32, is now 64; RANKS_PER_NODE was 2, is now 1"),
        ({"hook": two_threads}, "threads was 1, is now 2"),
        ({"hook": another_torch}, f"torch was {torch.__version__}, is now 1.0"),
    ],
)
def test_a_run_of_another_kind_is_refused_and_writes_no_log(
    data: Path, copied: Path, change: dict[str, Any], line: str
) -> None:
    before = contents(copied / "checkpoints")
    ranks = trial(data, copied, RESUME="if_any", **change)
    assert set(statuses(ranks)) == {2}
    refusals = [each for each in said(ranks) if each.startswith("not resuming")]
    assert [each.rpartition("another run's: ")[2] for each in refusals] == [line, line]
    (error,) = errors(ranks)
    assert "RESUME=if_any, but of 2 checkpoints there none can be used; name another folder" in error
    assert not (copied / "result.txt").exists()
    assert contents(copied / "checkpoints") == before | {".lock": b""}


def test_a_run_on_other_data_is_refused(data: Path, copied: Path) -> None:
    other = copied / "data"
    shutil.copytree(data, other)
    build_part(other, "train", num_shards=2, duplicates=2, seed=99)
    ranks = trial(other, copied, RESUME="yes")
    assert statuses(ranks) == [2, 2]
    refusals = [each for each in said(ranks) if each.startswith("not resuming")]
    assert len(refusals) == 2
    assert all("another run's: training data was " in each and ", is now " in each for each in refusals)
    moved = copied / "moved"
    shutil.copytree(data, moved)
    assert statuses(trial(moved, copied, RESUME="yes", MAX_STEPS="6")) == [1, 1]  # the same data elsewhere


def test_from_the_older_one_a_run_ends_as_before_and_the_refused_one_steps_aside(
    data: Path, kept: Path, copied: Path
) -> None:
    directory = copied / "checkpoints"
    altered(REPLICATED)(folder_of(directory, NEWEST))
    refused = contents(folder_of(directory, NEWEST))
    foreign = folder_of(directory, 1)
    shutil.copytree(folder_of(directory, OLDER), foreign)
    with_fields(seed=8)(foreign)
    partial_of(directory, 6, "killed").mkdir()
    ranks = trial(data, copied, RESUME="if_any", MAX_STEPS=str(NEWEST), CHECKPOINT_KEEP="1")
    assert statuses(ranks) == [1, 1]
    assert [line for line in said(ranks) if line.startswith("resuming")] == [
        f"resuming from {folder_of(directory, OLDER)}"
    ]
    assert at_step(directory, NEWEST) == at_step(kept / "checkpoints", NEWEST)
    left = sorted(path.name for path in directory.iterdir() if path.name != ".lock")
    assert left[:2] == ["step_00000001", "step_00000004"]  # the older one went: one is kept; the foreign one stays
    (aside,) = left[2:]
    assert aside.startswith("step_00000004.refused-")
    assert contents(directory / aside) == refused


@pytest.mark.parametrize(
    ("resume", "line"),
    [
        ("no", "holds checkpoints of an earlier run, the newest step_00000004; RESUME=yes continues that run"),
        ("yes", "RESUME=yes, but of 0 checkpoints there none can be used; name another folder"),
    ],
)
def test_resume_no_wants_an_empty_folder_and_yes_one_that_is_not(
    data: Path, copied: Path, resume: str, line: str
) -> None:
    if resume == "yes":
        shutil.rmtree(copied / "checkpoints")
    ranks = trial(data, copied, RESUME=resume)
    assert statuses(ranks) == [2, 2]
    (error,) = errors(ranks)
    assert line in error
    assert not (copied / "result.txt").exists()


def test_a_run_that_is_done_is_refused(data: Path, copied: Path) -> None:
    ranks = trial(data, copied, RESUME="if_any", MAX_STEPS=str(NEWEST))
    assert statuses(ranks) == [2, 2]
    (error,) = errors(ranks)
    assert "step_00000004: MAX_STEPS=4 are done; raise it" in error
    assert not (copied / "result.txt").exists()


def rank_1_elsewhere() -> Callable[[], None]:
    if os.environ["RANK"] == "1":
        os.chdir("elsewhere")
    return lambda: None


def test_a_folder_that_not_all_ranks_share_is_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of nodes that each have a disk of their own under one path."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    ranks = trial(data, tmp_path, CHECKPOINT_DIR="checkpoints", hook=rank_1_elsewhere)
    assert statuses(ranks) == [2, 2]
    (error,) = errors(ranks)
    assert "ranks [1] see another folder there than rank 0" in error
    assert not (tmp_path / "result.txt").exists()


def test_if_any_starts_afresh_where_there_is_none(data: Path, tmp_path: Path) -> None:
    ranks = trial(data, tmp_path, RESUME="if_any", MAX_STEPS="2")
    assert statuses(ranks) == [1, 1]
    assert stop_of(tmp_path / "result.txt")["reason"] == "accuracy 0.99 not reached within MAX_STEPS=2"
    assert at_step(tmp_path / "checkpoints", 2).step == 2


def test_a_folder_that_a_living_run_holds_is_refused_to_a_second_one(data: Path, copied: Path) -> None:
    held = lock(copied / "checkpoints")
    before = contents(copied / "checkpoints")
    ranks = trial(data, copied, RESUME="yes", MAX_STEPS=str(NEWEST))
    assert statuses(ranks) == [2, 2]
    (error,) = errors(ranks)
    assert "another run keeps its checkpoints there; name another folder" in error
    assert not (copied / "result.txt").exists()
    assert contents(copied / "checkpoints") == before
    os.close(held)
    assert statuses(trial(data, copied, RESUME="yes", MAX_STEPS=str(NEWEST + 2))) == [1, 1]


@pytest.mark.parametrize("below", [".", "below"])
def test_a_checkpoint_folder_that_cannot_be_is_refused(data: Path, tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    ranks = trial(data, tmp_path, CHECKPOINT_DIR=str(tmp_path / "file" / below))
    assert statuses(ranks) == [2, 2]
    (error,) = errors(ranks)
    assert "cannot write there" in error
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def full_disk_at_the_second_save() -> Callable[[], None]:
    from benchmarks.bert.checkpoint import saver

    write = saver.save_file

    def limited(tensors: Any, path: Path) -> None:
        if "step_00000004" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(tensors, path)

    saver.save_file = limited
    return lambda: None


def test_a_full_disk_costs_one_checkpoint_and_no_step(data: Path, tmp_path: Path) -> None:
    ranks = trial(data, tmp_path, hook=full_disk_at_the_second_save, MAX_STEPS="6")
    assert statuses(ranks) == [1, 1]
    warnings = [line for line in said(ranks) if line.startswith("warning: rank")]
    assert warnings == [
        f"warning: rank {rank}: no checkpoint: OSError: [Errno 28] No space left on device" for rank in range(2)
    ]
    assert stop_of(tmp_path / "result.txt")["reason"] == "accuracy 0.99 not reached within MAX_STEPS=6"
    assert [path.name for path in checkpoints_in(tmp_path / "checkpoints")] == ["step_00000006", "step_00000002"]


def restoring(rank: int, folder: Path) -> tuple[str, bool, bool]:
    """What refuses the checkpoint, and whether the trainer's tensors and the generator are as before."""
    trainer, world = ToyTrainer(), World(rank, 1, rank, 1, None)
    trainer.value.fill_(-1)
    before = torch.get_rng_state()
    refusal = ""
    try:
        Start(step=4, folder=folder).restore(trainer, world)  # type: ignore[arg-type]
    except CheckpointError as error:
        refusal = str(error)
    same = torch.equal(torch.get_rng_state(), before)
    return refusal, bool((trainer.value == -1).all()), same


@pytest.mark.parametrize("what", ["weights", "random states", "nothing"])
def test_a_checkpoint_that_does_not_fit_changes_nothing_of_the_trainer(tmp_path: Path, what: str) -> None:
    folder = folder_of(toy_checkpoints(tmp_path / "checkpoints"), NEWEST)
    torch.manual_seed(99)
    save_file({"random/cpu": torch.get_rng_state()[None]}, folder / rank_file(0))
    if what != "nothing":
        save_file({"other": torch.zeros(1)}, folder / (REPLICATED if what == "weights" else rank_file(0)))
    reseal(folder)
    ((refusal, same_tensors, same_states),) = run_ranks(restoring, 1, folder)
    assert ("has other, which this run has not; lacks " in refusal, same_tensors, same_states) == (
        (False, False, False) if what == "nothing" else (True, True, True)
    )
