"""Records of one run in, what is wrong with them and what they amount to out."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mlperf_logging.compliance_checker import mlp_compliance

from tools.verify.log import Record


@dataclass(frozen=True)
class Summary:
    run_s: float
    init_s: float
    accuracy: float
    samples: int

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.run_s


def official_findings(path: Path, ruleset: str) -> list[str]:
    """What mlperf-logging's compliance checker has against the log; empty if it passes."""
    checker = mlp_compliance.make_checker("training", ruleset, quiet=False, werror=False)
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    logger = logging.getLogger()
    logger.addHandler(handler)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            passed = checker.check_file(str(path), f"training_{ruleset}/common.yaml")
    except Exception as error:  # the checker crashes on some logs; that is a failure of the log
        return [f"the official checker crashed: {type(error).__name__}: {error}"]
    finally:
        logger.removeHandler(handler)
    return [] if passed else [f"the official checker failed:\n{said.getvalue().strip()}"]


def own_findings(records: Sequence[Record]) -> list[str]:
    """What the official checker lets through: order, uniqueness, status and accuracy of the run."""
    findings = []
    for key in ("run_start", "run_stop"):
        if (count := len(_all(records, key))) != 1:
            findings.append(f"{count} records of {key}, expected exactly 1")
    if findings:
        return findings
    start, stop = _all(records, "run_start")[0], _all(records, "run_stop")[0]
    if not start.time_ms < stop.time_ms < float("inf"):
        findings.append(f"line {stop.line}: run_stop is not later than run_start")
    if (status := stop.metadata.get("status")) != "success":
        reason = f" ({stop.metadata['reason']})" if "reason" in stop.metadata else ""
        findings.append(f"line {stop.line}: the run's status is {status!r}{reason}, expected 'success'")
    return findings + _accuracy_findings(records, start, stop)


def _accuracy_findings(records: Sequence[Record], start: Record, stop: Record) -> list[str]:
    findings = []
    accuracies, targets, trained = (_all(records, key) for key in ("eval_accuracy", "target_accuracy", "train_samples"))
    for record in [*accuracies, *targets, *trained]:
        if isinstance(record.value, bool) or not isinstance(record.value, int | float):
            findings.append(f"line {record.line}: {record.key} {record.value!r} is not a number")
    for record in accuracies:
        if not start.line < record.line < stop.line:
            findings.append(f"line {record.line}: an evaluation outside the run")
    if not findings and targets and not (accuracies and accuracies[-1].value >= targets[-1].value):
        reached = accuracies[-1].value if accuracies else "none"
        findings.append(f"the last accuracy is {reached}, the target {targets[-1].value}")
    if accuracies and trained and trained[-1].value != accuracies[-1].metadata.get("epoch_num"):
        findings.append(f"line {trained[-1].line}: train_samples differ from the last evaluation's epoch_num")
    return findings


def summarise(records: Sequence[Record]) -> Summary:
    """Time, accuracy and samples of a log without findings."""

    def time_ms(key: str) -> float:
        return _all(records, key)[0].time_ms

    return Summary(
        run_s=(time_ms("run_stop") - time_ms("run_start")) / 1000,
        init_s=(time_ms("run_start") - time_ms("init_start")) / 1000,
        accuracy=_all(records, "eval_accuracy")[-1].value,
        samples=_all(records, "train_samples")[-1].value,
    )


def _all(records: Sequence[Record], key: str) -> list[Record]:
    return [record for record in records if record.key == key]
