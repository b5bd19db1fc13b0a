"""The verifier's and the official checker's verdicts on logs that this project wrote, whole and with parts missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.logs import MARK, without, write
from tests.support.records import read_records
from tests.support.run_logs import write_full_log, write_log_that_speaks_of_run_stop
from tools.verify.log import UnreadableLogError, read_log
from tools.verify.report import Run
from tools.verify.run import judge

RULESET = "5.0.0"
REQUIRED_EVERYWHERE = (
    "submission_benchmark",
    "submission_division",
    "cache_clear",
    "init_start",
    "init_stop",
    "run_start",
    "run_stop",
    "block_start",
    "block_stop",
    "eval_accuracy",
    "train_samples",
    "eval_samples",
)
REQUIRED_IN_CLOSED = (
    "seed",
    "global_batch_size",
    "gradient_accumulation_steps",
    "opt_base_learning_rate",
    "opt_learning_rate_training_steps",
    "opt_learning_rate_warmup_steps",
    "num_warmup_steps",
    "start_warmup_step",
    "opt_lamb_beta_1",
    "opt_lamb_beta_2",
    "opt_lamb_weight_decay_rate",
    "opt_lamb_epsilon",
)
DIVISIONS = ("open", "closed")


@pytest.fixture(scope="module")
def full_logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A passing log of each division; not to be changed."""
    folder = tmp_path_factory.mktemp("full")
    paths = {division: folder / f"{division}.txt" for division in DIVISIONS}
    for division, path in paths.items():
        write_full_log(path, division)
    return paths


def verdict(path: Path) -> Run:
    return judge(path, RULESET, as_submitted=True)[0]


def lines_of(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


# --- whole logs


@pytest.mark.parametrize("division", DIVISIONS)
def test_a_whole_log_passes_without_a_finding(division: str, full_logs: dict[str, Path]) -> None:
    run = verdict(full_logs[division])
    assert run.findings == ()
    assert (run.official, run.status, run.division) == ("pass", "success", division)
    assert (run.seed, run.batch, run.samples, run.accuracy) == (5, 16, 128, 0.73)


@pytest.mark.parametrize("division", DIVISIONS)
def test_a_whole_log_passes_the_official_checkers_own_command(
    division: str, full_logs: dict[str, Path], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "mlperf_logging.compliance_checker", "--usage", "training", "--ruleset", RULESET]
    run = subprocess.run(
        [*command, str(full_logs[division])],
        cwd=tmp_path,  # it leaves a file there
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0
    assert "SUCCESS" in run.stderr


@pytest.mark.parametrize(
    ("division", "key"),
    [
        *(("open", key) for key in REQUIRED_EVERYWHERE),
        *(("closed", key) for key in REQUIRED_EVERYWHERE + REQUIRED_IN_CLOSED),
    ],
)
def test_a_log_without_a_required_record_fails_for_that_key(
    division: str, key: str, full_logs: dict[str, Path], tmp_path: Path
) -> None:
    run = verdict(write(tmp_path / "log", without(lines_of(full_logs[division]), key)))
    assert run.failed
    assert key in {finding.key for finding in run.findings}


@pytest.mark.parametrize("key", REQUIRED_IN_CLOSED)
def test_the_open_division_does_not_ask_for_the_closed_ones(
    key: str, full_logs: dict[str, Path], tmp_path: Path
) -> None:
    assert not verdict(write(tmp_path / "log", without(lines_of(full_logs["open"]), key))).failed


# --- what cannot be judged


@pytest.mark.parametrize("content", [None, b"no record\nin here\n", b"\x00\xff\xfe", b":::MLLOG"])
def test_no_log_cannot_be_judged(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "log"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnreadableLogError, match=str(path)):
        verdict(path)


# --- reading


def test_other_lines_and_prefixes_are_passed_over_and_line_numbers_are_the_files(
    full_logs: dict[str, Path], tmp_path: Path
) -> None:
    lines = ["step 1", *(f"0: {line}" for line in lines_of(full_logs["open"])), "", "done"]
    path = write(tmp_path / "log", lines, "\r\n")
    assert verdict(path).findings == ()
    assert [record.line for record in read_records(path)] == list(range(2, len(lines) - 1))


def test_a_byte_that_latin_1_takes_for_a_line_end_is_none(full_logs: dict[str, Path], tmp_path: Path) -> None:
    """0x85 is a byte of many UTF-8 characters; the official parser splits lines at \\n, \\r and \\r\\n alone."""
    path = tmp_path / "log"
    value = "\N{HORIZONTAL ELLIPSIS}\N{CYRILLIC CAPITAL LETTER DZE}"
    note = {"namespace": "", "event_type": "", "time_ms": 1_748_000_000_000, "key": "note", "value": value}
    line = MARK + json.dumps(note | {"metadata": {}}, ensure_ascii=False)
    path.write_bytes(f"{line}\n".encode() + full_logs["open"].read_bytes())
    assert b"\x85" in path.read_bytes()
    assert [(record.key, record.line) for record in read_records(path)][:2] == [("note", 1), ("cache_clear", 2)]
    assert verdict(path).findings == ()


def test_a_record_is_read_whole(full_logs: dict[str, Path]) -> None:
    record = next(record for record in read_records(full_logs["open"]) if record.key == "eval_accuracy")
    assert record.value == 0.5
    assert record.metadata["epoch_num"] == record.meta("samples_count") == 64


def test_the_text_run_stop_inside_another_record_is_no_run_stop(tmp_path: Path) -> None:
    """Known fault 87."""
    path = tmp_path / "log"
    write_log_that_speaks_of_run_stop(path)
    assert [record.key for record in read_records(path)] == ["configuration", "run_start", "tracked_stats"]
    assert "log.truncated" in {finding.rule.id for finding in verdict(path).findings}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"key": "seed"}', "time_ms"),
        ('{"key": "seed", "time_ms": 1, "value": 1}', "metadata"),
        ('{"key": "seed", "time_ms": 1, "metadata": {}}', "value"),
        ('{"key": "se', "Unterminated"),
        ("[1]", "list"),
    ],
)
def test_a_line_that_is_no_record_says_why_and_where(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"step 1\n{MARK}{line}\n")
    (flaw,) = read_log(tmp_path / "log").flaws
    assert flaw.line == 2
    assert said in flaw.error
