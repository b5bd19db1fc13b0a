"""A log file in, the judgement of one run out."""

from __future__ import annotations

from pathlib import Path

from mlperf_logging import benchmark_meta

from tools.verify.finding import Finding, fold
from tools.verify.log import Log, UnreadableLogError, milliseconds, read_log
from tools.verify.official import Complaint, Compliance, change_of
from tools.verify.report import Evaluation, Run
from tools.verify.rules import bert, clock, events, lines
from tools.verify.rules import official as official_rules
from tools.verify.rules.events import number, samples_of

OTHER_BENCHMARKS = set(benchmark_meta.get_result_file_counts("training")) - {"bert"}

_MAX_INTEGER = 2**63  # larger ones are no seed and no batch


def judge(path: Path, ruleset: str, *, as_submitted: bool) -> tuple[Run, Log]:
    """Raises UnreadableLogError for a file that cannot be read or holds no log of BERT."""
    shipped = Compliance(ruleset, as_submitted=False)
    submitted = Compliance(ruleset, as_submitted=True) if change_of(ruleset) else shipped
    log = read_log(path, *{checker.feed for checker in (shipped, submitted)})
    _refuse_other_files(log)
    verdicts = {checker: checker.complaints(log) for checker in (shipped, submitted)}
    complaints = verdicts[submitted if as_submitted else shipped]
    findings = fold(
        [
            *lines.check(log),
            *(_own_findings(log, ruleset) if log.num_records else ()),
            *official_rules.findings(complaints, log),
            *official_rules.changes(verdicts[shipped], verdicts[submitted], ruleset, as_submitted),
        ]
    )
    return _run(log, ruleset, findings, _outcome(complaints), _outcome(verdicts[shipped])), log


def _own_findings(log: Log, ruleset: str) -> list[Finding]:
    return [finding for rules in (clock, events, bert) for finding in rules.check(log, ruleset)]


def _refuse_other_files(log: Log) -> None:
    if not log.num_records and not log.num_flaws and log.size_bytes:
        raise UnreadableLogError(f"{log.path}: no MLLOG record: not a result log")
    benchmark = log.value("submission_benchmark")
    if isinstance(benchmark, str) and benchmark in OTHER_BENCHMARKS:
        raise UnreadableLogError(f"{log.path}: a log of {benchmark!r}; only bert is verified here")


def _outcome(complaints: list[Complaint]) -> str:
    if any(complaint.kind == "crash" for complaint in complaints):
        return "crash"
    return "fail" if complaints else "pass"


def _run(log: Log, ruleset: str, findings: tuple[Finding, ...], official: str, shipped: str) -> Run:
    start, stop = milliseconds(log.first("run_start")), _last_ms(log, "run_stop")
    began = milliseconds(log.first("init_start"))
    run_ms = stop - start if start is not None and stop is not None else None
    evaluations = _evaluations(log, start)
    samples, samples_from = samples_to_target(log, ruleset)
    return Run(
        path=log.path,
        findings=tuple(finding.at(log.path) for finding in findings),
        official=official,
        official_shipped=shipped,
        benchmark=_text(log, "submission_benchmark"),
        division=_text(log, "submission_division"),
        organisation=_text(log, "submission_org"),
        platform=_text(log, "submission_platform"),
        resumed=_is_resumed(log),
        status=_status(log),
        seed=bert.seed_of(log),
        batch=_integer(log.value("global_batch_size")),
        minutes=run_ms / 60_000 if run_ms is not None else None,
        init_s=(start - began) / 1000 if start is not None and began is not None else None,
        samples=samples,
        samples_from=samples_from,
        accuracy=evaluations[-1].accuracy if evaluations else None,
        target=events.target_of(log, ruleset),
        evaluations=evaluations,
        eval_share=log.eval_ms / run_ms if run_ms and run_ms > 0 and log.count("eval_stop") else None,
        startup_s=_startup_s(log, evaluations),
    )


def _is_resumed(log: Log) -> bool:
    """By the reason that this project's trainer gives at the end."""
    stop = log.first("run_stop")
    return stop is not None and str(stop.meta("reason")).startswith("resumed from step")


def samples_to_target(log: Log, ruleset: str) -> tuple[int | None, str | None]:
    """Samples of the first evaluation that reached the target, else of the last one.

    Or train_samples, where evaluations only name an epoch.
    """
    reached = events.reached(log, ruleset) or (log.evaluations[-1] if log.evaluations else None)
    last = samples_of(reached) if reached else None
    if last is not None and not bert.has_placeholder(log):
        return int(last), "epoch_num"
    trained = number(log.value("train_samples"))
    return (int(trained), "train_samples") if trained is not None else (None, None)


def _evaluations(log: Log, start_ms: float | None) -> tuple[Evaluation, ...]:
    placeholder = bert.has_placeholder(log)
    found = []
    for record in log.evaluations:
        time, accuracy, samples = milliseconds(record), number(record.value), samples_of(record)
        if time is not None and accuracy is not None and start_ms is not None:
            trained = None if samples is None or placeholder else int(samples)
            found.append(Evaluation((time - start_ms) / 1000, trained, accuracy))
    return tuple(found)


def _startup_s(log: Log, evaluations: tuple[Evaluation, ...]) -> float | None:
    """Time to the first evaluation beyond what its samples take at the speed between the first and the last one.

    Where evaluations name no samples, they are taken to be equally far apart.
    """
    if len(evaluations) < 3:
        return None
    first, last = evaluations[0], evaluations[-1]
    if first.samples is None or last.samples is None:
        share = 1 / (len(evaluations) - 1)
    elif last.samples > first.samples:
        share = first.samples / (last.samples - first.samples)
    else:
        return None
    startup_s = first.seconds - share * (last.seconds - first.seconds)
    return startup_s if startup_s >= 0 else None  # lost in the spread of the speed


def _last_ms(log: Log, key: str) -> float | None:
    seen = log.seen.get(key)
    return milliseconds(seen.last) if seen else None


def _status(log: Log) -> str | None:
    stop = log.first("run_stop")
    status = stop.meta("status") if stop else None
    return status if isinstance(status, str) else None


def _text(log: Log, key: str) -> str | None:
    value = log.value(key)
    return value if isinstance(value, str) else None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MAX_INTEGER else None
