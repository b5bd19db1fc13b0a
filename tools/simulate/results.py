"""A table of public results in, the job that each row describes and what was measured out.

A row says who submitted what on how many accelerators, its global batch and samples to target; how it trained stands in
its notes, in words. What they leave open is filled in by what most trainers of that accelerator did.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bert.data.plan import Layout
from tools.simulate.job import Habits, Job, rule_schedule

_COLUMNS = ("role", "system", "nodes", "accelerators", "accelerator", "global_batch", "samples_to_target", "notes")
_MEASURED = ("run_s_olympic_mean", "first_accuracy_at_s", "interval_between_evaluations_s")
_GRAPHED = 6  # samples of a rank up to which published trainers replay whole iterations
_WITHOUT_WORKERS = 8  # samples or packs of a rank up to which they load batches in the training process
_SKIPPED = 7  # steps that a loss scale of 2^17 costs (result logs of the record)


class ResultsError(ValueError):
    """A table or row that cannot be read; the message names file, line, column and what is expected."""


@dataclass(frozen=True)
class Result:
    """What was measured is NaN where the table does not say."""

    role: str
    system: str
    round: str
    cluster: str
    job: Job
    run_s: float
    first_accuracy_s: float
    interval_s: float

    @property
    def samples_per_s(self) -> float:
        return self.job.samples_to_target / self.run_s


def read_results(path: Path) -> tuple[list[Result], list[str]]:
    """The rows that can be simulated, and a line for each other one, which says why not. Raises ResultsError."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
            missing = [name for name in (*_COLUMNS, _MEASURED[0]) if name not in (reader.fieldnames or ())]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ResultsError(f"{path}: cannot read it ({error})") from error
    if missing:
        raise ResultsError(f"{path}: no column {', '.join(missing)}; expected a table as public_results.csv")
    results, refused = [], []
    for number, row in enumerate(rows, start=2):
        try:
            results.append(_result(row))
        except ResultsError as error:
            refused.append(f"{path}:{number}: {row['system']}: {error}")
    return results, refused


def _result(row: Mapping[str, str]) -> Result:
    if None in row.values() or None in row:
        raise ResultsError("another number of columns than the heading")
    nodes, accelerators, batch = (_whole(row, name) for name in ("nodes", "accelerators", "global_batch"))
    if accelerators % nodes or batch % accelerators:
        raise ResultsError(
            f"{batch} samples on {accelerators} accelerators of {nodes} nodes do not divide evenly, which is all that "
            "can be simulated"
        )
    if row["role"] not in ("fit", "test"):
        raise ResultsError(f"role is {row['role']!r}, expected fit or test")
    layout = Layout(nodes, accelerators // nodes, batch // accelerators)
    return Result(
        role=row["role"],
        system=row["system"],
        round=row.get("round") or "",
        cluster=_cluster(row),
        job=_job(row, layout),
        run_s=_seconds(row, _MEASURED[0], may_lack=False),
        first_accuracy_s=_seconds(row, _MEASURED[1]),
        interval_s=_seconds(row, _MEASURED[2]),
    )


def _cluster(row: Mapping[str, str]) -> str:
    name = row["accelerator"].upper()
    for part, cluster in (("H200", "hgx_h200"), ("H100", "dgx_h100"), ("A100", "dgx_a100")):
        if part in name and "PCI" not in name:
            return f"{cluster}_4hdr" if cluster == "dgx_a100" and "samsung" in row["system"].lower() else cluster
    raise ResultsError(f"accelerator is {row['accelerator']!r}; described are A100, H100 and H200 with NVLink")


def _job(row: Mapping[str, str], layout: Layout) -> Job:
    notes = row["notes"].lower()
    says_nothing = "packed" not in notes and "unpad" not in notes
    hopper = "H100" in row["accelerator"].upper() or "H200" in row["accelerator"].upper()
    packed = "packed" in notes or (says_nothing and (hopper or layout.per_rank <= _GRAPHED))
    graphs = "no cuda graph" not in notes and ("cuda graph" in notes or layout.per_rank <= _GRAPHED)
    record = "per bucket" in notes
    overlaps = "overlap" in notes and "no overlap" not in notes and not record
    batches = layout.per_rank / 2 if packed else layout.per_rank
    return Job(
        name=row["system"],
        layout=layout,
        loading=_loading(notes),
        packed=packed,
        last_layer="only_read" if "last layer only" in notes else "whole",
        clip="bucket_before" if record else "global_after" if overlaps else "global_before",
        optimizer="adam" if "adam" in notes else "lamb",
        shards=1 if record else layout.ranks_per_node,
        graphs=graphs,
        fp8="fp8" in notes or (says_nothing and hopper and "16" not in notes),
        samples_to_target=_samples(row),
        evaluation=rule_schedule(layout.global_batch),
        habits=Habits(
            step_waits=not graphs,
            hook_waits=record,
            starts_workers=batches > _WITHOUT_WORKERS,
            skipped_steps=_SKIPPED if record else 0,
        ),
    )


def _loading(notes: str) -> str:
    if "stratified" in notes:
        return "stratified_presort"
    return "random" if "no exchange" in notes else "global_presort"


def _whole(row: Mapping[str, str], name: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", row[name].strip(), re.ASCII):
        raise ResultsError(f"{name} is {row[name]!r}, expected a whole number from 1")
    return int(row[name])


def _samples(row: Mapping[str, str]) -> float:
    value = _number(row["samples_to_target"])
    if not value >= 1:
        raise ResultsError(f"samples_to_target is {row['samples_to_target']!r}, expected a number from 1")
    return value


def _seconds(row: Mapping[str, str], name: str, *, may_lack: bool = True) -> float:
    text = (row.get(name) or "").strip()
    if may_lack and not text:
        return math.nan
    value = _number(text)
    if not value > 0:
        raise ResultsError(f"{name} is {text!r}, expected seconds above 0")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan
