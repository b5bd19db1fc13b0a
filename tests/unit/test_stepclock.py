"""The step clock on a CPU whose time the test makes: first step, median, and what belongs to no step."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from benchmarks.bert import stepclock
from benchmarks.bert.stepclock import StepClock


class Time:
    """Passes only when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(stepclock, "time", SimpleNamespace(perf_counter=lambda: self.now))
        self.clock = StepClock(torch.device("cpu"))

    def step(self, duration_s: float) -> None:
        self.now += duration_s
        self.clock.tick()

    def evaluation(self, duration_s: float, *, is_paused: bool = True) -> None:
        self.now += duration_s
        if is_paused:
            self.clock.pause()


def test_the_first_step_counts_from_the_start_and_the_median_is_over_all(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time(monkeypatch)
    for duration_s in (9.0, 1.0, 3.0, 2.0, 2.5):
        time.step(duration_s)
    assert time.clock.statistics() == {"first_step_s": 9.0, "median_step_s": 2.5}


def test_one_step_is_first_and_median(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time(monkeypatch)
    time.step(1.25)
    assert time.clock.statistics() == {"first_step_s": 1.25, "median_step_s": 1.25}


def test_an_evaluation_belongs_to_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time(monkeypatch)
    for _ in range(3):
        time.step(1.0)
        time.evaluation(100.0)
    assert time.clock.statistics() == {"first_step_s": 1.0, "median_step_s": 1.0}


def test_without_the_pause_it_would_be_the_next_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time(monkeypatch)
    for _ in range(3):
        time.step(1.0)
        time.evaluation(100.0, is_paused=False)
    assert time.clock.statistics() == {"first_step_s": 1.0, "median_step_s": 101.0}


def test_statistics_in_the_midst_are_of_all_steps_so_far_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time(monkeypatch)
    time.step(5.0)
    time.step(1.0)
    assert time.clock.statistics() == time.clock.statistics() == {"first_step_s": 5.0, "median_step_s": 3.0}
    time.evaluation(50.0)
    for _ in range(3):
        time.step(2.0)
    assert time.clock.statistics() == {"first_step_s": 5.0, "median_step_s": 2.0}


def test_durations_are_seconds_to_the_microsecond(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time(monkeypatch)
    time.step(0.123456789)
    assert time.clock.statistics()["first_step_s"] == 0.123457


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a GPU's own clock needs a GPU")
def test_on_a_gpu_ticks_are_read_only_in_the_statistics() -> None:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        clock = StepClock(torch.device("cuda"))
        for _ in range(3):
            torch.zeros(1000, device="cuda").add_(1)
            clock.tick()
        clock.pause()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert set(clock.statistics()) == {"first_step_s", "median_step_s"}
