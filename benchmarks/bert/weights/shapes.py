"""Sizes of a BERT in, the shape of each of its tensors out, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from benchmarks.bert.weights.names import WORD, count_layers, names

Shape = tuple[int, ...]

_POSITION, _FFN_IN = "embeddings.position.weight", "layers.0.ffn_in.weight"


@dataclass(frozen=True)
class Sizes:
    num_vocabulary: int
    max_length: int
    num_layers: int
    hidden_size: int
    ffn_size: int


def shapes(sizes: Sizes) -> dict[str, Shape]:
    """Each tensor's shape by our name, in our layout: matrices are (out, in)."""
    vocabulary, hidden, ffn = sizes.num_vocabulary, sizes.hidden_size, sizes.ffn_size
    special: dict[str, Shape] = {
        "embeddings.word.weight": (vocabulary, hidden),
        "embeddings.position.weight": (sizes.max_length, hidden),
        "embeddings.segment.weight": (2, hidden),
        "ffn_in.weight": (ffn, hidden),
        "ffn_in.bias": (ffn,),
        "ffn_out.weight": (hidden, ffn),
        "masked_lm.bias": (vocabulary,),
        "next_sentence.classifier.weight": (2, hidden),
        "next_sentence.classifier.bias": (2,),
    }
    found = {}
    for row in names(sizes.num_layers):
        in_layer = ".".join(row.ours.split(".")[-2:])
        usual = (hidden, hidden) if row.transposed else (hidden,)
        found[row.ours] = special.get(row.ours) or special.get(in_layer) or usual
    return found


def sizes_of(found: Mapping[str, Shape]) -> Sizes | None:
    """The sizes that the tensors of these shapes speak of; None if one that tells them is not there."""
    telling = [found.get(name, ()) for name in (WORD, _POSITION, _FFN_IN)]
    if any(len(shape) != 2 for shape in telling):
        return None
    word, position, ffn_in = telling
    return Sizes(word[0], position[0], count_layers(found), word[1], ffn_in[0])


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, Shape]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def padded(num_vocabulary: int) -> int:
    """The next multiple of eight, to which trainers pad the vocabulary."""
    return -(-num_vocabulary // 8) * 8
