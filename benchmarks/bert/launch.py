"""One node's configuration in, its ranks started, watched and ended together. `python -m benchmarks.bert.launch`.

By torch's elastic agent without restarts, as torchrun does; a failure is one line for each rank that failed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from benchmarks.bert.config import load

_WATCH_EVERY_S = 0.1


def main() -> int:
    """Exit status: the ranks' own where it is a refusal or an interruption, else 1."""
    config = load()
    if config.num_nodes != 1:
        print(f"error: NUM_NODES={config.num_nodes}, this launcher starts one node; use a cluster's", file=sys.stderr)
        return 2
    # The agent would repeat each failure in its own words.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    agent = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=config.ranks_per_node,
        run_id=f"bert-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=_WATCH_EVERY_S,
        local_addr="127.0.0.1",
    )
    try:
        elastic_launch(agent, sys.executable)("-m", "benchmarks.bert.train")
    except ChildFailedError as error:
        return _report(error)
    except SignalException as error:
        print(f"error: stopped by {error.sigval.name}", file=sys.stderr)
        return 128 + error.sigval
    return 0


def _report(error: ChildFailedError) -> int:
    """Name the ranks that were killed; those that ended by themselves have said why."""
    _, first = error.get_first_failure()
    for rank, failure in sorted(error.failures.items()):
        if failure.exitcode < 0 and _is_cause(failure, first):
            print(f"error: rank {rank} was killed by {signal.Signals(-failure.exitcode).name}", file=sys.stderr)
    return first.exitcode if first.exitcode > 0 else 128 - first.exitcode


def _is_cause(failure: ProcessFailure, first: ProcessFailure) -> bool:
    """Whether a rank failed by itself: the agent ends the others with SIGTERM."""
    return failure is first or failure.exitcode != -signal.SIGTERM


if __name__ == "__main__":
    sys.exit(main())
