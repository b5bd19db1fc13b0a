"""Every loading strategy's plan: complete, without repeats, the same everywhere, level and without drift."""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.bert.data.plan import (
    STRATEGIES,
    Layout,
    PlanError,
    Strata,
    check_plan,
    deal_all_presorted,
    deal_in_turn,
    draw_stratified,
    imbalance,
    plan_epoch,
    plan_steps,
)
from benchmarks.bert.data.strata import stratum_of

CHECKOUT = Path(__file__).parents[2]
WIKI_HISTOGRAM = CHECKOUT.parent / "shared" / "data" / "wiki_length_histogram.csv"
MAX_LENGTH = 512
STRATA = Strata(4, MAX_LENGTH)

few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
seeds = st.integers(0, 2**31 - 1)
layouts = st.builds(Layout, st.integers(1, 4), st.integers(1, 5), st.integers(1, 6))


@st.composite
def lengths_for(draw: st.DrawFn, batch: int, max_batches: int = 5) -> np.ndarray:
    """Lengths of up to `max_batches` global batches and a bit; of one kind, of all kinds or nearly all at the top."""
    count = draw(st.integers(batch, (max_batches + 1) * batch - 1))
    low = draw(st.sampled_from([1, 100, MAX_LENGTH]))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    return rng.integers(low, MAX_LENGTH + 1, count).astype(np.uint16)


@functools.cache
def wiki_lengths(count: int) -> np.ndarray:
    """Lengths that spread as the benchmark's do: from its histogram, or a mix with its mean and its full quarter."""
    rng = np.random.default_rng(1)
    if WIKI_HISTOGRAM.exists():
        length, frequency = np.loadtxt(WIKI_HISTOGRAM, delimiter=",", skiprows=1).T
        return rng.choice(length, count, p=frequency / frequency.sum()).astype(np.uint16)
    shorter = 5 + (MAX_LENGTH - 5) * rng.random(count) ** 2
    return np.where(rng.random(count) < 0.25, MAX_LENGTH, shorter).astype(np.uint16)


@functools.cache
def wiki_plan(strategy: str, layout: Layout, count: int) -> np.ndarray:
    return plan_epoch(wiki_lengths(count), layout, STRATA, strategy=strategy, seed=3, epoch=0)


