"""Evaluations made from checkpoints after the training, as in some published logs, stand; squeezed clocks do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cheats import MINUTE_MS, of, only
from tests.support.submissions import Records, run_records, write_records, write_results
from tools.verify.finding import Severity
from tools.verify.report import Run
from tools.verify.run import judge
from tools.verify.verify import verify

NUM_LATER = 3  # blocks that were trained while the checkpoint that passed was not yet evaluated


def offline(records: Records) -> Records:
    """A block of training for each evaluation and some more; then all evaluations and run_stop, with blocks' times."""
    start, stop = only(records, "block_start"), only(records, "block_stop")
    evaluations = of(records, "eval_accuracy")
    samples_at_end, run_stop = of(records, "train_samples", "eval_samples"), only(records, "run_stop")
    ends = [record["time_ms"] for record in evaluations]
    ends += [ends[-1] + MINUTE_MS * (more + 1) for more in range(NUM_LATER)]
    begins = [start["time_ms"], *ends]
    blocks = [
        {**record, "time_ms": time_ms, "metadata": record["metadata"] | {"first_epoch_num": number + 1}}
        for number, end in enumerate(ends)
        for record, time_ms in ((start, begins[number]), (stop, end))
    ]
    before = records[: records.index(start)]
    return [*before, *blocks, *evaluations, *samples_at_end, run_stop | {"time_ms": evaluations[-1]["time_ms"]}]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "result_0.txt"


def judged(path: Path, records: Records) -> Run:
    write_records(path, records)
    return judge(path, "5.0.0", as_submitted=False)[0]


def said(run: Run) -> list[tuple[str, Severity]]:
    return [(finding.rule.id, finding.severity) for finding in run.findings]


def test_offline_evaluations_are_a_warning(path: Path) -> None:
    honest = run_records()
    run = judged(path, offline(honest))
    assert said(run) == [("time.order", Severity.WARNING)]
    assert run.official == "pass"
    assert run.samples == judged(path, honest).samples
    assert run.minutes is not None


def test_ten_runs_with_offline_evaluations_stand(tmp_path: Path) -> None:
    folder = write_results(tmp_path / "box")
    for number in range(10):
        write_records(folder / f"result_{number}.txt", offline(run_records(number)))
    assert not verify(folder).failed


# --- what is no offline evaluation


def one_evaluation_between_blocks(records: Records) -> None:
    of(records, "eval_accuracy")[4]["time_ms"] += 5_000


def evaluations_behind_the_start(records: Records) -> None:
    start = only(records, "run_start")["time_ms"]
    for place, record in enumerate(of(records, "eval_accuracy")):
        record["time_ms"] = start + 1 + place
    only(records, "run_stop")["time_ms"] = start + 100


def the_run_starts_late(records: Records) -> None:
    only(records, "run_start")["time_ms"] += 2 * 1001


def a_block_starts_before_the_one_before_ends(records: Records) -> None:
    of(records, "block_start")[2]["time_ms"] -= 1001


@pytest.mark.parametrize(
    "spoil",
    [
        one_evaluation_between_blocks,
        evaluations_behind_the_start,
        the_run_starts_late,
        a_block_starts_before_the_one_before_ends,
    ],
)
def test_times_that_are_no_blocks_are_errors(spoil: object, path: Path) -> None:
    records = offline(run_records())
    assert callable(spoil)
    spoil(records)
    assert ("time.order", Severity.ERROR) in said(judged(path, records))
