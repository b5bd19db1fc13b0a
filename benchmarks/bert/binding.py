"""A device in, this process bound to the cores beside it."""

from __future__ import annotations

import torch
from torch.numa.binding import AffinityMode, NumaOptions, _maybe_apply_numa_binding_to_current_process


def bind_to(device: torch.device) -> None:
    """Keep all threads on cores of the GPU's NUMA node, shared out among the GPUs there; nothing for a CPU.

    torch reads the topology from the driver and /sys; memory follows, as Linux gives a thread pages of its own node.
    """
    if device.type == "cuda":
        _maybe_apply_numa_binding_to_current_process(
            gpu_index=device.index,
            numa_options=NumaOptions(AffinityMode.EXCLUSIVE, should_fall_back_if_binding_fails=True),
        )
