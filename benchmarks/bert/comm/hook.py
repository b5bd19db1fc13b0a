"""DDP's gradient buckets in, clipped and averaged buckets out, while backward goes on.

Each bucket is clipped on its own as soon as backward has filled it, and its all-reduce starts at once: clipping before
the reduction keeps the overlap of communication with backward (*Breaking MLPerf Training*). The clip unit is one
rank's one micro-batch. The two variants that need the whole gradient's norm, which the closed division asks for, are
at the end.
"""

# No `from __future__ import annotations` here: DDP inspects the hook's annotations as objects.

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from benchmarks.bert.comm.clip import bucket_threshold, clip_factor, whole_clip_factor
from benchmarks.bert.optim.loss_scale import UNSCALED, LossScale, NoScale

Batch = TypeVar("Batch")


class BucketClip:
    """State of the communication hook; register it with `BucketClip(ddp, …)` once per DDP module.

    The mean over ranks and micro-batches of every clipped bucket is what backward leaves in `.grad`. The number of
    buckets, which sets the threshold, is known after `discovering()`; a pass that disagrees with it raises.
    `max_norm=math.inf` reduces without clipping. Gradients of a scaled loss are brought back to scale first.
    """

    def __init__(
        self, ddp: DistributedDataParallel, max_norm: float, loss_scale: LossScale | NoScale = UNSCALED
    ) -> None:
        self._group = ddp.process_group
        self._loss_scale = loss_scale
        self._num_ranks = dist.get_world_size(self._group)
        self._max_norm = max_norm
        self._num_buckets = 0
        self._discovering = False
        self._is_last_micro_batch = True
        self._num_micro_batches = 1
        self._accumulated: dict[int, Tensor] = {}  # by bucket: sum of the clipped earlier micro-batches, fp32
        self._reduced: list[Tensor] = []  # this step's buckets, in place
        ddp.register_comm_hook(state=self, hook=_clip_and_reduce)

    @property
    def num_buckets(self) -> int:
        return self._num_buckets

    @contextmanager
    def discovering(self) -> Iterator[None]:
        """While this lasts, passes define the bucket count. Run two: DDP lays its buckets out anew after the first."""
        self._discovering = True
        try:
            yield
        finally:
            self._discovering = False
            self._reduced.clear()

    def accumulate(self, micro_batches: Sequence[Batch]) -> Iterator[Batch]:
        """The micro-batches of one step; buckets are summed locally until the last, then reduced."""
        self._reduced.clear()
        self._num_micro_batches = len(micro_batches)
        for index, micro_batch in enumerate(micro_batches, start=1):
            self._is_last_micro_batch = index == len(micro_batches)
            yield micro_batch
            self._after_backward()

    def _after_backward(self) -> None:
        """What a variant has to do once a micro-batch's whole gradient is there."""

    def found_non_finite(self) -> Tensor:
        """1.0 if any rank's gradient of this step was not finite, else 0.0: fp32, on the device, equal on all ranks.

        Call it after backward. One element of each bucket tells: `clip_factor` makes all of a faulty bucket NaN.
        """
        probe_B = torch.stack([bucket[0] for bucket in self._reduced])
        return 1.0 - probe_B.isfinite().all().float()

    def clip(self, bucket: dist.GradBucket) -> Tensor:
        """Scale the bucket in place to at most its threshold; returns its buffer."""
        gradient_P = bucket.buffer()
        if bucket.is_last():
            self._count(bucket.index() + 1)
        # While discovering the count may be 0, and what is clipped is thrown away.
        threshold = bucket_threshold(self._max_norm, max(1, self._num_buckets))
        factor = clip_factor(gradient_P, threshold * self._loss_scale.scale)
        return gradient_P.mul_(factor / self._divisor())

    def _divisor(self) -> Tensor | float:
        """What turns a sum over ranks and micro-batches of a scaled loss's gradients into the mean of the loss's."""
        return self._loss_scale.scale * (self._num_ranks * self._num_micro_batches)

    def _count(self, num_buckets: int) -> None:
        if self._discovering:
            self._num_buckets = num_buckets
        elif num_buckets != self._num_buckets:
            raise RuntimeError(
                f"backward filled {num_buckets} gradient buckets, the clip threshold is for {self._num_buckets}: "
                "run two passes inside BucketClip.discovering() after every change of what trains"
            )

    def add(self, bucket: dist.GradBucket) -> Tensor:
        """Keep a clipped bucket for the step's last micro-batch and leave zeros, onto which the next one adds."""
        gradient_P = self.clip(bucket)
        kept = self._accumulated.get(bucket.index())
        if kept is None:
            self._accumulated[bucket.index()] = gradient_P.float().clone()
        else:
            kept += gradient_P
        return gradient_P.zero_()

    def reduce(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Clip the bucket, add what earlier micro-batches left for it, and start its all-reduce."""
        gradient_P = self.clip(bucket)
        if (kept := self._accumulated.pop(bucket.index(), None)) is not None:
            gradient_P.add_(kept)
        self._reduced.append(gradient_P)
        work = dist.all_reduce(gradient_P, group=self._group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])


def _clip_and_reduce(state: BucketClip, bucket: dist.GradBucket) -> Future[Tensor]:
    """The hook. DDP calls it for each bucket in the order in which backward fills them."""
    if state._is_last_micro_batch:
        return state.reduce(bucket)
    done: Future[Tensor] = Future()
    done.set_result(state.add(bucket))
    return done


class GlobalClipAfter(BucketClip):
    """Reduce every bucket as it is, under backward; then clip the averaged gradient by its whole norm."""

    def __init__(
        self, ddp: DistributedDataParallel, max_norm: float, loss_scale: LossScale | NoScale = UNSCALED
    ) -> None:
        super().__init__(ddp, math.inf, loss_scale)
        self._max_whole_norm = max_norm

    def _after_backward(self) -> None:
        if self._is_last_micro_batch:
            factor = whole_clip_factor(self._reduced, self._max_whole_norm)
            torch._foreach_mul_(self._reduced, factor)


class GlobalClipBefore(BucketClip):
    """Clip one rank's one micro-batch by its whole norm, then reduce: nothing is hidden under backward."""

    def __init__(
        self, ddp: DistributedDataParallel, max_norm: float, loss_scale: LossScale | NoScale = UNSCALED
    ) -> None:
        super().__init__(ddp, math.inf, loss_scale)
        self._max_whole_norm = max_norm
        self._filled: dict[int, Tensor] = {}  # by bucket: this micro-batch's gradient, in place

    def add(self, bucket: dist.GradBucket) -> Tensor:
        if bucket.is_last():
            self._count(bucket.index() + 1)
        self._filled[bucket.index()] = bucket.buffer()
        return bucket.buffer()

    def reduce(self, bucket: dist.GradBucket) -> Future[Tensor]:
        done: Future[Tensor] = Future()
        done.set_result(self.add(bucket))
        return done

    def _after_backward(self) -> None:
        filled = list(self._filled.values())
        factor = whole_clip_factor(filled, self._max_whole_norm * self._loss_scale.scale)
        torch._foreach_mul_(filled, factor / self._divisor())
        for index, gradient_P in self._filled.items():
            if not self._is_last_micro_batch:
                self._accumulated[index] = self._accumulated.get(index, 0.0) + gradient_P.float()
                gradient_P.zero_()
            elif index in self._accumulated:
                gradient_P.add_(self._accumulated.pop(index))
        if self._is_last_micro_batch:
            self._reduced = list(self._filled.values())
            for work in [dist.all_reduce(each, group=self._group, async_op=True) for each in self._reduced]:
                work.wait()
        self._filled.clear()


class NoClip(BucketClip):
    """Reduce without clipping."""

    def __init__(
        self, ddp: DistributedDataParallel, max_norm: float, loss_scale: LossScale | NoScale = UNSCALED
    ) -> None:
        super().__init__(ddp, math.inf, loss_scale)


CLIP_VARIANTS: dict[str, type[BucketClip]] = {
    "none": NoClip,
    "bucket_before": BucketClip,
    "global_before": GlobalClipBefore,
    "global_after": GlobalClipAfter,
}
