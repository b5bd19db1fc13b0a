"""run.sub under a real Slurm of two nodes (scripts/slurm/local): a verified log, the same as without Slurm, and faults.

Skipped where no cluster can be started; `make test-slurm` runs this file alone.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.records import read_records
from tests.support.slurm import WAIT_S, Cluster, Job, wait_until, what_is_missing, write_config
from tests.support.tiny import ROOT, clean_environment, make_tiny_data

SOON_S = 60  # on a machine that may be busy; the figures are in docs/slurm.md
FAULTS: list[tuple[str, ...]] = []


@pytest.fixture(scope="module")
def cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    if missing := what_is_missing():
        pytest.skip(f"no Slurm cluster: {missing}")
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    cluster = Cluster(folder / "cluster")
    yield cluster
    cluster.stop()
    shutil.rmtree(folder)
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        for row in (("fault", "the log says", "exit status", "seconds until all processes were gone"), *FAULTS):
            print("|", " | ".join(row), "|")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_data(tmp_path_factory.mktemp("data"))


def submit(cluster: Cluster, folder: Path, config: Path, *options: str, **environment: str) -> Job:
    results = Path(environment.setdefault("RESULTS_DIR", str(folder / "results")))
    arguments = (*options, "run.sub", config)
    return cluster.submit(results, *arguments, PYTHON=sys.executable, **environment)


def stop_of(log: Path) -> dict[str, Any]:
    (stop,) = [record for record in read_records(log) if record.key == "run_stop"]
    return stop.metadata


def check_aborted(
    fault: str, job: Job, log: str, *, state: str, status: int | None = None, gone_s: float | None = None
) -> str:
    """The job ends soon with this state and status and its trial's log as aborted; the reason. A row of the table."""
    ended, exit_status, waited_s = job.wait_for_end()
    gone_s = waited_s if gone_s is None else gone_s
    assert ended == state, job.output
    assert exit_status == status if status is not None else exit_status != 0
    assert gone_s < SOON_S
    stop = stop_of(job.results / log)
    assert stop["status"] == "aborted"
    assert not list(job.results.glob("trial_*")), "what is no result has been set aside"
    FAULTS.append((fault, f"aborted: {stop['reason'][:60]}", f"{exit_status}, {ended}", f"{gone_s:.1f}"))
    return str(stop["reason"])


# --- the same run, however it is started

# A loading whose plan is the same for 2 nodes x 2 ranks and for 1 x 4; several evaluations before the target.
ALIKE = {
    "LOADING": "stratified",
    "EVAL_START_SAMPLES": "16",
    "EVAL_INTERVAL_SAMPLES": "16",
    "TARGET_ACCURACY": "0.1",
    "BATCH_SIZE": "4",
    "LEARNING_RATE": "1e-3",
}
VOLATILE = ("submission_", "configuration", "cache_clear", "eval_accuracy", "tracked_stats")


def learnt(log: Path) -> tuple[dict[str, Any], list[tuple[int, float]]]:
    """Every value logged before the clock started, and the accuracies by samples."""
    records = read_records(log)
    values = {r.key: r.value for r in records if r.value is not None and not r.key.startswith(VOLATILE)}
    return values, [(r.metadata["epoch_num"], r.value) for r in records if r.key == "eval_accuracy"]


def not_the_project(of: str, names: list[str]) -> set[str]:
    made = {"data", "results"} if Path(of) == ROOT else set()
    return {name for name in names if name.startswith(".") or name == "__pycache__" or name in made}


