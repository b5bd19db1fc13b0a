"""A device in, the most memory that this process had there since it last asked out."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import torch

_PEAK_OF_RESIDENT = "5"  # what /proc/self/clear_refs is told (proc(5))


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):  # some sandboxes have no such file: the peak is then the whole run's
            Path("/proc/self/clear_refs").write_text(_PEAK_OF_RESIDENT)


def peak_bytes(device: torch.device) -> int:
    """On a GPU of torch's tensors, on a CPU of the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(match[1]) * 1024 if match else 0
