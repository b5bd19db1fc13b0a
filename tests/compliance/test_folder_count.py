"""How many runs a folder holds, how many are asked for, and which ten of more are advised."""

from __future__ import annotations

from pathlib import Path

from tests.support.reports import judge, only
from tests.support.submissions import Records, abort, run_records, write_records


def add_run(folder: Path) -> None:
    write_records(folder / "result_10.txt", run_records(10))


def test_eleven_runs_are_told_which_ten_to_keep(results: Path) -> None:
    add_run(results)  # as long as run 0: both windows hold the same times
    assert "result_0.txt to result_9.txt" in only(judge(results)).mend


def test_of_three_windows_the_median_one_is_advised(results: Path) -> None:
    """Each window drops a slow first run for a fast last one: the middle one lies between the others."""
    for number, minutes in ((0, 50), (1, 40), (10, 20), (11, 10)):
        records = run_records(number)
        stretch(records, minutes)
        write_records(results / f"result_{number}.txt", records)
    assert "result_1.txt to result_10.txt" in only(judge(results)).mend


def test_a_window_with_two_failed_runs_is_not_advised(results: Path) -> None:
    """Only the last window has but one run that did not converge."""
    for number in (0, 5):
        abort(results / f"result_{number}.txt")
    add_run(results)
    (count,) = [finding for finding in judge(results).findings if finding.rule.id == "runs.count"]
    assert "result_1.txt to result_10.txt" in count.mend


def stretch(records: Records, minutes: float) -> None:
    """The run to so many minutes."""
    start = next(record["time_ms"] for record in records if record["key"] == "run_start")
    factor = 60_000 * minutes / (records[-1]["time_ms"] - start)
    for record in records:
        if record["time_ms"] > start:
            record["time_ms"] = start + round(factor * (record["time_ms"] - start))


def test_other_counts_of_runs_may_be_asked_for(results: Path) -> None:
    for number in range(5, 10):
        (results / f"result_{number}.txt").unlink()
    assert only(judge(results)).rule.id == "runs.count"
    assert judge(results, num_runs=5).findings == ()
