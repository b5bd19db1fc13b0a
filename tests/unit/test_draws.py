"""Both kinds of draws against Python's `random`: every number they give, and the state that they leave."""

from __future__ import annotations

import importlib.util
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from random import Random
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.bench import as_reference
from benchmarks.bert.prepare.draws import KEPT, MASKED, Draws, PythonDraws, fastest
from benchmarks.bert.prepare.samples import Recipe, draw_samples, flatten
from tests.support.corpora import SPECIAL, make_documents, make_encoded, make_vocabulary
from tests.support.reference_oracle import Drawn, content_digest, reference_samples

MAX_LENGTH = 700
WITH_NUMBA = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")

Turn = tuple[str, tuple[int, ...]]
Make = Callable[[int, int], Draws]


def in_python(seed: int, max_length: int) -> Draws:
    return PythonDraws(seed, max_length)


def compiled(seed: int, max_length: int) -> Draws:
    from benchmarks.bert.prepare.compiled import CompiledDraws

    return CompiledDraws(seed, max_length)


KINDS = [pytest.param(in_python, id="python"), pytest.param(compiled, id="compiled", marks=WITH_NUMBA)]


class FromRandom:
    """The same draws by the methods that they stand for."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.masks: list[tuple[int, int]] = []

    def random(self) -> float:
        return self.rng.random()

    def below(self, limit: int) -> int:
        return self.rng.randrange(limit)

    def heads(self, count: int) -> tuple[int, int]:
        coins = [self.rng.random() < 0.5 for _ in range(count)]
        return sum(coins[::2]), sum(coins[1::2])

    def order(self, count: int) -> list[int]:
        items = list(range(count))
        self.rng.shuffle(items)
        return items

    def mask(self, a_size: int, b_size: int, count: int, num_vocabulary: int) -> None:
        places = [*range(1, a_size + 1), *range(a_size + 2, a_size + b_size + 2)]
        self.rng.shuffle(places)
        found = []
        for place in places[:count]:
            shown = MASKED
            if self.rng.random() >= 0.8:
                shown = KEPT if self.rng.random() < 0.5 else self.rng.randint(0, num_vocabulary - 1)
            found.append((place, shown))
        self.masks += sorted(found)

    def take_masks(self) -> list[tuple[int, int]]:
        found, self.masks = self.masks, []
        return found


@st.composite
def masks(draw: st.DrawFn) -> Turn:
    a_size, b_size = draw(st.integers(1, 340)), draw(st.integers(1, 340))
    count = draw(st.integers(0, min(90, a_size + b_size)))
    return "mask", (a_size, b_size, count, draw(st.integers(1, 1 << 16)))


turns: st.SearchStrategy[list[Turn]] = st.lists(
    st.one_of(
        masks(),
        st.just(("random", ())),
        st.just(("take_masks", ())),
        st.tuples(st.just("below"), st.tuples(st.integers(1, (1 << 32) - 1))),
        st.tuples(st.just("heads"), st.tuples(st.integers(0, 1500))),  # beyond two renewals of the state
        st.tuples(st.just("order"), st.tuples(st.one_of(st.integers(0, 20), st.integers(0, 1100)))),
    ),
    max_size=12,
)
seeds = st.one_of(st.integers(0, 99), st.integers(0, 1 << 70))


def plain(result: object) -> object:
    if isinstance(result, np.ndarray):
        return result.tolist()
    if isinstance(result, tuple) and isinstance(result[0], np.ndarray):
        return list(zip(result[0].tolist(), result[1].tolist(), strict=True))
    return result


def differs(draws: Draws, seed: int, played: list[Turn]) -> str:
    """The first turn whose result is not `random`'s, or "state" where only the state after all is not."""
    expected = FromRandom(seed)
    for name, arguments in [*played, ("take_masks", ())]:
        if plain(getattr(draws, name)(*arguments)) != getattr(expected, name)(*arguments):
            return name
    return "" if draws.state() == expected.rng.getstate()[1] else "state"


@pytest.mark.parametrize("make", KINDS)
@settings(max_examples=300, deadline=None)
@given(seed=seeds, played=turns)
def test_draws_and_the_state_that_they_leave_are_randoms(make: Make, seed: int, played: list[Turn]) -> None:
    assert differs(make(seed, MAX_LENGTH), seed, played) == ""


@pytest.mark.parametrize("make", KINDS)
def test_a_shuffle_of_every_size_is_randoms(make: Make) -> None:
    assert differs(make(3, MAX_LENGTH), 3, [("order", (size,)) for size in range(600)]) == ""


