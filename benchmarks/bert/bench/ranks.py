"""A function and a number of ranks in, it called on as many fresh processes of this machine, one report out.

Fresh, so that the memory of one measurement is not counted in the next.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.multiprocessing

from benchmarks.bert.comm.group import process_group
from benchmarks.bert.shutdown import end
from benchmarks.bert.trainer import choose_device
from benchmarks.bert.world import World

_TIMEOUT_S = 600


def on_ranks(num_ranks: int, device: str, num_threads: int, function: Callable[..., None], *args: Any) -> None:
    """`function(world, device, *args)` inside torch's group of `num_ranks`, each with `num_threads` on a CPU.

    What it raises on any rank is raised here as torch.multiprocessing's ProcessRaisedException.
    """
    rendezvous = f"tcp://127.0.0.1:{_free_port()}" if num_ranks > 1 else None
    torch.multiprocessing.spawn(_run, (num_ranks, rendezvous, device, num_threads, function, args), nprocs=num_ranks)


@contextmanager
def alone(device: torch.device) -> Iterator[World]:
    """The group of this process alone."""
    world = World(rank=0, num_ranks=1, local_rank=0, ranks_per_node=1, rendezvous=None)
    with process_group(world, device, _TIMEOUT_S):
        yield world


def _run(
    rank: int,
    num_ranks: int,
    rendezvous: str | None,
    device: str,
    num_threads: int,
    function: Callable[..., None],
    args: tuple,
) -> None:
    torch.set_num_threads(num_threads)
    chosen = choose_device(device, rank)
    world = World(rank, num_ranks, local_rank=rank, ranks_per_node=num_ranks, rendezvous=rendezvous)
    with process_group(world, chosen, _TIMEOUT_S):
        function(world, chosen, *args)
    end(0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
