"""A seed in, the draws of Python's `random` out: `draws.Draws` by code that numba compiles when this is imported.

The generator is the 32-bit Mersenne Twister (Matsumoto and Nishimura, ACM TOMACS 8, 1998) as Python's `random` drives
it. Its 624 words, the place of the next one and the 624 outputs made of them lie in one array, `state`.
"""

from __future__ import annotations

from random import Random

import numba
import numpy as np
from numba import njit

from benchmarks.bert.prepare.draws import KEPT, MASKED

NUMBA = numba.__version__

_WORDS = 624
_FAR = 397  # a new word is made of itself, its neighbour and the word so far on
_U = np.uint32  # of two uint32 numba makes a uint32, of one and a plain number an int64


@njit("void(uint32[::1])", cache=True)
def _temper(state):  # type: ignore[no-untyped-def]
    """The outputs of all words."""
    for place in range(_WORDS):
        word = state[place]
        word ^= word >> _U(11)
        word ^= (word << _U(7)) & _U(0x9D2C5680)
        word ^= (word << _U(15)) & _U(0xEFC60000)
        state[_WORDS + 1 + place] = word ^ (word >> _U(18))


@njit("void(uint32[::1])", cache=True)
def _renew(state):  # type: ignore[no-untyped-def]
    """The next 624 words, and their outputs."""
    for place in range(_WORDS):
        following = place + 1 if place < _WORDS - 1 else 0
        far = place + _FAR if place < _WORDS - _FAR else place + _FAR - _WORDS
        word = (state[place] & _U(0x80000000)) | (state[following] & _U(0x7FFFFFFF))
        state[place] = state[far] ^ (word >> _U(1)) ^ (_U(0x9908B0DF) * (word & _U(1)))
    _temper(state)
    state[_WORDS] = 0


@njit("int64(uint32[::1], int64)", cache=True)
def _bits(state, size):  # type: ignore[no-untyped-def]
    """`Random.getrandbits(size)`, for 1 to 32 bits."""
    if state[_WORDS] >= _WORDS:
        _renew(state)
    place = np.int64(state[_WORDS])
    state[_WORDS] = place + 1
    return np.int64(state[_WORDS + 1 + place]) >> (32 - size)


@njit("float64(uint32[::1])", cache=True)
def _random(state):  # type: ignore[no-untyped-def]
    """`Random.random()`: 53 bits of two outputs."""
    high = _bits(state, 27)
    return (high * 67108864.0 + _bits(state, 26)) / 9007199254740992.0


@njit("int64(uint32[::1], int64)", cache=True)
def _below(state, limit):  # type: ignore[no-untyped-def]
    """`Random.randrange(limit)`."""
    size = 0
    while limit >> size:
        size += 1
    draw = _bits(state, size)
    while draw >= limit:
        draw = _bits(state, size)
    return draw


@njit(["void(uint32[::1], uint16[::1])", "void(uint32[::1], int64[::1])"], cache=True)
def _shuffle(state, items):  # type: ignore[no-untyped-def]
    """`Random.shuffle(items)`. A draw that is too high swaps the last item with itself: cheaper than a branch."""
    last = len(items) - 1
    place = np.int64(state[_WORDS])  # kept at hand in this, the most frequent loop
    while last > 0:
        size = 0
        while (last + 1) >> size:
            size += 1
        smallest = max(1, (1 << (size - 1)) - 1)  # down to it the draws have `size` bits
        while last >= smallest:
            if place >= _WORDS:
                _renew(state)
                place = 0
            draw = np.int64(state[_WORDS + 1 + place]) >> (32 - size)
            place += 1
            fits = draw <= last
            other = draw if fits else last
            items[last], items[other] = items[other], items[last]
            last -= fits
    state[_WORDS] = place


@njit("UniTuple(int64, 2)(uint32[::1], int64)", cache=True)
def _heads(state, count):  # type: ignore[no-untyped-def]
    """`draws.heads`."""
    odd = even = 0
    for turn in range(count):
        head = _random(state) < 0.5
        odd += head and turn % 2 == 0
        even += head and turn % 2 == 1
    return odd, even


@njit(
    "void(uint32[::1], uint16[::1], uint32[::1], int64, int64, int64, int64, uint16[::1], uint32[::1], int64)",
    cache=True,
)
def _mask(state, room, by_place, a_size, b_size, count, num_vocabulary, positions, shown, first):  # type: ignore[no-untyped-def]
    """`Draws.mask`, into `positions` and `shown` from `first` on. `by_place` is all 0 before and after."""
    places = room[: a_size + b_size]
    for number in range(len(places)):
        places[number] = number + 1 if number < a_size else number + 2
    _shuffle(state, places)
    for place in places[:count]:
        entry = MASKED
        if _random(state) >= 0.8:
            entry = KEPT if _random(state) < 0.5 else _below(state, num_vocabulary)
        by_place[place] = entry + 1
    for place in range(1, a_size + b_size + 2):
        if by_place[place]:
            positions[first], shown[first] = place, by_place[place] - 1
            by_place[place] = 0
            first += 1


class CompiledDraws:
    """Draws by compiled code. `max_length` is that of a sample."""

    def __init__(self, seed: int, max_length: int) -> None:
        self._state = np.zeros(2 * _WORDS + 1, np.uint32)
        self._state[: _WORDS + 1] = Random(seed).getstate()[1]
        _temper(self._state)
        self._room, self._by_place = np.empty(max_length, np.uint16), np.zeros(max_length, np.uint32)
        self._positions = np.empty(max_length, np.uint16)
        self._shown = np.empty(max_length, np.uint32)
        self._num_masks = 0

    def state(self) -> tuple[int, ...]:
        return tuple(self._state[: _WORDS + 1].tolist())

    def random(self) -> float:
        return _random(self._state)

    def below(self, limit: int) -> int:
        return _below(self._state, limit)

    def heads(self, count: int) -> tuple[int, int]:
        return _heads(self._state, count)

    def order(self, count: int) -> np.ndarray:
        items = np.arange(count)
        _shuffle(self._state, items)
        return items

    def mask(self, a_size: int, b_size: int, count: int, num_vocabulary: int) -> None:
        first, self._num_masks = self._num_masks, self._num_masks + count
        if self._num_masks > len(self._shown):
            self._positions = np.resize(self._positions, 2 * self._num_masks)
            self._shown = np.resize(self._shown, 2 * self._num_masks)
        sizes = a_size, b_size, count, num_vocabulary
        _mask(self._state, self._room, self._by_place, *sizes, self._positions, self._shown, first)

    def take_masks(self) -> tuple[np.ndarray, np.ndarray]:
        positions, shown = self._positions[: self._num_masks].copy(), self._shown[: self._num_masks].copy()
        self._num_masks = 0
        return positions, shown
