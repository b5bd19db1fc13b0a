"""The RCP answers beside the official checker's on the same logs; and that nothing is written or removed meanwhile."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlperf_logging.rcp_checker import rcp_checker

from tests.support.submissions import (
    Spoil,
    abort,
    set_value,
    snapshot,
    use_placeholder,
    write_results,
)
from tools.verify.report import Rcp
from tools.verify.verify import verify


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "box" / "bert"


def rcp_of(folder: Path, round_name: str = "5.0.0") -> Rcp:
    (judged,) = verify(folder, round_name=round_name).folders
    assert judged.rcp is not None
    return judged.rcp


def two_aborted(folder: Path) -> None:
    for number in (2, 4):
        abort(folder / f"result_{number}.txt")


def mixed_samples(folder: Path) -> None:
    """Some runs at 14 evaluations among others of 16 and 17."""
    for number in (1, 3, 5):
        fewer = write_results(folder.parent / f"fewer_{number}", num_evaluations=13 + number)
        (fewer / f"result_{number}.txt").replace(folder / f"result_{number}.txt")


def other_train_samples(folder: Path) -> None:
    for path in folder.iterdir():
        set_value(path, "train_samples", 2_300_000)


def all_placeholders(folder: Path) -> None:
    for path in folder.iterdir():
        use_placeholder(path)


CASES: dict[str, tuple[dict[str, Any], Spoil | None]] = {
    "slow enough": ({}, None),
    "scaled": ({"num_evaluations": 16}, None),
    "too fast": ({"num_evaluations": 15}, None),
    "interpolated": ({"batch": 768}, None),
    "interpolated and scaled": ({"batch": 1024, "num_evaluations": 16}, None),
    "interpolated and too fast": ({"batch": 4096, "num_evaluations": 12}, None),
    "below all": ({"batch": 256}, None),
    "below all and too fast": ({"batch": 256, "num_evaluations": 15}, None),
    "above all": ({"batch": 20_000}, None),
    "on the largest, too fast": ({"batch": 16384, "num_evaluations": 12}, None),
    "one aborted": ({}, lambda folder: abort(folder / "result_2.txt")),
    "two aborted": ({}, two_aborted),
    "mixed": ({}, mixed_samples),
    "other train_samples": ({}, other_train_samples),
    "placeholders": ({}, all_placeholders),
}


@pytest.mark.parametrize("round_name", ["2.0.0", "5.0.0"])
@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_the_official_checkers(
    case: str, round_name: str, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields, spoil = CASES[case]
    write_results(results, **fields)
    if spoil:
        spoil(results)
    # it would remove scaling.json, and without a folder that of the root of the file system
    monkeypatch.setattr(rcp_checker.RCP_Checker, "_reset_results_scaling", lambda self, folder: None)
    answers = {
        by_train_samples: rcp_checker.check_directory(
            str(results), "training", round_name, False, by_train_samples, rcp_pass="pruned_rcps"
        )
        for by_train_samples in (False, True)
    }
    rcp = rcp_of(results, round_name)
    assert rcp.official_epoch_num == ("pass" if answers[False][0] else "fail")
    assert rcp.official_train_samples == ("pass" if answers[True][0] else "fail")
    passed, message, factor = answers[rcp.samples_from == "train_samples"]
    assert (rcp.passed, rcp.message) == (passed, message)
    assert rcp.scaling == (factor if passed else 1.0)  # nothing to scale where it fails


def test_nothing_is_written_or_removed(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The official checker writes scaling.json beside the results, and removes /scaling.json where it may not."""
    write_results(results, num_evaluations=16)
    (results / "scaling.json").write_text('{"scaling_factor": 1.0}')
    for path in (*results.iterdir(), results):
        path.chmod(0o555)
    before = snapshot(results)
    touched: list[str] = []
    for name in ("remove", "unlink", "rename", "replace", "rmdir", "mkdir"):
        monkeypatch.setattr(os, name, lambda *arguments, name=name, **options: touched.append(name))
    monkeypatch.setattr(builtins, "open", only_reading(touched))
    rcp = rcp_of(results)
    monkeypatch.undo()
    assert touched == []
    assert rcp.scaling > 1
    assert snapshot(results) == before


def only_reading(touched: list[str]) -> Callable[..., Any]:
    genuine = open

    def guarded(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if set(mode) & set("wax+"):
            touched.append(f"open {path}")
        return genuine(path, mode, *arguments, **options)

    return guarded
