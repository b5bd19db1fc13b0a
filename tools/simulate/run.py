"""A job and a cluster in, the whole run out: its steps, evaluations and start-up, in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from benchmarks.bert.evaluate import deal_evaluation
from benchmarks.bert.growth.plan import Stage
from tools.simulate.cluster import Cluster
from tools.simulate.compute import flops_of_lengths, seconds_GR
from tools.simulate.deal import lengths_of_ranks
from tools.simulate.job import Job
from tools.simulate.lengths import draw
from tools.simulate.step import Timeline, simulate_steps

_EVALUATED_IN_ONE = 24  # samples of a rank that published trainers evaluate in one CUDA graph


@dataclass(frozen=True)
class StageRun:
    stage: Stage
    num_steps: int  # of the run that are in it
    timeline: Timeline  # of the steps that were simulated

    @property
    def step_s(self) -> float:
        return float(self.timeline.total_G.mean())


@dataclass(frozen=True)
class Run:
    job: Job
    stages: tuple[StageRun, ...]
    num_evaluations: int
    evaluation_s: float  # of one
    start_s: float  # from run_start to the first step

    @property
    def steps_s(self) -> float:
        return sum(each.num_steps * each.step_s for each in self.stages)

    @property
    def skipped_s(self) -> float:
        return self.job.habits.skipped_steps * self.stages[0].step_s

    @property
    def seconds(self) -> float:
        """From run_start to the target."""
        return self.start_s + self.skipped_s + self.steps_s + self.num_evaluations * self.evaluation_s

    @property
    def samples_per_s(self) -> float:
        return self.job.samples_to_target / self.seconds

    @property
    def interval_s(self) -> float:
        """Between evaluations, with one of them; of the first stage."""
        return self.job.evaluation.interval / self.job.layout.global_batch * self.stages[0].step_s + self.evaluation_s

    @property
    def amortised_step_s(self) -> float:
        """A step with its share of an evaluation, as public logs tell it."""
        return self.interval_s * self.job.layout.global_batch / self.job.evaluation.interval


def simulate(job: Job, cluster: Cluster, share_L: np.ndarray, *, num_steps: int, seed: int) -> Run:
    """`num_steps` steps of each stage stand for all of it. Raises PlanError as the planner does."""
    return simulate_dealt(job, cluster, share_L, lengths_of_ranks(job, share_L, num_steps, seed), seed)


def simulate_dealt(job: Job, cluster: Cluster, share_L: np.ndarray, lengths_GRK: np.ndarray, seed: int) -> Run:
    """The same with what `lengths_of_ranks` gave, which no constant of a cluster changes."""
    stages = tuple(
        StageRun(stage, count, simulate_steps(job, stage, cluster, lengths_GRK, seed))
        for stage, count in _steps_of_stages(job)
    )
    workers_s = cluster.workers_s if job.habits.starts_workers else 0.0
    return Run(
        job=job,
        stages=stages,
        num_evaluations=_num_evaluations(job),
        evaluation_s=evaluation_s(job, cluster, share_L),
        start_s=cluster.start_s + workers_s,
    )


def _steps_of_stages(job: Job) -> list[tuple[Stage, int]]:
    """Stages that the run reaches, and how many of its steps are in each."""
    ends = [*(stage.first_step for stage in job.growth.stages), job.num_steps + 1]
    counts = [min(end, job.num_steps + 1) - first for first, end in pairwise(ends)]
    return [(stage, count) for stage, count in zip(job.growth.stages, counts, strict=True) if count > 0]


def _num_evaluations(job: Job) -> int:
    batch = job.layout.global_batch
    return sum(job.evaluation.is_due(step * batch, (step + 1) * batch) for step in range(job.num_steps))


def evaluation_s(job: Job, cluster: Cluster, share_L: np.ndarray) -> float:
    """Of the rank that has most: its share of the samples in batches, forward only, then a sum over all ranks."""
    stage = job.growth.stages[-1]
    lengths = draw(share_L, job.evaluation_samples, seed=0)
    own = lengths[deal_evaluation(lengths, 0, job.layout.num_ranks)]
    in_graph = job.graphs and len(own) <= _EVALUATED_IN_ONE
    forward_L, _ = flops_of_lengths(job, stage, len(share_L) - 1)
    total = 0.0
    for first in range(0, len(own), job.evaluation_batch):
        batch = own[first : first + job.evaluation_batch]
        seconds = seconds_GR(forward_L[batch].sum(keepdims=True), batch.sum(keepdims=True), cluster, job)
        host_s = 0.0 if in_graph else cluster.host_forward_s * stage.size.num_layers / 24
        total += max(float(seconds[0]), host_s)
    return total
