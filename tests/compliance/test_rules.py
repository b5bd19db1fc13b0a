"""Each rule speaks where it should, as severely as it should, and is silent on a log that is nearly the same."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest

from tests.support import rule_cases_bert, rule_cases_run
from tests.support.logs import closed_lines, open_lines, write
from tests.support.rule_case import Case, Edit
from tests.support.rules import rules_of
from tools.verify.finding import Finding, Rule, Severity
from tools.verify.report import Run
from tools.verify.rules import bert, clock, events, lines, official
from tools.verify.run import judge

RULES_OF_A_RUN = [rule for module in (lines, events, clock, bert, official) for rule in rules_of(module)]
CASES = [
    *rule_cases_run.LINES,
    *rule_cases_run.EVENTS,
    *rule_cases_run.CLOCK,
    *rule_cases_bert.SUBMISSION,
    *rule_cases_bert.HYPERPARAMETERS,
    *rule_cases_bert.ONCE,
    *rule_cases_bert.DATA,
    *rule_cases_bert.INTERVALS,
    *rule_cases_bert.OFFICIAL,
]
each_case = pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])


Judged = Callable[[Case, Edit], Run]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    path = tmp_path_factory.mktemp("cases") / "result_0.txt"

    @functools.cache
    def judge_it(case: Case, edit: Edit) -> Run:
        log = open_lines() if case.division == "open" else closed_lines(weights=case.weights)
        return judge(write(path, edit(log)), case.ruleset, as_submitted=case.rule is official.CHANGED)[0]

    return judge_it


def flat(findings: tuple[Finding, ...]) -> Iterator[Finding]:
    for finding in findings:
        yield finding
        yield from flat(finding.consequences)


def said(run: Run) -> list[tuple[str, Severity]]:
    return [(finding.rule.id, finding.severity) for finding in flat(run.findings)]


@each_case
def test_the_rule_speaks(case: Case, judged: Judged) -> None:
    run = judged(case, case.speaks)
    assert (case.rule.id, case.severity) in said(run)


@each_case
def test_the_rule_is_silent_on_the_near_twin(case: Case, judged: Judged) -> None:
    run = judged(case, case.silent)
    assert case.rule.id not in [rule for rule, _ in said(run)]


@each_case
def test_an_error_is_the_one_root_cause_and_less_fails_nothing(case: Case, judged: Judged) -> None:
    run = judged(case, case.speaks)
    errors = [finding for finding in run.findings if finding.severity is Severity.ERROR]
    assert len(errors) == (case.severity is Severity.ERROR)
    assert run.failed == (case.severity is Severity.ERROR)


@each_case
def test_what_is_said_names_an_expectation_and_a_remedy(case: Case, judged: Judged) -> None:
    for finding in judged(case, case.speaks).findings:
        if finding.severity is not Severity.NOTE:
            assert finding.expected, finding
            assert finding.mend, finding


@pytest.mark.parametrize("rule", RULES_OF_A_RUN, ids=lambda rule: rule.id)
def test_every_rule_has_its_cases(rule: Rule) -> None:
    assert [case for case in CASES if case.rule is rule]


def test_no_two_cases_have_one_name() -> None:
    names = [case.id for case in CASES]
    assert {name for name in names if names.count(name) > 1} == set()
