"""A trainer in, its state as host tensors out; and the way back.

Two flat dictionaries: what all ranks hold alike, and what is one rank's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.bert.checkpoint.store import CheckpointError

_LISTED = 5  # names in a message


def copy_to_host(tensors: Mapping[str, Tensor], copies: dict[str, Tensor]) -> None:
    """Put into `copies` what later steps do not change; from a GPU without waiting for it.

    Memory that is there already is written again: fresh memory takes longer than the copy. What is no more, since the
    model has grown, is left out.
    """
    for name in [name for name, copy in copies.items() if name not in tensors or copy.shape != tensors[name].shape]:
        del copies[name]
    for name, tensor in tensors.items():
        if name not in copies:
            copies[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        copies[name].copy_(tensor, non_blocking=True)


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


def forms_on_all_ranks(live: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What is live on any rank, on the meta device: names, shapes and types without values. Collective."""
    forms: list[dict[str, Tensor]] = [{}] * dist.get_world_size()
    dist.all_gather_object(forms, {name: tensor.to("meta") for name, tensor in live.items()})
    return {name: form for of_rank in forms for name, form in of_rank.items()}


def spread(
    forms: Mapping[str, Tensor], live: Mapping[str, Tensor], from_rank_0: Mapping[str, Tensor], device: torch.device
) -> None:
    """Put what rank 0 has read into the live tensors of the ranks that have them; the others pass nothing."""
    for name in sorted(forms):
        tensor = live[name] if name in live else torch.empty_like(forms[name], device=device)
        if name in from_rank_0:
            tensor.copy_(from_rank_0[name])
        dist.broadcast(tensor, src=0)
