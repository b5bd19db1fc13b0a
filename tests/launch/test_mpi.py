"""`mpirun -np 4 ./run_and_time.sh` on tiny data, with each MPI that is here; the same run as any other launcher's.

`make test-mpi` runs these alone. MPI_PREFIXES adds folders with a bin/mpirun, for an MPI that is not on PATH.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
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

OPEN_MPI_AS_ROOT = {  # Open MPI 4 and 5
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
DIFFER = {"cache_clear", "configuration", "tracked_stats"}  # of two runs alike: times, and which file a value was from


def launchers() -> list[str]:
    """mpirun of each MPI: on PATH under the names that distributions give it, and below MPI_PREFIXES."""
    on_path = [found for name in ("mpirun.openmpi", "mpirun.mpich", "mpirun") if (found := shutil.which(name))]
    added = [str(Path(each) / "bin" / "mpirun") for each in os.environ.get("MPI_PREFIXES", "").split(":") if each]
    return list({os.path.realpath(each): each for each in [*on_path, *added]}.values())


MPIRUNS = launchers()
pytestmark = [
    pytest.mark.skipif(not MPIRUNS, reason="no mpirun on PATH and none in MPI_PREFIXES"),
    pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not there (requirements-mpi.txt)"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_data(tmp_path_factory.mktemp("data"))


def environment(data: Path, result: Path, mpirun: str = "", **changed: str) -> dict[str, str]:
    ours = clean_environment() | tiny_variables(data, result) | {"RANKS_PER_NODE": "4", "BATCH_SIZE": "4"}
    library = Path(os.path.realpath(mpirun)).parents[1] / "lib"
    ours |= {"PYTHON": sys.executable, "CONFIG": str(ROOT / "config_CPU_1x2x8x1.sh")} | OPEN_MPI_AS_ROOT
    return ours | ({"LD_LIBRARY_PATH": str(library)} if mpirun and list(library.glob("libmpi.so*")) else {}) | changed


def start(mpirun: str, env: dict[str, str], ranks: int = 4) -> subprocess.Popen[str]:
    command = [mpirun, "-np", str(ranks), str(ROOT / "run_and_time.sh")]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(mpirun: str, env: dict[str, str], ranks: int = 4) -> tuple[int, str]:
    process = start(mpirun, env, ranks)
    try:
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, said


def comparable(log: Path) -> list[tuple[str, object]]:
    return [(record.key, record.value) for record in read_records(log) if record.key not in DIFFER]


def stop_of(log: Path) -> Record:
    (stop,) = [record for record in read_records(log) if record.key == "run_stop"]
    return stop


@pytest.mark.parametrize("mpirun", MPIRUNS)
def test_four_processes_write_one_verified_log_as_one_launcher_of_four_ranks_does(
    mpirun: str, data: Path, tmp_path: Path
) -> None:
    status, said = run(mpirun, environment(data, tmp_path / "mpi.txt", mpirun))
    assert status == 0, said
    assert said.count("PASSED") == 1
    alone = environment(data, tmp_path / "alone.txt")
    subprocess.run([ROOT / "run_and_time.sh"], env=alone, check=True, capture_output=True, timeout=120)
    assert comparable(tmp_path / "mpi.txt") == comparable(tmp_path / "alone.txt")


@pytest.mark.parametrize("mpirun", MPIRUNS)
def test_too_few_processes_are_refused_with_both_numbers(mpirun: str, data: Path, tmp_path: Path) -> None:
    status, said = run(mpirun, environment(data, tmp_path / "result.txt", mpirun), ranks=2)
    assert status != 0
    assert "2 processes were started; the configuration wants 4" in said
    assert not (tmp_path / "result.txt").exists()


@pytest.mark.parametrize("mpirun", MPIRUNS)
def test_a_result_that_exists_is_not_touched(mpirun: str, data: Path, tmp_path: Path) -> None:
    (tmp_path / "result.txt").write_text("mine\n")
    began = time.monotonic()
    status, said = run(mpirun, environment(data, tmp_path / "result.txt", mpirun))
    assert status != 0
    assert "a result is never overwritten" in said
    assert (tmp_path / "result.txt").read_text() == "mine\n"
    assert time.monotonic() - began < 40  # the other ranks do not wait until nobody comes


@pytest.mark.parametrize("mpirun", MPIRUNS)
def test_a_killed_rank_ends_the_run_as_aborted(mpirun: str, data: Path, tmp_path: Path) -> None:
    log = tmp_path / "result.txt"
    endless = {"TARGET_ACCURACY": "0.99", "MAX_STEPS": "100000"}
    process = start(mpirun, environment(data, log, mpirun, **endless))
    try:
        wait_for(lambda: "run_start" in log.read_text() if log.exists() else False)
        os.kill(ranks_of(log)[-1], signal.SIGKILL)
        said, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode != 0, said
    wait_for(lambda: '"run_stop"' in log.read_text())
    assert stop_of(log).metadata["status"] == "aborted"


def ranks_of(log: Path) -> list[int]:
    """Processes that train for this log: others may train beside."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            trains = b"benchmarks.bert.train" in (process / "cmdline").read_bytes()
            if trains and f"RESULT_FILE={log}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return sorted(found)


def wait_for(happened: object, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not happened():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it has not happened"
        time.sleep(0.1)
