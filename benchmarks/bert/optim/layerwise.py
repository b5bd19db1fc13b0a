"""Parameter groups in, what LAMB and LANS have in common out: moments, scratch memory, norms and trust ratios."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

# Elements that are worked on together. On a CPU few, so that they stay in the cache from one operation to the next; on
# a GPU many, so that launches cost nothing.
TOGETHER = {"cpu": 2**18, "cuda": 2**26}


@dataclass(frozen=True)
class Slot:
    """A parameter and scratch memory of its shape, for its update."""

    parameter: Tensor
    update: Tensor


class Layerwise(Optimizer):
    """An ADAM whose update of each tensor is given a length: a ratio to the norm of the tensor.

    torch's fused kernel of ADAM works out moments and update in one pass over the memory, which is what a step's time
    is made of. It writes the update into scratch memory as large as the largest part, which one part of the tensors
    after the other uses: made in the first step, kept, and no state. Gradients are scratch memory too: a step may leave
    other values in them.

    `bias_correction` False leaves the moments as they are. `max_trust_ratio` is the largest ratio, 0 for no limit.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        learning_rate: float,
        betas: tuple[float, float],
        epsilon: float,
        bias_correction: bool = True,
        max_trust_ratio: float = 0.0,
    ) -> None:
        super().__init__(groups, {"lr": learning_rate, "betas": betas, "eps": epsilon, "weight_decay": 0.0})
        self._bias_correction = bias_correction
        self._max_ratio = max_trust_ratio or math.inf

    def set_learning_rate(self, rate: float) -> None:
        for group in self.param_groups:
            group["lr"] = rate

    @torch.no_grad()
    def step_unless(self, found_non_finite: Tensor) -> None:
        """One step, or none where `found_non_finite` is 1.0: weights, moments and t stay. No host synchronisation."""
        for group, parts in zip(self.param_groups, self._parts, strict=True):
            for part in parts:
                if slots := [slot for slot in part if slot.parameter.grad is not None]:
                    self._step(group, slots, found_non_finite)

    def _step(self, group: dict[str, Any], slots: list[Slot], found_non_finite: Tensor) -> None:
        raise NotImplementedError

    @cached_property
    def _parts(self) -> list[list[list[Slot]]]:
        """Of each group; made with the first step, when the parameters are where they stay."""
        parts = [list(_cut(group["params"])) for group in self.param_groups]
        everything = [part for of_group in parts for part in of_group]
        if not everything:
            return [[] for _ in parts]
        scratch = everything[0][0].new_empty(max(sum(p.numel() for p in part) for part in everything))
        return [[_slots(part, scratch) for part in of_group] for of_group in parts]

    def _moments(self, slots: Sequence[Slot], found_non_finite: Tensor) -> tuple[list[Tensor], ...]:
        """m, v and the step counts that the bias correction goes by, this step counted."""
        states = [self._state_of(slot.parameter) for slot in slots]
        m, v, t = ([state[name] for state in states] for name in ("m", "v", "t"))
        kept = 1.0 - found_non_finite
        torch._foreach_add_(t, [kept] * len(t))  # a list: a single tensor would be asked for its value
        # An infinite count corrects nothing: 1 - b^inf is 1.
        return m, v, t if self._bias_correction else [torch.full_like(t[0], math.inf)] * len(t)

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state[parameter]
        if not state:
            state["m"], state["v"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            state["t"] = torch.zeros((), device=parameter.device)
        return state

    def _trust_ratios(self, weight_norm_N: Tensor, update_norm_N: Tensor) -> Tensor:
        """|w| / |update|, or 1 where either is 0; at most the limit."""
        has_both_N = torch.minimum(weight_norm_N, update_norm_N) > 0
        return torch.where(has_both_N, weight_norm_N / update_norm_N, 1.0).clamp_(max=self._max_ratio)


def pieces(*lists: list[Tensor]) -> Iterator[list[list[Tensor]]]:
    """The lists, of tensors of equal shapes, to be worked on element by element: as they are, or if they hold one
    large tensor each, pieces of these, one after the other."""
    first, most = lists[0][0], TOGETHER[lists[0][0].device.type]
    if len(lists[0]) > 1 or first.numel() <= most:
        yield list(lists)
    else:
        for views in zip(*(tensor.view(-1).split(most) for (tensor,) in lists), strict=True):
            yield [[view] for view in views]


def adam_unless(
    found_non_finite: Tensor,
    group: dict[str, Any],
    w: list[Tensor],
    g: list[Tensor],
    m: list[Tensor],
    v: list[Tensor],
    counts: list[Tensor],
    updates: list[Tensor],
) -> None:
    """m and v after this step, and in `updates` -(m' / (sqrt(v') + eps) + decay * w), ' being corrected.

    In a step that is left out m and v stay, and what `updates` gets is of no use.
    """
    torch._foreach_copy_(updates, w)
    torch._foreach_mul_(updates, -group["weight_decay"])
    torch._fused_adamw_(
        updates,
        g,
        m,
        v,
        [],
        counts,
        lr=1.0,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=0.0,
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
        found_inf=found_non_finite,
    )


def add_unless(found_non_finite: Tensor, w: list[Tensor], updates: list[Tensor], rate: float) -> None:
    """w = w + rate * update, or no bit of w changed: the fused kernel of SGD knows how to leave a step out."""
    torch._fused_sgd_(
        w,
        updates,
        [],
        weight_decay=0.0,
        momentum=0.0,
        lr=rate,
        dampening=0.0,
        nesterov=False,
        maximize=True,
        is_first_step=False,
        found_inf=found_non_finite,
    )


def norms(tensors: list[Tensor]) -> Tensor:
    """The Euclidean norm of each, as one tensor."""
    if tensors[0].is_cuda:
        return torch.stack(torch._foreach_norm(tensors))
    norm, norm_N = torch.linalg.vector_norm, tensors[0].new_empty(len(tensors))
    for tensor, place in zip(tensors, norm_N.unbind(), strict=True):
        # Row by row: on a CPU the norm of a whole matrix is one running fp32 sum, 0.1 % short at 30 million elements.
        norm(norm(tensor, dim=-1) if tensor.ndim > 1 else tensor, out=place)
    return norm_N


def split_like(memory: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The beginning of flat `memory`, as tensors of the same shapes."""
    sizes = [tensor.numel() for tensor in tensors]
    places = memory[: sum(sizes)].split(sizes)
    return [place.view_as(tensor) for place, tensor in zip(places, tensors, strict=True)]


def _cut(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Parts of at most so many elements as are worked on together; a larger tensor is a part by itself."""
    part: list[Tensor] = []
    for parameter in parameters:
        most = TOGETHER[parameter.device.type]
        if part and sum(p.numel() for p in part) + parameter.numel() > most:
            yield part
            part = []
        part.append(parameter)
    if part:
        yield part


def _slots(part: Sequence[Tensor], scratch: Tensor) -> list[Slot]:
    return [Slot(parameter, update) for parameter, update in zip(part, split_like(scratch, part), strict=True)]
