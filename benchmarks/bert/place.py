"""The environment in, this process's place among the launched out: for run_and_time.sh, before anything starts.

`python -m benchmarks.bert.place` prints `node N`, where this process has to start its node's ranks, or `rank N`, where
it is itself the Nth of them; a problem of the configuration or of the launcher ends it with status 2.
"""

from __future__ import annotations

import sys

from benchmarks.bert.complaint import REFUSED, complain
from benchmarks.bert.config import Config, ConfigError, load
from benchmarks.bert.mpi import announced
from benchmarks.bert.world import WorldError, from_launcher


def place(config: Config) -> tuple[str, int]:
    """("node" or "rank", its number). Raises WorldError unless as many were started as the configuration asks for."""
    launched = announced(config.launcher)  # without MPI itself, which a process may start once only
    if launched is None:
        world = from_launcher(config.launcher)
        launched = world.rank, world.num_ranks
        if world.num_ranks == config.num_nodes and world.ranks_per_node == 1:
            return "node", world.rank
    number, num_started = launched
    if num_started == config.num_nodes * config.ranks_per_node:
        return "rank", number
    raise WorldError(
        f"{num_started} processes were started; the configuration wants {config.num_nodes * config.ranks_per_node} "
        f"(NUM_NODES={config.num_nodes} x RANKS_PER_NODE={config.ranks_per_node}), or under Slurm one for each node"
    )


def main() -> int:
    try:
        print(*place(load()))
    except (ConfigError, WorldError) as error:
        return complain(error, REFUSED)
    return 0


if __name__ == "__main__":
    sys.exit(main())
