"""A rank's plan in, the same plan out, some steps behind what the kernel was asked to read for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import numpy as np

WINDOW = 64  # steps


def read_ahead(
    plan: Iterable[np.ndarray], prefetch: Callable[[np.ndarray], None], num_steps: int = WINDOW
) -> Iterator[np.ndarray]:
    """Hand out a plan's rows; one thread has called `prefetch` on each, and goes on to up to `num_steps` coming ones.

    What `prefetch` raises is raised at its row.
    """
    rows = iter(plan)
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as reader:

        def ask(row_K: np.ndarray) -> tuple[np.ndarray, Future[None]]:
            return row_K, reader.submit(prefetch, row_K)

        coming = deque(ask(row_K) for row_K in islice(rows, num_steps))
        try:
            while coming:
                row_K, asked = coming.popleft()
                asked.result()
                coming.extend(ask(row_K) for row_K in islice(rows, 1))
                yield row_K
        finally:
            for _, asked in coming:
                asked.cancel()
