"""Queries, keys and values of packed sequences in, attention within each sequence out.

Shapes: T packed tokens, Q of them that ask (all, or those that will be read), N heads, D head width, S tokens of one
sequence. Every implementation has one signature, `Attention`, and none lets a token see beyond its own sequence.
Softmax is taken in fp32 by all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.bert.data.batch import PackLayout
from benchmarks.bert.model.dropout import dropout as drop

# (q_QND, k_TND, v_TND, layout of the Q, layout of the T, probability to drop) -> out_QND
Attention = Callable[[Tensor, Tensor, Tensor, PackLayout, PackLayout, float], Tensor]


def plain(
    q_QND: Tensor, k_TND: Tensor, v_TND: Tensor, q_layout: PackLayout, layout: PackLayout, dropout: float
) -> Tensor:
    """The reference: one Q x T score matrix with a block-diagonal mask. Quadratic in the pack; for tests."""
    same_QT = _sequence_of(q_layout)[:, None] == _sequence_of(layout)[None, :]
    scores_NQT = torch.einsum("qnd,tnd->nqt", q_QND.float(), k_TND.float()) / q_QND.shape[-1] ** 0.5
    weights_NQT = scores_NQT.masked_fill(~same_QT, float("-inf")).softmax(dim=-1).to(v_TND.dtype)
    return torch.einsum("nqt,tnd->qnd", F.dropout(weights_NQT, dropout), v_TND)


def _sequence_of(layout: PackLayout) -> Tensor:
    """The number of the sequence that each token belongs to."""
    token_T = torch.arange(sum(layout.lengths), device=layout.cu_lengths.device)
    return torch.searchsorted(layout.cu_lengths, token_T, right=True)


def split(
    q_QND: Tensor, k_TND: Tensor, v_TND: Tensor, q_layout: PackLayout, layout: PackLayout, dropout: float
) -> Tensor:
    """Each sequence in turn: the fastest on a CPU (docs/speed.md)."""
    attend = _from_products if dropout > 0 and q_QND.device.type == "cpu" else _fused
    attended = [
        attend(q, k, v, dropout)
        for q, k, v in zip(
            q_QND.transpose(0, 1).split(q_layout.lengths, dim=1),
            k_TND.transpose(0, 1).split(layout.lengths, dim=1),
            v_TND.transpose(0, 1).split(layout.lengths, dim=1),
            strict=True,
        )
    ]
    return torch.cat(attended, dim=1).transpose(0, 1)


def _fused(q_NQD: Tensor, k_NSD: Tensor, v_NSD: Tensor, p: float) -> Tensor:
    """torch's, of one sequence."""
    return F.scaled_dot_product_attention(q_NQD[None], k_NSD[None], v_NSD[None], dropout_p=p)[0]


def _from_products(q_NQD: Tensor, k_NSD: Tensor, v_NSD: Tensor, p: float) -> Tensor:
    """The same. With dropout torch has no fused attention for a CPU, and its unfused one takes twice as long."""
    scores_NQS = q_NQD / q_NQD.shape[-1] ** 0.5 @ k_NSD.transpose(1, 2)
    weights_NQS = scores_NQS.softmax(dim=-1, dtype=torch.float32).to(v_NSD.dtype)
    return drop(weights_NQS, p) @ v_NSD


def flash(
    q_QND: Tensor, k_TND: Tensor, v_TND: Tensor, q_layout: PackLayout, layout: PackLayout, dropout: float
) -> Tensor:
    """FlashAttention over the whole pack in one kernel, through torch's own operator; 16 bit, CUDA."""
    return torch.ops.aten._flash_attention_forward(
        q_QND,
        k_TND,
        v_TND,
        q_layout.cu_lengths,
        layout.cu_lengths,
        max(q_layout.lengths),
        max(layout.lengths),
        dropout,
        False,  # causal
        False,  # the debug mask
    )[0]


def efficient(
    q_QND: Tensor, k_TND: Tensor, v_TND: Tensor, q_layout: PackLayout, layout: PackLayout, dropout: float
) -> Tensor:
    """Memory-efficient attention over the whole pack in one kernel, through torch's own operator; fp32 too, CUDA."""
    return torch.ops.aten._efficient_attention_forward(
        q_QND[None],
        k_TND[None],
        v_TND[None],
        None,  # bias
        q_layout.cu_lengths,
        layout.cu_lengths,
        max(q_layout.lengths),
        max(layout.lengths),
        dropout,
        0,  # no mask but the sequences'
        torch.is_grad_enabled(),  # what backward needs
    )[0][0]


ATTENTION: dict[str, Attention] = {"plain": plain, "split": split, "efficient": efficient, "flash": flash}
_ON_CUDA = ("efficient", "flash")  # torch's own words on another device are a list of all that it knows


class KernelError(ValueError):
    """This machine cannot run the attention that was named."""


def choose_attention(name: str, device: torch.device, dtype: torch.dtype, head_width: int) -> str:
    """The name itself, or for `auto` the first that runs here of those that can be fast on this kind of device.

    Each is tried on two short sequences. Raises KernelError, with the reason, for a name that cannot run.
    """
    if name in _ON_CUDA and device.type != "cuda":
        raise KernelError(f"ATTENTION={name} needs a GPU, and this run is on the {device}; set ATTENTION=auto")
    if name != "auto":
        if reason := _why_not(name, device, dtype, head_width):
            raise KernelError(f"ATTENTION={name} does not run on {device} in {dtype} ({reason}); set ATTENTION=auto")
        return name
    fastest_first = ("flash", "efficient", "split") if device.type == "cuda" else ("split",)
    return next(each for each in fastest_first if not _why_not(each, device, dtype, head_width))


def _why_not(name: str, device: torch.device, dtype: torch.dtype, head_width: int) -> str:
    """What torch says to a forward and a backward pass, or nothing where it runs."""
    layout = PackLayout((3, 1), torch.tensor([0, 3, 4], dtype=torch.int32)).to(device)
    try:
        q = k = v = torch.zeros(4, 1, head_width, dtype=dtype, device=device, requires_grad=True)
        ATTENTION[name](q, k, v, layout, layout, 0.0).sum().backward()
    except (RuntimeError, NotImplementedError) as error:
        return str(error).splitlines()[0]
    return ""
