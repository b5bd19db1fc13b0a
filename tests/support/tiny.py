"""A folder in, a tiny prepared data set in it and the environment of a tiny run on it out."""

from __future__ import annotations

import os
import random
from pathlib import Path

from benchmarks.bert.config import VARIABLES
from benchmarks.bert.data.manifest import Manifest
from benchmarks.bert.prepare.build import build
from benchmarks.bert.prepare.corpus import Document, write_corpus
from benchmarks.bert.prepare.samples import Recipe
from benchmarks.bert.prepare.wordpiece import train_vocabulary, write_vocabulary
from benchmarks.bert.world import LAUNCHERS

ROOT = Path(__file__).resolve().parents[2]
MAX_LENGTH = 32
_SYLLABLES = ("ba", "co", "du", "fi", "lo", "me", "na", "po", "ru", "si", "ta", "ve")


def make_tiny_data(folder: Path) -> Path:
    """vocab.txt, train/ (two shards) and eval/ (one) of made-up text, as init_datasets.sh leaves them; the folder."""
    training, held_out = _documents(120, seed=1), _documents(24, seed=2)
    write_corpus(folder / "train.txt", training)
    write_corpus(folder / "eval.txt", held_out)
    write_vocabulary(folder / "vocab.txt", train_vocabulary(training, 200))
    build_part(folder, "train", num_shards=2, duplicates=2)
    build_part(folder, "eval", num_shards=1, duplicates=1)
    return folder


def build_part(
    folder: Path, part: str, *, num_shards: int, duplicates: int, max_predictions: int = 5, seed: int = 12345
) -> Manifest:
    recipe = Recipe(max_length=MAX_LENGTH, max_predictions=max_predictions, duplicates=duplicates, seed=seed)
    return build(
        [folder / f"{part}.txt"],
        folder / "vocab.txt",
        folder / part,
        recipe=recipe,
        num_shards=num_shards,
        num_processes=1,
        say=lambda _: None,
    )


def _documents(count: int, seed: int) -> list[Document]:
    """Sentences over a hundred words, the first words the most frequent."""
    rng = random.Random(seed)
    words = [a + b for a in _SYLLABLES for b in _SYLLABLES][:100]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    return [
        [" ".join(rng.choices(words, weights, k=rng.randint(3, 12))) + "." for _ in range(rng.randint(2, 5))]
        for _ in range(count)
    ]


def clean_environment() -> dict[str, str]:
    """This process's environment without what would configure a run, one thread a process."""
    ours = {*VARIABLES, *LAUNCHERS, "MASTER_ADDR", "MASTER_PORT", "CONFIG", "PYTHON"}
    return {name: value for name, value in os.environ.items() if name not in ours} | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }


def tiny_variables(data: Path, result: Path) -> dict[str, str]:
    """The variables of a run of a few steps on two CPU ranks, which any accuracy above nothing satisfies."""
    return {
        "DEVICE": "cpu",
        "RANKS_PER_NODE": "2",
        "DATA_DIR": str(data),
        "RESULT_FILE": str(result),
        "MAX_LENGTH": str(MAX_LENGTH),
        "NUM_LAYERS": "1",
        "HIDDEN_SIZE": "32",
        "NUM_HEADS": "2",
        "FFN_SIZE": "64",
        "DROPOUT": "0.0",
        "BUCKET_MB": "0.02",
        "BATCH_SIZE": "8",
        "LEARNING_RATE": "1e-2",
        "MAX_STEPS": "12",
        "TARGET_ACCURACY": "0.0001",
        "EVAL_START_SAMPLES": "64",
        "EVAL_INTERVAL_SAMPLES": "64",
        "SEED": "7",
        "COLLECTIVE_TIMEOUT_S": "60",
    }


def tiny_environment(data: Path, result: Path, **changed: str) -> dict[str, str]:
    """The whole environment of that run; `changed` variables win."""
    return clean_environment() | tiny_variables(data, result) | changed
