"""Plans, their trials and the measured cost of a step in each stage in, tables as Markdown out.

All costs are those of the full model's step. A trial's samples to an accuracy lie on the line between the evaluation
that first reaches it and the one before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median, stdev

from benchmarks.bert.growth.cost import summed
from benchmarks.bert.growth.plan import GrowthPlan, Stage
from tools.trial import Evaluations

Cost = Callable[[Stage], float]  # of a step
BASE = "none"


@dataclass(frozen=True)
class Runs:
    """A plan and the evaluations of its trials, by seed."""

    plan: GrowthPlan
    by_seed: Mapping[int, Evaluations]
    num_steps: int

    @property
    def last(self) -> list[float]:
        return [evaluations[-1][1] for evaluations in self.by_seed.values()]


def name_of(stage: Stage) -> str:
    """What a step's cost depends on; equal for stages of different plans that cost the same."""
    name = f"{stage.size}, {stage.size.num_layers - stage.num_frozen} train"
    if stage.num_frozen and stage.embeddings_train:
        name += ", embeddings too"
    elif stage.num_frozen and stage.decoder_trains:
        name += ", decoder too"
    return name


def samples_to(evaluations: Evaluations, accuracy: float) -> float:
    """Raises ValueError where the accuracy is never reached."""
    before = (0, 0.0)
    for samples, found in evaluations:
        if found >= accuracy:
            share = (accuracy - before[1]) / (found - before[1]) if found > before[1] else 1.0
            return before[0] + share * (samples - before[0])
        before = samples, found
    raise ValueError(f"an accuracy of {accuracy} is never reached")


def equal_accuracy(runs: Sequence[Runs]) -> float:
    """The highest that every trial of these reaches, cut to three digits."""
    return math.floor(1000 * min(max(a for _, a in each) for of in runs for each in of.by_seed.values())) / 1000


def cost_to(runs: Runs, accuracy: float, batch: int, cost: Cost) -> float:
    """Mean over the seeds, in steps of the full model. Raises ValueError where a seed does not reach the accuracy."""
    reached = [samples_to(evaluations, accuracy) for evaluations in runs.by_seed.values()]
    return mean(summed(runs.plan, samples / batch, cost) for samples in reached)


def step_ratios(seconds: Mapping[str, Sequence[Sequence[float]]], full: str) -> dict[str, list[float]]:
    """By stage, of each round its median step over the full model's."""
    return {
        name: [median(own) / median(whole) for own, whole in zip(rounds, seconds[full], strict=True)]
        for name, rounds in seconds.items()
    }


def whole_runs(runs: Mapping[str, Runs], costs: Mapping[str, Cost]) -> list[str]:
    """Accuracy after all samples, and what the whole run costs, as ratios to that of `none`."""
    lines = head(["plan", "seeds", "accuracy at the end", *costs])
    for name, of in runs.items():
        spent = [f"{_spent(of, cost) / _spent(runs[BASE], cost):.2f}" for cost in costs.values()]
        lines.append(row([f"`{name}`", str(len(of.last)), _spread(of.last), *spent]))
    return lines


def to_end(runs: Mapping[str, Runs], shorter: Mapping[str, Runs], costs: Mapping[str, Cost]) -> list[str]:
    """What a whole run costs over one of `none` whose own schedule ends at the same accuracy.

    How long that is lies on the lines through the mean accuracies at which `none` and its shorter runs end.
    """
    by_length = sorted((*shorter.values(), runs[BASE]), key=lambda of: of.num_steps)
    ends = [(mean(of.last), float(of.num_steps)) for of in by_length]
    lines = head(["plan", "accuracy at the end", "steps of `none` that end there", *costs])
    for name, of in runs.items():
        if name == BASE:
            continue
        needed = between(ends, mean(of.last))
        full_steps = runs[BASE].num_steps
        ratios = ["" if needed is None else f"{_spent(of, cost) / needed:.2f}" for cost in costs.values()]
        share = "not known" if needed is None else f"{needed / full_steps:.2f}"
        lines.append(row([f"`{name}`", _spread(of.last), share, *ratios]))
    return lines


def between(points: Sequence[tuple[float, float]], x: float) -> float | None:
    """The value at the first `x` of the lines through the points, of those that rise; None where there is none."""
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 <= x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0) if x1 > x0 else y0
    return None


def _spent(of: Runs, cost: Cost) -> float:
    return summed(of.plan, of.num_steps, cost)


def to_accuracy(runs: Mapping[str, Runs], batch: int, costs: Mapping[str, Cost]) -> list[str]:
    """Samples and costs to the highest accuracy that a plan and `none` both reach, as ratios to those of `none`."""
    every: dict[str, Cost] = {"samples": lambda stage: 1.0, **costs}
    lines = head(["plan", "seeds", "accuracy", *every])
    for name, of in runs.items():
        accuracy = equal_accuracy([of, runs[BASE]])
        ratios = [f"{ratio_to_base(runs, name, accuracy, batch, cost):.2f}" for cost in every.values()]
        lines.append(row([f"`{name}`", str(len(of.last)), f"{accuracy:.3f}", *ratios]))
    return lines


def ratio_to_base(runs: Mapping[str, Runs], name: str, accuracy: float, batch: int, cost: Cost) -> float:
    own, base = (cost_to(runs[each], accuracy, batch, cost) for each in (name, BASE))
    return own / base


def curves(runs: Mapping[str, Runs]) -> list[str]:
    """Mean accuracy over the seeds at each tenth of the samples."""
    some = next(iter(runs.values()))
    num_samples = next(iter(some.by_seed.values()))[-1][0]
    tenths = range(1, 11)
    lines = head(["samples", *(f"{num_samples * tenth // 10:,}" for tenth in tenths)])
    for name, of in runs.items():
        values = [
            mean(accuracy_at(evaluations, num_samples * tenth / 10) for evaluations in of.by_seed.values())
            for tenth in tenths
        ]
        lines.append(row([f"`{name}`", *(f"{value:.3f}" for value in values)]))
    return lines


def accuracy_at(evaluations: Evaluations, samples: float) -> float:
    """On the line between two evaluations; before the first and after the last, theirs."""
    found = between(evaluations, samples)
    outside = evaluations[0] if samples < evaluations[0][0] else evaluations[-1]
    return outside[1] if found is None else found


def ranged(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def head(titles: Sequence[str]) -> list[str]:
    return [row(titles), "|" + "---|" * len(titles)]


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _spread(values: Sequence[float]) -> str:
    return f"{mean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")
