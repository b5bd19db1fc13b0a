"""Growth plans from their strings: every stage as it is to be, every rule with its refusal."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.growth.notation import GrowthError, parse
from benchmarks.bert.growth.operators import OPERATORS
from benchmarks.bert.growth.plan import GrowthPlan, LayerDrop, Size, Stage

FULL = Size(12, 256)
MSLT = "mslt:3,6,9,12@0.21,0.21,0.21,0.21+joint"
STACKING = "progressive_stacking:3,6,12@0.1,0.2,0.7"
STAGED = "staged:6x128,12x128,12x256@0.2,0.2,0.6"
NUM_STEPS = 100


def stages_of(text: str, num_steps: int = NUM_STEPS) -> tuple[Stage, ...]:
    return parse(text, FULL, num_steps).stages


def refusal_of(text: str, num_steps: int = NUM_STEPS) -> str:
    """The whole message, one line."""
    with pytest.raises(GrowthError) as caught:
        parse(text, FULL, num_steps)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- what a plan says


def test_none_is_one_stage_of_the_whole_model_in_which_all_trains() -> None:
    assert stages_of("none") == (Stage(1, FULL),)
    assert Stage(1, FULL) == Stage(1, FULL, "same", 0, True, True, True)


def test_mslt_puts_layers_on_top_freezes_those_below_and_ends_with_all() -> None:
    on_top = {"origin": "copy", "embeddings_train": True, "decoder_trains": True}
    assert stages_of(MSLT) == (
        Stage(1, Size(3, 256)),
        Stage(22, Size(6, 256), num_frozen=3, **on_top),
        Stage(43, Size(9, 256), num_frozen=6, **on_top),
        Stage(64, FULL, num_frozen=9, **on_top),
        Stage(85, FULL),
    )


def test_mslt_may_end_without_a_joint_stage() -> None:
    stages = stages_of("mslt:6,12@0.5,0.5")
    assert [stage.first_step for stage in stages] == [1, 51]
    assert stages[-1].num_frozen == 6


@pytest.mark.parametrize(
    ("option", "changed"),
    [
        ("init=copy", {}),
        ("init=fresh", {"origin": "fresh"}),
        ("embeddings=train", {}),
        ("embeddings=frozen", {"embeddings_train": False, "decoder_trains": False}),
        ("embeddings=frozen:decoder=frozen", {"embeddings_train": False, "decoder_trains": False}),
        ("decoder=train:embeddings=frozen", {"embeddings_train": False}),
        ("moments=reset", {"keeps_moments": False}),
        ("moments=keep:init=fresh", {"origin": "fresh"}),
    ],
)
def test_an_option_changes_the_stages_that_grow_and_no_more(option: str, changed: dict) -> None:
    first, *grown, joint = stages_of(MSLT)
    of_all = {name: value for name, value in changed.items() if name == "keeps_moments"}
    expected = (first, *(replace(stage, **changed) for stage in grown), replace(joint, **of_all))
    assert stages_of(f"{MSLT}:{option}") == expected


def test_progressive_stacking_doubles_the_stack_and_trains_all() -> None:
    assert stages_of(STACKING) == (
        Stage(1, Size(3, 256)),
        Stage(11, Size(6, 256), origin="stack"),
        Stage(31, FULL, origin="stack"),
    )


def test_staged_doubles_depth_or_width_and_trains_all() -> None:
    assert stages_of(STAGED) == (
        Stage(1, Size(6, 128)),
        Stage(21, Size(12, 128), origin="deepen"),
        Stage(41, FULL, origin="widen"),
    )


def test_layer_drop_is_one_stage_and_what_is_dropped() -> None:
    plan = parse("layer_drop:0.5@0.001", FULL, NUM_STEPS)
    assert plan == GrowthPlan((Stage(1, FULL),), layer_drop=LayerDrop(0.5, 0.001))
    assert parse(MSLT, FULL, NUM_STEPS).layer_drop is None


def test_parts_in_whole_numbers_are_steps() -> None:
    assert [stage.first_step for stage in stages_of("mslt:6,12@30,50+joint")] == [1, 31, 81]
    assert [stage.first_step for stage in stages_of("mslt:6,12@30,70")] == [1, 31]


def test_fractions_of_few_digits_make_the_whole_and_their_ends_are_rounded() -> None:
    thirds = "progressive_stacking:3,6,12@0.3333333,0.3333333,0.3333333"
    assert [stage.first_step for stage in stages_of(thirds, 1000)] == [1, 334, 668]
    assert [stage.first_step for stage in stages_of("mslt:6,12@.5,.5", 7)] == [1, 5]


@pytest.mark.parametrize("text", [MSLT, STACKING, STAGED])
def test_every_origin_is_an_operator_that_makes_the_stages_size_of_the_one_before(text: str) -> None:
    for before, after in pairwise(stages_of(text)):
        assert OPERATORS[after.origin].follows(before.size, after.size)
    for fresh in stages_of(f"{MSLT}:init=fresh"):
        assert fresh.origin in OPERATORS


# --- which stage a step belongs to


@pytest.mark.parametrize(
    ("step", "number"), [(1, 0), (21, 0), (22, 1), (42, 1), (43, 2), (64, 3), (84, 3), (85, 4), (1000, 4)]
)
def test_a_step_belongs_to_the_stage_that_began_last(step: int, number: int) -> None:
    plan = parse(MSLT, FULL, NUM_STEPS)
    assert plan.number_at(step) == number
    assert plan.at(step) == plan.stages[number]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 30), min_size=3, max_size=3), st.integers(1, 30))
def test_stages_are_as_long_as_they_are_to_be_and_never_go_back(lengths: list[int], rest: int) -> None:
    num_steps = sum(lengths) + rest
    plan = parse(f"mslt:4,8,12@{','.join(map(str, lengths))}+joint", FULL, num_steps)
    numbers = [plan.number_at(step) for step in range(1, num_steps + 1)]
    assert [numbers.count(number) for number in range(4)] == [*lengths, rest]
    assert numbers == sorted(numbers)


def test_without_rewarm_the_rate_is_the_schedules() -> None:
    plan = parse(MSLT, FULL, NUM_STEPS)
    assert {plan.rate_factor(step) for step in range(1, 101)} == {1.0}


def test_rewarm_lets_the_rate_rise_after_each_boundary_but_not_at_the_start() -> None:
    plan = parse(f"{MSLT}:rewarm=4", FULL, NUM_STEPS)
    assert [plan.rate_factor(step) for step in range(1, 7)] == [1.0] * 6
    for first in (22, 43, 64, 85):
        factors = [plan.rate_factor(step) for step in range(first - 1, first + 6)]
        assert factors == [1.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_the_probability_to_keep_a_layer_falls_with_its_height_and_with_the_steps() -> None:
    """The formula: 1 - i / L (1 - theta), theta = (1 - final) exp(-rate step) + final."""
    drop = LayerDrop(final=0.5, rate=0.001)
    assert drop.keep(0, 4) == (1.0, 1.0, 1.0, 1.0)
    theta = 0.5 * math.exp(-0.7) + 0.5
    assert drop.keep(700, 4) == pytest.approx([1 - i / 4 * (1 - theta) for i in range(4)])
    assert drop.keep(10**6, 4) == pytest.approx((1.0, 0.875, 0.75, 0.625))
    for step in (1, 500, 10_000):
        kept = drop.keep(step, 12)
        assert kept[0] == 1
        assert list(kept) == sorted(kept, reverse=True)
        assert all(later <= now for now, later in zip(kept, drop.keep(step + 100, 12), strict=True))


def test_a_first_stage_is_no_boundary_and_may_be_shorter_than_rewarming() -> None:
    assert parse("progressive_stacking:6,12@5,95:rewarm=20", FULL, NUM_STEPS).rewarm_steps == 20
    assert "at most 5" in refusal_of("progressive_stacking:6,12@95,5:rewarm=20")


@pytest.mark.parametrize("num_steps", [1, 2, 500])
@pytest.mark.parametrize("rate", [1e-12, 0.001, 1.0])
def test_the_mean_share_of_steps_is_that_of_all_steps(num_steps: int, rate: float) -> None:
    drop = LayerDrop(final=0.3, rate=rate)
    of_steps = [drop.keep(step, 4) for step in range(1, num_steps + 1)]
    expected = [sum(shares) / num_steps for shares in zip(*of_steps, strict=True)]
    assert drop.mean_keep(num_steps, 4) == pytest.approx(expected, rel=1e-12)


# --- refusals: the plan, and words of the message; beside each of them stands a plan of the same kind that is accepted

REFUSED = {
    "an empty string": ("", "expected none, or KIND:SIZES@PARTS"),
    "an unknown kind": ("gradual:3,12@0.5,0.5", "KIND is one of mslt, progressive_stacking, staged, layer_drop"),
    "a kind alone": ("mslt", "expected none"),
    "none with more": ("none:3", "expected none"),
    "no parts": ("mslt:6,12", "expected none"),
    "space": ("mslt: 6,12@0.5,0.5", "' 6,12' are no sizes of mslt"),
    "joint where all trains": (f"{STACKING}+joint", "+joint belongs to mslt"),
    "a size that is no number": ("mslt:6,x@0.5,0.5", "'6,x' are no sizes of mslt; expected such as 3,6,12"),
    "a size of 0": ("mslt:0,12@0.5,0.5", "are no sizes"),
    "a size with a width where none belongs": ("mslt:6x256,12x256@0.5,0.5", "are no sizes of mslt"),
    "a size without its width": ("staged:6,12@0.5,0.5", "are no sizes of staged; expected such as 3x128,6x128"),
    "layers that shrink": ("mslt:6,3,12@0.3,0.3,0.4", "3x256 does not follow 6x256 in mslt"),
    "layers that stay": ("mslt:6,6,12@0.3,0.3,0.4", "6x256 does not follow 6x256"),
    "more than twice with copies": ("mslt:3,12@0.5,0.5", "at most twice as many"),
    "a stack that is not doubled": ("progressive_stacking:3,9,12@0.3,0.3,0.4", "twice the layers"),
    "both doubled at once": ("staged:6x128,12x256@0.5,0.5", "twice the layers or twice the width"),
    "a width that shrinks": ("staged:12x512,12x256@0.5,0.5", "12x256 does not follow 12x512"),
    "layers beyond the model": ("mslt:8,16@0.5,0.5", "the last size is 16x256, the model's NUM_LAYERS x HIDDEN_SIZE"),
    "layers that do not reach it": ("mslt:4,8@0.5,0.5", "the last size is 8x256"),
    "an option of another kind": (f"{STACKING}:init=fresh", "init=fresh is no option here; there are moments, rewarm"),
    "an unknown option": (f"{MSLT}:warm=3", "warm=3 is no option here"),
    "a decoder that the embeddings train": (f"{MSLT}:decoder=train", "decoder= belongs to embeddings=frozen"),
    "an unknown choice": (f"{MSLT}:init=zero", "init=zero: expected copy or fresh"),
    "a rewarm that is no number": (f"{MSLT}:rewarm=x", "rewarm=x is no number of steps"),
    "a rewarm longer than a stage": (
        f"{MSLT}:rewarm=17",
        "rewarm=17: expected at most 16, the shortest stage",
    ),
    "thousands of digits": (f"mslt:6,{'9' * 5000}@1,99", "are no sizes of mslt"),
    "thousands of digits of steps": (f"mslt:6,12@{'9' * 5000},1", "expected fractions below 1"),
    "a rewarm of thousands of digits": (f"{MSLT}:rewarm={'9' * 5000}", "is no number of steps"),
    "a rewarm below 0": (f"{MSLT}:rewarm=-1", "rewarm=-1 is no number of steps"),
    "too few parts": ("mslt:3,6,12@0.5,0.5", "3 sizes need as many parts of the run, '0.5,0.5' has 2"),
    "too many parts": ("mslt:6,12@0.2,0.3,0.5", "2 sizes need as many parts"),
    "fractions that make less than 1": ("mslt:6,12@0.5,0.4", "'0.5,0.4' make 90 steps of 100"),
    "fractions that make more than 1": ("mslt:6,12@0.5,0.6", "make 110 steps of 100"),
    "fractions that leave no joint stage": ("mslt:6,12@0.5,0.5+joint", "+joint needs a part of the run"),
    "steps that are not all": ("mslt:6,12@50,49", "the steps of 100 '50,49' make 99 steps of 100"),
    "steps that leave no joint stage": ("mslt:6,12@50,50+joint", "+joint needs a part of the run"),
    "fractions beside steps": ("mslt:6,12@50,0.5", "expected fractions below 1, or whole numbers of steps, not both"),
    "a fraction of 1": ("mslt:12@1.0", "expected fractions below 1"),
    "a negative part": ("mslt:6,12@-0.5,1.5", "expected fractions below 1"),
    "a part of 0 steps": ("mslt:6,12@0,100", "expected fractions below 1"),
    "a part that rounds to no step": ("mslt:6,12@0.001,0.999", "each stage needs a step"),
    "a share of 0": ("layer_drop:0@0.1", "both above 0 and at most 1, as in layer_drop:0.5@0.001"),
    "a share above 1": ("layer_drop:1.5@0.1", "expected layer_drop:SHARE@RATE"),
    "a rate of 0": ("layer_drop:0.5@0", "expected layer_drop:SHARE@RATE"),
    "a rate that is no number": ("layer_drop:0.5@nan", "expected layer_drop:SHARE@RATE"),
    "a share that is no number": ("layer_drop:half@0.1", "expected layer_drop:SHARE@RATE"),
    "an option of layer_drop": ("layer_drop:0.5@0.1:moments=keep", "expected layer_drop:SHARE@RATE"),
    "a joint stage of layer_drop": ("layer_drop:0.5@0.1+joint", "expected layer_drop:SHARE@RATE"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_plan_that_breaks_a_rule_is_one_line_that_says_which(case: str) -> None:
    text, said = REFUSED[case]
    assert said in refusal_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "mslt:6,12@0.5,0.5",
        "mslt:6,12@0.5,0.49+joint",
        "mslt:6,12@50,50",
        "mslt:3,12@0.5,0.5:init=fresh",
        "mslt:12@0.5+joint",
        "staged:12x128,12x256@0.5,0.5:rewarm=0",
        f"{STACKING}:moments=reset:rewarm=10",
        "layer_drop:1@1",
    ],
)
def test_beside_them_a_plan_that_keeps_the_rules_is_taken(text: str) -> None:
    assert parse(text, FULL, NUM_STEPS).stages[-1].size == FULL


def test_a_part_of_the_run_that_is_long_enough_in_a_longer_run_is_taken() -> None:
    text = REFUSED["a part that rounds to no step"][0]
    assert [stage.first_step for stage in stages_of(text, 1000)] == [1, 2]
