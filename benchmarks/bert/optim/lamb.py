"""Parameter groups in, LAMB out, in the form that the closed division asks for."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer


class Lamb(Optimizer):
    """LAMB (You et al., arXiv 1904.00962) with bias correction; with t the number of steps not skipped,

        m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
        u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + decay * w
        w = w - lr * ratio * u,  ratio = |w| / |u|, or 1 where either norm is 0

    Parameters without decay, biases and norms, take ratio 1 (the reference's rule). All tensors of a group go through
    each operation at once, and a step can be left out without asking the host.
    """

    def __init__(
        self, groups: list[dict[str, object]], *, learning_rate: float, betas: tuple[float, float], epsilon: float
    ) -> None:
        super().__init__(groups, {"lr": learning_rate, "betas": betas, "eps": epsilon, "weight_decay": 0.0})

    def set_learning_rate(self, rate: float) -> None:
        for group in self.param_groups:
            group["lr"] = rate

    @torch.no_grad()
    def step_unless(self, found_non_finite: Tensor) -> None:
        """One step, or none where `found_non_finite` is 1.0: weights, moments and t stay. No host synchronisation."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._step(group, parameters, kept=1.0 - found_non_finite)

    def _step(self, group: dict, parameters: list[Tensor], kept: Tensor) -> None:
        """`kept` is 1.0 for a step that counts, 0.0 for one that leaves everything as it is."""
        b1, b2 = group["betas"]
        states = [self._state_of(parameter) for parameter in parameters]
        m, v, t = ([state[name] for state in states] for name in ("m", "v", "t"))
        # In a step that is left out 0 keeps the products below finite, whatever the gradient is.
        g = [torch.where(kept > 0, p.grad, 0.0) for p in parameters if p.grad is not None]
        torch._foreach_add_(t, [kept] * len(t))  # a list: a single tensor would be asked for its value
        torch._foreach_mul_(m, 1 - (1 - b1) * kept)
        torch._foreach_add_(m, torch._foreach_mul(g, (1 - b1) * kept))
        torch._foreach_mul_(v, 1 - (1 - b2) * kept)
        torch._foreach_add_(v, torch._foreach_mul(torch._foreach_mul(g, g), (1 - b2) * kept))
        steps_N = (
            torch.stack(t).clamp(min=1.0).double()
        )  # 0 before the first step that counts; 1 - b2^t cancels in fp32
        update = torch._foreach_div(v, (1 - b2**steps_N).float().unbind())
        torch._foreach_sqrt_(update)
        torch._foreach_add_(update, group["eps"])
        update = torch._foreach_div(torch._foreach_div(m, (1 - b1**steps_N).float().unbind()), update)
        if group["weight_decay"]:
            torch._foreach_add_(update, torch._foreach_mul(parameters, group["weight_decay"]))
            update = torch._foreach_mul(update, _trust_ratios(parameters, update))
        torch._foreach_mul_(update, group["lr"] * kept)
        torch._foreach_sub_(parameters, update)

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state[parameter]
        if not state:
            state["m"], state["v"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            state["t"] = torch.zeros((), device=parameter.device)
        return state


def _trust_ratios(weights: list[Tensor], updates: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    # Not torch's norms: on a CPU they add up in one fp32 sum, as in comm/clip.py.
    weight_N, update_N = (torch.stack([each.square().sum() for each in many]).sqrt() for many in (weights, updates))
    ratio_N = torch.where((weight_N > 0) & (update_N > 0), weight_N / update_N, torch.ones_like(weight_N))
    return ratio_N.unbind()
