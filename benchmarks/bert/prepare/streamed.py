"""Drawn samples in, their shard file out: byte for byte what `data.shards.write_shard` writes, some rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from benchmarks.bert.prepare.columns import write_columns
from benchmarks.bert.prepare.samples import DrawnSamples

_ROWS = 1 << 12  # turned into tokens at once


def write_drawn(path: Path, drawn: DrawnSamples, *, vocabulary_sha256: str, recipe: str) -> str:
    """Write one shard, whole or not at all; returns its checksum. `recipe` is text that identifies how it was made."""

    def parts(values: Callable[[int, int], np.ndarray]) -> Iterable[np.ndarray]:
        return (values(start, min(start + _ROWS, len(drawn))) for start in range(0, len(drawn), _ROWS))

    token_offsets, mlm_offsets = drawn.token_offsets, drawn.row_mlm_offsets
    num_predictions = int(mlm_offsets[-1])
    columns = {
        "tokens": (int(token_offsets[-1]), parts(drawn.tokens)),
        "token_offsets": (len(token_offsets), [token_offsets]),
        "boundary": (len(drawn), parts(drawn.boundary)),
        "mlm_positions": (num_predictions, parts(lambda *rows: drawn.predictions(drawn.mlm_positions, *rows))),
        "mlm_ids": (num_predictions, parts(lambda *rows: drawn.predictions(drawn.mlm_ids, *rows))),
        "mlm_offsets": (len(mlm_offsets), [mlm_offsets]),
        "nsp": (len(drawn), parts(lambda *rows: drawn.nsp[drawn.order[slice(*rows)]])),
    }
    return write_columns(path, columns, vocabulary_sha256=vocabulary_sha256, recipe=recipe)
