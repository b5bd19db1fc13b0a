"""Documents of token ids in, masked samples out: BERT's sentence-pair and masking recipe.

The draws follow the reference's order on Python's `random`, so that the same documents, vocabulary and seed give the
reference's samples token for token (docs/prepare.md names the digest that shows it). A sample is drawn as two ranges of
the text and its predictions, and becomes tokens only when it is written: the samples of a text take little more memory
than their predictions.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.bert.data.shards import SampleArrays
from benchmarks.bert.prepare.draws import KEPT, MASKED, Draws, fastest

Encoded = list[list[int]]  # one document: ids of its sentences

_SPECIAL = 3  # [CLS] A [SEP] B [SEP]
_BATCH = 1 << 12  # samples whose predictions are looked up at once
_MOST_PREDICTIONS = 160_000_000  # of one shard: below 2 GiB of memory


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

    def num_predictions(self, length: int) -> int:
        """Masked places of a sample; round() takes halves to the even number, as the reference's does."""
        return min(self.max_predictions, max(1, round(length * self.masked_share)), length - _SPECIAL)


@dataclass(frozen=True)
class SpecialIds:
    cls: int
    sep: int
    mask: int


@dataclass(frozen=True)
class TokenizedText:
    """Documents as three flat arrays; no sentence and no document is empty."""

    tokens: np.ndarray  # uint16, every sentence's ids end to end
    sentence_offsets: (
        np.ndarray
    )  # int64, sentences + 1; sentence i is tokens[sentence_offsets[i]:sentence_offsets[i+1]]
    document_offsets: np.ndarray  # int64, documents + 1; document i has the sentences from document_offsets[i] on

    @property
    def num_documents(self) -> int:
        return len(self.document_offsets) - 1


@dataclass(frozen=True)
class Sample:
    tokens: list[int]  # [CLS] A [SEP] B [SEP] with the masked positions replaced
    boundary: int  # the first `boundary` tokens ([CLS] A [SEP]) have segment id 0, the rest 1
    mlm_positions: list[int]  # ascending
    mlm_ids: list[int]  # the original ids at those positions
    is_random_next: bool


@dataclass(frozen=True)
class DrawnSamples:
    """n samples, drawn but not yet written out: row i is the `order[i]`-th that was drawn."""

    text: TokenizedText
    special: SpecialIds
    order: np.ndarray  # int64 (n,)
    spans: np.ndarray  # int64 (n, 4): where A begins in text.tokens and its size, the same of B
    nsp: np.ndarray  # uint8 (n,)
    mlm_offsets: np.ndarray  # int64 (n + 1,), by draw
    mlm_positions: np.ndarray  # uint16, by draw, ascending within a sample
    mlm_ids: np.ndarray  # uint16, the tokens that stood there
    mlm_shown: np.ndarray  # uint16, the tokens that stand there now

    def __len__(self) -> int:
        return len(self.order)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row, int64."""
        return (self.spans[:, 1] + self.spans[:, 3] + _SPECIAL)[self.order]

    @property
    def token_offsets(self) -> np.ndarray:
        return _offsets(self.lengths)

    @property
    def row_mlm_offsets(self) -> np.ndarray:
        return _offsets(np.diff(self.mlm_offsets)[self.order])

    def rows(self, start: int, stop: int) -> SampleArrays:
        """Rows from `start` to before `stop`, as the arrays that a shard stores."""
        order = self.order[start:stop]
        sizes = np.diff(self.mlm_offsets)[order]
        spans = self.spans[order]
        return SampleArrays(
            tokens=self.tokens(start, stop),
            token_offsets=_offsets(spans[:, 1] + spans[:, 3] + _SPECIAL),
            boundary=self.boundary(start, stop),
            mlm_positions=self.predictions(self.mlm_positions, start, stop),
            mlm_ids=self.predictions(self.mlm_ids, start, stop),
            mlm_offsets=_offsets(sizes),
            nsp=self.nsp[order],
        )

    def boundary(self, start: int, stop: int) -> np.ndarray:
        return (self.spans[self.order[start:stop], 1] + 2).astype(np.uint16)

    def predictions(self, by_draw: np.ndarray, start: int, stop: int) -> np.ndarray:
        """What `by_draw` (`mlm_positions`, `mlm_ids` or `mlm_shown`) holds for the rows from `start` to `stop`."""
        order = self.order[start:stop]
        return by_draw[_ragged(self.mlm_offsets[order], self.mlm_offsets[order + 1] - self.mlm_offsets[order])]

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Tokens of the rows from `start` to `stop`, end to end, uint16."""
        order = self.order[start:stop]
        text = self.text.tokens.data.cast("B")
        cls, sep = (np.uint16(token).tobytes() for token in (self.special.cls, self.special.sep))
        parts: list[bytes | memoryview] = []
        for a, a_size, b, b_size in (2 * self.spans[order]).tolist():
            parts += cls, text[a : a + a_size], sep, text[b : b + b_size], sep
        tokens = np.frombuffer(bytearray(b"".join(parts)), np.uint16)
        first = _offsets(self.spans[order, 1] + self.spans[order, 3] + _SPECIAL)[:-1]
        places = self.predictions(self.mlm_positions, start, stop)
        sizes = self.mlm_offsets[order + 1] - self.mlm_offsets[order]
        tokens[first.repeat(sizes) + places] = self.predictions(self.mlm_shown, start, stop)
        return tokens


