"""Evaluation on one, two and four gloo ranks against a serial loop over the samples."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.bert.data.batch import PackedBatch, pack
from benchmarks.bert.data.shards import SampleArrays
from benchmarks.bert.evaluate import deal_evaluation, evaluation_batches, masked_lm_accuracy
from tests.support.ranks import run_ranks

BATCH = 4
NUM_VOCABULARY = 50
SIZES = (1, 2, 7, 8, 9)
CPU = torch.device("cpu")


class MemoryStore:
    """`size` random samples of different lengths and numbers of masked tokens, held in memory."""

    def __init__(self, size: int) -> None:
        rng = np.random.default_rng(size)
        lengths = rng.integers(6, 20, size)
        masked = rng.integers(1, 6, size)
        self.arrays = SampleArrays(
            tokens=rng.integers(0, NUM_VOCABULARY, lengths.sum()).astype(np.uint16),
            token_offsets=np.cumsum([0, *lengths]),
            boundary=np.full(size, 3, np.uint16),
            mlm_positions=np.concatenate(
                [np.sort(rng.permutation(length)[:m]) for length, m in zip(lengths, masked, strict=True)]
            ).astype(np.uint16),
            mlm_ids=rng.integers(0, NUM_VOCABULARY, masked.sum()).astype(np.uint16),
            mlm_offsets=np.cumsum([0, *masked]),
            nsp=np.zeros(size, np.uint8),
        )

    def pack(self, numbers: Any) -> PackedBatch:
        return pack([(self.arrays, int(number)) for number in numbers])


class Table(nn.Module):
    """A random logit row for each token of the vocabulary; forgets to be right unless it is in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.logits_VV = nn.Parameter(torch.randn(NUM_VOCABULARY, NUM_VOCABULARY, generator=generator))

    def forward(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        logits_MV = self.logits_VV[batch.tokens_T[batch.read_Q[batch.masked_M]]]
        # So that some are right: the label's own logit is raised for even tokens.
        raised = nn.functional.one_hot(batch.labels_M, NUM_VOCABULARY) * (batch.labels_M % 2 == 0)[:, None] * 10.0
        return logits_MV + (raised if not self.training else 0.0), torch.zeros(len(batch.nsp_B), 2)


def serial_accuracy(size: int) -> float:
    store, model = MemoryStore(size), Table().eval()
    correct = masked = 0
    for number in range(size):
        batch = store.pack([number])
        guesses = model(batch)[0].argmax(-1).tolist()
        correct += sum(guess == label for guess, label in zip(guesses, batch.labels_M.tolist(), strict=True))
        masked += len(guesses)
    return correct / masked


def accuracies(rank: int, num_ranks: int) -> list[tuple[float, bool]]:
    """For each size the accuracy, and whether the model is back in training mode."""
    results = []
    for size in SIZES:
        store, model = MemoryStore(size), Table()
        numbers = deal_evaluation(store.arrays.lengths, rank, num_ranks)
        batches = evaluation_batches(store, numbers, BATCH, CPU)  # type: ignore[arg-type]
        results.append((masked_lm_accuracy(model, batches, nullcontext, CPU), model.training))
    return results


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_the_accuracy_is_a_serial_loops_whatever_the_number_of_ranks(num_ranks: int) -> None:
    expected = [(serial_accuracy(size), True) for size in SIZES]
    assert len({accuracy for accuracy, _ in expected}) > 1
    for of_rank in run_ranks(accuracies, num_ranks, num_ranks):
        assert of_rank == expected


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("size", [*SIZES, 100])
def test_every_sample_is_dealt_to_exactly_one_rank_and_numbers_differ_by_at_most_one(size: int, num_ranks: int) -> None:
    lengths = MemoryStore(size).arrays.lengths
    hands = [deal_evaluation(lengths, rank, num_ranks) for rank in range(num_ranks)]
    assert sorted(np.concatenate(hands).tolist()) == list(range(size))
    assert max(map(len, hands)) - min(map(len, hands)) <= 1


def test_a_rank_without_samples_takes_part() -> None:
    lengths = MemoryStore(1).arrays.lengths
    assert [len(deal_evaluation(lengths, rank, 4)) for rank in range(4)] == [1, 0, 0, 0]


def test_the_deal_is_level_in_tokens() -> None:
    lengths = np.random.default_rng(1).integers(6, 512, 1000)
    tokens = [lengths[deal_evaluation(lengths, rank, 4)].sum() for rank in range(4)]
    assert max(tokens) / np.mean(tokens) < 1.001
