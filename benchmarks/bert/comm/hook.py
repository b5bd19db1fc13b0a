"""DDP's gradient buckets in, clipped and averaged buckets out, while backward goes on.

Each bucket is clipped on its own as soon as backward has filled it, and its all-reduce starts at once: clipping before
the reduction keeps the overlap of communication with backward (*Breaking MLPerf Training*). The clip unit is one
rank's one micro-batch, also of a process that acts as several ranks. The two variants that need the whole gradient's
norm, which the closed division asks for, are at the end.
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
        self._num_processes = dist.get_world_size(self._group)
        self._max_norm = max_norm
        self._num_buckets = 0
        self._discovering = False
        self._is_ranks_last = True  # of the micro-batches of one rank that this process acts as
        self._is_last_micro_batch = True  # of the step
        self._has_all = True  # whether the present backward pass has filled its last bucket
        self._num_units = 1  # micro-batches of all ranks, if all had as many as the present one
        # By bucket, sums of clipped earlier micro-batches: of the present rank, and of the ranks before it.
        self._of_rank: dict[int, Tensor] = {}
        self._of_earlier_ranks: dict[int, Tensor] = {}
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

    def accumulate(self, micro_batches: Sequence[Batch], turn: int = 0, num_turns: int = 1) -> Iterator[Batch]:
        """The micro-batches of one step; buckets are summed locally until the last, then reduced.

        A process that acts as `num_turns` ranks takes a turn for each; the last micro-batch is that of the last turn.
        """
        self._reduced.clear()
        self._num_units = self._num_processes * num_turns * len(micro_batches)
        for index, micro_batch in enumerate(micro_batches, start=1):
            self._is_ranks_last = index == len(micro_batches)
            self._is_last_micro_batch = self._is_ranks_last and turn == num_turns - 1
            self._has_all = False
            yield micro_batch
            if not self._has_all:
                raise RuntimeError("a parameter that trains took no part in the loss, so its bucket was not filled")
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
        return self._loss_scale.scale * self._num_units

    def _count(self, num_buckets: int) -> None:
        """Buckets come in their order, so the last one's number tells."""
        self._has_all = True
        if self._discovering:
            self._num_buckets = num_buckets
        elif num_buckets != self._num_buckets:
            raise RuntimeError(
                f"backward filled {num_buckets} gradient buckets, the clip threshold is for {self._num_buckets}: "
                "run two passes inside BucketClip.discovering() after every change of what trains"
            )

    def add(self, bucket: dist.GradBucket) -> Tensor:
        """Clip the bucket and keep it for the step's last micro-batch."""
        return self._sum_up(bucket.index(), self.clip(bucket))

    def _sum_up(self, index: int, gradient_P: Tensor) -> Tensor:
        """Add what earlier micro-batches left of this bucket; before the step's last, keep the sum and leave zeros.

        A rank's micro-batches are summed before they meet another rank's, as they are where ranks are processes.
        """
        if (own := self._of_rank.pop(index, None)) is not None:
            gradient_P.add_(own)
        if self._is_ranks_last and (others := self._of_earlier_ranks.pop(index, None)) is not None:
            gradient_P.add_(others)
        if self._is_last_micro_batch:
            return gradient_P
        kept = self._of_earlier_ranks if self._is_ranks_last else self._of_rank
        kept[index] = gradient_P.clone()
        return gradient_P.zero_()

    def reduce(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Clip the bucket, add what earlier micro-batches left for it, and start its all-reduce."""
        gradient_P = self.add(bucket)
        self._reduced.append(gradient_P)
        work = self.start_all_reduce(bucket.index(), gradient_P)
        return work.get_future().then(lambda future: future.value()[0])

    def start_all_reduce(self, index: int, gradient_P: Tensor) -> dist.Work:
        """Of the bucket `index`, in place."""
        return dist.all_reduce(gradient_P, group=self._group, async_op=True)


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
            self._sum_up(index, gradient_P)
        if self._is_last_micro_batch:
            self._reduced = list(self._filled.values())
            for work in [self.start_all_reduce(*each) for each in self._filled.items()]:
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
