"""A rank keeps to the cores beside its GPU; where there is none, nothing is touched."""

from __future__ import annotations

import os

import pytest
import torch
from torch.numa import binding as numa

from benchmarks.bert.binding import bind_to


@pytest.fixture
def affinity() -> object:
    """Put back what a test changes."""
    before = os.sched_getaffinity(0)
    yield before
    os.sched_setaffinity(0, before)


def test_a_cpu_rank_keeps_all_its_cores(affinity: object) -> None:
    bind_to(torch.device("cpu"))
    assert os.sched_getaffinity(0) == affinity


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be shared out")
def test_two_gpus_on_one_node_share_its_cores_out(monkeypatch: pytest.MonkeyPatch, affinity: object) -> None:
    """With a topology as a driver would tell it: both GPUs on NUMA node 0, which has this machine's cores."""
    monkeypatch.setattr(numa, "_get_numa_node_index_for_gpu_index", lambda gpu_index: 0)
    monkeypatch.setattr(numa, "_get_gpu_indices_for_numa_node", lambda numa_node_index: {0, 1})
    monkeypatch.setattr(
        numa, "_get_logical_cpu_indices_sharing_same_physical_core_as", lambda logical_cpu_index: {logical_cpu_index}
    )
    monkeypatch.setattr(numa, "_get_allowed_logical_cpu_indices_for_numa_node", lambda numa_node_index: affinity)
    bind_to(torch.device("cuda", 0))
    first = os.sched_getaffinity(0)
    bind_to(torch.device("cuda", 1))
    second = os.sched_getaffinity(0)
    assert first
    assert second
    assert first.isdisjoint(second)
    assert first | second == affinity


def test_a_topology_that_cannot_be_read_is_a_warning_and_nothing_is_bound(
    monkeypatch: pytest.MonkeyPatch, affinity: object, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreadable(gpu_index: int) -> int:
        raise OSError(2, "No such file", f"/sys/of/gpu{gpu_index}")

    monkeypatch.setattr(numa, "_get_numa_node_index_for_gpu_index", unreadable)
    bind_to(torch.device("cuda", 3))
    assert os.sched_getaffinity(0) == affinity
    [line] = capsys.readouterr().err.splitlines()
    assert "cuda:3 is not bound" in line
    assert "/sys/of/gpu3" in line


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be shared out")
def test_numactl_is_not_needed(monkeypatch: pytest.MonkeyPatch, affinity: set[int]) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("benchmarks.bert.binding._get_logical_cpus_to_bind_to", lambda **_: {min(affinity)})
    bind_to(torch.device("cuda", 0))
    assert os.sched_getaffinity(0) == {min(affinity)}
