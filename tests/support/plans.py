"""Lengths, layouts and seeds to plan with."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from benchmarks.bert.data.plan import Layout
from benchmarks.bert.data.strata import Strata

CHECKOUT = Path(__file__).parents[2]
WIKI_HISTOGRAM = CHECKOUT.parent / "shared" / "data" / "wiki_length_histogram.csv"
MAX_LENGTH = 512
STRATA = Strata(4, MAX_LENGTH)

few = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
