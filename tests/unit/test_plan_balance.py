"""The table of balance reads a histogram of lengths, draws from it, and refuses what is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.bert.bench.balance import HistogramError, read_histogram, write_lengths
from tests.support.plans import CHECKOUT


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_histogram_is_read_by_its_headings(tmp_path: Path) -> None:
    assert read_histogram(write(tmp_path / "a.csv", "count,length", "3,2", "1,4", "2,2")).tolist() == [0, 0, 5, 0, 1]


@pytest.mark.parametrize(
    "lines",
    [
        ("length,number", "1,2"),
        ("length,count", "1,x"),
        ("length,count", "1"),
        ("length,count",),
        ("length,count", "-1,2"),
    ],
)
def test_what_is_no_histogram_is_refused_by_name(tmp_path: Path, lines: tuple[str, ...]) -> None:
    with pytest.raises(HistogramError, match=r"a\.csv: expected"):
        read_histogram(write(tmp_path / "a.csv", *lines))
    with pytest.raises(HistogramError, match=r"b\.csv: cannot read it"):
        read_histogram(tmp_path / "b.csv")


def test_lengths_are_drawn_by_their_counts(tmp_path: Path) -> None:
    write_lengths(tmp_path / "lengths.npy", np.array([0, 1, 0, 3]), 10_000)
    shares = np.bincount(np.load(tmp_path / "lengths.npy")) / 10_000
    assert shares.tolist() == pytest.approx([0, 0.25, 0, 0.75], abs=0.02)


def test_a_missing_file_ends_the_command_with_one_line_and_status_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.bert.bench.balance", "--histogram", str(tmp_path / "absent.csv")]
    run = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr == f"error: {tmp_path / 'absent.csv'}: cannot read it (No such file or directory)\n"


def test_the_costs_of_planning_are_a_row_for_each_layout(tmp_path: Path) -> None:
    histogram = write(tmp_path / "a.csv", "length,count", "10,5", "100,5", "200,2")
    command = [sys.executable, "-m", "benchmarks.bert.bench.balance", "--histogram", str(histogram), "--scale", "40000"]
    run = subprocess.run(
        [*command, "--strategies", "least_loaded"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert [line.split(" | ")[1] for line in run.stdout.splitlines()[3:]] == ["1,024 x 16", "1,368 x 12"]
