"""Parameter groups and an optimizer's maker in, an optimizer out whose moments are spread over the ranks (ZeRO-1).

ZeRO's first stage (Rajbhandari et al., arXiv 1910.02054) by whole tensors: each has an owner, which alone keeps its
moments, steps it, and sends the new weights to the others. A tensor's norms are its owner's own affair, so LAMB needs
no communication, and every weight is, bit for bit, what it is without this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

Groups = list[dict[str, Any]]
_PACKED_BELOW = 2**16  # elements: 256 KiB of fp32 take longer to send than to copy, a thousandth of it does not


class Steps(Protocol):
    """What every optimizer here can do."""

    param_groups: Groups
    state: Any

    def set_learning_rate(self, rate: float) -> None: ...

    def step_unless(self, found_non_finite: Tensor) -> None: ...


class Sharded:
    """In place of the optimizer that `make` makes of all groups.

    `param_groups` and `state` are those of this rank's share: all groups, each with the parameters that this rank
    owns, perhaps none.
    """

    def __init__(self, groups: Groups, make: Callable[[Groups], Steps]) -> None:
        self._parameters = [parameter for group in groups for parameter in group["params"]]
        owners = deal([parameter.numel() for parameter in self._parameters], dist.get_world_size())
        owner_of = dict(zip(self._parameters, owners, strict=True))
        self._own = make(
            [group | {"params": [p for p in group["params"] if owner_of[p] == dist.get_rank()]} for group in groups]
        )
        self._sent_whole: list[tuple[int, Tensor]] = []
        self._sent_packed: dict[int, list[Tensor]] = {}
        for parameter, owner in owner_of.items():
            if parameter.numel() >= _PACKED_BELOW:
                self._sent_whole.append((owner, parameter.detach()))
            else:
                self._sent_packed.setdefault(owner, []).append(parameter.detach())
        self.param_groups, self.state = self._own.param_groups, self._own.state

    def set_learning_rate(self, rate: float) -> None:
        self._own.set_learning_rate(rate)

    def step_unless(self, found_non_finite: Tensor) -> None:
        """One step of the share, or none where `found_non_finite` is 1.0 (on all ranks alike); then all weights are
        exchanged in either case, for nothing waits for its value. Collective; no host synchronisation on a GPU.
        """
        self._own.step_unless(found_non_finite)
        packs = {owner: torch.cat([each.flatten() for each in small]) for owner, small in self._sent_packed.items()}
        sent = [*self._sent_whole, *packs.items()]
        for work in [dist.broadcast(tensor, src=owner, async_op=True) for owner, tensor in sent]:
            work.wait()
        for owner, small in self._sent_packed.items():
            parts = packs[owner].split([each.numel() for each in small])
            torch._foreach_copy_(small, [part.view_as(each) for part, each in zip(parts, small, strict=True)])

    def zero_grad(self) -> None:
        """Of all parameters: backward computes the gradients of the others' shares too."""
        for parameter in self._parameters:
            parameter.grad = None


def deal(sizes: Sequence[int], num_ranks: int) -> list[int]:
    """The owner of each: the largest first, each to the rank that has least so far; of equals, to the first."""
    owners, loads = [0] * len(sizes), [0] * num_ranks
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        owners[index] = loads.index(min(loads))
        loads[owners[index]] += sizes[index]
    return owners


def state_bytes(optimizer: Steps | Sharded) -> tuple[int, int]:
    """Bytes of the optimizer's state on this rank, and of the whole state, each tensor once. Collective."""
    own = sum(tensor.nbytes for state in optimizer.state.values() for tensor in state.values())
    if not isinstance(optimizer, Sharded):
        return own, own
    whole = torch.tensor(own)
    dist.all_reduce(whole)
    return own, int(whole)
