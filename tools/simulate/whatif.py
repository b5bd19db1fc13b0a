"""A job and clusters in, tables of what other choices would do out: strategies, clip variants, ranks, networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from benchmarks.bert.data.plan import Layout
from tools.simulate.cluster import Cluster
from tools.simulate.deal import lengths_of_ranks
from tools.simulate.job import Job
from tools.simulate.run import Run, simulate, simulate_dealt
from tools.simulate.tables import ms, percent, table

LOADINGS = ("random", "stratified", "stratified_presort", "global_presort", "least_loaded")
CLIPS = ("none", "bucket_before", "global_after", "global_before")
_FITS = 64  # samples of a micro-batch
PAYS = 0.10  # that a run has to get shorter by, for twice the ranks


def with_nodes(job: Job, num_nodes: int, per_rank: int) -> Job:
    return replace(job, layout=Layout(num_nodes, job.layout.ranks_per_node, per_rank))


def choices_table(
    job: Job, networks: Sequence[Cluster], share_L: np.ndarray, nodes: Sequence[int], *, num_steps: int, seed: int
) -> str:
    """Milliseconds of a step: strategy and clip variant by nodes and network, with the job's samples of each rank."""
    columns = [(count, network) for count in nodes for network in networks]
    rows = []
    for loading in LOADINGS:
        jobs = {count: with_nodes(replace(job, loading=loading), count, job.layout.per_rank) for count in nodes}
        dealt = {count: lengths_of_ranks(each, share_L, num_steps, seed) for count, each in jobs.items()}
        for clip in CLIPS:
            steps = [
                simulate_dealt(replace(jobs[count], clip=clip), network, share_L, dealt[count], seed).stages[0].step_s
                for count, network in columns
            ]
            rows.append([f"`{loading}`", f"`{clip}`", *map(ms, steps)])
    ranks = job.layout.ranks_per_node
    names = [f"{count * ranks:,} ranks, {network.name}" for count, network in columns]
    return table(["loading", "clip", *names], rows)


@dataclass(frozen=True)
class Scale:
    num_nodes: int
    run: Run


def scaling(job: Job, cluster: Cluster, share_L: np.ndarray, *, num_steps: int, seed: int) -> Iterator[Scale]:
    """The same global batch on more and more nodes, as far as every rank still has a sample."""
    batch, ranks = job.layout.global_batch, job.layout.ranks_per_node
    nodes = 1
    while batch >= nodes * ranks:
        if batch % (nodes * ranks) == 0:
            per_rank = batch // (nodes * ranks)
            each = replace(with_nodes(job, nodes, per_rank), micro_batches=_fitting(per_rank))
            yield Scale(nodes, simulate(each, cluster, share_L, num_steps=num_steps, seed=seed))
        nodes *= 2


def _fitting(per_rank: int) -> int:
    return next(parts for parts in range(1, per_rank + 1) if per_rank % parts == 0 and per_rank // parts <= _FITS)


def scaling_table(scales: Sequence[Scale]) -> str:
    rows, before = [], None
    for each in scales:
        split = each.run.stages[0].timeline.split()
        lost = max((part for part in split if part != "compute"), key=lambda part: split[part])
        gain = "" if before is None else percent(before / each.run.seconds - 1)
        rows.append(
            [
                f"{each.run.job.layout.num_ranks:,} x {each.run.job.layout.per_rank}",
                ms(each.run.stages[0].step_s),
                f"{split['compute'] / each.run.stages[0].step_s:.0%}".replace("%", " %"),
                lost,
                f"{each.run.seconds:.1f}",
                gain,
            ]
        )
        before = each.run.seconds
    return table(["ranks x samples", "step, ms", "computing", "most lost to", "run, s", "faster than half"], rows)


def stops_paying(scales: Sequence[Scale]) -> str:
    for before, after in pairwise(scales):
        if after.run.seconds > before.run.seconds * (1 - PAYS):
            ranks = before.run.job.layout.num_ranks
            return f"Beyond {ranks:,} ranks, twice as many shorten the run by less than {PAYS:.0%}.".replace("%", " %")
    return f"Every doubling shortens the run by {PAYS:.0%} or more.".replace("%", " %")
