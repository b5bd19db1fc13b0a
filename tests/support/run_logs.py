"""A path in, the log of a short run in it out, written as train.py writes one; and what such a log holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from benchmarks.bert.comm.group import process_group
from benchmarks.bert.config import Config
from benchmarks.bert.optim.adam import Adam
from benchmarks.bert.optim.lr import PolynomialSchedule
from benchmarks.bert.record import record_cache_clear, record_hyperparameters, record_submission
from benchmarks.bert.world import World
from mlperf_log_utils import RunLog

ALONE = World(rank=0, num_ranks=1, local_rank=0, ranks_per_node=1, rendezvous=None)
MARK = ":::MLLOG "


def records_of(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text("utf-8").splitlines()
    assert all(line.startswith(MARK) for line in lines)
    return [json.loads(line.removeprefix(MARK)) for line in lines]


def keys_of(path: Path) -> list[str]:
    return [record["key"] for record in records_of(path)]


def only(path: Path, key: str) -> dict[str, Any]:
    (record,) = [record for record in records_of(path) if record["key"] == key]
    return record


def optimizer_of(learning_rate: float = 1e-3, decay: float = 0.01, beta_2: float = 0.99, epsilon: float = 1e-6) -> Adam:
    layer = torch.nn.Linear(2, 2)
    groups = [{"params": [layer.weight], "weight_decay": decay}, {"params": [layer.bias], "weight_decay": 0.0}]
    return Adam(groups, learning_rate=learning_rate, betas=(0.9, beta_2), epsilon=epsilon)


def write_full_log(path: Path, division: str) -> None:
    """Every event of a run, as train.py logs them: evaluations of 0.5 and 0.73, target reached."""
    optimizer = "lamb" if division == "closed" else "adam"
    config, log = Config(division=division, optimizer=optimizer, caches_cleared=True), RunLog(path)
    with process_group(ALONE, torch.device("cpu"), 30):
        record_cache_clear(log, config, ALONE)
        with log.init_phase():
            record_submission(log, config, 5)
            record_hyperparameters(log, config, optimizer_of(), PolynomialSchedule(1e-3, 0.0, 2, 0, 10, 1.0), 1, 76)
        with log.run_phase(eval_samples=10_000) as outcome:
            for samples, accuracy in ((64, 0.5), (128, 0.73)):
                with log.evaluation(samples):
                    log.accuracy(accuracy, samples)
                log.event("tracked_stats", {"skipped_steps": 0}, samples_count=samples)
                outcome.samples = samples
            outcome.reached = True


def release(log: RunLog) -> None:
    """What the kernel does when the writer is killed."""
    assert log._file
    log._file._stream.close()


def write_log_that_speaks_of_run_stop(path: Path) -> None:
    """Of a writer that was killed: values and metadata say run_stop, no key does."""
    log = RunLog(path)
    log.event("configuration", {"RESULT_FILE": {"value": "results/run_stop.txt", "key": "run_stop"}}, why="run_stop")
    log._emit("start", "run_start")
    log.event("tracked_stats", "run_stop", run_stop="run_stop")
    release(log)
