"""A seed in, the draws of Python's `random` out: pure functions, and a generator that a recipe of samples draws from.

Each function leaves the generator where the method that it stands for would have left it (tests/unit/test_draws.py and
test_samples_reference.py compare both), so that samples stay the reference's. The facts behind it: below 2**32,
`randrange(n)` calls `getrandbits(n.bit_length())` until it is below n, one 32-bit output a call; `random()` takes two
outputs, and the first output's highest bit is the result's.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import cache, lru_cache
from random import Random
from typing import Protocol

import numpy as np

Bits = Callable[[int], int]  # Random.getrandbits

KEPT, MASKED = 1 << 16, 1 << 17  # what a masked place shows, where it is no random entry: its own token, [MASK]

_FEW = 32  # so many coins are drawn one by one as fast as at once
_AT_ONCE = 1 << 20


def below(limit: int, getrandbits: Bits) -> int:
    """`Random.randrange(limit)`."""
    size = limit.bit_length()
    draw = getrandbits(size)
    while draw >= limit:
        draw = getrandbits(size)
    return draw


def shuffle_front(items: list[int], count: int, getrandbits: Bits) -> None:
    """`Random.shuffle(items)`, of which only the first `count` items are put into place; the others are lost."""
    for size, lost, kept in _turns(len(items), count):
        for last in lost:
            draw = getrandbits(size)
            while draw > last:
                draw = getrandbits(size)
            items[draw] = items[last]  # what was drawn is not looked at again
        for last in kept:
            draw = getrandbits(size)
            while draw > last:
                draw = getrandbits(size)
            items[last], items[draw] = items[draw], items[last]


@lru_cache(maxsize=4096)
def _turns(length: int, count: int) -> list[tuple[int, range, range]]:
    """(bits of a draw, items from `count` on, items before it) of a shuffle, from the last item to the second."""
    turns = []
    while length > 1:
        size = length.bit_length()
        smallest = 1 << (size - 1)  # down to so many items the draws have `size` bits
        lost = max(smallest - 1, count)
        turns.append((size, range(length - 1, lost - 1, -1), range(min(length, lost) - 1, smallest - 2, -1)))
        length = smallest - 1
    return turns


def heads(count: int, rng: Random) -> tuple[int, int]:
    """How many of `count` calls of random() are below 0.5: of the first, third, fifth … and of the others."""
    if count <= _FEW:
        coins = [rng.random() < 0.5 for _ in range(count)]
        return sum(coins[::2]), sum(coins[1::2])
    odd = even = 0
    for start in range(0, count, _AT_ONCE):  # an even number, so that the turns go on
        size = min(_AT_ONCE, count - start)
        outputs = np.frombuffer(rng.getrandbits(64 * size).to_bytes(8 * size, "little"), "<u4")[::2]
        low = outputs < 1 << 31
        odd += int(np.count_nonzero(low[::2]))
        even += int(np.count_nonzero(low[1::2]))
    return odd, even


class Draws(Protocol):
    """A generator in the state of Python's `random`, and the masks that it has drawn since they were last taken."""

    def random(self) -> float:
        """`Random.random()`."""

    def below(self, limit: int) -> int:
        """`Random.randrange(limit)`, for a limit below 2**32."""

    def heads(self, count: int) -> tuple[int, int]:
        """The function `heads`."""

    def order(self, count: int) -> np.ndarray:
        """Numbers from 0 to before `count` as `Random.shuffle` leaves them, int64."""

    def mask(self, a_size: int, b_size: int, count: int, num_vocabulary: int) -> None:
        """Draw `count` places of [CLS] A [SEP] B [SEP] and what each shows: 80 % MASKED, 10 % KEPT, 10 % an entry."""

    def take_masks(self) -> tuple[np.ndarray, np.ndarray]:
        """All places (uint16), ascending within each sample, and what they show (uint32); none is left."""

    def state(self) -> tuple[int, ...]:
        """`Random.getstate()[1]`."""


class PythonDraws:
    """Draws in plain Python. `max_length` is that of a sample."""

    def __init__(self, seed: int, max_length: int) -> None:
        self._rng = Random(seed)
        self.random, self._bits = self._rng.random, self._rng.getrandbits
        self._places = list(range(max_length))
        self._begin()

    def _begin(self) -> None:
        self._sizes = array("q")  # places of each sample
        self._positions = array("H")  # in the order of the draws
        self._random_at: list[int] = []  # which of them show a random entry,
        self._random_ids: list[int] = []  # namely these,
        self._kept_at: list[int] = []  # and which their own

    def state(self) -> tuple[int, ...]:
        return self._rng.getstate()[1]

    def below(self, limit: int) -> int:
        return below(limit, self._bits)

    def heads(self, count: int) -> tuple[int, int]:
        return heads(count, self._rng)

    def order(self, count: int) -> np.ndarray:
        items = list(range(count))
        shuffle_front(items, count, self._bits)
        return np.array(items, np.int64)

    def mask(self, a_size: int, b_size: int, count: int, num_vocabulary: int) -> None:
        random = self.random
        places = self._places[1 : a_size + 1] + self._places[a_size + 2 : a_size + b_size + 2]
        shuffle_front(places, count, self._bits)
        first = len(self._positions)
        self._sizes.append(count)
        self._positions.extend(places[:count])
        for at in range(first, first + count):
            if random() >= 0.8:
                if random() < 0.5:
                    self._kept_at.append(at)
                else:
                    self._random_at.append(at)
                    self._random_ids.append(below(num_vocabulary, self._bits))

    def take_masks(self) -> tuple[np.ndarray, np.ndarray]:
        shown = np.full(len(self._positions), MASKED, np.uint64)
        shown[self._random_at] = self._random_ids
        shown[self._kept_at] = KEPT
        samples = np.arange(len(self._sizes), dtype=np.uint64).repeat(self._sizes)
        # Numbers of sample, place and entry side by side: to sort them is to sort the places within each sample.
        ordered = np.sort(samples << 34 | np.array(self._positions, np.uint64) << 18 | shown)
        self._begin()
        return (ordered >> 18 & 0xFFFF).astype(np.uint16), (ordered & 0x3FFFF).astype(np.uint32)


@cache
def fastest() -> tuple[Callable[[int, int], Draws], str]:
    """What makes draws from a seed and the longest sample's length, and words that say so: compiled where numba is."""
    try:
        from benchmarks.bert.prepare import compiled
    except ImportError:
        return PythonDraws, "samples are drawn in Python, at half the speed, as numba is not installed"
    except (RuntimeError, OSError, EOFError) as error:  # no folder for what numba compiles, a full or a broken one
        return PythonDraws, f"samples are drawn in Python: {error}; NUMBA_CACHE_DIR names a folder for compiled code"
    return compiled.CompiledDraws, f"samples are drawn by code that numba {compiled.NUMBA} compiled"
