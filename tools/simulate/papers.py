"""Shares of lengths in, the arguments of the papers as tables of simulated runs out.

Runs are this project's trainer on DGX A100 with four HDR-200 ports a node, the record's, unless a table says otherwise.
Samples to target are those of public logs: a simulator of time knows nothing of convergence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from benchmarks.bert.config import load as load_config
from benchmarks.bert.data.plan import Layout
from benchmarks.bert.growth.notation import parse
from benchmarks.bert.growth.plan import Size
from tools.simulate import cluster as clusters
from tools.simulate.cluster import Cluster
from tools.simulate.job import Job, of_config, rule_schedule
from tools.simulate.run import Run, simulate
from tools.simulate.tables import ms, percent, table

CLUSTER, STEPS, SEED = "dgx_a100_4hdr", 40, 1
RECORD = "config_DGXA100_128x8x16x1.sh"
_LAYOUTS = (Layout(1, 8, 56), Layout(8, 8, 48), Layout(32, 8, 16), Layout(128, 8, 16), Layout(171, 8, 12))
_STRATEGIES = ("random", "stratified", "stratified_presort", "global_presort")
_CLIPS = ("none", "bucket_before", "global_after", "global_before")
# Optimizer, batch, mean samples to target and where they are from.
_RECIPES = (
    ("lamb", 3072, 2_840_000, "NVIDIA v1.1, 1,024 A100"),
    ("lamb", 16384, 5_504_307, "reference convergence point"),
    ("adam", 16384, 2_932_736, "Samsung v2.0, 1,024 A100"),
)
# Both recipes at their best: 16-bit gradients; small batches packed and replayed from CUDA graphs.
_GRAPHED = 6  # samples of a rank
_GROWTH = "mslt:6,12,18,24@0.2,0.2,0.2,0.2+joint:embeddings=frozen"


def record_job() -> Job:
    config = load_config({"CONFIG": RECORD})
    return of_config(config, samples_to_target=config.decay_steps * config.global_batch, name="record's recipe")


def tables(share_L: np.ndarray) -> dict[str, str]:
    """Markdown by the name of its place in docs/simulator.md."""
    job, cluster = record_job(), clusters.load(CLUSTER)

    def run(each: Job, on: Cluster = cluster) -> Run:
        return simulate(each, on, share_L, num_steps=STEPS, seed=SEED)

    makers: Mapping[str, Callable[[Job, Callable[..., Run]], str]] = {
        "papers-loading": _loading,
        "papers-clip": _clip,
        "papers-batch": _batch,
        "papers-growth": _growth,
    }
    return {name: make(job, run) for name, make in makers.items()}


def _loading(job: Job, run: Callable[..., Run]) -> str:
    """Step and the share of it that ranks wait for the slowest."""
    rows = []
    for loading in _STRATEGIES:
        cells = []
        for layout in _LAYOUTS:
            stage = run(replace(job, layout=layout, loading=loading)).stages[0]
            wait = stage.timeline.split()["imbalance wait"] / stage.step_s
            cells.append(f"{ms(stage.step_s)} ({wait:.0%})".replace("%", " %"))
        rows.append([f"`{loading}`", *cells])
    return table(["ms of a step (waiting)", *(f"{each.num_ranks:,} x {each.per_rank}" for each in _LAYOUTS)], rows)


def _clip(job: Job, run: Callable[..., Run]) -> str:
    rows = []
    for clip in _CLIPS:
        cells = []
        for layout in _LAYOUTS:
            stage = run(replace(job, layout=layout, clip=clip)).stages[0]
            cells.append(f"{ms(stage.step_s)} ({ms(stage.timeline.split()['exposed communication'])})")
        rows.append([f"`{clip}`", *cells])
    return table(["ms of a step (exposed)", *(f"{each.num_ranks:,} x {each.per_rank}" for each in _LAYOUTS)], rows)


def _batch(job: Job, run: Callable[..., Run]) -> str:
    rows = []
    for optimizer, batch, samples, source in _RECIPES:
        layout = replace(job.layout, per_rank=batch // job.layout.num_ranks)
        small = layout.per_rank <= _GRAPHED
        clip = "bucket_before" if optimizer == "adam" else "global_before"
        found = run(
            replace(
                job,
                layout=layout,
                optimizer=optimizer,
                clip=clip,
                shards=layout.ranks_per_node if optimizer == "lamb" else 1,
                gradient_bytes=2,
                bucket_mb=25.0,
                packed=small,
                graphs=small,
                samples_to_target=samples,
                evaluation=rule_schedule(batch),
            )
        )
        step = found.stages[0]
        rows.append(
            [
                f"{optimizer.upper()}, `{clip}`",
                f"{batch:,}",
                f"{samples:,} ({source})",
                f"{step.num_steps:,}",
                ms(step.step_s),
                f"{found.samples_per_s:,.0f}",
                f"{found.seconds:.1f}",
            ]
        )
    return table(["recipe", "batch", "samples to target", "steps", "step, ms", "samples/s", "run, s"], rows)


def _growth(job: Job, run: Callable[..., Run]) -> str:
    """Stages on one node and on 128; each has a fifth of the steps."""
    size = Size(job.shape.num_layers, job.shape.hidden_size)
    grown = replace(job, growth=parse(_GROWTH, size, job.num_steps))
    rows = []
    for layout in (Layout(1, 8, 56), Layout(128, 8, 16)):
        at = replace(grown, layout=layout, samples_to_target=job.num_steps * layout.global_batch)
        plain = run(replace(at, growth=job.growth))
        of_plain = plain.stages[0].step_s
        for number, stage in enumerate(run(at).stages, start=1):
            split = stage.timeline.split()
            trains = stage.stage.size.num_layers - stage.stage.num_frozen
            rows.append(
                [
                    f"{layout.num_ranks:,} x {layout.per_rank}",
                    f"{number}: {stage.stage.size.num_layers} layers, {trains} train",
                    f"{stage.timeline.buckets.num_bytes / 2**20:,.0f}",
                    ms(split["compute"]),
                    ms(split["exposed communication"]),
                    ms(stage.step_s),
                    percent(stage.step_s / of_plain - 1),
                ]
            )
    heading = ["ranks x samples", "stage", "gradients, MiB", "compute, ms", "exposed, ms", "step, ms", "of all layers"]
    return table(heading, rows)
