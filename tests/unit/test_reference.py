"""Reference convergence points come from runs that reached their target with one configuration, and from no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools.reference import _HYPERPARAMETERS, last_records, reference_points
from tools.verify.log import Record


def run(seed: int, samples: int, *, status: str = "success", **variables: Any) -> dict[str, Record]:
    configuration = {"NUM_LAYERS": 2, "SEED": seed, "RESULT_FILE": f"result_{seed}.txt"} | variables
    logged = dict.fromkeys(_HYPERPARAMETERS, 1) | {
        "global_batch_size": 16,
        "submission_platform": "CPU",
        "configuration": {name: {"value": value, "source": "default"} for name, value in configuration.items()},
        "seed": seed,
        "run_start": None,
        "train_samples": samples,
    }
    records = {key: Record(1, key, value, 1_700_000_000_000, {}, "", True) for key, value in logged.items()}
    stop = Record(1, "run_stop", None, 1_700_000_000_000, {"status": status}, "", True)
    return records | {"run_stop": stop}


def test_samples_to_target_are_listed_by_run_under_their_batch() -> None:
    points: Any = reference_points({"a": run(1, 25600), "b": run(2, 26400)})
    assert points["bert_ref_16"]["Epochs to converge"] == [25600, 26400]
    assert points["bert_ref_16"]["Seeds"] == [1, 2]
    assert points["bert_ref_16"]["BS"] == 16


def test_a_run_that_missed_its_target_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="b: this run did not reach"):
        reference_points({"a": run(1, 25600), "b": run(2, 32000, status="aborted")})


def test_a_log_without_an_end_is_refused_by_name() -> None:
    cut = {key: record for key, record in run(2, 26400).items() if key != "run_stop"}
    with pytest.raises(ValueError, match="b: this run did not reach"):
        reference_points({"a": run(1, 25600), "b": cut})


def test_another_model_is_refused_with_the_variable_that_differs() -> None:
    with pytest.raises(ValueError, match="b: its NUM_LAYERS differ from those of a"):
        reference_points({"a": run(1, 25600), "b": run(2, 26400, NUM_LAYERS=3)})


def test_a_log_of_another_project_is_refused() -> None:
    foreign = {key: record for key, record in run(1, 25600).items() if key != "configuration"}
    with pytest.raises(ValueError, match="a: it lacks configuration"):
        reference_points({"a": foreign})


def test_no_log_is_refused() -> None:
    with pytest.raises(ValueError, match="no logs"):
        reference_points({})


def test_a_log_with_a_broken_line_is_refused_by_its_line(tmp_path: Path) -> None:
    log = tmp_path / "result_0.txt"
    log.write_text('text\n:::MLLOG {"key": "seed", "val\n')
    with pytest.raises(ValueError, match=r"result_0.txt:2: not a whole MLLOG record"):
        last_records(log)
