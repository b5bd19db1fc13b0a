"""Weights in, the same with what their shapes do not tell, from the config in their folder, out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.bert.weights.account import Weights, WeightsError, read_json
from benchmarks.bert.weights.names import VOCABULARY_ROWS, WORD
from benchmarks.bert.weights.shapes import Sizes, padded

_CONFIGS = ("config.json", "bert_config.json")  # Hugging Face's and the reference's, whose keys are the same
_HEADS = "num_attention_heads"


def with_config(weights: Weights) -> Weights:
    """The number of heads, and the vocabulary without its padding, if a config of this network lies there.

    Raises:
        WeightsError: the config is no JSON, or its number of heads cannot be.
    """
    path, config = _config_of(weights, weights.sizes)
    num_heads = _checked_heads(path, config[_HEADS], weights.sizes.hidden_size) if _HEADS in config else None
    num_vocabulary = config.get("vocab_size")
    tensors = weights.tensors
    if isinstance(num_vocabulary, int) and len(tensors[WORD]) == padded(num_vocabulary):
        tensors = {
            name: tensor[:num_vocabulary] if name in VOCABULARY_ROWS else tensor for name, tensor in tensors.items()
        }
    return replace(weights, tensors=tensors, num_heads=num_heads)


def _checked_heads(path: Path, num_heads: object, hidden_size: int) -> int:
    # bool is a kind of int
    if isinstance(num_heads, bool) or not isinstance(num_heads, int) or num_heads < 1 or hidden_size % num_heads:
        raise WeightsError(
            f"{path}: {_HEADS} is {num_heads!r}, not a whole number above 0 that divides the hidden size of "
            f"{hidden_size}; correct it, or download or copy it again"
        )
    return num_heads


def _config_of(weights: Weights, sizes: Sizes) -> tuple[Path, dict[str, Any]]:
    """The config in the folder; an empty one if none is there or if it tells another network's sizes."""
    folder = weights.path if weights.path.is_dir() else weights.path.parent
    told = {"hidden_size": sizes.hidden_size, "num_hidden_layers": sizes.num_layers}
    for name in _CONFIGS:
        if (folder / name).exists() and told.items() <= (config := read_json(folder / name)).items():
            return folder / name, config
    return folder, {}
