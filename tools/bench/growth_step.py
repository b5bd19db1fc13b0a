"""A configuration and stages in, the seconds of a step of each on one rank, and what it keeps and reduces, out.

Started by growth.py with one of as many processes as there are ranks: reads a request a line, rank 0 answers with a
line of JSON. One process has no group to speak of, so no all-reduce.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.bert.comm.group import process_group
from benchmarks.bert.config import Config, load
from benchmarks.bert.data.batch import PackedBatch, synthetic_batch
from benchmarks.bert.growth.relative import sample_of
from benchmarks.bert.growth.stages import plan_of
from benchmarks.bert.loss import pretraining_loss
from benchmarks.bert.shutdown import end
from benchmarks.bert.trainer import Trainer, build_trainer
from benchmarks.bert.warm_up import warm_up
from benchmarks.bert.world import World

_CPU = torch.device("cpu")
_TIMEOUT_S = 600


@dataclass(frozen=True)
class Work:
    variables: dict[str, str]
    stages: list[tuple[str, str, int]]  # of each its name, a plan that has it, its number there
    num_vocabulary: int
    num_ranks: int
    rendezvous: str | None

    def config(self, plan: str) -> Config:
        """The same global batch, shared out among the ranks."""
        batch_size = int(self.variables["BATCH_SIZE"]) // self.num_ranks
        own = {"GROWTH": plan, "RANKS_PER_NODE": str(self.num_ranks), "BATCH_SIZE": str(batch_size)}
        return load(self.variables | own)


@dataclass(frozen=True)
class Facts:
    parameters_trained: int
    bytes_reduced: int
    num_buckets: int
    bytes_kept: int  # by forward, for backward


class Rank:
    """A trainer in each stage, all made before anything is measured."""

    def __init__(self, work: Work, world: World) -> None:
        self._batches: dict[str, PackedBatch] = {}
        self._trainers: dict[str, Trainer] = {}
        for name, plan, number in work.stages:
            config = work.config(plan)
            first_step = plan_of(config).stages[number].first_step
            trainer = build_trainer(config, world, _CPU, 1, work.num_vocabulary, num_done=first_step)
            warm_up(trainer, config)
            self._trainers[name] = trainer
            sample = sample_of(config)
            self._batches[name] = synthetic_batch(
                config.batch_size, sample.num_tokens, work.num_vocabulary, sample.num_masked
            )

    def facts(self) -> dict[str, Facts]:
        return {name: _facts(trainer, self._batches[name]) for name, trainer in self._trainers.items()}

    def measure(self, num_rounds: int, num_steps: int) -> dict[str, list[list[float]]]:
        """Seconds by stage, round and step: a block of steps each in every round, the first not counted.

        The order turns.
        """
        names = list(self._trainers)
        seconds: dict[str, list[list[float]]] = {name: [] for name in names}
        for number in range(num_rounds):
            turn = number % len(names)
            for name in (*names[turn:], *names[:turn]):
                dist.barrier()
                self._step(name)
                seconds[name].append([self._step(name) for _ in range(num_steps)])
        return seconds

    def _step(self, name: str) -> float:
        started = time.perf_counter()
        self._trainers[name].step(1, [self._batches[name]])
        return time.perf_counter() - started


def _facts(trainer: Trainer, batch: PackedBatch) -> Facts:
    training = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
    return Facts(
        sum(parameter.numel() for parameter in training),
        sum(parameter.nbytes for parameter in training),
        trainer.gradient.num_buckets,
        kept_bytes(trainer, batch),
    )


def kept_bytes(trainer: Trainer, batch: PackedBatch) -> int:
    """Memory of all that a forward pass keeps for backward, without the weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in trainer.model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = pretraining_loss(trainer.model(batch), batch)
    del loss  # until here it held what was noted, so that no two share an address
    return sum(kept.values())


@contextmanager
def ranks(work: Work, rank: int) -> Iterator[Rank]:
    world = World(rank, work.num_ranks, rank, work.num_ranks, rendezvous=work.rendezvous)
    with process_group(world, _CPU, _TIMEOUT_S):
        yield Rank(work, world)


def answer(measured: Rank, request: Mapping[str, int]) -> str:
    facts = {name: asdict(each) for name, each in measured.facts().items()}
    return json.dumps({"facts": facts, "seconds": measured.measure(request["num_rounds"], request["num_steps"])})


def main(arguments: Sequence[str]) -> None:
    work, rank = Work(**json.loads(arguments[0])), int(arguments[1])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    requests = (json.loads(line) for line in iter(sys.stdin.readline, ""))
    if (request := next(requests, None)) is None:
        return  # whoever asks is gone
    with ranks(work, rank) as measured:
        while request is not None:
            said = answer(measured, request)
            if rank == 0:
                print(said, flush=True)
            request = next(requests, None)
    end(0)


if __name__ == "__main__":
    main(sys.argv[1:])
