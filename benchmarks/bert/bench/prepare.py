"""Segmented text and a vocabulary in, samples per second and core out: ours beside a plain, slow reimplementation.

    python -m benchmarks.bert.bench.prepare TEXT VOCAB

Both run in this process, one after the other, on the same text, and must give the same samples. Seconds are this
process's CPU time. The slow one is the tests' oracle (tests/support/reference_oracle.py): the same work token by token
in plain Python, tokenizing included, writing not; ours ends with the shard on disk.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.bert.prepare.build import build
from benchmarks.bert.prepare.digest import content_digest
from benchmarks.bert.prepare.samples import DrawnSamples, Recipe, SpecialIds, draw_samples
from benchmarks.bert.prepare.sources import whole_files
from benchmarks.bert.prepare.streamed import write_drawn
from benchmarks.bert.prepare.wordpiece import CLS, MASK, SEP, Encoder, read_vocabulary, tokenize

_ROUNDS = 3


def main() -> None:
    from tests.support import reference_oracle as oracle  # a bench runs in a checkout, where the tests lie

    text, vocabulary_path = map(Path, sys.argv[1:])
    vocabulary = read_vocabulary(vocabulary_path)
    best: dict[str, float] = {}
    drawn, slow = None, None
    for _ in range(_ROUNDS):  # in turns, so that a neighbour on the machine slows both
        drawn, stages = _ours(text, vocabulary)
        for name, seconds in stages.items():
            best[name] = min(best.get(name, seconds), seconds)
        started = time.process_time()
        slow = oracle.reference_samples(text.read_bytes(), vocabulary)
        best["oracle"] = min(best.get("oracle", 1e9), time.process_time() - started)
    assert drawn is not None
    assert slow is not None
    _check_equal(text, vocabulary_path, oracle.content_digest(slow, vocabulary))
    num_samples = len(drawn)
    ours_s = sum(seconds for name, seconds in best.items() if name != "oracle")
    print(f"{num_samples:,} samples of {drawn.token_offsets[-1]:,} tokens; best of {_ROUNDS} rounds, one core")
    print("| | µs a sample | samples/s |")
    print("|---|---|---|")
    for name, seconds in [*best.items(), ("ours together", ours_s)]:
        print(f"| {name} | {seconds / num_samples * 1e6:.1f} | {num_samples / seconds:,.0f} |")
    print(f"ours over the oracle: {best['oracle'] / ours_s:.1f} times")
    print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB")


def _ours(text: Path, vocabulary: list[str]) -> tuple[DrawnSamples, dict[str, float]]:
    """The samples, and the seconds of each stage, from a process that has met no word yet."""
    special = SpecialIds(vocabulary.index(CLS), vocabulary.index(SEP), vocabulary.index(MASK))
    moments = [time.process_time()]
    [source] = whole_files([text])
    tokens = tokenize(source.documents(), Encoder(vocabulary))
    moments.append(time.process_time())
    drawn = draw_samples(tokens, Recipe(), special, len(vocabulary))
    moments.append(time.process_time())
    with tempfile.TemporaryDirectory() as folder:
        write_drawn(Path(folder) / "shard.hdf5", drawn, vocabulary_sha256="", recipe="")
    moments.append(time.process_time())
    names = ("reading and tokenizing", "drawing", "writing")
    return drawn, {name: moments[place + 1] - moments[place] for place, name in enumerate(names)}


def _check_equal(text: Path, vocabulary: Path, expected: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "samples"
        build([text], vocabulary, folder, recipe=Recipe(), num_shards=None, num_processes=1, say=lambda _: None)
        if content_digest(folder) != expected:
            sys.exit(f"{text}: our samples are not the oracle's")


if __name__ == "__main__":
    main()
