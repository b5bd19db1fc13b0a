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
from tools.bench.growth_plans import (
    MAIN,
    PLANS,
    distinct_stages,
    folder_of,
    full_stage,
    plan_named,
    runs_due,
    variables_of,
)
from tools.bench.growth_ranks import Setting, measured
from tools.bench.growth_report import report, runs_in
from tools.bench.growth_step import Work, kept_bytes
from tools.bench.growth_table import (
    Runs,
    accuracy_at,
    cost_to,
    equal_accuracy,
    name_of,
    ratio_to_base,
    samples_to,
    step_ratios,
    to_accuracy,
    whole_runs,
)
from tools.bench.overlap_link import Link, LinkError
from tools.trial import Evaluations, TrialError

FULL = Size(12, 64)
BATCH = 10
LINE: Evaluations = tuple((samples, samples / 1000) for samples in range(100, 1001, 100))
HALF: Evaluations = tuple((samples, accuracy / 2) for samples, accuracy in LINE)


def runs_of(text: str, *evaluations: Evaluations) -> Runs:
    return Runs(parse(text, FULL, 100), dict(enumerate(evaluations, start=1)))


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
    assert whole_runs({"none": NONE, "s": STACKING}, 100, costs) == [
        "| plan | seeds | accuracy at the end | layers |",
        "|---|---|---|---|",
        "| `none` | 2 | 1.0000 ± 0.0000 | 1.00 |",
        "| `s` | 2 | 0.7500 ± 0.3536 | 0.75 |",
    ]


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
    found = distinct_stages()
    names = [name for name, *_ in found]
    assert len(names) == len(set(names))
    assert set(names) == {name_of(stage) for plan in PLANS for stage in plan_named(plan).stages}
    for name, text, number in found:
        assert name_of(parse(text, FULL, 1000).stages[number]) == name


def test_the_first_seed_of_all_plans_comes_before_the_others_of_the_main_ones() -> None:
    due = runs_due(3)
    assert due[: len(PLANS)] == [(name, 1) for name in PLANS]
    assert due[len(PLANS) :] == [(name, seed) for seed in (2, 3) for name in MAIN]


def test_plans_differ_in_growth_alone() -> None:
    for name in PLANS:
        differing = {key for key, value in variables_of(name, 1).items() if variables_of("none", 1)[key] != value}
        assert differing <= {"GROWTH"}
    assert len({folder_of(Path(), name, 1) for name in PLANS}) == len(PLANS)


def test_frozen_layers_keep_nothing_for_backward_unless_a_gradient_passes() -> None:
    sizes = {"NUM_LAYERS": "4", "HIDDEN_SIZE": "16", "NUM_HEADS": "2", "FFN_SIZE": "32", "MAX_LENGTH": "32"}
    batch = synthetic_batch(2, 16, 64, num_masked=3)
    alone, cpu = World(0, 1, 0, 1, rendezvous=None), torch.device("cpu")

    def kept_in(growth: str, step: int) -> int:
        config = load({**sizes, "GROWTH": growth, "MAX_STEPS": "2", "EVAL_INTERVAL_SAMPLES": "16", "DEVICE": "cpu"})
        return kept_bytes(build_trainer(config, alone, cpu, 1, 64, num_done=step), batch)

    with process_group(alone, cpu, 60):
        two_layers, two_of_four = (kept_in("mslt:2,4@1,1", step) for step in (1, 2))
        passed, four_layers = kept_in("mslt:2,4@1,1:embeddings=train", 2), kept_in("none", 1)
    assert two_of_four <= two_layers < passed <= four_layers


# --- the command


def made_up_steps() -> dict[str, Any]:
    names = [name for name, *_ in distinct_stages()]
    facts = {"parameters_trained": 1000, "bytes_reduced": 2**20, "num_buckets": 2, "bytes_kept": 2**21}
    full = name_of(full_stage())
    return {
        "facts": dict.fromkeys(names, facts),
        "seconds": {name: [[1.0 if name == full else 0.5]] for name in names},
    }


def write_runs(out: Path) -> None:
    for name in MAIN:
        for seed in (1, 2):
            of_none: Evaluations = ((8000, 0.1 * seed), (16000, 0.2 * seed))
            slower: Evaluations = ((8000, 0.05 * seed), (16000, 0.1 * seed))
            write_trial(
                folder_of(out, name, seed),
                variables_of(name, seed),
                of_none if name == "none" else slower,
                reached=False,
            )


def test_the_report_of_made_up_runs_and_steps(tmp_path: Path) -> None:
    write_runs(tmp_path)
    lines = report(tmp_path, {"1 process": made_up_steps()})
    assert "| `mslt` | 12x64, 3 train | 1,000 | 1.0 | 2.0 |  | 0.47 | 0.50 | 0.50 (0.50 to 0.50) |" in lines
    assert "| `none` | 2 | 0.3000 ± 0.1414 | 1.00 | 1.00 | 1.00 |" in lines  # FLOPs, cost model, measured
    assert "| `mslt` | 2 | 0.1500 ± 0.0707 | 0.44 | 0.47 | 0.58 |" in lines
    # 0.1 is reached after 8,000 and 4,000 samples by none, 16,000 and 8,000 by the others.
    [stacking] = [line for line in lines[-3:] if line.startswith("| `progressive_stacking` | 2 | 0.100 | 2.00 |")]
    expected = (300 * 0.5 + 700 + 300 * 0.5 + 200) / 750
    assert stacking.endswith(f"| {expected:.2f} |")


def test_runs_of_another_configuration_are_refused(tmp_path: Path) -> None:
    changed = variables_of("none", 1) | {"LEARNING_RATE": "0.5"}
    write_trial(folder_of(tmp_path, "none", 1), changed, [(8000, 0.1)], reached=False)
    with pytest.raises(TrialError, match=r"LEARNING_RATE=0\.5, not 0\.001"):
        runs_in(tmp_path)


def test_without_a_run_of_none_there_is_the_table_of_stages_alone(tmp_path: Path) -> None:
    lines = report(tmp_path, {"1 process": made_up_steps()})
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
    assert "To equal accuracy:" in printed.out == (tmp_path / "table.md").read_text()
    assert "2 ranks, 100 Mbit/s: left out, needs root" in printed.err
    remaining = len(runs_due(3)) - 2 * len(MAIN)
    assert f"{remaining} runs remain" in printed.err


@pytest.mark.parametrize("option", [("--seeds", "0"), ("--minutes", "-1"), ("--minutes", "nan"), ("--rates-mbit", "x")])
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
