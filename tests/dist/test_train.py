"""Whole tiny runs on gloo ranks: what they log, that they repeat, and that how a batch is cut does not matter."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bert.progress import Progress
from tests.support.ranks import run_trial
from tests.support.records import read_records
from tests.support.tiny import ROOT, build_part, make_tiny_data, tiny_environment
from tools.verify.log import Record

WARM_UP_PASSES = 3  # of a run without accumulation
FOUR_EVALUATIONS = {"TARGET_ACCURACY": "0.99", "MAX_STEPS": "16"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def data_of_one_prediction(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every sample has one masked token: the mean of ranks' mean losses is then the mean over the global batch."""
    folder = tmp_path_factory.mktemp("one") / "data"
    shutil.copytree(data, folder)
    build_part(folder, "train", num_shards=2, duplicates=2, max_predictions=1)
    return folder


def trial(
    data: Path,
    result: Path,
    *,
    num_ranks: int = 2,
    hook: Callable[[], Any] | None = None,
    of_rank_1: dict[str, str] | None = None,
    **changed: str,
) -> list[tuple[int, str, Any]]:
    environment = tiny_environment(data, result, **{"RANKS_PER_NODE": str(num_ranks)} | changed)
    environments = [environment | ((of_rank_1 or {}) if rank == 1 else {}) for rank in range(num_ranks)]
    return run_trial(environments, hook)


def values(log: Path, key: str) -> list[Any]:
    return [record.value for record in read_records(log) if record.key == key]


def last(log: Path, key: str) -> Record:
    return [record for record in read_records(log) if record.key == key][-1]


def accuracies(log: Path) -> list[float]:
    return values(log, "eval_accuracy")


def test_a_run_through_the_launcher_ends_in_success_and_a_log(data: Path, tmp_path: Path) -> None:
    result = tmp_path / "result.txt"
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.bert.launch"],
        cwd=ROOT,
        env=tiny_environment(data, result),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    assert last(result, "run_stop").metadata["status"] == "success"
    assert ":::MLLOG" not in run.stdout + run.stderr
    assert "64 samples: masked-LM accuracy" in run.stderr
    assert "Traceback" not in run.stderr


def recording_losses() -> Callable[[], list[float]]:
    losses: list[float] = []
    show = Progress.step

    def record(self: Progress, step: int, loss: Any) -> None:
        losses.append(loss.item())
        show(self, step, loss)

    Progress.step = record  # type: ignore[method-assign]
    return lambda: losses


def test_the_same_seed_gives_the_same_losses_and_accuracies_and_another_seed_others(data: Path, tmp_path: Path) -> None:
    runs = []
    for name, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        ranks = trial(data, tmp_path / name, hook=recording_losses, SEED=seed, DROPOUT="0.1", **FOUR_EVALUATIONS)
        runs.append((ranks[0][2], accuracies(tmp_path / name)))
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    losses, found = runs[0]
    assert len(losses) == 16
    assert len(found) == 4
    num_vocabulary = len((data / "vocab.txt").read_text().splitlines())
    assert losses[0] == pytest.approx(math.log(num_vocabulary) + math.log(2), abs=0.3)
    assert losses[-1] < losses[0] - 0.3


