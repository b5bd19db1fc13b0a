"""The evaluation set on up to 1,368 ranks: each sample once, level in tokens, and the counts of a serial loop."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.bert import evaluate
from benchmarks.bert.data.batch import PackedBatch, pack
from benchmarks.bert.data.shards import SampleArrays
from benchmarks.bert.evaluate import deal_evaluation, evaluation_batches, masked_lm_accuracy
from benchmarks.bert.model.bert import Bert, BertShape
from benchmarks.bert.model.init import standard

CPU = torch.device("cpu")
NUM_SAMPLES = 10_000  # of the benchmark's evaluation set
MAX_LENGTH = 512
# Tokens of the fullest rank over the mean. Sorted and dealt to and fro, ranks differ by less than one sample, the
# longest; where ranks have a tenth sample or only nine, it is one of the shortest.
BOUND = {1: 1.0, 7: 1.0001, 1024: 1.02, 1368: 1.03}


@cache
def lengths() -> np.ndarray:
    """A quarter has the greatest length, as where documents are cut; the others are spread, the short ones denser."""
    rng = np.random.default_rng(4)
    spread = 16 + rng.beta(1.2, 1.6, NUM_SAMPLES) * (MAX_LENGTH - 16)
    return np.where(rng.random(NUM_SAMPLES) < 0.25, MAX_LENGTH, spread).astype(np.uint16)


@cache
def shares(num_ranks: int) -> list[np.ndarray]:
    return [deal_evaluation(lengths(), rank, num_ranks) for rank in range(num_ranks)]


def fullest_over_mean(of_ranks: list[np.ndarray]) -> float:
    tokens = np.array([lengths()[share].astype(np.int64).sum() for share in of_ranks])
    return float(tokens.max() / tokens.mean())


@pytest.mark.parametrize("num_ranks", BOUND)
def test_each_of_ten_thousand_samples_is_on_exactly_one_rank(num_ranks: int) -> None:
    assert len(shares(num_ranks)) == num_ranks
    times = np.bincount(np.concatenate(shares(num_ranks)), minlength=NUM_SAMPLES)
    assert (times == 1).all()
    assert len(times) == NUM_SAMPLES
    counts = [len(share) for share in shares(num_ranks)]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(("num_ranks", "bound"), BOUND.items())
def test_the_fullest_rank_has_hardly_more_tokens_than_the_mean(num_ranks: int, bound: float) -> None:
    assert fullest_over_mean(shares(num_ranks)) <= bound


def test_dealing_in_the_order_of_the_files_or_of_the_lengths_would_not_be_level() -> None:
    in_order = np.array_split(np.arange(NUM_SAMPLES), 1024)
    assert fullest_over_mean(in_order) > 1.3
    by_length = np.argsort(-lengths().astype(int), kind="stable")
    assert fullest_over_mean([by_length[rank::1024] for rank in range(1024)]) > BOUND[1024] * 1.03


# --- counts


NUM_EVALUATED, NUM_VOCABULARY, BATCH = 160, 40, 4
SHAPE = BertShape(NUM_VOCABULARY, max_length=32, num_layers=1, hidden_size=16, num_heads=2, ffn_size=32, dropout=0.1)


class Store:
    """Random samples in memory; the tokens repeat, so that a random model is right now and then."""

    def __init__(self) -> None:
        rng = np.random.default_rng(6)
        self.lengths = rng.integers(6, 33, NUM_EVALUATED)
        masked = rng.integers(1, 6, NUM_EVALUATED)
        self.arrays = SampleArrays(
            tokens=rng.integers(0, NUM_VOCABULARY, self.lengths.sum()),
            token_offsets=np.cumsum([0, *self.lengths]),
            boundary=self.lengths // 2,
            mlm_positions=np.concatenate(
                [np.sort(rng.permutation(n)[:m]) for n, m in zip(self.lengths, masked, strict=True)]
            ),
            mlm_ids=rng.integers(0, NUM_VOCABULARY, masked.sum()),
            mlm_offsets=np.cumsum([0, *masked]),
            nsp=np.zeros(NUM_EVALUATED, np.uint8),
        )

    def pack(self, numbers: np.ndarray) -> PackedBatch:
        return pack([(self.arrays, int(number)) for number in numbers])


def random_model() -> Bert:
    """With its dropout, which evaluation must switch off."""
    torch.manual_seed(2)
    model = Bert(SHAPE)
    standard(model, 0.5)
    return model


def serial_counts(model: Bert, store: Store) -> tuple[list[int], float]:
    """Correct and masked tokens of all samples one by one; and the least lead of a best logit over the second."""
    correct = masked = 0
    leads = []
    model.eval()
    with torch.no_grad():
        for number in range(NUM_EVALUATED):
            batch = store.pack(np.array([number]))
            logits_MV, _ = model(batch)
            for logits_V, label in zip(logits_MV.tolist(), batch.labels_M.tolist(), strict=True):
                second, first = sorted(logits_V)[-2:]
                leads.append(first - second)
                correct += logits_V.index(first) == label
                masked += 1
    model.train()
    return [correct, masked], min(leads)


def counts_of_ranks(model: Bert, store: Store, num_ranks: int, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What each of the ranks brings to the reduction."""
    brought: list[list[int]] = []

    def all_reduce(counts: Tensor) -> None:
        brought.append(counts.tolist())
        counts.clamp_(min=1)  # a rank that has no samples divides by the others'

    monkeypatch.setattr(evaluate.dist, "all_reduce", all_reduce)
    for rank in range(num_ranks):
        numbers = deal_evaluation(store.lengths, rank, num_ranks)
        batches = evaluation_batches(store, numbers, BATCH, CPU)  # type: ignore[arg-type]
        masked_lm_accuracy(model, batches, nullcontext, CPU)
    return brought


@pytest.mark.parametrize("num_ranks", [1, 2, 16, 64, 200])
def test_the_counts_of_all_ranks_together_are_exactly_the_serial_loops(
    num_ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, model = Store(), random_model()
    expected, least_lead = serial_counts(model, store)
    assert least_lead > 1e-4  # else rounding, which differs with the pack, might choose
    assert 0 < expected[0] < expected[1]
    brought = counts_of_ranks(model, store, num_ranks, monkeypatch)
    assert len(brought) == num_ranks
    assert np.sum(brought, axis=0).tolist() == expected


def test_a_rank_whose_share_is_left_out_or_a_model_that_trains_changes_the_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, model = Store(), random_model()
    expected, _ = serial_counts(model, store)
    brought = counts_of_ranks(model, store, 16, monkeypatch)
    assert np.sum(brought[:-1], axis=0).tolist() != expected
    monkeypatch.setattr(model, "eval", lambda: model)
    assert np.sum(counts_of_ranks(model, store, 16, monkeypatch), axis=0).tolist()[0] != expected[0]
