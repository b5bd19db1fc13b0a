"""A model in, parameter groups with and without weight decay out."""

from __future__ import annotations

from torch import nn


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Matrices decay; biases and norm weights, all the one-dimensional parameters, do not (the reference's rule)."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in trainable if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},
    ]
