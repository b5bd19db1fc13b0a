"""A folder's score: computed by hand here, from the minutes that the runs were written with."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from tests.support.reports import judge
from tests.support.submissions import (
    EVAL_S,
    INIT_S,
    MINUTES,
    NUM_EVALUATIONS,
    STARTUP_S,
    abort,
    results_of,
    run_records,
    set_description,
    write_records,
    write_results,
)
from tools.verify.report import Score

COUNTED = [30.0, 31.0, 29.0, 33.0, 30.5, 32.0, 31.5, 30.25]  # of MINUTES, without the fastest 28 and the slowest 34
MEAN = 30.90625
SAMPLES = 2_550_016  # to the target, the 17th multiple of 150,000 at the end of its batch of 448


def score_of(folder: Path) -> Score:
    score = judge(folder).score
    assert score is not None
    return score


def test_the_score_is_the_mean_without_the_fastest_and_the_slowest_run(root: Path) -> None:
    score = score_of(results_of(root))
    assert score.minutes == MINUTES
    assert score.dropped == (8, 7)
    assert score.mean_minutes == pytest.approx(MEAN, abs=1e-9)
    assert statistics.fmean(COUNTED) == MEAN
    assert score.spread == pytest.approx(statistics.stdev(COUNTED) / MEAN)
    assert (score.scaling, score.scaled_minutes) == (1.0, score.mean_minutes)
    assert score.counts


def test_the_order_of_the_files_does_not_count_for_more_than_their_numbers(root: Path) -> None:
    """result_10.txt comes after result_9.txt."""
    folder = results_of(root)
    (folder / "result_0.txt").rename(folder / "result_10.txt")
    assert score_of(folder).minutes == (*MINUTES[1:], MINUTES[0])
    assert judge(folder).findings == ()


def test_rates_times_and_shares(root: Path) -> None:
    score = score_of(results_of(root))
    counted = sorted(MINUTES)[1:-1]
    rates = [SAMPLES / (60 * minutes) for minutes in counted]
    shares = [NUM_EVALUATIONS * EVAL_S / (60 * minutes) for minutes in counted]
    assert score.samples == SAMPLES
    assert score.samples_per_s == pytest.approx(statistics.fmean(rates))
    assert score.num_accelerators == 8
    assert score.samples_per_s_and_accelerator == pytest.approx(statistics.fmean(rates) / 8)
    assert score.init_s == INIT_S
    assert score.eval_share == pytest.approx(statistics.fmean(shares))
    assert score.startup_s == pytest.approx(STARTUP_S, abs=0.01)


@pytest.mark.parametrize(
    ("nodes", "per_node", "number"), [("1", "8", 8), ("16", "8", 128), ("0", "8", None), ("x", "8", None)]
)
def test_accelerators_are_those_of_all_nodes(nodes: str, per_node: str, number: int | None, root: Path) -> None:
    set_description(root, number_of_nodes=nodes, accelerators_per_node=per_node)
    score = score_of(results_of(root))
    assert score.num_accelerators == number
    assert (score.samples_per_s_and_accelerator is None) is (number is None)


@pytest.mark.parametrize("field", ["number_of_nodes", "accelerators_per_node"])
def test_without_a_number_of_accelerators_there_is_no_rate_of_one(field: str, root: Path) -> None:
    set_description(root, **{field: None})
    assert score_of(results_of(root)).samples_per_s_and_accelerator is None


def test_a_run_that_did_not_converge_counts_as_the_slowest(root: Path) -> None:
    """Of 34 minutes it would be; of 28 it would be the fastest, and may not be counted so."""
    folder = results_of(root)
    abort(folder / "result_8.txt")
    score = score_of(folder)
    assert score.minutes[8] is None
    assert score.dropped == (2, 8)  # 29 minutes are the fastest now
    assert score.mean_minutes == pytest.approx((sum(COUNTED) - 29 + 34) / 8)
    assert score.samples == SAMPLES
    assert score.counts
    assert not judge(folder).failed


def test_two_runs_that_did_not_converge_leave_no_score(root: Path) -> None:
    folder = results_of(root)
    for number in (3, 8):
        abort(folder / f"result_{number}.txt")
    judged = judge(folder)
    assert judged.failed
    assert judged.score is not None
    assert judged.score.mean_minutes is None
    assert judged.score.scaled_minutes is None
    assert judged.score.spread is None
    assert not judged.score.counts


def test_two_runs_that_did_not_converge_are_one_cause(root: Path) -> None:
    """That the reference cannot be compared with only follows from it."""
    folder = results_of(root)
    for number in (3, 8):
        abort(folder / f"result_{number}.txt")
    assert [finding.rule.id for finding in judge(folder).findings] == ["runs.failed"]


def test_nine_and_eleven_runs_have_figures_that_do_not_count(root: Path) -> None:
    folder = results_of(root)
    write_records(folder / "result_10.txt", run_records(10))
    eleven = score_of(folder)
    assert len(eleven.minutes) == 11
    assert eleven.mean_minutes == pytest.approx((sum(COUNTED) + MINUTES[0]) / 9)
    assert not eleven.counts
    for number in (10, 9):
        (folder / f"result_{number}.txt").unlink()
    nine = score_of(folder)
    assert nine.mean_minutes == pytest.approx((sum(COUNTED) - MINUTES[9]) / 7)
    assert not nine.counts


@pytest.mark.parametrize("num_runs", [1, 2])
def test_of_under_three_runs_nothing_is_left_to_score(num_runs: int, tmp_path: Path) -> None:
    judged = judge(write_results(tmp_path / "bert", num_runs), num_runs=num_runs)
    assert judged.score is None
    assert judged.rcp is None
    assert not judged.failed


def test_of_three_runs_the_middle_one_is_the_score(tmp_path: Path) -> None:
    judged = judge(write_results(tmp_path / "bert", 3), num_runs=3)
    assert judged.score is not None
    assert judged.score.mean_minutes == 30.0
    assert judged.score.spread is None
    assert judged.score.counts


def test_convergence_faster_than_the_references_mean_scales_the_score(tmp_path: Path) -> None:
    """16 evaluations, 2,400,384 samples: between the least allowed and the reference's mean of 2,414,421.33."""
    score = score_of(write_results(tmp_path / "bert", num_evaluations=16))
    assert score.scaling == pytest.approx((2_414_421 + 1 / 3) / 2_400_384)
    assert score.mean_minutes == pytest.approx(MEAN)
    assert score.scaled_minutes == pytest.approx(MEAN * 1.0058480, rel=1e-7)


def test_in_the_open_division_nothing_is_scaled(tmp_path: Path) -> None:
    folder = judge(write_results(tmp_path / "bert", num_evaluations=16, division="open"))
    assert folder.rcp is not None
    assert folder.rcp.scaling > 1
    assert folder.score is not None
    assert folder.score.scaling == 1.0


def test_a_folder_that_fails_otherwise_has_figures_that_do_not_count(tmp_path: Path) -> None:
    score = score_of(write_results(tmp_path / "bert", num_evaluations=15))  # faster than the reference may be
    assert score.mean_minutes == pytest.approx(MEAN)
    assert score.scaling == 1.0
    assert not score.counts
