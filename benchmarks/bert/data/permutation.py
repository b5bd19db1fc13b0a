"""A number of things and a key in, their order at random out, any part of it at once and without storing it.

A Feistel network on pairs (i, j), i below A and j below 2^w, with A * 2^w just above the number of things: i is
shifted by a hash of j, then j is flipped by a hash of i, and again. Each of these can be undone, so it is a bijection
whatever the hash. What falls on one of the few pairs too many goes through it again until it does not (cycle walking,
Black and Rogaway, *Ciphers with Arbitrary Finite Domains*). Only 32-bit integer operations: the order is the same on
every machine and with every version of NumPy.
"""

from __future__ import annotations

import numpy as np

_ROUNDS = 3
_BLOCK = 1 << 14  # numbers at a time: what a round needs stays in the processor's cache
_U32 = np.uint32


def key_of(*words: int) -> np.ndarray:
    """A key from whole numbers of 0 and more."""
    return np.random.SeedSequence(words).generate_state(2 * _ROUNDS, _U32)


def hashed(values: np.ndarray, word: np.uint32) -> np.ndarray:
    """32 bits for each uint32, of which the high ones are the best mixed (MurmurHash3's last step)."""
    x = values + word
    x ^= x >> _U32(16)
    x *= _U32(0x85EBCA6B)
    x ^= x >> _U32(13)
    x *= _U32(0xC2B2AE35)
    return x


class Permutation:
    """The numbers from 0 to `count` - 1 in the order of `key`, a function of the place."""

    def __init__(self, count: int, key: np.ndarray) -> None:
        """Raises ValueError for a count that is not from 1 to 2^31."""
        if not 1 <= count <= 1 << 31:
            raise ValueError(f"a permutation of {count}, expected 1 to {1 << 31}")
        self.count = count
        width = max(1, (count - 1).bit_length() // 2)
        self._width = _U32(width)
        self._rows = _U32(-(-count >> width))
        self._key = key

    def __call__(self, places: np.ndarray) -> np.ndarray:
        """What stands at each of `places`, int64 of the same shape; places are from 0 to `count` - 1."""
        flat = np.ascontiguousarray(places, _U32).ravel()
        found = np.empty(len(flat), np.int64)
        for start in range(0, len(flat), _BLOCK):
            block = self._once(flat[start : start + _BLOCK])
            outside = np.flatnonzero(block >= self.count)
            while len(outside):
                block[outside] = self._once(block[outside])
                outside = outside[block[outside] >= self.count]
            found[start : start + _BLOCK] = block
        return found.reshape(np.shape(places))

    def _once(self, numbers: np.ndarray) -> np.ndarray:
        i, j = numbers >> self._width, numbers & ((_U32(1) << self._width) - _U32(1))
        for word_i, word_j in self._key.reshape(-1, 2):
            i += ((hashed(j, word_i) >> _U32(16)) * self._rows) >> _U32(16)  # below A: 16 bits scaled to A
            i = np.minimum(i, i - self._rows)  # modulo A: below zero means huge
            j ^= hashed(i, word_j) >> (_U32(32) - self._width)
        return (i << self._width) | j
