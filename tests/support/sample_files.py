"""Samples as the files of other harnesses, written by hand; and threads in place of the preparation's processes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from struct import pack

import h5py
import numpy as np
import pytest

from benchmarks.bert.data.shards import DTYPES, SampleArrays
from benchmarks.bert.prepare import pool
from benchmarks.bert.prepare.build import to_arrays
from benchmarks.bert.prepare.forms.source import Rules, offsets_of
from benchmarks.bert.prepare.samples import Recipe, make_samples
from benchmarks.bert.prepare.wordpiece import encode
from benchmarks.bert.weights.checksum import masked_crc
from benchmarks.bert.weights.wire import bytes_field, fixed32_field, number_field, varint
from tests.support.corpora import SHORT_RECIPE, SPECIAL, make_documents, make_vocabulary

REFERENCE = Path(__file__).parents[3] / "shared" / "data" / "reference_samples"
REFERENCE_DIGEST = "f5f9ca06dd24cc6aad7933c28872f888606c480ba6fed51da30b300558f23f3a"
BENCHMARK_RULES = Rules(max_length=512, max_predictions=76, num_vocabulary=30522, cls=101, sep=102)
SHORT_RULES = Rules(
    SHORT_RECIPE.max_length, SHORT_RECIPE.max_predictions, len(make_vocabulary()), SPECIAL.cls, SPECIAL.sep
)


def reference_file(name: str) -> Path:
    """One of the reference's sample files, or a skip."""
    path = REFERENCE / name
    if not path.exists():
        pytest.skip(f"{path} is not there: the reference samples lie beside the checkout")
    return path


def make_word_samples(num_documents: int = 12, seed: int = 0, recipe: Recipe = SHORT_RECIPE) -> SampleArrays:
    """Samples of synthetic documents with the vocabulary of `make_vocabulary`."""
    vocabulary = make_vocabulary()
    documents = encode(make_documents(num_documents, seed), vocabulary)
    return to_arrays(make_samples(documents, recipe, SPECIAL, len(vocabulary)))


def joined(blocks: Iterable[SampleArrays]) -> SampleArrays:
    """Blocks of samples end to end."""
    blocks = list(blocks)

    def values(name: str) -> np.ndarray:
        parts = [getattr(block, name) for block in blocks]
        if name.endswith("_offsets"):
            return offsets_of(np.concatenate([np.diff(part) for part in parts]))
        return np.concatenate(parts)

    return SampleArrays(**{name: values(name).astype(dtype) for name, dtype in DTYPES.items()})


def rows_of(samples: SampleArrays, start: int, stop: int) -> SampleArrays:
    """Samples `start` to before `stop`."""
    token_offsets, mlm_offsets = samples.token_offsets[start : stop + 1], samples.mlm_offsets[start : stop + 1]
    return SampleArrays(
        samples.tokens[token_offsets[0] : token_offsets[-1]],
        token_offsets - token_offsets[0],
        samples.boundary[start:stop],
        samples.mlm_positions[mlm_offsets[0] : mlm_offsets[-1]],
        samples.mlm_ids[mlm_offsets[0] : mlm_offsets[-1]],
        mlm_offsets - mlm_offsets[0],
        samples.nsp[start:stop],
    )


def with_a_padded_row(samples: SampleArrays, recipe: Recipe = SHORT_RECIPE) -> SampleArrays:
    """Three samples in a row, the second with padding behind its tokens and behind its two or more predictions."""
    counts = np.diff(samples.mlm_offsets)
    fits = (counts > 1) & (counts < recipe.max_predictions) & (samples.lengths < recipe.max_length)
    row = 1 + int(fits[1:-1].argmax())
    return rows_of(samples, row - 1, row + 2)


def digest(samples: SampleArrays) -> str:
    """The content digest of the reference samples' README."""
    return hashlib.sha256(b"".join(values.astype("<i4").tobytes() for _, values in samples.items())).hexdigest()


def same(one: SampleArrays, other: SampleArrays) -> bool:
    return all(np.array_equal(values, getattr(other, name)) for name, values in one.items())


