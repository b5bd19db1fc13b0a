"""The tables of growth's measurement, from made-up trials and steps; what is due; that a stopped command goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from benchmarks.bert.comm.group import process_group
from benchmarks.bert.complaint import FAILED, REFUSED
from benchmarks.bert.config import load
from benchmarks.bert.data.batch import synthetic_batch
from benchmarks.bert.growth.notation import parse
from benchmarks.bert.growth.plan import Size, Stage
from benchmarks.bert.trainer import build_trainer
from benchmarks.bert.world import World
from tests.support.trials import write_trial
from tools.bench import growth as command
from tools.bench import growth_ranks
from tools.bench.growth_plans import Plans
from tools.bench.growth_ranks import Setting, measured
from tools.bench.growth_report import report, runs_in
from tools.bench.growth_step import Work, kept_bytes
from tools.bench.growth_table import (
    Runs,
    accuracy_at,
    between,
    cost_to,
    equal_accuracy,
    name_of,
    ratio_to_base,
    samples_to,
    step_ratios,
    to_accuracy,
    to_end,
    whole_runs,
)
from tools.bench.overlap_link import Link, LinkError
from tools.trial import Evaluations, TrialError

FULL = Size(12, 64)
PLANS = Plans(12, 1000)
BATCH = 10
LINE: Evaluations = tuple((samples, samples / 1000) for samples in range(100, 1001, 100))
HALF: Evaluations = tuple((samples, accuracy / 2) for samples, accuracy in LINE)


def runs_of(text: str, *evaluations: Evaluations, num_steps: int = 100) -> Runs:
    return Runs(parse(text, FULL, num_steps), dict(enumerate(evaluations, start=1)), num_steps)


NONE = runs_of("none", LINE, LINE)
STACKING = runs_of("progressive_stacking:6,12@0.5,0.5", HALF, LINE)


def by_layers(stage: Stage) -> float:
    return stage.size.num_layers / 12


# --- from evaluations to costs


@pytest.mark.parametrize(
    ("accuracy", "samples"),
    [
        pytest.param(0.3, 300, id="at an evaluation"),
        pytest.param(0.35, 350, id="between two"),
        pytest.param(0.05, 50, id="before the first"),
        pytest.param(1.0, 1000, id="at the last"),
    ],
)
def test_samples_to_an_accuracy_lie_on_the_line_between_evaluations(accuracy: float, samples: float) -> None:
    assert samples_to(LINE, accuracy) == pytest.approx(samples)


def test_what_falls_again_counts_from_its_first_crossing() -> None:
    assert samples_to(((100, 0.2), (200, 0.4), (300, 0.1), (400, 0.5)), 0.3) == pytest.approx(150)


def test_equal_accuracy_is_what_the_worst_trial_came_to_at_its_best() -> None:
    fell: Evaluations = ((100, 0.4567), (200, 0.3))
    assert equal_accuracy([NONE]) == 1.0
    assert equal_accuracy([NONE, STACKING]) == 0.5
    assert equal_accuracy([NONE, runs_of("none", fell)]) == 0.456


def test_cost_is_summed_over_the_stages_that_were_needed() -> None:
    # HALF takes 800 samples, so 50 steps of 6 layers and 30 of 12; LINE 400, so 40 steps of 6.
    assert cost_to(STACKING, 0.4, BATCH, by_layers) == pytest.approx((50 / 2 + 30 + 40 / 2) / 2)
    assert cost_to(NONE, 0.4, BATCH, by_layers) == pytest.approx(40)
    assert ratio_to_base({"none": NONE, "s": STACKING}, "s", 0.4, BATCH, by_layers) == pytest.approx(37.5 / 40)


def test_a_seed_that_misses_the_accuracy_leaves_no_mean() -> None:
    with pytest.raises(ValueError, match=r"0\.6 is never reached"):
        cost_to(STACKING, 0.6, BATCH, by_layers)
    assert cost_to(NONE, 0.6, BATCH, by_layers) == pytest.approx(60)


def test_a_curve_is_read_between_its_points() -> None:
    assert [accuracy_at(LINE, samples) for samples in (50, 100, 150, 2000)] == pytest.approx([0.1, 0.1, 0.15, 1.0])


# --- tables


def test_the_table_of_whole_runs() -> None:
    costs = {"layers": by_layers}
    assert whole_runs({"none": NONE, "s": STACKING}, costs) == [
        "| plan | seeds | accuracy at the end | layers |",
        "|---|---|---|---|",
        "| `none` | 2 | 1.0000 ± 0.0000 | 1.00 |",
        "| `s` | 2 | 0.7500 ± 0.3536 | 0.75 |",
    ]


def test_a_whole_run_is_compared_with_one_of_none_that_ends_as_well() -> None:
    half, weak = runs_of("none", HALF, num_steps=50), runs_of("none", ((100, 0.3),))
    assert to_end({"none": NONE, "s": STACKING, "weak": weak}, {"half": half}, {"layers": by_layers}) == [
        "| plan | accuracy at the end | steps of `none` that end there | layers |",
        "|---|---|---|---|",
        "| `s` | 0.7500 ± 0.3536 | 0.75 | 1.00 |",  # 75 whole steps' worth, as many of none
        "| `weak` | 0.3000 | not known |  |",
    ]


def test_between_two_points_lies_their_line_and_beyond_them_nothing() -> None:
    points = [(1.0, 10.0), (2.0, 20.0), (4.0, 0.0)]
    assert [between(points, x) for x in (0.9, 1.0, 1.5, 3.0, 4.0, 4.1)] == [None, 10.0, 15.0, 10.0, 0.0, None]
    assert between([(1.0, 10.0), (1.0, 20.0), (2.0, 30.0)], 1.0) == 10.0
    assert between([(1.0, 10.0), (3.0, 20.0), (2.0, 30.0)], 2.5) == 17.5  # the first of two places


def test_the_table_to_equal_accuracy() -> None:
    weak = runs_of("progressive_stacking:6,12@0.5,0.5", HALF[:8])
    assert to_accuracy({"none": NONE, "s": STACKING, "weak": weak}, BATCH, {"layers": by_layers}) == [
        "| plan | seeds | accuracy | samples | layers |",
        "|---|---|---|---|---|",
        "| `none` | 2 | 1.000 | 1.00 | 1.00 |",
        "| `s` | 2 | 0.500 | 1.50 | 1.00 |",
        "| `weak` | 1 | 0.400 | 2.00 | 1.38 |",
    ]


def test_ratios_of_steps_are_of_medians_in_the_same_round() -> None:
    seconds = {"full": [[1.0, 2.0, 9.0], [4.0, 4.0, 4.0]], "half": [[1.0, 1.0, 5.0], [2.0, 2.0, 0.1]]}
    assert step_ratios(seconds, "full") == {"full": [1.0, 1.0], "half": [0.5, 0.5]}


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        (Stage(1, FULL), "12x64, 12 train"),
        (Stage(9, Size(6, 64), "stack"), "6x64, 6 train"),
        (Stage(9, FULL, "copy", 9, embeddings_train=False, decoder_trains=False), "12x64, 3 train"),
        (Stage(9, FULL, "copy", 9, embeddings_train=False), "12x64, 3 train, decoder too"),
        (Stage(9, FULL, "copy", 9), "12x64, 3 train, embeddings too"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_stages_that_cost_the_same_have_one_name(stage: Stage, name: str) -> None:
    assert name_of(stage) == name


# --- what is measured


def test_every_stage_of_every_plan_is_measured_once() -> None:
    found = PLANS.distinct_stages()
    names = [name for name, *_ in found]
    assert len(names) == len(set(names))
    assert set(names) == {name_of(stage) for plan in PLANS.of_all_steps for stage in PLANS.plan_named(plan).stages}
    for name, text, number in found:
        assert name_of(parse(text, FULL, 1000).stages[number]) == name


def test_all_seeds_of_the_main_plans_come_before_the_others() -> None:
    main = [*PLANS.main, *PLANS.shorter]
    due = PLANS.runs_due(2, 1)
    assert due[: 2 * len(main)] == [(name, seed) for seed in (1, 2) for name in main]
    assert due[2 * len(main) :] == [(name, 1) for name in PLANS.variants]


def test_plans_differ_in_growth_shorter_runs_in_their_steps_and_the_first_stage_alone_in_its_layers() -> None:
    of_none = PLANS.variables_of("none", 1)
    for name in (*PLANS.of_all_steps, *PLANS.shorter):
        variables = PLANS.variables_of(name, 1)
        differing = {key for key, value in variables.items() if of_none[key] != value}
        allowed = {PLANS.alone: "NUM_LAYERS"} | dict.fromkeys(PLANS.shorter, "MAX_STEPS")
        assert differing <= {allowed.get(name, "GROWTH")}
    folders = {PLANS.folder_of(Path(), name, 1) for name in (*PLANS.of_all_steps, *PLANS.shorter)}
    assert len(folders) == len(PLANS.of_all_steps) + len(PLANS.shorter)
    assert PLANS.variables_of("none, 0.25 of the steps", 1)["MAX_STEPS"] == "250"


def test_a_deeper_model_is_grown_in_quarters_too() -> None:
    deep = Plans(24, 400)
    assert deep.main["mslt"]["GROWTH"].startswith("mslt:6,12,18,24@")
    last = {name: deep.plan_named(name).stages[-1].size for name in deep.of_all_steps}
    assert last.pop("6 layers alone") == Size(6, 64)
    assert set(last.values()) == {Size(24, 64)}


def test_frozen_layers_keep_nothing_for_backward_unless_a_gradient_passes() -> None:
    sizes = {"NUM_LAYERS": "4", "HIDDEN_SIZE": "16", "NUM_HEADS": "2", "FFN_SIZE": "32", "MAX_LENGTH": "32"}
    batch = synthetic_batch(2, 16, 64, num_masked=3)
    alone, cpu = World(0, 1, 0, 1, rendezvous=None), torch.device("cpu")

    def kept_in(growth: str, step: int) -> int:
        config = load({**sizes, "GROWTH": growth, "MAX_STEPS": "2", "EVAL_INTERVAL_SAMPLES": "16", "DEVICE": "cpu"})
        return kept_bytes(build_trainer(config, alone, cpu, 1, 64, num_done=step), batch)

    with process_group(alone, cpu, 60):
        two_layers, two_of_four = (kept_in("mslt:2,4@1,1:embeddings=frozen", step) for step in (1, 2))
        passed, four_layers = kept_in("mslt:2,4@1,1", 2), kept_in("none", 1)
    assert two_of_four <= two_layers < passed <= four_layers


# --- the command


def made_up_steps() -> dict[str, Any]:
    names = [name for name, *_ in PLANS.distinct_stages()]
    facts = {"parameters_trained": 1000, "bytes_reduced": 2**20, "num_buckets": 2, "bytes_kept": 2**21}
    full = name_of(PLANS.full_stage)
    return {
        "facts": dict.fromkeys(names, facts),
        "seconds": {name: [[1.0 if name == full else 0.5]] for name in names},
    }


def write_runs(out: Path) -> None:
    for name in PLANS.main:
        for seed in (1, 2):
            of_none: Evaluations = ((8000, 0.1 * seed), (16000, 0.2 * seed))
            slower: Evaluations = ((8000, 0.05 * seed), (16000, 0.1 * seed))
            write_trial(
                PLANS.folder_of(out, name, seed),
                PLANS.variables_of(name, seed),
                of_none if name == "none" else slower,
                reached=False,
            )


def test_the_report_of_made_up_runs_and_steps(tmp_path: Path) -> None:
    write_runs(tmp_path)
    lines = report(PLANS, tmp_path, {"1 process": made_up_steps()})
    assert (
        "| `mslt, embeddings=frozen` | 12x64, 3 train | 1,000 | 1.0 | 2.0 |  | 0.47 | 0.50 | 0.50 (0.50 to 0.50) |"
        in lines
    )
    assert "| `none` | 2 | 0.3000 ± 0.1414 | 1.00 | 1.00 | 1.00 |" in lines  # FLOPs, cost model, measured
    assert "| `mslt, embeddings=frozen` | 2 | 0.1500 ± 0.0707 | 0.44 | 0.47 | 0.58 |" in lines
    # 0.1 is reached after 8,000 and 4,000 samples by none, 16,000 and 8,000 by the others.
    [stacking] = [line for line in lines if line.startswith("| `progressive_stacking` | 2 | 0.100 | 2.00 |")]
    expected = (300 * 0.5 + 700 + 300 * 0.5 + 200) / 750
    assert stacking.endswith(f"| {expected:.2f} |")


def test_runs_of_another_configuration_are_refused(tmp_path: Path) -> None:
    changed = PLANS.variables_of("none", 1) | {"LEARNING_RATE": "0.5"}
    write_trial(PLANS.folder_of(tmp_path, "none", 1), changed, [(8000, 0.1)], reached=False)
    with pytest.raises(TrialError, match=r"LEARNING_RATE=0\.5, not 0\.001"):
        runs_in(PLANS, tmp_path, ["none"])


def test_without_a_run_of_none_there_is_the_table_of_stages_alone(tmp_path: Path) -> None:
    lines = report(PLANS, tmp_path, {"1 process": made_up_steps()})
    assert lines[0] == "Stages:"
    assert not any("Whole runs" in line for line in lines)


def forbidden(*arguments: object, **named: object) -> NoReturn:
    raise AssertionError("nothing is to be run here")


def test_what_was_measured_is_read_and_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work({}, [("12x64, 12 train", "none", 0)], 64, 1, None)
    monkeypatch.setattr(growth_ranks, "_processes", forbidden)
    asked = {"work": json.loads(json.dumps(vars(work))), "num_rounds": 2, "num_steps": 3}
    (tmp_path / Setting(1).file).write_text(json.dumps({"asked": asked, **made_up_steps()}))
    assert measured(Setting(1), work, tmp_path, num_rounds=2, num_steps=3)["facts"] == made_up_steps()["facts"]
    with pytest.raises(AssertionError, match="nothing is to be run"):
        measured(Setting(1), work, tmp_path, num_rounds=9, num_steps=3)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["growth", *arguments])
    return command.main()


def test_without_time_the_tables_are_of_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_runs(tmp_path)

    def made_up(setting: Setting, *arguments: object, **named: object) -> dict[str, Any]:
        if setting.link:
            raise LinkError("needs root, to make network namespaces; start it as root")
        return made_up_steps()

    monkeypatch.setattr(command, "measured", made_up)
    monkeypatch.setattr(command, "make_data", lambda: None)
    assert run(monkeypatch, "--out", str(tmp_path), "--minutes", "0", "--rates-mbit", "100") == FAILED
    printed = capsys.readouterr()
    assert "To equal accuracy:" in printed.out == (PLANS.folder(tmp_path) / "table.md").read_text()
    assert "2 ranks, 100 Mbit/s: left out, needs root" in printed.err
    remaining = len(PLANS.runs_due(3, 1)) - 2 * len(PLANS.main)
    assert f"{remaining} runs remain" in printed.err


@pytest.mark.parametrize(
    "option",
    [
        ("--seeds", "0"),
        ("--minutes", "-1"),
        ("--minutes", "nan"),
        ("--rates-mbit", "x"),
        ("--layers", "6"),
        ("--jobs", "0"),
        ("--variant-seeds", "-1"),
    ],
)
def test_bad_options_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: tuple[str, str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, "--out", str(tmp_path / "out"), *option)
    assert caught.value.code == REFUSED
    assert option[1] in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_settings_have_names_and_files_of_their_own() -> None:
    settings = [Setting(1), Setting(2), Setting(2, Link(100.0, 0.0)), Setting(2, Link(20.0, 0.0))]
    assert [str(setting) for setting in settings] == [
        "1 process",
        "2 ranks",
        "2 ranks, 100 Mbit/s",
        "2 ranks, 20 Mbit/s",
    ]
    assert len({setting.file for setting in settings}) == 4