@pytest.fixture(scope="module")
def job_log(cluster: Cluster, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Job, Path]:
    """The log, the job and the checkout of a job of 2 nodes x 2 ranks, all in a folder with a hostile name."""
    checkout = tmp_path_factory.mktemp("checkout") / "a \"b'\n$c"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(".*", "__pycache__", "data", "results", "tests"))
    shutil.copytree(
        ROOT / "benchmarks" / "bert" / "data", checkout / "benchmarks" / "bert" / "data", dirs_exist_ok=True
    )
    write_config(checkout / "config_tiny.sh", data, 2, **ALIKE)
    results = checkout / "results" / "tiny"
    environment = {"SEED": "7", "CLEAR_CACHES": "1", "PYTHON": sys.executable}
    job = cluster.submit(results, "-N2", "run.sub", "config_tiny.sh", cwd=checkout, **environment)
    job.wait_for_end()
    return results / "result_0.txt", job, checkout


def test_a_job_of_two_nodes_leaves_a_verified_log_and_its_stages(
    job_log: tuple[Path, Job, Path], cluster: Cluster
) -> None:
    log, job, _ = job_log
    assert job.wait_for_end()[:2] == ("COMPLETED", 0), job.output
    assert "PASSED " in job.output
    assert stop_of(log)["status"] == "success"
    assert job.files() == ["result_0.txt", f"stages_{job.number}.tsv"]
    spans = {(name, trial): (start, stop) for name, trial, start, stop, _ in job.stages()}
    assert [name for name, trial in spans if trial == "0"] == ["init", "run", "verify", "trial"]
    assert {name for name, trial in spans if trial == "-"} == {"prolog", "start", "setup", "job"}
    assert all(int(start) <= int(stop) for start, stop in spans.values())
    assert spans["job", "-"][0] <= spans["trial", "0"][0] <= spans["init", "0"][0] <= spans["run", "0"][1]
    # Each node's first task has tried; the second node refuses it (node.sh).
    cleared = [(r.metadata["node"], r.value) for r in read_records(log) if r.key == "cache_clear"]
    assert cleared == [(0, True), (1, False)]
    assert (cluster.folder / "drop_caches.n1").read_text() == "3\n"


def test_the_same_seed_gives_the_same_log_without_slurm(
    job_log: tuple[Path, Job, Path], data: Path, tmp_path: Path
) -> None:
    log, _, checkout = job_log
    config = write_config(tmp_path / "config.sh", data, 1, RANKS_PER_NODE="4", **ALIKE)
    result = tmp_path / "result.txt"
    variables = {"CONFIG": str(config), "PYTHON": sys.executable, "RESULT_FILE": str(result), "SEED": "7"}
    script = checkout / "run_and_time.sh"
    subprocess.run([script], env=clean_environment() | variables, check=True, timeout=120, stdout=subprocess.DEVNULL)
    assert learnt(result) == learnt(log)
    assert len(learnt(log)[1]) > 1


def test_one_task_on_each_node_from_a_host_outside_the_allocation_gives_the_same_log(
    job_log: tuple[Path, Job, Path], cluster: Cluster, data: Path, tmp_path: Path
) -> None:
    log, _, checkout = job_log
    config = write_config(tmp_path / "config.sh", data, 2, **ALIKE)
    result = tmp_path / "result.txt"
    printed = cluster.run(
        *("srun", "-N2", "--ntasks-per-node=1", "--exclusive", "--kill-on-bad-exit=1"),
        *("sh", "-c", 'echo "from $SLURM_LAUNCH_NODE_IPADDR on $(hostname)"; exec ./run_and_time.sh'),
        cwd=checkout,
        timeout_s=120,
        **{"CONFIG": str(config), "PYTHON": sys.executable, "RESULT_FILE": str(result), "SEED": "7"},
    )
    assert {"from 10.77.0.254 on n1", "from 10.77.0.254 on n2"} <= set(printed.splitlines())  # the login host's
    assert learnt(result) == learnt(log)


# --- faults


def test_another_number_of_nodes_than_configured_is_refused(cluster: Cluster, data: Path, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, write_config(tmp_path / "config.sh", data, 2), "-N1")
    assert job.wait_for_end()[:2] == ("FAILED", 2)
    assert "error: the job has 1 nodes, NUM_NODES=2" in job.output
    assert not job.results.exists()