def padded(samples: SampleArrays, recipe: Recipe = SHORT_RECIPE, *, weights: bool = True) -> dict[str, np.ndarray]:
    """The keys of the fixed forms, row by row: slow and plain."""
    rows = len(samples)
    columns: dict[str, np.ndarray] = {
        name: np.zeros((rows, recipe.max_length), np.int32) for name in ("input_ids", "input_mask", "segment_ids")
    } | {name: np.zeros((rows, recipe.max_predictions), np.int32) for name in ("masked_lm_positions", "masked_lm_ids")}
    columns["masked_lm_weights"] = np.zeros((rows, recipe.max_predictions), np.float32)
    columns["next_sentence_labels"] = samples.nsp.astype(np.int8)
    for row in range(rows):
        tokens = samples.tokens[slice(*samples.token_offsets[row : row + 2])]
        own = slice(*samples.mlm_offsets[row : row + 2])
        columns["input_ids"][row, : len(tokens)] = tokens
        columns["input_mask"][row, : len(tokens)] = 1
        columns["segment_ids"][row, samples.boundary[row] : len(tokens)] = 1
        for name, values in (("masked_lm_positions", samples.mlm_positions), ("masked_lm_ids", samples.mlm_ids)):
            columns[name][row, : own.stop - own.start] = values[own]
        columns["masked_lm_weights"][row, : own.stop - own.start] = 1
    if not weights:
        del columns["masked_lm_weights"]
    return columns


def examples(columns: dict[str, np.ndarray], *, packed: bool = True, names: Sequence[str] | None = None) -> list[bytes]:
    """Each row as the bytes of a tf.train.Example, its features in the order of `names`."""
    return [
        bytes_field(
            1,
            b"".join(
                bytes_field(1, bytes_field(1, name.encode()) + bytes_field(2, feature(columns[name][row], packed)))
                for name in names or columns
            ),
        )
        for row in range(len(columns["input_ids"]))
    ]


def feature(values: np.ndarray, packed: bool = True) -> bytes:
    """The bytes of a tf.train.Feature."""
    values = np.atleast_1d(values)
    if values.dtype.kind == "f":
        if packed:
            return bytes_field(2, bytes_field(1, values.astype("<f4").tobytes()))
        return bytes_field(2, b"".join(fixed32_field(1, int(bits)) for bits in values.astype("<f4").view("<u4")))
    numbers = [int(value) % (1 << 64) for value in values]
    if packed:
        return bytes_field(3, bytes_field(1, b"".join(map(varint, numbers))))
    return bytes_field(3, b"".join(number_field(1, number) for number in numbers))


def framed(records: Iterable[bytes]) -> bytes:
    """The bytes of a TFRecord file."""
    return b"".join(
        pack("<Q", len(record))
        + pack("<I", masked_crc(pack("<Q", len(record))))
        + record
        + pack("<I", masked_crc(record))
        for record in records
    )


def write_tfrecord(path: Path, samples: SampleArrays) -> Path:
    path.write_bytes(framed(examples(padded(samples))))
    return path


def write_hdf5(path: Path, columns: dict[str, np.ndarray], dtype: str = "int32") -> Path:
    """The fixed form, ids and positions of this type."""
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            wide = name in ("input_ids", "masked_lm_positions", "masked_lm_ids")
            file[name] = values.astype(dtype) if wide else values.astype(np.int8)
    return path


def ragged(samples: SampleArrays) -> dict[str, list[np.ndarray]]:
    """The keys of the variable-length form."""
    rows = range(len(samples))
    tokens = [samples.tokens[slice(*samples.token_offsets[row : row + 2])] for row in rows]
    predictions = [slice(*samples.mlm_offsets[row : row + 2]) for row in rows]
    return {
        "input_ids": tokens,
        "segment_ids": [(np.arange(len(tokens[row])) >= samples.boundary[row]).astype(np.int8) for row in rows],
        "masked_lm_positions": [samples.mlm_positions[own] for own in predictions],
        "masked_lm_ids": [samples.mlm_ids[own] for own in predictions],
        "next_sentence_labels": list(samples.nsp),
    }


def write_varlen(path: Path, columns: dict[str, list[np.ndarray]]) -> Path:
    with h5py.File(path, "w") as file:
        for name, rows in columns.items():
            if name == "next_sentence_labels":
                file[name] = np.array(rows, np.int8)
                continue
            element = np.int8 if name == "segment_ids" else np.int16
            file.create_dataset(name, (len(rows),), h5py.vlen_dtype(element))
            for row, values in enumerate(rows):
                file[name][row] = np.asarray(values).astype(element)
    return path


def use_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is done in this process, which spares the start of others."""
    monkeypatch.setattr(pool, "executor", ThreadPoolExecutor)


def changed(samples: SampleArrays, name: str, place: int, value: int) -> SampleArrays:
    """The samples with one value of one array replaced."""
    values = np.array(getattr(samples, name))
    values[place] = value
    return replace(samples, **{name: values})
