"""An order at random that is a function of the place: complete, the same everywhere, and without pattern."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.data import permutation
from benchmarks.bert.data.permutation import Permutation, key_of

few = settings(max_examples=60, deadline=None)
BENCHMARK = 156_725_653


def patterns(count: int, num_seen: int, num_keys: int = 60) -> list[float]:
    """How far from chance, in standard deviations: drift, likeness of neighbours, evenness of their differences."""
    drifts, likenesses, evenness = [], [], []
    for seed in range(num_keys):
        values = (Permutation(count, key_of(seed))(np.arange(num_seen)) + 0.5) / count
        drifts.append(np.corrcoef(np.arange(num_seen), values)[0, 1] * num_seen**0.5)
        likenesses.append(np.corrcoef(values[1:], values[:-1])[0, 1] * num_seen**0.5)
        in_bin = np.bincount((np.diff(values) % 1 * 50).astype(int), minlength=50)
        evenness.append(((in_bin - num_seen / 50) ** 2 / (num_seen / 50)).sum())
    return [
        *(abs(np.mean(each)) * num_keys**0.5 for each in (drifts, likenesses)),
        *(abs(np.std(each) - 1) * (2 * num_keys) ** 0.5 for each in (drifts, likenesses)),
        abs(np.mean(evenness) - 49) * (num_keys / 98) ** 0.5,
    ]


@few
@given(st.one_of(st.integers(1, 300), st.integers(1, 1 << 17)), st.integers(0, 2**31 - 1))
def test_every_number_comes_once(count: int, seed: int) -> None:
    order = Permutation(count, key_of(seed))(np.arange(count))
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(count))


@few
@given(st.integers(1, 2**31), st.integers(0, 2**31 - 1))
def test_no_number_comes_twice_however_many_there_are(count: int, seed: int) -> None:
    places = np.unique(np.concatenate([np.arange(min(count, 500)), np.arange(max(0, count - 500), count)]))
    found = Permutation(count, key_of(seed))(places)
    assert len(np.unique(found)) == len(places)
    assert 0 <= found.min() <= found.max() < count


@few
@given(st.data(), st.integers(1, 1000))
def test_any_part_is_that_of_the_whole_in_the_shape_asked_for(data: st.DataObject, count: int) -> None:
    order = Permutation(count, key_of(5))
    whole = order(np.arange(count))
    places = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=6, max_size=6))).reshape(2, 3)
    with mock.patch.object(permutation, "_BLOCK", data.draw(st.integers(1, 7))):
        assert np.array_equal(order(places), whole[places])


def test_it_is_the_same_everywhere() -> None:
    """Pinned: a run's order of samples hangs on it, and a resumed run's."""
    assert Permutation(10, key_of(1, 2))(np.arange(10)).tolist() == [5, 2, 3, 9, 0, 1, 4, 7, 8, 6]
    assert Permutation(BENCHMARK, key_of(1, 2))(np.array([0, 1, 2, BENCHMARK - 1])).tolist() == [
        65285007,
        102347001,
        73147319,
        114170840,
    ]


def test_another_key_is_another_order() -> None:
    keys = [key_of(1), key_of(2), key_of(1, 1), key_of(1, 0, 1)]
    orders = [Permutation(1000, key)(np.arange(1000)).tolist() for key in keys]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


@pytest.mark.parametrize(("count", "num_seen"), [(1000, 1000), (80_000, 20_000), (BENCHMARK, 20_000)])
def test_there_is_no_pattern_beyond_chance(count: int, num_seen: int) -> None:
    assert max(patterns(count, num_seen)) < 4


def test_a_single_round_would_have_patterns() -> None:
    with mock.patch.object(permutation, "_ROUNDS", 1):
        assert max(patterns(80_000, 20_000)) > 10


@pytest.mark.parametrize("count", [0, -1, 2**31 + 1])
def test_a_count_that_it_cannot_permute_is_an_error(count: int) -> None:
    with pytest.raises(ValueError, match=f"a permutation of {count}, expected 1 to 2147483648"):
        Permutation(count, key_of(1))
