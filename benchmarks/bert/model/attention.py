"""Queries, keys and values of packed sequences in, attention within each sequence out.

Shapes: T packed tokens, Q of them that ask (all, or those that will be read), N heads, D head width. Every
implementation has one signature, `Attention`, and none lets a token see beyond its own sequence.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.bert.data.batch import PackLayout

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
    """torch's fused attention on each sequence in turn: the fastest on a CPU (docs/model.md)."""
    attended = [
        F.scaled_dot_product_attention(q[None], k[None], v[None], dropout_p=dropout)[0]
        for q, k, v in zip(
            q_QND.transpose(0, 1).split(q_layout.lengths, dim=1),
            k_TND.transpose(0, 1).split(layout.lengths, dim=1),
            v_TND.transpose(0, 1).split(layout.lengths, dim=1),
            strict=True,
        )
    ]
    return torch.cat(attended, dim=1).transpose(0, 1)


ATTENTION: dict[str, Attention] = {"plain": plain, "split": split}


FASTEST = {"cpu": "split", "cuda": "split"}  # by device type; on CUDA it is right, and not yet measured


def choose_attention(name: str, device: torch.device) -> Attention:
    """The implementation of this name, or for `auto` the fastest known for the device."""
    return ATTENTION[FASTEST[device.type] if name == "auto" else name]
