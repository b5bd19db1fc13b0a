"""Sizes in, how far our logits, loss and gradients are from those of Hugging Face's BERT with the same weights out.

    python -m pip install -r requirements-bench.txt
    python -m benchmarks.bert.bench.exact

Ours are of packed sequences, theirs of padded ones. In float64 nothing but the formulas can differ. In fp32 rounding
does, by about the same in every row of the table. Shapes: H hidden, V vocabulary, T packed tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.overrides import TorchFunctionMode
from transformers import BertConfig, BertForPreTraining

from benchmarks.bert.data.batch import PackedBatch, pack
from benchmarks.bert.data.shards import SampleArrays
from benchmarks.bert.loss import pretraining_loss
from benchmarks.bert.model.bert import Bert, BertShape
from benchmarks.bert.model.init import standard
from benchmarks.bert.model.kernels import PORTABLE, Kernels
from benchmarks.bert.weights.names import VOCABULARY_ROWS, names

TINY = BertShape(num_vocabulary=101, num_layers=2, hidden_size=24, num_heads=3, ffn_size=40, dropout=0.0)
BASE_WIDTH = BertShape(num_layers=1, hidden_size=768, num_heads=12, ffn_size=3072, dropout=0.0)
LARGE_WIDTH = BertShape(num_layers=1, hidden_size=1024, num_heads=16, ffn_size=4096, dropout=0.0)

Sample = tuple[int, int]  # length, number of masked tokens
Results = dict[str, Tensor]  # by quantity

_IGNORED = -100  # the label of a position that counts for nothing
_GRADIENT = "gradient of "
# Some gradients are 0 but for rounding: a key's bias adds one number to all scores of a token.
_FLOOR = 1e-2


@dataclass(frozen=True)
class Difference:
    quantity: str
    absolute: float  # largest of any element
    relative: float  # that to the tensor's largest; a gradient's at least to _FLOOR of the largest of all gradients


def draw(samples: Sequence[Sample], num_vocabulary: int, seed: int = 1) -> PackedBatch:
    """Samples of random tokens, any position masked; no token is 0, which only pads a padded model's input."""
    rng = np.random.default_rng(seed)
    lengths, num_masked = (np.array(column) for column in zip(*samples, strict=True))
    masked = [np.sort(rng.permutation(length)[:count]) for length, count in samples]
    arrays = SampleArrays(
        tokens=rng.integers(1, num_vocabulary, lengths.sum()),
        token_offsets=np.cumsum([0, *lengths]),
        boundary=(lengths + 1) // 2,
        mlm_positions=np.concatenate(masked),
        mlm_ids=rng.integers(0, num_vocabulary, num_masked.sum()),
        mlm_offsets=np.cumsum([0, *num_masked]),
        nsp=np.arange(len(samples)) % 2,
    )
    return pack([(arrays, row) for row in range(len(samples))])


