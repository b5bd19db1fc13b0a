"""Records in, what mlperf-logging's compliance rules have against them out.

The rules are mlperf-logging's own files, unchanged, and so is what they mean: this is its checker, made to take one
record after the other, to read each rule file once a process and to say its complaints as values instead of text.
"""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import CodeType
from typing import Any

import yaml
from mlperf_logging.compliance_checker import mlp_compliance
from mlperf_logging.compliance_checker.mlp_parser.ruleset_100 import LogLine

from tools.verify.log import Log, Record

_RULE_FILES = importlib.resources.files("mlperf_logging.compliance_checker")
_Loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # the same values; the C one in a tenth of the time


@dataclass(frozen=True)
class Complaint:
    kind: str  # "check", "count", "none passes", "alternatives", "end", "crash" or "unparsed"
    key: str  # of the records concerned; empty for none
    test: str  # the rule's expression, or what was required
    record: Record | None = None
    count: int = 0  # how many records of the key there are

    @property
    def replaceable(self) -> bool:
        """A later rule file with rules of its own for the key takes its place."""
        return self.kind in ("check", "count")


@dataclass(frozen=True)
class Change:
    """A rule file that today's mlperf-logging ships otherwise than it was when the round's results were submitted."""

    rule_file: str
    amend: Callable[[list[Any]], list[Any]]
    keys: tuple[str, ...]
    said: str


def _without_weights(blocks: list[Any]) -> list[Any]:
    return [
        block
        for block in blocks
        if "BEGIN" not in block and "END" not in block and block.get("KEY", {}).get("NAME") != "weights_initialization"
    ]


def _with_old_epsilon(blocks: list[Any]) -> list[Any]:
    renamed = {"opt_lamb_epsilon": "opt_epsilon"}
    return [
        {"KEY": block["KEY"] | {"NAME": renamed.get(block["KEY"]["NAME"], block["KEY"]["NAME"])}}
        if "KEY" in block
        else block
        for block in blocks
    ]


CHANGES = (
    Change(
        "training_1.1.0/closed_bert.yaml",
        _without_weights,
        ("weights_initialization",),
        "weights_initialization was a recommendation in round 1.1 and became mandatory in the rules of 1.1.0 on "
        "2022-03-29 (mlperf-logging 4c04112), after the round",
    ),
    Change(
        "training_2.1.0/closed_bert.yaml",
        _with_old_epsilon,
        ("opt_lamb_epsilon", "opt_epsilon"),
        "opt_epsilon became opt_lamb_epsilon in the rules of 2.1.0 on 2022-11-22 (mlperf-logging d82b94d), after the "
        "round's results were submitted",
    ),
)


def change_of(ruleset: str) -> Change | None:
    return next((change for change in CHANGES if change.rule_file.startswith(f"training_{ruleset}/")), None)


class Compliance:
    """The checker of one log: feed it every record in file order, then ask for its complaints.

    The official checker goes through all records for common.yaml, then again for the rule file that the division asks
    for, then for that of the benchmark. Here those that BERT may ask for are fed from the first record on, and at the
    end only those that were asked for count. A file that is none of them ends in a traceback there or has no end.
    """

    def __init__(self, ruleset: str, *, as_submitted: bool) -> None:
        names = [f"training_{ruleset}/common.yaml", *_later_files(ruleset)]
        self._passes = {name: _Pass(rule_file(name, as_submitted)) for name in names}
        self._first = names[0]

    def feed(self, record: Record) -> None:
        if not isinstance(record.key, str):
            return
        concerned = [
            current for current in self._passes.values() if record.key in current.rules.keys and not current.crash
        ]
        if concerned:
            names = _names(record)
            for current in concerned:
                current.feed(record, names)
            if record.key == "submission_division":
                self._forget_the_other_division()

    def _forget_the_other_division(self) -> None:
        """The first record of the division decides for good."""
        if wanted := self._passes[self._first].wanted:
            division = PurePosixPath(wanted[0]).name.partition("_")[0]
            for name in list(self._passes):
                if name != self._first and not PurePosixPath(name).name.startswith(f"{division}_"):
                    del self._passes[name]

    def complaints(self, log: Log) -> list[Complaint]:
        """All that stands against the log; none if it complies."""
        unparsed = [Complaint("crash" if flaw.crashes else "unparsed", "", flaw.error) for flaw in log.flaws]
        said = [] if log.num_records else [Complaint("unparsed", "", "No log lines detected")]
        asked_for = [self._first]
        for name in asked_for:  # grows meanwhile
            current = self._passes.get(name)
            if current is None or asked_for.count(name) > 1:
                return [*unparsed, Complaint("crash", "", f"no end, or no rules of BERT, in {name}")]
            if current.crash:
                return [*unparsed, current.crash]
            # What a later file says of a key takes the place of what an earlier one said.
            said = [
                complaint for complaint in said if complaint.key not in current.rules.keys or not complaint.replaceable
            ]
            said += current.end()
            asked_for += current.wanted
        return unparsed + said


