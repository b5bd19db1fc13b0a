"""Public results and shares of lengths in, the tables and pictures of docs/simulator.md out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.bert.files import atomic_write
from tools.simulate import cluster as clusters
from tools.simulate import whatif
from tools.simulate.explain import run_table, step_table
from tools.simulate.papers import CLUSTER, SEED, STEPS, record_job, tables
from tools.simulate.picture import svg
from tools.simulate.results import Result, ResultsError, read_results
from tools.simulate.run import simulate
from tools.simulate.tables import between_marks, ms, percent, table
from tools.simulate.validate import markdown, predict, summary, worst

PAGE = Path(__file__).resolve().parents[2] / "docs" / "simulator.md"
_RECORD = "samsung_supercomputer21_dgxa100_n128_pytorch"


def write_docs(file: Path, share_L: np.ndarray) -> None:
    """Raises ResultsError where the record's row is missing, ValueError where the page lacks a mark."""
    results, _ = read_results(file)
    record = _record(results, file)
    job, cluster = record_job(), clusters.load(CLUSTER)
    predictions = predict(results, share_L)
    published, ours = (simulate(each, cluster, share_L, num_steps=STEPS, seed=SEED) for each in (record.job, job))
    scales = list(whatif.scaling(job, cluster, share_L, num_steps=10, seed=SEED))
    texts = {
        "validation": f"{markdown(predictions)}\n\n```\n{worst(predictions)}\n{summary(predictions)}\n```",
        "constants": _constants(),
        "bounds": _bounds([each for each in results if each.job.habits.hook_waits], share_L),
        "record": f"{step_table(published)}\n\n{run_table(published)}",
        "record-ours": f"{step_table(ours)}\n\n{run_table(ours)}",
        "whatif": whatif.choices_table(
            job,
            [clusters.load("dgx_a100"), cluster],
            share_L,
            [1, 8, job.layout.num_nodes],
            num_steps=10,
            seed=SEED,
        ),
        "scaling": f"{whatif.scaling_table(scales)}\n\n{whatif.stops_paying(scales)}",
        **tables(share_L),
    }
    page = PAGE.read_text("utf-8")
    for name, text in texts.items():
        page = between_marks(page, name, text)
    _write(PAGE, page)
    _write(PAGE.with_name("simulator-record.svg"), svg(published.stages[0].timeline, "The record's step, as published"))
    _write(PAGE.with_name("simulator-ours.svg"), svg(ours.stages[0].timeline, "The record's recipe, this trainer"))


def _record(results: list[Result], file: Path) -> Result:
    for result in results:
        if (result.round, result.system) == ("v2.0", _RECORD):
            return result
    raise ResultsError(f"{file}: no row v2.0 {_RECORD}")


def _bounds(waiting: list[Result], share_L: np.ndarray) -> str:
    """Of runs whose hook waits: the step if host and accelerator overlapped, and as they take turns."""
    rows = []
    for result in waiting:
        overlapping = replace(result, job=replace(result.job, habits=replace(result.job.habits, hook_waits=False)))
        cells = [
            f"{ms(each.run.amortised_step_s)} ({percent(each.run.amortised_step_s / each.measured_step_s - 1)})"
            for each in predict([overlapping, result], share_L)
        ]
        rows.append([f"{result.round}, {result.job.layout.num_ranks:,} ranks", *cells])
    return table(["the record's runs, step in ms (error)", "host and GPU overlap", "take turns"], rows)


def _constants() -> str:
    """Of both generations of GPUs, with where the first one's are from."""
    names = ("dgx_a100", "dgx_h100")
    loaded, sources = [clusters.load(name) for name in names], [clusters.sources(name) for name in names]
    rows = [
        [f"`{constant}`", *(f"{getattr(each, constant):.4g}" for each in loaded), sources[0][constant]]
        for constant in clusters.CONSTANTS
    ]
    return table(["constant", *names, "the A100's is from"], rows)


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(text, "utf-8")
