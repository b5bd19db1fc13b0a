"""The launcher's variables in, who this process is out: a plain value.

Three launchers are known: torchrun (and our own, which is torch's agent), Slurm's srun and an MPI's mpirun. Where one
is nested in another, as our launcher in a Slurm task of each node, the inner one counts and both must fit together.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.bert.mpi import MPI, MpiError, MpiProcess, discover

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
SLURM = (
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_STEP_NUM_NODES",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_STEP_NODELIST",
)
LAUNCHERS = (*TORCHRUN, *SLURM, *MPI)
_PORTS = range(20_000, 30_000)  # below the ephemeral ones, which any process may be given by chance


class WorldError(ValueError):
    """The launcher's variables do not say who this process is, or contradict the configuration."""


@dataclass(frozen=True)
class World:
    rank: int
    num_ranks: int
    local_rank: int
    ranks_per_node: int
    rendezvous: str | None  # an init_method of torch.distributed; None where there is one process and no launcher

    @property
    def num_nodes(self) -> int:
        return self.num_ranks // self.ranks_per_node

    @property
    def node(self) -> int:
        return self.rank // self.ranks_per_node

    @property
    def is_main(self) -> bool:
        """Whether this rank writes the log."""
        return self.rank == 0

    @property
    def is_node_main(self) -> bool:
        return self.local_rank == 0


_ALONE = World(rank=0, num_ranks=1, local_rank=0, ranks_per_node=1, rendezvous=None)


def from_launcher(variables: Mapping[str, str]) -> World:
    """The world of the innermost launcher, or one of a single rank where there is none."""
    slurm = _of_slurm(variables) if "SLURM_STEP_ID" in variables and "SLURM_PROCID" in variables else None
    if "RANK" in variables or "WORLD_SIZE" in variables:
        return _fitting("torchrun", _of_torchrun(variables), slurm)
    try:
        process = discover(variables)
    except MpiError as error:
        raise WorldError(str(error)) from error
    if process is not None:
        return _fitting("mpirun", _of_mpi(process), slurm)
    return slurm or _ALONE


def _fitting(launcher: str, world: World, slurm: World | None) -> World:
    """The inner launcher's world, if a Slurm step around it holds its ranks or one task for each of its nodes."""
    if slurm is None or slurm.num_ranks in (1, world.num_nodes):
        return world
    if (slurm.rank, slurm.num_ranks) == (world.rank, world.num_ranks):  # srun speaks MPI's protocol itself
        return world
    raise WorldError(
        f"{launcher} says rank {world.rank} of {world.num_ranks} on {world.num_nodes} nodes, the Slurm step around it "
        f"task {slurm.rank} of {slurm.num_ranks}: two launchers at once; start with one of them, or with one Slurm "
        "task for each node"
    )


def _of_torchrun(variables: Mapping[str, str]) -> World:
    present = [name for name in TORCHRUN if name in variables]
    if missing := [name for name in TORCHRUN if name not in variables]:
        raise WorldError(
            f"{', '.join(present)} are set but not {', '.join(missing)}: start with torchrun, or unset them"
        )
    rank, num_ranks, local_rank, ranks_per_node, node = (_count(variables, name) for name in TORCHRUN[:5])
    in_step = rank == node * ranks_per_node + local_rank
    if not (rank < num_ranks and local_rank < ranks_per_node and num_ranks % ranks_per_node == 0 and in_step):
        raise WorldError(
            f"RANK={rank} of WORLD_SIZE={num_ranks}, LOCAL_RANK={local_rank} of LOCAL_WORLD_SIZE={ranks_per_node}, "
            f"GROUP_RANK={node}: ranks must lie below their sizes, every node must hold the same number, and RANK must "
            "be GROUP_RANK x LOCAL_WORLD_SIZE + LOCAL_RANK"
        )
    return World(rank, num_ranks, local_rank, ranks_per_node, rendezvous="env://")


def _of_slurm(variables: Mapping[str, str]) -> World:
    if missing := [name for name in SLURM if name not in variables]:
        raise WorldError(f"a Slurm step without {', '.join(missing)}: start with srun")
    rank, num_ranks, local_rank, node, num_nodes = (
        _count(variables, name)
        for name in ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_NUM_NODES")
    )
    tasks_per_node = variables["SLURM_STEP_TASKS_PER_NODE"]
    match = re.fullmatch(r"(\d+)(?:\(x\d+\))?", tasks_per_node)
    if match is None:
        raise WorldError(
            f"SLURM_STEP_TASKS_PER_NODE={tasks_per_node}: every node must hold as many tasks; srun --ntasks-per-node"
        )
    ranks_per_node = int(match[1])
    if num_ranks != num_nodes * ranks_per_node or rank != node * ranks_per_node + local_rank:
        raise WorldError(
            f"SLURM_PROCID={rank} is task {local_rank} of {ranks_per_node} on node {node}: ranks must follow the "
            "nodes; srun --distribution=block"
        )
    host = variables.get("MASTER_ADDR") or first_host(variables["SLURM_STEP_NODELIST"])
    port = variables.get("MASTER_PORT") or _port(f"{variables['SLURM_JOB_ID']}.{variables['SLURM_STEP_ID']}")
    return World(rank, num_ranks, local_rank, ranks_per_node, rendezvous=f"tcp://{host}:{port}")


def _of_mpi(process: MpiProcess) -> World:
    if process.num_ranks % process.ranks_per_node or process.rank % process.ranks_per_node != process.local_rank:
        raise WorldError(
            f"MPI rank {process.rank} of {process.num_ranks} is process {process.local_rank} of "
            f"{process.ranks_per_node} on its node: every node must hold as many, one node's ranks after the other's "
            "(mpirun --map-by slot)"
        )
    rendezvous = f"tcp://{process.host}:{process.port}"
    return World(process.rank, process.num_ranks, process.local_rank, process.ranks_per_node, rendezvous)


def _port(job: str) -> int:
    """The same on every node of a job step, and most likely another for another one on the same host."""
    return _PORTS[zlib.crc32(job.encode()) % len(_PORTS)]


def first_host(nodes: str) -> str:
    """The first name of a Slurm node list: `n1` of `n[1-3,7]`, `a-08` of `a-[08-11],b-1`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    if first is None:
        raise WorldError(f"SLURM_STEP_NODELIST={nodes!r} names no node")
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0])


def _count(variables: Mapping[str, str], name: str) -> int:
    if not variables[name].isdecimal():
        raise WorldError(f"{name}={variables[name]!r}, expected a whole number from 0")
    return int(variables[name])


def check_world(world: World, *, num_nodes: int, ranks_per_node: int) -> None:
    """Raise WorldError unless the processes started are those that the configuration asks for."""
    if (world.num_nodes, world.ranks_per_node) != (num_nodes, ranks_per_node):
        raise WorldError(
            f"started {world.num_nodes} nodes x {world.ranks_per_node} ranks, the configuration says "
            f"NUM_NODES={num_nodes} x RANKS_PER_NODE={ranks_per_node}; start as many, or change the configuration"
        )
