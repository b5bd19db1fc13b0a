"""One configuration and a device in, lines on the speed of our training step out: see step.py, which prints them.

The step is the run's own (trainer.py), on made-up tokens whose lengths follow the benchmark's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import torch

from benchmarks.bert.bench.clock import BACKWARD, FORWARD, PartClock, Section
from benchmarks.bert.bench.configurations import sizes
from benchmarks.bert.bench.lengths import representative
from benchmarks.bert.bench.made_up import made_up_batches
from benchmarks.bert.bench.parts import OPTIMIZER, PARTS, install, start_step
from benchmarks.bert.bench.products import Products, stated_rate
from benchmarks.bert.bench.timer import Timer, peak_memory_bytes
from benchmarks.bert.config import Config
from benchmarks.bert.data.batch import PackedBatch, synthetic_batch
from benchmarks.bert.model.bert import BertShape
from benchmarks.bert.model.flops import packed_flops, padded_flops
from benchmarks.bert.optim.sharded import state_bytes
from benchmarks.bert.trainer import DTYPES, Trainer, build_trainer
from benchmarks.bert.warm_up import warm_up
from benchmarks.bert.world import World

_WARM_UP = 2
_MEBIBYTE = 2**20


@dataclass(frozen=True)
class Plan:
    """What to measure one configuration with."""

    name: str
    shape: BertShape
    num_steps: int
    batch_size: int  # samples per rank
    precision: str
    attention: str
    fusion: str
    last_layer: str
    share_L: np.ndarray  # of sample lengths
    optimizer: str
    versus_padded: bool
    versus_sharded: bool

    def config(self, device: torch.device) -> Config:
        return Config(
            device=device.type,
            **sizes(self.shape),
            precision=self.precision,
            attention=self.attention,
            fusion=self.fusion,
            last_layer=self.last_layer,
            optimizer=self.optimizer,
            batch_size=self.batch_size,
            decay_steps=1_000_000,
        )

    def batches(self, world: World, device: torch.device) -> Iterator[PackedBatch]:
        """The warm-up's and the measured ones: each step of the whole epoch holds the lengths' mix."""
        num_samples = self.batch_size * world.num_ranks * (_WARM_UP + self.num_steps)
        lengths = representative(self.share_L, num_samples, self.shape.max_length)
        for batch in made_up_batches(
            lengths, self.batch_size, self.shape.num_vocabulary, rank=world.rank, num_ranks=world.num_ranks
        ):
            yield batch.to(device)


def measure(world: World, device: torch.device, plan: Plan) -> None:
    """All of one configuration; rank 0 prints its lines as they are known."""
    timer, config = Timer(device, world.num_ranks), plan.config(device)
    trainer = build_trainer(config, world, device, seed=1, num_vocabulary=plan.shape.num_vocabulary)
    warm_up(trainer, config)
    first, *others = plan.batches(world, device)
    batches = others[_WARM_UP - 1 :]
    trainer.step(1, [first])
    say = print if world.is_main else _nothing
    say(_title(plan, world, device, timer, trainer), flush=True)
    say(_line(plan.name, _speed(plan, world, device, timer, trainer, batches)), flush=True)
    if plan.versus_padded:
        say(_line(plan.name, _compare(plan, config, timer, trainer, batches)), flush=True)
    if plan.versus_sharded:
        say(_line(plan.name, _compare_sharded(plan, config, world, timer, trainer, batches)), flush=True)
    for text in _parts(device, timer, trainer, batches):
        say(_line(plan.name, text), flush=True)


def _nothing(*_: object, **__: object) -> None: ...


def _line(name: str, text: str) -> str:
    return f"{name:6} {text}"


def _title(plan: Plan, world: World, device: torch.device, timer: Timer, trainer: Trainer) -> str:
    shape = plan.shape
    threads = f", {torch.get_num_threads()} thread(s) each" if device.type == "cpu" else ""
    return _line(
        plan.name,
        f"{shape.num_layers} layers x {shape.hidden_size}, {shape.num_heads} heads, dropout {shape.dropout}, "
        f"{plan.precision}, {trainer.model.kernels.name}, last layer {plan.last_layer}; batch {plan.batch_size}, "
        f"{world.num_ranks} rank(s) on {device.type}{threads}; median of {plan.num_steps} steps, {timer.name}",
    )


def _speed(
    plan: Plan, world: World, device: torch.device, timer: Timer, trainer: Trainer, batches: Sequence[PackedBatch]
) -> str:
    tokens = round(float(np.mean([sum(batch.layout.lengths) for batch in batches])))
    dtype = DTYPES[plan.precision]
    products = Products(tokens, plan.shape.hidden_size, plan.shape.ffn_size, device, dtype)
    products.rate(timer.seconds)
    steps_s, rates, utilisations = [], [], []
    for number, batch in enumerate(batches, start=1):
        rate = stated_rate(device, dtype) or products.rate(timer.seconds)
        step_s = timer.seconds(lambda number=number, batch=batch: trainer.step(number, [batch]))  # type: ignore[misc]
        steps_s.append(step_s)
        rates.append(rate)
        utilisations.append(packed_flops(plan.shape, batch, plan.last_layer) / step_s / rate)
    flops = float(np.mean([packed_flops(plan.shape, batch, plan.last_layer) for batch in batches])) / plan.batch_size
    step_s = median(steps_s)
    steps_per_s = world.num_ranks / step_s  # of all ranks together
    return (
        f"{tokens * steps_per_s:.0f} tokens/s, {plan.batch_size * steps_per_s:.2f} samples/s, "
        f"{flops / 1e9:.3f} GFLOP/sample, MFU {median(utilisations):.3f} of {median(rates) / 1e9:.1f} GFLOP/s, "
        f"peak memory {peak_memory_bytes(device) / _MEBIBYTE:.0f} MiB"
    )


def _compare(plan: Plan, config: Config, timer: Timer, trainer: Trainer, batches: Sequence[PackedBatch]) -> str:
    """Ours and the padded step in turn. `bound` is the ratio of their FLOPs: the ratio if all ran at the same rate."""
    from benchmarks.bert.bench.exact import padded
    from benchmarks.bert.bench.padded import PaddedTrainer  # the rest of the command does without transformers

    other = PaddedTrainer(plan.shape, config, trainer)
    other.warm_up(padded(synthetic_batch(1, 8, plan.shape.num_vocabulary, 1).to(trainer.device)))
    ratios, bounds, seconds = [], [], []
    for number, batch in enumerate(batches, start=1):
        inputs = padded(batch)
        ours_s = timer.seconds(lambda number=number, batch=batch: trainer.step(number, [batch]))  # type: ignore[misc]
        padded_s = timer.seconds(lambda inputs=inputs: other.step(inputs))  # type: ignore[misc]
        num_sequences, length = inputs["input_ids"].shape
        bounds.append(
            padded_flops(plan.shape, num_sequences, length) / packed_flops(plan.shape, batch, plan.last_layer)
        )
        ratios.append(padded_s / ours_s)
        seconds.append(padded_s)
    quotient = median(ratio / bound for ratio, bound in zip(ratios, bounds, strict=True))
    return (
        f"ratio {median(ratios):.2f}, bound {median(bounds):.2f}, ratio/bound {quotient:.2f}; "
        f"padded {plan.batch_size / median(seconds):.2f} samples/s"
    )


def _compare_sharded(
    plan: Plan, config: Config, world: World, timer: Timer, trainer: Trainer, batches: Sequence[PackedBatch]
) -> str:
    """Ours and the same step with SHARD_OPTIMIZER=1 in turn; the ratio is the latter's time over ours."""
    config = replace(config, shard_optimizer=True)
    other = build_trainer(config, world, trainer.device, seed=1, num_vocabulary=plan.shape.num_vocabulary)
    warm_up(other, config)
    ratios = []
    for number, batch in enumerate(batches, start=1):
        ours_s, sharded_s = (
            timer.seconds(lambda number=number, batch=batch, each=each: each.step(number, [batch]))  # type: ignore[misc]
            for each in (trainer, other)
        )
        ratios.append(sharded_s / ours_s)
    own_bytes, all_bytes = state_bytes(other.optimizer)
    return (
        f"sharded {plan.optimizer}: step time ratio {median(ratios):.2f}, state on rank 0 "
        f"{own_bytes / _MEBIBYTE:.1f} MiB of {all_bytes / _MEBIBYTE:.1f}"
    )


def _parts(device: torch.device, timer: Timer, trainer: Trainer, batches: Sequence[PackedBatch]) -> Iterator[str]:
    """Milliseconds of a step and share of it, by part. The marks cost some microseconds each."""
    clock = PartClock(device, timer.now_s)
    install(clock, trainer)
    for number, batch in enumerate(batches, start=1):
        start_step(clock)
        trainer.step(number, [batch])
        clock.switch(None)
    seconds = clock.seconds()
    total = sum(seconds.values())

    def milliseconds(part: str, direction: str) -> float:
        return 1000 * seconds.get(Section(part, direction), 0.0) / len(batches)

    for part in PARTS:
        forward, backward = milliseconds(part, FORWARD), milliseconds(part, BACKWARD)
        if forward + backward:
            share = (forward + backward) * len(batches) / 1000 / total
            columns = f"{'':22}  {backward:9.2f} ms" if part == OPTIMIZER else f"forward {forward:9.2f} ms, backward"
            if part != OPTIMIZER:
                columns += f" {backward:9.2f} ms"
            yield f"{part:24} {columns} {share:6.1%}"
