"""Texts of the command line become ranges, choices and placeholders, and what cannot be used is refused by name."""

from __future__ import annotations

import pytest

from benchmarks.bert.config import load
from tests.support.tuning import BASE, SIZES, SPLIT
from tools.trial import OWN, checked
from tools.tune.choices import Choice
from tools.tune.names import RangeError
from tools.tune.options import check_apart, parse_range, parse_ranges, parse_set, parse_sets
from tools.tune.plan import NO_PRUNER, Plan, check_pruner
from tools.tune.ranges import Range, default_ranges


def plan_with(value: str, *ranges: str) -> Plan:
    base = {**BASE, **SIZES, "GROWTH": value}
    return Plan(base, parse_ranges(ranges, base), [1])


def test_placeholders_are_filled_with_the_values_that_are_tried() -> None:
    plan = plan_with(SPLIT, "first=0.1:0.5", "embeddings=frozen|train", "BETA_2=0.9:0.99")
    variables = plan.variables({"first": 0.123456, "embeddings": "train", "BETA_2": 0.95})
    assert variables["GROWTH"] == "mslt:2,4@0.1235,0.05+joint:embeddings=train"
    assert variables["BETA_2"] == "0.95"
    assert "first" not in variables
    assert plan.tuned() == {"GROWTH", "BETA_2"}


def test_a_range_of_the_variable_itself_is_in_place_of_the_bases_placeholders() -> None:
    plan = plan_with(SPLIT, "GROWTH=none|mslt:2,4@0.1,0.1+joint")
    assert plan.variables({"GROWTH": "none"})["GROWTH"] == "none"


def test_what_is_tried_is_part_of_the_studys_identity() -> None:
    plans = [
        plan_with("mslt:2,4@{a},0.1+joint", "a=1:2"),
        plan_with("mslt:2,4@{a},0.1+joint", "a=1.0:2.0"),
        plan_with("mslt:2,4@{a},0.1+joint", "a=1|2"),
        plan_with("mslt:2,4@{a},0.1+joint", "a=2|1"),
        plan_with("mslt:2,4@{a},0.2+joint", "a=1:2"),
    ]
    identities = [plan.identity() for plan in plans]
    assert all(one != other for index, one in enumerate(identities) for other in identities[:index])


@pytest.mark.parametrize(
    ("base", "ranges", "words"),
    [
        pytest.param(
            {"GROWTH": SPLIT}, ["first=0.1:0.5"], r"no range for \{embeddings\}; .*embeddings=", id="no range"
        ),
        pytest.param({"GROWTH": SPLIT}, [], r"no range for \{first\}, \{embeddings\}", id="no ranges at all"),
        pytest.param(
            {"GROWTH": SPLIT},
            ["firs=0.1:0.5"],
            "firs: unknown variable; .*a placeholder is a lower-case name .*; in use: first, embeddings",
            id="unknown",
        ),
        pytest.param({}, ["first=0.1:0.5"], "first: unknown variable; .*nor is it a placeholder in use", id="not used"),
        pytest.param(
            {"TARGET_ACCURACY": "{a}"}, ["a=0.1:0.5"], "TARGET_ACCURACY: .*must be fixed", id="in what must be fixed"
        ),
        pytest.param({"GROWTH": "{a}"}, ["a=x:2"], "expected numbers", id="no number"),
        pytest.param({"GROWTH": "{a}"}, ["a=2:1"], "must be below", id="low above high"),
        pytest.param({"GROWTH": "{a}"}, ["a=1"], "expected NAME=low:high", id="one end"),
        pytest.param({"GROWTH": "{a}"}, ["a=x|x"], "'x' given twice", id="equal values"),
    ],
)
def test_placeholders_and_ranges_belong_together(base: dict[str, str], ranges: list[str], words: str) -> None:
    with pytest.raises(RangeError, match=words):
        parse_ranges(ranges, base)


@pytest.mark.parametrize("name", ["DECAY_STEPS", "NUM_LAYERS"])
def test_a_pruner_is_refused_where_what_a_fixed_plan_costs_is_tried(name: str) -> None:
    def plan(growth: str, pruner: str = "median") -> Plan:
        return Plan({"GROWTH": growth}, [Range(name, 10, 20)], [1], pruner)

    with pytest.raises(RangeError, match=f"another {name}"):
        check_pruner(plan("mslt:1,2@0.5,0.5"))
    check_pruner(plan("mslt:1,2@0.5,0.5", NO_PRUNER))
    check_pruner(plan("none"))


