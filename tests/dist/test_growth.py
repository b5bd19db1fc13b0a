"""Whole tiny runs that grow: what changes at a boundary, what stays bit for bit, what is logged, and resuming."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.bert.checkpoint.store import REPLICATED, folder_of
from benchmarks.bert.config import load
from benchmarks.bert.growth import follow
from benchmarks.bert.trainer import Trainer
from tests.support.ranks import run_trial
from tests.support.records import read_records
from tests.support.tiny import make_tiny_data, tiny_environment

STEPS = 8
COMMON = {
    "NUM_LAYERS": "4",
    "DROPOUT": "0.1",
    "MAX_STEPS": str(STEPS),
    "DECAY_STEPS": str(STEPS),
    "TARGET_ACCURACY": "0.99",
    "EVAL_START_SAMPLES": "16",
    "EVAL_INTERVAL_SAMPLES": "16",
    "CHECKPOINT_INTERVAL_STEPS": "1",
    "CHECKPOINT_KEEP": "20",
    "LEARNING_RATE": "3e-3",
    "END_LEARNING_RATE": "1e-3",
}
MSLT = "mslt:2,3,4@2,2,2+joint"
FROZEN = MSLT + ":embeddings=frozen"
STACKING = "progressive_stacking:1,2,4@2,2,4"
STAGED = "staged:2x16,4x16,4x32@2,2,4"
LAYER_DROP = "layer_drop:0.3@0.5"
PLANS = [MSLT, FROZEN, STACKING, STAGED, LAYER_DROP]
State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_data(tmp_path_factory.mktemp("data"))


def run(
    data: Path, folder: Path, plan: str, *, num_ranks: int = 2, log: str = "result.txt", status: int = 1, **changed: str
) -> list[str]:
    """What each rank says on stderr."""
    own = {
        "GROWTH": plan,
        "RANKS_PER_NODE": str(num_ranks),
        "CHECKPOINT_DIR": str(folder / "checkpoints"),
        "NORM": "pre" if plan.startswith("layer_drop") else "post",
    }
    ranks = run_trial([tiny_environment(data, folder / log, **COMMON | own | changed)] * num_ranks)
    assert [each for each, *_ in ranks] == [status] * num_ranks, ranks
    return [said for _, said, _ in ranks]


def state_after(folder: Path, step: int = STEPS) -> State:
    return load_file(folder_of(folder / "checkpoints", step) / REPLICATED)


def weights(state: State) -> State:
    return {name.removeprefix("model/"): each for name, each in state.items() if name.startswith("model/")}


def differing(some: State, others: State) -> list[str]:
    return [
        name
        for name in some.keys() | others.keys()
        if name not in some or name not in others or not torch.equal(some[name], others[name])
    ]


def stages(folder: Path) -> list[dict[str, Any]]:
    values = [record.value for record in read_records(folder / "result.txt") if record.key == "tracked_stats"]
    return [value for value in values if "layers_trained" in value]


@pytest.mark.parametrize("plan", [MSLT, FROZEN], ids=["embeddings train", "embeddings frozen"])
def test_frozen_tensors_stay_bit_for_bit_and_all_others_move(data: Path, tmp_path: Path, plan: str) -> None:
    run(data, tmp_path, plan)
    at = {step: weights(state_after(tmp_path, step)) for step in range(1, STEPS + 1)}
    frozen = ("layers.0.", "layers.1.", *(["embeddings."] if plan == FROZEN else []))
    for before, after, lowest in ((3, 4, frozen), (5, 6, (*frozen, "layers.2."))):
        moved = differing(at[before], at[after])
        assert [name for name in moved if name.startswith(lowest)] == []
        assert [name for name in at[before] if not name.startswith(lowest) and name not in moved] == []
    assert [name for name in at[7] if name not in differing(at[7], at[8])] == []


def test_new_layers_begin_as_copies_of_the_topmost_and_the_rest_is_as_it_was(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path, "mslt:2,4@2,6", LEARNING_RATE="1e-9", END_LEARNING_RATE="1e-9")
    small, grown = (weights(state_after(tmp_path, step)) for step in (2, 3))
    for name, tensor in grown.items():
        layer = int(name.split(".")[1]) if name.startswith("layers.") else 0
        source = name.replace(f"layers.{layer}.", f"layers.{layer - 2}.") if layer >= 2 else name
        assert torch.allclose(tensor, small[source], atol=1e-7), name
    assert not torch.allclose(grown["layers.2.ffn_in.weight"], small["layers.1.ffn_in.weight"], atol=1e-3)


def test_what_a_checkpoint_holds_is_what_exists_and_trains(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path, MSLT)
    for step, layers, trained in ((2, 2, {0, 1}), (4, 3, {2}), (6, 4, {3}), (7, 4, {0, 1, 2, 3})):
        state = state_after(tmp_path, step)
        found = {int(name.split(".")[1]) for name in state if name.startswith("model/layers.")}
        with_moments = {int(name.split(".")[1]) for name in state if name.startswith("optimizer/layers.")}
        assert (found, with_moments) == (set(range(layers)), trained)


def test_counts_of_steps_go_on_for_what_trains_on_and_begin_anew_for_what_does_not(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "keep", MSLT)
    run(data, tmp_path / "reset", MSLT + ":moments=reset")
    head, layer, lowest = (
        f"optimizer/{name}.weight/step" for name in ("masked_lm.transform", "layers.3.ffn_in", "layers.0.ffn_in")
    )
    kept, reset = (state_after(tmp_path / name) for name in ("keep", "reset"))
    assert (kept[head], kept[layer], kept[lowest]) == (8, 8, 2)
    assert (reset[head], reset[layer], reset[lowest]) == (2, 2, 2)


def test_stages_are_logged_with_what_they_cost(data: Path, tmp_path: Path) -> None:
    said = run(data, tmp_path, MSLT)
    found = stages(tmp_path)
    assert [(stage["first_step"], stage["layers"], stage["layers_trained"]) for stage in found] == [
        (1, 2, 2),
        (3, 3, 1),
        (5, 4, 1),
        (7, 4, 4),
    ]
    assert found[1]["bytes_reduced_per_step"] == found[2]["bytes_reduced_per_step"] < found[0]["bytes_reduced_per_step"]
    assert found[3]["bytes_reduced_per_step"] == 4 * found[3]["parameters"] + padding(data)
    assert all(stage["buckets"] >= 1 for stage in found)
    assert "stage 2 of 4 from step 3: 1 of 3 layers train" in said[0]
    peaks = [record.value for record in read_records(tmp_path / "result.txt") if "peak_bytes" in str(record.value)]
    assert [each["growth_stage"] for each in peaks] == [0, 1, 2, 3]
    assert all(each["peak_bytes"] > 0 for each in peaks)


def padding(data: Path) -> int:
    num_entries = len((data / "vocab.txt").read_text().splitlines())
    return 4 * 32 * (-num_entries % 8)


@pytest.mark.parametrize("plan", PLANS)
def test_a_run_resumed_in_any_stage_goes_on_bit_for_bit(data: Path, tmp_path: Path, plan: str) -> None:
    run(data, tmp_path / "whole", plan)
    for cut in (1, 3, 5):
        folder = tmp_path / str(cut)
        shutil.copytree(folder_of(tmp_path / "whole" / "checkpoints", cut), folder_of(folder / "checkpoints", cut))
        run(data, folder, plan, RESUME="yes")
        assert differing(state_after(tmp_path / "whole"), state_after(folder)) == [], cut


def test_compiled_kernels_stay_compiled_over_all_stages_and_resuming_is_exact(data: Path, tmp_path: Path) -> None:
    changed = {"PRECISION": "bf16", "FUSION": "compiled"}
    [said] = run(data, tmp_path / "whole", FROZEN, num_ranks=1, **changed)
    assert "recompile_limit" not in said
    shutil.copytree(folder_of(tmp_path / "whole" / "checkpoints", 3), folder_of(tmp_path / "cut" / "checkpoints", 3))
    run(data, tmp_path / "cut", FROZEN, num_ranks=1, RESUME="yes", **changed)
    assert differing(state_after(tmp_path / "whole"), state_after(tmp_path / "cut")) == []


def watched() -> Callable[[], list[list[str]]]:
    """Of each boundary the parameters of the stage before that are still there once the next one is entered."""
    alive: list[list[str]] = []
    enter = follow.enter

    def watching(trainer: Trainer, *args: Any, **named: Any) -> None:
        old = {name: weakref.ref(parameter) for name, parameter in trainer.model.named_parameters()}
        enter(trainer, *args, **named)
        alive.append([name for name, each in old.items() if each() is not None])

    follow.enter = watching  # in a process of its own
    return lambda: alive


def test_nothing_of_a_stage_lives_on_in_the_next(data: Path, tmp_path: Path) -> None:
    own = {"GROWTH": MSLT, "RANKS_PER_NODE": "1", "CHECKPOINT_INTERVAL_STEPS": "0"}
    [(_, _, alive)] = run_trial([tiny_environment(data, tmp_path / "result.txt", **COMMON | own)], watched)
    assert alive == [[], [], []]


def test_fresh_layers_are_drawn_from_the_trials_seed_and_the_stages_number() -> None:
    config = load({"NUM_LAYERS": "1", "HIDDEN_SIZE": "16", "NUM_HEADS": "2", "FFN_SIZE": "32", "DEVICE": "cpu"})

    def drawn(*seed: int) -> torch.Tensor:
        return follow.drawn_model(config, torch.device("cpu"), 64, seed).layers[0].ffn_in.weight.detach()

    state = torch.random.get_rng_state()
    assert torch.equal(drawn(1, 2), drawn(1, 2))
    assert not any(torch.equal(drawn(1, 2), drawn(*other)) for other in ((2, 1), (0, 3), (3, 0), (1, 3)))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_first_step_of_a_stage_has_its_names_in_a_trace(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path, MSLT, num_ranks=1, PROFILE_START_STEP="3", PROFILE_NUM_STEPS="1", PROFILE_DIR=str(tmp_path))
    names = {each.get("name") for each in json.loads((tmp_path / "rank_0.json").read_text())["traceEvents"]}
    assert {"step 3", "forward", "backward", "optimizer", "clip bucket 0"} <= names


def test_a_run_without_growth_and_one_of_a_single_stage_are_equal(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "none", "none")
    run(data, tmp_path / "one", "mslt:4@8")
    run(data, tmp_path / "two", "progressive_stacking:2,4@4,4")
    assert differing(state_after(tmp_path / "none"), state_after(tmp_path / "one")) == []
    assert differing(state_after(tmp_path / "none"), state_after(tmp_path / "two")) != []


@pytest.mark.parametrize("plan", [MSLT, FROZEN, STAGED])
@pytest.mark.parametrize(
    "changed",
    [
        {"OPTIMIZER": "lamb"},
        {"OPTIMIZER": "lans", "CLIP": "none"},
        {"CLIP": "global_before", "GRADIENT_ACCUMULATION_STEPS": "2"},
        {"CLIP": "global_after", "PRECISION": "bf16"},
        {"RANKS_PER_NODE": "1", "VIRTUAL_RANKS": "2"},
    ],
    ids=lambda changed: "-".join(changed.values()),
)
def test_it_works_with_all_else(data: Path, tmp_path: Path, plan: str, changed: dict[str, str]) -> None:
    num_ranks = int(changed.get("RANKS_PER_NODE", "2"))
    run(data, tmp_path, plan, num_ranks=num_ranks, **changed)
    state = weights(state_after(tmp_path))
    assert all(bool(tensor.isfinite().all()) for tensor in state.values())
    accuracies = [record.value for record in read_records(tmp_path / "result.txt") if record.key == "eval_accuracy"]
    assert len(accuracies) == STEPS


def test_two_virtual_ranks_are_two_processes_in_every_stage(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "real", MSLT)
    run(data, tmp_path / "virtual", MSLT, num_ranks=1, VIRTUAL_RANKS="2")
    assert differing(state_after(tmp_path / "real"), state_after(tmp_path / "virtual")) == []


def test_four_ranks_hold_equal_weights_after_every_stage(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "two", MSLT, BATCH_SIZE="8")
    run(data, tmp_path / "four", MSLT, num_ranks=4, BATCH_SIZE="4")
    two, four = (weights(state_after(tmp_path / name)) for name in ("two", "four"))
    assert max(float((two[name] - four[name]).abs().max()) for name in two) < 0.1


def test_a_checkpoint_of_another_plan_is_refused(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path, MSLT, MAX_STEPS="3")
    [said, *_] = run(data, tmp_path, "mslt:2,3,4@2,3,2+joint", log="2.txt", RESUME="yes", status=2)
    assert f"GROWTH was {MSLT}, is now mslt:2,3,4@2,3,2+joint" in said


def test_rewarming_lowers_the_rates_after_a_boundary_only(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "plain", STACKING)
    run(data, tmp_path / "rewarmed", STACKING + ":rewarm=2")
    assert differing(state_after(tmp_path / "plain", 2), state_after(tmp_path / "rewarmed", 2)) == []
    assert differing(state_after(tmp_path / "plain", 3), state_after(tmp_path / "rewarmed", 3)) != []