def test_a_drawn_seed_is_in_the_log_and_differs_between_runs(data: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert [status for status, *_ in trial(data, tmp_path / name, SEED="-1")] == [0, 0]
    seeds = [last(tmp_path / name, "seed").value for name in ("a", "b")]
    assert seeds[0] != seeds[1]
    assert min(seeds) >= 0


@pytest.mark.parametrize("loading", ["stratified_presort", "random"])
def test_one_rank_with_the_whole_batch_or_two_with_half_or_micro_batches_reach_the_same_accuracies(
    data_of_one_prediction: Path, tmp_path: Path, loading: str
) -> None:
    common = FOUR_EVALUATIONS | {"CLIP": "none", "LOADING": loading, "LEARNING_RATE": "3e-3"}
    cuts = {
        "whole": {"num_ranks": 1, "BATCH_SIZE": "16"},
        "halves": {"num_ranks": 2, "BATCH_SIZE": "8"},
        "quarters": {"num_ranks": 4, "BATCH_SIZE": "4"},
        "micro": {"num_ranks": 1, "BATCH_SIZE": "16", "GRADIENT_ACCUMULATION_STEPS": "4"},
        "both": {"num_ranks": 2, "BATCH_SIZE": "8", "GRADIENT_ACCUMULATION_STEPS": "2"},
    }
    for name, cut in cuts.items():
        trial(data_of_one_prediction, tmp_path / name, **common | cut)
    expected = accuracies(tmp_path / "whole")
    assert len(set(expected)) > 1
    for name in cuts:
        assert accuracies(tmp_path / name) == pytest.approx(expected, abs=1e-3), name


def test_accumulation_with_clipping_reaches_the_target_and_is_logged(data: Path, tmp_path: Path) -> None:
    result = tmp_path / "result.txt"
    ranks = trial(data, result, GRADIENT_ACCUMULATION_STEPS="4")
    assert [status for status, *_ in ranks] == [0, 0]
    assert last(result, "gradient_accumulation_steps").value == 4
    assert last(result, "global_batch_size").value == 16
    assert last(result, "train_samples").value == 64


@pytest.mark.parametrize("attention", ["plain", "split"])
def test_bf16_runs(data: Path, tmp_path: Path, attention: str) -> None:
    ranks = trial(data, tmp_path / "result.txt", hook=recording_losses, PRECISION="bf16", ATTENTION=attention)
    assert [status for status, *_ in ranks] == [0, 0]
    assert all(math.isfinite(loss) for loss in ranks[0][2])


def poisoning_the_third_step_of_rank_1() -> Callable[[], None]:
    from benchmarks.bert import trainer

    exact, calls = trainer.pretraining_loss, []

    def poisoned(*args: Any) -> Any:
        calls.append(1)
        return exact(*args) * (math.nan if os.environ["RANK"] == "1" and len(calls) == WARM_UP_PASSES + 3 else 1.0)

    trainer.pretraining_loss = poisoned
    return lambda: None


def test_a_step_that_one_rank_cannot_take_is_skipped_counted_and_not_among_the_samples(
    data: Path, tmp_path: Path
) -> None:
    result = tmp_path / "result.txt"
    ranks = trial(data, result, hook=poisoning_the_third_step_of_rank_1)
    assert [status for status, *_ in ranks] == [0, 0]
    assert last(result, "tracked_stats").value["skipped_steps"] == 1
    assert last(result, "eval_accuracy").metadata["epoch_num"] == 48
    assert last(result, "train_samples").value == 48
    assert last(result, "run_stop").metadata["status"] == "success"


def watching_files() -> Callable[[], list[tuple[float, str]]]:
    opened: list[tuple[float, str]] = []

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | os.PathLike):
            opened.append((time.time() * 1000, os.fspath(arguments[0])))

    sys.addaudithook(note)
    return lambda: opened


def test_before_run_start_only_metadata_is_opened(data: Path, tmp_path: Path) -> None:
    result = tmp_path / "result.txt"
    ranks = trial(data, result, hook=watching_files)
    start_ms = last(result, "run_start").time_ms
    for status, _, opened in ranks:
        assert status == 0
        early = {Path(path).name for at, path in opened if path.startswith(str(data)) and at < start_ms}
        late = {Path(path).suffix for at, path in opened if path.startswith(str(data)) and at >= start_ms}
        assert early == {"manifest.json", "lengths.npy", "vocab.txt"}
        assert ".hdf5" in late


def test_no_shard_is_read_before_run_start(data: Path, tmp_path: Path) -> None:
    without = tmp_path / "data"
    shutil.copytree(data, without)
    for shard in without.rglob("*.hdf5"):
        shard.write_bytes(b"")
    ranks = trial(without, tmp_path / "result.txt")
    assert [status for status, *_ in ranks] == [2, 2]
    records = read_records(tmp_path / "result.txt")
    keys = [record.key for record in records]
    assert keys.index("init_stop") < keys.index("run_start") < keys.index("run_stop")
    assert records[-1].metadata["status"] == "aborted"
    assert "an empty file, not a shard" in records[-1].metadata["reason"]


