"""A data folder in, the accuracy that counting alone reaches out. `python -m benchmarks.bert.bench.counts DIR`.

What a masked-LM target must lie above to mean anything: tables of the training text's tokens and their neighbours,
looked up at the evaluation set's masked places.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.bert.data.manifest import read_manifest
from benchmarks.bert.data.shards import SampleArrays, open_shard
from benchmarks.bert.prepare.wordpiece import MASK, read_vocabulary

Key = Callable[[int, int, int], Hashable]  # from the token at a masked place, its left and its right neighbour


class Table:
    """The most frequent original token for each key seen in training."""

    def __init__(self, key: Key) -> None:
        self._key = key
        self._counts: dict[Hashable, Counter[int]] = defaultdict(Counter)

    def add(self, original: int, left: int, right: int) -> None:
        self._counts[self._key(original, left, right)][original] += 1

    def guess(self, shown: int, left: int, right: int) -> int | None:
        counts = self._counts.get(self._key(shown, left, right))
        return max(counts, key=lambda token: (counts[token], -token)) if counts else None


def samples(folder: Path) -> Iterator[SampleArrays]:
    manifest = read_manifest(folder)
    for name, _, checksum in manifest.shards:
        yield open_shard(
            folder / name, vocabulary_sha256=manifest.vocabulary_sha256, max_length=manifest.max_length, sha256=checksum
        )


def masked_places(arrays: SampleArrays) -> Iterator[tuple[int, int, int, int]]:
    """(original, shown, left, right) of each masked place; [CLS] and [SEP] frame a sample, so neighbours exist."""
    starts = np.repeat(arrays.token_offsets[:-1], np.diff(arrays.mlm_offsets))
    places = starts + arrays.mlm_positions
    tokens = arrays.tokens
    yield from zip(
        arrays.mlm_ids.tolist(),
        tokens[places].tolist(),
        tokens[places - 1].tolist(),
        tokens[places + 1].tolist(),
        strict=True,
    )


def main() -> None:
    folder = Path(sys.argv[1])
    mask = read_vocabulary(folder / "vocab.txt").index(MASK)
    unigram = Table(lambda shown, left, right: None)
    left_only = Table(lambda shown, left, right: left)
    right_only = Table(lambda shown, left, right: right)
    both = Table(lambda shown, left, right: (left, right))
    for arrays in samples(folder / "train"):
        for original, _, left, right in masked_places(arrays):
            for table in (unigram, left_only, right_only, both):
                table.add(original, left, right)
    # A place that does not show [MASK] shows its own token as often as a random one: copying is right half the time.
    copying = [
        ("most frequent token", False, [unigram]),
        ("copy what is shown, else most frequent", True, [unigram]),
        ("right neighbour", True, [right_only, unigram]),
        ("left neighbour", True, [left_only, unigram]),
        ("both neighbours, backing off to left, then right", True, [both, left_only, right_only, unigram]),
    ]
    held_out = [place for arrays in samples(folder / "eval") for place in masked_places(arrays)]
    print(f"{len(held_out):,} masked places of the evaluation set")
    for name, copies, tables in copying:
        correct = 0
        for original, shown, left, right in held_out:
            if copies and shown != mask:
                guess: int | None = shown
            else:
                guess = next(g for table in tables if (g := table.guess(shown, left, right)) is not None)
            correct += guess == original
        print(f"{correct / len(held_out):.3f}  {name}")


if __name__ == "__main__":
    main()
