"""A `random.Random` in, its own draws out, faster: what randrange, shuffle and random() < 0.5 would have returned.

Each function leaves the generator where the method that it stands for would have left it (tests/unit/test_samples.py
compares both), so that samples stay the reference's. The facts behind it: below 2**32, `randrange(n)` calls
`getrandbits(n.bit_length())` until it is below n, one 32-bit output a call; `random()` takes two outputs, and the first
output's highest bit is the result's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from random import Random

import numpy as np

Bits = Callable[[int], int]  # Random.getrandbits

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