@pytest.mark.parametrize("what", ["DATA_DIR", "LEARNING_RATE"])
def test_a_rank_with_other_data_or_configuration_is_refused_by_number(data: Path, tmp_path: Path, what: str) -> None:
    other = tmp_path / "other"
    shutil.copytree(data, other)
    ranks = trial(data, tmp_path / "result.txt", of_rank_1={what: str(other) if what == "DATA_DIR" else "0.5"})
    assert [status for status, *_ in ranks] == [2, 2]
    (error,) = {line for _, stderr, _ in ranks for line in stderr.splitlines()}
    assert error.startswith("error: ranks [1] differ from rank 0")
    assert not (tmp_path / "result.txt").exists()


def test_a_rank_whose_samples_differ_is_refused_by_number(data: Path, tmp_path: Path) -> None:
    """The same folder name on two nodes, other bytes: the shards' checksums tell before any shard is opened."""
    mine, link = tmp_path / "mine", tmp_path / "data"
    shutil.copytree(data, mine)
    build_part(mine, "train", num_shards=2, duplicates=2, seed=99)
    link.symlink_to(data)
    ranks = trial(link, tmp_path / "result.txt", hook=relinking_on_rank_1)
    assert [status for status, *_ in ranks] == [2, 2]
    (error,) = {line for _, stderr, _ in ranks for line in stderr.splitlines()}
    assert error.startswith("error: ranks [1] differ from rank 0")


def relinking_on_rank_1() -> Callable[[], None]:
    """On rank 1 the data folder is `mine`, as a node-local folder of the same name would be."""
    from benchmarks.bert import train

    if os.environ["RANK"] == "1":
        read = train.read_data_set
        train.read_data_set = lambda folder: read(folder.parent.parent / "mine" / folder.name)
    return lambda: None


def raising_on_rank_1() -> Callable[[], None]:
    from benchmarks.bert import trainer

    exact, calls = trainer.pretraining_loss, []

    def broken(*args: Any) -> Any:
        calls.append(1)
        if os.environ["RANK"] == "1" and len(calls) == WARM_UP_PASSES + 3:
            raise ArithmeticError("a fault of the machine")
        return exact(*args)

    trainer.pretraining_loss = broken
    return lambda: None


def test_a_rank_that_waits_for_a_broken_one_gives_up_after_the_time_limit(data: Path, tmp_path: Path) -> None:
    result = tmp_path / "result.txt"
    before = time.monotonic()
    ranks = trial(data, result, hook=raising_on_rank_1, COLLECTIVE_TIMEOUT_S="3")
    assert time.monotonic() - before < 30
    assert [status for status, *_ in ranks] == [1, 1]
    assert ranks[1][1].startswith("error: rank 1: ArithmeticError: a fault of the machine")
    assert values(result, "run_stop") == [None]
    assert last(result, "run_stop").metadata["status"] == "aborted"
    assert "rank 1: ArithmeticError: a fault of the machine" in last(result, "run_stop").metadata["reason"]


def signalled_and_then_breaking() -> Callable[[], None]:
    """As on a rank whose peer left at the same signal a moment earlier."""
    from benchmarks.bert import trainer

    exact, calls = trainer.pretraining_loss, []

    def broken(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == WARM_UP_PASSES + 3:
            os.kill(os.getpid(), signal.SIGTERM)
            raise RuntimeError("Connection closed by peer")
        return exact(*args)

    trainer.pretraining_loss = broken
    return lambda: None


def test_an_error_that_follows_a_signal_leaves_the_signal_as_the_reason(data: Path, tmp_path: Path) -> None:
    result = tmp_path / "result.txt"
    ((status, stderr, _),) = trial(data, result, num_ranks=1, hook=signalled_and_then_breaking)
    assert status == 128 + signal.SIGTERM
    assert stderr.splitlines()[1:] == ["error: rank 0: stopped by SIGTERM"]
    assert last(result, "run_stop").metadata["reason"] == "Interrupted: SIGTERM"