def flatten(documents: Sequence[Encoded]) -> TokenizedText:
    """Documents given as lists, as flat arrays. They must hold no empty document or sentence."""
    sentences = [sentence for document in documents for sentence in document]
    return TokenizedText(
        np.array([token for sentence in sentences for token in sentence], np.uint16),
        _offsets(np.array([len(sentence) for sentence in sentences], np.int64)),
        _offsets(np.array([len(document) for document in documents], np.int64)),
    )


def make_samples(documents: list[Encoded], recipe: Recipe, special: SpecialIds, num_vocabulary: int) -> list[Sample]:
    """All samples of one part of the corpus, as lists: for tests and for looking at them."""
    drawn = draw_samples(flatten(documents), recipe, special, num_vocabulary)
    arrays = drawn.rows(0, len(drawn))
    return [
        Sample(
            arrays.tokens[slice(*arrays.token_offsets[row : row + 2])].tolist(),
            int(arrays.boundary[row]),
            arrays.mlm_positions[slice(*arrays.mlm_offsets[row : row + 2])].tolist(),
            arrays.mlm_ids[slice(*arrays.mlm_offsets[row : row + 2])].tolist(),
            bool(arrays.nsp[row]),
        )
        for row in range(len(arrays))
    ]


def draw_samples(
    text: TokenizedText,
    recipe: Recipe,
    special: SpecialIds,
    num_vocabulary: int,
    *,
    make_draws: Callable[[int, int], Draws] | None = None,
) -> DrawnSamples:
    """All samples of one part of the corpus, shuffled. `make_draws` is `draws.fastest`'s where it is not given."""
    draws = (make_draws or fastest()[0])(recipe.seed, recipe.max_length)
    documents: list[int] = draws.order(text.num_documents).tolist()
    predictions = _Predictions(text, recipe, special, num_vocabulary, draws)
    spans, nsp = array("q"), array("B")
    for a, a_size, b, b_size, is_random_next in _pairs(text, documents, recipe, draws):
        spans.extend((a, a_size, b, b_size))
        nsp.append(is_random_next)
        predictions.draw(a, a_size, b, b_size)
    return DrawnSamples(
        text,
        special,
        draws.order(len(nsp)),
        np.frombuffer(spans, np.int64).reshape(-1, 4),
        np.frombuffer(nsp, np.uint8),
        *predictions.arrays(),
    )


def _pairs(
    text: TokenizedText, documents: list[int], recipe: Recipe, draws: Draws
) -> Iterator[tuple[int, int, int, int, bool]]:
    """Cut each document into chunks of about the target length, and each chunk into A and (the true or a random) B.

    Yields where A begins in the text and its size, the same of B, and whether B is a random one. The caller draws the
    sample's predictions before it asks for the next pair: both take from the same generator.
    """
    random, below = draws.random, draws.below
    ends: list[int] = text.sentence_offsets.tolist()
    bounds = text.document_offsets.tolist()
    firsts = [bounds[document] for document in documents]
    stops = [bounds[document + 1] for document in documents]
    max_tokens = recipe.max_length - _SPECIAL
    for _ in range(recipe.duplicates):
        for index in range(len(documents)):
            target = max_tokens
            if random() < recipe.short_share:
                target = 2 + below(max_tokens - 1)
            start, end = firsts[index], stops[index]
            while start < end:
                stop = min(end, bisect_left(ends, ends[start] + target, start + 1, end))
                a_stop = start + 1 + (below(stop - start - 1) if stop - start >= 2 else 0)
                a, a_size = ends[start], ends[a_stop] - ends[start]
                # One sentence has no true continuation inside its chunk.
                is_random_next = stop - start == 1 or random() < 0.5
                if is_random_next:
                    for _ in range(10):  # the reference gives up after ten draws of the document itself
                        other = below(len(documents))
                        if other != index:
                            break
                    first = firsts[other] + below(stops[other] - firsts[other])
                    b = ends[first]
                    last = bisect_left(ends, b + target - a_size, first + 1, stops[other])
                    b_size = ends[min(last, stops[other])] - b
                    stop = a_stop  # the chunk's unused sentences start the next chunk
                else:
                    b, b_size = ends[a_stop], ends[stop] - ends[a_stop]
                if a_size + b_size > max_tokens:
                    a, a_size, b, b_size = _truncate(a, a_size, b, b_size, max_tokens, draws)
                yield a, a_size, b, b_size, is_random_next
                start = stop


