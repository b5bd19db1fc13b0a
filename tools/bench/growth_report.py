"""A folder of trials and what was measured of their stages in, the tables out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bert.growth.__main__ import model_of
from benchmarks.bert.growth.cost import Sample, layer_cost, stage_flops
from benchmarks.bert.growth.plan import Stage
from tools.ablation.proxy import VOCABULARY
from tools.bench import growth_table as table
from tools.bench.growth_plans import (
    MAIN,
    PLANS,
    config,
    folder_of,
    full_stage,
    plan_named,
    variables_of,
)
from tools.trial import LOG, as_one_process, checked, read_trial
from tools.verify.log import Record, read_log

_MASKED_SHARE = 0.15
Ratios = Mapping[str, list[float]]  # by stage, of each round


def report(out: Path, steps: Mapping[str, Any]) -> list[str]:
    """`steps` holds by setting what growth_step.py answers."""
    runs = runs_in(out)
    ratios = {
        setting: table.step_ratios(each["seconds"], table.name_of(full_stage())) for setting, each in steps.items()
    }
    costs: dict[str, table.Cost] = {
        "FLOPs": flops,
        "cost model": partial(layer_cost, full=full_stage()),
        **{setting: partial(_measured, of) for setting, of in ratios.items()},
    }
    facts = next(iter(steps.values()))["facts"] if steps else {}
    lines = ["Stages:", "", *_stages(out, facts, ratios, costs)]
    if table.BASE not in runs:
        return lines
    of_run = config()
    return [
        *lines,
        *("", "Accuracy over samples:", "", *table.curves(runs)),
        *("", "Whole runs:", "", *table.whole_runs(runs, of_run.max_steps, costs)),
        *("", "To equal accuracy:", "", *table.to_accuracy(runs, of_run.global_batch, costs)),
    ]


def runs_in(out: Path) -> dict[str, table.Runs]:
    """What is done, of the plans that have anything. Raises TrialError for runs of another configuration."""
    found = {}
    for name in PLANS:
        by_seed = {}
        for folder in sorted(folder_of(out, name, 1).parent.glob("seed_*")):
            seed = int(folder.name.removeprefix("seed_"))
            trial = read_trial(folder, checked(as_one_process(variables_of(name, seed))))
            if trial is not None:
                by_seed[seed] = trial.evaluations
        if by_seed:
            found[name] = table.Runs(plan_named(name), by_seed)
    return found


@cache
def flops(stage: Stage) -> float:
    """Of a sample as long as can be, of the full model's."""
    of_run = config()
    sample = Sample(of_run.max_length, round(_MASKED_SHARE * of_run.max_length))
    own, whole = (
        stage_flops(model_of(of_run, each, VOCABULARY).shape, each, sample, of_run.last_layer)
        for each in (stage, full_stage())
    )
    return own / whole


def _measured(ratios: Ratios, stage: Stage) -> float:
    return median(ratios[table.name_of(stage)])


def _stages(
    out: Path, facts: Mapping[str, Any], ratios: Mapping[str, Ratios], costs: Mapping[str, table.Cost]
) -> list[str]:
    """A row for each stage of the main plans, and of the variants for those that no plan before them has."""
    sizes = ["parameters trained", "reduced, MiB", "kept for backward, MiB", "process at most, MiB"]
    lines = table.head(["plan", "stage", *sizes, *costs])
    shown: set[str] = set()
    for name in PLANS:
        peaks = _peaks(folder_of(out, name, 1) / LOG)
        for number, stage in enumerate(plan_named(name).stages):
            kind = table.name_of(stage)
            if name not in MAIN and kind in shown:
                continue
            shown.add(kind)
            peak = _mib(peaks[number]) if number in peaks else ""
            known = [f"{costs[each](stage):.2f}" for each in costs if each not in ratios]
            times = [table.ranged(of[kind]) for of in ratios.values()]
            lines.append(table.row([f"`{name}`", kind, *_sizes(facts.get(kind)), peak, *known, *times]))
    return lines


def _sizes(fact: Mapping[str, int] | None) -> list[str]:
    if fact is None:
        return ["", "", ""]
    return [f"{fact['parameters_trained']:,}", _mib(fact["bytes_reduced"]), _mib(fact["bytes_kept"])]


def _peaks(path: Path) -> dict[int, int]:
    """By stage the most memory that a log has of it; the last stage's is not logged."""
    found: dict[int, int] = {}

    def note(record: Record) -> None:
        if record.key == "tracked_stats" and isinstance(record.value, dict) and "peak_bytes" in record.value:
            found[record.value["growth_stage"]] = record.value["peak_bytes"]

    if path.exists():
        read_log(path, note)
    return found


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f}"
