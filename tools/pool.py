"""A number in, threads for as many trials at a time out, and an end of all of them when one thing goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def trial_pool(jobs: int) -> Iterator[tuple[ThreadPoolExecutor, Callable[[], bool]]]:
    """The threads, and whether what they run shall end, for `run_trial` to ask.

    It is true from the first exception of the block on, a signal's too: leaving waits for all threads, and a trial that
    did not know would take its hours.
    """
    ending = threading.Event()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            yield pool, ending.is_set
        except BaseException:
            ending.set()
            raise
