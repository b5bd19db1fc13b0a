"""Runs killed at any moment leave checkpoints that are whole, and go on from them as if nothing had been."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.bert.checkpoint import saver
from benchmarks.bert.checkpoint.state import read_tensors
from benchmarks.bert.checkpoint.store import REPLICATED, checkpoints_in, folder_of, lock, read_manifest
from tests.support.checkpoints import VARIED, at_step, save_up_to_each_point, statuses, trial
from tests.support.ranks import RankFailedError, run_ranks
from tests.support.tiny import ROOT, make_tiny_data, tiny_environment
from tools.bench.resume_torture import Tally, is_whole, wait_and_kill

KILLS = ("ranks", "launcher", "ranks", "launcher", "ranks")
WITHOUT_END = {"MAX_STEPS": "1000000", "DECAY_STEPS": "1000000", "BATCH_SIZE": "8", "CHECKPOINT_INTERVAL_STEPS": "1"}


def check_all_whole(directory: Path) -> list[int]:
    """The steps, the newest first, of checkpoints that are each what was trained then."""
    steps = []
    for folder in checkpoints_in(directory):
        assert is_whole(folder), folder
        step = read_manifest(folder).step
        assert folder == folder_of(directory, step)
        assert read_tensors(folder / REPLICATED)["model/value"].tolist() == [step] * 1000
        steps.append(step)
    return steps


def test_a_process_that_dies_at_any_file_operation_of_a_save_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    (ends,) = run_ranks(save_up_to_each_point, 1, tmp_path, "dies")
    passed = [name for _, name, _ in ends]
    for name in (
        "os.mkdir .step_00000002.run.partial",
        "half of replicated.safetensors",
        "half of rank_00001.safetensors",
        "os.remove replicated.json",
        "os.rename .step_00000002.run.partial",
        "os.rename step_00000001",
    ):
        assert name in passed, passed
    newest = []
    for directory, name, _ in ends:
        steps = check_all_whole(directory)
        assert steps in ([1], [2, 1], [2]), name
        newest.append(steps[0])
        os.close(lock(directory))
        assert [path.name for path in directory.iterdir() if path.name.startswith(".step")] == []
    published = passed.index("os.rename .step_00000002.run.partial") + 1
    assert newest == [1] * published + [2] * (len(ends) - published)


def test_a_save_that_fails_at_any_file_operation_is_warned_of_and_the_next_one_is_whole(tmp_path: Path) -> None:
    (ends,) = run_ranks(save_up_to_each_point, 1, tmp_path, "fails")
    assert len(ends) > 20
    for directory, name, warned in ends:
        steps = check_all_whole(directory)
        assert steps[0] == 3, name
        assert [path.name for path in directory.iterdir() if path.name.endswith(".partial")] == [], name
        assert warned or name.startswith("shutil.rmtree") or 2 not in steps, name


def writing_in_place() -> None:
    saver.partial_of = lambda directory, step, run_id: folder_of(directory, step)


def test_a_save_in_place_would_be_caught(tmp_path: Path) -> None:
    """The must-fail twin: the same, but for the name under which a checkpoint is written."""
    (ends,) = run_ranks(save_up_to_each_point, 1, tmp_path, "dies", writing_in_place)
    assert any(not is_whole(folder) for directory, *_ in ends for folder in checkpoints_in(directory))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_data(tmp_path_factory.mktemp("data"))


def killing_itself_after_some_steps() -> Callable[[], None]:
    """SIGKILL on every rank, a random while after a new checkpoint is there."""
    directory = Path(os.environ["CHECKPOINT_DIR"])
    delay_s = float(os.environ["KILL_AFTER_S"])

    def watch(newest: list[Path]) -> None:
        while checkpoints_in(directory)[:1] == newest:
            time.sleep(0.002)
        time.sleep(delay_s)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, args=(checkpoints_in(directory)[:1],), daemon=True).start()
    return lambda: None


def test_a_run_killed_again_and_again_ends_like_one_that_was_not(data: Path, tmp_path: Path) -> None:
    rng, tally = random.Random(1), Tally()
    directory = tmp_path / "checkpoints"
    keeping = {"CHECKPOINT_DIR": str(directory), "RESUME": "if_any", "CHECKPOINT_KEEP": "2"}
    for number, killed in enumerate(KILLS):
        before = [path.name for path in checkpoints_in(directory)]
        name = f"cut_{number}.txt"
        if killed == "ranks":
            delay_s = str(rng.uniform(0, 0.3))
            with pytest.raises(RankFailedError, match=r"rank \d died"):
                trial(
                    data,
                    tmp_path,
                    name=name,
                    hook=killing_itself_after_some_steps,
                    KILL_AFTER_S=delay_s,
                    **WITHOUT_END | keeping,
                )
        else:
            environment = tiny_environment(data, tmp_path / name, **VARIED | WITHOUT_END | keeping)
            launcher = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.bert.launch"],
                cwd=ROOT,
                env=environment | {"TMPDIR": str(tmp_path)},
                stderr=subprocess.DEVNULL,
                text=True,
            )
            assert wait_and_kill(launcher, directory, tally, rng)
        assert all(is_whole(folder) for folder in checkpoints_in(directory))
        if killed == "ranks":
            assert [path.name for path in checkpoints_in(directory)] != before
    assert tally.kills == KILLS.count("launcher")
    assert tally.torn == 0
    last = read_manifest(checkpoints_in(directory)[0]).step + 3
    to_the_end = WITHOUT_END | {"MAX_STEPS": str(last)}
    assert statuses(trial(data, tmp_path, **to_the_end | keeping)) == [1, 1]
    assert statuses(trial(data, tmp_path / "uncut", **to_the_end | {"CHECKPOINT_INTERVAL_STEPS": str(last)})) == [1, 1]
    assert at_step(directory, last) == at_step(tmp_path / "uncut" / "checkpoints", last)
