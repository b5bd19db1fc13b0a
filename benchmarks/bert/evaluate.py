"""A model and the evaluation set in, masked-LM accuracy out, the same for any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.bert.data.batch import PackedBatch
from benchmarks.bert.data.loader import SampleStore
from benchmarks.bert.loss import num_correct


def deal_evaluation(lengths: np.ndarray, rank: int, num_ranks: int) -> np.ndarray:
    """This rank's share of the evaluation samples: every sample on exactly one rank, long and short dealt level."""
    order = np.argsort(-lengths.astype(np.int64), kind="stable")
    turn = np.arange(len(order)) % (2 * num_ranks)
    return order[np.minimum(turn, 2 * num_ranks - 1 - turn) == rank]


def evaluation_batches(
    store: SampleStore, numbers: np.ndarray, batch_size: int, device: torch.device
) -> list[PackedBatch]:
    """This rank's samples, packed once and kept on the device."""
    return [store.pack(numbers[at : at + batch_size]).to(device) for at in range(0, len(numbers), batch_size)]


@torch.no_grad()
def masked_lm_accuracy(
    model: nn.Module,
    batches: list[PackedBatch],
    precision: Callable[[], AbstractContextManager[object]],
    device: torch.device,
) -> float:
    """Correct masked tokens over masked tokens of all ranks' batches; a rank may have none.

    Counts are integers, so the result does not depend on who evaluated what.
    """
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    for batch in batches:
        with precision():
            logits_MV, _ = model(batch)
        counts[0] += num_correct(logits_MV, batch)
        counts[1] += len(batch.labels_M)
    model.train()
    dist.all_reduce(counts)
    correct, masked = counts.tolist()
    return correct / masked


def is_stuck(accuracies: Sequence[float]) -> bool:
    """Whether the last three agree to five digits; two may by chance, where the evaluation set is small."""
    return len(accuracies) >= 3 and len({round(accuracy, 5) for accuracy in accuracies[-3:]}) == 1
