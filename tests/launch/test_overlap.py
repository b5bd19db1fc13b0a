"""The measurement of overlap: its table, the order in its traces, and that nothing of it stays. No test looks at times.

Skipped where no network namespaces can be made.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.slurm import wait_until
from tests.support.tiny import ROOT, clean_environment
from tests.unit.test_profile import UNDER_BACKWARD, check_order, events_of, steps_of
from tools.bench import overlap_link
from tools.bench.overlap import HEADING, main, rows
from tools.bench.overlap_link import INTERFACE, Link, LinkError, check_machine
from tools.bench.overlap_rank import SUBJECTS, VARIANTS

COMMAND = [sys.executable, "-m", "tools.bench.overlap", "--layers", "2", "--hidden", "32", "--tokens", "16"]
SMALLEST = [*COMMAND, "--bucket-mb", "0.02", "--rates-mbit", "1000", "--rounds", "2", "--steps", "1"]
ENDLESS = [*COMMAND, "--rounds", "1000000"]
LIMIT_S = 240


def why_not() -> str:
    try:
        check_machine()
    except LinkError as error:
        return str(error)
    return ""


needs_link = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What the smallest measurement prints, and its traces."""
    traces = tmp_path_factory.mktemp("overlap") / "traces"
    done = subprocess.run(
        [*SMALLEST, "--traces", traces],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, traces


@needs_link
def test_the_table_has_a_row_for_all_that_is_measured(measured: tuple[str, Path]) -> None:
    about, empty, heading, line, *table = measured[0].splitlines()
    assert re.fullmatch(r"[\d,]+ parameters, [\d.]+ MiB of gradients in \d+ buckets; 2 rounds of 1 steps", about)
    assert (empty, heading) == ("", HEADING)
    assert line == "|---|---|---|---|---|"
    columns = [[cell.strip() for cell in row.strip("|").split("|")] for row in table]
    assert [of_row[1] for of_row in columns] == list(SUBJECTS)
    for link, name, ratio, span, hidden in columns:
        assert link == "1000 Mbit/s"
        low, high = (float(text) for text in span.split(" to "))
        assert low <= float(ratio) <= high
        assert bool(re.fullmatch(r"-?\d+%", hidden)) == (name in VARIANTS)
    assert columns[SUBJECTS.index("none")][2:4] == ["1.00", "1.00 to 1.00"]


@needs_link
@pytest.mark.parametrize("clip", VARIANTS)
def test_the_traces_show_which_variant_reduces_under_backward(measured: tuple[str, Path], clip: str) -> None:
    for rank in (0, 1):
        steps = steps_of(events_of(measured[1] / "1000mbit_0ms" / clip / f"rank_{rank}.json"))
        assert len(steps) == 2
        for step in steps:
            check_order(step, under_backward=clip in UNDER_BACKWARD)
            with pytest.raises(AssertionError, match="an all-reduce is started"):
                check_order(step, under_backward=clip not in UNDER_BACKWARD)


def ranks_of(pid: int) -> list[int]:
    """Those of the measurement `pid` that have their end of the cable."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = [int(text) for text in children.read_text().split()] if children.exists() else []
    return [child for child in found if is_rank(child) and has_cable(child)]


def is_rank(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"tools.bench.overlap_rank" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def has_cable(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return INTERFACE in Path(f"/proc/{pid}/net/dev").read_text()
    return False


@needs_link
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_ranks_and_cable_are_gone_whatever_ends_the_measurement(number: signal.Signals, status: int) -> None:
    process = subprocess.Popen(ENDLESS, cwd=ROOT, env=clean_environment(), stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: len(ranks_of(process.pid)) == 2, LIMIT_S, "a cable between two ranks")
        ranks = ranks_of(process.pid)
        assert len(ranks) == 2
        process.send_signal(number)
        _, said = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == status
    assert "Traceback" not in said
    wait_until(lambda: not any(map(is_rank, ranks)), LIMIT_S, "end of the ranks")
    assert not has_cable(os.getpid())


@needs_link
def test_a_rank_that_ends_ends_the_measurement_with_one_line() -> None:
    process = subprocess.Popen(ENDLESS, cwd=ROOT, env=clean_environment(), stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: len(ranks_of(process.pid)) == 2, LIMIT_S, "a cable between two ranks")
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        _, said = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert said.splitlines()[-1] == "error: a rank ended before it had answered; what it said is above"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param({"geteuid": lambda: 1000}, "needs root", id="no root"),
        pytest.param({"sched_getaffinity": lambda _: {0}}, "needs two cores", id="one core"),
    ],
)
def test_what_the_machine_lacks_is_one_line_and_status_2(
    changed: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(overlap_link.shutil, "which", lambda program: program)
    for name, stand_in in changed.items():
        monkeypatch.setattr(os, name, stand_in)
    monkeypatch.setattr(sys, "argv", ["overlap"])
    assert main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {said}")


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("--rounds", "0", "must be at least 1"),
        ("--steps", "x", "invalid"),
        ("--rates-mbit", "0", "must be above 0"),
        ("--rates-mbit", "nan", "must be above 0"),
        ("--delay-ms", "-1", "must be at least 0"),
        ("--traces", str(ROOT), "exists; name a folder that is to be made"),
    ],
)
def test_a_bad_option_is_named_with_its_value(
    option: str, text: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["overlap", f"{option}={text}"])
    try:
        status = main()
    except SystemExit as end:
        status = int(end.code or 0)
    assert status == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert option in last
    assert text in last
    assert said in last


def test_programs_that_are_missing_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(overlap_link.shutil, "which", lambda program: None if program in ("tc", "ip") else program)
    with pytest.raises(LinkError, match=r"^ip, tc not found; install Debian's iproute2$"):
        check_machine()


def test_the_rows_are_ratios_within_a_round_and_what_a_step_saves_of_the_all_reduces() -> None:
    """Computing 1 s, all-reduces 2 s: 3 s hide nothing, 2 s half. The second round is twice as slow, by other load."""
    of_step = {
        "compute alone": 1.0,
        "all-reduces alone": 2.0,
        "none": 2.0,
        "bucket_before": 2.1,
        "global_after": 2.2,
        "global_before": 3.0,
    }
    seconds = {name: [[step_s, 9 * step_s, step_s], [2 * step_s] * 3] for name, step_s in of_step.items()}
    seconds["processor"] = [[0.5], [1.0]]
    assert rows(Link(100, 0.5), seconds) == [
        "| 100 Mbit/s, 0.5 ms | compute alone | 0.50 | 0.50 to 0.50 |  |",
        "| 100 Mbit/s, 0.5 ms | all-reduces alone | 1.00 | 1.00 to 1.00 | (its core is busy for 25% of it) |",
        "| 100 Mbit/s, 0.5 ms | none | 1.00 | 1.00 to 1.00 | 50% |",
        "| 100 Mbit/s, 0.5 ms | bucket_before | 1.05 | 1.05 to 1.05 | 45% |",
        "| 100 Mbit/s, 0.5 ms | global_after | 1.10 | 1.10 to 1.10 | 40% |",
        "| 100 Mbit/s, 0.5 ms | global_before | 1.50 | 1.50 to 1.50 | 0% |",
    ]