def test_a_killed_rank_ends_its_trial_and_the_next_one_starts_clean(
    cluster: Cluster, data: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "config.sh", data, 2, endless=True)
    job = submit(cluster, tmp_path, config, "-N2", NEXP="2")
    job.wait_for_record(0, "eval_accuracy")
    write_config(config, data, 2)  # for the next trial
    before = {process.pid for process in cluster.processes(job.number) if "benchmarks.bert" in process.command}
    assert len(before) == 4
    os.kill(job.rank(3), signal.SIGKILL)
    gone_s = wait_until(lambda: not before & {p.pid for p in cluster.processes(job.number)}, SOON_S, "end of the trial")
    wait_until(lambda: (job.results / "interrupted_0_0.txt").exists(), SOON_S, "the log set aside")
    stop = stop_of(job.results / "interrupted_0_0.txt")
    assert stop["status"] == "aborted"
    FAULTS.append(("kill -9 of a rank", f"aborted: {stop['reason'][:60]}", "1, next trial", f"{gone_s:.1f}"))
    assert job.wait_for_end()[:2] == ("FAILED", 1), job.output
    assert stop_of(job.results / "result_1.txt")["status"] == "success"
    assert job.files() == ["interrupted_0_0.txt", "result_1.txt", f"stages_{job.number}.tsv"]


def test_scancel_ends_the_job_and_the_log_says_so(cluster: Cluster, data: Path, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, write_config(tmp_path / "config.sh", data, 2, endless=True), "-N2", NEXP="2")
    job.wait_for_record(0, "eval_accuracy")
    cluster.run("scancel", job.number)
    reason = check_aborted("scancel", job, "interrupted_0_0.txt", state="CANCELLED", status=143)
    assert reason.endswith("SIGTERM")
    assert job.files() == ["interrupted_0_0.txt", f"stages_{job.number}.tsv"]


def test_a_trial_and_a_job_that_take_too_long_are_ended(cluster: Cluster, data: Path, tmp_path: Path) -> None:
    """Side by side, on a node each."""
    config = write_config(tmp_path / "config.sh", data, 1, endless=True)
    options = ("-N1", "--time=10", "--no-requeue")
    limited = submit(cluster, tmp_path, config, *options, RESULTS_DIR=str(tmp_path / "limited"))
    trial = submit(
        cluster,
        tmp_path,
        config,
        "-N1",
        RESULTS_DIR=str(tmp_path / "trial"),
        NEXP="2",
        ON_FAILURE="stop",
        TRIAL_MINUTES="0.5",
    )
    limited.wait_for_record(0, "eval_accuracy")
    cluster.run("scontrol", "update", f"JobId={limited.number}", "TimeLimit=2")  # within the signal's two minutes
    trial_s, limited_s = seconds_from_signal_to_end(trial, limited)
    check_aborted("TRIAL_MINUTES", trial, "interrupted_0_0.txt", state="FAILED", status=1, gone_s=trial_s)
    assert "TRIAL_MINUTES=0.5 are over" in trial.output
    assert "trial 1 of 2" not in trial.output
    fault = "the job's time limit"
    check_aborted(fault, limited, "interrupted_0_0.txt", state="FAILED", status=138, gone_s=limited_s)
    assert "the job's time limit is near" in limited.output


def seconds_from_signal_to_end(*jobs: Job) -> list[float]:
    signalled: dict[Job, float] = {}
    gone: dict[Job, float] = {}

    def all_gone() -> bool:
        for job in jobs:
            if job not in signalled and "ending the trial" in job.output:
                signalled[job] = time.monotonic()
            if job in signalled and job not in gone and job.is_gone():
                gone[job] = time.monotonic()
        return len(gone) == len(jobs)

    wait_until(all_gone, WAIT_S, "end of both")
    return [gone[job] - signalled[job] for job in jobs]