def splits(batch: int) -> list[Layout]:
    """Every way to share a global batch among nodes and ranks."""
    divisors = [d for d in range(1, batch + 1) if batch % d == 0]
    return [Layout(n, r, batch // (n * r)) for n in divisors for r in divisors if batch % (n * r) == 0]


def drift(plan_GRK: np.ndarray, lengths: np.ndarray) -> float:
    """Correlation between the step and the mean length of its samples."""
    mean_G = lengths[plan_GRK].astype(float).mean(axis=(1, 2))
    return float(np.corrcoef(np.arange(len(mean_G)), mean_G)[0, 1])


def favour(plan_GRK: np.ndarray, lengths: np.ndarray) -> float:
    """How far the mean tokens of a rank lie from those of all, as a share."""
    mean_R = lengths[plan_GRK].astype(float).mean(axis=(0, 2))
    return float(np.abs(mean_R / mean_R.mean() - 1).max())


@every_strategy
@few
@given(st.data(), layouts, seeds)
def test_an_epoch_holds_every_sample_once_but_for_the_last_incomplete_batch(
    strategy: str, data: st.DataObject, layout: Layout, seed: int
) -> None:
    lengths = data.draw(lengths_for(layout.global_batch))
    plan = plan_epoch(lengths, layout, STRATA, strategy=strategy, seed=seed, epoch=0)
    num_steps = len(lengths) // layout.global_batch
    assert plan.shape == (num_steps, layout.num_nodes * layout.ranks_per_node, layout.per_rank)
    assert plan.dtype == np.int64
    assert plan.min() >= 0
    assert plan.max() < len(lengths)
    assert len(np.unique(plan)) == plan.size == num_steps * layout.global_batch


@every_strategy
@few
@given(st.data(), st.integers(1, 36), seeds)
def test_the_samples_of_a_step_are_the_same_for_any_split_of_the_global_batch(
    strategy: str, data: st.DataObject, batch: int, seed: int
) -> None:
    lengths = data.draw(lengths_for(batch))
    one, other = data.draw(st.sampled_from(splits(batch))), data.draw(st.sampled_from(splits(batch)))
    sets = [
        np.sort(
            plan_epoch(lengths, layout, STRATA, strategy=strategy, seed=seed, epoch=2).reshape(-1, batch), axis=1
        ).tolist()
        for layout in (one, other)
    ]
    assert sets[0] == sets[1]


@every_strategy
@few
@given(st.data(), layouts, seeds, st.integers(0, 17))
def test_resuming_at_a_step_gives_the_suffix_also_across_epochs(
    strategy: str, data: st.DataObject, layout: Layout, seed: int, start: int
) -> None:
    lengths = data.draw(lengths_for(layout.global_batch))
    whole, resumed = (
        plan_steps(lengths, layout, STRATA, strategy=strategy, seed=seed, start=first) for first in (0, start)
    )
    expected = np.array(list(islice(whole, start, start + 8)))
    assert np.array_equal(np.array(list(islice(resumed, 8))), expected)


@every_strategy
def test_steps_go_through_the_epochs_in_order(strategy: str) -> None:
    layout = Layout(1, 2, 3)
    lengths = wiki_lengths(20)
    steps = list(islice(plan_steps(lengths, layout, STRATA, strategy=strategy, seed=5), 7))
    epochs = [plan_epoch(lengths, layout, STRATA, strategy=strategy, seed=5, epoch=e) for e in range(3)]
    assert np.array_equal(np.array(steps), np.concatenate(epochs)[:7])


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
    assert len(outputs.pop().splitlines()) == len(STRATEGIES)


@few
@given(st.data(), layouts, seeds)
def test_stratified_gives_every_rank_its_part_of_every_quota(data: st.DataObject, layout: Layout, seed: int) -> None:
    lengths = data.draw(lengths_for(layout.global_batch))
    plan = plan_epoch(lengths, layout, STRATA, strategy="stratified", seed=seed, epoch=0)
    stratum_GRK = stratum_of(lengths, 4, MAX_LENGTH)[plan]
    for s in range(4):
        of_rank_GR = (stratum_GRK == s).sum(axis=2)
        quota_G1 = of_rank_GR.sum(axis=1, keepdims=True)
        assert (of_rank_GR >= quota_G1 // layout.num_ranks).all()
        assert (of_rank_GR <= -(-quota_G1 // layout.num_ranks)).all()


@few
@given(st.data(), layouts, seeds)
def test_stratified_presort_gives_every_node_its_part_of_every_quota(
    data: st.DataObject, layout: Layout, seed: int
) -> None:
    lengths = data.draw(lengths_for(layout.global_batch))
    plan = plan_epoch(lengths, layout, STRATA, strategy="stratified_presort", seed=seed, epoch=0)
    stratum_GNJ = stratum_of(lengths, 4, MAX_LENGTH)[plan].reshape(len(plan), layout.num_nodes, -1)
    for s in range(4):
        of_node_GN = (stratum_GNJ == s).sum(axis=2)
        quota_G1 = of_node_GN.sum(axis=1, keepdims=True)
        assert (of_node_GN >= quota_G1 // layout.num_nodes).all()
        assert (of_node_GN <= -(-quota_G1 // layout.num_nodes)).all()


@few
@given(st.data(), layouts, seeds)
def test_presorted_ranks_of_a_node_differ_by_less_than_one_longest_sample(
    data: st.DataObject, layout: Layout, seed: int
) -> None:
    lengths = data.draw(lengths_for(layout.global_batch))
    for strategy, num_groups in (("stratified_presort", layout.num_nodes), ("global_presort", 1)):
        plan = plan_epoch(lengths, layout, STRATA, strategy=strategy, seed=seed, epoch=0)
        tokens_GNR = lengths[plan].astype(int).sum(axis=2).reshape(len(plan), num_groups, -1)
        assert np.ptp(tokens_GNR, axis=2).max() <= MAX_LENGTH - lengths.min()


def test_each_part_of_the_strategy_levels_the_ranks_further() -> None:
    lengths, layout = wiki_lengths(20_000), Layout(2, 8, 16)
    by_strategy = {strategy: imbalance(wiki_plan(strategy, layout, 20_000), lengths) for strategy in STRATEGIES}
    assert by_strategy["random"] > by_strategy["stratified"] + 0.1
    assert by_strategy["stratified"] > by_strategy["stratified_presort"] + 0.02
    assert 1 <= by_strategy["global_presort"] < by_strategy["stratified_presort"] < 1.05


def test_dealing_the_sorted_samples_without_turning_back_is_worse() -> None:
    lengths, layout = wiki_lengths(20_000), Layout(1, 8, 16)
    batches = draw_stratified(lengths, layout.global_batch, STRATA, np.random.default_rng(0))
    serpentine, descending = (
        np.stack(
            [
                deal(batch[np.argsort(-lengths[batch].astype(int), kind="stable")], lengths, layout, 0)
                for batch in batches
            ]
        )
        for deal in (deal_all_presorted, deal_in_turn)
    )
    assert imbalance(serpentine, lengths) < 1.03 < 1.05 < imbalance(descending, lengths)


def test_imbalance_is_the_fullest_rank_over_the_mean_averaged_over_steps() -> None:
    plan_GRK = np.array([[[0, 1], [2, 3]], [[0, 0], [1, 1]]])
    assert imbalance(plan_GRK, np.array([10, 20, 30, 40], np.uint16)) == pytest.approx((70 / 50 + 40 / 30) / 2)


@every_strategy
@pytest.mark.parametrize("layout", [Layout(1, 2, 8), Layout(1, 4, 3), Layout(2, 2, 4)])
def test_the_mean_length_does_not_drift_over_an_epoch(strategy: str, layout: Layout) -> None:
    """Known fault 25. Chance alone gives a correlation of one over the root of the number of steps."""
    plan = wiki_plan(strategy, layout, 40_000)
    assert abs(drift(plan, wiki_lengths(40_000))) < 3.5 / len(plan) ** 0.5


def test_batches_sorted_by_length_would_drift() -> None:
    lengths = wiki_lengths(40_000)
    assert drift(np.argsort(lengths, kind="stable").reshape(-1, 2, 8), lengths) > 0.9


@every_strategy
@pytest.mark.parametrize("layout", [Layout(1, 2, 4), Layout(1, 4, 3), Layout(2, 2, 4)])
def test_no_rank_is_favoured_over_an_epoch(strategy: str, layout: Layout) -> None:
    plan = wiki_plan(strategy, layout, 80_000)
    assert favour(plan, wiki_lengths(80_000)) < 0.01


def test_no_rank_is_favoured_where_quotas_alternate_with_the_steps() -> None:
    """One short sample to three long ones, six to a batch: every other step has one short sample too many to share."""
    lengths = np.where(np.arange(24_000) % 4 == 0, 10, MAX_LENGTH)
    layout, strata = Layout(1, 2, 3), Strata(2, MAX_LENGTH)
    plan = plan_epoch(lengths, layout, strata, strategy="stratified", seed=0, epoch=0)
    assert favour(plan, lengths) < 0.01
    batches = draw_stratified(lengths, layout.global_batch, strata, np.random.default_rng(0))
    rotated = np.stack([deal_in_turn(batch, lengths, layout, step) for step, batch in enumerate(batches)])
    assert favour(rotated, lengths) > 0.1


@every_strategy
def test_fewer_samples_than_a_global_batch_is_an_error_with_both_numbers(strategy: str) -> None:
    layout = Layout(2, 4, 3)
    with pytest.raises(PlanError, match=r"^23 training samples .* global batch of 24 \(8 ranks x 3\)"):
        plan_epoch(wiki_lengths(23), layout, STRATA, strategy=strategy, seed=0, epoch=0)
    with pytest.raises(PlanError, match=r"^0 training samples"):
        next(plan_steps(wiki_lengths(0), layout, STRATA, strategy=strategy, seed=0))
    check_plan(24, layout)
