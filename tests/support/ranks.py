"""A function in, what it returns on each of several ranks out; a rank that fails fails the test by its traceback."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# A server that has torch already and forks: a rank starts in a tenth of a second instead of several.
_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(["pytest", "torch", "torch._dynamo", "benchmarks.bert.train"])


class RankFailedError(AssertionError):
    """A rank raised, died or took too long; the message names it."""


def run_ranks(function: Callable[..., Any], num_ranks: int, *args: Any, timeout_s: float = 60.0) -> list[Any]:
    """`function(rank, *args)` on `num_ranks` gloo ranks; what each returned, in the order of ranks.

    The function must be importable, its arguments and result picklable.
    """
    with tempfile.TemporaryDirectory() as folder:
        return _run(_in_group, num_ranks, (Path(folder) / "store", num_ranks, function, args), timeout_s)


def run_trial(
    environments: list[dict[str, str]], hook: Callable[[], Any] | None = None, *, timeout_s: float = 90.0
) -> list[tuple[int, str, Any]]:
    """One rank of `train.main` per environment, started as torchrun would: each one's (exit status, stderr, result).

    `hook` is called on every rank before; what it returns is called after, and gives the result.
    """
    num_ranks = len(environments)
    launcher = {
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
    }
    own = [launcher | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_ranks)]
    environments = [theirs | ours for theirs, ours in zip(environments, own, strict=True)]
    return _run(_train, num_ranks, (environments, hook), timeout_s)


def _run(function: Callable[..., Any], num_ranks: int, args: tuple[Any, ...], timeout_s: float) -> list[Any]:
    connections, processes = [], []
    try:
        for rank in range(num_ranks):
            ours, theirs = _CONTEXT.Pipe()
            process = _CONTEXT.Process(target=_rank, args=(theirs, function, rank, args), daemon=True)
            process.start()
            theirs.close()
            connections.append(ours)
            processes.append(process)
        return _collect(connections, timeout_s)
    finally:
        for process in processes:
            process.kill()
            process.join()
        for connection in connections:
            connection.close()


def _collect(connections: list[Connection], timeout_s: float) -> list[Any]:
    results: dict[int, Any] = {}
    deadline = time.monotonic() + timeout_s
    while waiting := [each for rank, each in enumerate(connections) if rank not in results]:
        ready = wait(waiting, max(0.0, deadline - time.monotonic()))
        if not ready:
            late = sorted(set(range(len(connections))) - set(results))
            raise RankFailedError(f"ranks {late} have not finished after {timeout_s} s")
        for connection in ready:
            rank = connections.index(connection)
            try:
                failed, result = pickle.loads(connection.recv_bytes())
            except EOFError:
                raise RankFailedError(f"rank {rank} died") from None
            if failed:
                raise RankFailedError(f"rank {rank}:\n{result}")
            results[rank] = result
    return [results[rank] for rank in range(len(connections))]


def _rank(connection: Connection, function: Callable[..., Any], rank: int, args: tuple[Any, ...]) -> None:
    """Send (whether it failed, result or traceback), then stay until killed: no peer is to see this rank leave."""
    torch.set_num_threads(1)
    try:
        answer = (False, function(rank, *args))
    except BaseException:
        answer = (True, traceback.format_exc())
    connection.send_bytes(pickle.dumps(answer))
    with contextlib.suppress(EOFError):
        connection.recv_bytes()
    os._exit(0)


def _in_group(rank: int, store: Path, num_ranks: int, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks)
    return function(rank, *args)


def _train(rank: int, environments: list[Mapping[str, str]], hook: Callable[[], Any] | None) -> tuple[int, str, Any]:
    from benchmarks.bert import train  # it reads the environment when it is run, not when it is imported

    os.environ.clear()
    os.environ.update(environments[rank])
    with tempfile.TemporaryFile("w+") as stderr:
        os.dup2(stderr.fileno(), sys.stderr.fileno())
        after = hook() if hook else None
        status = train.main()
        sys.stderr.flush()
        stderr.seek(0)
        return status, stderr.read(), after() if after else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
