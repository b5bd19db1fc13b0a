"""A cell, a place on its grid and a seed in, the variables of that run out; and the data set that all share, made once.

The numbers below set how long a cell takes; `proxy.sh` holds the model.
"""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

from benchmarks.bert.prepare.corpus import read_corpus, write_corpus
from tools.ablation.plan import UNIT, Run
from tools.trial import ROOT, TrialError, exports_of

CONFIG = Path(__file__).with_name("proxy.sh")
EXPECTED_SAMPLES = 9_000  # to the target at batch 64, about
_MOST = 3  # times the expected samples until a run is given up, which is also where the decay ends
_WARM_UP = 0.1  # of the expected
_INTERVAL = 0.02  # of the expected, between evaluations
_EARLIEST = 0.4  # of the expected, to the first one
VOCABULARY = 1024  # entries
_PREDICTIONS = 10  # 15 % of 64 tokens
_HELD_OUT = 4  # every fourth held-out document is evaluated on: some 300 samples


def expected_samples(batch: int) -> float:
    """Grows with the root of the batch: a guess that no more than lengths of runs depend on."""
    return EXPECTED_SAMPLES * math.sqrt(batch / 64)


def variables_of(run: Run) -> dict[str, str]:
    batch = run.cell.batch
    expected = expected_samples(batch)
    own = {
        "OPTIMIZER": run.cell.optimizer,
        "CLIP": run.cell.clip,
        "LEARNING_RATE": run.cell.rate(run.place),
        "VIRTUAL_RANKS": batch // UNIT,
        "BATCH_SIZE": UNIT,
        "MAX_STEPS": math.ceil(_MOST * expected / batch),
        "WARMUP_STEPS": math.ceil(_WARM_UP * expected / batch),
        "EVAL_START_SAMPLES": max(batch, round(_EARLIEST * expected)),
        "EVAL_INTERVAL_SAMPLES": max(batch, round(_INTERVAL * expected)),
        "SEED": run.seed,
    }
    return exports_of(CONFIG) | {name: str(value) for name, value in own.items()}


def make_data() -> None:
    """The data set of `proxy.sh`, from the text of the default one. Raises TrialError where that is not there."""
    folder = ROOT / exports_of(CONFIG)["DATA_DIR"]
    text = ROOT / "data" / "kjv" / "text"
    if all((folder / part / "manifest.json").exists() for part in ("train", "eval")):
        return
    if not (text / "train.txt").exists():
        raise TrialError(f"{text / 'train.txt'}: no such file; make the default data set first: ./init_datasets.sh")
    held_out = folder / "text" / "eval.txt"
    held_out.parent.mkdir(parents=True, exist_ok=True)
    write_corpus(held_out, list(read_corpus([text / "eval.txt"]))[::_HELD_OUT])
    vocabulary = folder / "vocab.txt"
    if not vocabulary.exists():
        _prepare("vocabulary", text / "train.txt", "--size", VOCABULARY, "--out", vocabulary)
    lengths = ("--max-length", exports_of(CONFIG)["MAX_LENGTH"], "--max-predictions", _PREDICTIONS)
    for source, part, duplicates, shards in ((text / "train.txt", "train", 5, 4), (held_out, "eval", 1, 1)):
        whole = (source, "--vocab", vocabulary, "--out", folder / part, *lengths)
        _prepare("samples", *whole, "--duplicates", duplicates, "--shards", shards)


def _prepare(*arguments: object) -> None:
    command = [sys.executable, "-m", "benchmarks.bert.prepare", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise TrialError(f"the ablation's data set cannot be made: {done.stderr.strip() or arguments[0]}")
