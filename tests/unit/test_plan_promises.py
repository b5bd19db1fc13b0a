"""What each loading strategy promises, tried on every strategy; beside each promise one that does not keep it."""

from __future__ import annotations

import functools
import heapq
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bert.config import ConfigError, load
from benchmarks.bert.data.deal import alone, least_loaded, serpentine, token_work, work_of
from benchmarks.bert.data.plan import STRATEGIES, Layout, Planner, Promises, cost_of_ranks, efficiency, plan_epoch
from benchmarks.bert.data.strata import Strata
from tests.support.plans import MAX_LENGTH, STRATA, few, layouts, lengths_for, seeds, wiki_lengths

every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
WORK = work_of(MAX_LENGTH)


def promising(name: str, kept: bool = True) -> pytest.MarkDecorator:
    """The strategies that promise it, or those that do not."""
    chosen = [key for key, each in STRATEGIES.items() if getattr(each.promises, name) == kept]
    return pytest.mark.parametrize("strategy", chosen)


@functools.cache
def wiki_plan(strategy: str, layout: Layout, count: int) -> np.ndarray:
    return plan_epoch(wiki_lengths(count), layout, STRATA, strategy=strategy, seed=3, epoch=0)


def planned(lengths: np.ndarray, layout: Layout, strategy: str, seed: int = 0, strata: Strata = STRATA) -> np.ndarray:
    return plan_epoch(lengths, layout, strata, strategy=strategy, seed=seed, epoch=0)


def sets_of(plan_GRK: np.ndarray) -> list[list[int]]:
    """The samples of each step, in order of their numbers."""
    return [sorted(row[row >= 0].tolist()) for row in plan_GRK]


