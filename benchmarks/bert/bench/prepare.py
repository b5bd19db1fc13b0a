"""Segmented text and a vocabulary in, samples per second and core out: ours beside the reference's way of making them.

    python -m benchmarks.bert.bench.prepare TEXT VOCAB

All run in this process, in turns, on the same text, and must give the same samples. Seconds are this process's CPU
time. The reference's way is `as_reference`: the script's work for each character, token and sample, without the writing
of records; ours ends with the shard on disk. The tests' oracle, plain Python that
is written to be read, stands beside them. What numba compiles is compiled before.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from benchmarks.bert.bench import as_reference
from benchmarks.bert.prepare.build import build
from benchmarks.bert.prepare.digest import content_digest
from benchmarks.bert.prepare.draws import Draws, PythonDraws, fastest
from benchmarks.bert.prepare.samples import DrawnSamples, Recipe, SpecialIds, draw_samples
from benchmarks.bert.prepare.sources import whole_files
from benchmarks.bert.prepare.streamed import write_drawn
from benchmarks.bert.prepare.wordpiece import CLS, MASK, SEP, Encoder, read_vocabulary, tokenize

_ROUNDS = 3
_OURS = ("reading and tokenizing", "drawing", "writing")
_REFERENCE = ("the reference's tokenizing", "the reference's instances", "the reference's features")
_ORACLE = "the tests' oracle"

Stages = dict[str, float]  # CPU seconds by name


def main() -> None:
    from tests.support import reference_oracle as oracle  # a bench runs in a checkout, where the tests lie

    text, vocabulary_path = map(Path, sys.argv[1:])
    vocabulary = read_vocabulary(vocabulary_path)
    make_draws, drawn_how = fastest()
    print(drawn_how)
    best: Stages = {}
    for _ in range(_ROUNDS):  # in turns, so that a neighbour on the machine slows all
        drawn, ours = _ours(text, vocabulary, make_draws)
        instances, reference = _reference(text, vocabulary)
        started = time.process_time()
        slow = oracle.reference_samples(text.read_bytes(), vocabulary)
        stages = {**ours, **reference, _ORACLE: time.process_time() - started}
        if make_draws is not PythonDraws:
            stages["drawing in Python"] = _ours(text, vocabulary, PythonDraws)[1]["drawing"]
        best = {name: min(best.get(name, seconds), seconds) for name, seconds in stages.items()}
    digest = oracle.content_digest(slow, vocabulary)
    fields = ((each.tokens, each.boundary, each.positions, each.labels, each.is_random) for each in instances)
    if oracle.content_digest([oracle.Drawn(*each) for each in fields], vocabulary) != digest:
        sys.exit(f"{text}: the samples made as the reference makes them are not the oracle's")
    _check_equal(text, vocabulary_path, digest)
    _report(best, drawn)


def _report(best: Stages, drawn: DrawnSamples) -> None:
    ours_s = sum(best[name] for name in _OURS)
    instances_s = sum(best[name] for name in _REFERENCE[:2])
    all_s = instances_s + best[_REFERENCE[2]]
    num_samples = len(drawn)
    print(f"{num_samples:,} samples of {drawn.token_offsets[-1]:,} tokens; best of {_ROUNDS} rounds, one core")
    print("| | µs a sample | samples/s |")
    print("|---|---|---|")
    for name, seconds in [*best.items(), ("ours together", ours_s), ("the reference's together", all_s)]:
        print(f"| {name} | {seconds / num_samples * 1e6:.1f} | {num_samples / seconds:,.0f} |")
    print(f"ours over the reference's: {all_s / ours_s:.1f} times, {instances_s / ours_s:.1f} without its features")
    print(f"ours over the oracle: {best[_ORACLE] / ours_s:.1f} times")
    print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB")


def _reference(text: Path, vocabulary: list[str]) -> tuple[list[as_reference.Instance], Stages]:
    """The samples as the reference makes them, and the seconds of each stage."""
    recipe = Recipe()
    ids = OrderedDict((entry, number) for number, entry in enumerate(vocabulary))
    moments = [time.process_time()]
    documents = as_reference.read_documents(text.read_bytes().decode(), ids)
    moments.append(time.process_time())
    instances = as_reference.make_instances(documents, recipe, ids)
    moments.append(time.process_time())
    for _ in as_reference.features(instances, recipe, ids):
        pass
    moments.append(time.process_time())
    return instances, _between(_REFERENCE, moments)


def _ours(text: Path, vocabulary: list[str], make_draws: Callable[[int, int], Draws]) -> tuple[DrawnSamples, Stages]:
    """The samples, and the seconds of each stage, from a process that has met no word yet."""
    special = SpecialIds(vocabulary.index(CLS), vocabulary.index(SEP), vocabulary.index(MASK))
    moments = [time.process_time()]
    [source] = whole_files([text])
    tokens = tokenize(source.documents(), Encoder(vocabulary))
    moments.append(time.process_time())
    drawn = draw_samples(tokens, Recipe(), special, len(vocabulary), make_draws=make_draws)
    moments.append(time.process_time())
    with tempfile.TemporaryDirectory() as folder:
        write_drawn(Path(folder) / "shard.hdf5", drawn, vocabulary_sha256="", recipe="")
    moments.append(time.process_time())
    return drawn, _between(_OURS, moments)


def _between(names: tuple[str, ...], moments: list[float]) -> Stages:
    return {name: moments[place + 1] - moments[place] for place, name in enumerate(names)}


def _check_equal(text: Path, vocabulary: Path, expected: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "samples"
        build([text], vocabulary, folder, recipe=Recipe(), num_shards=None, num_processes=1, say=lambda _: None)
        if content_digest(folder) != expected:
            sys.exit(f"{text}: our samples are not the oracle's")


if __name__ == "__main__":
    main()
