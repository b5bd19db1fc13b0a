"""A trainer in, its state as host tensors out; and the way back.

Two flat dictionaries: what all ranks hold alike, and what is one rank's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.bert.checkpoint.store import CheckpointError

_LISTED = 5  # names in a message


def copy_to_host(tensors: Mapping[str, Tensor], copies: dict[str, Tensor]) -> None:
    """Put into `copies` what later steps do not change; from a GPU without waiting for it.

    Memory that is there already is written again: fresh memory takes longer than the copy.
    """
    for name, tensor in tensors.items():
        if name not in copies:
            copies[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        copies[name].copy_(tensor, non_blocking=True)


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The generators that dropout draws from, as bytes."""
    states = {"random/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["random/cuda"] = torch.cuda.get_rng_state(device)
    return states


def drawn_random_states(device: torch.device, seed: int, step: int, rank: int) -> dict[str, Tensor]:
    """Of generators that are seeded from the three numbers, for a rank that no states were kept of."""
    seeds = np.random.SeedSequence([seed, step, rank]).generate_state(2, np.uint64) >> np.uint64(1)
    states = {"random/cpu": torch.Generator().manual_seed(int(seeds[0])).get_state()}
    if device.type == "cuda":
        states["random/cuda"] = torch.Generator(device).manual_seed(int(seeds[1])).get_state()
    return states


def set_random_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["random/cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["random/cuda"], device)


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: not a readable safetensors file ({error})") from error


def check_fit(path: Path, found: Mapping[str, Tensor], live: Mapping[str, Tensor]) -> None:
    """Raises CheckpointError, naming tensors, where `found` is not the state of a trainer with the tensors `live`."""
    problems = [f"lacks {name}" for name in live.keys() - found.keys()]
    problems += [f"has {name}, which this run has not" for name in found.keys() - live.keys()]
    for name in live.keys() & found.keys():
        if (found[name].shape, found[name].dtype) != (live[name].shape, live[name].dtype):
            problems.append(
                f"{name} is {found[name].dtype} {tuple(found[name].shape)}, "
                f"this run's is {live[name].dtype} {tuple(live[name].shape)}"
            )
    if problems:
        rest = f", and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
        raise CheckpointError(f"{path}: {'; '.join(sorted(problems)[:_LISTED])}{rest}")


def spread(live: Mapping[str, Tensor], from_rank_0: Mapping[str, Tensor]) -> None:
    """Put what rank 0 has read into the live tensors of every rank; the other ranks pass nothing."""
    for name in sorted(live):
        if name in from_rank_0:
            live[name].copy_(from_rank_0[name])
        dist.broadcast(live[name], src=0)
