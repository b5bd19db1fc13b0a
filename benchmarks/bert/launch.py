"""One node's configuration in, its ranks started, watched and ended together. `python -m benchmarks.bert.launch`.

Of several nodes each has its launcher, as its one Slurm task; they meet where the first one is.

By torch's elastic agent without restarts, as torchrun does; a failure is one line for each rank that failed.
"""

from __future__ import annotations

import logging
import signal
import sys
from dataclasses import replace
from tempfile import TemporaryDirectory

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from benchmarks.bert.complaint import FAILED, REFUSED, complain
from benchmarks.bert.config import ConfigError, load
from benchmarks.bert.shutdown import end_with_parent
from benchmarks.bert.world import World, WorldError, from_launcher

_WATCH_EVERY_S = 0.1
_KILL_AFTER_S = 6  # what a signal did not end: above the ranks' own grace (shutdown.py)


def main() -> int:
    """Exit status: the ranks' own where it is a refusal or an interruption, else 1."""
    end_with_parent()
    try:
        config = load()
        node = from_launcher(config.launcher)
        if (node.num_ranks, node.ranks_per_node) != (config.num_nodes, 1):
            raise WorldError(
                f"{node.num_ranks} launchers started for NUM_NODES={config.num_nodes}; start one on each node"
            )
    except (ConfigError, WorldError) as error:
        return complain(error, REFUSED)
    logging.disable(logging.ERROR)  # the agent would repeat each failure in its own words
    with TemporaryDirectory(prefix="bert-launch-") as scratch:
        return _launch(_agent(node, config.ranks_per_node, scratch))


def _agent(node: World, num_ranks: int, scratch: str) -> LaunchConfig:
    """`node` is this launcher's place among those of the other nodes."""
    agent = LaunchConfig(
        min_nodes=node.num_ranks,
        max_nodes=node.num_ranks,
        nproc_per_node=num_ranks,
        run_id="bert",
        max_restarts=0,
        monitor_interval=_WATCH_EVERY_S,
        shutdown_timeout=_KILL_AFTER_S,
        logs_specs=DefaultLogsSpecs(log_dir=scratch),
    )
    if node.num_ranks == 1:
        return replace(agent, rdzv_backend="c10d", rdzv_endpoint="localhost:0", local_addr="127.0.0.1")
    endpoint = str(node.rendezvous).removeprefix("tcp://")
    return replace(agent, rdzv_backend="static", rdzv_endpoint=endpoint, rdzv_configs={"rank": node.rank})


def _launch(agent: LaunchConfig) -> int:
    try:
        elastic_launch(agent, sys.executable)("-m", "benchmarks.bert.train")
    except ChildFailedError as error:
        return _report(error)
    except SignalException as error:
        return complain(f"stopped by {error.sigval.name}", 128 + error.sigval)
    return 0


def _report(error: ChildFailedError) -> int:
    """Name the ranks that were killed; those that ended by themselves have said why."""
    _, first = error.get_first_failure()
    for rank, failure in sorted(error.failures.items()):
        if failure.exitcode < 0 and _is_cause(failure, first):
            complain(f"rank {rank} was killed by {_name(-failure.exitcode)}", FAILED)
    return first.exitcode if first.exitcode > 0 else 128 - first.exitcode


def _name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _is_cause(failure: ProcessFailure, first: ProcessFailure) -> bool:
    """Whether a rank failed by itself: the agent ends the others with SIGTERM."""
    return failure is first or failure.exitcode != -signal.SIGTERM


if __name__ == "__main__":
    sys.exit(main())
