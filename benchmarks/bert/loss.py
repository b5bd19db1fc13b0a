"""Logits and a packed batch in, the pre-training loss and the count of correct masked tokens out."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from benchmarks.bert.data.batch import PackedBatch


def pretraining_loss(logits: tuple[Tensor, Tensor], batch: PackedBatch) -> Tensor:
    """Mean cross-entropy over this batch's masked tokens plus that over its sentence pairs, in fp32.

    Each rank and micro-batch takes its own mean, as the record run does (*Breaking MLPerf Training*). A batch without a
    masked token has a masked-LM loss of 0.
    """
    logits_MV, logits_B2 = logits
    masked_lm = F.cross_entropy(logits_MV.float(), batch.labels_M, reduction="sum") / max(1, len(batch.labels_M))
    return masked_lm + F.cross_entropy(logits_B2.float(), batch.nsp_B)


def num_correct(logits_MV: Tensor, batch: PackedBatch) -> Tensor:
    """How many masked tokens the largest logit names, as an int64 scalar on the device."""
    return (logits_MV.argmax(dim=-1) == batch.labels_M).sum()
