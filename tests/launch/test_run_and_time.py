"""The real run_and_time.sh on tiny data: its exit status, verdict, files and signals."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.records import read_records
from tests.support.tiny import ROOT, clean_environment, make_tiny_data, tiny_variables
from tools.verify.log import Record

PLATFORM = "pytest_tiny"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in a folder whose name has a space; results of tests stay out of the real checkout."""
    folder = tmp_path_factory.mktemp("checkout") / "a b"

    def not_the_project(of: str, names: list[str]) -> set[str]:
        made = {"data", "results"} if Path(of) == ROOT else set()
        return {name for name in names if name.startswith(".") or name == "__pycache__" or name in made}

    shutil.copytree(ROOT, folder, ignore=not_the_project)
    return folder


def write_config(path: Path, data: Path, **changed: str) -> Path:
    """A file that only exports; RESULT_FILE is left to the script."""
    variables = tiny_variables(data, Path("unused")) | {"SUBMISSION_PLATFORM": PLATFORM} | changed
    del variables["RESULT_FILE"]
    path.write_text("".join(f"export {name}={value}\n" for name, value in variables.items()))
    return path


def environment(config: Path, **changed: str) -> dict[str, str]:
    ours = clean_environment() | {"CONFIG": str(config), "PYTHON": sys.executable}
    del ours["PYTHONPATH"]  # the script must find its own checkout
    return ours | changed


def run(checkout: Path, config: Path, **changed: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "run_and_time.sh"],
        cwd=config.parent,  # it goes to its own folder by itself
        env=environment(config, **changed),
        capture_output=True,
        text=True,
        timeout=90,
    )


