"""A run that goes on from a checkpoint ends, bit for bit, like one that was never cut; and it is never a result."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.bert.checkpoint.store import REPLICATED, checkpoints_in, folder_of, rank_file
from tests.support.checkpoints import (
    at_step,
    errors,
    evaluations,
    reseal,
    statuses,
    stop_of,
    trial,
)
from tests.support.records import read_records
from tests.support.tiny import make_tiny_data

LAST = 12  # steps; six are an epoch
ACCUMULATING = {"GRADIENT_ACCUMULATION_STEPS": "2"}
REACHED = {"TARGET_ACCURACY": "0.0001", "EVAL_START_SAMPLES": "64", "EVAL_INTERVAL_SAMPLES": "64"}
# The first steps overflow, which takes the scale down, and the later ones take it up again.
FP16 = {"PRECISION": "fp16", "LOSS_SCALE": "4194304", "LOSS_SCALE_GROWTH_STEPS": "3"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was not cut."""
    folder = tmp_path_factory.mktemp("whole")
    assert statuses(trial(data, folder)) == [1, 1]
    return folder


def cut_after(whole: Path, step: int, folder: Path) -> Path:
    """A folder with the checkpoints of the first steps alone, as if the run had been killed then."""
    shutil.copytree(whole / "checkpoints", folder / "checkpoints")
    for checkpoint in checkpoints_in(folder / "checkpoints"):
        if int(checkpoint.name.removeprefix("step_")) > step:
            shutil.rmtree(checkpoint)
    return folder


def resumed_steps(log: Path) -> list[int]:
    values = [record.value for record in read_records(log) if record.key == "tracked_stats"]
    return [value["resumed_from_step"] for value in values if "resumed_from_step" in value]


@pytest.mark.parametrize(
    ("middle", "changed"),
    [
        (8, {}),  # within the second epoch
        (6, ACCUMULATING | {"CLIP": "global_before"}),  # between two epochs
        (4, ACCUMULATING | {"OPTIMIZER": "lamb", "LEARNING_RATE": "3e-2"}),  # within the first one
        (8, {"OPTIMIZER": "lamb", "LEARNING_RATE": "3e-2", "CLIP": "global_before", "PRECISION": "bf16"}),
        (6, ACCUMULATING | FP16),
    ],
)
def test_a_resumed_run_ends_bit_for_bit_like_one_that_was_not_cut(
    data: Path, whole: Path, tmp_path: Path, middle: int, changed: dict[str, str]
) -> None:
    if changed:
        whole = tmp_path / "whole"
        trial(data, whole, **changed)
    cut = cut_after(whole, middle, tmp_path / "cut")
    assert statuses(trial(data, cut, RESUME="yes", **changed)) == [1, 1]
    assert resumed_steps(cut / "result.txt") == [middle]
    assert stop_of(cut / "result.txt")["status"] == "aborted"
    for step in range(middle + 2, LAST + 1, 2):
        assert at_step(cut / "checkpoints", step) == at_step(whole / "checkpoints", step), step
    expected = evaluations(whole / "result.txt")
    assert len({accuracy for _, accuracy in expected}) > 2
    assert evaluations(cut / "result.txt") == expected[-len(evaluations(cut / "result.txt")) :]
    assert len(evaluations(cut / "result.txt")) == (LAST - middle) // 2
    assert at_step(cut / "checkpoints", LAST).accuracies == tuple(accuracy for _, accuracy in expected)
    if "LOSS_SCALE" in changed:
        scales = [
            load_file(folder_of(whole / "checkpoints", step) / REPLICATED)["loss_scale/scale"].item()
            for step in (2, middle, LAST)
        ]
        assert scales[0] > scales[1]
        assert scales[1] != scales[2]


def other_random_states(folder: Path) -> None:
    shutil.copy(folder / rank_file(0), folder / rank_file(1))


