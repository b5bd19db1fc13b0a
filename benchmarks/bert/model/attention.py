"""Queries, keys and values of packed sequences in, attention within each sequence out.

Shapes: T packed tokens, N heads, D head width. Every implementation has one signature, `Attention`, and none lets a
token see beyond its own sequence.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.bert.data.batch import PackLayout

# (q_TND, k_TND, v_TND, layout, dropout) -> out_TND; `dropout` is the probability to drop
Attention = Callable[[Tensor, Tensor, Tensor, PackLayout, float], Tensor]


def plain(q_TND: Tensor, k_TND: Tensor, v_TND: Tensor, layout: PackLayout, dropout: float) -> Tensor:
    """The reference: one T x T score matrix with a block-diagonal mask. Quadratic in T; for tests."""
    token_T = torch.arange(len(q_TND), device=q_TND.device)
    sequence_T = torch.searchsorted(layout.cu_lengths, token_T, right=True)
    same_TT = sequence_T[:, None] == sequence_T[None, :]
    scores_NTT = torch.einsum("tnd,snd->nts", q_TND.float(), k_TND.float()) / q_TND.shape[-1] ** 0.5
    weights_NTT = scores_NTT.masked_fill(~same_TT, float("-inf")).softmax(dim=-1).to(v_TND.dtype)
    return torch.einsum("nts,snd->tnd", F.dropout(weights_NTT, dropout), v_TND)


def split(q_TND: Tensor, k_TND: Tensor, v_TND: Tensor, layout: PackLayout, dropout: float) -> Tensor:
    """torch's fused attention on each sequence in turn: the fastest on a CPU (docs/model.md)."""
    pieces = (x_TND.transpose(0, 1).split(layout.lengths, dim=1) for x_TND in (q_TND, k_TND, v_TND))
    attended = [
        F.scaled_dot_product_attention(q[None], k[None], v[None], dropout_p=dropout)[0]
        for q, k, v in zip(*pieces, strict=True)
    ]
    return torch.cat(attended, dim=1).transpose(0, 1)


ATTENTION: dict[str, Attention] = {"plain": plain, "split": split}


FASTEST = {"cpu": "split", "cuda": "split"}  # by device type; on CUDA it is right, and not yet measured


def choose_attention(name: str, device: torch.device) -> Attention:
    """The implementation of this name, or for `auto` the fastest known for the device."""
    return ATTENTION[FASTEST[device.type] if name == "auto" else name]
