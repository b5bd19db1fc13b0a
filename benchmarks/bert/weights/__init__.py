"""Published weights of BERT in, a model with them out, and back: TensorFlow, Hugging Face and `.pt` files."""

from __future__ import annotations

from benchmarks.bert.weights.account import Weights, WeightsError
from benchmarks.bert.weights.load import load_into
from benchmarks.bert.weights.store import read_weights, write_weights

__all__ = ["Weights", "WeightsError", "load_into", "read_weights", "write_weights"]
