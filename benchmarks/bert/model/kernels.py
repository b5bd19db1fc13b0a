"""Names of a configuration in, the functions that the model computes with out: chosen once, before the model is built.

Shapes: T packed tokens, Q places that a layer is computed at, H hidden, F width of the feed-forward part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.bert.model.attention import ATTENTION, Attention, KernelError, choose_attention
from benchmarks.bert.model.dropout import dropout

LinearGelu = Callable[[nn.Linear, Tensor], Tensor]
# (linear, its input, what it is added to, the norm after that, probability to drop) -> the norm's output
LinearAddNorm = Callable[[nn.Linear, Tensor, Tensor, nn.LayerNorm, float], Tensor]
# (linear, its input, what it is added to, probability to drop, what it is multiplied by) -> the sum
LinearAdd = Callable[[nn.Linear, Tensor, Tensor, float, float], Tensor]


def eager_linear_gelu(linear: nn.Linear, x_QH: Tensor) -> Tensor:
    """erf GELU of a linear map, shape (Q, F)."""
    return F.gelu(linear(x_QH))


def eager_linear_add_norm(linear: nn.Linear, x_QF: Tensor, residual_QH: Tensor, norm: nn.LayerNorm, p: float) -> Tensor:
    """norm(residual + dropout(linear(x))): the sum and the norm in fp32, the result in the linear map's dtype."""
    projected_QH = linear(x_QF)
    return norm((residual_QH + dropout(projected_QH, p)).float()).to(projected_QH.dtype)


def eager_linear_add(linear: nn.Linear, x_QF: Tensor, residual_QH: Tensor, p: float, scale: float) -> Tensor:
    """residual + scale * dropout(linear(x)), in the residual's dtype."""
    return residual_QH.add(dropout(linear(x_QF), p), alpha=scale)


def _bias_gelu(x_QF: Tensor, bias_F: Tensor) -> Tensor:
    return F.gelu(x_QF.float() + bias_F).to(x_QF.dtype)


def _bias_add_norm(
    x_QH: Tensor, bias_H: Tensor, residual_QH: Tensor, weight_H: Tensor, shift_H: Tensor, epsilon: float, p: float
) -> Tensor:
    sum_QH = residual_QH.float() + F.dropout(x_QH.float() + bias_H, p)
    return F.layer_norm(sum_QH, weight_H.shape, weight_H, shift_H, epsilon).to(x_QH.dtype)


def _bias_add(x_QH: Tensor, bias_H: Tensor, residual_QH: Tensor, p: float, scale: float) -> Tensor:
    return residual_QH + scale * F.dropout(x_QH.float() + bias_H, p)


# Of a compiled function: each stage of growth has other widths and other tensors that need a gradient. Beyond the limit
# torch would run it uncompiled from then on, with other roundings than a run that goes on from a checkpoint.
_MOST_VARIANTS = 64


def _find_compiler() -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler  # seconds, which only this choice is to cost
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise KernelError("FUSION=compiled needs a C++ compiler, and there is none; set FUSION=eager") from error


def compiled(device: torch.device) -> tuple[LinearGelu, LinearAddNorm]:
    """The same two, with all that follows the matrix product in one kernel, and the bias's gradient too."""
    from torch._dynamo import config

    if device.type == "cpu":
        _find_compiler()
    config.optimize_ddp = False  # these are parts of what DDP wraps: they are not to be cut along its buckets
    config.recompile_limit = _MOST_VARIANTS
    bias_gelu, bias_add_norm = torch.compile(_bias_gelu), torch.compile(_bias_add_norm)

    def linear_gelu(linear: nn.Linear, x_QH: Tensor) -> Tensor:
        return bias_gelu(F.linear(x_QH, linear.weight), linear.bias)

    def linear_add_norm(linear: nn.Linear, x_QF: Tensor, residual_QH: Tensor, norm: nn.LayerNorm, p: float) -> Tensor:
        x_QH = F.linear(x_QF, linear.weight)
        return bias_add_norm(x_QH, linear.bias, residual_QH, norm.weight, norm.bias, norm.eps, p)

    return linear_gelu, linear_add_norm


FUSIONS: dict[str, Callable[[torch.device], tuple[LinearGelu, LinearAddNorm]]] = {
    "eager": lambda device: (eager_linear_gelu, eager_linear_add_norm),
    "compiled": compiled,
}


def compiled_linear_add(device: torch.device) -> LinearAdd:
    """`eager_linear_add` with all that follows the matrix product in one kernel, whatever the scale."""
    bias_add = torch.compile(_bias_add)

    def linear_add(linear: nn.Linear, x_QF: Tensor, residual_QH: Tensor, p: float, scale: float) -> Tensor:
        return bias_add(F.linear(x_QF, linear.weight), linear.bias, residual_QH, p, scale)

    return linear_add


LINEAR_ADDS: dict[str, Callable[[torch.device], LinearAdd]] = {
    "eager": lambda device: eager_linear_add,
    "compiled": compiled_linear_add,
}


@dataclass(frozen=True)
class Kernels:
    """What the model computes with."""

    name: str
    attention: Attention
    linear_gelu: LinearGelu = eager_linear_gelu
    linear_add_norm: LinearAddNorm = eager_linear_add_norm
    linear_add: LinearAdd = eager_linear_add  # of pre-LN layers


PORTABLE = Kernels("split attention, eager", ATTENTION["split"])  # right everywhere


def choose_kernels(
    attention: str, fusion: str, *, device: torch.device, dtype: torch.dtype, head_width: int
) -> Kernels:
    """By name, `auto` by what is fastest on the device; docs/model.md has the measurements.

    Raises KernelError, with the reason, for what cannot run there.
    """
    attention = choose_attention(attention, device, dtype, head_width)
    if fusion == "auto":
        fusion = "compiled" if device.type == "cuda" else "eager"
    return Kernels(
        f"{attention} attention, {fusion}",
        ATTENTION[attention],
        *FUSIONS[fusion](device),
        LINEAR_ADDS[fusion](device),
    )
