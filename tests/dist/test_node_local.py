"""Two nodes, each with nothing but what was staged for it: the same run as with everything, and no other node's place.

A node is a working folder here: DATA_DIR=data is another folder for the ranks of each, under one name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bert.data.manifest import read_manifest, samples_of_node, shards_with
from benchmarks.bert.progress import Progress
from tests.support.checkpoints import errors, evaluations, statuses
from tests.support.ranks import run_trial
from tests.support.tiny import ROOT, build_part, make_tiny_data, tiny_environment

NUM_NODES, RANKS_PER_NODE = 2, 2
NUM_SHARDS = 5  # the middle one is both nodes'
LOCAL = {
    "NUM_NODES": str(NUM_NODES),
    "RANKS_PER_NODE": str(RANKS_PER_NODE),
    "BATCH_SIZE": "4",
    "LOADING": "stratified_local",
    "TARGET_ACCURACY": "0.99",
    "MAX_STEPS": "36",  # more than an epoch
    "EVAL_INTERVAL_SAMPLES": "128",
    "INIT_STD": "0.3",  # accuracies that differ
}


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = make_tiny_data(tmp_path_factory.mktemp("shared") / "data")
    shutil.rmtree(data / "train")
    build_part(data, "train", num_shards=NUM_SHARDS, duplicates=2)
    return data


@pytest.fixture(scope="module")
def nodes(everything: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Each node's working folder, staged by the command that a user gives."""
    return [staged(everything, tmp_path_factory.mktemp(f"node{node}"), node) for node in range(NUM_NODES)]


def staged(everything: Path, folder: Path, node: int) -> Path:
    where = ["--node", str(node), "--nodes", str(NUM_NODES), "--out", str(folder / "data")]
    environment = tiny_environment(everything, Path("unused"), PYTHON=sys.executable)
    done = subprocess.run(
        [ROOT / "init_datasets.sh", "stage", *where], env=environment, capture_output=True, text=True, check=True
    )
    num_bytes = sum(file.stat().st_size for file in files_below(folder / "data") if file.name != "manifest.json")
    assert f"samples of node {node} in 3 shards, {num_bytes:,} bytes" in done.stdout
    return folder


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]


def shards_in(data: Path) -> set[str]:
    return {path.name for path in (data / "train").glob("*.hdf5")}


def needed(everything: Path, node: int) -> list[str]:
    manifest = read_manifest(everything / "train")
    return [name for name, *_ in shards_with(manifest, samples_of_node(manifest.num_samples, node, NUM_NODES))]


def on_its_node(folders: list[Path]) -> Callable[[], Any]:
    """Put this rank on its node, in that node's folder; the result is rank 0's losses."""
    node, local_rank = divmod(int(os.environ["RANK"]), RANKS_PER_NODE)
    os.environ |= {
        "GROUP_RANK": str(node),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(RANKS_PER_NODE),
    }
    os.chdir(folders[node])
    losses: list[float] = []
    show = Progress.step

    def record(self: Progress, step: int, loss: Any) -> None:
        losses.append(loss.item())
        show(self, step, loss)

    Progress.step = record  # type: ignore[method-assign]
    return lambda: losses


def trial(folders: list[Path], result: Path, **changed: str) -> list[tuple[int, str, Any]]:
    environment = tiny_environment(Path("data"), result, **LOCAL | changed)
    return run_trial([environment] * (NUM_NODES * RANKS_PER_NODE), partial(on_its_node, folders))


def refused(folders: list[Path], result: Path, *fragments: str, **changed: str) -> None:
    """On every rank, by one error, before a log was begun."""
    ranks = trial(folders, result, **changed)
    assert statuses(ranks) == [2] * len(ranks)
    (error,) = errors(ranks)
    for fragment in fragments:
        assert fragment in error
    assert not result.exists()


def test_each_node_has_the_shards_of_its_own_samples_alone(everything: Path, nodes: list[Path]) -> None:
    for node, folder in enumerate(nodes):
        assert shards_in(folder / "data") == set(needed(everything, node)) < shards_in(everything)
    assert shards_in(nodes[0] / "data") | shards_in(nodes[1] / "data") == shards_in(everything)


def test_a_run_on_staged_nodes_is_that_of_nodes_that_have_everything(
    everything: Path, nodes: list[Path], tmp_path: Path
) -> None:
    runs = {}
    for name, folders, changed in (
        ("all", [everything.parent] * NUM_NODES, {}),
        ("own", nodes, {}),
        ("other", nodes, {"SEED": "8"}),  # the twin: accuracies of another order differ
    ):
        ranks = trial(folders, tmp_path / name, **changed)
        assert errors(ranks) == ["error: accuracy 0.99 not reached within MAX_STEPS=36"]
        runs[name] = (evaluations(tmp_path / name), ranks[0][2])
    accuracies, losses = runs["own"]
    assert len(losses) == 36
    assert len({accuracy for _, accuracy in accuracies}) > 1
    assert runs["own"] == runs["all"]
    assert runs["own"] != runs["other"]


def test_nodes_that_changed_places_are_refused_by_every_rank(
    everything: Path, nodes: list[Path], tmp_path: Path
) -> None:
    first, other = needed(everything, 0)[:2]
    named = (f"ranks [0, 1]: data/train/{first}: no such shard (nor {other}); ", "./init_datasets.sh stage")
    refused(nodes[::-1], tmp_path / "result.txt", *named)


def test_a_shard_that_one_node_alone_lacks_is_refused_by_every_rank(
    everything: Path, nodes: list[Path], tmp_path: Path
) -> None:
    shutil.copytree(nodes[1], tmp_path / "node1")
    missing = tmp_path / "node1" / "data" / "train" / needed(everything, 1)[-1]
    missing.unlink()
    named = (f"error: ranks [2, 3]: data/train/{missing.name}: no such shard; ", "./init_datasets.sh stage")
    refused([nodes[0], tmp_path / "node1"], tmp_path / "result.txt", *named, COLLECTIVE_TIMEOUT_S="600")


def test_a_node_without_data_is_refused_by_every_rank(nodes: list[Path], tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    named = ("error: ranks [2, 3]: data/train: no such data folder", "./init_datasets.sh")
    refused([nodes[0], tmp_path / "bare"], tmp_path / "result.txt", *named, COLLECTIVE_TIMEOUT_S="600")


@pytest.mark.parametrize("loading", ["stratified_presort", "random"])
def test_a_strategy_whose_nodes_read_everything_is_refused(nodes: list[Path], tmp_path: Path, loading: str) -> None:
    refused(nodes, tmp_path / "result.txt", "no such shard", "LOADING=stratified_local", LOADING=loading)


def test_another_number_of_nodes_is_refused(nodes: list[Path], tmp_path: Path) -> None:
    """One node that reads the whole run of samples."""
    environment = tiny_environment(Path("data"), tmp_path / "result.txt", **LOCAL | {"NUM_NODES": "1"})
    ranks = run_trial([environment] * RANKS_PER_NODE, partial(on_its_node, nodes))
    assert statuses(ranks) == [2, 2]
    (error,) = errors(ranks)
    assert "no such shard" in error
    assert "./init_datasets.sh stage" in error
