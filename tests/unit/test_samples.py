"""The sample recipe: against a slow oracle, against the invariants of BERT's pairs and masks, against the reference."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.prepare.corpus import read_corpus
from benchmarks.bert.prepare.samples import Encoded, Recipe, Sample, SpecialIds, make_samples
from benchmarks.bert.prepare.wordpiece import CLS, MASK, SEP, encode, read_vocabulary
from tests.support.corpora import FIRST_WORD_ID, SPECIAL, make_encoded, unmasked

NUM_IDS = 60
REFERENCE = Path(__file__).parents[3] / "shared" / "data" / "reference_samples" / "a_step3_segmented.txt.gz"
REFERENCE_DIGEST = "f5f9ca06dd24cc6aad7933c28872f888606c480ba6fed51da30b300558f23f3a"


def oracle_samples(documents: list[Encoded], recipe: Recipe, num_vocabulary: int) -> list[Sample]:
    """The recipe, step by step and token by token."""
    rng = Random(recipe.seed)
    order = list(documents)
    rng.shuffle(order)
    result = []
    for _ in range(recipe.duplicates):
        for number in range(len(order)):
            for first, second, random_next in oracle_pairs(order, number, recipe, rng):
                result.append(oracle_masking(first, second, random_next, recipe, num_vocabulary, rng))
    rng.shuffle(result)
    return result


def oracle_pairs(
    documents: list[Encoded], number: int, recipe: Recipe, rng: Random
) -> Iterator[tuple[list[int], list[int], bool]]:
    room = recipe.max_length - 3
    wanted = rng.randint(2, room) if rng.random() < recipe.short_share else room
    waiting = list(documents[number])
    while waiting:
        chunk: Encoded = []
        while waiting and sum(map(len, chunk)) < wanted:
            chunk.append(waiting.pop(0))
        cut = 1 if len(chunk) == 1 else rng.randint(1, len(chunk) - 1)
        first, rest = list(chain(*chunk[:cut])), chunk[cut:]
        random_next = True if not rest else rng.random() < 0.5
        if random_next:
            waiting = rest + waiting
            second = oracle_stranger(documents, number, wanted - len(first), rng)
        else:
            second = list(chain(*rest))
        while len(first) + len(second) > room:
            victim = first if len(first) > len(second) else second
            victim.pop(0 if rng.random() < 0.5 else -1)
        yield first, second, random_next


def oracle_stranger(documents: list[Encoded], number: int, wanted: int, rng: Random) -> list[int]:
    attempts = 1
    stranger = rng.randint(0, len(documents) - 1)
    while stranger == number and attempts < 10:
        stranger = rng.randint(0, len(documents) - 1)
        attempts += 1
    place = rng.randint(0, len(documents[stranger]) - 1)
    second = list(documents[stranger][place])
    while len(second) < wanted and place + 1 < len(documents[stranger]):
        place += 1
        second.extend(documents[stranger][place])
    return second


def oracle_masking(
    first: list[int], second: list[int], random_next: bool, recipe: Recipe, num_vocabulary: int, rng: Random
) -> Sample:
    tokens = [SPECIAL.cls, *first, SPECIAL.sep, *second, SPECIAL.sep]
    places = [*range(1, len(first) + 1), *range(len(first) + 2, len(tokens) - 1)]
    rng.shuffle(places)
    chosen = places[: min(recipe.max_predictions, max(1, round(recipe.masked_share * len(tokens))))]
    originals = {place: tokens[place] for place in sorted(chosen)}
    for place in chosen:
        if rng.random() < 0.8:
            tokens[place] = SPECIAL.mask
        elif rng.random() < 0.5:
            continue
        else:
            tokens[place] = rng.randint(0, num_vocabulary - 1)
    return Sample(tokens, len(first) + 2, list(originals), list(originals.values()), random_next)


sentences = st.lists(st.integers(FIRST_WORD_ID, NUM_IDS - 1), min_size=1, max_size=12)
corpora = st.lists(st.lists(sentences, min_size=1, max_size=8), min_size=1, max_size=6)
recipes = st.builds(
    Recipe,
    max_length=st.integers(8, 40),
    max_predictions=st.integers(1, 7),
    masked_share=st.sampled_from([0.15, 0.3]),
    short_share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    duplicates=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)


@settings(max_examples=150, deadline=None)
@given(documents=corpora, recipe=recipes)
def test_samples_equal_the_oracles(documents: list[Encoded], recipe: Recipe) -> None:
    assert make_samples(documents, recipe, SPECIAL, NUM_IDS) == oracle_samples(documents, recipe, NUM_IDS)


@settings(max_examples=150, deadline=None)
@given(documents=corpora, recipe=recipes)
def test_every_sample_has_the_form_of_a_masked_pair(documents: list[Encoded], recipe: Recipe) -> None:
    for sample in make_samples(documents, recipe, SPECIAL, NUM_IDS):
        original = unmasked(sample)
        length = len(original)
        assert 5 <= length <= recipe.max_length
        assert [place for place, token in enumerate(original) if token == SPECIAL.cls] == [0]
        separators = [sample.boundary - 1, length - 1]
        assert [place for place, token in enumerate(original) if token == SPECIAL.sep] == separators
        assert sample.mlm_positions == sorted(set(sample.mlm_positions))
        assert not {0, *separators} & set(sample.mlm_positions)
        assert len(sample.mlm_positions) == len(sample.mlm_ids)
        num_predictions = min(recipe.max_predictions, max(1, round(recipe.masked_share * length)))
        assert len(sample.mlm_positions) == num_predictions


def test_make_samples_leaves_its_documents_alone() -> None:
    documents, num_vocabulary = make_encoded(6)
    before = [[list(sentence) for sentence in document] for document in documents]
    make_samples(documents, Recipe(max_length=16, max_predictions=3), SPECIAL, num_vocabulary)
    assert documents == before


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_labels_tell_true_pairs_from_random_ones(seed: int) -> None:
    documents, num_vocabulary = make_encoded(12, seed)
    home = {token: number for number, document in enumerate(documents) for sentence in document for token in sentence}
    recipe = Recipe(max_length=48, max_predictions=8, short_share=0.3, duplicates=4, seed=seed)
    samples = make_samples(documents, recipe, SPECIAL, num_vocabulary)
    for sample in samples:
        tokens = unmasked(sample)
        first, second = tokens[1 : sample.boundary - 1], tokens[sample.boundary : -1]
        for part in (first, second):  # ids ascend by one through a document and from one to the next
            assert part == list(range(part[0], part[0] + len(part)))
            assert len({home[token] for token in part}) == 1
        same_document = home[first[0]] == home[second[0]]
        assert same_document is not sample.is_random_next
        if same_document and len(tokens) < recipe.max_length:
            assert second[0] == first[-1] + 1
        elif same_document:
            assert second[0] > first[-1]
    assert {sample.is_random_next for sample in samples} == {True, False}


@pytest.mark.parametrize("short_share", [0.0, 1.0])
def test_sentences_that_a_random_pair_did_not_use_start_the_next_chunk(short_share: float) -> None:
    documents = [[[number * 40 + place + FIRST_WORD_ID] for place in range(40)] for number in range(5)]
    recipe = Recipe(max_length=16, max_predictions=3, short_share=short_share, duplicates=1)
    used = []
    for sample in make_samples(documents, recipe, SPECIAL, 205):
        tokens = unmasked(sample)
        used += tokens[1 : sample.boundary - 1] + ([] if sample.is_random_next else tokens[sample.boundary : -1])
    assert sorted(used) == list(range(FIRST_WORD_ID, FIRST_WORD_ID + 200))


def test_samples_of_the_longest_and_of_the_shortest_length_exist() -> None:
    one_word = [[[FIRST_WORD_ID + number]] for number in range(10)]
    long = [[FIRST_WORD_ID + 10 + number] for number in range(100)]
    recipe = Recipe(max_length=32, max_predictions=5, short_share=0.0, duplicates=5)
    lengths = {len(sample.tokens) for sample in make_samples([*one_word, long], recipe, SPECIAL, 115)}
    assert min(lengths) == 5
    assert max(lengths) == 32


@pytest.mark.parametrize(("length", "count"), [(8, 1), (10, 2), (30, 4), (50, 8), (70, 10), (110, 16), (150, 22)])
def test_half_a_prediction_rounds_to_the_even_number(length: int, count: int) -> None:
    documents = [[[FIRST_WORD_ID + place] for place in range(400)]] * 2
    recipe = Recipe(max_length=length, max_predictions=length - 1, short_share=0.0, duplicates=1)
    samples = make_samples(documents, recipe, SPECIAL, 405)
    counts = {len(sample.mlm_ids) for sample in samples if len(sample.tokens) == length}
    assert counts == {count}


def test_masked_places_hold_mask_own_or_random_tokens_in_the_stated_shares() -> None:
    documents, num_vocabulary = make_encoded(60)
    recipe = Recipe(max_length=64, max_predictions=20, duplicates=20)
    masked = own = random = 0
    for sample in make_samples(documents, recipe, SPECIAL, num_vocabulary):
        for place, original in zip(sample.mlm_positions, sample.mlm_ids, strict=True):
            masked += sample.tokens[place] == SPECIAL.mask
            own += sample.tokens[place] == original
            random += sample.tokens[place] not in (SPECIAL.mask, original)
    total = masked + own + random
    assert total > 5000
    assert [masked / total, own / total, random / total] == pytest.approx([0.8, 0.1, 0.1], abs=0.02)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_length": 7},
        {"max_length": 65536},
        {"max_predictions": 0},
        {"max_length": 16, "max_predictions": 16},
        {"masked_share": 0.0},
        {"masked_share": 1.0},
        {"short_share": -0.1},
        {"short_share": 1.1},
        {"duplicates": 0},
    ],
)
def test_recipe_refuses_what_cannot_be_made(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must (lie|be)"):
        Recipe(**fields)  # type: ignore[arg-type]


def digest(samples: list[Sample]) -> str:
    """The content digest that the reference samples' README defines."""

    def flat(name: str) -> list[int]:
        return [value for sample in samples for value in getattr(sample, name)]

    def offsets(name: str) -> list[int]:
        return [0, *np.cumsum([len(getattr(sample, name)) for sample in samples])]

    arrays = [
        flat("tokens"),
        offsets("tokens"),
        [sample.boundary for sample in samples],
        flat("mlm_positions"),
        flat("mlm_ids"),
        offsets("mlm_ids"),
        [sample.is_random_next for sample in samples],
    ]
    return hashlib.sha256(b"".join(np.asarray(array).astype("<i4").tobytes() for array in arrays)).hexdigest()


