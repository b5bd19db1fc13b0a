"""Findings that only follow from another go under it; none is lost, and none takes one more severe."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.verify.finding import Finding, Rule, Severity, fold
from tools.verify.rules import bert, clock, events, lines, official


def rule(name: str, *explains: str) -> Rule:
    return Rule(name, "a test", "a rule", explains=explains)


def shape(findings: Sequence[Finding]) -> list[object]:
    """Messages; one with consequences as (message, their shape)."""
    return [
        (finding.message, shape(finding.consequences)) if finding.consequences else finding.message
        for finding in findings
    ]


def messages(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        yield finding.message
        yield from messages(finding.consequences)


@pytest.fixture
def chain() -> list[Finding]:
    """a explains b, b explains c."""
    return [rule("a", "b").error("a"), rule("b", "c").error("b"), rule("c").error("c")]


def test_what_explains_nothing_stays_apart() -> None:
    assert shape(fold([rule("a", "x").error("a"), rule("b").error("b")])) == ["a", "b"]


def test_nothing_folds_to_nothing() -> None:
    assert fold([]) == ()


def test_a_rule_takes_the_rules_that_it_explains() -> None:
    assert shape(fold([rule("a", "b").error("a"), rule("b").error("b")])) == [("a", ["b"])]


@pytest.mark.parametrize(
    "about",
    [
        rule("official.check").error("about", key="run_stop"),
        rule("b").error("about", key="run_stop", absent=True),
    ],
    ids=["official", "absent"],
)
def test_a_rule_takes_what_is_about_the_keys_that_it_explains(about: Finding) -> None:
    cause = rule("a", "key:run_stop").error("a")
    assert shape(fold([cause, about])) == [("a", ["about"])]
    assert shape(fold([cause, replace(about, key="run_start")])) == ["a", "about"]


def test_another_fault_of_the_same_record_stays_apart() -> None:
    """What a rule of ours finds in a record that is there does not follow from another of its faults."""
    assert shape(fold([rule("a", "key:k").error("a", key="k"), rule("b").error("b", key="k")])) == ["a", "b"]


def test_a_finding_explains_more_than_its_rule() -> None:
    plain = rule("a")
    with_more = plain.error("a", explains=("b",))
    assert shape(fold([with_more, rule("b").error("b")])) == [("a", ["b"])]
    assert shape(fold([plain.error("a"), rule("b").error("b")])) == ["a", "b"]


def test_an_empty_key_is_not_explained_by_its_name() -> None:
    assert shape(fold([rule("a", "key:x").error("a"), rule("b").error("b")])) == ["a", "b"]


def test_a_rule_does_not_explain_itself() -> None:
    itself = rule("a", "a", "key:k")
    assert shape(fold([itself.error("1", key="k"), itself.error("2", key="k")])) == ["1", "2"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_a_chain_goes_under_its_first_cause_in_any_order(chain: list[Finding], order: tuple[int, ...]) -> None:
    (root,) = fold([chain[index] for index in order])
    assert root.message == "a"
    assert {finding.message for finding in root.consequences} == {"b", "c"}


def test_the_first_of_two_causes_takes_it() -> None:
    causes = [rule("a", "c").error("a"), rule("b", "c").error("b")]
    assert shape(fold([*causes, rule("c").error("c")])) == [("a", ["c"]), "b"]
    assert shape(fold([*reversed(causes), rule("c").error("c")])) == [("b", ["c"]), "a"]


def test_a_ring_of_two_ends_with_the_first_as_the_cause() -> None:
    assert shape(fold([rule("a", "b").error("a"), rule("b", "a").error("b")])) == [("a", ["b"])]


def test_a_ring_of_three_ends_with_the_first_as_the_cause() -> None:
    ring = [rule("a", "b").error("a"), rule("b", "c").error("b"), rule("c", "a").error("c")]
    assert shape(fold(ring)) == [("a", ["b", "c"])]


# --- severity


@pytest.mark.parametrize(
    ("cause", "effect", "folds"),
    [
        (Severity.ERROR, Severity.ERROR, True),
        (Severity.ERROR, Severity.WARNING, True),
        (Severity.ERROR, Severity.NOTE, True),
        (Severity.WARNING, Severity.ERROR, False),
        (Severity.WARNING, Severity.WARNING, True),
        (Severity.NOTE, Severity.ERROR, False),
        (Severity.NOTE, Severity.WARNING, False),
        (Severity.NOTE, Severity.NOTE, True),
    ],
    ids=lambda given: given.name.lower() if isinstance(given, Severity) else str(given),
)
def test_none_takes_one_more_severe(cause: Severity, effect: Severity, folds: bool) -> None:
    findings = [Finding(rule("a", "b"), cause, "a"), Finding(rule("b"), effect, "b")]
    assert (len(fold(findings)) == 1) == folds


def test_an_error_is_not_hidden_behind_a_warning_in_a_chain() -> None:
    chain = [rule("a", "b").error("a"), rule("b", "c").warning("b"), rule("c").error("c")]
    assert shape(fold(chain)) == [("a", ["b"]), "c"]


# --- what is kept, and in which order


def test_consequences_that_a_finding_has_already_are_kept() -> None:
    inner = rule("x").note("inner")
    cause = rule("a", "b").error("a", consequences=(inner,))
    effect = rule("b").error("b", consequences=(inner,))
    assert shape(fold([cause, effect])) == [("a", ["inner", ("b", ["inner"])])]


def test_the_worst_come_first_then_the_earliest_then_those_without_a_line() -> None:
    plain = rule("a")
    findings = [
        plain.note("note"),
        plain.warning("warning 3", line=3),
        plain.error("error"),
        plain.error("error 20", line=20),
        plain.error("error 4", line=4),
        plain.warning("warning 2", line=2),
    ]
    expected = ["error 4", "error 20", "error", "warning 2", "warning 3", "note"]
    assert shape(fold(findings)) == expected
    assert shape(fold(reversed(findings))) == expected


def test_a_path_is_filled_in_below_as_well() -> None:
    own = Path("other.txt")
    inner = rule("b").error("b", consequences=(rule("c").error("c", path=own),))
    found = rule("a").error("a", consequences=(inner,)).at(Path("log.txt"))
    assert found.path == found.consequences[0].path == Path("log.txt")
    assert found.consequences[0].consequences[0].path == own


names = st.sampled_from("abcde")
findings_of_any_rules = st.lists(
    st.tuples(names, st.lists(names, max_size=3), st.sampled_from(Severity)),
    max_size=8,
)


@given(findings_of_any_rules)
@settings(max_examples=150, deadline=None)
def test_folding_ends_loses_nothing_and_hides_no_error(drawn: list[tuple[str, list[str], Severity]]) -> None:
    findings = [
        Finding(rule(name, *explains), severity, str(index)) for index, (name, explains, severity) in enumerate(drawn)
    ]
    folded = fold(findings)
    assert sorted(messages(folded)) == sorted(finding.message for finding in findings)
    for root in folded:
        assert all(below.severity <= root.severity for below in root.consequences)
    severities = [root.severity for root in folded]
    assert severities == sorted(severities, reverse=True)
    assert bool(folded) == bool(findings)


# --- the rules of a run

EXPLAINED = [
    (lines.TRUNCATED, official.COUNT, ""),
    (lines.TRUNCATED, events.RUN_STOP, "run_stop"),
    (lines.TRUNCATED, bert.SEED, "seed"),
    (lines.TRUNCATED, bert.DIVISION, "submission_division"),
    (lines.BROKEN, official.CRASH, ""),
    (events.RUN_START, official.CHECK, "run_start"),
    (events.ORDER, clock.ORDER, ""),
    (events.STATUS, events.TARGET, "eval_accuracy"),
    (events.TARGET, official.NONE_PASSES, "eval_accuracy"),
    (events.ACCURACY, official.CRASH, "eval_accuracy"),
    (clock.UNIT, clock.LIMIT, "init_stop"),
    (clock.LIMIT, official.CHECK, "init_stop"),
    (bert.DIVISION, official.COUNT, "submission_division"),
    (bert.BENCHMARK, official.CRASH, "submission_benchmark"),
    (bert.BATCH, official.COUNT, "global_batch_size"),
    (bert.EVAL_SAMPLES, official.COUNT, "eval_samples"),
]


@pytest.mark.parametrize(
    ("cause", "effect", "key"),
    EXPLAINED,
    ids=[f"{cause.id}-{effect.id}" for cause, effect, _ in EXPLAINED],
)
def test_a_cause_takes_what_follows_from_it_and_never_the_reverse(cause: Rule, effect: Rule, key: str) -> None:
    above, below = cause.error("cause"), effect.error("effect", key=key)
    assert shape(fold([above, below])) == shape(fold([below, above])) == [("cause", ["effect"])]


@pytest.mark.parametrize(
    ("cause", "effect", "key"),
    [
        (lines.BROKEN, official.COUNT, "seed"),
        (lines.TRUNCATED, bert.BATCH, "global_batch_size"),
        (events.STATUS, clock.ORDER, "run_stop"),
        (events.TARGET, bert.INTERVAL, "eval_accuracy"),
        (bert.EVAL_SAMPLES, official.COUNT, "train_samples"),
    ],
    ids=lambda given: given.id if isinstance(given, Rule) else given,
)
def test_faults_of_their_own_stay_apart(cause: Rule, effect: Rule, key: str) -> None:
    assert len(fold([cause.error("cause"), effect.error("effect", key=key)])) == 2
