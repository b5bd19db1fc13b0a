"""What a plan is drawn as, and that what it is said to cost is what autograd computes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.bert.complaint import REFUSED
from benchmarks.bert.config import Config, load
from benchmarks.bert.data.batch import synthetic_batch
from benchmarks.bert.growth.__main__ import drawn, main, model_of
from benchmarks.bert.growth.cost import Sample, dropping_flops, layer_cost, lengths_of, stage_flops, summed
from benchmarks.bert.growth.plan import LayerDrop, Size, Stage
from benchmarks.bert.growth.relative import whole_steps
from benchmarks.bert.growth.stages import freeze, of_stage, plan_of
from benchmarks.bert.loss import pretraining_loss
from benchmarks.bert.model.flops import mean_packed_flops
from benchmarks.bert.trainer import initial_model

VOCABULARY = 104  # a multiple of 8
SAMPLE = Sample(num_tokens=32, num_masked=5)
MSLT = "mslt:2,4,6@0.25,0.25,0.25+joint"
FROZEN = MSLT + ":embeddings=frozen"
SIZES = {
    "NUM_LAYERS": "6",
    "HIDDEN_SIZE": "16",
    "NUM_HEADS": "2",
    "FFN_SIZE": "64",
    "MAX_LENGTH": "32",
    "DROPOUT": "0.0",
    "MAX_STEPS": "100",
    "EVAL_INTERVAL_SAMPLES": "16",
    "DATA_DIR": "no/data",
    "DEVICE": "cpu",
    "ATTENTION": "plain",
}


def config_of(growth: str, **changed: str) -> Config:
    return load({**SIZES, "GROWTH": growth, **changed})


def bars(growth: str, **changed: str) -> list[str]:
    """The letters of each stage."""
    lines = drawn(config_of(growth, **changed))
    return [line.split()[-1] for line in lines if line.split() and line.split()[0].isdecimal()]


def said(growth: str) -> dict[str, list[str]]:
    """The cells of each row, by its first."""
    return {line.split()[0]: line.split() for line in drawn(config_of(growth)) if line}


# --- what it costs


def counted_flops(config: Config, stage: Stage) -> int:
    """Of a step of one sample: every matrix product that torch makes, forward and backward."""
    model = initial_model(of_stage(config, stage), torch.device("cpu"), VOCABULARY, is_reader=False)
    freeze(model, stage)
    batch = synthetic_batch(1, SAMPLE.num_tokens, VOCABULARY, SAMPLE.num_masked)
    with FlopCounterMode(display=False) as counter:
        pretraining_loss(model(batch), batch).backward()
    return counter.get_total_flops()


def stages_named() -> dict[str, tuple[Config, Stage]]:
    found = {}
    for option in ("embeddings=frozen", "embeddings=train", "embeddings=frozen:decoder=train"):
        for last_layer in ("only_read", "whole"):
            config = config_of("mslt:3,5,6@0.4,0.3,0.1+joint:" + option, LAST_LAYER=last_layer)
            for number, stage in enumerate(plan_of(config).stages):
                found[f"{option}-{last_layer}-stage {number + 1}"] = config, stage
    return found


@pytest.mark.parametrize("name", stages_named())
def test_a_stages_operations_are_those_that_autograd_computes(name: str) -> None:
    config, stage = stages_named()[name]
    shape = model_of(config, stage, VOCABULARY).shape
    said = stage_flops(shape, stage, SAMPLE, config.last_layer)
    assert said == pytest.approx(counted_flops(config, stage), rel=1e-9)
    if stage.num_frozen:  # and the model that forgets what is frozen is seen
        assert stage_flops(shape, Stage(1, stage.size), SAMPLE, config.last_layer) > 1.1 * said


def test_a_stage_in_which_all_trains_costs_what_the_whole_model_does() -> None:
    config = config_of("none")
    shape = model_of(config, Stage(1, Size(6, 16)), VOCABULARY).shape
    tokens, masked = SAMPLE.num_tokens, SAMPLE.num_masked
    whole = mean_packed_flops(
        shape, tokens=tokens, pairs=tokens**2, masked=masked, read_pairs=(masked + 1) * tokens, last_layer="only_read"
    )
    assert stage_flops(shape, Stage(1, Size(6, 16)), SAMPLE) == pytest.approx(whole, rel=1e-9)


def test_layers_that_are_always_kept_cost_all_and_dropped_ones_less() -> None:
    shape = model_of(config_of("none"), Stage(1, Size(6, 16)), VOCABULARY).shape
    whole = stage_flops(shape, Stage(1, Size(6, 16)), SAMPLE)
    assert dropping_flops(shape, LayerDrop(1.0, 0.1), 50, SAMPLE, "only_read") == pytest.approx(whole)
    assert dropping_flops(shape, LayerDrop(0.5, 0.1), 50, SAMPLE, "only_read") < 0.9 * whole


@pytest.mark.parametrize(
    ("stage", "cost"),
    [
        pytest.param(Stage(1, Size(3, 64)), 9 / 36, id="3 layers"),
        pytest.param(Stage(1, Size(6, 64), num_frozen=3, embeddings_train=False), 12 / 36, id="3 of 6"),
        pytest.param(Stage(1, Size(9, 64), num_frozen=6, embeddings_train=False), 15 / 36, id="3 of 9"),
        pytest.param(Stage(1, Size(12, 64), num_frozen=9, embeddings_train=False), 18 / 36, id="3 of 12"),
        pytest.param(Stage(1, Size(12, 64), num_frozen=9), 27 / 36, id="a gradient passes 9"),
        pytest.param(Stage(1, Size(12, 32)), 1 / 4, id="half the width"),
    ],
)
def test_the_cost_model_is_three_for_a_layer_that_trains_and_one_for_a_frozen_one(stage: Stage, cost: float) -> None:
    assert layer_cost(stage, Stage(1, Size(12, 64))) == pytest.approx(cost)


@pytest.mark.parametrize(("joint", "speed"), [(0.10, 2.29), (0.16, 2.10), (0.20, 2.00), (0.30, 1.78)])
def test_a_whole_plans_cost_is_the_closed_form(joint: float, speed: float) -> None:
    part = f"{(1 - joint) / 4:.4f}"
    config = config_of(
        f"mslt:3,6,9,12@{part},{part},{part},{part}+joint:embeddings=frozen", NUM_LAYERS="12", MAX_STEPS="10000"
    )
    plan = plan_of(config)
    mean = summed(plan, 10_000, lambda stage: layer_cost(stage, plan.stages[-1])) / 10_000
    assert mean == pytest.approx(0.375 * (1 - joint) + joint, abs=1e-3)
    assert 1 / mean == pytest.approx(speed, abs=0.01)


@pytest.mark.parametrize(
    ("num_steps", "lengths"),
    [(100, [25, 25, 25, 25]), (60, [25, 25, 10, 0]), (25, [25, 0, 0, 0]), (0, [0, 0, 0, 0])],
)
def test_a_run_that_ends_early_has_fewer_steps_of_the_late_stages(num_steps: int, lengths: list[int]) -> None:
    assert lengths_of(plan_of(config_of(MSLT)), num_steps) == lengths


# --- how it is drawn


@pytest.mark.parametrize(
    ("growth", "expected"),
    [
        pytest.param("none", ["t|tttttt"], id="none"),
        pytest.param(MSLT, ["t|tt", "t|ffcc", "t|ffffcc", "t|tttttt"], id="mslt"),
        pytest.param(MSLT + ":init=fresh", ["t|tt", "t|ffnn", "t|ffffnn", "t|tttttt"], id="mslt-fresh"),
        pytest.param(FROZEN, ["t|tt", "f|ffcc", "f|ffffcc", "t|tttttt"], id="mslt-frozen"),
        pytest.param(FROZEN + ":decoder=train", ["t|tt", "h|ffcc", "h|ffffcc", "t|tttttt"], id="mslt-decoder"),
        pytest.param("progressive_stacking:3,6@0.5,0.5", ["t|ttt", "t|tttccc"], id="stacking"),
        pytest.param("staged:3x8,6x8,6x16@0.2,0.2,0.6", ["t|ttt", "t|tctctc", "t|tttttt"], id="staged"),
        pytest.param("layer_drop:0.5@0.001", ["t|tddddd"], id="layer_drop"),
    ],
)
def test_each_layer_has_its_letter(growth: str, expected: list[str]) -> None:
    assert bars(growth, **({"NORM": "pre"} if growth.startswith("layer_drop") else {})) == expected


def test_a_row_says_what_trains_and_what_is_reduced() -> None:
    config = config_of(MSLT)
    rows = said(MSLT)
    for number, stage in enumerate(plan_of(config).stages, start=1):
        real = initial_model(of_stage(config, stage), torch.device("cpu"), 30522, is_reader=False)
        freeze(real, stage)
        num_trained = sum(each.numel() for each in real.parameters() if each.requires_grad)
        assert rows[str(number)][1:6] == [
            str(stage.first_step),
            f"{stage.size.num_layers}x16",
            str(stage.size.num_layers - stage.num_frozen),
            f"{num_trained:,}",
            f"{4 * num_trained / 2**20:.1f}",
        ]


def test_costs_are_the_full_models_and_the_mean_is_by_steps() -> None:
    rows = said(MSLT)
    costs = [float(rows[str(number)][6]) for number in range(1, 5)]
    assert costs[0] < 1
    assert costs[1] < costs[2] < costs[3] == 1.0
    assert float(rows["mean"][1]) == pytest.approx(sum(costs) / 4, abs=0.01)
    assert float(said("mslt:2,4,6@0.1,0.1,0.1+joint")["mean"][1]) > float(rows["mean"][1])


def test_a_run_that_ends_before_a_stage_says_so_and_has_no_share_of_its_cost() -> None:
    lines = drawn(config_of(MSLT, MAX_STEPS="50", DECAY_STEPS="100"))
    assert "never begun, MAX_STEPS is 50: stage 3, 4" in lines
    assert "parts of DECAY_STEPS=100 steps, a run of at most MAX_STEPS=50" in lines[0]
    [mean] = [line.split()[1] for line in lines if line.split()[:1] == ["mean"]]
    costs = [float(said(MSLT)[number][6]) for number in ("1", "2")]
    assert float(mean) == pytest.approx(sum(costs) / 2, abs=0.01)
    assert not any("never begun" in line for line in drawn(config_of(MSLT)))


@pytest.mark.parametrize("num_steps", [1, 33.3, 100])
def test_without_growth_steps_are_whole_ones_and_with_it_fewer(num_steps: float) -> None:
    assert whole_steps(config_of("none"), num_steps, VOCABULARY) == num_steps
    for growth in (MSLT, "layer_drop:0.5@0.001"):
        config = config_of(growth, NORM="pre")
        assert whole_steps(config, num_steps, VOCABULARY) <= num_steps * 0.9999


def test_a_plan_that_ends_with_frozen_layers_never_costs_the_whole() -> None:
    rows = said("mslt:3,6@0.5,0.5")
    assert float(rows["2"][6]) < 1


def test_nothing_is_allocated_for_a_model_of_any_size() -> None:
    config = replace(Config(), growth=MSLT, num_layers=6, hidden_size=2**14, num_heads=2**8, ffn_size=2**16)
    model = model_of(config, Stage(1, Size(6, 2**14)), 30522)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


# --- the command


def run(monkeypatch: pytest.MonkeyPatch, arguments: list[str], **variables: str) -> int:
    for name, value in {**SIZES, **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", ["growth", *arguments])
    return main()


def test_the_environments_plan_is_drawn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, ["show"], GROWTH=MSLT) == 0
    assert "ffffcc" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("growth", "message"),
    [
        ("mslt:2,6@0.5,0.5", "GROWTH=mslt:2,6@0.5,0.5: 6x16 does not follow 2x16"),
        ("mslt:2,4,8@0.5,0.2,0.3", "the last size is 8x16"),
        ("mslt:3,6@0.5,0.4", "make 90 steps of 100"),
    ],
)
def test_a_bad_plan_is_refused_with_its_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], growth: str, message: str
) -> None:
    assert run(monkeypatch, ["show"], GROWTH=growth) == REFUSED
    printed = capsys.readouterr()
    assert message in printed.err
    assert not printed.out


@pytest.mark.parametrize("arguments", [[], ["draw"], ["show", "more"]], ids=["none", "unknown", "too many"])
def test_other_arguments_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert run(monkeypatch, arguments) == REFUSED
    assert "usage: python -m benchmarks.bert.growth show" in capsys.readouterr().err
