"""Parameter groups in, ADAM with decoupled weight decay out."""

from __future__ import annotations

from torch import Tensor
from torch.optim import AdamW


class Adam(AdamW):
    """torch's fused AdamW; the update is, with t the number of steps not skipped,

        m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
        w = w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) - lr * decay * w

    It is one kernel per group, and it can leave a step out without asking the host.
    """

    def __init__(
        self, groups: list[dict[str, object]], *, learning_rate: float, betas: tuple[float, float], epsilon: float
    ) -> None:
        super().__init__(groups, lr=learning_rate, betas=betas, eps=epsilon, fused=True)

    def set_learning_rate(self, rate: float) -> None:
        for group in self.param_groups:
            group["lr"] = rate

    def step_unless(self, found_non_finite: Tensor) -> None:
        """One step, or none where `found_non_finite` is 1.0: weights, moments and t stay. No host synchronisation."""
        self.found_inf = found_non_finite  # the fused kernel's own protocol for loss scaling
        self.step()
