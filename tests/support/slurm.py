"""A Slurm cluster of two nodes on this machine, jobs submitted to it, and their processes. Every wait has a limit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.tiny import ROOT, clean_environment, tiny_variables

SCRIPTS = ROOT / "scripts" / "slurm" / "local"
NEEDED = ("slurmctld", "slurmd", "munged", "sbatch", "ip", "unshare", "nsenter")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
WAIT_S = 120  # for what takes seconds: the machine may be busy


def what_is_missing() -> str:
    """Why no cluster can be started here; empty where one can."""
    if missing := [program for program in NEEDED if shutil.which(program) is None]:
        return f"{', '.join(missing)} not found (Debian: slurm-wlm, munge, iproute2, util-linux)"
    if os.geteuid() != 0:
        return "needs root, for namespaces"
    tried = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True)
    return f"cannot make namespaces: {tried.stderr.strip()}" if tried.returncode else ""


def wait_until(true: Callable[[], bool], limit_s: float, what: str) -> float:
    """Seconds that it took."""
    start = time.monotonic()
    while not true():
        assert time.monotonic() - start < limit_s, f"{what}: not within {limit_s} s"
        time.sleep(0.2)
    return time.monotonic() - start


def write_config(path: Path, data: Path, num_nodes: int, *, endless: bool = False, **changed: str) -> Path:
    """A file of a tiny run of two ranks on each node, without seed and result file; `endless` never ends by itself.

    Written in one go, as a job may be about to read it.
    """
    variables = tiny_variables(data, Path("unused")) | {"SUBMISSION_PLATFORM": "tiny", "NUM_NODES": str(num_nodes)}
    variables["BATCH_SIZE"] = str(8 // num_nodes)
    del variables["RESULT_FILE"], variables["SEED"]
    if endless:
        variables |= {"TARGET_ACCURACY": "0.99", "MAX_STEPS": "1000000", "EVAL_INTERVAL_SAMPLES": "640"}
    text = "".join(f"export {name}={value}\n" for name, value in (variables | changed).items())
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)
    return path


class Cluster:
    """The folder must be new, its path short and without spaces."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([SCRIPTS / "start.sh", folder], check=True, timeout=60)

    def stop(self) -> None:
        subprocess.run([SCRIPTS / "stop.sh", self.folder], check=True, timeout=30)

    def run(self, *command: str | Path, cwd: Path = ROOT, timeout_s: float = 30, **environment: str) -> str:
        """A command on the login host; what it printed."""
        done = subprocess.run(
            [SCRIPTS / "enter.sh", self.folder, *command],
            cwd=cwd,
            env=clean_environment() | environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def submit(self, results: Path, *arguments: str | Path, cwd: Path = ROOT, **environment: str) -> Job:
        """sbatch ARGUMENTS; `results` is where its RESULTS_DIR is."""
        printed = self.run("sbatch", f"--output={self.folder}/job-%j.out", *arguments, cwd=cwd, **environment)
        return Job(self, re.findall(r"\d+", printed)[-1], results)

    def small_disk(self) -> Path:
        """The cluster's file system of 96 KiB, as seen from outside."""
        holder = (self.folder / "holder.pid").read_text().strip()
        first = Path(f"/proc/{holder}/task/{holder}/children").read_text().split()[0]
        return Path(f"/proc/{first}/root{self.folder}/small")

    def lose_node(self, name: str) -> None:
        """Kill it, with slurmd and all that runs on it, at once."""
        self.run("sh", "-c", f"kill -KILL $(cat {self.folder}/{name}.pid)")

    def bring_back(self, name: str) -> None:
        """After it was lost: it knows nothing of what ran on it."""
        self.run(SCRIPTS / "node.sh", self.folder, name.removeprefix("n"))

    def processes(self, job: str) -> list[Process]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                pairs = (entry / "environ").read_bytes().decode("latin-1").split("\0")
                variables = dict(pair.partition("=")[::2] for pair in pairs)
                if (variables.get("SLURM_JOB_ID"), variables.get("SLURM_CONF")) == (job, f"{self.folder}/slurm.conf"):
                    command = (entry / "cmdline").read_bytes().decode("latin-1")
                    node, rank = variables.get("SLURMD_NODENAME", ""), variables.get("SLURM_PROCID", "")
                    found.append(Process(int(entry.name), command, node, rank))
            except OSError:
                continue
        return found


@dataclass(frozen=True)
class Process:
    pid: int
    command: str  # arguments, each ended by a NUL
    node: str
    rank: str


@dataclass(frozen=True)
class Job:
    cluster: Cluster
    number: str
    results: Path

    @property
    def output(self) -> str:
        file = self.cluster.folder / f"job-{self.number}.out"
        return file.read_text() if file.exists() else ""

    def log(self, trial: int) -> Path:
        """Of a trial that runs."""
        return self.results / f"trial_{self.number}_{trial}.txt"

    def wait_for_record(self, trial: int, key: str) -> None:
        def written() -> bool:
            assert self.state() not in ENDED, self.output
            try:
                return f'"key": "{key}"' in self.log(trial).read_text()
            except FileNotFoundError:
                return False

        wait_until(written, WAIT_S, f"{key} in the log of trial {trial}")

    def state(self) -> str:
        return self.cluster.run("squeue", "--noheader", "--states=all", f"--jobs={self.number}", "--format=%T").strip()

    def is_gone(self) -> bool:
        return self.state() in ENDED and not self.cluster.processes(self.number)

    def wait_for_end(self) -> tuple[str, int, float]:
        """State, exit status, and the seconds until all its processes were gone."""
        gone_s = wait_until(self.is_gone, WAIT_S, f"end of job {self.number}")
        shown = self.cluster.run("scontrol", "show", "job", self.number)
        status = re.findall(r" ExitCode=(\d+):", shown)[0]
        return self.state(), int(status), gone_s

    def rank(self, rank: int) -> int:
        """The process that trains as this rank."""
        (pid,) = (
            process.pid
            for process in self.cluster.processes(self.number)
            if process.rank == str(rank) and "benchmarks.bert.train" in process.command
        )
        return pid

    def files(self) -> list[str]:
        return sorted(path.name for path in self.results.iterdir())

    def stages(self) -> list[list[str]]:
        rows = (self.results / f"stages_{self.number}.tsv").read_text().splitlines()
        return [row.split("\t") for row in rows[1:]]
