"""A simulated run in, in words where its time goes out."""

from __future__ import annotations

import numpy as np

from tools.simulate.run import Run
from tools.simulate.tables import ms, table


def explain(run: Run) -> str:
    """The split of a step of each stage, and of the run."""
    layout = run.job.layout
    parts = [
        f"{run.job.name}: {layout.num_nodes} nodes x {layout.ranks_per_node} ranks x {layout.per_rank} samples, "
        f"{run.job.clip}, {'packs' if run.job.packed else run.job.loading}",
        step_table(run),
        run_table(run),
    ]
    return "\n\n".join(parts)


def step_table(run: Run) -> str:
    """Milliseconds and share of a step, by what the average rank does; a column for each stage."""
    splits = [stage.timeline.split() for stage in run.stages]
    totals = [stage.step_s for stage in run.stages]
    heading = [
        "of a step",
        *(f"steps {each.stage.first_step} to {_last(run, i)}, ms" for i, each in enumerate(run.stages)),
    ]
    rows = [
        [
            part,
            *(
                f"{ms(split[part])} ({split[part] / total:.1%})".replace("%", " %")
                for split, total in zip(splits, totals, strict=True)
            ),
        ]
        for part in splits[0]
    ]
    buckets = [each.timeline.buckets for each in run.stages]
    return table(
        heading,
        [
            *rows,
            ["together", *(ms(total) for total in totals)],
            ["all-reduces, hidden or not", *(ms(_sent(each.timeline)) for each in run.stages)],
            ["buckets", *(f"{len(each.bytes_B)}, {each.num_bytes / 2**20:.0f} MiB" for each in buckets)],
            ["tokens of a rank, mean", *(f"{each.timeline.tokens_GR.mean():,.0f}" for each in run.stages)],
        ],
    )


def _last(run: Run, index: int) -> int:
    return run.stages[index].stage.first_step + run.stages[index].num_steps - 1


def _sent(timeline: object) -> float:
    sent = timeline.reduced_GB - timeline.sent_GB  # type: ignore[attr-defined]
    return float(np.sum(sent, axis=1).mean())


def run_table(run: Run) -> str:
    num_steps = sum(each.num_steps for each in run.stages)
    rows = [
        ["start-up", f"{run.start_s:.2f}"],
        [f"{run.job.habits.skipped_steps} skipped steps", f"{run.skipped_s:.2f}"],
        [f"{num_steps} steps", f"{run.steps_s:.2f}"],
        [f"{run.num_evaluations} evaluations", f"{run.num_evaluations * run.evaluation_s:.2f}"],
        ["together", f"{run.seconds:.2f}"],
        ["samples/s", f"{run.samples_per_s:,.0f}"],
    ]
    return table(["of the run", "s"], rows)
