"""A device in, the speed, the memory and a profile of the step of BERT-large at full size on it out.

On a CPU the sizes are tiny: there only the code is tried.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.bert.bench.configurations import TINY, sizes
from benchmarks.bert.bench.lengths import representative, wikipedia_shares
from benchmarks.bert.bench.made_up import made_up_batches
from benchmarks.bert.bench.products import Products, stated_rate
from benchmarks.bert.bench.timer import Timer, peak_memory_bytes
from benchmarks.bert.config import Config
from benchmarks.bert.data.batch import PackedBatch
from benchmarks.bert.model.bert import LAST_LAYER, BertShape
from benchmarks.bert.model.flops import packed_flops
from benchmarks.bert.trainer import DTYPES, Trainer, build_trainer
from benchmarks.bert.warm_up import warm_up
from benchmarks.bert.world import World

_WARM_UP, _STEPS = 3, 8
_BATCH = {"cuda": 56, "cpu": 4}  # 56 is NVIDIA's on eight A100
_SHAPES = {"cuda": BertShape(), "cpu": TINY}
_TOP = 20  # kernels listed
_GIBIBYTE = 2**30


def warm_trainer(world: World, device: torch.device, shape: BertShape, precision: str, fusion: str) -> Trainer:
    config = Config(
        device=device.type,
        **sizes(shape),
        precision=precision,
        fusion=fusion,
        batch_size=_BATCH[device.type],
        decay_steps=1_000_000,
    )
    trainer = build_trainer(config, world, device, seed=1, num_vocabulary=shape.num_vocabulary)
    warm_up(trainer, config)
    return trainer


def mixed_batches(device: torch.device, shape: BertShape) -> list[PackedBatch]:
    """As many as are measured, on the device; each holds the benchmark's mix of lengths."""
    size = _BATCH[device.type]
    lengths = representative(wikipedia_shares(), size * _STEPS, shape.max_length)
    return [batch.to(device) for batch in made_up_batches(lengths, size, shape.num_vocabulary)]


def speeds(world: World, device: torch.device) -> Iterator[str]:
    """A line for each precision, fusion and choice for the last layer, the most wanted ones first."""
    shape = _SHAPES[device.type]
    batches = mixed_batches(device, shape)
    fusions = ("eager", "compiled") if device.type == "cuda" else ("eager",)
    for precision, fusion in product(("bf16", "fp16"), fusions):
        trainer = warm_trainer(world, device, shape, precision, fusion)
        rate = stated_rate(device, DTYPES[precision]) or _measured_rate(device, precision)
        for name, last_layer in LAST_LAYER.items():
            trainer.model.last_layer = last_layer
            yield f"{precision}, {trainer.model.kernels.name}, {name}: {_speed(device, trainer, batches, name, rate)}"
        del trainer  # before the next one is made, so that no peak counts two
        gc.collect()


def _speed(device: torch.device, trainer: Trainer, batches: Sequence[PackedBatch], last_layer: str, rate: float) -> str:
    def steps(some: Sequence[PackedBatch]) -> None:
        for number, batch in enumerate(some, start=1):
            trainer.step(number, [batch])

    steps(batches[:_WARM_UP])
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = Timer(device, num_ranks=1).seconds(lambda: steps(batches))
    num_samples = sum(len(batch.layout.lengths) for batch in batches)
    flops = sum(packed_flops(trainer.model.shape, batch, last_layer) for batch in batches)
    return (
        f"{num_samples / seconds:.1f} samples/s, {1000 * seconds / len(batches):.1f} ms/step, "
        f"{flops / num_samples / 1e9:.1f} GFLOP/sample, MFU {flops / seconds / rate:.3f} of {rate / 1e12:.1f} TFLOP/s, "
        f"peak memory {peak_memory_bytes(device) / _GIBIBYTE:.1f} GiB"
    )


def _measured_rate(device: torch.device, precision: str) -> float:
    shape = _SHAPES[device.type]
    products = Products(
        _BATCH[device.type] * shape.max_length // 2, shape.hidden_size, shape.ffn_size, device, DTYPES[precision]
    )
    timer = Timer(device, num_ranks=1)
    return max(products.rate(timer.seconds) for _ in range(5))


def kernel_table(world: World, device: torch.device) -> str:
    """The kernels of one step by the time that they take, and what the host does meanwhile."""
    shape = _SHAPES[device.type]
    trainer, batches = warm_trainer(world, device, shape, "bf16", "auto"), mixed_batches(device, shape)
    for number, batch in enumerate(batches[:_WARM_UP], start=1):
        trainer.step(number, [batch])
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]
    with profile(activities=activities) as profiler:
        trainer.step(1, [batches[0]])
        if on_gpu:
            torch.cuda.synchronize(device)
    order = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    return profiler.key_averages().table(sort_by=order, row_limit=_TOP, max_name_column_width=70)
