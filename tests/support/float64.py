"""A model in float64 in, its results without any rounding to fp32 out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode


class InFloat64(TorchFunctionMode):
    """While this lasts, what the model asks for in fp32 stays in float64."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return args[0] if func is Tensor.float else func(*args, **(kwargs or {}))
