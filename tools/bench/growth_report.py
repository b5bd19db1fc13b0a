"""A folder of trials and what was measured of their stages in, the tables out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bert.growth.cost import layer_cost
from benchmarks.bert.growth.plan import Stage
from benchmarks.bert.growth.relative import stage_cost
from tools.ablation.proxy import VOCABULARY
from tools.bench import growth_table as table
from tools.bench.growth_plans import Plans
from tools.trial import LOG, as_one_process, checked, read_trial
from tools.verify.log import Record, read_log

Ratios = Mapping[str, list[float]]  # by stage, of each round


def report(plans: Plans, out: Path, steps: Mapping[str, Any]) -> list[str]:
    """`steps` holds by setting what growth_step.py answers."""
    full = plans.full_stage
    ratios = {setting: table.step_ratios(each["seconds"], table.name_of(full)) for setting, each in steps.items()}
    costs: dict[str, table.Cost] = {
        "FLOPs": partial(stage_cost, plans.config, num_vocabulary=VOCABULARY),
        "cost model": partial(layer_cost, full=full),
        **{setting: partial(_measured, of) for setting, of in ratios.items()},
    }
    facts = next(iter(steps.values()))["facts"] if steps else {}
    lines = ["Stages:", "", *_stages(plans, out, facts, ratios, costs)]
    runs, shorter = (runs_in(plans, out, names) for names in (plans.of_all_steps, plans.shorter))
    if table.BASE not in runs:
        return lines
    return [
        *lines,
        *("", "Accuracy over samples:", "", *table.curves(runs)),
        *("", "Whole runs:", "", *table.whole_runs(runs | shorter, costs)),
        *("", "To equal accuracy:", "", *table.to_accuracy(runs, plans.config.global_batch, costs)),
        *("", "Each at the end of its schedule:", "", *table.to_end(runs, shorter, costs)),
    ]


def runs_in(plans: Plans, out: Path, names: Iterable[str]) -> dict[str, table.Runs]:
    """What is done, of the plans that have anything. Raises TrialError for runs of another configuration."""
    found = {}
    for name in names:
        by_seed = {}
        for folder in sorted(plans.folder_of(out, name, 1).parent.glob("seed_*")):
            seed = int(folder.name.removeprefix("seed_"))
            trial = read_trial(folder, checked(as_one_process(plans.variables_of(name, seed))))
            if trial is not None:
                by_seed[seed] = trial.evaluations
        if by_seed:
            num_steps = checked(plans.variables_of(name, 1)).max_steps
            found[name] = table.Runs(plans.plan_named(name), by_seed, num_steps)
    return found


def _measured(ratios: Ratios, stage: Stage) -> float:
    return median(ratios[table.name_of(stage)])


def _stages(
    plans: Plans, out: Path, facts: Mapping[str, Any], ratios: Mapping[str, Ratios], costs: Mapping[str, table.Cost]
) -> list[str]:
    """A row for each stage of the main plans, and of the variants for those that no plan before them has."""
    sizes = ["parameters trained", "reduced, MiB", "kept for backward, MiB", "process at most, MiB"]
    lines = table.head(["plan", "stage", *sizes, *costs])
    shown: set[str] = set()
    for name in plans.of_all_steps:
        peaks = _peaks(plans.folder_of(out, name, 1) / LOG)
        for number, stage in enumerate(plans.plan_named(name).stages):
            kind = table.name_of(stage)
            if name not in plans.main and kind in shown:
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
    """By stage the most memory that a log has of it."""
    found: dict[int, int] = {}

    def note(record: Record) -> None:
        if record.key == "tracked_stats" and isinstance(record.value, dict) and "peak_bytes" in record.value:
            found[record.value["growth_stage"]] = record.value["peak_bytes"]

    if path.exists():
        read_log(path, note)
    return found


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f}"
