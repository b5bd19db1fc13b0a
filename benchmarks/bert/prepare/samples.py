"""Documents of token ids in, masked samples out: BERT's sentence-pair and masking recipe.

The draws follow the reference's order on Python's `random`, so that the same documents, vocabulary and
seed give the reference's samples token for token (docs/data.md names the digest that shows it).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

Encoded = list[list[int]]  # one document: ids of its sentences

_SPECIAL = 3  # [CLS] A [SEP] B [SEP]


@dataclass(frozen=True)
class Recipe:
    """How samples are made; a shard carries it. Defaults are the benchmark's."""

    max_length: int = 512
    max_predictions: int = 76
    masked_share: float = 0.15
    short_share: float = 0.1
    duplicates: int = 10
    seed: int = 12345

    def __post_init__(self) -> None:
        if not 8 <= self.max_length <= 65535:
            raise ValueError(f"max_length is {self.max_length}, must lie between 8 and 65535")
        if not 1 <= self.max_predictions < self.max_length:
            raise ValueError(f"max_predictions is {self.max_predictions}, must lie between 1 and max_length - 1")
        if not 0 < self.masked_share < 1 or not 0 <= self.short_share <= 1:
            raise ValueError("masked_share must lie between 0 and 1, short_share from 0 to 1")
        if self.duplicates < 1:
            raise ValueError(f"duplicates is {self.duplicates}, must be at least 1")


@dataclass(frozen=True)
class SpecialIds:
    cls: int
    sep: int
    mask: int


@dataclass(frozen=True)
class Sample:
    tokens: list[int]  # [CLS] A [SEP] B [SEP] with the masked positions replaced
    boundary: int  # the first `boundary` tokens ([CLS] A [SEP]) have segment id 0, the rest 1
    mlm_positions: list[int]  # ascending
    mlm_ids: list[int]  # the original ids at those positions
    is_random_next: bool


def make_samples(documents: list[Encoded], recipe: Recipe, special: SpecialIds, num_vocabulary: int) -> list[Sample]:
    """All samples of one part of the corpus, shuffled. `documents` must hold no empty document or sentence."""
    rng = Random(recipe.seed)
    documents = list(documents)
    rng.shuffle(documents)
    samples = [
        _mask(tokens, boundary, is_random_next, recipe, special, num_vocabulary, rng)
        for _ in range(recipe.duplicates)
        for index in range(len(documents))
        for tokens, boundary, is_random_next in _pairs(documents, index, recipe, special, rng)
    ]
    rng.shuffle(samples)
    return samples


def _pairs(
    documents: list[Encoded], index: int, recipe: Recipe, special: SpecialIds, rng: Random
) -> Iterator[tuple[list[int], int, bool]]:
    """Cut a document into chunks of about the target length, and each chunk into A and (the true or a random) B."""
    document = documents[index]
    max_tokens = recipe.max_length - _SPECIAL
    target = max_tokens
    if rng.random() < recipe.short_share:
        target = rng.randint(2, max_tokens)
    start = 0
    while start < len(document):
        stop, length = start, 0
        while stop < len(document) and length < target:
            length += len(document[stop])
            stop += 1
        a_stop = start + (rng.randint(1, stop - start - 1) if stop - start >= 2 else 1)
        a = [token for sentence in document[start:a_stop] for token in sentence]
        # One sentence has no true continuation inside its chunk.
        is_random_next = stop - start == 1 or rng.random() < 0.5
        if is_random_next:
            b = _random_continuation(documents, index, target - len(a), rng)
            stop = a_stop  # the chunk's unused sentences start the next chunk
        else:
            b = [token for sentence in document[a_stop:stop] for token in sentence]
        a, b = _truncate(a, b, max_tokens, rng)
        yield [special.cls, *a, special.sep, *b, special.sep], len(a) + 2, is_random_next
        start = stop


def _random_continuation(documents: list[Encoded], index: int, target: int, rng: Random) -> list[int]:
    """Whole sentences of another document from a random place on, until `target` tokens are reached."""
    for _ in range(10):  # the reference gives up after ten draws of the document itself
        other = rng.randint(0, len(documents) - 1)
        if other != index:
            break
    tokens: list[int] = []
    for sentence in documents[other][rng.randint(0, len(documents[other]) - 1) :]:
        tokens += sentence
        if len(tokens) >= target:
            break
    return tokens


def _truncate(a: list[int], b: list[int], max_tokens: int, rng: Random) -> tuple[list[int], list[int]]:
    """Shorten the longer of the two by one token at a time, at its front or its back by a fair coin."""
    bounds = [[0, len(a)], [0, len(b)]]
    sizes = [len(a), len(b)]
    while sizes[0] + sizes[1] > max_tokens:
        longer = 0 if sizes[0] > sizes[1] else 1
        if rng.random() < 0.5:
            bounds[longer][0] += 1
        else:
            bounds[longer][1] -= 1
        sizes[longer] -= 1
    return a[slice(*bounds[0])], b[slice(*bounds[1])]


def _mask(
    tokens: list[int],
    boundary: int,
    is_random_next: bool,
    recipe: Recipe,
    special: SpecialIds,
    num_vocabulary: int,
    rng: Random,
) -> Sample:
    """Choose the predictions; 80 % become [MASK], 10 % stay, 10 % become a random entry of the vocabulary."""
    candidates = [place for place, token in enumerate(tokens) if token != special.cls and token != special.sep]
    rng.shuffle(candidates)
    # round() takes halves to the even number, as the reference's does.
    num_predictions = min(recipe.max_predictions, max(1, round(len(tokens) * recipe.masked_share)))
    positions = candidates[:num_predictions]
    masked = list(tokens)
    for place in positions:
        if rng.random() < 0.8:
            masked[place] = special.mask
        elif rng.random() >= 0.5:
            masked[place] = rng.randint(0, num_vocabulary - 1)
    positions.sort()
    return Sample(masked, boundary, positions, [tokens[place] for place in positions], is_random_next)
