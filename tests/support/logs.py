"""Logs of runs at the benchmark's scale, as the project's own RunLog writes them, and ways to spoil them.

A log here is a list of lines without their ends. Each edit leaves the list that it gets as it is and gives another.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from mlperf_log_utils import RunLog

MARK = ":::MLLOG "
BATCH = 448
INTERVAL = 150_000  # samples between evaluations at this batch: training rules, "Quality measure"
NUM_EVALS = 18
TARGET = 0.720
START = 1_748_000_000  # seconds since 1970
SEED = 20_250_604
NUM_LAYERS = 24

_DENSE = ("kernel", "bias")
_NORM = ("gamma", "beta")
_LAYER_PARTS = (
    *(f"attention/self/{part}/{what}" for part in ("query", "key", "value") for what in _DENSE),
    *(f"attention/output/dense/{what}" for what in _DENSE),
    *(f"attention/output/LayerNorm/{what}" for what in _NORM),
    *(f"intermediate/dense/{what}" for what in _DENSE),
    *(f"output/dense/{what}" for what in _DENSE),
    *(f"output/LayerNorm/{what}" for what in _NORM),
)
TENSORS = (
    *(f"bert/embeddings/{part}_embeddings" for part in ("word", "position", "token_type")),
    *(f"bert/embeddings/LayerNorm/{what}" for what in _NORM),
    *(f"bert/encoder/layer_{layer}/{part}" for layer in range(NUM_LAYERS) for part in _LAYER_PARTS),
    *(f"bert/pooler/dense/{what}" for what in _DENSE),
    "cls/predictions/output_bias",
    *(f"cls/predictions/transform/dense/{what}" for what in _DENSE),
    *(f"cls/predictions/transform/LayerNorm/{what}" for what in _NORM),
    *(f"cls/seq_relationship/output_{what}" for what in ("weights", "bias")),
)


def samples_at(evaluation: int) -> int:
    """Trained on before the evaluation, counted from 1: the interval's multiple, at the end of its batch."""
    return -(-evaluation * INTERVAL // BATCH) * BATCH


def accuracy_at(evaluation: int, seed: int) -> float:
    """Rises with each; the last one alone reaches the target; no two seeds give the same."""
    return round(0.5 + 0.2206 * (evaluation / NUM_EVALS) ** 0.5 + seed % 1000 * 1e-8, 8)


def closed_lines(seed: int = SEED, start: int = START, *, weights: bool = True) -> list[str]:
    """A log that every ruleset from 1.0.0 on passes; without the 398 weights_initialization all but 1.1.0 to 2.1.0."""
    return list(_lines("closed", "lamb", seed, start, weights))


def open_lines(seed: int = SEED, start: int = START) -> list[str]:
    """The same run with another optimizer, in the open division."""
    return list(_lines("open", "adam", seed, start, False))


class _Clock:
    """Stands where mllog has the module `time`; a millisecond goes by at each look."""

    def __init__(self, start: int) -> None:
        self.ms = start * 1000

    def time(self) -> float:
        self.ms += 1
        return (self.ms + 0.5) / 1000  # mllog rounds down

    def wait(self, seconds: int) -> None:
        self.ms += seconds * 1000


@functools.cache
def _lines(division: str, optimizer: str, seed: int, start: int, weights: bool) -> tuple[str, ...]:
    clock = _Clock(start)
    with tempfile.TemporaryDirectory() as folder, mock.patch("mlperf_logging.mllog.mllog.time", clock):
        path = Path(folder, "result_0.txt")
        _write(RunLog(path), clock, division, optimizer, seed, TENSORS if weights else ())
        return tuple(path.read_text("utf-8").splitlines())


def _write(log: RunLog, clock: _Clock, division: str, optimizer: str, seed: int, tensors: Sequence[str]) -> None:
    log.event("cache_clear", True)
    with log.init_phase():
        for key, value in (_submission(division, seed) | _hyperparameters(optimizer)).items():
            log.event(key, value)
        for tensor in tensors:
            log.event("weights_initialization", tensor=tensor)
        clock.wait(60)
    with log.run_phase(eval_samples=10_000) as outcome:
        for evaluation in range(1, NUM_EVALS + 1):
            clock.wait(70)
            outcome.samples = samples_at(evaluation)
            with log.evaluation(outcome.samples):
                clock.wait(2)
                log.accuracy(accuracy_at(evaluation, seed), outcome.samples)
        outcome.reached = True


def _submission(division: str, seed: int) -> dict[str, Any]:
    return {
        "submission_benchmark": "bert",
        "submission_org": "Example",
        "submission_platform": "example_n1",
        "submission_division": division,
        "submission_status": "onprem",
        "seed": seed,
        "target_accuracy": TARGET,
    }


def _hyperparameters(optimizer: str) -> dict[str, Any]:
    return {
        "global_batch_size": BATCH,
        "gradient_accumulation_steps": 1,
        "max_sequence_length": 512,
        "max_predictions_per_seq": 76,
        "opt_name": optimizer,
        "opt_base_learning_rate": 0.0004,
        "opt_learning_rate_training_steps": 7100,
        "opt_learning_rate_warmup_steps": 0,
        "num_warmup_steps": 0,
        "start_warmup_step": 0,
        "opt_lamb_beta_1": 0.9,
        "opt_lamb_beta_2": 0.999,
        "opt_lamb_weight_decay_rate": 0.01,
        "opt_lamb_epsilon": 1e-6,
        "opt_epsilon": 1e-6,
    }


# --- reading


def write(path: Path, lines: Sequence[str], end: str = "\n") -> Path:
    path.write_bytes("".join(line + end for line in lines).encode("latin-1"))
    return path


def fields(line: str) -> dict[str, Any]:
    return json.loads(line[line.rindex(MARK) + len(MARK) :])


def keys(lines: Sequence[str]) -> list[str]:
    return [fields(line)["key"] for line in lines]


def all_of(lines: Sequence[str], key: str) -> list[int]:
    """The places of all records of the key, counted from 0; in the file a line's number is one more."""
    return [index for index, line in enumerate(lines) if f'"key": "{key}"' in line]


def first(lines: Sequence[str], key: str) -> int:
    return all_of(lines, key)[0]


def last(lines: Sequence[str], key: str) -> int:
    return all_of(lines, key)[-1]


def time_of(lines: Sequence[str], key: str) -> int:
    """Of the key's first record."""
    return fields(lines[first(lines, key)])["time_ms"]


# --- editing


def line_of(record: object) -> str:
    return MARK + json.dumps(record)


def record(key: str, value: Any = None, time_ms: Any = START * 1000, **metadata: Any) -> str:
    return line_of(
        {
            "namespace": "",
            "time_ms": time_ms,
            "event_type": "POINT_IN_TIME",
            "key": key,
            "value": value,
            "metadata": {"file": "train.py", "lineno": 1} | metadata,
        }
    )


def replaced(lines: Sequence[str], index: int, **new: Any) -> list[str]:
    """With other fields in one record: value, time_ms, metadata, key."""
    return [*lines[:index], line_of(fields(lines[index]) | new), *lines[index + 1 :]]


def with_metadata(lines: Sequence[str], index: int, **new: Any) -> list[str]:
    """With further metadata in one record, or others of the same name."""
    return replaced(lines, index, metadata=fields(lines[index])["metadata"] | new)


def without_fields(lines: Sequence[str], index: int, *names: str) -> list[str]:
    kept = {name: value for name, value in fields(lines[index]).items() if name not in names}
    return [*lines[:index], line_of(kept), *lines[index + 1 :]]


def with_value(lines: Sequence[str], key: str, value: Any) -> list[str]:
    """With another value in the key's first record."""
    return replaced(lines, first(lines, key), value=value)


def at_time(lines: Sequence[str], key: str, time_ms: Any) -> list[str]:
    """With another time in the key's first record."""
    return replaced(lines, first(lines, key), time_ms=time_ms)


def without(lines: Sequence[str], *unwanted: str) -> list[str]:
    """Without any record of these keys."""
    gone = {index for key in unwanted for index in all_of(lines, key)}
    return dropped(lines, *gone)


def dropped(lines: Sequence[str], *indices: int) -> list[str]:
    return [line for index, line in enumerate(lines) if index not in indices]


def inserted(lines: Sequence[str], index: int, *new: str) -> list[str]:
    return [*lines[:index], *new, *lines[index:]]


def moved(lines: Sequence[str], indices: Sequence[int], before: int) -> list[str]:
    """With some lines taken out and put, in their order, before the line that stands at `before` now."""
    head = [line for index, line in enumerate(lines[:before]) if index not in indices]
    tail = [line for index, line in enumerate(lines) if index >= before and index not in indices]
    return [*head, *(lines[index] for index in indices), *tail]
