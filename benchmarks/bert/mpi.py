"""An MPI's processes in, who they are and where they meet out. Collectives are torch's; MPI only introduces."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE")  # of Open MPI, and of MPICH and its kin
_PORTS = range(20_000, 30_000)  # below the ephemeral ones


@dataclass(frozen=True)
class MpiProcess:
    rank: int
    num_ranks: int
    local_rank: int  # among those that share its memory
    ranks_per_node: int
    host: str  # where rank 0 waits for the others
    port: int


def announced(variables: Mapping[str, str]) -> tuple[int, int] | None:
    """Rank and number of ranks as mpirun tells them to a shell; None where it started no process, or one alone."""
    for rank, num_ranks in zip(MPI[::2], MPI[1::2], strict=True):
        if (told := variables.get(num_ranks, "")).isdecimal() and int(told) > 1:
            return int(variables[rank]), int(told)
    return None


def discover(variables: Mapping[str, str]) -> MpiProcess | None:
    """None where nothing is announced. Needs mpi4py where something is.

    MPI is taken down again at once: a rank that dies later is then torch's to notice, and no library waits for it.
    """
    if announced(variables) is None:
        return None
    from mpi4py import MPI as mpi  # noqa: N811 - the environment's MPI is started by this import

    world = mpi.COMM_WORLD
    node = world.Split_type(mpi.COMM_TYPE_SHARED)
    host, port = world.bcast(_meeting_place(world.size == node.size) if world.rank == 0 else None)
    process = MpiProcess(world.rank, world.size, node.rank, node.size, host, port)
    mpi.Finalize()
    return process


def _meeting_place(one_node: bool) -> tuple[str, int]:
    host = "127.0.0.1" if one_node else socket.gethostname()
    for port in _PORTS[os.getpid() % 1000 :: 7]:
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return host, port
    raise OSError(f"no free port from {_PORTS.start} to {_PORTS.stop - 1}")