def _truncate(a: int, a_size: int, b: int, b_size: int, max_tokens: int, draws: Draws) -> tuple[int, int, int, int]:
    """Shorten the longer of the two (B, if none is) by one token at a time, at its front or its back by a fair coin."""
    surplus = a_size + b_size - max_tokens
    level = min(surplus, abs(a_size - b_size))  # so many go from the longer; then B and A take turns
    longer = sum(draws.heads(level))
    b_front, a_front = draws.heads(surplus - level)
    b_cut, a_cut = (surplus - level + 1) // 2, (surplus - level) // 2
    if a_size > b_size:
        a_front, a_cut = a_front + longer, a_cut + level
    else:
        b_front, b_cut = b_front + longer, b_cut + level
    return a + a_front, a_size - a_cut, b + b_front, b_size - b_cut


class _Predictions:
    """Draws the masked places of one sample after the other: 80 % become [MASK], 10 % stay, 10 % a random entry."""

    def __init__(
        self, text: TokenizedText, recipe: Recipe, special: SpecialIds, num_vocabulary: int, draws: Draws
    ) -> None:
        self._text = text
        self._mask = special.mask
        self._num_vocabulary = num_vocabulary
        self._draws = draws
        self._counts = [0] * _SPECIAL + [recipe.num_predictions(n) for n in range(_SPECIAL, recipe.max_length + 1)]
        self._sizes = array("q")
        self._done: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._num_done = 0
        self._pairs: list[tuple[int, int, int]] = []  # A's start, A's size, B's start

    def draw(self, a: int, a_size: int, b: int, b_size: int) -> None:
        count = self._counts[a_size + b_size + _SPECIAL]
        self._draws.mask(a_size, b_size, count, self._num_vocabulary)
        self._sizes.append(count)
        self._pairs.append((a, a_size, b))
        if len(self._pairs) == _BATCH:
            self._flush()
            num_done = self._num_done + 16 * len(self._sizes)  # a sample itself takes the room of some 16 predictions
            if num_done > _MOST_PREDICTIONS:
                raise ValueError(
                    f"after {len(self._sizes):,} samples the samples of one shard do not fit 2 GiB of memory; "
                    "make more shards (--shards), or cut the text file into several"
                )

    def _flush(self) -> None:
        """Look up what stood at the places."""
        sizes = np.frombuffer(self._sizes, np.int64)[len(self._sizes) - len(self._pairs) :]
        places, shown = self._draws.take_masks()
        a, a_size, b = np.array(self._pairs, np.int64).reshape(-1, 3).T
        # After [CLS], A; after A and [SEP], B.
        origin = np.where(places > a_size.repeat(sizes) + 1, (b - a_size - 2).repeat(sizes), (a - 1).repeat(sizes))
        ids = self._text.tokens[origin + places]
        now = np.where(shown == KEPT, ids, np.where(shown == MASKED, self._mask, shown)).astype(np.uint16)
        self._done.append((places, ids, now))
        self._num_done += len(places)
        self._pairs.clear()

    def arrays(self) -> Iterator[np.ndarray]:
        """Offsets, positions, ids and shown ids of all samples in the order in which they were drawn."""
        self._flush()
        yield _offsets(np.frombuffer(self._sizes, np.int64))
        columns = [list(column) for column in zip(*self._done, strict=True)]
        self._done.clear()
        while columns:  # each column's parts are given up as soon as they are one array
            yield np.concatenate(columns.pop(0))


def _offsets(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def _ragged(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Indices of the ranges that begin at `starts` and have `sizes`, end to end."""
    before = np.cumsum(sizes) - sizes
    return np.arange(sizes.sum()) + np.repeat(starts - before, sizes)
