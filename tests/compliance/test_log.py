"""RunLog's records as the rules want them, and the verdicts of the official checker and of tools.verify on them."""

from __future__ import annotations

import contextlib
import inspect
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.bert.comm.group import process_group
from benchmarks.bert.config import Config
from benchmarks.bert.optim.adam import Adam
from benchmarks.bert.optim.lr import PolynomialSchedule
from benchmarks.bert.record import record_cache_clear, record_hyperparameters, record_submission
from benchmarks.bert.trainer import build_trainer
from benchmarks.bert.world import World
from mlperf_log_utils import Outcome, RunLog, close_log
from tests.support.ranks import run_ranks
from tests.support.tiny import ROOT
from tools.verify.__main__ import main as verify_main
from tools.verify.checks import official_findings, own_findings
from tools.verify.log import Record, UnreadableLogError, read_log

HERE = "tests/compliance/test_log.py"
ALONE = World(rank=0, num_ranks=1, local_rank=0, ranks_per_node=1, rendezvous=None)
RULESET = "5.0.0"

REQUIRED_EVERYWHERE = (
    "submission_benchmark",
    "submission_division",
    "cache_clear",
    "init_start",
    "init_stop",
    "run_start",
    "run_stop",
    "block_start",
    "block_stop",
    "eval_accuracy",
    "train_samples",
    "eval_samples",
)
REQUIRED_IN_CLOSED = (
    "global_batch_size",
    "gradient_accumulation_steps",
    "opt_base_learning_rate",
    "opt_learning_rate_training_steps",
    "opt_learning_rate_warmup_steps",
    "num_warmup_steps",
    "start_warmup_step",
    "opt_lamb_beta_1",
    "opt_lamb_beta_2",
    "opt_lamb_weight_decay_rate",
    "opt_lamb_epsilon",
)


def here() -> int:
    """The line of the call."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def records_of(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text("utf-8").splitlines()
    assert all(line.startswith(":::MLLOG ") for line in lines)
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]


def keys_of(path: Path) -> list[str]:
    return [record["key"] for record in records_of(path)]


def only(path: Path, key: str) -> dict[str, Any]:
    (record,) = [record for record in records_of(path) if record["key"] == key]
    return record


def optimizer_of(learning_rate: float = 1e-3, decay: float = 0.01, beta_2: float = 0.99, epsilon: float = 1e-6) -> Adam:
    layer = torch.nn.Linear(2, 2)
    groups = [{"params": [layer.weight], "weight_decay": decay}, {"params": [layer.bias], "weight_decay": 0.0}]
    return Adam(groups, learning_rate=learning_rate, betas=(0.9, beta_2), epsilon=epsilon)


def write_full_log(path: Path, division: str, target: float = 0.72) -> None:
    """Every event of a run, as train.py logs them: evaluations of 0.5 and 0.73, target reached."""
    config, log = Config(division=division, target_accuracy=target), RunLog(path)
    with process_group(ALONE, torch.device("cpu"), 30):
        record_cache_clear(log, config, ALONE)
        with log.init_phase():
            record_submission(log, config, 5)
            record_hyperparameters(log, config, optimizer_of(), PolynomialSchedule(1e-3, 0.0, 2, 0, 10, 1.0), 1)
        with log.run_phase(eval_samples=10_000) as outcome:
            for samples, accuracy in ((64, 0.5), (128, 0.73)):
                with log.evaluation(samples):
                    log.accuracy(accuracy, samples)
                log.event("tracked_stats", {"skipped_steps": 0}, samples_count=samples)
                outcome.samples = samples
            outcome.reached = True


@pytest.fixture(scope="module")
def full_logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A passing log of each division; not to be changed."""
    folder = tmp_path_factory.mktemp("full")
    paths = {division: folder / f"{division}.txt" for division in ("open", "closed")}
    for division, path in paths.items():
        write_full_log(path, division)
    return paths


Change = Callable[[list[dict[str, Any]]], None]


