"""Strata are equal ranges of length, and quotas level them over every step of an epoch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from benchmarks.bert.data.strata import quotas_GS, stratum_of

few = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
sizes = st.lists(st.integers(0, 60), min_size=1, max_size=6).map(np.array)
batches = st.integers(1, 30)


def largest_drift(quotas: np.ndarray, counts: np.ndarray) -> float:
    """How far what a stratum has given by any step lies from its even share, in samples."""
    even = quotas[0].sum() * counts / counts.sum()
    steps = np.arange(1, len(quotas) + 1)[:, None]
    return float(np.abs(quotas.cumsum(axis=0) - steps * even).max())


def quotas_of_single_steps(counts: np.ndarray, batch: int) -> np.ndarray:
    """Largest remainder of what is left, each step for itself."""
    left, rows = counts.copy(), []
    for _ in range(counts.sum() // batch):
        quota, remainder = np.divmod(batch * left, left.sum())
        quota[np.argsort(-remainder, kind="stable")[: batch - quota.sum()]] += 1
        left = left - quota
        rows.append(quota)
    return np.array(rows)


def test_the_strata_are_those_of_the_paper() -> None:
    lengths = np.array([1, 128, 129, 256, 257, 384, 385, 512], np.uint16)
    assert stratum_of(lengths, num_strata=4, max_length=512).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


@few
@given(st.data(), st.integers(1, 65535))
@example(None, 10)
def test_a_length_lies_above_the_lower_bound_of_its_stratum_and_not_above_the_upper(
    data: st.DataObject | None, max_length: int
) -> None:
    num_strata = data.draw(st.integers(1, min(max_length, 40))) if data else 4
    lengths = np.unique(np.linspace(1, max_length, 200).astype(np.uint16))
    stratum = stratum_of(lengths, num_strata, max_length)
    for length, s in zip(lengths.tolist(), stratum.tolist(), strict=True):
        assert s * max_length < length * num_strata <= (s + 1) * max_length


@pytest.mark.parametrize("lengths", [[0, 5], [5, 11]])
def test_a_length_outside_the_range_is_an_error_with_the_numbers(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match=f"lengths from {lengths[0]} to {lengths[1]}, expected 1 to 10"):
        stratum_of(np.array(lengths), num_strata=2, max_length=10)


def test_no_lengths_have_no_strata() -> None:
    assert stratum_of(np.array([], np.uint16), 4, 512).shape == (0,)


@few
@given(sizes, batches)
def test_quotas_fill_every_whole_batch_and_take_no_more_than_there_is(counts: np.ndarray, batch: int) -> None:
    quotas = quotas_GS(counts, batch)
    assert quotas.shape == (counts.sum() // batch, len(counts))
    assert quotas.dtype == np.int64
    assert (quotas >= 0).all()
    assert (quotas.sum(axis=1) == batch).all()
    left_over = counts - quotas.sum(axis=0)
    assert (left_over >= 0).all()
    assert left_over.sum() < batch


@few
@given(sizes, batches)
def test_every_quota_is_within_one_of_the_share_of_what_is_left(counts: np.ndarray, batch: int) -> None:
    left = counts.astype(np.int64)
    for quota in quotas_GS(counts, batch):
        assert (np.abs(quota * left.sum() - batch * left) < left.sum()).all()
        left -= quota


@few
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any), st.integers(1, 30))
def test_strata_of_whole_shares_give_the_same_quota_at_every_step(quota: list[int], num_steps: int) -> None:
    quotas = quotas_GS(np.array(quota) * num_steps, sum(quota))
    assert quotas.tolist() == [quota] * num_steps


@few
@given(st.integers(1, 30), st.data())
def test_quotas_lie_within_one_of_the_share_of_the_epoch_until_its_end_nears(batch: int, data: st.DataObject) -> None:
    counts = np.array(data.draw(st.lists(st.integers(30 * batch, 100 * batch), min_size=1, max_size=6)))
    even = batch * counts / counts.sum()
    # With 20 batches left, a drift of less than 2 samples moves the share of what is left by less than 2 / 20.
    assert (np.abs(quotas_GS(counts, batch)[:-20] - even) < 1.1).all()


@few
@given(sizes.filter(np.any), batches)
def test_no_stratum_drifts_from_its_share_of_the_epoch(counts: np.ndarray, batch: int) -> None:
    if quotas := quotas_GS(counts, batch).tolist():
        assert largest_drift(np.array(quotas), counts) < 2


def test_remainders_of_single_steps_would_let_the_strata_drift() -> None:
    counts = np.array([6600, 3300, 100])
    assert largest_drift(quotas_GS(counts, 10), counts) < 1
    assert largest_drift(quotas_of_single_steps(counts, 10), counts) > 100


def test_the_counts_are_not_changed() -> None:
    counts = np.array([5, 6, 7])
    quotas_GS(counts, 4)
    assert counts.tolist() == [5, 6, 7]