@pytest.mark.parametrize("make", KINDS)
def test_a_sample_of_every_size_is_randoms(make: Make) -> None:
    sizes = [(a_size, total - a_size) for total in range(2, 510) for a_size in (1, total // 2, total - 1)]
    played = [("mask", (a, b, min(76, max(1, round(0.15 * (a + b)))), 30522)) for a, b in sizes]
    assert differs(make(4, 512), 4, played) == ""


@pytest.mark.parametrize("make", KINDS)
def test_draws_of_another_seed_are_others(make: Make) -> None:
    assert differs(make(2, MAX_LENGTH), 1, [("below", (1 << 30,))]) == "below"


class WithoutRejection(PythonDraws):
    """One output for each number, scaled: as fair, but not `random`'s."""

    def below(self, limit: int) -> int:
        return self._bits(32) * limit >> 32


class OneDrawLess(PythonDraws):
    """Right results, but the last swap of a shuffle, which a sample's front does not show, draws nothing."""

    def order(self, count: int) -> np.ndarray:
        result = super().order(count)
        self._rng.setstate((3, (*self.state()[:-1], self.state()[-1] - 1), None))
        return result


@pytest.mark.parametrize(
    ("make", "turn", "found"),
    [
        pytest.param(WithoutRejection, ("below", (30522,)), "below", id="no rejection"),
        pytest.param(OneDrawLess, ("order", (9,)), "state", id="one output not used"),
    ],
)
def test_draws_that_are_not_randoms_are_found(make: Make, turn: Turn, found: str) -> None:
    assert differs(make(1, MAX_LENGTH), 1, [turn] * (1 if found == "state" else 20)) == found


@WITH_NUMBA
@pytest.mark.parametrize("seed", [1, 12345])
def test_samples_are_the_same_by_both_kinds(seed: int) -> None:
    documents, num_vocabulary = make_encoded(300)
    recipe = Recipe(max_length=64, max_predictions=10, short_share=0.3, seed=seed)

    def arrays(make: Make) -> Iterator[list[int]]:
        drawn = draw_samples(flatten(documents), recipe, SPECIAL, num_vocabulary, make_draws=make)
        rows = drawn.rows(0, len(drawn))
        names = ("tokens", "token_offsets", "boundary", "mlm_positions", "mlm_ids", "mlm_offsets", "nsp")
        return (getattr(rows, name).tolist() for name in names)

    left, right = list(arrays(in_python)), list(arrays(compiled))
    assert len(left[-1]) > 4096  # more than one batch of them
    assert left == right


@pytest.fixture
def chosen_anew() -> Iterator[None]:
    fastest.cache_clear()
    yield
    fastest.cache_clear()


@pytest.mark.usefixtures("chosen_anew")
def test_without_numba_draws_are_made_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "benchmarks.bert.prepare.compiled", raising=False)
    monkeypatch.delattr("benchmarks.bert.prepare.compiled", raising=False)
    make, how = fastest()
    assert make is PythonDraws
    assert "in Python" in how
    assert "numba" in how


@pytest.mark.usefixtures("chosen_anew")
def test_without_a_folder_for_compiled_code_draws_are_made_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    class Numba(ModuleType):
        __version__ = "0"

        def njit(self, *signature: object, cache: bool) -> None:
            raise RuntimeError("cannot cache function '_temper': no locator available for file 'compiled.py'")

    monkeypatch.setitem(sys.modules, "numba", Numba("numba"))
    monkeypatch.delitem(sys.modules, "benchmarks.bert.prepare.compiled", raising=False)
    monkeypatch.delattr("benchmarks.bert.prepare.compiled", raising=False)
    make, how = fastest()
    assert make is PythonDraws
    assert "cannot cache" in how
    assert "NUMBA_CACHE_DIR" in how


@WITH_NUMBA
@pytest.mark.usefixtures("chosen_anew")
def test_with_numba_draws_are_compiled() -> None:
    make, how = fastest()
    assert make is not PythonDraws
    assert "numba" in how


def drawn(instances: list[as_reference.Instance]) -> list[Drawn]:
    return [Drawn(each.tokens, each.boundary, each.positions, each.labels, each.is_random) for each in instances]


def yardstick(text: str, vocabulary: list[str], recipe: Recipe) -> list[as_reference.Instance]:
    ids = OrderedDict((entry, number) for number, entry in enumerate(vocabulary))
    return as_reference.make_instances(as_reference.read_documents(text, ids), recipe, ids)


@pytest.mark.parametrize(("seed", "same"), [(5, True), (6, False)], ids=["its seed", "another seed"])
def test_the_yardstick_of_the_bench_makes_the_oracles_samples(seed: int, same: bool) -> None:
    documents = "\n\n".join("\n".join(document) for document in make_documents(20, max_sentences=30))
    text = f"{documents}\r\n\u4e00Ab, c\u0301\n"
    vocabulary = make_vocabulary()
    recipe = Recipe(max_length=40, max_predictions=6, short_share=0.3, duplicates=2, seed=seed)
    expected = reference_samples(
        text.encode(), vocabulary, seed=5, max_length=40, max_predictions=6, short_share=0.3, duplicates=2
    )
    found = drawn(yardstick(text, vocabulary, recipe))
    assert (content_digest(found, vocabulary) == content_digest(expected, vocabulary)) is same


def test_the_yardsticks_features_are_padded() -> None:
    vocabulary = make_vocabulary()
    recipe = Recipe(max_length=40, max_predictions=6, duplicates=1)
    ids = OrderedDict((entry, number) for number, entry in enumerate(vocabulary))
    text = "\n\n".join("\n".join(document) for document in make_documents(5))
    for *columns, label in as_reference.features(yardstick(text, vocabulary, recipe), recipe, ids):
        assert [len(column) for column in columns] == [40, 40, 40, 6, 6, 6]
        assert sum(columns[1]) == max(place + 1 for place, there in enumerate(columns[1]) if there)
        assert label in (0, 1)
