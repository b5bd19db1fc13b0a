"""A world in, torch's process group and what all ranks agree on out."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist

from benchmarks.bert.complaint import describe
from benchmarks.bert.config import MAX_SEED
from benchmarks.bert.refusals import REFUSALS
from benchmarks.bert.world import World, WorldError

_Found = TypeVar("_Found")

_MEET_WITHIN_S = 45  # hundreds of nodes may start seconds apart; a rank that is missing is to be known soon


@contextmanager
def process_group(world: World, device: torch.device, timeout_s: int) -> Iterator[None]:
    """torch's default group. After an error it is left as it is: gloo cannot abort, and taking it down could hang."""
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"
    timeout = timedelta(seconds=timeout_s)
    if world.rendezvous == "env://":  # torch's agent has brought the ranks together
        dist.init_process_group(backend, init_method=world.rendezvous, timeout=timeout)
    else:
        store = dist.HashStore() if world.rendezvous is None else _meet(world, world.rendezvous)
        dist.init_process_group(backend, store=store, rank=world.rank, world_size=world.num_ranks, timeout=timeout)
    yield
    dist.destroy_process_group()


def _meet(world: World, rendezvous: str) -> dist.Store:
    """The store that rank 0 serves, once every rank is there. Raises WorldError with the numbers if not all come."""
    host, _, port = rendezvous.removeprefix("tcp://").rpartition(":")
    patience = timedelta(seconds=_MEET_WITHIN_S)
    try:
        store = dist.TCPStore(host, int(port), is_master=world.is_main, timeout=patience, wait_for_workers=False)
    except (RuntimeError, ValueError) as error:  # DistStoreError and DistNetworkError among them
        raise WorldError(
            f"rank {world.rank}: no rendezvous at {host}:{port} within {_MEET_WITHIN_S} s; MASTER_ADDR and MASTER_PORT "
            f"choose another, GLOO_SOCKET_IFNAME the interface ({str(error).splitlines()[0]})"
        ) from error
    deadline = time.monotonic() + _MEET_WITHIN_S
    num_met = store.add("met", 1)
    while num_met < world.num_ranks:
        if time.monotonic() > deadline:
            raise WorldError(
                f"{num_met} of {world.num_ranks} ranks have come to {host}:{port} within {_MEET_WITHIN_S} s; "
                "were all started?"
            )
        time.sleep(0.05)
        num_met = store.add("met", 0)
    return store


class OtherRankError(RuntimeError):
    """This rank failed after, and most likely because, another one did; the text is that one's reason."""

    @property
    def kind(self) -> str:
        """The name of the other one's error."""
        return str(self).split(": ")[1]


@contextmanager
def first_failure_named(rank: int) -> Iterator[None]:
    """Tell the other ranks why this one fails; raise OtherRankError in place of an error that came after another's.

    Otherwise all that a surviving rank knows is that a connection closed.
    """
    store = dist.distributed_c10d._get_default_store()
    try:
        yield
    except Exception as error:
        own = f"rank {rank}: {describe(error)}"
        try:
            first = store.compare_set("first_failure", "", own).decode()
        except dist.DistError:  # who serves the store is gone already
            first = own
        if first != own:
            raise OtherRankError(first) from error
        raise


def agree_on_seed(seed: int) -> int:
    """Rank 0's seed on every rank: the one given, or for a negative one a draw from the operating system."""
    agreed = [seed if seed >= 0 else secrets.randbelow(MAX_SEED + 1)]
    dist.broadcast_object_list(agreed, src=0)
    return agreed[0]


def everywhere(find: Callable[[], _Found]) -> _Found:
    """What `find` gives on this rank; where it raises one of REFUSALS on any, that of the first such on every rank.

    Collective. For what a rank finds on its node's own disk: the others would wait for it in vain. The ranks that it
    concerns are named unless it concerns all.
    """
    found, refusal = None, None
    try:
        found = find()
    except REFUSALS as error:
        refusal = error
    refusals: list[Exception | None] = [None] * dist.get_world_size()
    dist.all_gather_object(refusals, refusal)
    first = next((each for each in refusals if each is not None), None)
    if first is None:
        return cast(_Found, found)
    ranks = [rank for rank, each in enumerate(refusals) if str(each) == str(first)]
    raise type(first)(str(first) if len(ranks) == len(refusals) else f"ranks {ranks}: {first}")


def check_agreement(known: object) -> None:
    """Raise WorldError on every rank, naming those whose `known` differs from rank 0's.

    Every rank computes the plan by itself, so all must hold the same configuration and the same data.
    """
    digest = hashlib.sha256(json.dumps(known, default=str, sort_keys=True).encode()).hexdigest()
    digests = [""] * dist.get_world_size()
    dist.all_gather_object(digests, digest)
    if others := [rank for rank, other in enumerate(digests) if other != digests[0]]:
        raise WorldError(
            f"ranks {others} differ from rank 0 in configuration, data or library versions; start all from one place"
        )
