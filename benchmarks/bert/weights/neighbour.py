"""Weights in, the same with what their shapes do not tell, from the config in their folder, out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.bert.weights.account import Weights, read_json
from benchmarks.bert.weights.names import VOCABULARY_ROWS, WORD
from benchmarks.bert.weights.shapes import Sizes, padded

_CONFIGS = ("config.json", "bert_config.json")  # Hugging Face's and the reference's, whose keys are the same


def with_config(weights: Weights) -> Weights:
    """The number of heads, and the vocabulary without its padding, if a config of this network lies there."""
    config = _config_of(weights, weights.sizes)
    num_heads, num_vocabulary = config.get("num_attention_heads"), config.get("vocab_size")
    tensors = weights.tensors
    if isinstance(num_vocabulary, int) and len(tensors[WORD]) == padded(num_vocabulary):
        tensors = {
            name: tensor[:num_vocabulary] if name in VOCABULARY_ROWS else tensor for name, tensor in tensors.items()
        }
    return replace(weights, tensors=tensors, num_heads=num_heads if isinstance(num_heads, int) else None)


def _config_of(weights: Weights, sizes: Sizes) -> dict[str, Any]:
    """The config in the folder; an empty one if none is there or if it tells another network's sizes."""
    folder = weights.path if weights.path.is_dir() else weights.path.parent
    told = {"hidden_size": sizes.hidden_size, "num_hidden_layers": sizes.num_layers}
    for name in _CONFIGS:
        if (folder / name).exists() and told.items() <= (config := read_json(folder / name)).items():
            return config
    return {}
