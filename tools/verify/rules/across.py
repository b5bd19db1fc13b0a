"""The runs of one system in, where they do not belong together out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from tools.verify.finding import Finding, Rule, Severity, shorten, shown
from tools.verify.log import Log, milliseconds
from tools.verify.report import Rcp, Run
from tools.verify.rules.lines import is_truncated

_RESULTS = "training rules, Benchmark Results"
_CONSISTENT = "training rules, System and framework must be consistent"

COUNT = Rule("runs.count", _RESULTS, "ten runs")
FAILED = Rule(
    "runs.failed",
    _RESULTS,
    "at most one run did not converge, and every other log stands",
    explains=("official.seeds",),
)
SUBMISSION = Rule("runs.submission", _CONSISTENT, "all runs are of one submission")
SETTINGS = Rule("runs.settings", "training rules, Hyperparameters", "all runs have the same batch and hyperparameters")
SEEDS = Rule(
    "runs.seeds", "training rules, Random numbers", "every run has a seed of its own", explains=("official.seeds",)
)
SAME = Rule(
    "runs.distinct", _RESULTS, "no run is there twice", explains=("runs.seeds", "runs.overlap", "official.seeds")
)
SAMPLES = Rule("runs.samples", "mlperf-logging, RCP checker", "all runs count samples alike")
OVERLAP = Rule("runs.overlap", "training rules, Run Results", "one system runs one run at a time")
RCP = Rule(
    "runs.rcp",
    "training policies, Reference Convergence Points",
    "the submission converges no faster than the reference may",
)

_MIN_SCORED = 3  # runs of which the fastest and the slowest are dropped
_SUBMISSION_KEYS = ("submission_org", "submission_division", "submission_benchmark", "submission_platform")
_SETTINGS_KEYS = (  # and every opt_*
    "global_batch_size",
    "d_batch_size",
    "gradient_accumulation_steps",
    "max_sequence_length",
    "max_predictions_per_seq",
    "num_warmup_steps",
    "start_warmup_step",
)


def check(
    runs: Sequence[Run], logs: Sequence[Log], num_runs: int, rcp: Rcp | None, *, bypass: bool
) -> Iterator[Finding]:
    """`bypass` is what a package_checker_params asks for: a failing RCP test is then for the reviewers to judge."""
    is_open = all(run.division == "open" for run in runs)
    yield from _count(runs, num_runs)
    yield from _failed(runs)
    for key in _SUBMISSION_KEYS:
        yield from _equal(SUBMISSION, key, logs)
    for key in sorted({*_SETTINGS_KEYS, *(key for log in logs for key in log.seen if key.startswith("opt_"))}):
        yield from _equal(SETTINGS, key, logs)
    yield from same_runs(runs)
    yield from _samples(runs)
    yield from _seeds(runs, is_open)
    yield from _overlap(logs)
    yield from _rcp(rcp, bypass)


def _count(runs: Sequence[Run], num_runs: int) -> Iterator[Finding]:
    if len(runs) == num_runs:
        return
    fields = {"expected": f"exactly {num_runs} files result_*.txt", "mend": "run the missing ones"}
    if len(runs) > num_runs:
        fields["mend"] = f"keep {num_runs}"
    if len(runs) > num_runs > 2:
        first = _window(runs, num_runs)
        fields["mend"] = (
            f"keep {num_runs} consecutive runs, those whose score is closest to the median of all such windows: "
            f"{runs[first].path.name} to {runs[first + num_runs - 1].path.name}"
        )
    yield COUNT.error(f"{len(runs)} runs", **fields)


def _window(runs: Sequence[Run], num_runs: int) -> int:
    """Where the window of runs begins whose olympic mean is closest to the median of all windows."""
    minutes = [run.minutes if run.converged and run.minutes is not None else float("inf") for run in runs]
    means = [
        sum(sorted(minutes[first : first + num_runs])[1:-1]) / (num_runs - 2)
        for first in range(len(runs) - num_runs + 1)
    ]
    median = sorted(means)[(len(means) - 1) // 2]
    return means.index(median)


def _failed(runs: Sequence[Run]) -> Iterator[Finding]:
    failed = [run for run in runs if run.failed]
    if not failed:
        return
    names = ", ".join(run.path.name for run in failed[:10]) + (" …" if len(failed) > 10 else "")
    only_outcome = all(
        finding.run_outcome for run in failed for finding in run.findings if finding.severity is Severity.ERROR
    )
    if len(failed) == 1 and only_outcome and len(runs) >= _MIN_SCORED:
        yield FAILED.warning(
            f"one run did not converge ({names}): it counts as the slowest and is dropped", path=failed[0].path
        )
    else:
        yield FAILED.error(
            f"{len(failed)} of {len(runs)} logs do not stand: {names}",
            expected="at most one run that did not converge; no log that is wrong otherwise",
            mend="mend what is said of each log",
            explains=("runs.rcp",) if sum(not run.converged for run in failed) > 1 else (),
        )


def _equal(rule: Rule, key: str, logs: Sequence[Log]) -> Iterator[Finding]:
    by_value: dict[str, list[Log]] = {}
    for log in logs:
        if log.num_records and not is_truncated(log):
            by_value.setdefault(shown(log.value(key)), []).append(log)
    if len(by_value) < 2:
        return
    few = min(by_value.values(), key=len)
    values = "; ".join(
        f"{value} in {_names([log.path for log in having])}"
        for value, having in sorted(by_value.items(), key=lambda item: -len(item[1]))[:4]
    )
    record = few[0].first(key)
    platform = key == "submission_platform"  # free text, that no tool reads
    yield (rule.warning if platform else rule.error)(
        f"{key} differs: {values}",
        key=key,
        expected="the same in every run",
        mend="runs of other settings belong into a folder of their own",
        path=few[0].path,
        line=record.line if record else None,
        text=shorten(record.text) if record else "",
    )


def _names(paths: Sequence[Path]) -> str:
    shown = ", ".join(path.name for path in paths[:2])
    return shown if len(paths) <= 2 else f"{shown} and {len(paths) - 2} more"


def same_runs(runs: Sequence[Run]) -> Iterator[Finding]:
    """By what was measured, to the last digit: times and seeds are easily changed in a copy."""
    known: dict[object, Run] = {}
    for run in runs:
        measured = tuple((item.samples, item.accuracy) for item in run.evaluations)
        if len(measured) < 2:
            measured += ((run.seed, run.minutes or 0.0),)
        first = known.setdefault(measured, run)
        if first is not run and run.minutes is not None:
            yield SAME.error(
                f"{run.path.name} is the same run as {first.path}",
                expected="different runs, of one system each",
                mend="remove the copy and run again",
                path=run.path,
            )


def _samples(runs: Sequence[Run]) -> Iterator[Finding]:
    named = {run.samples_from: run for run in runs if run.samples_from}
    if len(named) > 1:
        some, others = (named[key].path.name for key in ("epoch_num", "train_samples"))
        yield SAMPLES.error(
            f"epoch_num holds samples in {some}, and none in {others}",
            expected="the samples trained on, in every run",
            mend="log them as epoch_num of each evaluation",
            path=named["train_samples"].path,
        )


def _seeds(runs: Sequence[Run], is_open: bool) -> Iterator[Finding]:
    by_seed: dict[int, list[Run]] = {}
    for run in runs:
        if run.seed is not None:
            by_seed.setdefault(run.seed, []).append(run)
    shared = {seed: having for seed, having in by_seed.items() if len(having) > 1}
    if shared:
        seed, having = max(shared.items(), key=lambda item: len(item[1]))
        yield (SEEDS.warning if is_open else SEEDS.error)(
            f"seed {seed} is that of {len(having)} runs: {_names([run.path for run in having])}"
            + (f" (and {len(shared) - 1} more seeds are shared)" if len(shared) > 1 else ""),
            key="seed",
            expected="a seed drawn anew for each run",
            mend="draw it from the system's randomness; the official check lets equal seeds pass on different lines",
            path=having[1].path,
        )


def _overlap(logs: Sequence[Log]) -> Iterator[Finding]:
    spans = []
    for log in logs:
        began, ended = (milliseconds(log.first(key)) for key in ("run_start", "run_stop"))
        if began is not None and ended is not None:
            spans.append((began, ended, log))
    spans.sort(key=lambda span: span[:2])
    overlaps = [(before, after) for before, after in pairwise(spans) if after[0] < before[1]]
    if overlaps:
        before, after = overlaps[0]
        yield OVERLAP.warning(
            f"{len(overlaps)} pairs of runs overlap in time, the first {before[2].path.name} and {after[2].path.name}",
            expected="one run after the other on one system",
            mend="nothing, if each had machines of its own",
            path=after[2].path,
        )


def _rcp(rcp: Rcp | None, bypass: bool) -> Iterator[Finding]:
    if rcp is None or not rcp.applies or rcp.passed:
        return
    numbers = ""
    if rcp.submission_mean is not None and rcp.minimum is not None:
        numbers = f": a mean of {rcp.submission_mean:,.0f} samples, the minimum is {rcp.minimum:,.0f}"
    yield (RCP.warning if bypass else RCP.error)(
        f"{rcp.message}{numbers}" + (", passed over as package_checker_params asks" if bypass else ""),
        expected="a mean of samples to target not below the minimum at this batch",
        mend="compare model, data and hyperparameters with the reference, or submit reference points for this batch",
    )
