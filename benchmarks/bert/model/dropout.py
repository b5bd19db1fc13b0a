"""A tensor and a probability in, the tensor with elements dropped by chance and the others scaled up out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def dropout(x: Tensor, p: float) -> Tensor:
    """torch's own, but for a CPU, where it draws its masks at half the speed of uniform numbers."""
    if p == 0 or x.device.type != "cpu":
        return F.dropout(x, p)
    kept = torch.rand(x.shape).ge_(p).mul_(1 / (1 - p))
    return x * kept.to(x.dtype)
