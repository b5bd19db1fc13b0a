"""A data folder in, our training step's speed beside a padded Hugging Face BERT's out.

    python -m pip install -r requirements-bench.txt
    python -m benchmarks.bert.bench.step data/kjv

Both train the same sizes on the same batches in one process on one thread, in turn, so that only the ratio counts and
a busy machine disturbs both alike. The padded model attends over padding with a mask and puts its masked-LM head on
every position, as `BertForPreTraining` does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import BertConfig, BertForPreTraining

from benchmarks.bert.data.batch import PackedBatch
from benchmarks.bert.data.dataset import count_vocabulary, read_data_set
from benchmarks.bert.data.plan import Layout, Strata, plan_epoch
from benchmarks.bert.loss import pretraining_loss
from benchmarks.bert.model.attention import split
from benchmarks.bert.model.bert import Bert, BertShape
from benchmarks.bert.optim.adam import Adam
from benchmarks.bert.optim.groups import decay_groups

_BATCH, _STEPS, _WARM_UP = 8, 40, 5
_IGNORED = -100  # the label of a position that counts for nothing


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    data = read_data_set(folder / "train")
    max_length = data.manifest.max_length
    shape = BertShape(
        count_vocabulary(folder / "vocab.txt", data),
        max_length,
        num_layers=2,
        hidden_size=128,
        num_heads=4,
        ffn_size=512,
        dropout=0.0,
    )
    plan = plan_epoch(
        data.lengths, Layout(1, 1, _BATCH), Strata(4, max_length), strategy="stratified_presort", seed=1, epoch=0
    )
    store = data.open(max_length)
    batches = [store.pack(row[0]) for row in plan[: _STEPS + _WARM_UP]]
    ours, padded = _ours(shape), _padded(shape)
    times = [(_seconds(ours, batch), _seconds(padded, batch)) for batch in batches][_WARM_UP:]
    ours_s, padded_s = (median(column) for column in zip(*times, strict=True))
    filled = sum(sum(b.layout.lengths) for b in batches) / sum(_BATCH * max(b.layout.lengths) for b in batches)
    print(f"batches of {_BATCH}, {filled:.0%} of the padded tokens are real; median of {_STEPS} steps each, in turn")
    print(f"packed   {_BATCH / ours_s:8.1f} samples/s")
    print(f"padded   {_BATCH / padded_s:8.1f} samples/s")
    print(f"ratio    {median(b / a for a, b in times):8.2f}")


def _seconds(step: Callable[[PackedBatch], None], batch: PackedBatch) -> float:
    started = time.perf_counter()
    step(batch)
    return time.perf_counter() - started


def _adam(model: torch.nn.Module) -> Adam:
    return Adam(decay_groups(model, 0.01), learning_rate=1e-4, betas=(0.9, 0.98), epsilon=1e-6)


def _ours(shape: BertShape) -> Callable[[PackedBatch], None]:
    model = Bert(shape, split)
    optimizer = _adam(model)

    def step(batch: PackedBatch) -> None:
        pretraining_loss(model(batch), batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _padded(shape: BertShape) -> Callable[[PackedBatch], None]:
    model = BertForPreTraining(
        BertConfig(
            vocab_size=shape.num_vocabulary,
            hidden_size=shape.hidden_size,
            num_hidden_layers=shape.num_layers,
            num_attention_heads=shape.num_heads,
            intermediate_size=shape.ffn_size,
            max_position_embeddings=shape.max_length,
            hidden_dropout_prob=shape.dropout,
            attention_probs_dropout_prob=shape.dropout,
            attn_implementation="sdpa",
        )
    )
    model.train()
    optimizer = _adam(model)

    def step(batch: PackedBatch) -> None:
        model(**_pad(batch)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _pad(batch: PackedBatch) -> dict[str, Tensor]:
    """The batch as Hugging Face takes it, padded to its longest sample."""
    labels_T = torch.full_like(batch.tokens_T, _IGNORED)
    labels_T[batch.read_Q[batch.masked_M]] = batch.labels_M

    def rows(flat_T: Tensor, padding: int) -> Tensor:
        return pad_sequence(list(flat_T.split(batch.layout.lengths)), batch_first=True, padding_value=padding)

    return {
        "input_ids": rows(batch.tokens_T, 0),
        "token_type_ids": rows(batch.segments_T, 0),
        "attention_mask": rows(torch.ones_like(batch.tokens_T), 0),
        "labels": rows(labels_T, _IGNORED),
        "next_sentence_label": batch.nsp_B,
    }


if __name__ == "__main__":
    main()