@pytest.fixture
def changed(full_logs: dict[str, Path], tmp_path: Path) -> Callable[..., Path]:
    """A copy of a passing log after a change of its records."""

    def make(change: Change, division: str = "open") -> Path:
        records = records_of(full_logs[division])
        change(records)
        path = tmp_path / "changed.txt"
        path.write_text("".join(f":::MLLOG {json.dumps(record)}\n" for record in records), "utf-8")
        return path

    return make


Verify = Callable[[Path], tuple[int, str]]


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Verify:
    """tools.verify's exit status and output on a log."""

    def run(path: Path) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["verify", "--ruleset", RULESET, str(path)])
        status = verify_main()
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


def line_of(path: Path, key: str) -> int:
    return 1 + keys_of(path).index(key)


# --- what RunLog writes


def test_events_come_in_the_rules_order(full_logs: dict[str, Path]) -> None:
    keys = keys_of(full_logs["open"])
    assert keys[:2] == ["cache_clear", "init_start"]
    run = keys[keys.index("init_stop") :]
    evaluation = ["eval_start", "eval_accuracy", "eval_stop", "tracked_stats"]
    closing = ["block_stop", "train_samples", "eval_samples", "run_stop"]
    assert run == ["init_stop", "run_start", "block_start", *evaluation, *evaluation, *closing]


def test_values_and_metadata_are_what_the_checker_reads(full_logs: dict[str, Path]) -> None:
    path = full_logs["open"]
    assert only(path, "block_start")["metadata"].items() >= {"first_epoch_num": 1, "epoch_count": 1}.items()
    assert only(path, "block_stop")["metadata"]["first_epoch_num"] == 1
    assert only(path, "train_samples")["value"] == 128
    assert only(path, "eval_samples")["value"] == 10_000
    assert only(path, "run_stop")["metadata"]["status"] == "success"
    for record in records_of(path):
        if record["key"].startswith("eval_") and record["key"] != "eval_samples":
            assert record["metadata"]["epoch_num"] == record["metadata"]["samples_count"] in (64, 128)
    kinds = {record["key"]: record["event_type"] for record in records_of(path)}
    assert kinds["run_start"] == kinds["eval_start"] == "INTERVAL_START"
    assert kinds["run_stop"] == kinds["eval_stop"] == "INTERVAL_END"
    assert kinds["eval_accuracy"] == kinds["seed"] == "POINT_IN_TIME"


def test_times_never_go_back(full_logs: dict[str, Path]) -> None:
    times = [record["time_ms"] for record in records_of(full_logs["open"])]
    assert times == sorted(times)
    assert all(isinstance(time_ms, int) for time_ms in times)


def test_both_epsilon_keys_are_there_and_equal(full_logs: dict[str, Path]) -> None:
    assert only(full_logs["open"], "opt_epsilon")["value"] == only(full_logs["open"], "opt_lamb_epsilon")["value"]


