"""Ranks without torch's agent meet at rank 0; who stays away is missed soon, with the numbers."""

from __future__ import annotations

import socket

import pytest
import torch

from benchmarks.bert.comm import group
from benchmarks.bert.comm.group import process_group
from benchmarks.bert.world import World, WorldError
from tests.support.ranks import RankFailedError, run_ranks


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def meet(rank: int, port: int, num_ranks: int) -> float:
    torch.distributed.destroy_process_group()  # the one that the test's own ranks have
    group._MEET_WITHIN_S = 3
    world = World(rank, num_ranks, rank, num_ranks, f"tcp://127.0.0.1:{port}")
    with process_group(world, torch.device("cpu"), timeout_s=20):
        total = torch.tensor(float(rank))
        torch.distributed.all_reduce(total)
        return float(total)


def test_ranks_meet_and_reduce() -> None:
    assert run_ranks(meet, 3, free_port(), 3) == [3.0, 3.0, 3.0]


def test_a_rank_that_stays_away_is_missed_with_the_numbers() -> None:
    with pytest.raises(RankFailedError, match=r"2 of 3 ranks have come to 127.0.0.1:\d+ within 3 s"):
        run_ranks(meet, 2, free_port(), 3, timeout_s=30)


def test_a_port_that_is_taken_is_named_with_the_way_out() -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        world = World(0, 1, 0, 1, f"tcp://127.0.0.1:{other.getsockname()[1]}")
        with pytest.raises(WorldError, match="MASTER_ADDR and MASTER_PORT choose another"):
            group._meet(world, str(world.rendezvous))
