"""A data folder in, the accuracy that counting alone reaches out. `python -m benchmarks.bert.bench.counts DIR`.

What a masked-LM target must lie above to mean anything: how often each token of the training text stands between its
neighbours, looked up at the evaluation set's masked places.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from benchmarks.bert.data.manifest import read_manifest
from benchmarks.bert.data.shards import open_shard
from benchmarks.bert.prepare.corpus import read_corpus
from benchmarks.bert.prepare.wordpiece import CLS, MASK, SEP, encode, read_vocabulary

Counts = dict[Hashable, Counter[int]]  # of the tokens that stood in a context
_STRENGTH = 3  # how many sightings the two neighbours taken singly are worth beside those of the pair


class Neighbours:
    """What the training text says about a token from its left and its right neighbour."""

    def __init__(self, documents: list[list[int]]) -> None:
        self.all: Counter[int] = Counter(chain.from_iterable(documents))
        self.left: Counts = defaultdict(Counter)
        self.right: Counts = defaultdict(Counter)
        self.both: Counts = defaultdict(Counter)
        for tokens in documents:
            for left, token, right in zip(tokens, tokens[1:], tokens[2:], strict=False):
                self.left[left][token] += 1
                self.right[right][token] += 1
                self.both[left, right][token] += 1

    def by_left(self, left: int, right: int) -> Counter[int]:
        return self.left.get(left) or self.all

    def by_right(self, left: int, right: int) -> Counter[int]:
        return self.right.get(right) or self.all

    def by_both(self, left: int, right: int) -> Counter[int]:
        return self.both.get((left, right)) or self.by_left(left, right)

    def combined(self, left: int, right: int) -> dict[int, float]:
        """The pair's counts, smoothed by the two neighbours as if they were independent (naive Bayes)."""
        by_left, by_right = self.by_left(left, right), self.by_right(left, right)
        single = {
            token: by_left[token] * by_right[token] / self.all[token] for token in by_left.keys() & by_right.keys()
        }
        scale = _STRENGTH / sum(single.values()) if single else 0.0
        pair = self.both.get((left, right), Counter())
        either = pair.keys() | single.keys() or by_left.keys()
        return {token: pair[token] + scale * single.get(token, 0.0) for token in either}


def held_out_places(folder: Path) -> Iterator[tuple[int, int, int, int]]:
    """(original, shown, left, right) of each masked place; [CLS] and [SEP] frame a sample, so neighbours exist."""
    manifest = read_manifest(folder)
    for name, _, checksum in manifest.shards:
        arrays = open_shard(
            folder / name, vocabulary_sha256=manifest.vocabulary_sha256, max_length=manifest.max_length, sha256=checksum
        )
        places = np.repeat(arrays.token_offsets[:-1], np.diff(arrays.mlm_offsets)) + arrays.mlm_positions
        columns = (arrays.mlm_ids, *(arrays.tokens[places + offset] for offset in (0, -1, 1)))
        yield from zip(*(column.tolist() for column in columns), strict=True)


def main() -> None:
    folder = Path(sys.argv[1])
    vocabulary = read_vocabulary(folder / "vocab.txt")
    cls, sep, mask = (vocabulary.index(token) for token in (CLS, SEP, MASK))
    documents = encode(read_corpus([folder / "text" / "train.txt"]), vocabulary)
    seen = Neighbours([[cls, *chain.from_iterable(document), sep] for document in documents])
    held_out = list(held_out_places(folder / "eval"))

    def accuracy(guess: Callable[[int, int], dict[int, float] | Counter[int]], copies: bool) -> float:
        """Share of places guessed right; `copies` takes a token that is shown as it is: half of those are right."""
        correct = 0
        for original, shown, left, right in held_out:
            if copies and shown != mask:
                correct += shown == original
            else:
                scores = guess(left, right)
                correct += max(scores, key=lambda token: (scores[token], seen.all[token], token)) == original
        return correct / len(held_out)

    print(f"{len(held_out):,} masked places of the evaluation set")
    print(f"{accuracy(lambda left, right: seen.all, copies=False):.3f}  most frequent token")
    print(f"{accuracy(lambda left, right: seen.all, copies=True):.3f}  copy what is shown, else most frequent token")
    print(f"{accuracy(seen.by_right, copies=True):.3f}  table of the right neighbour")
    print(f"{accuracy(seen.by_left, copies=True):.3f}  table of the left neighbour")
    print(f"{accuracy(seen.by_both, copies=True):.3f}  table of both neighbours, else of the left")
    print(f"{accuracy(seen.combined, copies=True):.3f}  table of both neighbours, smoothed by naive Bayes")


if __name__ == "__main__":
    main()
