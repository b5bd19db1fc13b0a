"""One process that acts as several ranks: what as many processes do, bit for bit where an order of summing allows it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.bert.checkpoint.store import REPLICATED, folder_of
from benchmarks.bert.comm.hook import CLIP_VARIANTS
from benchmarks.bert.random_states import RandomStates
from tests.support.ranks import run_trial
from tests.support.records import read_records
from tests.support.tiny import make_tiny_data, tiny_environment

STEPS = 6
COMMON = {
    "DROPOUT": "0.1",
    "MAX_NORM": "0.2",  # below the norms of the first steps
    "MAX_STEPS": str(STEPS),
    "TARGET_ACCURACY": "0.99",
    "EVAL_START_SAMPLES": "48",
    "EVAL_INTERVAL_SAMPLES": "48",
    "CHECKPOINT_INTERVAL_STEPS": "3",
    "BATCH_SIZE": "8",
}
State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_data(tmp_path_factory.mktemp("data"))


def run(
    data: Path, folder: Path, num_processes: int, num_virtual: int, *, log: str = "result.txt", **changed: str
) -> list[str]:
    """What each process says on stderr; the run ends without reaching its target."""
    own = {
        "RANKS_PER_NODE": str(num_processes),
        "VIRTUAL_RANKS": str(num_virtual),
        "CHECKPOINT_DIR": str(folder / "checkpoints"),
    }
    environment = tiny_environment(data, folder / log, **COMMON | own | changed)
    ranks = run_trial([environment] * num_processes)
    assert [status for status, *_ in ranks] == [1] * num_processes, ranks
    return [said for _, said, _ in ranks]


def state_after(folder: Path, step: int = STEPS) -> State:
    return load_file(folder_of(folder / "checkpoints", step) / REPLICATED)


def logged(folder: Path, key: str) -> list[object]:
    return [record.value for record in read_records(folder / "result.txt") if record.key == key]


def differing(some: State, others: State) -> list[str]:
    assert some.keys() == others.keys()
    return [name for name in some if not torch.equal(some[name], others[name])]


def distance(some: State, others: State) -> float:
    return max(float((some[name] - others[name]).abs().max()) for name in some)


@pytest.mark.parametrize("micro_batches", ["1", "2"])
@pytest.mark.parametrize("clip", CLIP_VARIANTS)
def test_two_virtual_ranks_are_two_processes_bit_for_bit(
    data: Path, tmp_path: Path, clip: str, micro_batches: str
) -> None:
    changed = {"CLIP": clip, "GRADIENT_ACCUMULATION_STEPS": micro_batches}
    run(data, tmp_path / "real", 2, 1, **changed)
    run(data, tmp_path / "virtual", 1, 2, **changed)
    assert differing(state_after(tmp_path / "real"), state_after(tmp_path / "virtual")) == []
    for key in ("eval_accuracy", "global_batch_size", "seed"):
        assert logged(tmp_path / "real", key) == logged(tmp_path / "virtual", key) != []
    assert logged(tmp_path / "virtual", "gradient_accumulation_steps") == [2 * int(micro_batches)]


@pytest.mark.parametrize("loading", ["random", "least_loaded", "stratified_local"])
def test_so_they_are_with_other_ways_of_dealing_and_lamb(data: Path, tmp_path: Path, loading: str) -> None:
    changed = {"LOADING": loading, "OPTIMIZER": "lamb", "GRADIENT_ACCUMULATION_STEPS": "2"}
    run(data, tmp_path / "real", 2, 1, **changed)
    run(data, tmp_path / "virtual", 1, 2, **changed)
    assert differing(state_after(tmp_path / "real"), state_after(tmp_path / "virtual")) == []


def test_a_process_that_only_cuts_its_batch_is_not_two_ranks(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "real", 2, 1)
    run(data, tmp_path / "cut", 1, 1, BATCH_SIZE="16", GRADIENT_ACCUMULATION_STEPS="2")
    assert len(differing(state_after(tmp_path / "real"), state_after(tmp_path / "cut"))) > 10


def test_four_ranks_on_one_two_and_four_processes_differ_by_rounding_only(data: Path, tmp_path: Path) -> None:
    for num_processes in (4, 2, 1):
        run(data, tmp_path / str(num_processes), num_processes, 4 // num_processes, BATCH_SIZE="4")
    run(data, tmp_path / "other seed", 1, 4, BATCH_SIZE="4", SEED="8")
    one, two, four, other = (state_after(tmp_path / name) for name in ("1", "2", "4", "other seed"))
    assert max(distance(one, four), distance(two, four)) < 2e-5
    assert distance(other, four) > 1e-2


def test_a_run_resumed_in_the_middle_goes_on_bit_for_bit(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "whole", 1, 3)
    run(data, tmp_path / "cut", 1, 3, MAX_STEPS="3", DECAY_STEPS=str(STEPS), EVAL_START_SAMPLES="24")
    run(data, tmp_path / "cut", 1, 3, log="2.txt", RESUME="yes", DECAY_STEPS=str(STEPS))
    assert differing(state_after(tmp_path / "whole"), state_after(tmp_path / "cut")) == []


def test_a_run_of_processes_goes_on_as_virtual_ranks_only_where_that_is_allowed(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path, 2, 1, MAX_STEPS="3", DECAY_STEPS=str(STEPS))
    changed = {"RESUME": "yes", "DECAY_STEPS": str(STEPS), "RANKS_PER_NODE": "1", "VIRTUAL_RANKS": "2"}
    environment = tiny_environment(data, tmp_path / "refused.txt", **COMMON | changed)
    [(status, said, _)] = run_trial([environment | {"CHECKPOINT_DIR": str(tmp_path / "checkpoints")}])
    assert status == 2
    assert "RANKS_PER_NODE was 2, is now 1; VIRTUAL_RANKS was 1, is now 2" in said
    [said] = run(data, tmp_path, 1, 2, log="3.txt", RESUME="yes", DECAY_STEPS=str(STEPS), RESUME_WORLD="any")
    assert "its RANKS_PER_NODE, VIRTUAL_RANKS was another" in said


def draws(states: RandomStates, turns: list[int]) -> list[float]:
    drawn = []
    for turn in turns:
        states.turn_to(turn)
        drawn.append(float(torch.rand(())))
    return drawn


def test_each_rank_draws_its_own_numbers_whoever_draws_between() -> None:
    cpu = torch.device("cpu")
    with torch.random.fork_rng([]):
        alone = [draws(RandomStates(cpu, 7, [rank]), [0, 0, 0]) for rank in (2, 3)]
        states = RandomStates(cpu, 7, [2, 3])
        mixed = draws(states, [0, 1, 1, 0])
        kept = states.tensors()
        mixed += draws(states, [1, 0])
        states.restore(kept)
        again = draws(states, [1, 0])
    assert alone[0] != alone[1]
    assert mixed == [alone[0][0], alone[1][0], alone[1][1], alone[0][1], alone[1][2], alone[0][2]]
    assert again == mixed[-2:]
    assert kept["random/cpu"].shape[0] == 2
