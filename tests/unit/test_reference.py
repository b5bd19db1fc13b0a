"""Reference convergence points come from runs that reached their target with one configuration, and from no others."""

from __future__ import annotations

from typing import Any

import pytest

from tools.reference import _HYPERPARAMETERS, reference_points
from tools.verify.log import Record


def run(seed: int, samples: int, *, status: str = "success", **values: Any) -> list[Record]:
    settings = dict.fromkeys(_HYPERPARAMETERS, 1) | {"global_batch_size": 16, "submission_platform": "CPU"} | values
    logged = settings | {"seed": seed, "run_start": None, "train_samples": samples}
    records = [Record(line, key, value, 1.7e12, {}) for line, (key, value) in enumerate(logged.items(), start=1)]
    return [*records, Record(len(records) + 1, "run_stop", None, 1.7e12, {"status": status})]


def test_samples_to_target_are_listed_by_run_under_their_batch() -> None:
    points: Any = reference_points([run(1, 25600), run(2, 26400)])
    assert points["bert_ref_16"]["Epochs to converge"] == [25600, 26400]
    assert points["bert_ref_16"]["Seeds"] == [1, 2]
    assert points["bert_ref_16"]["BS"] == 16


def test_a_run_that_missed_its_target_is_refused() -> None:
    with pytest.raises(ValueError, match=r"logs \[1\]"):
        reference_points([run(1, 25600), run(2, 32000, status="aborted")])


def test_runs_of_different_configurations_are_refused() -> None:
    with pytest.raises(ValueError, match="different configurations"):
        reference_points([run(1, 25600), run(2, 26400, opt_base_learning_rate=2)])


def test_no_log_is_refused() -> None:
    with pytest.raises(ValueError, match="no logs"):
        reference_points([])
