"""A configuration and links' turns in, the seconds of steps of each clip variant on one of two ranks out.

Started by overlap.py: reads a request a line, rank 0 answers with a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from benchmarks.bert.comm.group import process_group
from benchmarks.bert.config import Config
from benchmarks.bert.data.batch import PackedBatch, synthetic_batch
from benchmarks.bert.profile import profile_of
from benchmarks.bert.shutdown import end
from benchmarks.bert.trainer import Trainer, build_trainer
from benchmarks.bert.warm_up import warm_up
from benchmarks.bert.world import World
from tools.bench.overlap_link import ADDRESSES

COMPUTE, ALL_REDUCE = "compute alone", "all-reduces alone"
VARIANTS = ("none", "bucket_before", "global_after", "global_before")
SUBJECTS = (COMPUTE, ALL_REDUCE, *VARIANTS)
_NUM_VOCABULARY = 2048
_SEQUENCE = 256  # tokens at most
_CPU = torch.device("cpu")
_TIMEOUT_S = 600


@dataclass(frozen=True)
class Sizes:
    num_layers: int
    hidden_size: int
    num_tokens: int  # of a rank's step
    bucket_mb: float

    def config(self, clip: str) -> Config:
        """The decoder and dropout's masks, which no all-reduce waits for, are kept small."""
        return Config(
            ranks_per_node=2,
            device="cpu",
            max_length=_SEQUENCE,
            num_layers=self.num_layers,
            hidden_size=self.hidden_size,
            num_heads=1 if self.hidden_size % 64 else self.hidden_size // 64,
            ffn_size=4 * self.hidden_size,
            dropout=0.0,
            clip=clip,
            bucket_mb=self.bucket_mb,
            batch_size=1,
            decay_steps=1_000_000,
        )

    def batch(self) -> PackedBatch:
        length = min(_SEQUENCE, self.num_tokens)
        return synthetic_batch(self.num_tokens // length, length, _NUM_VOCABULARY, num_masked=length * 15 // 100)


class Rank:
    """All that is measured, made once for all links."""

    def __init__(self, world: World, sizes: Sizes) -> None:
        self._world = world
        self._configs = {name: sizes.config(name) for name in VARIANTS}
        self._batch = sizes.batch()
        self._num_steps = 0
        trainers = {name: self._trainer(self._configs[name]) for name in VARIANTS}
        local = self._trainer(self._configs["none"])
        local.gradient.start_all_reduce = _no_all_reduce  # type: ignore[assignment, method-assign]
        self._trainers = trainers
        self._buckets = self._sizes_of_buckets(trainers["none"])
        self._work: dict[str, Callable[[], object]] = {
            COMPUTE: lambda: self._step(local),
            ALL_REDUCE: self._all_reduce,
        } | {name: lambda trainer=trainer: self._step(trainer) for name, trainer in trainers.items()}  # type: ignore[misc]

    def describe(self) -> dict[str, int]:
        return {
            "parameters": self._trainers["none"].model.num_parameters,
            "bytes": sum(bucket.nbytes for bucket in self._buckets),
            "buckets": len(self._buckets),
        }

    def measure(self, num_rounds: int, num_steps: int) -> dict[str, list[list[float]]]:
        """Seconds by subject, round and step; and of the all-reduces also of processor time.

        In each round every subject has a block of steps, the first of which is not counted; the order turns.
        """
        seconds: dict[str, list[list[float]]] = {name: [] for name in (*SUBJECTS, "processor")}
        for number in range(num_rounds):
            turn = number % len(SUBJECTS)
            for name in (*SUBJECTS[turn:], *SUBJECTS[:turn]):
                dist.barrier()
                self._work[name]()
                processor_s = time.process_time()
                seconds[name].append([_seconds(self._work[name]) for _ in range(num_steps)])
                if name == ALL_REDUCE:
                    seconds["processor"].append([(time.process_time() - processor_s) / num_steps])
        return seconds

    def trace(self, folder: Path) -> None:
        """Two steps of each variant into FOLDER/<variant>/rank_<r>.json."""
        for name, trainer in self._trainers.items():
            config = replace(self._configs[name], profile_start_step=1, profile_num_steps=2, profile_dir=folder / name)
            dist.barrier()
            with profile_of(config, trainer, self._world, 0) as profile:
                for step in (1, 2):
                    profile.before(step)
                    self._step(trainer)

    def _trainer(self, config: Config) -> Trainer:
        trainer = build_trainer(config, self._world, _CPU, seed=1, num_vocabulary=_NUM_VOCABULARY)
        warm_up(trainer, config)
        return trainer

    def _step(self, trainer: Trainer) -> None:
        self._num_steps += 1
        trainer.step(self._num_steps, [self._batch])

    def _sizes_of_buckets(self, trainer: Trainer) -> list[Tensor]:
        """Buffers like those that a step reduces."""
        found: list[Tensor] = []
        start = trainer.gradient.start_all_reduce

        def noted(index: int, gradient_P: Tensor) -> dist.Work:
            found.append(torch.zeros_like(gradient_P))
            return start(index, gradient_P)

        trainer.gradient.start_all_reduce = noted  # type: ignore[method-assign]
        self._step(trainer)
        del trainer.gradient.start_all_reduce
        return found

    def _all_reduce(self) -> None:
        for work in [dist.all_reduce(bucket, async_op=True) for bucket in self._buckets]:
            work.wait()


class _Done:
    """The handle of an all-reduce that has nothing to do."""

    def __init__(self, gradient_P: Tensor) -> None:
        self._gradient_P = gradient_P

    def wait(self) -> None: ...

    def get_future(self) -> Future[list[Tensor]]:
        future: Future[list[Tensor]] = Future()
        future.set_result([self._gradient_P])
        return future


def _no_all_reduce(index: int, gradient_P: Tensor) -> _Done:
    return _Done(gradient_P)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main(arguments: Sequence[str]) -> None:
    sizes, rank = Sizes(**json.loads(arguments[0])), int(arguments[1])
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    torch.set_num_threads(1)
    requests = (json.loads(line) for line in iter(sys.stdin.readline, ""))
    if (request := next(requests, None)) is None:
        return  # whoever asks is gone
    world = World(rank, 2, rank, 2, rendezvous=f"tcp://{ADDRESSES[0]}:29500")
    with process_group(world, _CPU, _TIMEOUT_S):
        measured = Rank(world, sizes)
        while request is not None:
            answer = measured.describe() | {"seconds": measured.measure(request["num_rounds"], request["num_steps"])}
            if request["traces"]:
                measured.trace(Path(request["traces"]))
            if world.is_main:
                print(json.dumps(answer), flush=True)
            request = next(requests, None)
    end(0)


if __name__ == "__main__":
    main(sys.argv[1:])