def splits(batch: int) -> list[Layout]:
    """Every way to share a global batch among nodes and ranks."""
    divisors = [d for d in range(1, batch + 1) if batch % d == 0]
    return [Layout(n, r, batch // (n * r)) for n in divisors for r in divisors if batch % (n * r) == 0]


def test_every_promise_is_kept_by_some_strategy_and_not_by_another() -> None:
    for promise in fields(Promises)[1:]:
        assert {getattr(each.promises, promise.name) for each in STRATEGIES.values()} == {True, False}
    assert len({each.promises.balance for each in STRATEGIES.values()}) == len(STRATEGIES)


# any_nodes


@promising("any_nodes")
@few
@given(st.data(), st.integers(1, 36), seeds)
def test_the_samples_of_a_step_are_the_same_for_any_split_of_the_global_batch(
    strategy: str, data: st.DataObject, batch: int, seed: int
) -> None:
    lengths = data.draw(lengths_for(batch))
    one, other = data.draw(st.sampled_from(splits(batch))), data.draw(st.sampled_from(splits(batch)))
    assert sets_of(planned(lengths, one, strategy, seed)) == sets_of(planned(lengths, other, strategy, seed))


@promising("any_nodes", kept=False)
@few
@given(st.data(), st.integers(1, 4), st.integers(1, 12), seeds)
def test_or_at_least_for_any_split_of_each_nodes_part(
    strategy: str, data: st.DataObject, num_nodes: int, of_node: int, seed: int
) -> None:
    lengths = data.draw(lengths_for(num_nodes * of_node))
    ways = [Layout(num_nodes, d, of_node // d) for d in range(1, of_node + 1) if of_node % d == 0]
    one, other = data.draw(st.sampled_from(ways)), data.draw(st.sampled_from(ways))
    assert sets_of(planned(lengths, one, strategy, seed)) == sets_of(planned(lengths, other, strategy, seed))


@promising("any_nodes", kept=False)
def test_other_nodes_are_other_steps_where_it_is_not_promised(strategy: str) -> None:
    one, other = (planned(wiki_lengths(400), Layout(nodes, 4 // nodes, 3), strategy) for nodes in (1, 2))
    assert sets_of(one) != sets_of(other)


# fixed_count


@promising("fixed_count")
@few
@given(st.data(), layouts, seeds)
def test_every_rank_has_as_many_samples_at_every_step(
    strategy: str, data: st.DataObject, layout: Layout, seed: int
) -> None:
    plan = planned(data.draw(lengths_for(layout.global_batch)), layout, strategy, seed)
    assert plan.shape[2] == layout.per_rank
    assert plan.min() >= 0


@promising("fixed_count", kept=False)
@few
@given(st.data(), layouts, seeds)
def test_or_at_least_one_and_at_most_twice_as_many(
    strategy: str, data: st.DataObject, layout: Layout, seed: int
) -> None:
    counts = (planned(data.draw(lengths_for(layout.global_batch)), layout, strategy, seed) >= 0).sum(axis=2)
    assert counts.min() >= 1
    assert counts.max() <= 2 * layout.per_rank


@promising("fixed_count", kept=False)
def test_counts_do_vary_where_it_is_not_promised(strategy: str) -> None:
    counts = (wiki_plan(strategy, Layout(4, 8, 2), 5000) >= 0).sum(axis=2)
    assert counts.min() < 2 < counts.max()


@promising("fixed_count", kept=False)
def test_cuda_graphs_are_refused_where_counts_vary(strategy: str) -> None:
    variables = {"CUDA_GRAPHS": "1", "LOADING": strategy}
    with pytest.raises(ConfigError, match=f"CUDA_GRAPHS=1 needs .* LOADING={strategy} does not promise"):
        load(variables)
    load(variables | {"CUDA_GRAPHS": "0"})
    load(variables | {"LOADING": "global_presort"})


# node_local


def reads_only_its_own(plan_GRK: np.ndarray, num_samples: int, num_nodes: int) -> bool:
    """Whether node n of N only ever has samples from floor(n S / N) to floor((n + 1) S / N) - 1."""
    node_GNJ = plan_GRK.reshape(len(plan_GRK), num_nodes, -1)
    bounds = np.array([num_samples * n // num_nodes for n in range(num_nodes + 1)])
    is_own = (node_GNJ >= bounds[:-1, None]) & (node_GNJ < bounds[1:, None])
    return bool((is_own | (node_GNJ < 0)).all())


@promising("node_local")
@few
@given(st.data(), layouts, seeds)
def test_a_node_reads_its_own_run_of_samples_only(
    strategy: str, data: st.DataObject, layout: Layout, seed: int
) -> None:
    lengths = data.draw(lengths_for(layout.global_batch))
    assert reads_only_its_own(planned(lengths, layout, strategy, seed), len(lengths), layout.num_nodes)


@promising("node_local")
def test_what_a_node_reads_depends_on_the_lengths_of_its_own_run_only(strategy: str) -> None:
    layout, lengths = Layout(2, 2, 3), wiki_lengths(1000)
    changed = np.concatenate([lengths[:500], lengths[:500]])
    plans = [planned(each, layout, strategy) for each in (lengths, changed)]
    assert np.array_equal(plans[0][:, :2], plans[1][:, :2])
    assert not np.array_equal(plans[0][:, 2:], plans[1][:, 2:])


@promising("node_local", kept=False)
def test_a_node_reads_everywhere_where_it_is_not_promised(strategy: str) -> None:
    layout = Layout(2, 2, 3)
    assert not reads_only_its_own(planned(wiki_lengths(1000), layout, strategy), 1000, layout.num_nodes)
    assert reads_only_its_own(planned(wiki_lengths(1000), Layout(1, 4, 3), strategy), 1000, 1)


# random_order: known fault 25


def drift(plan_GRK: np.ndarray, lengths: np.ndarray) -> float:
    """Correlation between the step and the mean length of its samples."""
    mean_G = step_means(plan_GRK, lengths)
    return float(np.corrcoef(np.arange(len(mean_G)), mean_G)[0, 1])


def step_means(plan_GRK: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    return np.array([lengths[row[row >= 0]].mean() for row in plan_GRK])


def spread(plan_GRK: np.ndarray, lengths: np.ndarray) -> float:
    """Deviation of the steps' mean lengths over that of means of as many samples at random."""
    batch = int((plan_GRK[0] >= 0).sum())
    return float(step_means(plan_GRK, lengths).std() / (lengths.std() / batch**0.5))


@every_strategy
@pytest.mark.parametrize("layout", [Layout(1, 2, 8), Layout(1, 4, 3), Layout(2, 2, 4)])
def test_the_mean_length_does_not_drift_over_an_epoch(strategy: str, layout: Layout) -> None:
    """Chance alone gives a correlation of one over the root of the number of steps."""
    plan = wiki_plan(strategy, layout, 40_000)
    assert abs(drift(plan, wiki_lengths(40_000))) < 3.5 / len(plan) ** 0.5


def test_batches_sorted_by_length_would_drift() -> None:
    lengths = wiki_lengths(40_000)
    assert drift(np.argsort(lengths, kind="stable").reshape(-1, 2, 8), lengths) > 0.9


@promising("random_order")
def test_the_mix_of_lengths_is_the_same_at_every_step_but_for_chance(strategy: str) -> None:
    assert spread(wiki_plan(strategy, Layout(1, 2, 8), 40_000), wiki_lengths(40_000)) < 1.05


@promising("random_order", kept=False)
def test_steps_have_mixes_of_their_own_where_it_is_not_promised(strategy: str) -> None:
    assert spread(wiki_plan(strategy, Layout(1, 2, 8), 40_000), wiki_lengths(40_000)) > 3


@every_strategy
def test_which_samples_meet_is_new_each_epoch(strategy: str) -> None:
    layout, lengths = Layout(1, 4, 8), wiki_lengths(6400)
    step_of = []
    for epoch in (0, 1):
        plan = plan_epoch(lengths, layout, STRATA, strategy=strategy, seed=1, epoch=epoch)
        steps = np.full(len(lengths), -1)
        for step, samples in enumerate(sets_of(plan)):
            steps[samples] = step
        step_of.append(steps)
    pairs = list(zip(*step_of, strict=True))
    met_again = len(pairs) - len(set(pairs))
    assert met_again < 0.25 * len(pairs)  # a sixth or so by chance where batches are of one bin


# balance


def quotas_kept(plan_GRK: np.ndarray, lengths: np.ndarray, num_groups: int) -> bool:
    """Whether each of so many groups of ranks has its part of every stratum's samples of a step, to one sample."""
    stratum_GNJ = ((lengths.astype(int) * 4 - 1) // MAX_LENGTH)[plan_GRK].reshape(len(plan_GRK), num_groups, -1)
    of_group_SGN = np.stack([(stratum_GNJ == s).sum(axis=2) for s in range(4)])
    whole = of_group_SGN.sum(axis=2, keepdims=True)
    return bool(((of_group_SGN >= whole // num_groups) & (of_group_SGN <= -(-whole // num_groups))).all())


@pytest.mark.parametrize("strategy", ["stratified", "stratified_presort"])
@few
@given(st.data(), layouts, seeds)
def test_every_rank_or_node_has_its_part_of_every_quota(
    strategy: str, data: st.DataObject, layout: Layout, seed: int
) -> None:
    lengths = data.draw(lengths_for(layout.global_batch))
    num_groups = STRATEGIES[strategy].num_groups(layout)
    assert quotas_kept(planned(lengths, layout, strategy, seed), lengths, num_groups)


def test_a_shuffle_keeps_no_quotas() -> None:
    assert not quotas_kept(wiki_plan("random", Layout(2, 2, 8), 4000), wiki_lengths(4000), 4)


@pytest.mark.parametrize("strategy", ["stratified", "stratified_presort", "stratified_local"])
def test_quotas_hold_the_share_of_every_stratum_over_the_steps(strategy: str) -> None:
    """As the paper's 6, 3, 2 and 5 of 16."""
    plan = wiki_plan(strategy, Layout(4, 1, 16), 64_000)
    assert quota_drift(plan) <= 1.5 * (4 if strategy == "stratified_local" else 1)  # a node's own: 1.5 each


def quota_drift(plan_GRK: np.ndarray) -> float:
    lengths = wiki_lengths(64_000)
    stratum = (lengths.astype(int) * 4 - 1) // MAX_LENGTH
    share = np.bincount(stratum[plan_GRK].ravel()) / plan_GRK.size
    taken_GS = np.stack([(stratum[plan_GRK] == s).sum(axis=(1, 2)) for s in range(4)], axis=1).cumsum(axis=0)
    even_GS = np.arange(1, len(plan_GRK) + 1)[:, None] * plan_GRK[0].size * share
    return float(np.abs(taken_GS - even_GS).max())


def test_a_shuffle_wanders_from_the_share() -> None:
    assert quota_drift(wiki_plan("random", Layout(4, 1, 16), 64_000)) > 20


def widest(plan_GRK: np.ndarray, cost: np.ndarray, num_groups: int) -> int:
    """By how much two ranks of a group ever differ."""
    of_rank_GR = cost_of_ranks(plan_GRK, cost)
    return int(np.ptp(of_rank_GR.reshape(len(plan_GRK), num_groups, -1), axis=2).max())


@pytest.mark.parametrize("strategy", ["stratified_presort", "stratified_local", "global_presort"])
@few
@given(st.data(), layouts, seeds)
def test_presorted_ranks_of_a_group_differ_by_less_than_one_longest_sample(
    strategy: str, data: st.DataObject, layout: Layout, seed: int
) -> None:
    lengths = data.draw(lengths_for(layout.global_batch))
    plan = planned(lengths, layout, strategy, seed)
    assert widest(plan, lengths, STRATEGIES[strategy].num_groups(layout)) <= MAX_LENGTH - lengths.min()


def test_ranks_of_other_strategies_differ_by_more() -> None:
    for strategy in ("random", "stratified"):
        assert widest(wiki_plan(strategy, Layout(1, 8, 16), 20_000), wiki_lengths(20_000), 1) > MAX_LENGTH


@few
@given(st.data(), layouts, seeds)
def test_least_loaded_ranks_differ_by_no_more_than_the_work_of_a_longest_sample(
    data: st.DataObject, layout: Layout, seed: int
) -> None:
    lengths = data.draw(lengths_for(layout.global_batch))
    plan = planned(lengths, layout, "least_loaded", seed)
    of_rank_GR = cost_of_ranks(plan, WORK[lengths])
    may_take_more = (plan >= 0).sum(axis=2) < 2 * layout.per_rank  # a rank at its cap may lie below
    lowest = np.where(may_take_more, of_rank_GR, np.iinfo(int).max).min(axis=1)
    assert (of_rank_GR.max(axis=1) - lowest <= WORK[lengths.max()]).all()


def one_at_a_time(lengths_J: np.ndarray, num_hands: int) -> list[int]:
    """Longest processing time first as it is told."""
    hands: list[tuple[int, int]] = [(0, hand) for hand in range(num_hands)]
    chosen = []
    for work in WORK[lengths_J].astype(int).tolist():
        load, hand = hands[0]
        heapq.heapreplace(hands, (load + work, hand))
        chosen.append(hand)
    return chosen


def greatest_load(lengths_J: np.ndarray, hand_J: np.ndarray) -> int:
    return int(np.bincount(hand_J, weights=WORK[lengths_J]).max())


@pytest.mark.parametrize(("num_hands", "of_each"), [(3, 5), (8, 16), (64, 48), (256, 12), (256, 4), (256, 2)])
def test_serving_a_part_of_the_hands_at_a_time_is_as_good_as_one_at_a_time(num_hands: int, of_each: int) -> None:
    lengths_GJ = -np.sort(-wiki_lengths(60_000)[: 4 * num_hands * of_each].astype(int).reshape(4, -1), axis=1)
    hands_GJ = least_loaded(lengths_GJ, WORK, num_hands)
    snakes_GJ = serpentine(lengths_GJ, WORK, num_hands)
    for lengths_J, hand_J, snake_J in zip(lengths_GJ, hands_GJ, snakes_GJ, strict=True):
        best = greatest_load(lengths_J, np.array(one_at_a_time(lengths_J, num_hands)))
        assert greatest_load(lengths_J, hand_J) <= 1.002 * best
        assert greatest_load(lengths_J, snake_J) > 1.0005 * best


def test_with_one_hand_served_at_a_time_it_is_the_same() -> None:
    lengths_J = np.sort(wiki_lengths(60).astype(int))[::-1]
    assert least_loaded(lengths_J[None], WORK, 3)[0].tolist() == one_at_a_time(lengths_J, 3)


@pytest.mark.parametrize("per_rank", [2, 3])
def test_a_hand_that_has_twice_the_mean_number_gets_no_more(per_rank: int) -> None:
    """Each of twelve hands has one long sample, and four would share all the short ones."""
    lengths_J = np.array([MAX_LENGTH] * 12 + [1] * (16 * per_rank - 12))
    counts = np.bincount(least_loaded(lengths_J[None], WORK, 16)[0], minlength=16)
    assert 1 <= counts.min() <= counts.max() == 2 * per_rank
    assert np.bincount(one_at_a_time(lengths_J, 16)).max() > 2 * per_rank


@few
@given(st.data(), layouts, seeds)
def test_same_bin_steps_are_of_one_stratum_but_for_what_is_left_over(
    data: st.DataObject, layout: Layout, seed: int
) -> None:
    lengths = data.draw(lengths_for(layout.global_batch))
    stratum = (lengths.astype(int) * 4 - 1) // MAX_LENGTH
    plan = planned(lengths, layout, "same_bin", seed)
    num_strata_G = np.array([len(np.unique(stratum[row])) for row in plan])
    num_whole = (np.bincount(stratum, minlength=4) // layout.global_batch).sum()
    assert (num_strata_G == 1).sum() >= num_whole
    assert (num_strata_G > 1).sum() < 4


def test_same_bin_takes_its_strata_at_random_as_often_as_they_fill_batches() -> None:
    lengths = wiki_lengths(40_000)
    stratum = (lengths.astype(int) * 4 - 1) // MAX_LENGTH
    kind_G = stratum[wiki_plan("same_bin", Layout(1, 2, 8), 40_000)[:, 0, 0]]
    assert np.abs(np.bincount(kind_G) - np.bincount(stratum) / 16).max() <= 4
    shares = np.bincount(kind_G) / len(kind_G)
    followed_by_itself = (kind_G[1:] == kind_G[:-1]).mean()
    assert abs(followed_by_itself - (shares**2).sum()) < 4 * (0.25 / len(kind_G)) ** 0.5


def balance(strategy: str, layout: Layout) -> float:
    lengths = wiki_lengths(20_000)
    return efficiency(cost_of_ranks(wiki_plan(strategy, layout, 20_000), WORK[lengths]))


def test_each_part_of_the_strategy_levels_the_ranks_further() -> None:
    layout = Layout(4, 8, 16)
    found = {strategy: balance(strategy, layout) for strategy in STRATEGIES}
    assert found["random"] < found["stratified"] - 0.1
    assert found["stratified"] < found["stratified_presort"] - 0.02
    assert abs(found["stratified_local"] - found["stratified_presort"]) < 0.01
    assert found["stratified_presort"] < found["global_presort"] - 0.005
    assert found["global_presort"] < found["least_loaded"] - 0.002
    assert found["least_loaded"] > 0.998
    assert found["stratified"] < found["same_bin"]


def test_dealing_the_sorted_samples_without_turning_back_is_worse() -> None:
    lengths_GJ = -np.sort(-wiki_lengths(12_800).astype(int).reshape(100, 128), axis=1)
    descending = np.broadcast_to(np.arange(128) % 8, lengths_GJ.shape)

    def of(hands_GJ: np.ndarray) -> float:
        loads = np.stack([np.where(hands_GJ == hand, WORK[lengths_GJ], 0).sum(axis=1) for hand in range(8)], axis=1)
        return float(loads.mean() / loads.max(axis=1).mean())

    assert of(descending) < 0.96 < 0.985 < of(serpentine(lengths_GJ, WORK, 8))
    assert of(alone(lengths_GJ, WORK, 1)) == pytest.approx(1 / 8)


# fairness


def favour(plan_GRK: np.ndarray, lengths: np.ndarray) -> float:
    """How far the mean tokens of a rank and step lie from those of all, as a share."""
    mean_R = cost_of_ranks(plan_GRK, lengths).mean(axis=0)
    return float(np.abs(mean_R / mean_R.mean() - 1).max())


@every_strategy
@pytest.mark.parametrize("layout", [Layout(1, 2, 4), Layout(1, 4, 3), Layout(2, 2, 4)])
def test_no_rank_is_favoured_over_an_epoch(strategy: str, layout: Layout) -> None:
    if strategy == "stratified_local":  # nodes have samples of their own
        layout = Layout(1, layout.num_ranks, layout.per_rank)
    assert favour(wiki_plan(strategy, layout, 80_000), wiki_lengths(80_000)) < 0.01


def test_no_rank_is_favoured_where_quotas_alternate_with_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One short sample to three long ones, six to a batch: every other step has one short sample too many to share."""
    lengths = np.where(np.arange(24_000) % 4 == 0, 10, MAX_LENGTH).astype(np.uint16)
    layout, strata = Layout(1, 2, 3), Strata(2, MAX_LENGTH)
    assert favour(planned(lengths, layout, "stratified", strata=strata), lengths) < 0.01
    epoch = type(Planner(lengths, layout, strata, strategy="stratified").epoch(0, 0))
    monkeypatch.setattr(epoch, "_first_rank", lambda self, steps_G: steps_G % 2)
    assert favour(planned(lengths, layout, "stratified", strata=strata), lengths) > 0.1


# work


def test_work_is_linear_and_attention() -> None:
    assert token_work(1024, 4096) == 6144
    expected = np.arange(1, 513) * (6144 + np.arange(1, 513))
    assert np.allclose(WORK[1:] / WORK[512], expected / expected[-1], atol=1e-4)
    assert WORK.dtype == np.uint16


@pytest.mark.parametrize("max_length", [1, 8, 512, 65535])
def test_no_sample_is_free(max_length: int) -> None:
    assert work_of(max_length).min() >= 1
    assert work_of(max_length).max() == 32767
