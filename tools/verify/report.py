"""What the verifier found, as plain values: every form of the report (text, JSON, Markdown, HTML) reads only this."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.verify.finding import Finding, Severity


@dataclass(frozen=True)
class Evaluation:
    seconds: float  # since run_start
    samples: int | None  # trained on; None where the log does not say
    accuracy: float  # masked-LM


@dataclass(frozen=True)
class Run:
    """One log. Figures are None where the log does not hold them."""

    path: Path
    findings: tuple[Finding, ...]
    official: str  # "pass", "fail" or "crash": mlperf-logging's compliance checker, rules as asked for
    official_shipped: str  # the same with the rules as the pinned mlperf-logging ships them
    benchmark: str | None
    division: str | None
    organisation: str | None
    platform: str | None
    resumed: bool  # from a checkpoint: its samples are not all of this run
    status: str | None  # of run_stop
    seed: int | None
    batch: int | None  # global batch size, samples
    minutes: float | None  # run_start to run_stop
    init_s: float | None  # first init_start to run_start
    samples: int | None  # to target
    samples_from: str | None  # "epoch_num" or "train_samples"
    accuracy: float | None  # the last evaluation's
    target: float
    evaluations: tuple[Evaluation, ...]
    eval_share: float | None  # of the run, spent between eval_start and eval_stop
    startup_s: float | None  # inside the clock, before steady training; estimated from the evaluations

    @property
    def failed(self) -> bool:
        return any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def converged(self) -> bool:
        return self.status == "success" and not any(finding.run_outcome for finding in self.findings)

    @property
    def samples_per_s(self) -> float | None:
        if self.resumed or not self.samples or not self.minutes:
            return None
        return self.samples / (60 * self.minutes)


@dataclass(frozen=True)
class Check:
    """One official check of a folder, turned into a real pass or fail."""

    name: str  # "compliance", "number of results", "seeds", "RCP", "system description", "repository", "power"
    outcome: str  # "pass", "fail", "crash" or "not applicable"
    detail: str


@dataclass(frozen=True)
class Rcp:
    """The submission's convergence against the reference's (reference convergence points)."""

    applies: bool  # a rule in closed, information in open
    passed: bool
    message: str  # the official checker's words
    batch: int
    low_batch: int | None  # the reference points between which the batch lies; equal on a point
    high_batch: int | None
    mean: float | None  # samples, of the reference at this batch
    minimum: float | None  # samples, that the submission's mean may not be below
    submission_mean: float | None  # olympic mean of the submission's samples to target
    margin: float | None  # submission_mean / minimum - 1
    scaling: float  # of the score; 1 or more
    samples_from: str  # "epoch_num" or "train_samples"
    because: str  # why that one
    official_epoch_num: str  # "pass", "fail": what the official checker says by default
    official_train_samples: str  # and what it says with --bert_train_samples


@dataclass(frozen=True)
class Score:
    minutes: tuple[float | None, ...]  # per run, None where it did not converge
    dropped: tuple[int, ...]  # indices of the fastest and the slowest run
    mean_minutes: float | None  # of the rest, unscaled; None where no score can be given
    scaling: float
    spread: float | None  # standard deviation / mean of the counted runs
    samples: float | None  # to target; from here on means over the counted runs
    samples_per_s: float | None
    num_accelerators: int | None
    init_s: float | None
    eval_share: float | None
    startup_s: float | None
    counts: bool  # False where the folder fails: the figures are then for information

    @property
    def scaled_minutes(self) -> float | None:
        return None if self.mean_minutes is None else self.mean_minutes * self.scaling

    @property
    def samples_per_s_and_accelerator(self) -> float | None:
        if self.samples_per_s is None or not self.num_accelerators:
            return None
        return self.samples_per_s / self.num_accelerators


@dataclass(frozen=True)
class Folder:
    """One system's results of one benchmark, or a single log alone."""

    path: Path
    system: str
    runs: tuple[Run, ...]
    findings: tuple[Finding, ...]  # about the runs together
    checks: tuple[Check, ...]
    rcp: Rcp | None
    score: Score | None
    not_applicable: tuple[str, ...]  # what is not checked here and why

    @property
    def failed(self) -> bool:
        """Failing runs are in `findings` already, by the rule of how many may fail; a single log has no such rule."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)


@dataclass(frozen=True)
class Report:
    path: Path
    kind: str  # "log", "folder" (one or several) or "tree"
    ruleset: str  # e.g. "5.0.0"
    ruleset_from: str  # how it was chosen
    rules: str  # "as-submitted" or "as-shipped"
    findings: tuple[Finding, ...]  # about the tree as a whole
    folders: tuple[Folder, ...]
    checks: tuple[Check, ...] = ()  # official ones of the tree as a whole

    @property
    def failed(self) -> bool:
        return (
            any(finding.severity is Severity.ERROR for finding in self.findings)
            or any(folder.failed for folder in self.folders)
            or (self.kind == "log" and any(run.failed for folder in self.folders for run in folder.runs))
        )

    def all_findings(self) -> Iterator[Finding]:
        yield from self.findings
        for folder in self.folders:
            yield from folder.findings
            for run in folder.runs:
                yield from run.findings