def kill_session(leader: int) -> None:
    """What a failed test leaves: the launcher has a process group of its own."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(entry.read_text().rpartition(")")[2].split()[3]) == leader:
                os.kill(int(entry.parent.name), signal.SIGKILL)


def stop_of(log: Path) -> Record:
    (stop,) = [record for record in read_records(log) if record.key == "run_stop"]
    return stop


def test_trials_are_numbered_pass_and_print_their_verdict_in_a_checkout_with_a_space(
    checkout: Path, data: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "config_tiny.sh", data)
    results = checkout / "results" / PLATFORM
    for trial in (0, 1):
        done = run(checkout, config)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        verdict = done.stdout.splitlines()
        assert verdict[0] == f"PASSED   results/{PLATFORM}/result_{trial}.txt, ruleset 5.0.0"
        assert re.fullmatch(r"time     \d+\.\d s from run_start to run_stop, after \d+\.\d s of init\w+", verdict[1])
        assert re.fullmatch(r"accuracy 0\.\d{4} masked-LM after 64 samples", verdict[2])
        assert re.fullmatch(r"speed    [\d,]+\.\d samples/s", verdict[3])
        assert sorted(path.name for path in results.iterdir()) == [f"result_{n}.txt" for n in range(trial + 1)]
    log = results / "result_1.txt"
    assert stop_of(log).metadata["status"] == "success"
    # Relative, though a space is in the path.
    assert (
        read_records(log)[0].metadata["file"] == "benchmarks/bert/record.py"
    )  # relative, though a space is in the path
    configuration = next(record.value for record in read_records(log) if record.key == "configuration")
    assert configuration["BATCH_SIZE"] == {"value": 8, "source": str(config)}


def test_a_missed_target_fails_and_the_callers_variable_wins_over_the_file(
    checkout: Path, data: Path, tmp_path: Path
) -> None:
    """The must-fail twin: all as above but for one variable of the caller's."""
    result = tmp_path / "result.txt"
    done = run(checkout, write_config(tmp_path / "config.sh", data), TARGET_ACCURACY="0.99", RESULT_FILE=str(result))
    assert done.returncode == 1
    assert done.stdout.startswith(f"FAILED   {result}, ruleset 5.0.0\n")
    assert "the run's status is 'aborted' (accuracy 0.99 not reached within MAX_STEPS=12)" in done.stdout
    assert "error: accuracy 0.99 not reached" in done.stderr
    assert "Traceback" not in done.stderr
    assert stop_of(result).metadata["status"] == "aborted"
    configuration = next(record.value for record in read_records(result) if record.key == "configuration")
    assert configuration["TARGET_ACCURACY"] == {"value": 0.99, "source": "environment"}
    assert configuration["MAX_STEPS"] == {"value": 12, "source": str(tmp_path / "config.sh")}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_script_ends_the_ranks_once_and_the_log_as_aborted(
    checkout: Path, data: Path, tmp_path: Path, number: signal.Signals
) -> None:
    config = write_config(tmp_path / "config.sh", data, TARGET_ACCURACY="0.99", MAX_STEPS="1000000")
    result = tmp_path / "result.txt"
    with open(tmp_path / "output", "w+") as output:
        script = subprocess.Popen(
            [checkout / "run_and_time.sh"],
            env=environment(config, RESULT_FILE=str(result)),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + 60
            while not (result.exists() and "eval_accuracy" in result.read_text()):
                assert time.monotonic() < deadline
                assert script.poll() is None
                time.sleep(0.05)
            sent = time.monotonic()
            script.send_signal(number)
            assert script.wait(20) == 128 + number
            assert time.monotonic() - sent < 15
        finally:
            kill_session(script.pid)
            script.wait()
        output.seek(0)
        said = output.read()
    assert "error: stopped by SIGTERM" in said  # what the script sends the ranks, whatever it was sent
    assert "FAILED" in said
    assert "Traceback" not in said
    assert stop_of(result).metadata["status"] == "aborted"
    assert stop_of(result).metadata["reason"].endswith("SIGTERM")


def test_a_result_of_another_run_is_refused_untouched_and_never_judged(
    checkout: Path, data: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "config.sh", data)
    result = tmp_path / "result.txt"
    result.write_text("a result\n")
    run = subprocess.run(
        [checkout / "run_and_time.sh"],
        env=environment(config, RESULT_FILE=str(result)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 2
    assert f"RESULT_FILE={result}: exists" in run.stderr
    assert "PASSED" not in run.stdout
    assert "FAILED" not in run.stdout
    assert result.read_text() == "a result\n"


def test_a_config_file_that_would_do_more_than_export_is_never_run(checkout: Path, data: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "config.sh", data)
    with open(config, "a") as file:
        file.write(f"touch '{tmp_path}/ran'\nexit 0\n")
    run = subprocess.run(
        [checkout / "run_and_time.sh"], env=environment(config), capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 2
    assert "is not of the form `export NAME=value`" in run.stderr
    assert not (tmp_path / "ran").exists()


def test_a_refused_configuration_starts_nothing_and_exits_with_2(checkout: Path, data: Path, tmp_path: Path) -> None:
    results = checkout / "results"
    before = sorted(results.rglob("*")) if results.exists() else []
    config = write_config(tmp_path / "config.sh", data, LEARNING_RATE="fast")
    with open(config, "a") as file:
        file.write("export LERNING_RATE=1\n")
    done = run(checkout, config)
    assert done.returncode == 2
    assert done.stdout == ""
    errors = done.stderr.splitlines()
    assert all(line.startswith("error: ") for line in errors)
    assert f"{config}:20: unknown variable LERNING_RATE; the nearest valid one is LEARNING_RATE" in done.stderr
    assert f"LEARNING_RATE='fast' (from {config}): expected a number" in done.stderr
    assert (sorted(results.rglob("*")) if results.exists() else []) == before


def test_a_missing_configuration_is_refused_by_name(checkout: Path, tmp_path: Path) -> None:
    done = run(checkout, tmp_path / "config_absent.sh")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: CONFIG={tmp_path}/config_absent.sh: no such file")
    assert "config_CPU_1x2" in done.stderr


def test_a_configuration_of_the_checkout_is_taken_by_its_name_and_data_may_be_absent_from_it(
    checkout: Path, data: Path, tmp_path: Path
) -> None:
    """Without DATA_DIR in the file and from the caller the default applies: no unbound variable of the shell."""
    config = write_config(checkout / "config_pytest.sh", data, RANKS_PER_NODE="1")
    config.write_text(re.sub("export DATA_DIR=.*\n", "", config.read_text()))
    (checkout / "data").mkdir(exist_ok=True)
    (checkout / "data" / "kjv").symlink_to(data)
    result = tmp_path / "result.txt"
    done = run(checkout, Path("config_pytest.sh"), RESULT_FILE=str(result))
    assert done.returncode == 0, done.stderr
    assert stop_of(result).metadata["status"] == "success"


def test_a_verdict_is_not_given_for_a_result_that_was_there_before(checkout: Path, data: Path, tmp_path: Path) -> None:
    result = tmp_path / "result.txt"
    result.write_text(':::MLLOG {"key": "run_start", "value": null, "time_ms": 1, "metadata": {}}\n')
    before = result.read_bytes()
    done = run(checkout, write_config(tmp_path / "config.sh", data), RESULT_FILE=str(result))
    assert done.returncode == 2
    assert "never overwritten" in done.stderr
    assert done.stdout == ""
    assert result.read_bytes() == before


def test_the_log_says_the_truth_about_the_caches(checkout: Path, data: Path, tmp_path: Path) -> None:
    """CLEAR_CACHES=1 with an interpreter stand-in: what the launcher would be given, without dropping any cache."""
    seen = tmp_path / "seen"
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *launch*) echo "$CACHES_CLEARED" >"{seen}"; exit 3 ;; esac\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    config = write_config(tmp_path / "config.sh", data)
    done = run(checkout, config, PYTHON=str(python), RESULT_FILE=str(tmp_path / "r"), CACHES_CLEARED="1")
    assert done.returncode == 3
    assert seen.read_text() == "0\n"  # the caller cannot claim it


def test_threads_are_shared_between_the_ranks_of_the_node(checkout: Path, data: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *launch*) env >"{seen}"; exit 3 ;; esac\nexec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    config = write_config(tmp_path / "config.sh", data)
    variables = environment(config, PYTHON=str(python), RESULT_FILE=str(tmp_path / "r"))
    del variables["OMP_NUM_THREADS"]
    subprocess.run([checkout / "run_and_time.sh"], env=variables, capture_output=True, timeout=60)
    exported = dict(line.partition("=")[::2] for line in seen.read_text().splitlines())
    assert exported["OMP_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert json.loads(exported["BATCH_SIZE"]) == 8
