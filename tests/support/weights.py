"""Sizes in, tensors of a BERT of those sizes by our names out, and files that hold them spoilt."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from benchmarks.bert.data.batch import PackedBatch
from benchmarks.bert.model.bert import Bert, BertShape
from benchmarks.bert.weights.shapes import Sizes, shapes

SIZES = Sizes(num_vocabulary=13, max_length=8, num_layers=2, hidden_size=8, ffn_size=16)
SHAPE = BertShape(num_vocabulary=13, max_length=8, num_layers=2, hidden_size=8, num_heads=2, ffn_size=16, dropout=0.0)


def random_tensors(sizes: Sizes = SIZES, seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes(sizes).items()}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """The same names, types, shapes and bits."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


def flip(path: Path, place: int, bit: int = 0) -> None:
    """Flip one bit of a file; a negative place counts from its end."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def hidden_states(model: Bert, batch: PackedBatch) -> Tensor:
    """The encoder's output at every token, (T, H)."""
    x_TH = model.embeddings(batch)
    for layer in model.layers:
        x_TH = layer(x_TH, x_TH, batch.layout, batch.layout)
    return x_TH