def test_the_decay_is_left_alone_where_stages_are_parts_of_it() -> None:
    sizes = {"NUM_LAYERS": "4", "MAX_STEPS": "100", "EVAL_INTERVAL_SAMPLES": "16"}
    ranges = default_ranges(load({**sizes, "GROWTH": "mslt:2,4@0.5,0.5"}), but=["BETA_1"])
    assert not {each.name for each in ranges} & {"DECAY_STEPS", "BETA_1"}
    assert "DECAY_STEPS" in {each.name for each in default_ranges(load(sizes), but=[])}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("LEARNIN_RATE=1:2", "nearest valid one is LEARNING_RATE", id="unknown"),
        pytest.param("CLIP=1:2", "not a number", id="text"),
        pytest.param("WARMUP_STEPS=1.5:3", "expected whole numbers", id="fraction"),
        pytest.param("LEARNING_RATE=a:b", "expected numbers", id="letters"),
        pytest.param("LEARNING_RATE=1e-2:1e-3", "must be below", id="low above high"),
        pytest.param("LEARNING_RATE=1e-3:1e-3", "must be below", id="low equals high"),
        pytest.param("LEARNING_RATE=1e-3", "expected NAME=low:high", id="one end"),
        pytest.param("LEARNING_RATE=1:2:lin", "expected NAME=low:high", id="scale"),
        pytest.param("WEIGHT_DECAY=0:1:log", "begins above 0", id="log of 0"),
        pytest.param("LEARNING_RATE=1:inf", "not finite", id="infinite"),
        pytest.param("BETA_2=0.9:1.0", "from 0.0 to below 1.0", id="not allowed"),
        pytest.param("SEED=1:5", "must be fixed", id="seed"),
        pytest.param("TARGET_ACCURACY=0.1:0.2", "must be fixed", id="target"),
        pytest.param("WARMUP_STEPS=1_0:20", "expected whole numbers", id="not the configuration's number"),
        pytest.param("OPTIMIZER=sgd|adam|sdg", "'sgd', 'sdg'; OPTIMIZER must be one of adam, lamb", id="choices"),
        pytest.param("BETA_2=0.9|1.0|2", "'1.0', '2'; BETA_2 must be from 0.0", id="numbers as choices"),
        pytest.param("WARMUP_STEPS=1|x|1.5", "'x', '1.5'; expected whole numbers", id="no number as a choice"),
        pytest.param("LEARNING_RATE=1e-3|inf", "'inf'; expected finite numbers", id="infinite choice"),
        pytest.param("CUDA_GRAPHS=0|yes", "'yes'; expected 0 or 1", id="no switch"),
        pytest.param("LEARNING_RATE=1e-3|0.001", "'0.001' given twice", id="equal numbers"),
        pytest.param("OPTIMIZER=adam|lamb|adam", "'adam' given twice", id="equal choices"),
        pytest.param("OPTIMIZER=adam|", "a value is empty", id="empty choice"),
        pytest.param("GROWTH=none|mslt:2,4@{a},0.1", "with a placeholder", id="placeholder in a choice"),
        pytest.param("RESUME=no|if_any", "must be fixed, each trial has its own", id="a trial's own"),
        pytest.param("DATA_DIR=a|b", "must be fixed", id="data"),
    ],
)
def test_a_bad_range_is_refused_with_what_would_do(text: str, words: str) -> None:
    with pytest.raises(RangeError, match=words):
        parse_range(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("LEARNING_RATE=1e-4:1e-2:log", Range("LEARNING_RATE", 1e-4, 1e-2, True), id="log"),
        pytest.param("WARMUP_STEPS=10:200", Range("WARMUP_STEPS", 10, 200), id="whole"),
        pytest.param("BETA_2=0.9:0.999", Range("BETA_2", 0.9, 0.999), id="fraction"),
        pytest.param("OPTIMIZER=adam|lamb", Choice("OPTIMIZER", ("adam", "lamb")), id="choice"),
        pytest.param("CUDA_GRAPHS=0|1", Choice("CUDA_GRAPHS", ("0", "1")), id="switch"),
        pytest.param(
            "GROWTH=none|mslt:2,4@0.2,0.3+joint:init=fresh|x",
            Choice("GROWTH", ("none", "mslt:2,4@0.2,0.3+joint:init=fresh", "x")),
            id="only the bar separates",
        ),
        pytest.param("a=1:20", Range("a", 1, 20), id="placeholder"),
        pytest.param("a=x|y:z", Choice("a", ("x", "y:z")), id="placeholder's choice"),
    ],
)
def test_a_good_range_is_read(text: str, expected: Range | Choice) -> None:
    given = parse_range(text, placeholders=["a"])
    assert given == expected
    assert parse_range(given.text, placeholders=["a"]) == expected


