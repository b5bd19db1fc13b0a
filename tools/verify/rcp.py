"""Runs of a folder in, their convergence against the reference convergence points (RCPs) out.

Reference data and statistics are the official checker's; its own entry point reads every log again and writes or
removes scaling.json, so only its parts are used.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from mlperf_logging.rcp_checker import rcp_checker

from tools.verify.checks import heard
from tools.verify.log import Log
from tools.verify.report import Rcp, Run
from tools.verify.rules.events import number

_NOT_CONVERGED = 1e9  # samples, as the official checker counts such a run
_MIN_RUNS = 3  # of which the fastest and the slowest are dropped


class _Checker(rcp_checker.RCP_Checker):
    """The official checker without its hands on the file system."""

    def _set_results_scaling(self, scale_factor: float, results_dir: str) -> None:
        pass

    def _reset_results_scaling(self, results_dir: str) -> None:
        pass


@functools.cache
def _checker(ruleset: str) -> _Checker:
    with heard():
        return _Checker("training", ruleset, "bert", verbose=False)


def compare(runs: Sequence[Run], logs: Sequence[Log], ruleset: str) -> Rcp | None:
    """None where there is nothing to compare: round 0.7, under three runs, no common batch, no samples."""
    batches = {run.batch for run in runs}
    batch = batches.pop() if len(batches) == 1 else None
    if ruleset == "0.7.0" or batch is None or batch <= 0 or len(runs) < _MIN_RUNS:
        return None
    by_epoch_num = [_epoch_num(run, log) for run, log in zip(runs, logs, strict=True)]
    by_train_samples = [_train_samples(run, log) for run, log in zip(runs, logs, strict=True)]
    named = any(run.samples_from == "epoch_num" for run in runs)
    counts = [_NOT_CONVERGED if run.status != "success" else run.samples for run in runs]
    of_epoch_num, of_train_samples = (_answer(ruleset, batch, each) for each in (by_epoch_num, by_train_samples))
    passed, message, scaling = _answer(ruleset, batch, counts)
    record, low, high, _ = _reference(_checker(ruleset), batch)
    mean = _olympic_mean(counts)
    minimum = float(record["RCP Mean"] / record["Max Speedup"]) if record else None
    return Rcp(
        applies=all(run.division != "open" for run in runs),
        passed=passed,
        message=message,
        batch=batch,
        low_batch=low,
        high_batch=high,
        mean=float(record["RCP Mean"]) if record else None,
        minimum=minimum,
        submission_mean=mean,
        margin=mean / minimum - 1 if mean is not None and minimum else None,
        scaling=scaling if passed else 1.0,
        samples_from="epoch_num" if named else "train_samples",
        because="it holds the samples trained on, as BERT's rules have it"
        if named
        else "epoch_num names an epoch, no samples",
        official_epoch_num="pass" if of_epoch_num[0] else "fail",
        official_train_samples="pass" if of_train_samples[0] else "fail",
    )


def _epoch_num(run: Run, log: Log) -> float | None:
    value = number(log.evaluations[-1].meta("epoch_num")) if log.evaluations else None
    return _NOT_CONVERGED if run.status != "success" else value if value is None else round(value, 3)


def _train_samples(run: Run, log: Log) -> float | None:
    return _NOT_CONVERGED if run.status != "success" else number(log.value("train_samples"))


def _olympic_mean(samples: Sequence[float | None]) -> float | None:
    """Mean without the smallest and the largest; None where two runs or more did not converge or say no samples."""
    if sum(count is None or count == _NOT_CONVERGED for count in samples) > 1 or None in samples:
        return None
    counted = sorted(count for count in samples if count is not None)[1:-1]
    return sum(counted) / len(counted)


def _reference(checker: _Checker, batch: int) -> tuple[dict[str, Any] | None, int | None, int | None, str]:
    """The reference at this batch, the batches it lies between, and the official words for how it was found."""
    exact = checker._find_rcp(batch, "pruned_rcps")
    if exact is not None:
        return exact, batch, batch, "RCP found"
    below = checker._find_top_min_rcp(batch, "pruned_rcps")
    above = checker._find_bottom_max_rcp(batch, "pruned_rcps")
    if below is not None and above is not None:
        return checker._create_interp_rcp(batch, below, above)[1], below["BS"], above["BS"], "RCP Interpolation"
    if above is not None:
        return above, None, above["BS"], "RCP not found but slower convergence on smaller batch size"
    return None, below["BS"] if below else None, None, f"Missing RCP, please submit RCP with BS = {batch}"


def _answer(ruleset: str, batch: int, samples: Sequence[float | None]) -> tuple[bool, str, float]:
    """What the official checker says of these samples: passed, its words, the scaling factor."""
    checker = _checker(ruleset)
    record, low, _, message = _reference(checker, batch)
    if _olympic_mean(samples) is None:
        return False, "Insufficient convergence", 1.0
    if record is None:
        return False, message, 1.0
    with heard():
        passed, factor = checker._eval_submission_record(record, list(samples), "")
    if not passed and low is None:
        message = f"Missing RCP, please submit RCP with BS = {batch}"
    return bool(passed), message, float(factor)
