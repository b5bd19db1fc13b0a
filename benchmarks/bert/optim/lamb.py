"""Parameter groups in, LAMB out; as it stands in the form that the closed division asks for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.bert.optim.layerwise import Layerwise, Slot, adam_unless, add_unless, norms, pieces


class Lamb(Layerwise):
    """LAMB (You et al., arXiv 1904.00962) with bias correction; with t the number of steps not skipped,

        m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
        u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + decay * w
        w = w - lr * ratio * u,  ratio = |w| / |u|, or 1 where either norm is 0

    Parameters without decay, biases and norms, take ratio 1 (the reference's rule).
    """

    def _step(self, group: dict[str, Any], slots: list[Slot], found_non_finite: Tensor) -> None:
        w, updates = [slot.parameter for slot in slots], [slot.update for slot in slots]
        g = [parameter.grad for parameter in w if parameter.grad is not None]
        m, v, counts = self._moments(slots, found_non_finite)
        for w_, g_, m_, v_, updates_ in pieces(w, g, m, v, updates):
            adam_unless(found_non_finite, group, w_, g_, m_, v_, counts, updates_)
        if group["weight_decay"]:
            torch._foreach_mul_(updates, self._trust_ratios(norms(w), norms(updates)).unbind())
        add_unless(found_non_finite, w, updates, group["lr"])
