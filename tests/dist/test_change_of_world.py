"""A run that goes on with another number of ranks of the same global batch: the samples that were left, and no others.

And what one rank's loader meets ends the run on all ranks, with that reason.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from benchmarks.bert.checkpoint.store import REPLICATED, folder_of
from benchmarks.bert.data.ahead import read_ahead
from benchmarks.bert.data.loader import micro_batches
from benchmarks.bert.data.plan import STRATEGIES, Layout, Planner, plan_steps
from benchmarks.bert.data.strata import Strata
from benchmarks.bert.random_states import drawn
from tests.support.checkpoints import at_step, errors, said, statuses, stop_of, trial
from tests.support.ranks import run_trial
from tests.support.stores import MAX_LENGTH, Made, make_folder
from tests.support.tiny import make_tiny_data, tiny_environment

CPU = torch.device("cpu")
GLOBAL_BATCH = 12
BEFORE = Layout(1, 4, 3)
SAME_NODES = [Layout(1, 1, 12), Layout(1, 6, 2)]
OTHER_NODES = [Layout(2, 2, 3), Layout(3, 4, 1)]
promising = [name for name, each in STRATEGIES.items() if each.promises.any_nodes]
not_promising = [name for name in STRATEGIES if name not in promising]
CUT = 5  # steps


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_folder(tmp_path_factory.mktemp("made"), (60, 70, 50))


def read_by(made: Made, layout: Layout, strategy: str, steps: range) -> list[list[tuple[int, ...]]]:
    """The tokens of the samples that all ranks together were given at each of these steps, in order."""
    per_rank = [list(_of_rank(made, layout, strategy, steps, rank)) for rank in range(layout.num_ranks)]
    return [sorted(sample for rank in per_rank for sample in rank[step]) for step in range(len(steps))]


def _of_rank(made: Made, layout: Layout, strategy: str, steps: range, rank: int) -> Iterator[list[tuple[int, ...]]]:
    planner = Planner(made.data.lengths, layout, Strata(2, MAX_LENGTH), strategy=strategy)
    store = made.data.open("headers")
    plan = read_ahead(plan_steps(planner, seed=3, rank=rank, start=steps.start), store.prefetch)
    for [batch] in islice(micro_batches(store, plan, num_micro_batches=1, device=CPU), len(steps)):
        yield [tuple(tokens.tolist()) for tokens in batch.tokens_T.split(batch.layout.lengths)]


def epoch_of(made: Made) -> int:
    return len(made.data.lengths) // GLOBAL_BATCH


@pytest.mark.parametrize("after", [*SAME_NODES, *OTHER_NODES])
@pytest.mark.parametrize("strategy", promising)
def test_resumed_with_other_ranks_the_steps_hold_the_samples_that_were_left(
    made: Made, strategy: str, after: Layout
) -> None:
    end = 2 * epoch_of(made)  # within the second epoch too
    whole = read_by(made, BEFORE, strategy, range(end))
    assert read_by(made, after, strategy, range(CUT, end)) == whole[CUT:]
    epoch = [sample for step in whole[: epoch_of(made)] for sample in step]
    assert len(set(epoch)) == len(epoch) == epoch_of(made) * GLOBAL_BATCH


@pytest.mark.parametrize("strategy", not_promising)
def test_where_it_is_not_promised_of_nodes_it_holds_for_ranks_alone(made: Made, strategy: str) -> None:
    steps = range(CUT, epoch_of(made))
    whole = read_by(made, BEFORE, strategy, steps)
    assert [read_by(made, after, strategy, steps) == whole for after in SAME_NODES] == [True, True]
    assert [read_by(made, after, strategy, steps) == whole for after in OTHER_NODES] == [False, False]


@pytest.mark.parametrize("strategy", ["random", "stratified_presort"])
def test_another_global_batch_is_another_order(made: Made, strategy: str) -> None:
    """The must-fail twin."""
    whole = read_by(made, BEFORE, strategy, range(CUT, CUT + 3))
    assert [step[:9] for step in read_by(made, Layout(1, 3, 3), strategy, range(CUT, CUT + 3))] != [
        s[:9] for s in whole
    ]


# Whole runs: RESUME_WORLD


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_data(tmp_path_factory.mktemp("data"))


NO_DROPOUT = {"DROPOUT": "0.0", "CLIP": "none"}
ALONE = {"num_ranks": 1, "BATCH_SIZE": "64"}
ANY = {"RESUME": "yes", "RESUME_WORLD": "any"}


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    tensors = load_file(folder_of(folder / "checkpoints", step) / REPLICATED)
    return {name: tensor for name, tensor in tensors.items() if name.startswith("model/")}


def test_a_run_goes_on_with_other_ranks_where_it_may(data: Path, tmp_path: Path) -> None:
    """On two ranks, then on one, then on two again; without dropout the steps are the same but for rounding."""
    trial(data, tmp_path / "whole", name="whole.txt", MAX_STEPS="8", **NO_DROPOUT)
    trial(data, tmp_path, name="1.txt", MAX_STEPS="4", **NO_DROPOUT)

    refused = trial(data, tmp_path, name="2.txt", RESUME="yes", MAX_STEPS="6", **ALONE, **NO_DROPOUT)
    assert statuses(refused) == [2]
    assert any("BATCH_SIZE was 32, is now 64; RANKS_PER_NODE was 2, is now 1" in line for line in said(refused))
    smaller = trial(data, tmp_path, name="3.txt", MAX_STEPS="6", num_ranks=1, BATCH_SIZE="32", **ANY, **NO_DROPOUT)
    assert statuses(smaller) == [2]
    assert any("another run's: GLOBAL_BATCH was 64, is now 32" in line for line in said(smaller))

    alone = trial(data, tmp_path, name="4.txt", MAX_STEPS="6", **ALONE, **ANY, **NO_DROPOUT)
    note = "warning: not bit for bit the run that it was: its BATCH_SIZE, RANKS_PER_NODE was another"
    assert note in said(alone)
    two = trial(data, tmp_path, name="5.txt", MAX_STEPS="8", **ANY, **NO_DROPOUT)
    assert note in said(two)
    assert stop_of(tmp_path / "5.txt")["reason"].startswith(("accuracy", "resumed"))
    assert at_step(tmp_path / "checkpoints", 8).step == 8
    found, expected, earlier = weights(tmp_path, 8), weights(tmp_path / "whole", 8), weights(tmp_path / "whole", 6)
    distance = max(float((found[name] - expected[name]).abs().max()) for name in expected)
    step = max(float((earlier[name] - expected[name]).abs().max()) for name in expected)
    assert distance < 0.2 * step  # a rank's loss is the mean over its own masked tokens, so sums are not the same


def test_a_rank_without_a_file_draws_states_of_its_own() -> None:
    states = [
        drawn(CPU, seed, step, [rank])["random/cpu"]
        for seed, step, rank in [(7, 4, 1), (7, 4, 1), (7, 4, 2), (7, 5, 1), (8, 4, 1)]
    ]
    assert torch.equal(states[0], states[1])
    assert len({tuple(state[0].tolist()) for state in states}) == 4
    torch.set_rng_state(states[2][0])


# The loader of one rank fails: known fault 29


def ended_on_rank_1() -> None:
    """Rank 1's read-ahead thread is ended at its fifth step."""
    from benchmarks.bert.data.store import SampleStore

    count = itertools.count(1)

    def prefetch(self: SampleStore, numbers: np.ndarray) -> None:
        if next(count) == 5:
            raise SystemExit("by hand")

    if os.environ["RANK"] == "1":
        SampleStore.prefetch = prefetch  # type: ignore[assignment, method-assign]


