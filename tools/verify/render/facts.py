"""A log or folder in, the labelled facts and table rows that all forms show alike out."""

from __future__ import annotations

from tools.verify.render import words
from tools.verify.render.groups import findings_of, tally
from tools.verify.report import Folder, Rcp, Report, Run, Score

Facts = list[tuple[str, str]]  # label, value

RUN_HEADS = ("log", "verdict", "minutes", "samples", "accuracy", "samples/s", "seed", "remark")
FOLDER_HEADS = ("folder", "verdict", "logs", "score", "samples/s", "findings")
NUMBERS = frozenset(("minutes", "samples", "accuracy", "samples/s", "seed", "logs", "score"))  # columns to the right


def verdict(item: Report | Folder | Run) -> str:
    return "failed" if item.failed else "passed"


def is_single(report: Report) -> bool:
    """Whether the report is about one log, and that log is there."""
    return report.kind == "log" and len(report.folders) == 1 and len(report.folders[0].runs) == 1


def is_tree(report: Report) -> bool:
    return report.kind == "tree" or len(report.folders) > 1


def rules_facts(report: Report) -> Facts:
    chosen = f"{words.one_line(report.ruleset)}: {words.one_line(report.ruleset_from)}"
    return [("ruleset", chosen), ("rules", words.one_line(report.rules))]


def run_facts(run: Run) -> Facts:
    """Time, accuracy and speed, where the log holds them."""
    facts = []
    if run.minutes is not None:
        after = "" if run.init_s is None else f", after {words.duration(run.init_s)} of initialisation"
        facts.append(("time", f"{words.duration(60 * run.minutes)} from run_start to run_stop{after}"))
    if run.accuracy is not None:
        after = "" if run.samples is None else f" after {words.count(run.samples)} samples"
        below = f", below the target {words.fixed(run.target, 4)}" if run.accuracy < run.target else ""
        facts.append(("accuracy", f"{words.fixed(run.accuracy, 4)} masked-LM{after}{below}"))
    if run.samples_per_s is not None:
        facts.append(("speed", f"{words.fixed(run.samples_per_s, 1)} samples/s"))
    return facts


def run_details(run: Run) -> Facts:
    return [
        ("official checker", _official(run)),
        ("status", words.optional(run.status)),
        ("benchmark", words.optional(run.benchmark)),
        ("division", words.optional(run.division)),
        ("organisation", words.optional(run.organisation)),
        ("platform", words.optional(run.platform)),
        ("seed", words.optional(run.seed)),
        ("global batch", words.count(run.batch)),
        ("samples from", words.optional(run.samples_from)),
        ("evaluations", f"{len(run.evaluations):,}{_share(run)}"),
        ("start-up", _known(words.duration(run.startup_s), " inside the clock, estimated")),
    ]


def folder_facts(folder: Folder) -> Facts:
    """The headline: score, speed, logs and findings."""
    facts = []
    if folder.score is not None:
        facts.append(("score", _headline(folder.score)))
        facts.append(("speed", _speed(folder.score)))
    facts.append(("logs", _logs(folder)))
    facts.append(("findings", tally(findings_of(folder))))
    return facts


def run_rows(folder: Folder) -> list[tuple[str, ...]]:
    return [(words.within(run.path, folder.path), *_cells(folder, index)) for index, run in enumerate(folder.runs)]


def folder_row(folder: Folder, report: Report) -> tuple[str, ...]:
    score = folder.score
    return (
        words.within(folder.path, report.path),
        verdict(folder),
        str(len(folder.runs)),
        words.minutes(score.scaled_minutes if score else None),
        words.fixed(score.samples_per_s if score else None, 1),
        tally(findings_of(folder)),
    )


def role(folder: Folder, index: int) -> str:
    """What a run is to the score: "counted", "dropped" or "failed"."""
    run = folder.runs[index]
    if run.failed or not run.converged:
        return "failed"
    return "dropped" if folder.score and index in folder.score.dropped else "counted"


def remark(folder: Folder, index: int) -> str:
    run = folder.runs[index]
    remarks = [] if run.converged else ["cut off" if run.status is None else "no convergence"]
    score = folder.score
    if score and index in score.dropped:
        remarks.append(f"dropped, {_extreme(score, index)}")
    return "; ".join(remarks)


def rcp_facts(rcp: Rcp) -> Facts:
    """The comparison with the reference convergence points."""
    standing = "passed" if rcp.passed else "failed"
    facts = [
        ("outcome", standing if rcp.applies else f"{standing}, for information only in the open division"),
        ("global batch", f"{words.count(rcp.batch)}, {_neighbours(rcp)}"),
        ("reference mean", _known(words.count(rcp.mean), " samples")),
        ("minimum allowed", _known(words.count(rcp.minimum), " samples")),
        ("submission mean", _known(words.count(rcp.submission_mean), f" samples without the extremes{_margin(rcp)}")),
        ("scaling", words.fixed(rcp.scaling, 4)),
        ("counted by", f"{words.one_line(rcp.samples_from)}: {words.plain(rcp.because)}"),
        ("official", f"by epoch_num {rcp.official_epoch_num}, by train_samples {rcp.official_train_samples}"),
    ]
    return [*facts, ("message", words.plain(rcp.message))] if rcp.message.strip() else facts


