"""A device in, this process bound to the cores beside it."""

from __future__ import annotations

import sys

import torch
from torch.numa.binding import (
    AffinityMode,
    NumaOptions,
    _bind_all_threads_in_current_process_to_logical_cpus,
    _get_logical_cpus_to_bind_to,
)

from benchmarks.bert.complaint import describe


def bind_to(device: torch.device) -> None:
    """Keep all threads on cores of the GPU's NUMA node, shared out among the GPUs there; nothing for a CPU.

    torch reads the topology from the driver and /sys; memory follows, as Linux gives a thread pages of its own node.
    Where that fails, a warning is all: the run does not depend on it. These are the parts of torch's own entry, which
    asks for the program numactl before them and never calls it.
    """
    if device.type != "cuda":
        return
    try:
        cores = _get_logical_cpus_to_bind_to(gpu_index=device.index, numa_options=NumaOptions(AffinityMode.EXCLUSIVE))
        _bind_all_threads_in_current_process_to_logical_cpus(logical_cpu_indices=cores)
    except Exception as error:  # whatever a driver or a sandbox does not tell
        print(
            f"warning: {device} is not bound to the cores beside it ({describe(error)}); BINDING=none leaves it so",
            file=sys.stderr,
            flush=True,
        )
