"""Who evaluates which samples, and when: a partition level in tokens, and every point of the schedule once."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.bert.evaluate import deal_evaluation, is_stuck
from benchmarks.bert.schedule import EvaluationSchedule, rule_interval

MAX_LENGTH = 512

few = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 9, 100])
def test_every_sample_is_evaluated_by_exactly_one_rank_and_the_work_is_level(size: int, num_ranks: int) -> None:
    lengths = np.random.default_rng(size).integers(5, MAX_LENGTH + 1, size).astype(np.uint16)
    shares = [deal_evaluation(lengths, rank, num_ranks) for rank in range(num_ranks)]
    assert sorted(np.concatenate(shares).tolist()) == list(range(size))
    counts = [len(share) for share in shares]
    assert max(counts) - min(counts) <= 1
    tokens = [int(lengths[share].astype(int).sum()) for share in shares]
    assert max(tokens) - min(tokens) <= lengths.max(initial=0)
    if size == 100:
        assert max(tokens) < 1.01 * sum(tokens) / num_ranks


@few
@given(st.lists(st.integers(1, MAX_LENGTH), max_size=60), st.integers(1, 9))
def test_no_share_exceeds_another_by_more_than_the_longest_sample(lengths: list[int], num_ranks: int) -> None:
    of = np.array(lengths, np.uint16)
    shares = [deal_evaluation(of, rank, num_ranks) for rank in range(num_ranks)]
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(lengths)))
    tokens = [int(of[share].astype(int).sum()) for share in shares]
    assert max(tokens) - min(tokens) <= max(lengths, default=0)


@pytest.mark.parametrize(
    ("before", "now", "due"),
    [
        (0, 99, False),
        (99, 100, True),
        (0, 100, True),
        (0, 101, True),
        (100, 101, False),
        (100, 149, False),
        (149, 150, True),
        (100, 150, True),
        (150, 199, False),
        (0, 320, True),
        (320, 349, False),
        (320, 350, True),
        (120, 260, True),
    ],
)
def test_an_evaluation_is_due_at_the_start_and_every_interval_after_it(before: int, now: int, due: bool) -> None:
    assert EvaluationSchedule(start=100, interval=50).is_due(before, now) is due


@few
@given(st.integers(1, 300), st.integers(1, 100), st.integers(1, 250))
def test_every_point_is_served_by_one_step_and_no_step_is_due_without_a_point(
    start: int, interval: int, batch: int
) -> None:
    schedule = EvaluationSchedule(start, interval)
    counts = range(0, 1500, batch)
    points = set(range(start, counts[-1] + 1, interval))
    for before, now in pairwise(counts):
        passed = {point for point in points if before < point <= now}
        assert schedule.is_due(before, now) == bool(passed)
        points -= passed
    assert not points


@pytest.mark.parametrize(
    ("global_batch", "interval"),
    [
        (256, 150_000),
        (448, 150_000),
        (1024, 150_000),
        (2048, 150_000),
        (3072, 175_000),
        (4096, 175_000),
        (6144, 200_000),
        (8192, 225_000),
        (16384, 325_000),
    ],
)
def test_the_rules_interval_for_the_batches_of_public_runs(global_batch: int, interval: int) -> None:
    assert rule_interval(global_batch) == interval


def test_the_rules_interval_is_free_of_rounding_errors() -> None:
    for batch in range(1, 30_000):
        assert rule_interval(batch) == (23023 * batch + 300_000_000) // 50_000_000 * 25_000


@pytest.mark.parametrize(
    ("accuracies", "stuck"),
    [
        ([], False),
        ([0.34085] * 2, False),
        ([0.34085, 0.34085, 0.3409], False),
        ([0.2, 0.340851, 0.340849, 0.34085], True),
    ],
)
def test_a_model_that_does_not_train_is_noticed(accuracies: list[float], stuck: bool) -> None:
    """Known fault 63."""
    assert is_stuck(accuracies) == stuck