def _later_files(ruleset: str) -> tuple[str, ...]:
    """The rule files that a log of BERT may ask for after common.yaml."""
    kinds = [f"{division}_{what}.yaml" for division in ("closed", "open") for what in ("common", "bert")]
    names = [f"training_{ruleset}/{kind}" for kind in kinds]
    if ruleset == "1.1.0":  # its open_common.yaml asks for this one
        names.append("training_1.0.0/open_bert.yaml")
    return tuple(names)


@dataclass(frozen=True)
class _KeyRules:
    required: str  # EXACTLY_ONE, AT_LEAST_ONE, …; empty for none
    checks: tuple[tuple[str, CodeType], ...]
    first_checks: tuple[tuple[str, CodeType], ...]
    one_of_all: tuple[str, CodeType] | None  # some record has to pass it
    before: CodeType | None
    after: CodeType | None


@dataclass(frozen=True)
class _RuleFile:
    keys: dict[str, _KeyRules]
    begin: CodeType | None
    end_before: CodeType | None
    end_checks: tuple[tuple[str, CodeType], ...]


@functools.cache
def rule_file(name: str, as_submitted: bool) -> _RuleFile:
    """A compiled rule file of mlperf-logging."""
    blocks = yaml.load((_RULE_FILES / name).read_text(), Loader=_Loader) or []
    change = next((change for change in CHANGES if change.rule_file == name), None)
    if change and as_submitted:
        blocks = change.amend(blocks)
    begin = next((block["BEGIN"]["CODE"] for block in blocks if "BEGIN" in block), None)
    end: dict[str, Any] = next((block["END"] for block in blocks if "END" in block), {})
    return _RuleFile(
        {block["KEY"]["NAME"]: _key_rules(block["KEY"]) for block in blocks if "KEY" in block},
        _statements(begin),
        _statements(end.get("PRE")),
        _expressions(end.get("CHECK")),
    )


def _key_rules(block: dict[str, Any]) -> _KeyRules:
    one_of_all = _expressions(block.get("ATLEAST_ONE_CHECK"))
    return _KeyRules(
        block.get("REQ", ""),
        _expressions(block.get("CHECK")),
        _expressions(block.get("FIRST_CHECK")),
        one_of_all[0] if one_of_all else None,
        _statements(block.get("PRE")),
        _statements(block.get("POST")),
    )


def _expressions(tests: str | list[str] | None) -> tuple[tuple[str, CodeType], ...]:
    listed = tests if isinstance(tests, list) else [tests] if tests else []
    return tuple((test.strip(), compile(test.strip(), "<rule>", "eval")) for test in listed)


def _statements(code: str | None) -> CodeType | None:
    return compile(code.strip(), "<rule>", "exec") if code else None


def _names(record: Record) -> dict[str, Any]:
    """The record as the rules' expressions see it."""
    value = {"value": record.value, "metadata": record.metadata}
    return {"ll": LogLine(record.text, float(record.time_ms), record.key, value, record.line), "v": value}


class _Counted:
    """How often a key was reported, and whether always with the same value."""

    def __init__(self) -> None:
        self.count = 0
        self.first: Any = None
        self.same = True

    def add(self, value: Any) -> None:
        if not self.count:
            self.first = value
        elif self.same and not (value is self.first or value == self.first):
            self.same = False
        self.count += 1


