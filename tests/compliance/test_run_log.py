"""What RunLog and record.py write: the records that the rules want, in their order, with true values and places."""

from __future__ import annotations

import contextlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.bert.comm.group import process_group
from benchmarks.bert.config import Config
from benchmarks.bert.optim.lr import PolynomialSchedule
from benchmarks.bert.record import record_cache_clear, record_hyperparameters
from benchmarks.bert.trainer import build_trainer
from benchmarks.bert.warm_up import warm_up
from benchmarks.bert.world import World
from mlperf_log_utils import Outcome, RunLog
from tests.support.ranks import run_ranks
from tests.support.run_logs import ALONE, keys_of, only, optimizer_of, records_of

HERE = "tests/compliance/test_run_log.py"


def here() -> int:
    """The line of the call."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_events_come_in_the_rules_order(full_log: Path) -> None:
    keys = keys_of(full_log)
    assert keys[:2] == ["cache_clear", "init_start"]
    run = keys[keys.index("init_stop") :]
    evaluation = ["eval_start", "eval_accuracy", "eval_stop", "tracked_stats"]
    closing = ["block_stop", "train_samples", "eval_samples", "run_stop"]
    assert run == ["init_stop", "run_start", "block_start", *evaluation, *evaluation, *closing]


def test_values_and_metadata_are_what_the_checker_reads(full_log: Path) -> None:
    path = full_log
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


def test_times_never_go_back(full_log: Path) -> None:
    times = [record["time_ms"] for record in records_of(full_log)]
    assert times == sorted(times)
    assert all(isinstance(time_ms, int) for time_ms in times)


def test_both_epsilon_keys_are_there_and_equal(full_log: Path) -> None:
    assert only(full_log, "opt_epsilon")["value"] == only(full_log, "opt_lamb_epsilon")["value"]


def test_hyperparameters_are_the_live_optimizers_not_the_configurations(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log")
    config = Config(weight_decay=0.5, beta_2=0.5, epsilon=0.5, learning_rate=0.5, warmup_steps=77)
    optimizer = optimizer_of(decay=0.001, beta_2=0.995, epsilon=1e-7)
    record_hyperparameters(log, config, optimizer, PolynomialSchedule(3e-4, 0.0, 9, -4, 100, 1.0), 1, 76)
    values = {record["key"]: record["value"] for record in records_of(tmp_path / "log")}
    assert values["opt_lamb_weight_decay_rate"] == 0.001
    assert values["opt_lamb_beta_1"] == 0.9
    assert values["opt_lamb_beta_2"] == 0.995
    assert values["opt_lamb_epsilon"] == values["opt_epsilon"] == 1e-7
    assert values["opt_base_learning_rate"] == 3e-4
    assert values["opt_learning_rate_warmup_steps"] == values["num_warmup_steps"] == 9
    assert values["start_warmup_step"] == -4


def test_the_trainer_gives_the_optimizer_what_the_configuration_says(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"max_length": 32, "num_layers": 1, "hidden_size": 16, "num_heads": 2, "ffn_size": 16}
    config = Config(
        **sizes, device="cpu", weight_decay=0.003, beta_1=0.8, beta_2=0.97, epsilon=1e-5, learning_rate=2e-3
    )
    with process_group(ALONE, torch.device("cpu"), 30):
        trainer = build_trainer(config, ALONE, torch.device("cpu"), seed=1, num_vocabulary=30)
        warm_up(trainer, config)
    record_hyperparameters(
        RunLog(tmp_path / "log"), config, trainer.optimizer, trainer.learning_rate, trainer.gradient.num_buckets, 5
    )
    values = {record["key"]: record["value"] for record in records_of(tmp_path / "log")}
    logged = [values[f"opt_{name}"] for name in ("lamb_weight_decay_rate", "lamb_beta_1", "lamb_beta_2", "epsilon")]
    assert logged == [config.weight_decay, config.beta_1, config.beta_2, config.epsilon]
    assert values["opt_base_learning_rate"] == config.learning_rate


def test_the_log_tells_every_variable_and_where_its_value_came_from(full_log: Path) -> None:
    configuration = only(full_log, "configuration")["value"]
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
