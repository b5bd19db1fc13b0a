"""The script of docs/data.md under a real Slurm: each node stages what it reads onto a disk of its own, then trains.

Skipped where no cluster can be started.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.records import read_records
from tests.support.slurm import Cluster, Job, what_is_missing, write_config
from tests.support.tiny import ROOT, build_part, make_tiny_data

LOCAL = "/mnt"  # a file system of its own on each node
SHOW = f"srun --ntasks-per-node=1 bash -c 'echo \"has $SLURM_NODEID:\" $(cd {LOCAL}/wiki/train && echo *.hdf5)'\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if missing := what_is_missing():
        pytest.skip(f"no Slurm cluster: {missing}")
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    cluster = Cluster(folder / "cluster")
    yield cluster
    cluster.stop()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = make_tiny_data(tmp_path_factory.mktemp("data"))
    shutil.rmtree(data / "train")
    build_part(data, "train", num_shards=5, duplicates=2)
    return data


def documented_script(data: Path) -> str:
    page = (ROOT / "docs" / "data.md").read_text("utf-8")
    [script] = re.findall(r"^```\n(#!/usr/bin/env bash\n#SBATCH.*?)^```", page, re.MULTILINE | re.DOTALL)
    script = script.replace("/shared/wiki", str(data)).replace("/local/wiki", f"{LOCAL}/wiki")
    mount = f"srun --ntasks-per-node=1 mount -t tmpfs tmpfs {LOCAL} || exit 1\n"
    return script.replace("srun ", f"{mount}srun ", 1).replace("exec ", f"{SHOW}exec ")


def run(cluster: Cluster, folder: Path, data: Path, script: str) -> tuple[Job, int]:
    (folder / "local.sub").write_text(script)
    config = write_config(folder / "config_tiny.sh", data, 2)
    environment = {"PYTHON": sys.executable, "RESULTS_DIR": str(folder / "results"), "SEED": "7"}
    job = cluster.submit(folder / "results", "-N", "2", folder / "local.sub", config, **environment)
    _, status, _ = job.wait_for_end()
    return job, status


def test_nodes_stage_their_own_and_train_on_it(cluster: Cluster, data: Path, tmp_path: Path) -> None:
    job, status = run(cluster, tmp_path, data, documented_script(data))
    assert status == 0, job.output
    shards = dict(re.findall(r"has (\d): (.+)", job.output))
    assert {node: re.findall(r"part_0000(\d)", names) for node, names in shards.items()} == {
        "0": ["0", "1", "2"],
        "1": ["2", "3", "4"],
    }
    records = {record.key: record for record in read_records(job.results / "result_0.txt")}
    assert records["run_stop"].metadata["status"] == "success"
    assert records["configuration"].value["LOADING"]["value"] == "stratified_local"


def test_nodes_staged_for_each_others_place_are_refused(cluster: Cluster, data: Path, tmp_path: Path) -> None:
    script = documented_script(data).replace('--node "$SLURM_NODEID"', "--node $((1 - SLURM_NODEID))")
    job, status = run(cluster, tmp_path, data, script)
    assert status != 0
    (error,) = set(re.findall(r"error: .*no such shard.*", job.output))
    assert f"ranks [0, 1]: {LOCAL}/wiki/train/part_00000_of_00005.hdf5: no such shard" in error
    assert "./init_datasets.sh stage" in error
    assert not (job.results / "result_0.txt").exists()