def random_model(shape: BertShape, kernels: Kernels = PORTABLE, last_layer: str = "only_read") -> Bert:
    """Weights larger than those a run starts from, so that every part matters to the result; biases and norms too."""
    torch.manual_seed(0)
    model = Bert(shape, kernels, last_layer)
    standard(model, std=0.05 if shape.hidden_size > 100 else 0.1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def reference_of(model: Bert, implementation: str = "sdpa") -> BertForPreTraining:
    """Hugging Face's model with the same weights; `implementation` is its attention's, "sdpa" or "eager"."""
    shape, weights = model.shape, dict(model.named_parameters())
    config = BertConfig(
        vocab_size=shape.num_vocabulary,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        intermediate_size=shape.ffn_size,
        max_position_embeddings=shape.max_length,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation=implementation,
    )
    with torch.device("meta"):
        reference = BertForPreTraining(config)
    reference = reference.to_empty(device="cpu").to(weights["masked_lm.bias"].dtype)
    reference.tie_weights()
    embeddings = reference.bert.embeddings
    embeddings.position_ids.copy_(torch.arange(shape.max_length)[None])
    embeddings.token_type_ids.zero_()
    theirs = dict(reference.named_parameters())
    rows = names(shape.num_layers)
    assert theirs.keys() == {row.pytorch for row in rows}
    with torch.no_grad():
        for row in rows:
            theirs[row.pytorch].copy_(without_padding(row.ours, weights[row.ours], shape))
    return reference.train()


def without_padding(name: str, tensor: Tensor, shape: BertShape) -> Tensor:
    """A parameter or its gradient without the rows that pad the vocabulary."""
    return tensor[: shape.num_vocabulary] if name in VOCABULARY_ROWS else tensor


class InFloat64(TorchFunctionMode):
    """While this lasts, what the model asks for in fp32 stays in float64."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return args[0] if func is Tensor.float else func(*args, **(kwargs or {}))


def our_results(model: Bert, batches: Sequence[PackedBatch]) -> Results:
    """Logits, loss and gradients of the mean over micro-batches, by quantity."""
    model.zero_grad()
    is_double = model.masked_lm.bias.dtype == torch.float64
    precision: AbstractContextManager[object] = InFloat64() if is_double else nullcontext()
    logits, losses = [], []
    with precision:
        for batch in batches:
            logits.append(model(batch))
            losses.append(pretraining_loss(logits[-1], batch) / len(batches))
            losses[-1].backward()
    V = model.shape.num_vocabulary
    gradients = {
        f"{_GRADIENT}{name}": without_padding(name, parameter.grad, model.shape)
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    outputs = _outputs([(words_MV[:, :V], pairs_B2) for words_MV, pairs_B2 in logits], losses)
    return outputs | gradients


def their_results(reference: BertForPreTraining, batches: Sequence[PackedBatch]) -> Results:
    """The same of the padded model. Its loss is not a number without a masked token; then it is its sentence loss."""
    reference.zero_grad()
    logits, losses = [], []
    for batch in batches:
        output = reference(**padded(batch))
        row_T = torch.repeat_interleave(torch.arange(len(batch.nsp_B)), torch.tensor(batch.layout.lengths))
        masked_M = batch.read_Q[batch.masked_M]
        words_MV = output.prediction_logits[row_T[masked_M], batch.positions_T[masked_M]]
        logits.append((words_MV, output.seq_relationship_logits))
        loss = output.loss if len(masked_M) else F.cross_entropy(output.seq_relationship_logits, batch.nsp_B)
        losses.append(loss / len(batches))
        losses[-1].backward()
    ours = {row.pytorch: row.ours for row in names(reference.config.num_hidden_layers)}
    gradients = {
        f"{_GRADIENT}{ours[name]}": torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in reference.named_parameters()
    }
    return _outputs(logits, losses) | gradients


def _outputs(logits: Sequence[tuple[Tensor, Tensor]], losses: Sequence[Tensor]) -> Results:
    words, pairs = zip(*logits, strict=True)
    return {
        "masked-LM logits": torch.cat(words).detach(),
        "next-sentence logits": torch.cat(pairs).detach(),
        "loss": torch.stack([*losses]).sum().detach(),
    }


def padded(batch: PackedBatch) -> dict[str, Tensor]:
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


def differences(found: Results, expected: Results) -> list[Difference]:
    """One for each quantity."""
    assert found.keys() == expected.keys()
    least = _FLOOR * max(_largest(tensor) for quantity, tensor in expected.items() if _is_gradient(quantity))
    result = []
    for quantity, tensor in expected.items():
        assert found[quantity].shape == tensor.shape, quantity
        absolute = _largest(found[quantity] - tensor)
        scale = max(_largest(tensor), least)
        result.append(Difference(quantity, absolute, absolute / scale))
    return result


def worst(found: Sequence[Difference]) -> list[Difference]:
    """Of all gradients only the one that differs most."""
    gradients = [each for each in found if _is_gradient(each.quantity)]
    largest = max(gradients, key=lambda each: each.relative)
    return [
        *(each for each in found if not _is_gradient(each.quantity)),
        Difference(
            f"{len(gradients)} gradients, most: {largest.quantity.removeprefix(_GRADIENT)}",
            max(each.absolute for each in gradients),
            largest.relative,
        ),
    ]


def _is_gradient(quantity: str) -> bool:
    return quantity.startswith(_GRADIENT)


def _largest(tensor: Tensor) -> float:
    return tensor.abs().max().item() if tensor.numel() else 0.0


def main() -> None:
    tiny_samples = [(512, 76), (1, 0), (511, 1), (2, 1)]
    wide_samples = [(512, 76), (1, 0), (2, 1)]
    print("| sizes | arithmetic | quantity | largest difference | relative to the tensor's largest |")
    print("|---|---|---|---|---|")
    for name, shape, samples in [
        ("tiny", TINY, tiny_samples),
        ("BERT-base's width", BASE_WIDTH, wide_samples),
        ("BERT-large's width", LARGE_WIDTH, wide_samples),
    ]:
        batches = [draw(samples, shape.num_vocabulary)]
        for dtype in ("float64", "float32"):
            model = random_model(shape).to(getattr(torch, dtype))
            found = differences(our_results(model, batches), their_results(reference_of(model), batches))
            for each in worst(found):
                print(f"| {name} | {dtype} | {each.quantity} | {each.absolute:.1e} | {each.relative:.1e} |", flush=True)


if __name__ == "__main__":
    main()
