"""A number of processes in, an executor out: of this machine, or of the ranks that mpirun started.

`mpirun -np N python -m mpi4py.futures -m benchmarks.bert.prepare …` runs the command in rank 0 and its work in the
others.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import TypeVar

_AHEAD = 4  # tasks for each process

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def executor(num_processes: int) -> Executor:
    """Workers that end with this process."""
    if (num_ranks := num_mpi_workers()) is not None:
        from mpi4py.futures import MPIPoolExecutor

        return MPIPoolExecutor(max_workers=num_ranks)
    return ProcessPoolExecutor(num_processes, get_context("spawn"), initializer=_die_with_parent)


def num_mpi_workers() -> int | None:
    """Ranks that wait for work, or None where the command was not started by `python -m mpi4py.futures`."""
    if "mpi4py.futures" not in sys.modules:  # nothing else imports it
        return None
    num_ranks: int = sys.modules["mpi4py.MPI"].COMM_WORLD.Get_size()
    return num_ranks - 1 if num_ranks > 1 else None


def each(
    work: Callable[[_Task], _Result], tasks: Iterable[_Task], *, num_processes: int
) -> Iterator[tuple[int, _Result]]:
    """`work` of every task, in parallel: the task's number and its result, as they are done.

    The first error is raised at once; tasks that have not begun are dropped.
    """
    with executor(num_processes) as pool:
        futures = {pool.submit(work, task): number for number, task in enumerate(tasks)}
        try:
            for future in as_completed(futures):
                yield futures.pop(future), future.result()  # whose result is the caller's to keep
        finally:
            for future in futures:
                future.cancel()


def in_order(work: Callable[[_Task], _Result], tasks: Iterable[_Task], *, num_processes: int) -> Iterator[_Result]:
    """`work` of every task, in parallel, in the tasks' order; only a few tasks are taken ahead of their results."""
    with executor(num_processes) as pool:
        waiting: deque[Future[_Result]] = deque()
        try:
            for task in tasks:
                waiting.append(pool.submit(work, task))
                if len(waiting) > _AHEAD * (num_mpi_workers() or num_processes):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _die_with_parent() -> None:
    """End this worker when its parent is killed; the pool alone would let it wait for work for ever."""

    def watch() -> None:
        if parent := parent_process():
            parent.join()
            os._exit(1)

    Thread(target=watch, daemon=True).start()