def reference_digest(tmp_path: Path, seed: int) -> str:
    """Digest of our samples of the reference's text, or a skip where the text or its vocabulary is not at hand."""
    if not REFERENCE.exists():
        pytest.skip(f"{REFERENCE} is not there: the reference samples lie beside the checkout")
    if "REFERENCE_VOCAB" not in os.environ:
        pytest.skip("REFERENCE_VOCAB does not name the reference's vocab.txt (shared/data/reference_samples/README.md)")
    text = tmp_path / "reference.txt"
    text.write_bytes(gzip.decompress(REFERENCE.read_bytes()))
    vocabulary = read_vocabulary(Path(os.environ["REFERENCE_VOCAB"]))
    special = SpecialIds(vocabulary.index(CLS), vocabulary.index(SEP), vocabulary.index(MASK))
    documents = encode(read_corpus([text]), vocabulary)
    return digest(make_samples(documents, Recipe(seed=seed), special, len(vocabulary)))


def test_samples_of_the_reference_text_are_the_references(tmp_path: Path) -> None:
    assert reference_digest(tmp_path, seed=12345) == REFERENCE_DIGEST


def test_another_seed_does_not_give_the_references_samples(tmp_path: Path) -> None:
    assert reference_digest(tmp_path, seed=12346) != REFERENCE_DIGEST


def test_digest_depends_on_the_seed_alone() -> None:
    documents, num_vocabulary = make_encoded(8)

    def of(seed: int) -> str:
        recipe = Recipe(max_length=32, max_predictions=5, seed=seed)
        return digest(make_samples(documents, recipe, SPECIAL, num_vocabulary))

    assert of(1) == of(1)
    assert of(1) != of(2)
