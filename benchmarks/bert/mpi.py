"""An MPI's processes in, who they are and where they meet out. Collectives are torch's; MPI only introduces.

`python -m benchmarks.bert.mpi` asks MPI and ends: a process may start MPI once only, and one that ends otherwise than
through it, as a rank that fails does, makes mpirun kill the rest, the one that still verifies the log among them.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass

MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE")  # of Open MPI, and of MPICH and its kin
_PORTS = range(20_000, 30_000)  # below the ephemeral ones


class MpiError(ValueError):
    """MPI cannot be asked; the text says why."""


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
    if _is_srun_itself(variables):
        return None
    for rank, num_ranks in zip(MPI[::2], MPI[1::2], strict=True):
        if (told := variables.get(num_ranks, "")).isdecimal() and int(told) > 1:
            return int(variables[rank]), int(told)
    return None


def _is_srun_itself(variables: Mapping[str, str]) -> bool:
    """Whether these are of srun --mpi=pmi2, as clusters have it by default: its tasks are not mpirun's processes."""
    told = [variables.get(name) for name in ("PMI_SIZE", "PMI_RANK")]
    step = [variables.get(name) for name in ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID")]
    return "PMI_SIZE" in variables and "OMPI_COMM_WORLD_SIZE" not in variables and told == step


def discover(variables: Mapping[str, str]) -> MpiProcess | None:
    """None where nothing is announced. Raises MpiError where MPI cannot be asked, as without mpi4py."""
    if announced(variables) is None:
        return None
    command = [sys.executable, "-m", "benchmarks.bert.mpi"]
    answer = subprocess.run(command, stdout=subprocess.PIPE, close_fds=False, check=False)  # one is mpirun's connection
    if answer.returncode:
        raise MpiError("mpirun started this process, but MPI cannot be asked; is mpi4py there (requirements-mpi.txt)?")
    return MpiProcess(**json.loads(answer.stdout))


def main() -> None:
    from mpi4py import MPI as mpi  # noqa: N811 - the environment's MPI is started by this import

    world = mpi.COMM_WORLD
    node = world.Split_type(mpi.COMM_TYPE_SHARED)
    host, port = world.bcast(_meeting_place(world.size == node.size) if world.rank == 0 else None)
    print(json.dumps(asdict(MpiProcess(world.rank, world.size, node.rank, node.size, host, port))))


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


if __name__ == "__main__":
    main()
