"""A part's name and a device in, what that part finds out; exit status 1 where it is wrong.

    python -m benchmarks.bert.bench.device_check PART [--device auto|cpu|cuda]

tools/bench/gpu_check.sh runs all parts, each with a time limit of its own.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator

import torch

from benchmarks.bert.bench.agreement import agreements
from benchmarks.bert.bench.full_size import kernel_table, speeds
from benchmarks.bert.bench.loader_rate import loader_rate
from benchmarks.bert.bench.no_waiting import WaitedError, steps_without_waiting
from benchmarks.bert.bench.ranks import alone
from benchmarks.bert.complaint import FAILED, complain
from benchmarks.bert.config import ConfigError
from benchmarks.bert.model.attention import KernelError
from benchmarks.bert.trainer import choose_device


def describe(device: torch.device) -> Iterator[str]:
    yield f"torch {torch.__version__}, {os.cpu_count()} CPU cores, {torch.get_num_threads()} threads"
    if device.type != "cuda":
        yield "device cpu: tiny sizes, which try the code and say nothing of speed"
        return
    properties = torch.cuda.get_device_properties(device)
    yield f"device {properties.name}, {properties.total_memory / 2**30:.1f} GiB, CUDA {torch.version.cuda}"
    yield f"capability {properties.major}.{properties.minor}, {properties.multi_processor_count} multiprocessors"


class DisagreementError(RuntimeError):
    """The device computes something else."""


def check_agreement(device: torch.device) -> Iterator[str]:
    """Loss and gradients of every way to compute; raises DisagreementError after the last line."""
    failed = 0
    for each in agreements(device):
        yield str(each)
        failed += not each.is_good
    if failed:
        raise DisagreementError(f"{failed} ways to compute differ from fp32 on the CPU by more than rounding does")


def check_waiting(device: torch.device) -> Iterator[str]:
    with alone(device) as world:
        yield from steps_without_waiting(world, device)


def measure_speed(device: torch.device) -> Iterator[str]:
    with alone(device) as world:
        yield from speeds(world, device)


def show_profile(device: torch.device) -> Iterator[str]:
    with alone(device) as world:
        yield kernel_table(world, device)


def measure_loader(device: torch.device) -> Iterator[str]:
    yield loader_rate(device)


PARTS: dict[str, Callable[[torch.device], Iterator[str]]] = {
    "device": describe,
    "agreement": check_agreement,
    "waiting": check_waiting,
    "speed": measure_speed,
    "profile": show_profile,
    "loader": measure_loader,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bert.bench.device_check")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    options = parser.parse_args()
    try:
        for line in PARTS[options.part](choose_device(options.device, local_rank=0)):
            print(line, flush=True)
    except (KernelError, ConfigError, DisagreementError, WaitedError) as error:
        sys.exit(complain(error, FAILED))


if __name__ == "__main__":
    main()
