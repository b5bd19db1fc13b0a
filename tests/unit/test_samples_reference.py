"""Samples against the reference's recipe: an independent slow oracle, on odd texts and on real ones."""

from __future__ import annotations

import gzip
import os
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.prepare.corpus import read_as_reference
from benchmarks.bert.prepare.draws import below, heads, shuffle_front
from benchmarks.bert.prepare.samples import DrawnSamples, Recipe, SpecialIds, draw_samples, flatten
from benchmarks.bert.prepare.wordpiece import CLS, MASK, SEP, SPECIAL_TOKENS, Encoder, read_vocabulary, tokenize
from tests.support.corpora import SPECIAL, make_documents, make_encoded, make_vocabulary
from tests.support.reference_oracle import Drawn, basic_words, content_digest, pieces_of, reference_samples

REFERENCE = Path(__file__).parents[3] / "shared" / "data" / "reference_samples" / "a_step3_segmented.txt.gz"
PIECES = [
    "a",
    "b",
    "ab",
    "##a",
    "##b",
    "##ab",
    "\u03c3",
    "\u03c2",
    "##\u03c2",
    "##\u03c3",
    "i",
    "##i",
    "[",
    "]",
    "cls",
    "mask",
    ",",
    "一",
]
VOCABULARY = [*SPECIAL_TOKENS, *PIECES]
ODD = (
    "\t\r\x00\x1c\x1f\x7f\x85\xa0\xad\u0130\u0131\u03a3\u03c3\u0301\u0345\u200b\u200d\u2028\u2029\u3000\ufeff\ufffd\ufdfa"
    "\u4e00\u9fff\u3400\uf900\U00020000\U0002b820\U0002b91f\U0002fa1d\ue000\U000e0001\U0001f600\u0378\u166d\u1734\u2e5d"
    "\U00010ead\ud7a3\u212b\u2126\u1e9e\ufb01\u0df9"
)
RECIPE = Recipe(max_length=24, max_predictions=4, short_share=0.3, duplicates=2, seed=7)

lines = st.one_of(
    st.text(alphabet="abAB .,", max_size=12),
    st.text(alphabet=ODD + "aB\u03c3\u03a3,[ ", max_size=10),
    st.text(alphabet=st.characters(exclude_categories=("Cs",), exclude_characters="\n"), max_size=8),
    st.sampled_from(
        ["", " ", "\r", "[CLS] a", "a [MASK] b", "a" * 201, "ab" * 100, "\x1c", "\u2028", "\x00", "ΑΣ. ΑΣ", "İ"]
    ),
)
texts = st.lists(lines, max_size=14).map(lambda found: "\n".join(found).encode())


def ours(text: bytes, vocabulary: list[str], recipe: Recipe, path: Path) -> list[Drawn]:
    path.write_bytes(text)
    special = SpecialIds(*(vocabulary.index(token) for token in (CLS, SEP, MASK)))
    tokens = tokenize(read_as_reference(path), Encoder(vocabulary))
    return as_drawn(draw_samples(tokens, recipe, special, len(vocabulary)), vocabulary)


def as_drawn(samples: DrawnSamples, vocabulary: list[str]) -> list[Drawn]:
    arrays = samples.rows(0, len(samples))
    found = []
    for row in range(len(arrays)):
        tokens = arrays.tokens[slice(*arrays.token_offsets[row : row + 2])]
        masks = slice(*arrays.mlm_offsets[row : row + 2])
        found.append(
            Drawn(
                [vocabulary[token] for token in tokens],
                int(arrays.boundary[row]),
                arrays.mlm_positions[masks].tolist(),
                [vocabulary[token] for token in arrays.mlm_ids[masks]],
                bool(arrays.nsp[row]),
            )
        )
    return found


def theirs(text: bytes, vocabulary: list[str], recipe: Recipe) -> list[Drawn]:
    return reference_samples(
        text,
        vocabulary,
        seed=recipe.seed,
        max_length=recipe.max_length,
        max_predictions=recipe.max_predictions,
        duplicates=recipe.duplicates,
        short_share=recipe.short_share,
        masked_share=recipe.masked_share,
    )


@settings(max_examples=400, deadline=None)
@given(line=lines)
def test_odd_text_is_tokenized_as_the_oracle_does(line: str) -> None:
    expected = [piece for word in basic_words(line) for piece in pieces_of(word, set(VOCABULARY))]
    ids = memoryview(Encoder(VOCABULARY).encode(line)).cast("H")
    assert [VOCABULARY[token] for token in ids] == expected


def test_every_character_is_tokenized_as_the_oracle_does() -> None:
    encoder = Encoder(VOCABULARY)
    entries = set(VOCABULARY)
    for point in [*range(0xD800), *range(0xE000, 0x30000), *range(0xE0000, 0xE0200)]:
        if chr(point) != "\n":
            word = f"a{chr(point)}b"
            expected = [piece for part in basic_words(word) for piece in pieces_of(part, entries)]
            assert [VOCABULARY[token] for token in memoryview(encoder.encode(word)).cast("H")] == expected, hex(point)


def test_a_very_long_sentence_is_tokenized_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "ab a,b  \u3000 b\u4e00a ab" * 50 + "ab" * 30
    whole = Encoder(VOCABULARY).encode(line)
    monkeypatch.setattr("benchmarks.bert.prepare.wordpiece._LONGEST_AT_ONCE", 20)
    assert Encoder(VOCABULARY).encode(line) == whole


