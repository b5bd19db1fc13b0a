"""Public results in, what the simulator predicts for each beside what was measured out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tools.simulate import cluster as clusters
from tools.simulate.cluster import Cluster
from tools.simulate.fit import Dealt
from tools.simulate.results import Result
from tools.simulate.run import Run
from tools.simulate.tables import ms, percent, table


@dataclass(frozen=True)
class Prediction:
    result: Result
    run: Run

    @property
    def error(self) -> float:
        """Of samples per second, predicted over measured less 1."""
        return self.run.samples_per_s / self.result.samples_per_s - 1

    @property
    def start_s(self) -> float:
        """What comes before the first interval: start-up and skipped steps."""
        return self.run.start_s + self.run.skipped_s

    @property
    def measured_start_s(self) -> float:
        return self.result.first_accuracy_s - self.result.interval_s

    @property
    def measured_step_s(self) -> float:
        """With its share of an evaluation."""
        job = self.run.job
        return self.result.interval_s * job.layout.global_batch / job.evaluation.interval


def predict(results: Sequence[Result], share_L: np.ndarray) -> list[Prediction]:
    """With the constants of the clusters' files."""
    return [Prediction(result, Dealt.of(result, share_L).run(cluster_of(result))) for result in results]


def cluster_of(result: Result) -> Cluster:
    """A node with fewer accelerators than described is a common server, taken to have one link to the network."""
    cluster = clusters.load(result.cluster)
    if result.job.layout.ranks_per_node < cluster.ranks_per_node:
        return replace(cluster, num_links=1.0)
    return cluster


def markdown(predictions: Sequence[Prediction]) -> str:
    """Measured / predicted of each row; steps with their share of an evaluation, start-up with skipped steps."""
    rows = []
    for each in predictions:
        result, run, layout = each.result, each.run, each.run.job.layout
        rows.append(
            [
                result.role,
                f"{result.round} {result.system}".strip(),
                f"{layout.num_ranks:,} x {layout.per_rank}",
                f"{result.samples_per_s:,.0f} / {run.samples_per_s:,.0f}",
                percent(each.error),
                _pair(ms(each.measured_step_s), ms(run.amortised_step_s)),
                _pair(f"{each.measured_start_s:.2f}", f"{each.start_s:.2f}"),
                f"{result.run_s:.2f} / {run.seconds:.2f}",
            ]
        )
    heading = ["role", "system", "ranks x samples", "samples/s", "error", "step, ms", "start-up, s", "run, s"]
    return table(heading, rows)


def _pair(measured: str, predicted: str) -> str:
    return f"{'-' if measured == 'nan' else measured} / {predicted}"


def worst(predictions: Sequence[Prediction], count: int = 3) -> str:
    """A line for each of the `count` worst."""
    ranked = sorted(predictions, key=lambda each: -abs(math.log1p(each.error)))[:count]
    return "\n".join(f"worst {percent(each.error)}: {each.result.round} {each.result.system}" for each in ranked)


def summary(predictions: Sequence[Prediction]) -> str:
    """Its last line is `median error X.X %`: of the rows marked test, or of all where none is."""
    counted = [each for each in predictions if each.result.role == "test"] or list(predictions)
    errors = [abs(each.error) for each in counted]
    which = "marked test" if counted[0].result.role == "test" else "in the file"
    text = f"{len(counted)} rows {which}, worst error {max(errors):.1%}\nmedian error {statistics.median(errors):.1%}"
    return text.replace("%", " %")
