"""Slurm's and MPI's variables say who a process is; nested launchers must fit together, a mixture is refused."""

from __future__ import annotations

import re

import pytest

from benchmarks.bert import world as world_module
from benchmarks.bert.config import load
from benchmarks.bert.mpi import MpiProcess, announced
from benchmarks.bert.place import place
from benchmarks.bert.world import World, WorldError, first_host, from_launcher
from tests.support.launchers import torchrun


def slurm(**changed: str) -> dict[str, str]:
    """What srun sets for the second task of the second of two nodes."""
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "3",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "1",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_STEP_NODELIST": "n[1-2]",
    } | changed


def slurm_node(node: str = "1") -> dict[str, str]:
    """The same with one task for each node."""
    return slurm(
        SLURM_PROCID=node,
        SLURM_STEP_NUM_TASKS="2",
        SLURM_LOCALID="0",
        SLURM_NODEID=node,
        SLURM_STEP_TASKS_PER_NODE="1(x2)",
    )


def test_a_slurm_task_is_a_rank() -> None:
    world = from_launcher(slurm())
    assert (world.rank, world.num_ranks, world.local_rank, world.ranks_per_node) == (3, 4, 1, 2)
    assert (world.num_nodes, world.node) == (2, 1)


def test_all_tasks_of_a_step_meet_at_its_first_node_on_one_port_below_the_ephemeral_ones() -> None:
    first = from_launcher(slurm(SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NODEID="0"))
    assert first.rendezvous == from_launcher(slurm()).rendezvous
    match = re.fullmatch(r"tcp://n1:(\d+)", str(first.rendezvous))
    assert match is not None
    assert 20_000 <= int(match[1]) < 30_000


@pytest.mark.parametrize("changed", [{"SLURM_JOB_ID": "8"}, {"SLURM_STEP_ID": "1"}])
def test_another_step_takes_another_port(changed: dict[str, str]) -> None:
    assert from_launcher(slurm(**changed)).rendezvous != from_launcher(slurm()).rendezvous


def test_the_callers_meeting_place_wins() -> None:
    world = from_launcher(slurm(MASTER_ADDR="10.0.0.9", MASTER_PORT="12345"))
    assert world.rendezvous == "tcp://10.0.0.9:12345"


def test_the_submitting_host_is_nobody() -> None:
    """Known fault 79: that host may not belong to the job."""
    world = from_launcher(slurm(SLURM_LAUNCH_NODE_IPADDR="10.9.9.9", SLURM_SUBMIT_HOST="login1"))
    assert str(world.rendezvous).startswith("tcp://n1:")


def test_a_batch_script_is_no_task() -> None:
    """It has SLURM_PROCID, but no step."""
    variables = slurm()
    del variables["SLURM_STEP_ID"]
    assert from_launcher(variables).rendezvous is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "2,1"}, "every node must hold as many tasks"),
        ({"SLURM_LOCALID": "0"}, "ranks must follow the nodes"),  # as --distribution=cyclic deals them
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID='x', expected a whole number"),
        ({"SLURM_STEP_NODELIST": ""}, "names no node"),
    ],
)
def test_a_step_that_is_no_world_is_refused_with_the_reason(changed: dict[str, str], said: str) -> None:
    with pytest.raises(WorldError, match=re.escape(said)):
        from_launcher(slurm(**changed))


def test_half_a_step_is_refused_with_what_is_missing() -> None:
    variables = slurm()
    del variables["SLURM_LOCALID"]
    with pytest.raises(WorldError, match="without SLURM_LOCALID"):
        from_launcher(variables)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n[1-3,7]", "n1"),
        ("a-[08-11],b-1", "a-08"),
        ("rack[2,4]node[07-09]x,other", "rack2node07x"),
        ("login,n[1-2]", "login"),
    ],
)
def test_the_first_host_of_a_node_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_a_launcher_of_ours_in_one_task_of_each_node_fits() -> None:
    assert from_launcher(torchrun() | slurm_node()).rendezvous == "env://"


@pytest.mark.parametrize("size", ["2", "8"])
def test_torchrun_in_every_task_is_a_mixture(size: str) -> None:
    tasks = slurm() | torchrun(RANK="1", WORLD_SIZE=size, LOCAL_WORLD_SIZE=size, GROUP_RANK="0")
    with pytest.raises(WorldError, match="two launchers at once"):
        from_launcher(tasks)


def pretend_mpi(monkeypatch: pytest.MonkeyPatch, rank: int, num_ranks: int, local_rank: int, per_node: int) -> None:
    process = MpiProcess(rank, num_ranks, local_rank, per_node, "n1", 20_007)
    monkeypatch.setattr(world_module, "discover", lambda variables: process)


def test_an_mpi_process_is_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_mpi(monkeypatch, 3, 4, 1, 2)
    assert from_launcher({}) == World(3, 4, 1, 2, "tcp://n1:20007")


def test_mpi_inside_a_step_of_one_daemon_a_node_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_mpi(monkeypatch, 3, 4, 1, 2)
    assert from_launcher(slurm_node()).rank == 3


def test_a_step_that_speaks_mpi_itself_is_one_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_mpi(monkeypatch, 3, 4, 1, 2)
    assert from_launcher(slurm()).rank == 3


def test_mpirun_in_every_task_is_a_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_mpi(monkeypatch, 0, 4, 0, 4)
    with pytest.raises(WorldError, match="mpirun says rank 0 of 4 on 1 nodes, the Slurm step around it task 3 of 4"):
        from_launcher(slurm())


def test_ranks_dealt_round_the_nodes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_mpi(monkeypatch, 1, 4, 0, 2)
    with pytest.raises(WorldError, match="--map-by slot"):
        from_launcher({})


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, (1, 4)),
        ({"PMI_RANK": "3", "PMI_SIZE": "4"}, (3, 4)),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, None),
        ({"PMI_SIZE": "x"}, None),
    ],
)
def test_what_mpirun_tells_a_shell(variables: dict[str, str], told: tuple[int, int] | None) -> None:
    assert announced(variables) == told


def test_srun_that_speaks_mpis_protocol_is_no_mpirun() -> None:
    """As with MpiDefault=pmi2: two tasks, each of which starts its node's ranks."""
    tasks = slurm_node() | {"PMI_RANK": "1", "PMI_SIZE": "2"}
    assert announced(tasks) is None
    assert place(load(TWO_BY_TWO | tasks)) == ("node", 1)
    assert announced(tasks | {"PMI_SIZE": "4", "PMI_RANK": "3"}) == (3, 4)


TWO_BY_TWO = {"NUM_NODES": "2", "RANKS_PER_NODE": "2"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ("node", 0)),
        ({"RANKS_PER_NODE": "2"}, ("node", 0)),
        (TWO_BY_TWO | slurm(), ("rank", 3)),
        (TWO_BY_TWO | slurm_node(), ("node", 1)),
        ({"RANKS_PER_NODE": "4", "PMI_RANK": "2", "PMI_SIZE": "4"}, ("rank", 2)),
    ],
)
def test_a_process_has_a_place(variables: dict[str, str], expected: tuple[str, int]) -> None:
    assert place(load(variables)) == expected


@pytest.mark.parametrize(
    "variables", [TWO_BY_TWO, {"RANKS_PER_NODE": "3"} | slurm(), {"PMI_RANK": "2", "PMI_SIZE": "4"}]
)
def test_as_many_as_the_configuration_wants_or_none(variables: dict[str, str]) -> None:
    with pytest.raises(WorldError, match=r"\d processes were started; the configuration wants \d"):
        place(load(variables))