def test_a_capital_sigma_depends_on_its_place_in_the_word() -> None:
    encoder = Encoder(VOCABULARY)
    assert [VOCABULARY[token] for token in memoryview(encoder.encode("AΣ Σ")).cast("H")] == ["a", "##\u03c2", "\u03c3"]


@settings(max_examples=250, deadline=None)
@given(text=texts, seed=st.integers(0, 99))
def test_samples_of_odd_texts_equal_the_oracles(
    text: bytes, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    recipe = replace(RECIPE, seed=seed)
    path = tmp_path_factory.getbasetemp() / "odd.txt"
    assert ours(text, VOCABULARY, recipe, path) == theirs(text, VOCABULARY, recipe)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n\n\n",
        b"a b\n",
        b"a\n\nb\n\nab\n",
        b"a b\nab\nb\n",
        b"a b\r\nab\r\n\r\nb\r\nb a\r\n",
        b"a\rb\n\nab\n",
        b"\x00\n\na\n\x1c\nb\n",
        b"a\n\n\x00\n\nb\n",
        b"ab " * 400 + b"\n\na b\n",  # a sentence longer than a sample
        (b"ab " * 400 + b"\n") * 3,
    ],
)
def test_samples_of_edge_cases_equal_the_oracles(text: bytes, tmp_path: Path) -> None:
    for seed in range(20):
        recipe = replace(RECIPE, seed=seed)
        assert ours(text, VOCABULARY, recipe, tmp_path / "text.txt") == theirs(text, VOCABULARY, recipe)


@pytest.mark.parametrize("length", [10, 30, 50, 70, 110, 150])
def test_counts_at_halves_equal_the_oracles(length: int, tmp_path: Path) -> None:
    recipe = Recipe(max_length=length, max_predictions=length - 1, duplicates=2)
    text = "\n\n".join("\n".join(document) for document in make_documents(40, max_sentences=40)).encode()
    expected = theirs(text, make_vocabulary(), recipe)
    assert ours(text, make_vocabulary(), recipe, tmp_path / "text.txt") == expected
    assert length in {len(sample.tokens) for sample in expected}


def test_the_oracle_gives_the_references_digest() -> None:
    if not REFERENCE.exists() or "REFERENCE_VOCAB" not in os.environ:
        pytest.skip("the reference's text lies beside the checkout, and REFERENCE_VOCAB names its vocab.txt")
    vocabulary = read_vocabulary(Path(os.environ["REFERENCE_VOCAB"]))
    text = gzip.decompress(REFERENCE.read_bytes())
    found = content_digest(reference_samples(text, vocabulary), vocabulary)
    assert found == "f5f9ca06dd24cc6aad7933c28872f888606c480ba6fed51da30b300558f23f3a"


@settings(max_examples=200, deadline=None)
@given(size=st.integers(0, 700), count=st.integers(0, 90), seed=st.integers(0, 999))
def test_the_front_of_a_shuffle_is_randoms(size: int, count: int, seed: int) -> None:
    left, right = Random(seed), Random(seed)
    expected, found = list(range(size)), list(range(size))
    left.shuffle(expected)
    shuffle_front(found, count, right.getrandbits)
    assert found[:count] == expected[:count]
    assert right.getstate() == left.getstate()


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 255, 256, 257, 30522, 65536, 2**32 - 1])
def test_numbers_below_a_limit_are_randoms(limit: int) -> None:
    left, right = Random(5), Random(5)
    assert [below(limit, right.getrandbits) for _ in range(200)] == [left.randrange(limit) for _ in range(200)]
    assert right.getstate() == left.getstate()


@pytest.mark.parametrize("count", [0, 1, 2, 31, 32, 33, 34, 1000, 1001, (1 << 20) + 3])
def test_heads_are_randoms(count: int) -> None:
    left, right = Random(6), Random(6)
    coins = [left.random() < 0.5 for _ in range(count)]
    assert heads(count, right) == (sum(coins[::2]), sum(coins[1::2]))
    assert right.getstate() == left.getstate()


def test_rows_are_the_same_in_any_portions() -> None:
    documents, num_vocabulary = make_encoded(30)
    samples = draw_samples(flatten(documents), replace(RECIPE, duplicates=5), SPECIAL, num_vocabulary)
    names = [str(number) for number in range(num_vocabulary)]
    whole = as_drawn(samples, names)
    for start in range(0, len(samples), 7):
        part = samples.rows(start, start + 7)
        assert [len(drawn.tokens) for drawn in whole[start : start + 7]] == part.lengths.tolist()
        assert part.tokens.tolist() == [int(token) for drawn in whole[start : start + 7] for token in drawn.tokens]


def test_samples_that_do_not_fit_the_memory_are_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.bert.prepare.samples._MOST_PREDICTIONS", 60_000)
    documents, num_vocabulary = make_encoded(800)
    with pytest.raises(ValueError, match=r"after 4,096 samples .* do not fit 2 GiB of memory; make more shards"):
        draw_samples(flatten(documents), replace(RECIPE, duplicates=9), SPECIAL, num_vocabulary)
