"""A name in, sizes to measure a step at out: BERT's own widths with fewer layers, so that a CPU can take them."""

from __future__ import annotations

from typing import Any

from benchmarks.bert.model.bert import BertShape


def _shape(num_layers: int, hidden_size: int, num_heads: int) -> BertShape:
    return BertShape(num_layers=num_layers, hidden_size=hidden_size, num_heads=num_heads, ffn_size=4 * hidden_size)


CONFIGURATIONS = {
    "small": _shape(4, 256, 4),
    "base": _shape(3, 768, 12),
    "large": _shape(2, 1024, 16),
}
TINY = BertShape(num_vocabulary=101, max_length=64, num_layers=2, hidden_size=32, num_heads=2, ffn_size=64)


def sizes(shape: BertShape) -> dict[str, Any]:
    """A shape as the fields of a run's configuration."""
    names = ("max_length", "num_layers", "hidden_size", "num_heads", "ffn_size", "dropout")
    return {name: getattr(shape, name) for name in names}
