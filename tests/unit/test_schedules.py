"""Learning-rate schedules at points computed by hand, the record's at its published values, and what contradicts."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bert.config import SCHEDULES as NAMES
from benchmarks.bert.config import Config, ConfigError, load
from benchmarks.bert.optim.lr import (
    SCHEDULES,
    LansSchedule,
    PolynomialSchedule,
    RecordSchedule,
    Schedule,
    build_schedule,
)

CHECKOUT = Path(__file__).parents[2]
RECORD_FILES = ("config_DGXA100_128x8x16x1.sh", "config_DGXA100_171x8x12x1.sh")


def polynomial(**changed: Any) -> Schedule:
    settings = {"base": 1.0, "end": 0.0, "warmup_steps": 10, "start_warmup_step": 0, "decay_steps": 110, "power": 1.0}
    return PolynomialSchedule(**(settings | changed))


@pytest.mark.parametrize(
    ("changed", "step", "expected"),
    [
        ({}, 1, 0.1),
        ({}, 5, 0.5),
        ({}, 9, 0.9),
        ({}, 10, 1.0),
        ({}, 11, 0.99),
        ({}, 60, 0.5),
        ({}, 109, 0.01),
        ({}, 110, 0.0),
        ({}, 111, 0.0),
        ({}, 10_000, 0.0),
        ({"end": 0.2}, 5, 0.5),
        ({"end": 0.2}, 60, 0.6),
        ({"end": 0.2}, 110, 0.2),
        ({"end": 0.2}, 10_000, 0.2),
        ({"power": 2.0}, 5, 0.5),
        ({"power": 2.0}, 60, 0.25),
        ({"power": 2.0, "end": 0.2}, 60, 0.4),
        ({"power": 0.5}, 85, 0.5),
        ({"start_warmup_step": -6}, 1, 0.7),
        ({"start_warmup_step": -6}, 3, 0.9),
        ({"start_warmup_step": -6}, 4, 1.0),
        ({"start_warmup_step": -6}, 57, 0.5),
        ({"start_warmup_step": -6}, 110, 0.0),
        ({"start_warmup_step": -20}, 1, 1 - 11 / 120),
        ({"warmup_steps": 0, "decay_steps": 100}, 1, 0.99),
        ({"warmup_steps": 0, "decay_steps": 100}, 50, 0.5),
        ({"decay_steps": 5}, 9, 0.9),
        ({"decay_steps": 5}, 10, 1.0),
        ({"decay_steps": 5}, 11, 0.0),
        ({"decay_start_step": 0}, 9, 0.9),
        ({"decay_start_step": 0}, 10, 1 - 10 / 110),
        ({"decay_start_step": 60}, 10, 2.0),
        ({"decay_start_step": 60}, 85, 0.5),
        ({"base": 4e-4, "warmup_steps": 82, "start_warmup_step": -16, "decay_steps": 8000}, 1, 4e-4 * 17 / 82),
    ],
    ids=str,
)
def test_the_polynomial_at_points_computed_by_hand(changed: dict[str, float], step: int, expected: float) -> None:
    assert polynomial(**changed).at(step) == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_the_rate_rises_to_the_base_once_and_falls_to_the_end() -> None:
    rates = [polynomial(end=0.1, power=2.0).at(step) for step in range(1, 130)]
    peak = rates.index(max(rates))
    assert (peak + 1, rates[peak]) == (10, 1.0)
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert set(rates[109:]) == {0.1}


# --- LANS


def lans(**changed: Any) -> LansSchedule:
    settings = {"base": 1.0, "end": 0.0, "warmup_steps": 10, "start_warmup_step": 0, "decay_steps": 130}
    return LansSchedule(**(settings | {"constant_steps": 20} | changed))


@pytest.mark.parametrize(
    ("changed", "step", "expected"),
    [
        ({}, 1, 0.1),
        ({}, 9, 0.9),
        ({}, 10, 1.0),
        ({}, 20, 1.0),
        ({}, 30, 1.0),
        ({}, 31, 0.99),
        ({}, 80, 0.5),
        ({}, 129, 0.01),
        ({}, 130, 0.0),
        ({}, 10_000, 0.0),
        ({"end": 0.2}, 30, 1.0),
        ({"end": 0.2}, 80, 0.6),
        ({"end": 0.2}, 10_000, 0.2),
        ({"start_warmup_step": -6}, 1, 0.7),
        ({"start_warmup_step": -6}, 4, 1.0),
        ({"start_warmup_step": -6}, 24, 1.0),
        ({"start_warmup_step": -6}, 77, 0.5),
        ({"warmup_steps": 0}, 1, 1.0),
        ({"constant_steps": 0, "decay_steps": 110}, 60, 0.5),
    ],
    ids=str,
)
def test_lans_at_points_computed_by_hand(changed: dict[str, float], step: int, expected: float) -> None:
    assert lans(**changed).at(step) == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_lans_without_a_plateau_is_the_line_of_the_polynomial_and_with_one_it_is_not() -> None:
    assert all(lans(constant_steps=0).at(step) == polynomial(decay_steps=130).at(step) for step in range(1, 150))
    assert any(lans(constant_steps=1).at(step) != polynomial(decay_steps=130).at(step) for step in range(1, 150))


def test_the_published_shape_in_shares_of_the_run() -> None:
    """A warm-up over 5 % and a plateau over 25 % of 3,870 steps, then (1 - x) / 0.7 at the share x."""
    schedule = LansSchedule(
        base=0.005, end=0.0, warmup_steps=200, start_warmup_step=0, decay_steps=4000, constant_steps=1000
    )
    for share, of_peak in (
        (0.025, 0.5),
        (0.05, 1.0),
        (0.2, 1.0),
        (0.3, 1.0),
        (0.65, 0.5),
        (0.9, 0.1 / 0.7),
        (1.0, 0.0),
    ):
        assert schedule.at(round(4000 * share)) == pytest.approx(0.005 * of_peak, rel=1e-12, abs=1e-15)


# --- the record

# record-runs.md, 1.6: the optimizer step and the rate, to the digits that stand there.
PUBLISHED = {
    1: "8.15e-05",
    20: "1.725e-04",
    40: "2.684e-04",
    65: "3.882e-04",
    66: "4.497e-04",
    80: "4.001e-04",
    100: "3.292e-04",
    139: "1.911e-04",
    159: "1.203e-04",
    179: "4.945e-05",
}


def of_file(name: str, monkeypatch: pytest.MonkeyPatch, **environment: str) -> tuple[Config, Schedule]:
    monkeypatch.chdir(CHECKOUT)
    config = load({"CONFIG": name, **environment})
    return config, build_schedule(config)


def to_the_digits_of(text: str, rate: float) -> str:
    return f"{rate:.{len(text.split('e')[0]) - 2}e}"


@pytest.mark.parametrize("name", RECORD_FILES)
def test_the_record_files_have_the_records_rates(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config, schedule = of_file(name, monkeypatch)
    assert isinstance(schedule, RecordSchedule)
    for step, text in PUBLISHED.items():
        assert to_the_digits_of(text, schedule.at(step)) == text, step
    rates = [schedule.at(step) for step in range(1, 300)]
    assert rates.index(max(rates)) + 1 == 66
    assert max(rates) / config.learning_rate == pytest.approx(1.14, abs=5e-3)
    assert set(rates[178:]) == {config.end_learning_rate}


def test_without_the_quirk_the_published_rates_would_differ_from_66_on(monkeypatch: pytest.MonkeyPatch) -> None:
    _, plain = of_file(RECORD_FILES[0], monkeypatch, SCHEDULE="polynomial")
    wrong = [step for step, text in PUBLISHED.items() if to_the_digits_of(text, plain.at(step)) != text]
    assert wrong == [66, 80, 100, 139, 159]


def test_the_record_is_the_polynomial_whose_decay_starts_at_82_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    _, record = of_file(RECORD_FILES[0], monkeypatch)
    _, same = of_file(RECORD_FILES[0], monkeypatch, SCHEDULE="polynomial", DECAY_START_STEP="82")
    assert [record.at(step) for step in range(1, 400)] == [same.at(step) for step in range(1, 400)]


# --- the configuration


@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_gets_what_the_configuration_says(name: str) -> None:
    config = Config(
        schedule=name,
        learning_rate=0.5,
        end_learning_rate=0.1,
        warmup_steps=3,
        start_warmup_step=-1,
        decay_steps=90,
        constant_steps=4,
        decay_power=2.0,
        decay_start_step=5,
    )
    schedule = build_schedule(config)
    assert type(schedule) is SCHEDULES[name]
    expected = {"base": 0.5, "end": 0.1, "warmup_steps": 3, "start_warmup_step": -1, "decay_steps": 90}
    expected |= {"constant_steps": 4, "power": 2.0, "decay_start_step": 5}
    for field in fields(schedule):
        assert getattr(schedule, field.name) == expected[field.name]
    assert build_schedule(replace(config, learning_rate=0.7)) != schedule


def test_the_names_of_the_schedules_are_those_of_the_code() -> None:
    assert set(NAMES) == set(SCHEDULES)


FITTING: list[dict[str, str]] = [
    {"SCHEDULE": "lans", "WARMUP_STEPS": "10", "CONSTANT_STEPS": "20", "DECAY_STEPS": "31"},
    {"SCHEDULE": "lans", "WARMUP_STEPS": "10", "START_WARMUP_STEP": "-1", "CONSTANT_STEPS": "20", "DECAY_STEPS": "30"},
    {"SCHEDULE": "record", "WARMUP_STEPS": "82", "START_WARMUP_STEP": "-16", "DECAY_STEPS": "83"},
    {"SCHEDULE": "polynomial", "DECAY_POWER": "2", "DECAY_START_STEP": "5"},
]
CONTRADICTIONS: list[tuple[dict[str, str], list[str]]] = [
    ({"CONSTANT_STEPS": "7"}, ["CONSTANT_STEPS=7", "SCHEDULE=lans", "not polynomial"]),
    ({"SCHEDULE": "record", "CONSTANT_STEPS": "7"}, ["CONSTANT_STEPS=7", "SCHEDULE=lans", "not record"]),
    ({"SCHEDULE": "lans", "DECAY_START_STEP": "5"}, ["DECAY_START_STEP=5", "SCHEDULE=polynomial", "not lans"]),
    ({"SCHEDULE": "record", "DECAY_START_STEP": "82"}, ["DECAY_START_STEP=82", "SCHEDULE=polynomial", "not record"]),
    ({"SCHEDULE": "lans", "DECAY_POWER": "2"}, ["DECAY_POWER=2.0", "SCHEDULE=polynomial", "lans is a line"]),
    ({"SCHEDULE": "record", "DECAY_POWER": "0.5"}, ["DECAY_POWER=0.5", "record is a line"]),
    (FITTING[0] | {"DECAY_STEPS": "30"}, ["WARMUP_STEPS=10", "CONSTANT_STEPS=20", "step 30", "below DECAY_STEPS=30"]),
    (FITTING[1] | {"DECAY_STEPS": "29"}, ["START_WARMUP_STEP=-1", "step 29", "below DECAY_STEPS=29"]),
    (FITTING[2] | {"DECAY_STEPS": "82"}, ["WARMUP_STEPS=82", "below DECAY_STEPS=82", "SCHEDULE=record"]),
]


@pytest.mark.parametrize("environment", FITTING, ids=str)
def test_values_that_fit_are_accepted(environment: dict[str, str]) -> None:
    load(environment)


@pytest.mark.parametrize(("environment", "said"), CONTRADICTIONS, ids=str)
def test_values_that_contradict_the_schedule_are_one_error(environment: dict[str, str], said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(environment)
    [problem] = str(caught.value).splitlines()
    for part in said:
        assert part in problem
