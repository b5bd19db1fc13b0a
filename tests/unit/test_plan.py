"""The plan of every strategy: complete, without repeats, the same everywhere and from any step on, in little memory.

Beside each property stands a strategy that breaks it. What single strategies promise is in test_plan_promises.py.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bert.data import plan as plan_module
from benchmarks.bert.data.draw import Numbers, Shuffled
from benchmarks.bert.data.plan import (
    STRATEGIES,
    Layout,
    PlanError,
    Planner,
    check_plan,
    cost_of_ranks,
    efficiency,
    plan_epoch,
    plan_steps,
)
from benchmarks.bert.data.strata import Strata
from tests.support.plans import CHECKOUT, STRATA, few, layouts, lengths_for, seeds, wiki_lengths

every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
BROKEN = "broken"


class BrokenDraw(Shuffled):
    """A shuffle whose sample numbers are changed by `change(steps, places, numbers)`."""

    change: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]

    def epoch(self, *words: int) -> Numbers:
        numbers = super().epoch(*words)
        return lambda steps_G, places_GJ: type(self).change(steps_G, places_GJ, numbers(steps_G, places_GJ))


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def install(change: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]) -> None:
        draw = type("Draw", (BrokenDraw,), {"change": staticmethod(change)})
        strategy = replace(STRATEGIES["random"], draw=lambda lengths, batch, *_: draw(lengths, batch))
        monkeypatch.setitem(STRATEGIES, BROKEN, strategy)

    return install


def assert_complete(plan_GRK: np.ndarray, num_samples: int, layout: Layout) -> None:
    """Every sample once but for the last incomplete batch."""
    num_steps = num_samples // layout.global_batch
    planned = plan_GRK[plan_GRK >= 0]
    assert plan_GRK.shape[:2] == (num_steps, layout.num_ranks)
    assert ((plan_GRK >= 0).sum(axis=(1, 2)) == layout.global_batch).all()
    assert planned.max() < num_samples
    assert len(np.unique(planned)) == len(planned)


def assert_rank_alone_finds_its_row(lengths: np.ndarray, layout: Layout, strategy: str, seed: int, window: int) -> None:
    whole = plan_epoch(lengths, layout, STRATA, strategy=strategy, seed=seed, epoch=0)
    with mock.patch.object(plan_module, "_WINDOW", window):
        for rank in range(layout.num_ranks):
            planner = Planner(lengths, layout, STRATA, strategy=strategy)
            own = list(islice(plan_steps(planner, seed=seed, rank=rank), len(whole)))
            assert [row.tolist() for row in own] == [row[row >= 0].tolist() for row in whole[:, rank]]


def assert_suffix(planner: Planner, seed: int, rank: int, start: int) -> None:
    whole, resumed = (plan_steps(planner, seed=seed, rank=rank, start=first) for first in (0, start))
    expected = [row.tolist() for row in islice(whole, start, start + 8)]
    assert [row.tolist() for row in islice(resumed, 8)] == expected


def rows_of(planner: Planner, num_steps: int, **given: int) -> list[np.ndarray]:
    return list(islice(plan_steps(planner, **given), num_steps))


@every_strategy
@few
@given(st.data(), layouts, seeds)
def test_an_epoch_holds_every_sample_once_but_for_the_last_incomplete_batch(
    strategy: str, data: st.DataObject, layout: Layout, seed: int
) -> None:
    lengths = data.draw(lengths_for(layout.global_batch))
    plan = plan_epoch(lengths, layout, STRATA, strategy=strategy, seed=seed, epoch=0)
    assert plan.dtype == np.int64
    assert_complete(plan, len(lengths), layout)


@pytest.mark.parametrize(
    "change",
    [
        lambda steps, places, numbers: numbers // 2,  # each sample twice
        lambda steps, places, numbers: numbers + 1,  # one that does not exist
        lambda steps, places, numbers: np.where(steps[:, None] == 3, numbers[:1], numbers),  # a step comes again
    ],
)
def test_a_draw_that_repeats_or_invents_samples_is_seen(broken: Callable[..., None], change: Callable) -> None:
    broken(change)
    layout, lengths = Layout(2, 2, 3), wiki_lengths(60)
    assert_complete(plan_epoch(lengths, layout, STRATA, strategy="random", seed=1, epoch=0), 60, layout)
    with pytest.raises((AssertionError, IndexError)):
        assert_complete(plan_epoch(lengths, layout, STRATA, strategy=BROKEN, seed=1, epoch=0), 60, layout)


@every_strategy
@few
@given(st.data(), layouts, seeds, st.integers(1, 200))
def test_a_rank_finds_its_row_alone_and_in_windows_of_any_size(
    strategy: str, data: st.DataObject, layout: Layout, seed: int, window: int
) -> None:
    """Known fault 27 as well: ranks share a step's samples, none takes another's."""
    assert_rank_alone_finds_its_row(data.draw(lengths_for(layout.global_batch)), layout, strategy, seed, window)


def test_a_draw_that_depends_on_where_windows_begin_is_seen(broken: Callable[..., None]) -> None:
    lengths, layout = wiki_lengths(100), Layout(1, 2, 5)
    broken(lambda steps, places, numbers: np.roll(numbers, 1, axis=0))
    assert_rank_alone_finds_its_row(lengths, layout, "random", 1, 20)
    with pytest.raises(AssertionError):
        assert_rank_alone_finds_its_row(lengths, layout, BROKEN, 1, 20)


@every_strategy
@few
@given(st.data(), layouts, seeds, st.integers(0, 17))
def test_resuming_at_a_step_gives_the_suffix_also_across_epochs(
    strategy: str, data: st.DataObject, layout: Layout, seed: int, start: int
) -> None:
    planner = Planner(data.draw(lengths_for(layout.global_batch)), layout, STRATA, strategy=strategy)
    assert_suffix(planner, seed, rank=layout.num_ranks - 1, start=start)


def test_a_draw_that_goes_on_from_its_last_call_is_no_suffix(broken: Callable[..., None]) -> None:
    calls = iter(range(100))
    broken(lambda steps, places, numbers: (numbers + next(calls)) % 100)
    planner = Planner(wiki_lengths(100), Layout(1, 2, 5), STRATA, strategy=BROKEN)
    with mock.patch.object(plan_module, "_WINDOW", 10), pytest.raises(AssertionError):
        assert_suffix(planner, seed=1, rank=0, start=3)


def test_starting_at_a_step_draws_nothing_before_it(broken: Callable[..., None]) -> None:
    asked: list[int] = []

    def note(steps: np.ndarray, places: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        asked.extend(steps.tolist())
        return numbers

    broken(note)
    with mock.patch.object(plan_module, "_WINDOW", 10):
        planner = Planner(wiki_lengths(1000), Layout(1, 2, 5), STRATA, strategy=BROKEN)
        next(plan_steps(planner, seed=1, rank=0, start=50))
    assert asked == [50, 51]  # a window of ten samples of the rank's own


@every_strategy
def test_steps_go_through_the_epochs_in_order(strategy: str) -> None:
    layout, lengths = Layout(1, 2, 3), wiki_lengths(20)
    steps = rows_of(Planner(lengths, layout, STRATA, strategy=strategy), 7, seed=5, rank=1)
    epochs = [plan_epoch(lengths, layout, STRATA, strategy=strategy, seed=5, epoch=e)[:, 1] for e in range(3)]
    expected = [row[row >= 0].tolist() for epoch in epochs for row in epoch]
    assert [row.tolist() for row in steps] == expected[:7]


@every_strategy
def test_a_row_lists_its_samples_longest_first(strategy: str) -> None:
    lengths = wiki_lengths(400)
    for row in rows_of(Planner(lengths, Layout(2, 2, 5), STRATA, strategy=strategy), 20, seed=1, rank=3):
        assert (np.diff(lengths[row].astype(int)) <= 0).all()


@every_strategy
def test_epochs_differ_and_seeds_differ(strategy: str) -> None:
    lengths, layout = wiki_lengths(400), Layout(1, 2, 4)
    plans = [
        plan_epoch(lengths, layout, STRATA, strategy=strategy, seed=seed, epoch=epoch)
        for seed, epoch in ((1, 0), (1, 1), (2, 0), (0, 1))
    ]
    for i, plan in enumerate(plans):
        assert not any(np.array_equal(plan, other) for other in plans[:i])


@every_strategy
def test_the_global_generators_neither_change_the_plan_nor_are_changed(strategy: str) -> None:
    """Known fault 23: a rank whose generator stood elsewhere took other samples."""
    lengths, layout = wiki_lengths(400), Layout(2, 2, 4)
    plans = []
    for seed in (0, 1):
        random.seed(seed)
        np.random.seed(seed)  # the global generator is what this is about
        before = random.getstate(), np.random.get_state()[1].tolist()
        plans.append(plan_epoch(lengths, layout, STRATA, strategy=strategy, seed=9, epoch=1))
        assert before == (random.getstate(), np.random.get_state()[1].tolist())
    assert np.array_equal(*plans)


def test_a_draw_from_the_global_generator_would_differ(broken: Callable[..., None]) -> None:
    broken(lambda steps, places, numbers: np.random.permutation(numbers.T).T)  # known fault 23
    plans = []
    for seed in (0, 1):
        np.random.seed(seed)
        plans.append(plan_epoch(wiki_lengths(400), Layout(2, 2, 4), STRATA, strategy=BROKEN, seed=9, epoch=1))
    assert not np.array_equal(*plans)


def test_another_process_with_another_hash_seed_makes_the_same_plans() -> None:
    code = (
        "import hashlib, numpy as np\n"
        "from benchmarks.bert.data.plan import STRATEGIES, Layout, Strata, plan_epoch\n"
        "lengths = (np.arange(999) * 7919 % 512 + 1).astype(np.uint16)\n"
        "for strategy in sorted(STRATEGIES):\n"
        "    plan = plan_epoch(lengths, Layout(2, 3, 4), Strata(4, 512), strategy=strategy, seed=7, epoch=3)\n"
        "    print(strategy, hashlib.sha256(plan.tobytes()).hexdigest())\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(CHECKOUT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    lengths = (np.arange(999) * 7919 % 512 + 1).astype(np.uint16)
    for line in outputs.pop().splitlines():
        strategy, digest = line.split()
        here = plan_epoch(lengths, Layout(2, 3, 4), Strata(4, 512), strategy=strategy, seed=7, epoch=3)
        assert hashlib.sha256(here.tobytes()).hexdigest() == digest


def peak_bytes(plan: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        plan()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def ten_million() -> np.ndarray:
    return np.resize(wiki_lengths(100_000), 10_000_000)


@every_strategy
def test_planning_ten_million_samples_for_1024_ranks_holds_no_array_of_all_of_them(
    strategy: str, ten_million: np.ndarray
) -> None:
    def plan() -> object:
        planner = Planner(ten_million, Layout(128, 8, 16), STRATA, strategy=strategy)
        return rows_of(planner, 20, seed=1, rank=1000, start=500)

    assert peak_bytes(plan) < 4 * len(ten_million)


def test_a_permutation_of_all_samples_would_be_larger(ten_million: np.ndarray) -> None:
    assert peak_bytes(lambda: np.random.default_rng(1).permutation(len(ten_million))) >= 8 * len(ten_million)


def test_lengths_may_be_a_memory_map(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("lengths") / "lengths.npy"
    np.save(path, wiki_lengths(500))
    mapped = np.load(path, mmap_mode="r")
    for strategy in STRATEGIES:
        plans = [
            plan_epoch(lengths, Layout(2, 2, 3), STRATA, strategy=strategy, seed=1, epoch=0)
            for lengths in (mapped, wiki_lengths(500))
        ]
        assert np.array_equal(*plans)


def test_efficiency_is_the_mean_over_the_greatest_rank_weighted_by_time() -> None:
    plan_GRK = np.array([[[0, 1], [2, -1]], [[0, 0], [1, 1]]])
    cost_GR = cost_of_ranks(plan_GRK, np.array([10, 20, 40], np.uint16))
    assert cost_GR.tolist() == [[30, 40], [20, 40]]
    assert efficiency(cost_GR) == pytest.approx((35 + 30) / (40 + 40))


@every_strategy
def test_fewer_samples_than_a_global_batch_is_an_error_with_both_numbers(strategy: str) -> None:
    layout = Layout(2, 4, 3)
    with pytest.raises(PlanError, match=r"^23 training samples .* global batch of 24 \(8 ranks x 3\)"):
        Planner(wiki_lengths(23), layout, STRATA, strategy=strategy)
    with pytest.raises(PlanError, match=r"^0 training samples"):
        Planner(wiki_lengths(0), layout, STRATA, strategy=strategy)
    check_plan(24, layout)
