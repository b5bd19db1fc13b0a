"""The launcher's variables in, who this process is out: a plain value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


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
    def is_main(self) -> bool:
        """Whether this rank writes the log."""
        return self.rank == 0

    @property
    def is_node_main(self) -> bool:
        return self.local_rank == 0


def from_launcher(variables: Mapping[str, str]) -> World:
    """From torchrun's variables, or a world of one where there are none."""
    present = [name for name in TORCHRUN if name in variables]
    if "RANK" not in variables and "WORLD_SIZE" not in variables:
        return World(rank=0, num_ranks=1, local_rank=0, ranks_per_node=1, rendezvous=None)
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