def failing_disk_on_rank_1() -> None:
    """Rank 1's disk gives nothing any more after some reads."""
    from benchmarks.bert.data import store

    reading, count = os.pread, itertools.count()

    def pread(descriptor: int, size: int, start: int) -> bytes:
        if next(count) > 400:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return reading(descriptor, size, start)

    if os.environ["RANK"] == "1":
        store.os.pread = pread  # type: ignore[assignment]


def run_with(data: Path, folder: Path, hook: Callable[[], None]) -> list[tuple[int, str, object]]:
    changed = {"TARGET_ACCURACY": "0.99", "EVAL_START_SAMPLES": "64000", "EVAL_INTERVAL_SAMPLES": "64000"}
    changed["COLLECTIVE_TIMEOUT_S"] = "10"  # a failed rank stays here, so the other one waits so long
    environment = tiny_environment(data, folder / "result.txt", **changed, MAX_STEPS="4000")
    return run_trial([environment] * 2, hook)


def test_a_loader_thread_that_is_ended_ends_the_run_on_all_ranks_with_that_reason(data: Path, tmp_path: Path) -> None:
    ranks = run_with(data, tmp_path, ended_on_rank_1)
    assert statuses(ranks) == [1, 1]
    reason = "rank 1: LoaderError: the reading thread was ended by SystemExit: by hand"
    assert errors(ranks) == [f"error: {reason}"]
    assert stop_of(tmp_path / "result.txt")["reason"].removeprefix("OtherRankError: ") == reason


def test_a_disk_that_fails_one_rank_is_a_refusal_on_all(data: Path, tmp_path: Path) -> None:
    ranks = run_with(data, tmp_path, failing_disk_on_rank_1)
    assert statuses(ranks) == [2, 2]
    assert len(errors(ranks)) == 1
    assert "hdf5: cannot read it (Input/output error); mend the disk" in errors(ranks)[0]
    assert "rank 1: ShardError: " in stop_of(tmp_path / "result.txt")["reason"]
