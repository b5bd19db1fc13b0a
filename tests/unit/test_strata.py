"""Strata are equal ranges of length, quotas level them over every step of an epoch, and each sample is found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from benchmarks.bert.data.strata import Strata, StrataIndex, taken_GS

few = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
sizes = st.lists(st.integers(0, 60), min_size=1, max_size=6).map(np.array).filter(np.any)
batches = st.integers(1, 30)


def quotas_of(counts: np.ndarray, batch: int) -> np.ndarray:
    return np.diff(taken_GS(counts, batch, np.arange(counts.sum() // batch + 1)), axis=0)


def by_claims(counts: np.ndarray, batch: int) -> np.ndarray:
    """Webster's method as it is told: all claims in one list, the earliest first."""
    claims = sorted(((2 * j + 1) / (2 * count), s) for s, count in enumerate(counts.tolist()) for j in range(count))
    strata = [s for _, s in claims]
    num_steps = len(strata) // batch
    rows = np.array(strata[: num_steps * batch], int).reshape(num_steps, batch)
    return np.stack([(rows == s).sum(axis=1) for s in range(len(counts))], axis=1)


def by_largest_remainder_of_each_step(counts: np.ndarray, batch: int) -> np.ndarray:
    left, rows = counts.copy(), []
    for _ in range(counts.sum() // batch):
        quota, remainder = np.divmod(batch * left, left.sum())
        quota[np.argsort(-remainder, kind="stable")[: batch - quota.sum()]] += 1
        left = left - quota
        rows.append(quota)
    return np.array(rows)


def by_rounding_the_strata_together(counts: np.ndarray, batch: int) -> np.ndarray:
    """Simple, at once at any step, and wrong: a small stratum's quota is now and then -1."""
    steps = np.arange(counts.sum() // batch + 1)[:, None]
    ends = np.concatenate([[0], np.cumsum(counts)])
    return np.diff(np.diff((steps * batch * ends * 2 + counts.sum()) // (2 * counts.sum()), axis=1), axis=0)


def assert_quotas(quotas: np.ndarray, counts: np.ndarray, batch: int) -> None:
    assert quotas.shape == (counts.sum() // batch, len(counts))
    assert (quotas >= 0).all()
    assert (quotas.sum(axis=1) == batch).all()
    assert (quotas.sum(axis=0) <= counts).all()


def drifts(quotas: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """How far what each stratum has given by any step lies from its even share, in samples, at most; shape (S,)."""
    even = quotas[0].sum() * counts / counts.sum()
    steps = np.arange(1, len(quotas) + 1)[:, None]
    return np.abs(quotas.cumsum(axis=0) - steps * even).max(axis=0)


def test_the_strata_are_those_of_the_paper() -> None:
    assert Strata(4, 512).bounds() == [(1, 128), (129, 256), (257, 384), (385, 512)]


@few
@given(st.data(), st.integers(1, 65535))
@example(None, 10)
def test_strata_join_and_differ_by_at_most_one_length(data: st.DataObject | None, max_length: int) -> None:
    num_strata = data.draw(st.integers(1, min(max_length, 40))) if data else 4
    bounds = Strata(num_strata, max_length).bounds()
    assert [low for low, _ in bounds] == [1] + [high + 1 for _, high in bounds[:-1]]
    assert bounds[-1][1] == max_length
    widths = [high - low + 1 for low, high in bounds]
    assert 1 <= min(widths) <= max(widths) <= min(widths) + 1


@few
@given(sizes, batches)
def test_quotas_fill_every_whole_batch_and_take_no_more_than_there_is(counts: np.ndarray, batch: int) -> None:
    quotas = quotas_of(counts, batch)
    assert quotas.dtype == np.int64
    assert_quotas(quotas, counts, batch)


def test_rounding_the_strata_together_would_give_negative_quotas() -> None:
    counts = np.array([47, 1, 55])
    assert_quotas(quotas_of(counts, 4), counts, 4)
    with pytest.raises(AssertionError):
        assert_quotas(by_rounding_the_strata_together(counts, 4), counts, 4)


@few
@given(sizes, batches)
def test_quotas_are_those_of_websters_method(counts: np.ndarray, batch: int) -> None:
    assert np.array_equal(quotas_of(counts, batch), by_claims(counts, batch))


@few
@given(sizes, batches, st.data())
def test_any_steps_are_had_at_once(counts: np.ndarray, batch: int, data: st.DataObject) -> None:
    num_steps = int(counts.sum()) // batch
    steps = np.array(data.draw(st.lists(st.integers(0, num_steps), max_size=5)), int)
    assert np.array_equal(taken_GS(counts, batch, steps), taken_GS(counts, batch, np.arange(num_steps + 1))[steps])


@few
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any), st.integers(1, 30))
def test_strata_of_whole_shares_give_the_same_quota_at_every_step(quota: list[int], num_steps: int) -> None:
    assert quotas_of(np.array(quota) * num_steps, sum(quota)).tolist() == [quota] * num_steps


@few
@given(sizes, batches)
def test_no_stratum_drifts_further_from_its_share_than_promised(counts: np.ndarray, batch: int) -> None:
    share = counts / counts.sum()
    if len(quotas := quotas_of(counts, batch)):
        assert (drifts(quotas, counts) <= ((1 - share) + share * (len(counts) - 1)) / 2 + 1e-9).all()


def test_remainders_of_single_steps_would_let_the_strata_drift() -> None:
    counts = np.array([6600, 3300, 100])
    assert drifts(quotas_of(counts, 10), counts).max() <= 1
    assert drifts(by_largest_remainder_of_each_step(counts, 10), counts).max() > 100


def test_the_benchmarks_counts_do_not_overflow() -> None:
    counts = np.array([57_894_456, 30_859_281, 18_383_919, 49_587_997])
    num_steps = int(counts.sum()) // 16_384
    taken = taken_GS(counts, 16_384, np.array([0, 1, num_steps - 1, num_steps]))
    assert taken[1].tolist() == [6052, 3226, 1922, 5184]
    assert (taken.sum(axis=1) == np.array([0, 1, num_steps - 1, num_steps]) * 16_384).all()
    assert (taken[-1] <= counts).all()


def test_the_counts_are_not_changed() -> None:
    counts = np.array([5, 6, 7])
    quotas_of(counts, 4)
    assert counts.tolist() == [5, 6, 7]


def drawn_lengths(count: int, seed: int, mix: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    return mix(np.random.default_rng(seed).integers(1, 513, count).astype(np.uint16))


mixes = st.sampled_from([np.sort, np.negative, lambda lengths: lengths % 4 + 509]).map(
    lambda mix: lambda lengths: (mix(lengths) - 1) % 512 + 1
)


@few
@given(st.integers(1, 700), st.integers(0, 100), mixes, st.integers(1, 8), st.data())
def test_the_index_finds_every_sample_of_every_stratum(
    count: int, seed: int, mix: Callable[[np.ndarray], np.ndarray], num_strata: int, data: st.DataObject
) -> None:
    lengths = drawn_lengths(count, seed, mix)
    stratum = (lengths.astype(int) * num_strata - 1) // 512
    index = StrataIndex(lengths, Strata(num_strata, 512))
    for s in range(num_strata):
        members = np.flatnonzero(stratum == s)
        assert np.array_equal(index.find(s, np.arange(len(members))), members)
        assert np.array_equal(index.find(s, np.arange(len(members))[::-3]), members[::-3])
    number = data.draw(st.integers(0, count))
    assert index.counts_before(number).tolist() == np.bincount(stratum[:number], minlength=num_strata).tolist()


def test_the_index_is_made_in_pieces() -> None:
    lengths = drawn_lengths((1 << 20) + 1000, 0, lambda lengths: lengths)
    index = StrataIndex(lengths, Strata(4, 512))
    members = np.flatnonzero((lengths > 128) & (lengths <= 256))
    assert np.array_equal(index.find(1, np.arange(len(members))), members)


@pytest.mark.parametrize("lengths", [[0, 5], [5, 11]])
def test_a_length_outside_the_range_is_an_error_with_the_numbers(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match=f"lengths from {lengths[0]} to {lengths[1]}, expected 1 to 10"):
        StrataIndex(np.array(lengths, np.uint16), Strata(2, 10))
