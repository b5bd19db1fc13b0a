"""Signals, dying ranks and bad input: the run ends soon, says why in one clear line, and its log tells the truth."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bert.data.manifest import read_manifest
from benchmarks.bert.data.shards import DTYPES
from mlperf_log_utils import close_log
from tests.support.ranks import run_trial
from tests.support.records import read_records
from tests.support.tiny import ROOT, build_part, clean_environment, make_tiny_data, tiny_environment
from tools.verify.log import Record

ENDLESS = {"TARGET_ACCURACY": "0.99", "MAX_STEPS": "1000000", "EVAL_INTERVAL_SAMPLES": "1600"}
SOON_S = 15


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def own_data(data: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    shutil.copytree(data, tmp_path / "own")
    return tmp_path / "own"


def stops(log: Path) -> list[Record]:
    return [record for record in read_records(log) if record.key == "run_stop"]


# --- signals and dying ranks, through the launcher


class Launched:
    """An endless run on two ranks, past its first evaluation."""

    def __init__(self, data: Path, folder: Path) -> None:
        self.log = folder / "result.txt"
        self._stderr = open(folder / "stderr.txt", "w+")  # noqa: SIM115 - closed with the run
        self.launcher = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bert.launch"],
            cwd=ROOT,
            env=tiny_environment(data, self.log, **ENDLESS),
            stderr=self._stderr,
        )
        self.ranks: dict[int, int] = {}
        try:
            wait_until(lambda: self.log.exists() and "eval_accuracy" in self.log.read_text(), 60)
            self.ranks = ranks_of(self.launcher.pid)
            assert sorted(self.ranks) == [0, 1]
        except BaseException:
            self.end()
            raise

    def ended(self) -> int:
        """The launcher's exit status; nothing of the run is left."""
        before = time.monotonic()
        status = self.launcher.wait(SOON_S)
        wait_until(lambda: not any(is_running(pid) for pid in self.ranks.values()), SOON_S)
        assert time.monotonic() - before < SOON_S
        return status

    def stderr(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read()

    def end(self) -> None:
        for pid in [*(self.ranks or ranks_of(self.launcher.pid)).values(), self.launcher.pid]:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
        self.launcher.wait()
        self._stderr.close()


@pytest.fixture
def launched(data: Path, tmp_path: Path) -> Iterator[Launched]:
    run = Launched(data, tmp_path)
    yield run
    run.end()


def wait_until(true: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, f"not within {limit_s} s"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ranks_of(launcher: int) -> dict[int, int]:
    """rank -> process id of the launcher's children."""
    found = {}
    try:
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    except FileNotFoundError:
        return {}
    for child in children:
        for variable in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            if variable.startswith(b"RANK="):
                found[int(variable[5:])] = int(child)
    return found


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_run_soon_and_is_named(launched: Launched, rank: int) -> None:
    os.kill(launched.ranks[rank], signal.SIGKILL)
    assert launched.ended() not in (0, 2)
    assert f"error: rank {rank} was killed by SIGKILL\n" in launched.stderr()
    assert "Traceback" not in launched.stderr()
    # Rank 0 writes the log: killed, it leaves the end to `close`.
    assert close_log(launched.log) == (rank == 0)
    (stop,) = stops(launched.log)
    assert stop.metadata["status"] == "aborted"
    assert stop.metadata["reason"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_soon_and_is_the_reason_in_the_log(launched: Launched, number: signal.Signals) -> None:
    launched.launcher.send_signal(number)
    assert launched.ended() == 128 + number
    assert f"error: stopped by {number.name}\n" in launched.stderr()
    assert "Traceback" not in launched.stderr()
    (stop,) = stops(launched.log)
    assert stop.metadata["status"] == "aborted"
    assert stop.metadata["reason"].endswith(number.name)
    assert not close_log(launched.log)


def test_a_rank_that_hangs_does_not_keep_a_signal_from_ending_the_run(launched: Launched) -> None:
    os.kill(launched.ranks[1], signal.SIGSTOP)
    time.sleep(0.3)  # rank 0 gets to wait for it inside a collective
    launched.launcher.send_signal(signal.SIGTERM)
    assert launched.ended() == 128 + signal.SIGTERM
    (stop,) = stops(launched.log)
    assert (stop.metadata["status"], stop.metadata["reason"]) == ("aborted", "SIGTERM")


def launch(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.bert.launch"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def assert_one_error(stderr: str, *fragments: str) -> None:
    """Nothing but one error, however many ranks met it; before they know of each other, each may say it."""
    said = [line for line in stderr.splitlines() if not line.startswith("seed ")]  # what a sound run says first
    said = [line for line in said if "stopped by SIGTERM" not in line]  # the launcher ends the others
    assert len(set(said)) == 1, stderr
    assert said[0].startswith("error: ")
    for fragment in fragments:
        assert fragment in said[0]


def test_a_shard_that_is_missing_is_named_by_the_launcher_run(own_data: Path, tmp_path: Path) -> None:
    shard = own_data / "train" / "part_00001_of_00002.hdf5"
    shard.unlink()
    run = launch(tiny_environment(own_data, tmp_path / "result.txt"))
    assert run.returncode == 2
    assert_one_error(run.stderr, str(shard), "no such shard", "run ./init_datasets.sh")


def test_an_existing_result_is_refused_and_left_alone_by_the_launcher_run(data: Path, tmp_path: Path) -> None:
    result = tmp_path / "result.txt"
    result.write_text("precious")
    run = launch(tiny_environment(data, result))
    assert run.returncode == 2
    assert_one_error(run.stderr, f"RESULT_FILE={result}", "never overwritten")
    assert result.read_text() == "precious"


def test_an_unknown_variable_is_refused_by_the_launcher_before_any_rank_starts(data: Path, tmp_path: Path) -> None:
    run = launch(tiny_environment(data, tmp_path / "result.txt", LEARNING_RAT="1"))
    assert run.returncode == 2
    assert_one_error(run.stderr, "LEARNING_RAT", "did you mean LEARNING_RATE?")
    assert list(tmp_path.iterdir()) == []


def test_more_than_one_node_is_refused_by_this_launcher(data: Path, tmp_path: Path) -> None:
    run = launch(tiny_environment(data, tmp_path / "result.txt", NUM_NODES="2"))
    assert run.returncode == 2
    assert_one_error(run.stderr, "NUM_NODES=2")


# --- bad input, on two ranks started as by a launcher


def refused(data: Path, result: Path, *fragments: str, **changed: str) -> None:
    ranks = trial(data, result, **changed)
    assert [status for status, *_ in ranks] == [2, 2]
    assert_one_error("".join(stderr for _, stderr, _ in ranks), *fragments)


def trial(
    data: Path, result: Path, hook: Callable[[], Any] | None = None, num_ranks: int = 2, **changed: str
) -> list[tuple[int, str, Any]]:
    return run_trial([tiny_environment(data, result, **changed)] * num_ranks, hook)


def shards_of(data: Path, part: str) -> list[Path]:
    return [data / part / name for name, *_ in read_manifest(data / part).shards]


@pytest.mark.parametrize("part", ["train", "eval"])
@pytest.mark.parametrize("keep", [0, 0.5, 0.999])
def test_a_truncated_shard_is_refused(own_data: Path, tmp_path: Path, part: str, keep: float) -> None:
    shard = shards_of(own_data, part)[-1]
    os.truncate(shard, int(shard.stat().st_size * keep))
    refused(own_data, tmp_path / "result.txt", str(shard), "run ./init_datasets.sh")
    (stop,) = stops(tmp_path / "result.txt")
    assert stop.metadata["status"] == "aborted"
    assert str(shard) in stop.metadata["reason"]


@pytest.mark.parametrize("name", ["tokens", "mlm_ids", "nsp"])
def test_a_flipped_bit_in_a_shard_is_refused(own_data: Path, tmp_path: Path, name: str) -> None:
    import h5py

    shard = shards_of(own_data, "train")[0]
    with h5py.File(shard, "r") as file:
        middle = file[name].id.get_offset() + len(file[name]) * int(DTYPES[name][-1]) // 2
    content = bytearray(shard.read_bytes())
    content[middle] ^= 1
    shard.write_bytes(content)
    refused(own_data, tmp_path / "result.txt", str(shard), "altered or damaged", "run ./init_datasets.sh")


def test_a_shard_made_with_another_vocabulary_is_refused(own_data: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    shutil.copytree(own_data, foreign)
    with open(foreign / "vocab.txt", "a") as file:
        file.write("onemore\n")
    build_part(foreign, "train", num_shards=2, duplicates=2)
    shard = shards_of(own_data, "train")[0]
    shutil.copyfile(foreign / "train" / shard.name, shard)
    refused(own_data, tmp_path / "result.txt", str(shard), "another vocabulary")


def test_another_vocabulary_than_the_samples_is_refused_before_the_clock_starts(own_data: Path, tmp_path: Path) -> None:
    with open(own_data / "vocab.txt", "a") as file:
        file.write("onemore\n")
    refused(own_data, tmp_path / "result.txt", str(own_data / "vocab.txt"), "restore that file or prepare")
    assert not (tmp_path / "result.txt").exists()


@pytest.mark.parametrize(
    ("damage", "name", "remedy"),
    [
        (lambda path: path.unlink(), "train/manifest.json", "run ./init_datasets.sh again"),
        (lambda path: path.write_text(path.read_text()[:-20]), "train/manifest.json", "run ./init_datasets.sh again"),
        (lambda path: path.write_text("{}"), "eval/manifest.json", "run ./init_datasets.sh again"),
        (lambda path: path.unlink(), "train/lengths.npy", "run ./init_datasets.sh again"),
        (lambda path: os.truncate(path, 200), "train/lengths.npy", "run ./init_datasets.sh again"),
        (lambda path: path.unlink(), "vocab.txt", "run ./init_datasets.sh"),
        (lambda path: shutil.rmtree(path), "eval", "run ./init_datasets.sh"),
    ],
)
def test_damaged_metadata_is_refused_before_the_clock_starts(
    own_data: Path, tmp_path: Path, damage: Callable[[Path], None], name: str, remedy: str
) -> None:
    damage(own_data / name)
    refused(own_data, tmp_path / "result.txt", str(own_data / name), remedy)
    assert not (tmp_path / "result.txt").exists()


def test_a_sample_longer_than_max_length_is_refused(data: Path, tmp_path: Path) -> None:
    refused(
        data,
        tmp_path / "result.txt",
        str(data / "train"),
        "more than MAX_LENGTH=16",
        "raise MAX_LENGTH",
        MAX_LENGTH="16",
    )


def test_fewer_samples_than_a_global_batch_are_refused(data: Path, tmp_path: Path) -> None:
    refused(
        data,
        tmp_path / "result.txt",
        "444 training samples",
        "global batch of 1024 (2 ranks x 512)",
        "lower BATCH_SIZE",
        BATCH_SIZE="512",
        EVAL_START_SAMPLES="1024",
    )


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_another_number_of_ranks_than_configured_is_refused_with_both_numbers(
    data: Path, tmp_path: Path, num_ranks: int
) -> None:
    result = tmp_path / "result.txt"
    for status, stderr, _ in trial(data, result, num_ranks=num_ranks):
        assert status == 2
        assert_one_error(stderr, f"started 1 nodes x {num_ranks} ranks", "NUM_NODES=1 x RANKS_PER_NODE=2")
    assert not result.exists()


def test_a_rank_without_a_launcher_is_refused_where_two_are_configured(data: Path, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.bert.train"],
        cwd=ROOT,
        env=tiny_environment(data, tmp_path / "result.txt"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 2
    assert_one_error(run.stderr, "started 1 nodes x 1 ranks", "RANKS_PER_NODE=2")


def test_half_of_a_launchers_variables_are_refused(data: Path, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.bert.train"],
        cwd=ROOT,
        env=tiny_environment(data, tmp_path / "result.txt", RANK="0", WORLD_SIZE="2"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 2
    assert_one_error(run.stderr, "RANK, WORLD_SIZE are set but not LOCAL_RANK", "torchrun")


@pytest.mark.parametrize(
    ("changed", "fragments"),
    [
        ({"LEARNING_RAET": "1"}, ("LEARNING_RAET", "did you mean LEARNING_RATE?")),
        ({"BATCH_SIZE": "eight"}, ("BATCH_SIZE='eight'", "a whole number")),
        ({"BATCH_SIZE": "0"}, ("BATCH_SIZE=0", "at least 1")),
        ({"LEARNING_RATE": "nan"}, ("LEARNING_RATE='nan'", "a number")),
        ({"CLIP": "global"}, ("CLIP=global", "one of none, bucket_before")),
        ({"GRADIENT_ACCUMULATION_STEPS": "3"}, ("BATCH_SIZE=8", "multiple", "GRADIENT_ACCUMULATION_STEPS=3")),
        ({"EVAL_START_SAMPLES": "9999"}, ("9999", "MAX_STEPS", "lower EVAL_START_SAMPLES")),
    ],
)
def test_a_bad_variable_is_refused_by_name_value_and_remedy(
    data: Path, tmp_path: Path, changed: dict[str, str], fragments: tuple[str, ...]
) -> None:
    refused(data, tmp_path / "result.txt", *fragments, **changed)
    assert list(tmp_path.iterdir()) == []


def only_rank_0(ranks: list[tuple[int, str, Any]]) -> tuple[int, str]:
    return ranks[0][0], ranks[0][1]


def test_a_result_that_cannot_be_written_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = tmp_path / "file" / "result.txt"
    status, stderr = only_rank_0(trial(data, result, num_ranks=1, RANKS_PER_NODE="1"))
    assert status == 2
    assert_one_error(stderr, f"RESULT_FILE={result}", "cannot write it (Not a directory)")


def limiting_files_to_2_kb() -> Callable[[], None]:
    """A full disk: from there on writing fails, as Python ignores SIGXFSZ."""
    return _limiting_files(2_000)


def limiting_files_to_14_kb() -> Callable[[], None]:
    return _limiting_files(14_000)


def _limiting_files(size: int) -> Callable[[], None]:
    if os.environ["RANK"] == "0":
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return lambda: None


@pytest.mark.parametrize(
    ("hook", "started"), [(limiting_files_to_2_kb, False), (limiting_files_to_14_kb, True)], ids=["in init", "in run"]
)
def test_a_disk_that_is_full_ends_the_run_names_the_file_and_leaves_whole_records(
    data: Path, tmp_path: Path, hook: Callable[[], Any], started: bool
) -> None:
    result = tmp_path / "result.txt"
    changed = {"TARGET_ACCURACY": "0.99", "MAX_STEPS": "400", "COLLECTIVE_TIMEOUT_S": "3"}
    status, stderr = only_rank_0(trial(data, result, hook, **changed))
    assert status == 1
    assert "Traceback" not in stderr
    error = next(line for line in stderr.splitlines() if line.startswith("error: "))
    assert str(result) in error
    assert "No space left on device" in error or "File too large" in error
    assert result.exists() == started
    if started:
        assert "run_start" in [record.key for record in read_records(result)]
        assert result.read_text().endswith("\n")


def test_a_result_on_a_full_file_system_names_it(data: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.strip()}")
    try:
        result = disk / "result.txt"
        status, stderr = only_rank_0(trial(data, result, COLLECTIVE_TIMEOUT_S="3"))
        assert status == 1
        assert str(result) in stderr
        assert "No space left on device" in stderr
        assert "Traceback" not in stderr
        assert not result.exists()
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_missed_target_is_told_in_the_exit_status_the_message_and_the_log(data: Path, tmp_path: Path) -> None:
    result = tmp_path / "result.txt"
    ranks = trial(data, result, TARGET_ACCURACY="0.99")
    assert [status for status, *_ in ranks] == [1, 1]
    reason = "accuracy 0.99 not reached within MAX_STEPS=12"
    assert f"error: {reason}\n" in ranks[0][1]
    assert ranks[1][1] == ""
    (stop,) = stops(result)
    assert (stop.metadata["status"], stop.metadata["reason"]) == ("aborted", reason)


def test_a_configuration_is_checked_without_starting_anything(data: Path, tmp_path: Path) -> None:
    environment = clean_environment() | {"BATCH_SIZE": "0", "CLIP": "global"}
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.bert.config"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 2
    assert [line.partition("=")[0] for line in run.stderr.splitlines()] == ["error: BATCH_SIZE", "error: CLIP"]