def score_facts(score: Score) -> Facts:
    """The score and what it is made of; means are over the runs."""
    facts = [
        ("runs", _minutes(score)),
        ("mean, unscaled", words.minutes(score.mean_minutes)),
        ("mean, scaled", f"{words.minutes(score.scaled_minutes)} (scaling {words.fixed(score.scaling, 4)})"),
        ("spread", _known(words.percent(score.spread), " (standard deviation over mean of the counted runs)")),
        ("samples to target", words.count(score.samples)),
        ("speed", _speed(score)),
        ("initialisation", _known(words.duration(score.init_s), " before the clock")),
        ("start-up", _known(words.duration(score.startup_s), " inside the clock, estimated")),
        ("evaluation", _known(words.percent(score.eval_share), " of the run")),
    ]
    return facts if score.counts else [("standing", "for information, as the folder fails"), *facts]


def excused(folder: Folder) -> str:
    """Why a folder passes although logs of it failed; empty where that is not so."""
    failed = [words.within(run.path, folder.path) for run in folder.runs if run.failed]
    if not failed or folder.failed or len(folder.runs) == 1:
        return ""
    return f"The folder stands although {', '.join(failed)} failed: the rules allow that many."


def _cells(folder: Folder, index: int) -> tuple[str, ...]:
    run = folder.runs[index]
    return (
        verdict(run),
        words.fixed(run.minutes, 3),
        words.count(run.samples),
        words.fixed(run.accuracy, 4),
        words.fixed(run.samples_per_s, 1),
        words.optional(run.seed),
        remark(folder, index),
    )


def _known(figure: str, unit: str) -> str:
    return figure if figure == words.DASH else figure + unit


def _share(run: Run) -> str:
    return "" if run.eval_share is None else f", {words.percent(run.eval_share)} of the run"


def _official(run: Run) -> str:
    if run.official == run.official_shipped:
        return words.one_line(run.official)
    return f"{words.one_line(run.official)}; with its rules as shipped: {words.one_line(run.official_shipped)}"


def _headline(score: Score) -> str:
    minutes = score.scaled_minutes
    if minutes is None:
        return "none can be given"
    counted = sum(time is not None and index not in score.dropped for index, time in enumerate(score.minutes))
    scaled = "" if score.scaling == 1 else f", scaled by {words.fixed(score.scaling, 4)}"
    standing = "" if score.counts else "; for information, as the folder fails"
    seconds = f" ({words.fixed(60 * minutes, 2)} s)" if minutes < 2 else ""
    return f"{words.minutes(minutes)}{seconds}, mean of {counted} of {len(score.minutes)} runs{scaled}{standing}"


def _speed(score: Score) -> str:
    overall = _known(words.fixed(score.samples_per_s, 1), " samples/s")
    if score.samples_per_s_and_accelerator is None:
        return overall
    each = words.fixed(score.samples_per_s_and_accelerator, 1)
    return f"{overall}, {each} for each of {words.plural(score.num_accelerators or 0, 'accelerator')}"


def _logs(folder: Folder) -> str:
    failed = sum(run.failed for run in folder.runs)
    return f"{len(folder.runs)}, {failed or 'none'} failed; system {words.one_line(folder.system)}"


def _extreme(score: Score, index: int) -> str:
    def time(index: int) -> float:
        minutes = score.minutes[index] if index < len(score.minutes) else None
        return float("inf") if minutes is None else minutes

    return "fastest" if index == min(score.dropped, key=time) else "slowest"


def _minutes(score: Score) -> str:
    """The minutes of each run, the dropped ones in brackets."""
    times = [words.fixed(minutes, 3) for minutes in score.minutes]
    marked = [f"({time})" if index in score.dropped else time for index, time in enumerate(times)]
    return (" ".join(marked) or "none") + " min" + ("; in brackets: dropped" if score.dropped else "")


def _neighbours(rcp: Rcp) -> str:
    low, high = rcp.low_batch, rcp.high_batch
    if low is None or high is None:
        if low is None and high is None:
            return "no reference point"
        return f"above the last, {words.count(low)}" if high is None else f"below the first, {words.count(high)}"
    if low == high:
        return "a reference point"
    return f"between the reference points {words.count(low)} and {words.count(high)}"


def _margin(rcp: Rcp) -> str:
    if rcp.margin is None:
        return ""
    return f", {words.percent(abs(rcp.margin))} {'above' if rcp.margin >= 0 else 'below'} the minimum"
