"""Parameter groups in, LANS out."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from benchmarks.bert.optim.layerwise import (
    TOGETHER,
    Layerwise,
    Slot,
    adam_unless,
    add_unless,
    norms,
    pieces,
    split_like,
)


class Lans(Layerwise):
    """LANS (Zheng et al., arXiv 2006.13484); for each tensor, with t the number of steps not skipped,

        g = g / |g|, or g where it is 0
        m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2,  d = sqrt(v / (1 - b2^t)) + eps
        r = m / (1 - b1^t) / d + decay * w,  c = g / d + decay * w
        w = w - lr * (b1 * |w| / |r| * r + (1 - b1) * |w| / |c| * c),  each ratio 1 where one of its norms is 0

    c is Nesterov's part: the gradient of this step alone. Biases and norms have no decay, but do take their ratios:
    unlike LAMB's, the published code makes no exception.
    """

    @cached_property
    def _spare(self) -> Tensor:
        """Scratch memory for the denominators of the elements that are worked on together."""
        parts = [[slot.update for slot in part] for of_group in self._parts for part in of_group]
        largest = max(sum(update.numel() for update in part) for part in parts)
        return parts[0][0].new_empty(min(largest, TOGETHER[parts[0][0].device.type]))

    def _step(self, group: dict[str, Any], slots: list[Slot], found_non_finite: Tensor) -> None:
        w, minus_r = [slot.parameter for slot in slots], [slot.update for slot in slots]
        g = [parameter.grad for parameter in w if parameter.grad is not None]
        m, v, counts = self._moments(slots, found_non_finite)
        gradient_norm_N = norms(g)
        divisors = torch.where(gradient_norm_N > 0, gradient_norm_N, 1.0).unbind()
        # In fp64, for 1 - b2^t cancels.
        corrections = (1 - group["betas"][1] ** torch.stack(counts).double()).sqrt().float().unbind()
        for w_, g_, m_, v_, minus_r_ in pieces(w, g, m, v, minus_r):
            torch._foreach_div_(g_, divisors)
            adam_unless(found_non_finite, group, w_, g_, m_, v_, counts, minus_r_)
            self._put_c(group, w_, g_, v_, corrections)

        b1 = group["betas"][0]
        ratio_r_N, ratio_c_N = self._trust_ratios(norms(w), norms(minus_r + g).view(2, -1)).unbind()
        shares_r, shares_c = ratio_r_N.mul_(b1).unbind(), ratio_c_N.mul_(1 - b1).unbind()
        for w_, c_, minus_r_ in pieces(w, g, minus_r):
            torch._foreach_mul_(minus_r_, shares_r)
            torch._foreach_mul_(c_, shares_c)
            torch._foreach_sub_(minus_r_, c_)
            add_unless(found_non_finite, w_, minus_r_, group["lr"])

    def _put_c(
        self, group: dict[str, Any], w: list[Tensor], g: list[Tensor], v: list[Tensor], corrections: tuple[Tensor, ...]
    ) -> None:
        """c, where g was."""
        denominators = split_like(self._spare, v)
        torch._foreach_copy_(denominators, v)
        torch._foreach_sqrt_(denominators)
        torch._foreach_div_(denominators, corrections)
        torch._foreach_add_(denominators, group["eps"])
        torch._foreach_div_(g, denominators)
        torch._foreach_add_(g, w, alpha=group["weight_decay"])