def test_a_placeholder_is_whole_where_both_ends_are_written_so() -> None:
    for text, is_whole in (("a=1:20", True), ("a=1.0:20", False), ("a=1:20.0", False), ("a=1e0:20", False)):
        given = parse_range(text, placeholders=["a"])
        assert isinstance(given, Range)
        assert given.is_whole == is_whole


@pytest.mark.parametrize(
    ("given", "value", "text"),
    [
        pytest.param(Range("BETA_2", 0.9, 0.999), 0.98765432, "0.9877", id="four digits"),
        pytest.param(Range("BETA_2", 0.9, 0.99999), 0.99998, "0.99998", id="never out of the range"),
        pytest.param(Range("WARMUP_STEPS", 0, 99_999), 12_345, "12345", id="whole numbers keep all"),
        pytest.param(Range("LEARNING_RATE", 1e-6, 0.1), 1.23456e-5, "1.235e-05", id="a variable's exponent"),
        pytest.param(Range("a", 1e-6, 0.1), 1.23456e-5, "0.00001235", id="no exponent of a small placeholder"),
        pytest.param(Range("a", 0.5, 99_999.0), 12_345.6, "12350", id="nor of a large one"),
        pytest.param(Range("a", 0.1, 0.99999), 0.99998, "0.99998", id="nor out of its range"),
        pytest.param(Range("a", 1, 99_999), 12_345, "12345", id="a whole placeholder keeps all"),
    ],
)
def test_a_value_is_short_but_in_its_range(given: Range, value: float, text: str) -> None:
    assert given.value(value) == text


def test_default_ranges_hold_the_base_and_leave_out_what_is_fixed() -> None:
    base = checked(BASE)
    ranges = default_ranges(base, but=["BETA_1"])
    assert [each.name for each in ranges] == [
        *("LEARNING_RATE", "BETA_2", "WARMUP_STEPS", "DECAY_STEPS", "WEIGHT_DECAY"),
    ]
    for each in ranges:
        assert each.low <= getattr(base, each.name.lower()) <= each.high
        for end in (each.low, each.high):
            checked({**BASE, each.name: each.value(end)})


def test_a_variable_with_two_places_is_refused() -> None:
    rate = parse_range("LEARNING_RATE=1:2")
    check_apart([rate], {"BETA_2": "0.9"})
    for ranges, fixed in (([rate, rate], {}), ([rate], {"LEARNING_RATE": "1"})):
        with pytest.raises(RangeError, match="LEARNING_RATE is given twice"):
            check_apart(ranges, fixed)


def test_a_setting_needs_a_known_name() -> None:
    assert parse_set("DATA_DIR=a=b") == ("DATA_DIR", "a=b")
    with pytest.raises(RangeError, match="nearest valid one is DATA_DIR"):
        parse_set("DATA_DIRS=a")
    with pytest.raises(RangeError, match="expected NAME=VALUE"):
        parse_set("DATA_DIR")


def test_a_setting_is_given_once() -> None:
    assert parse_sets(["BETA_2=0.9", "BETA_1=0.8"]) == {"BETA_2": "0.9", "BETA_1": "0.8"}
    with pytest.raises(RangeError, match="BETA_2 is given twice"):
        parse_sets(["BETA_2=0.9", "BETA_1=0.8", "BETA_2=0.9"])


def test_what_each_trial_sets_itself_cannot_be_set() -> None:
    for name in ("SEED", *sorted(OWN)):
        with pytest.raises(RangeError, match=f"each trial has its own {name}; "):
            parse_set(f"{name}=1")
