"""Whether a step overflowed in, the factor that keeps fp16 gradients in range out; no host synchronisation."""

from __future__ import annotations

import torch
from torch import Tensor

_GROWTH, _BACKOFF = 2.0, 0.5


class LossScale:
    """Halves after a step that overflowed, doubles after `growth_steps` in a row that did not.

    The comm hook takes it out again before it clips, in fp32. `start` is worth setting: the record run lost 6 to 8 of
    its 186 steps on the way down from 2^17 to 2^10.
    """

    def __init__(self, start: float, growth_steps: int, device: torch.device) -> None:
        self.scale = torch.full((), start, device=device)
        self._good_steps = torch.zeros((), dtype=torch.int32, device=device)
        self._growth_steps = growth_steps

    def tensors(self) -> dict[str, Tensor]:
        return {"scale": self.scale, "good_steps": self._good_steps}

    def scaled(self, loss: Tensor) -> Tensor:
        return loss * self.scale

    def update(self, found_non_finite: Tensor) -> None:
        torch._amp_update_scale_(self.scale, self._good_steps, found_non_finite, _GROWTH, _BACKOFF, self._growth_steps)


class NoScale:
    """For fp32 and bf16, whose range needs none."""

    scale = 1.0

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def scaled(self, loss: Tensor) -> Tensor:
        return loss

    def update(self, found_non_finite: Tensor) -> None: ...


UNSCALED = NoScale()
