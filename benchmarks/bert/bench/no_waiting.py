"""A device in, whether a training step makes the host wait for it out; a tiny model shows it as a large one would."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.bert.bench.configurations import TINY
from benchmarks.bert.bench.full_size import mixed_batches, warm_trainer
from benchmarks.bert.world import World


class WaitedError(RuntimeError):
    """The host waited for the device inside a step."""


def steps_without_waiting(world: World, device: torch.device) -> Iterator[str]:
    """A line for each precision. Raises WaitedError with torch's words, which name the operator."""
    batch = mixed_batches(device, TINY)[0]
    for precision in ("bf16", "fp16"):
        trainer = warm_trainer(world, device, TINY, precision, "eager")
        trainer.step(1, [batch])
        if device.type != "cuda":
            yield f"{precision}: a step ran; on a CPU there is nothing to wait for"
            continue
        torch.cuda.synchronize(device)
        torch.cuda.set_sync_debug_mode("error")
        try:
            trainer.step(2, [batch])
        except RuntimeError as error:
            raise WaitedError(f"{precision}: {error}") from error
        finally:
            torch.cuda.set_sync_debug_mode("default")
        yield f"{precision}: no host synchronisation in a step"
