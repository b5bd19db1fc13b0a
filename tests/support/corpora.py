"""Small synthetic corpora, vocabularies and samples from a seeded list of English-like words."""

from __future__ import annotations

from pathlib import Path
from random import Random

from benchmarks.bert.data.shards import SampleArrays
from benchmarks.bert.prepare.build import to_arrays
from benchmarks.bert.prepare.corpus import Document, write_corpus
from benchmarks.bert.prepare.samples import Encoded, Recipe, Sample, SpecialIds, make_samples
from benchmarks.bert.prepare.wordpiece import CLS, MASK, SEP, SPECIAL_TOKENS, write_vocabulary

SPECIAL = SpecialIds(SPECIAL_TOKENS.index(CLS), SPECIAL_TOKENS.index(SEP), SPECIAL_TOKENS.index(MASK))
FIRST_WORD_ID = len(SPECIAL_TOKENS)
SHORT_RECIPE = Recipe(max_length=32, max_predictions=5, short_share=0.3, duplicates=2)

_ONSETS = ("b", "br", "c", "d", "f", "gr", "h", "l", "m", "n", "p", "r", "s", "st", "t", "th", "w")
_RHYMES = ("an", "ar", "ay", "ead", "ell", "er", "ing", "ock", "old", "ord", "ound", "ull", "y")


def make_words(count: int, seed: int = 0) -> list[str]:
    """`count` different lower-case words of one to three syllables."""
    rng = Random(seed)
    words: dict[str, None] = {}
    while len(words) < count:
        words["".join(rng.choice(_ONSETS) + rng.choice(_RHYMES) for _ in range(rng.randint(1, 3)))] = None
    return list(words)


WORDS = make_words(300)


def make_documents(count: int, seed: int = 0, max_sentences: int = 10) -> list[Document]:
    """`count` documents of capitalised sentences; frequent words stand at the front of the word list."""
    rng = Random(seed)

    def sentence() -> str:
        words = [WORDS[int(len(WORDS) * rng.random() ** 2)] for _ in range(rng.randint(2, 9))]
        return " ".join(words).capitalize() + "."

    return [[sentence() for _ in range(rng.randint(1, max_sentences))] for _ in range(count)]


def make_vocabulary() -> list[str]:
    """Special tokens first, then every word of WORDS and the full stop as whole entries."""
    return [*SPECIAL_TOKENS, *WORDS, "."]


def write_text(path: Path, documents: list[Document]) -> Path:
    write_corpus(path, documents)
    return path


def write_words(path: Path) -> Path:
    write_vocabulary(path, make_vocabulary())
    return path


def make_encoded(count: int, seed: int = 0, max_sentences: int = 10) -> tuple[list[Encoded], int]:
    """Documents whose every token id stands once in the whole corpus, and the size of their vocabulary."""
    rng = Random(seed)
    next_id = FIRST_WORD_ID
    documents: list[Encoded] = []
    for _ in range(count):
        documents.append([])
        for _ in range(rng.randint(1, max_sentences)):
            size = rng.randint(1, 9)
            documents[-1].append(list(range(next_id, next_id + size)))
            next_id += size
    return documents, next_id


def make_arrays(num_documents: int = 8, seed: int = 0, recipe: Recipe = SHORT_RECIPE) -> SampleArrays:
    """The samples of synthetic documents as a shard's arrays."""
    documents, num_vocabulary = make_encoded(num_documents, seed)
    return to_arrays(make_samples(documents, recipe, SPECIAL, num_vocabulary))


def unmasked(sample: Sample) -> list[int]:
    """The sample's tokens as they were before masking."""
    tokens = list(sample.tokens)
    for place, original in zip(sample.mlm_positions, sample.mlm_ids, strict=True):
        tokens[place] = original
    return tokens