class _Pass:
    """One rule file against one log, record by record."""

    def __init__(self, rules: _RuleFile) -> None:
        self.rules = rules
        self.wanted: list[str] = []  # rule files that its rules ask for
        self.crash: Complaint | None = None  # where the official checker ends in a traceback
        self._state: dict[str, Any] = {
            "s": {},
            "enqueue_config": self.wanted.append,
            "is_integer": mlp_compliance.is_integer,
            "math": mlp_compliance.math,
        }
        self._reported = {key: _Counted() for key in rules.keys}
        self._done: set[str] = set()  # keys of which only the first record is checked
        self._passing: dict[str, bool] = {}  # of the keys that some record has to pass
        self._complaints: dict[tuple[str, str], Complaint] = {}
        if rules.begin:
            exec(rules.begin, self._state)

    def feed(self, record: Record, names: dict[str, Any]) -> None:
        """`names` is what the rules' expressions call the record."""
        try:
            self._apply(record, names)
        except Exception as error:  # a rule that cannot take the record
            self.crash = Complaint("crash", record.key, f"{type(error).__name__}: {error}", record)

    def _apply(self, record: Record, names: dict[str, Any]) -> None:
        key = record.key
        rules = self.rules.keys[key]
        reported = self._reported[key]
        reported.add(record.value)
        if key not in self._done:
            if rules.before:
                self._execute(rules.before, names, record)
            for test, code in rules.checks:
                self._check(test, code, names, record)
            if rules.after:
                self._execute(rules.after, names, record)
        if reported.count == 1:
            for test, code in rules.first_checks:
                self._check(test, code, names, record)
        if rules.one_of_all:
            passes = bool(eval(rules.one_of_all[1], self._state, names))
            self._passing[key] = self._passing.get(key, False) or passes
        if "submission_" in key:
            self._done.add(key)

    def _check(self, test: str, code: CodeType, names: dict[str, Any], record: Record) -> None:
        try:
            passes = eval(code, self._state, names)
        except Exception:  # as the official checker: a check that cannot be evaluated is a check that fails
            passes = False
        if not passes:
            self._complain("check", record.key, test, record)

    def _execute(self, code: CodeType, names: dict[str, Any], record: Record) -> None:
        try:
            exec(code, self._state, names)
        except Exception as error:  # as the official checker: a complaint
            self._complain("check", record.key, f"{type(error).__name__}: {error}", record)

    def _complain(self, kind: str, key: str, test: str, record: Record) -> None:
        self._complaints.setdefault((key, test), Complaint(kind, key, test, record, self._reported[key].count))

    def end(self) -> Iterator[Complaint]:
        """Every complaint, with those that only the whole log can bear out."""
        yield from self._complaints.values()
        for key, passed in self._passing.items():
            if not passed:
                yield Complaint("none passes", key, self.rules.keys[key].one_of_all[0])  # type: ignore[index]
        alternatives = set()
        for key, rules in self.rules.keys.items():
            reported = self._reported[key]
            required, _, parameter = rules.required.rstrip(")").partition("(")
            if required == "EXACTLY_ONE" and reported.count != 1 and not (reported.count and reported.same):
                yield Complaint("count", key, "exactly one", count=reported.count)
            elif required == "AT_LEAST_ONE" and reported.count < 1:
                yield Complaint("count", key, "at least one")
            elif required == "AT_LEAST" and reported.count < int(parameter):
                yield Complaint("count", key, f"at least {parameter}", count=reported.count)
            elif required == "AT_LEAST_ONE_OR":
                alternatives.add(tuple(sorted({key, *(other.strip() for other in parameter.split(","))})))
        for keys in alternatives:
            if not any(self._reported[key].count for key in keys):
                yield Complaint("alternatives", keys[0], "at least one of " + ", ".join(keys))
        if self.rules.end_before:
            exec(self.rules.end_before, self._state)
        for test, code in self.rules.end_checks:
            try:
                passes = eval(code, self._state)
            except Exception:  # as the official checker
                passes = False
            if not passes:
                yield Complaint("end", "", test)
