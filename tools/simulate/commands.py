"""Options in, a command's text on stdout and its files out; each returns its exit status."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from benchmarks.bert.complaint import FAILED, complain
from benchmarks.bert.config import Config, load
from benchmarks.bert.data.dataset import count_vocabulary, read_data_set
from benchmarks.bert.files import atomic_write
from tools.simulate import cluster as clusters
from tools.simulate import lengths, planning, whatif
from tools.simulate.calibrate import calibrate
from tools.simulate.docs import write_docs
from tools.simulate.explain import explain
from tools.simulate.fit import OF_START, OF_STEP, Dealt, fitted
from tools.simulate.job import BERT_LARGE, Job, of_config
from tools.simulate.papers import tables
from tools.simulate.picture import chrome_trace, svg
from tools.simulate.results import ResultsError, read_results
from tools.simulate.run import simulate
from tools.simulate.tables import ms, percent
from tools.simulate.validate import cluster_of, markdown, predict, summary, worst


def run(options: Namespace) -> int:
    job, share_L = _job(options), lengths.shares(options.histogram, options.data)
    found = simulate(job, clusters.load(options.cluster), share_L, num_steps=options.steps, seed=options.seed)
    print(explain(found))
    timeline = found.stages[0].timeline
    if options.timeline:
        _write(options.timeline, svg(timeline, f"{job.name} on {options.cluster}"))
    if options.trace:
        _write(options.trace, json.dumps(chrome_trace(timeline)))
    return 0


def validate(options: Namespace) -> int:
    """1 where a row could not be simulated."""
    results, refused = read_results(options.file)
    if not results:
        raise ResultsError("\n".join(refused) or f"{options.file}: no rows")
    predictions = predict(results, lengths.shares(options.histogram))
    for part in (markdown(predictions), worst(predictions), summary(predictions)):
        print(part)
    return complain("\n".join(refused), FAILED) if refused else 0


def fit(options: Namespace) -> int:
    share_L = lengths.shares(options.histogram)
    rows = [result for result in read_results(options.file)[0] if result.role == "fit"]
    if not rows:
        raise ResultsError(f"{options.file}: no row marked fit that can be simulated")
    for name in sorted({row.cluster for row in rows}):
        of_cluster = [row for row in rows if row.cluster == name]
        found = fitted(cluster_of(of_cluster[0]), [Dealt.of(row, share_L) for row in of_cluster])
        values = {each: getattr(found, each) for each in (*OF_STEP, *OF_START)}
        print(f"{name}: " + ", ".join(f"{each} {value:.4g}" for each, value in values.items()))
        if options.write:
            path = clusters.path_of(name)
            _write(path, clusters.with_fitted(path.read_text("utf-8"), values))
    return 0


def what_if(options: Namespace) -> int:
    """Strategies, clip variants, ranks and networks; then the same batch on more and more ranks."""
    job, share_L = _job(options), lengths.shares(options.histogram, options.data)
    cluster = clusters.load(options.cluster)
    half = replace(cluster, name="half the links", num_links=cluster.num_links / 2)
    common = {"num_steps": options.steps, "seed": options.seed}
    nodes = options.nodes or [1, job.layout.num_nodes]
    print(whatif.choices_table(job, [cluster, half], share_L, sorted(set(nodes)), **common))
    scales = list(whatif.scaling(job, cluster, share_L, **common))
    print(f"\n{whatif.scaling_table(scales)}\n\n{whatif.stops_paying(scales)}")
    return 0


def papers(options: Namespace) -> int:
    for name, text in tables(lengths.shares(options.histogram)).items():
        print(f"{name}\n\n{text}\n")
    return 0


def docs(options: Namespace) -> int:
    write_docs(options.file, lengths.shares(options.histogram))
    return 0


def plan(options: Namespace) -> int:
    cluster = clusters.load(options.cluster)
    found = planning.propose(cluster, options.minutes, lengths.shares(options.histogram), options.max_nodes)
    print(explain(found.run))
    print(f"\nrecipe {found.recipe}; a step is {found.limits}")
    for name, value in found.settings.items():
        print(f"{name}={value}")
    path = options.out / planning.file_name(found, cluster)
    _write(path, planning.script(found, Path(found.recipe).read_text("utf-8"), cluster))
    load({"CONFIG": str(path)})  # what is written can be run
    print(f"{found.run.seconds / 60:.2f} minutes predicted; wrote {path}")
    return 0


def calibrate_machine(options: Namespace) -> int:
    config = load({"CONFIG": options.config})
    share_L, num_vocabulary = lengths.shares(None, config.data_dir), _num_vocabulary(config.data_dir)
    found = calibrate(config, clusters.load(options.cluster), share_L, num_vocabulary, options.rounds)
    values = {each: getattr(found.cluster, each) for each in (*OF_STEP, "node_bytes_per_s")}
    print(", ".join(f"{each} {value:.4g}" for each, value in values.items()))
    if options.out:
        _write(options.out, clusters.with_fitted(clusters.path_of(options.cluster).read_text("utf-8"), values))
    error = found.predicted_s / found.measured_s - 1
    print(
        f"step of {options.config}: measured {ms(found.measured_s)} ms, predicted {ms(found.predicted_s)} ms", end=", "
    )
    print(percent(error))
    return 0


def _job(options: Namespace) -> Job:
    """A public result of a table, or this project's trainer with a configuration."""
    if options.row:
        file, name = options.row
        results, _ = read_results(Path(file))
        for result in results:
            if name in (result.system, f"{result.round} {result.system}"):
                return result.job
        raise ResultsError(f"{file}: no row of {name!r} that can be simulated")
    config = _config(options)
    samples = options.samples or config.decay_steps * config.global_batch
    name = Path(options.config or "defaults").stem
    job = of_config(config, samples_to_target=samples, num_vocabulary=_num_vocabulary(options.data), name=name)
    return replace(job, algorithm=options.algorithm)


def _num_vocabulary(data: Path | None) -> int:
    """Of a data folder; else the benchmark's."""
    if data is None:
        return BERT_LARGE.num_vocabulary
    return count_vocabulary(data / "vocab.txt", read_data_set(data / "train"))


def _config(options: Namespace) -> Config:
    return load(dict(options.set) | ({"CONFIG": options.config} if options.config else {}))


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(text, "utf-8")