def other_moment(folder: Path) -> None:
    tensors = load_file(folder / REPLICATED)
    name = next(name for name in tensors if name.startswith("optimizer/") and name.endswith("/exp_avg"))
    tensors[name] = torch.zeros_like(tensors[name])
    save_file(tensors, folder / REPLICATED)


@pytest.mark.parametrize("alter", [other_random_states, other_moment])
def test_with_one_thing_of_the_state_changed_it_ends_otherwise(
    data: Path, whole: Path, tmp_path: Path, alter: Callable[[Path], None]
) -> None:
    """The must-fail twin: a well sealed checkpoint whose rank 1 drops as rank 0 does, or which lost a moment."""
    cut = cut_after(whole, 8, tmp_path)
    alter(folder_of(cut / "checkpoints", 8))
    reseal(folder_of(cut / "checkpoints", 8))
    trial(data, cut, RESUME="yes")
    assert resumed_steps(cut / "result.txt") == [8]
    here, there = (at_step(folder / "checkpoints", LAST) for folder in (cut, whole))
    assert here.files[REPLICATED] != there.files[REPLICATED]
    assert here.identity == there.identity


def test_a_resumed_run_that_reaches_its_target_is_no_result(data: Path, whole: Path, tmp_path: Path) -> None:
    cut = cut_after(whole, 8, tmp_path)
    ranks = trial(data, cut, RESUME="if_any", **REACHED)
    assert statuses(ranks) == [1, 1]
    reason = "resumed from step 8: not one whole execution, so not a result"
    assert errors(ranks) == [f"error: {reason}"]
    stop = stop_of(cut / "result.txt")
    assert (stop["status"], stop["reason"]) == ("aborted", reason)
    assert resumed_steps(cut / "result.txt") == [8]
    assert [samples for samples, _ in evaluations(cut / "result.txt")] == [9 * 64]


def test_a_run_that_starts_with_trained_weights_is_no_result(data: Path, whole: Path, tmp_path: Path) -> None:
    trained = folder_of(whole / "checkpoints", 8)
    ranks = trial(data, tmp_path, CHECKPOINT_INTERVAL_STEPS="0", INITIAL_CHECKPOINT=str(trained), **REACHED)
    assert statuses(ranks) == [1, 1]
    reason = f"INITIAL_CHECKPOINT={trained} is a trained one, so this is not a result"
    assert errors(ranks) == [f"error: {reason}"]
    assert stop_of(tmp_path / "result.txt")["reason"] == reason
    assert resumed_steps(tmp_path / "result.txt") == []


def test_an_ordinary_run_has_no_checkpoint_folder_and_is_a_success(data: Path, tmp_path: Path) -> None:
    """The must-fail twin of both above."""
    ranks = trial(data, tmp_path, CHECKPOINT_INTERVAL_STEPS="0", **REACHED)
    assert statuses(ranks) == [0, 0]
    assert stop_of(tmp_path / "result.txt")["status"] == "success"
    assert [path.name for path in tmp_path.iterdir()] == ["result.txt"]


def test_a_run_that_keeps_checkpoints_and_is_not_cut_is_a_success(data: Path, tmp_path: Path) -> None:
    ranks = trial(data, tmp_path, RESUME="if_any", TARGET_ACCURACY="0.0001")
    assert statuses(ranks) == [0, 0]
    assert stop_of(tmp_path / "result.txt")["status"] == "success"
    assert resumed_steps(tmp_path / "result.txt") == []


def test_a_drawn_seed_is_gone_on_with(data: Path, tmp_path: Path) -> None:
    trial(data, tmp_path, name="first.txt", SEED="-1", MAX_STEPS="4")
    seed = at_step(tmp_path / "checkpoints", 4).seed
    trial(data, tmp_path, name="second.txt", SEED="-1", MAX_STEPS="6", RESUME="yes")
    assert resumed_steps(tmp_path / "second.txt") == [4]
    assert [record.value for record in read_records(tmp_path / "second.txt") if record.key == "seed"] == [seed]