def test_a_full_disk_ends_the_trial_and_its_log_has_an_end(cluster: Cluster, data: Path, tmp_path: Path) -> None:
    disk = cluster.small_disk()
    config = write_config(tmp_path / "config.sh", data, 1, endless=True, EVAL_INTERVAL_SAMPLES="64")
    job = submit(cluster, tmp_path, config, "-N1", RESULTS_DIR=f"{cluster.folder}/small")
    job = Job(cluster, job.number, disk)
    job.wait_for_record(0, "eval_accuracy")
    with open(disk / "filler", "wb", buffering=0) as filler:
        try:
            while filler.write(b"x" * 1024):
                pass
        except OSError:
            pass
    reason = check_aborted("full result disk", job, "interrupted_0_0.txt", state="FAILED", status=1)
    assert reason
    assert "No space left on device" in job.output


def test_a_lost_node_ends_the_trial_and_the_job(cluster: Cluster, data: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "config.sh", data, 2, endless=True)
    job = submit(cluster, tmp_path, config, "-N2", "--no-requeue", NEXP="2")
    job.wait_for_record(0, "eval_accuracy")
    cluster.lose_node("n2")
    try:
        ended = wait_until(lambda: not ranks_of(job), SOON_S, "end of the ranks")
        check_aborted(f"a lost node (its ranks' peers: {ended:.1f} s)", job, "interrupted_0_0.txt", state="NODE_FAIL")
    finally:
        cluster.bring_back("n2")
    assert "trial 1 of 2" not in job.output


def ranks_of(job: Job) -> list[int]:
    return [p.pid for p in job.cluster.processes(job.number) if "benchmarks.bert.train" in p.command]


def test_a_requeued_job_goes_on_with_the_missing_trials_also_after_its_host_was_lost(
    cluster: Cluster, data: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "config.sh", data, 1)
    job = submit(cluster, tmp_path, config, "-N1", "--requeue", NEXP="2")
    job.wait_for_record(0, "run_start")
    write_config(config, data, 1, endless=True)
    job.wait_for_record(1, "eval_accuracy")
    first = (job.results / "result_0.txt").stat()
    cluster.run("scontrol", "requeue", job.number)
    wait_until(lambda: (job.results / "interrupted_1_0.txt").exists(), SOON_S, "the log set aside")
    job.wait_for_record(1, "eval_accuracy")
    host = cluster.run("squeue", "--noheader", f"--jobs={job.number}", "--format=%N").strip()
    write_config(config, data, 1)
    cluster.lose_node(host)
    cluster.bring_back(host)
    state, status, _ = job.wait_for_end()
    assert (state, status) == ("COMPLETED", 0), job.output
    assert job.files() == [
        *("interrupted_1_0.txt", "interrupted_1_1.txt", "result_0.txt", "result_1.txt"),
        f"stages_{job.number}.tsv",
    ]
    last = (job.results / "result_0.txt").stat()
    assert (last.st_ino, last.st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    for name in ("interrupted_1_0.txt", "interrupted_1_1.txt"):
        assert stop_of(job.results / name)["status"] == "aborted"
    seeds = {r.value for n in (0, 1) for r in read_records(job.results / f"result_{n}.txt") if r.key == "seed"}
    assert len(seeds) == 2
    assert "number of results  pass: 2, expected 2" in job.output
    FAULTS.append(("requeue, and a lost batch host", "aborted, twice; the trial is run again", "0", "-"))


# --- without a cluster


def test_no_blank_line_ends_the_options_of_run_sub() -> None:
    lines = (ROOT / "run.sub").read_text().splitlines()
    options = [number for number, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert options
    assert options == list(range(1, 1 + len(options)))


def test_the_commands_that_run_sub_renders() -> None:
    if shutil.which("bats") is None:
        pytest.skip("bats not found")
    environment = clean_environment() | {"PYTHON": sys.executable}
    done = subprocess.run(
        ["bats", "tests/launch/run_sub.bats"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout
    assert not re.search(r"# skip", done.stdout)