def test_hyperparameters_are_the_live_optimizers_not_the_configurations(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log")
    config = Config(weight_decay=0.5, beta_2=0.5, epsilon=0.5, learning_rate=0.5, warmup_steps=77)
    optimizer = optimizer_of(decay=0.001, beta_2=0.995, epsilon=1e-7)
    record_hyperparameters(log, config, optimizer, PolynomialSchedule(3e-4, 0.0, 9, -4, 100, 1.0), 1)
    values = {record["key"]: record["value"] for record in records_of(tmp_path / "log")}
    assert values["opt_lamb_weight_decay_rate"] == 0.001
    assert values["opt_lamb_beta_1"] == 0.9
    assert values["opt_lamb_beta_2"] == 0.995
    assert values["opt_lamb_epsilon"] == values["opt_epsilon"] == 1e-7
    assert values["opt_base_learning_rate"] == 3e-4
    assert values["opt_learning_rate_warmup_steps"] == values["num_warmup_steps"] == 9
    assert values["start_warmup_step"] == -4


def test_the_trainer_gives_the_optimizer_what_the_configuration_says(tmp_path: Path) -> None:
    sizes = {"max_length": 32, "num_layers": 1, "hidden_size": 16, "num_heads": 2, "ffn_size": 16}
    config = Config(
        **sizes, device="cpu", weight_decay=0.003, beta_1=0.8, beta_2=0.97, epsilon=1e-5, learning_rate=2e-3
    )
    with process_group(ALONE, torch.device("cpu"), 30):
        trainer = build_trainer(config, ALONE, torch.device("cpu"), seed=1, num_vocabulary=30)
    record_hyperparameters(
        RunLog(tmp_path / "log"), config, trainer.optimizer, trainer.learning_rate, trainer.gradient.num_buckets
    )
    values = {record["key"]: record["value"] for record in records_of(tmp_path / "log")}
    logged = [values[f"opt_{name}"] for name in ("lamb_weight_decay_rate", "lamb_beta_1", "lamb_beta_2", "epsilon")]
    assert logged == [config.weight_decay, config.beta_1, config.beta_2, config.epsilon]
    assert values["opt_base_learning_rate"] == config.learning_rate


def test_the_log_tells_every_variable_and_where_its_value_came_from(full_logs: dict[str, Path]) -> None:
    configuration = only(full_logs["open"], "configuration")["value"]
    assert configuration["BATCH_SIZE"] == {"value": 16, "source": "default"}
    assert "CLIP" in configuration


def cache_clears(rank: int, path: Path) -> None:
    """Two nodes of two ranks; the second node could drop its caches."""
    world = World(rank=rank, num_ranks=4, local_rank=rank % 2, ranks_per_node=2, rendezvous=None)
    record_cache_clear(RunLog(path if rank == 0 else None), Config(caches_cleared=rank >= 2), world)


def test_there_is_one_cache_clear_per_node_with_that_nodes_truth(tmp_path: Path) -> None:
    run_ranks(cache_clears, 4, tmp_path / "log")
    found = [(record["metadata"]["node"], record["value"]) for record in records_of(tmp_path / "log")]
    assert found == [(0, False), (1, True)]


def test_file_and_line_are_those_of_the_caller(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = RunLog(path)
    lines = {}
    lines["seed"] = here() + 1
    log.event("seed", 1)
    lines["init_start"] = lines["init_stop"] = here() + 1
    with log.init_phase():
        pass
    lines |= dict.fromkeys(("run_start", "block_start", "block_stop", "run_stop", "train_samples"), here() + 1)
    with log.run_phase(eval_samples=1):
        lines["eval_start"] = lines["eval_stop"] = here() + 1
        with log.evaluation(8):
            lines["eval_accuracy"] = here() + 1
            log.accuracy(0.5, 8)
    for key, line in lines.items():
        metadata = only(path, key)["metadata"]
        assert (metadata["file"], metadata["lineno"]) == (HERE, line), key


def test_file_and_line_are_those_of_the_caller_on_exceptions_and_through_an_exit_stack(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = RunLog(path)
    start = here()

    def run() -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(log.run_phase(eval_samples=1))
            with log.evaluation(8):
                raise ValueError("boo")

    with pytest.raises(ValueError, match="boo"):
        run()
    end = here()
    for key in ("run_start", "eval_start", "eval_stop", "run_stop"):
        metadata = only(path, key)["metadata"]
        assert metadata["file"] == HERE, key
        assert start < metadata["lineno"] < end, key


def test_a_log_without_a_path_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.chdir(tmp_path)
    log = RunLog(None)
    log.event("seed", 1)
    with log.init_phase():
        pass
    with log.run_phase(eval_samples=1) as outcome, log.evaluation(1):
        log.accuracy(0.5, 1)
    log.abort("too late")
    assert isinstance(outcome, Outcome)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_an_existing_result_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("precious")
    with pytest.raises(FileExistsError):
        RunLog(tmp_path / "log")
    assert (tmp_path / "log").read_text() == "precious"


# --- run_stop, once and true, on every way out


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("loss is nan"), "ValueError: loss is nan"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (SystemExit(3), "SystemExit: 3"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_an_exception_stops_the_run_once_as_aborted_though_the_target_was_reached(
    tmp_path: Path, error: BaseException, reason: str
) -> None:
    path = tmp_path / "log"

    def run() -> None:
        with RunLog(path).run_phase(eval_samples=1) as outcome:
            outcome.reached = True
            raise error

    with pytest.raises(type(error)):
        run()
    metadata = only(path, "run_stop")["metadata"]
    assert metadata["status"] == "aborted"
    assert metadata["reason"].startswith(reason)


def test_a_run_that_reached_nothing_is_aborted_with_its_reason(tmp_path: Path) -> None:
    with RunLog(tmp_path / "log").run_phase(eval_samples=1) as outcome:
        outcome.accuracies.append(0.99)
    metadata = only(tmp_path / "log", "run_stop")["metadata"]
    assert (metadata["status"], metadata["reason"]) == ("aborted", "target not reached")


def test_a_success_has_no_reason(full_logs: dict[str, Path]) -> None:
    assert "reason" not in only(full_logs["open"], "run_stop")["metadata"]


def test_abort_from_a_thread_stops_the_run_once_though_the_target_was_reached(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = RunLog(path)
    with log.run_phase(eval_samples=1) as outcome:
        outcome.reached = True
        thread = threading.Thread(target=lambda: log.abort("SIGTERM"))
        thread.start()
        thread.join()
        log.abort("SIGINT")
    metadata = only(path, "run_stop")["metadata"]
    assert (metadata["status"], metadata["reason"], metadata["file"]) == ("aborted", "SIGTERM", HERE)
    assert keys_of(path)[-1] == "run_stop"


def test_abort_and_the_runs_own_end_at_once_write_one_run_stop_and_whole_lines(tmp_path: Path) -> None:
    for number in range(30):
        path = tmp_path / f"log_{number}"
        log, gate = RunLog(path), threading.Barrier(2)

        def abort(log: RunLog = log, gate: threading.Barrier = gate) -> None:
            gate.wait()
            log.abort("SIGTERM")

        thread = threading.Thread(target=abort)
        thread.start()
        with log.run_phase(eval_samples=1) as outcome:
            outcome.reached = True
            gate.wait()
            log.event("tracked_stats", {"x": 1})
        thread.join()
        assert keys_of(path).count("run_stop") == 1


def test_abort_outside_a_run_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = RunLog(path)
    with log.init_phase():
        log.abort("SIGTERM")
    with log.run_phase(eval_samples=1):
        pass
    log.abort("SIGTERM")
    assert keys_of(path).count("run_stop") == 1


def test_an_exception_in_init_leaves_no_log(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log")
    with pytest.raises(ValueError, match="boo"), log.init_phase():
        raise ValueError("boo")
    assert not (tmp_path / "log").exists()


def test_a_log_that_holds_records_is_refused_and_an_empty_file_is_taken(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    log = RunLog(tmp_path / "log")
    log.event("seed", 1)
    release(log)
    with pytest.raises(FileExistsError):
        RunLog(tmp_path / "log")
    assert keys_of(tmp_path / "log") == ["seed"]


def test_a_log_that_is_being_written_is_refused_and_not_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlperf_log_utils._LAST_WORDS_S", 0.2)
    log = RunLog(tmp_path / "log")
    with pytest.raises(FileExistsError):
        RunLog(tmp_path / "log")
    log._emit("start", "run_start")
    with pytest.raises(FileExistsError):
        close_log(tmp_path / "log")
    assert keys_of(tmp_path / "log") == ["run_start"]


def release(log: RunLog) -> None:
    """What the kernel does when the writer is killed."""
    assert log._file
    log._file._stream.close()


# --- what cannot be written is an error


def test_a_record_that_the_disk_refuses_raises_and_names_the_file() -> None:
    log = RunLog(Path("/dev/full"))
    with pytest.raises(OSError, match=r"No space left on device.*/dev/full"):
        log.event("seed", 1)
    with pytest.raises(OSError, match=r"No space left on device.*/dev/full"), log.run_phase(eval_samples=1):
        pass


def test_a_value_that_json_cannot_hold_raises_instead_of_leaving_the_record_out(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        RunLog(tmp_path / "log").event("seed", object())
    assert keys_of(tmp_path / "log") == []


def test_metadata_that_would_hide_the_place_of_the_call_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="file"):
        RunLog(tmp_path / "log").event("seed", 1, file="elsewhere")


# --- a text that looks like a record is none (known fault 87)


def test_the_text_run_stop_inside_another_record_is_no_run_stop(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = RunLog(path)
    log.event("configuration", {"RESULT_FILE": {"value": "results/run_stop.txt", "key": "run_stop"}}, why="run_stop")
    log._emit("start", "run_start")
    log.event("tracked_stats", "run_stop", run_stop="run_stop")
    release(log)
    assert [record.key for record in read_log(path)] == ["configuration", "run_start", "tracked_stats"]
    assert "0 records of run_stop, expected exactly 1" in own_findings(read_log(path))
    assert close_log(path)
    assert keys_of(path)[-1] == "run_stop"


# --- close_log


def open_run(path: Path) -> RunLog:
    log = RunLog(path)
    log._emit("start", "run_start")
    return log


def test_a_killed_writers_log_gets_its_run_stop_aborted_and_only_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    release(open_run(path))
    assert close_log(path)
    assert not close_log(path)
    assert keys_of(path) == ["run_start", "run_stop"]
    metadata = only(path, "run_stop")["metadata"]
    assert metadata["status"] == "aborted"
    assert "killed" in metadata["reason"]


@pytest.mark.parametrize("cut", [1, 30, 100])
def test_a_log_that_was_killed_inside_a_record_keeps_the_torn_line_apart_and_is_closed_once(
    tmp_path: Path, cut: int
) -> None:
    path = tmp_path / "log"
    log = open_run(path)
    log.event("tracked_stats", {"skipped_steps": 0})
    release(log)
    whole = path.read_text()
    path.write_text(whole[:-cut])
    assert close_log(path)
    assert not close_log(path)
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    assert json.loads(lines[2].removeprefix(":::MLLOG "))["key"] == "run_stop"


def test_a_closed_or_never_started_log_is_left_as_it_is(full_logs: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(full_logs["open"].read_bytes())
    assert not close_log(path)
    assert path.read_bytes() == full_logs["open"].read_bytes()
    path.write_text("")
    assert not close_log(path)
    assert path.read_bytes() == b""


def test_close_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    release(open_run(path))
    command = [sys.executable, "-m", "mlperf_log_utils", "close", str(path)]
    assert subprocess.run(command, cwd=ROOT, timeout=30).returncode == 0
    assert keys_of(path) == ["run_start", "run_stop"]
    usage = subprocess.run(command[:-1], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert usage.returncode != 0
    assert "usage" in usage.stderr


# --- the official checker


@pytest.mark.parametrize("division", ["open", "closed"])
def test_a_whole_log_passes(full_logs: dict[str, Path], division: str, verify: Verify) -> None:
    path = full_logs[division]
    assert official_findings(path, RULESET) == []
    status, said = verify(path)
    assert status == 0
    assert said.startswith(f"PASSED   {path}, ruleset 5.0.0\n")
    assert [line.split()[0] for line in said.splitlines()] == ["PASSED", "time", "accuracy", "speed"]


def test_a_whole_log_passes_the_official_checkers_own_command(full_logs: dict[str, Path], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mlperf_logging.compliance_checker", "--usage", "training", "--ruleset", RULESET]
    run = subprocess.run(
        [*command, str(full_logs["open"])],
        cwd=tmp_path,  # it leaves a file there
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0
    assert "SUCCESS" in run.stderr


@pytest.mark.parametrize("key", REQUIRED_EVERYWHERE)
def test_an_open_log_without_a_required_record_fails(key: str, changed: Callable[..., Path], verify: Verify) -> None:
    status, said = verify(changed(without(key)))
    assert status == 1
    assert said.startswith("FAILED")


@pytest.mark.parametrize("key", REQUIRED_EVERYWHERE + REQUIRED_IN_CLOSED)
def test_a_closed_log_without_a_required_record_fails(key: str, changed: Callable[..., Path], verify: Verify) -> None:
    status, said = verify(changed(without(key), "closed"))
    assert status == 1
    assert said.startswith("FAILED")


def without(key: str) -> Change:
    def change(records: list[dict[str, Any]]) -> None:
        kept = [record for record in records if record["key"] != key]
        assert len(kept) < len(records)
        records[:] = kept

    return change


# --- what the official checker lets through


def edit(key: str, **fields: Any) -> Change:
    """Set fields of the last record of a key; `metadata` is merged."""

    def change(records: list[dict[str, Any]]) -> None:
        record = [record for record in records if record["key"] == key][-1]
        metadata = record["metadata"] | fields.get("metadata", {})
        record |= fields
        record["metadata"] = metadata

    return change


def move(key: str, before: str) -> Change:
    """Move the last record of a key to just before the first one of another."""

    def change(records: list[dict[str, Any]]) -> None:
        keys = [record["key"] for record in records]
        record = records.pop(len(keys) - 1 - keys[::-1].index(key))
        records.insert([each["key"] for each in records].index(before), record)

    return change


def second_run_start(records: list[dict[str, Any]]) -> None:
    start = next(record for record in records if record["key"] == "run_start")
    records.insert(len(records) - 1, start | {"time_ms": start["time_ms"] + 1})


def both_accuracies(value: Any) -> Change:
    def change(records: list[dict[str, Any]]) -> None:
        for record in records:
            if record["key"] == "eval_accuracy":
                record["value"] = value

    return change


ABORTED = "'aborted' (SIGTERM), expected 'success'"


@pytest.mark.parametrize(
    ("change", "key", "finding"),
    [
        pytest.param(second_run_start, None, "2 records of run_start, expected exactly 1", id="second run_start"),
        pytest.param(
            edit("run_stop", metadata={"status": "aborted", "reason": "SIGTERM"}), "run_stop", ABORTED, id="aborted"
        ),
        pytest.param(edit("run_stop", metadata={"status": "banana"}), "run_stop", "'banana'", id="foreign status"),
        pytest.param(
            edit("run_stop", metadata={"status": "SUCCESS"}), "run_stop", "'SUCCESS'", id="status in capitals"
        ),
        pytest.param(edit("run_stop", time_ms=5), "run_stop", "run_stop is not later than run_start", id="time"),
        pytest.param(
            edit("eval_accuracy", value=0.34), None, "the last accuracy is 0.34, the target 0.72", id="below target"
        ),
        pytest.param(
            edit("eval_accuracy", value=float("nan")), None, "the last accuracy is nan, the target", id="not a number"
        ),
        pytest.param(
            edit("eval_accuracy", value="0.73"), "eval_accuracy", "eval_accuracy '0.73' is not a number", id="text"
        ),
        pytest.param(
            edit("eval_accuracy", value=[0.73]), "eval_accuracy", "eval_accuracy [0.73] is not a number", id="a list"
        ),
        pytest.param(
            edit("eval_accuracy", value=True), "eval_accuracy", "eval_accuracy True is not a number", id="a truth value"
        ),
        pytest.param(
            move("eval_accuracy", "run_start"), "eval_accuracy", "an evaluation outside the run", id="before the run"
        ),
        pytest.param(
            edit("train_samples", value=129), "train_samples", "train_samples differ from the last", id="other samples"
        ),
        pytest.param(
            edit("eval_accuracy", metadata={"epoch_num": 1}), "train_samples", "train_samples differ", id="epoch_num 1"
        ),
        pytest.param(
            edit("target_accuracy", value="0.72"),
            "target_accuracy",
            "target_accuracy '0.72' is not a number",
            id="target",
        ),
    ],
)
def test_a_log_that_only_looks_right_fails_by_the_line_at_fault(
    change: Change, key: str | None, finding: str, changed: Callable[..., Path], verify: Verify
) -> None:
    path = changed(change)
    status, said = verify(path)
    assert status == 1
    assert finding in said
    if key is not None:
        lines = [number for number, found in enumerate(keys_of(path), start=1) if found == key]
        at_fault = lines[0] if finding == "an evaluation outside the run" else lines[-1]
        assert f"line {at_fault}: " in said


def test_an_evaluation_after_run_stop_fails(changed: Callable[..., Path], verify: Verify) -> None:
    def swap(records: list[dict[str, Any]]) -> None:
        at = next(index for index, record in enumerate(records) if record["key"] == "eval_accuracy")
        records.append(records.pop(at))

    path = changed(swap)
    status, said = verify(path)
    assert status == 1
    assert f"line {len(keys_of(path))}: an evaluation outside the run" in said


def test_a_run_whose_target_was_reached_only_before_its_last_evaluation_fails(
    changed: Callable[..., Path], verify: Verify
) -> None:
    def swap(records: list[dict[str, Any]]) -> None:
        first, last = [record for record in records if record["key"] == "eval_accuracy"]
        first["value"], last["value"] = last["value"], first["value"]

    status, said = verify(changed(swap))
    assert status == 1
    assert "the last accuracy is 0.5, the target 0.72" in said


def test_accuracies_of_one_fail_the_official_checker(changed: Callable[..., Path], verify: Verify) -> None:
    status, said = verify(changed(both_accuracies(1.0)))
    assert status == 1
    assert "the official checker failed" in said


# --- what cannot be judged


@pytest.mark.parametrize("cut", [2, 40, 150])
def test_a_last_line_cut_short_cannot_be_judged_and_its_number_is_named(
    cut: int, full_logs: dict[str, Path], tmp_path: Path, verify: Verify
) -> None:
    path = tmp_path / "log"
    whole = full_logs["open"].read_text()
    path.write_text(whole[:-cut])
    status, said = verify(path)
    assert status == 2
    assert f"{path}:{len(whole.splitlines())}: not a whole MLLOG record" in said


def test_records_without_a_needed_field_cannot_be_judged(changed: Callable[..., Path], verify: Verify) -> None:
    path = changed(lambda records: records[3].pop("metadata"))
    status, said = verify(path)
    assert status == 2
    assert f"{path}:4: " in said


@pytest.mark.parametrize("content", [None, b"", b"no record\nin here\n", b"\x00\xff\xfe"])
def test_no_log_cannot_be_judged(content: bytes | None, tmp_path: Path, verify: Verify) -> None:
    path = tmp_path / "log"
    if content is not None:
        path.write_bytes(content)
    status, said = verify(path)
    assert status == 2
    assert said.startswith(f"verify: {path}: ")


# --- reading


def test_other_lines_and_prefixes_are_passed_over_and_line_numbers_are_the_files(
    full_logs: dict[str, Path], tmp_path: Path, verify: Verify
) -> None:
    path = tmp_path / "log"
    mixed = ["step 1", *(f"0: {line}" for line in full_logs["open"].read_text().splitlines()), "", "done"]
    path.write_bytes("\r\n".join(mixed).encode())
    assert verify(path)[0] == 0
    assert [record.line for record in read_log(path)] == list(range(2, len(mixed) - 1))


def test_a_byte_that_latin_1_takes_for_a_line_end_is_none(full_logs: dict[str, Path], tmp_path: Path) -> None:
    """0x85 is a byte of many UTF-8 characters; the official parser splits lines at \\n, \\r and \\r\\n alone."""
    path = tmp_path / "log"
    note = ':::MLLOG {"time_ms": 1, "key": "note", "value": "\N{HORIZONTAL ELLIPSIS}\N{CYRILLIC CAPITAL LETTER DZE}",'
    path.write_bytes(f'{note} "metadata": {{}}}}\n'.encode() + full_logs["open"].read_bytes())
    assert official_findings(path, RULESET) == []
    records = read_log(path)
    assert records[0].key == "note"
    assert records[1].line == 2
    assert own_findings(records) == []


def test_a_record_is_read_whole(full_logs: dict[str, Path]) -> None:
    record = next(record for record in read_log(full_logs["open"]) if record.key == "eval_accuracy")
    assert isinstance(record, Record)
    assert record.value == 0.5
    assert record.metadata["epoch_num"] == 64


def test_a_line_that_is_no_record_says_why(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(':::MLLOG {"key": "seed"}\n')
    with pytest.raises(UnreadableLogError, match=r":1: not a whole MLLOG record.*value"):
        read_log(tmp_path / "log")
