"""This machine in, the constants of a cluster of CPU ranks out, and how well they predict a batch they have not seen.

Ranks train made-up batches of the configuration's lengths: of half and of twice its BATCH_SIZE, to which rate and
half-rate tokens are fitted, and of BATCH_SIZE itself, which is predicted. They take turns, so that other work on the
machine disturbs all alike. The bandwidth is that of an all-reduce of all gradients.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.bert.bench.lengths import representative
from benchmarks.bert.bench.made_up import made_up_batches
from benchmarks.bert.bench.ranks import on_ranks
from benchmarks.bert.config import Config
from benchmarks.bert.data.batch import PackedBatch
from benchmarks.bert.data.plan import Layout
from benchmarks.bert.trainer import build_trainer
from benchmarks.bert.warm_up import warm_up
from benchmarks.bert.world import World
from tools.simulate.cluster import Cluster, with_constants
from tools.simulate.fit import OF_STEP, SEED, least_squares, of_step
from tools.simulate.job import Job, of_config
from tools.simulate.run import simulate

_SIMULATED = 50  # steps
_IN_A_ROW = 5  # steps of one size
_DISCARDED = 5  # the first of each size, while caches and threads come to be


@dataclass(frozen=True)
class Measured:
    steps_s: dict[int, float]  # by samples of a rank
    all_reduce_s: float
    num_bytes: int


@dataclass(frozen=True)
class Calibration:
    cluster: Cluster
    measured_s: float
    predicted_s: float


def sizes_of(config: Config) -> tuple[int, int, int]:
    """Fitted to, predicted, fitted to."""
    return max(1, config.batch_size // 2), config.batch_size, 2 * config.batch_size


def calibrate(config: Config, cluster: Cluster, share_L: np.ndarray, num_vocabulary: int, rounds: int) -> Calibration:
    """Trains on this machine for some seconds, on `config.ranks_per_node` processes of a thread each."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "measured.json"
        plain = replace(config, sources={}, launcher={})  # which another process can be given
        on_ranks(config.ranks_per_node, "cpu", 1, _measure, plain, share_L, num_vocabulary, rounds, path)
        found = json.loads(path.read_text("utf-8"))
    steps_s = {int(size): seconds for size, seconds in found["steps_s"].items()}
    return fit_machine(config, cluster, share_L, num_vocabulary, Measured(**{**found, "steps_s": steps_s}))


def fit_machine(
    config: Config, cluster: Cluster, share_L: np.ndarray, num_vocabulary: int, measured: Measured
) -> Calibration:
    """From what was measured; the middle size enters no constant."""
    small, middle, large = sizes_of(config)
    cluster = replace(cluster, ranks_per_node=config.ranks_per_node, node_bytes_per_s=_bandwidth(measured, config))
    job = of_config(config, samples_to_target=1, num_vocabulary=num_vocabulary)

    def step_s(constants: Cluster, per_rank: int) -> float:
        return _step_s(job, constants, share_L, per_rank)

    def residuals(logs: np.ndarray) -> np.ndarray:
        tried = with_constants(cluster, of_step(logs))
        return np.array([math.log(step_s(tried, size) / measured.steps_s[size]) for size in (small, large)])

    logs = least_squares(residuals, np.log([getattr(cluster, name) for name in OF_STEP]))
    cluster = with_constants(cluster, of_step(logs))
    return Calibration(cluster, measured.steps_s[middle], step_s(cluster, middle))


def _bandwidth(measured: Measured, config: Config) -> float:
    ranks = config.ranks_per_node
    return 2 * (ranks - 1) / ranks * measured.num_bytes / measured.all_reduce_s


def _step_s(job: Job, cluster: Cluster, share_L: np.ndarray, per_rank: int) -> float:
    layout = Layout(1, job.layout.ranks_per_node, per_rank)
    return simulate(replace(job, layout=layout), cluster, share_L, num_steps=_SIMULATED, seed=SEED).stages[0].step_s


def _measure(
    world: World,
    device: torch.device,
    config: Config,
    share_L: np.ndarray,
    num_vocabulary: int,
    rounds: int,
    path: Path,
) -> None:
    trainer = build_trainer(config, world, device, seed=SEED, num_vocabulary=num_vocabulary)
    warm_up(trainer, config)
    batches = {size: _batches(world, config, share_L, num_vocabulary, size) for size in sizes_of(config)}
    gradients = torch.zeros(sum(p.numel() for p in trainer.model.parameters()))
    seconds: dict[int, list[float]] = {size: [] for size in batches}
    reduces: list[float] = []
    for _ in range(rounds):
        for size, of_size in batches.items():
            seconds[size].extend(_timed([partial(trainer.step, 1, [batch]) for batch in of_size]))
        reduces.extend(_timed([partial(dist.all_reduce, gradients)] * _IN_A_ROW))
    if world.is_main:
        found = {
            "steps_s": {size: median(each[_DISCARDED:]) for size, each in seconds.items()},
            "all_reduce_s": median(reduces[_DISCARDED:]),
            "num_bytes": gradients.numel() * 4,
        }
        path.write_text(json.dumps(found), "utf-8")


def _batches(
    world: World, config: Config, share_L: np.ndarray, num_vocabulary: int, per_rank: int
) -> list[PackedBatch]:
    """This rank's of as many steps as follow each other; each has the lengths' mix."""
    lengths = representative(share_L, per_rank * world.num_ranks * _IN_A_ROW, config.max_length)
    ranks = {"rank": world.rank, "num_ranks": world.num_ranks}
    return list(made_up_batches(np.maximum(2, lengths), per_rank, num_vocabulary, **ranks))


def _timed(works: Sequence[Callable[[], object]]) -> list[float]:
    """Seconds of each, one after the other as in a run: waiting in between would be measured with them."""
    dist.barrier()
    marks = [time.perf_counter()]
    for work in works:
        work()
        marks.append(time.perf_counter())
    return [after - before for before, after in pairwise(marks)]
