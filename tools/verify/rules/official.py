"""What mlperf-logging's checker complains of in, findings with true lines and a way to mend them out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tools.verify.finding import Finding, Rule, shorten, shown
from tools.verify.log import Log
from tools.verify.official import Complaint, change_of
from tools.verify.rules.lines import lost

_SOURCE = "mlperf-logging, rule files of the round"

COUNT = Rule("official.count", _SOURCE, "each key as often as the rules want")
ALTERNATIVES = Rule("official.alternatives", _SOURCE, "one of several keys")
CHECK = Rule("official.check", _SOURCE, "each record passes the rules' expressions")
NONE_PASSES = Rule("official.none-passes", _SOURCE, "some record passes")
END = Rule("official.end", _SOURCE, "the log as a whole passes")
UNPARSED = Rule("official.unparsed", _SOURCE, "every line can be parsed")
CRASH = Rule("official.crash", _SOURCE, "the official checker takes the log")
CHANGED = Rule("official.changed", _SOURCE, "rules that changed after their round")

_RULES = {
    "count": COUNT,
    "alternatives": ALTERNATIVES,
    "check": CHECK,
    "none passes": NONE_PASSES,
    "end": END,
    "unparsed": UNPARSED,
    "crash": CRASH,
}
_MEND = {
    "cache_clear": "log cache_clear once for each node, when its caches were dropped",
    "opt_epsilon": "log both opt_epsilon and opt_lamb_epsilon: which one is asked for depends on the round",
    "opt_lamb_epsilon": "log both opt_epsilon and opt_lamb_epsilon: which one is asked for depends on the round",
    "train_samples": "log train_samples, the samples trained on, before run_stop",
    "eval_samples": "log eval_samples, 10000, before run_stop",
    "weights_initialization": "log weights_initialization with metadata tensor for each tensor of the checkpoint",
}


def findings(complaints: list[Complaint], log: Log) -> Iterator[Finding]:
    """One finding for all checks that one record fails."""
    by_record: dict[object, list[Finding]] = {}
    for complaint in complaints:
        line = complaint.record.line if complaint.kind == "check" and complaint.record else None
        by_record.setdefault(line or object(), []).append(_finding(complaint, log))
    for first, *more in by_record.values():
        yield replace(first, consequences=tuple(more))


def changes(
    shipped: list[Complaint], submitted: list[Complaint], ruleset: str, as_submitted: bool
) -> Iterator[Finding]:
    """Says where today's rules and those of the round come to different verdicts: no fault of the submitter."""
    change = change_of(ruleset)
    if change is None or bool(shipped) == bool(submitted):
        return
    if as_submitted:
        message = f"the rules of {ruleset} that mlperf-logging ships today would fail this log: {change.said}"
        if not shipped:
            message = f"the rules of {ruleset} that mlperf-logging ships today would pass this log: {change.said}"
        yield CHANGED.note(message)
    else:
        yield CHANGED.note(
            f"{change.said}; the rules of the round itself {'pass' if not submitted else 'fail'} it",
            mend="--rules as-submitted",
        )


def _finding(complaint: Complaint, log: Log) -> Finding:
    seen, record = log.seen.get(complaint.key), complaint.record
    if complaint.kind == "count" and seen and seen.others:
        record = seen.others[0]
    return _RULES[complaint.kind].error(
        _message(complaint, log),
        expected=complaint.test if complaint.kind == "count" else f"what the rule says: {shorten(complaint.test)}",
        mend=_MEND.get(complaint.key) or _mend(complaint),
        key=complaint.key,
        explains=_explained(complaint),
        line=record.line if record else None,
        text=shorten(record.text) if record else "",
    )


def _mend(complaint: Complaint) -> str:
    if complaint.kind == "count":
        return f"log {complaint.key} once, on one rank" if complaint.count else f"log {complaint.key}, {complaint.test}"
    if complaint.kind == "alternatives":
        return "log one of them"
    return "log what the rule asks for"


def _explained(complaint: Complaint) -> tuple[str, ...]:
    if complaint.kind != "count" or complaint.count:
        return ()
    return (*lost(complaint.key), *(("official.end",) if complaint.key == "weights_initialization" else ()))


def _message(complaint: Complaint, log: Log) -> str:
    key = complaint.key
    if complaint.kind == "count":
        if not complaint.count:
            return f"no {key}"
        seen = log.seen[key]
        values = ", ".join(f"{shown(r.value)} (line {r.line:,})" for r in (seen.first, *seen.others))
        return f"{complaint.count:,} records of {key} that differ: {values}"
    return {
        "alternatives": f"none of {complaint.test.removeprefix('at least one of ')}",
        "check": f"{key} fails a check of the official rules",
        "none passes": f"no record of {key} passes the official rules",
        "end": "the log as a whole fails the official rules",
        "unparsed": f"the official parser refuses lines: {shorten(complaint.test)}",
        "crash": f"the official checker crashes: {shorten(complaint.test)}",
    }[complaint.kind]
