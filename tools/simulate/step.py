"""A job, its stage and a cluster in, the timeline of each step out.

All ranks start a step together: the all-reduce of the one before has let nobody ahead. Then, on each rank,

    host     what the host makes an idle accelerator wait for (published trainers)
    compute  forward and backward; kernels that the host starts one by one take at least as long as that
    bucket   is full at a fixed share of the last micro-batch's backward; the slowest rank decides when it is sent
    network  buckets one after the other; a running all-reduce slows computing down by the cluster's `contention`
    clip     reads each bucket for its norm, reads and writes it for its scale
    update   of the optimizer, when the last bucket is back

Shapes: G steps, R ranks, B buckets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.bert.growth.plan import Stage
from tools.simulate.buckets import Buckets, buckets_of
from tools.simulate.cluster import Cluster
from tools.simulate.compute import seconds_GR, speeds_R, work_of
from tools.simulate.job import BERT_LARGE, Job
from tools.simulate.network import all_reduce_s

_BACKWARD_HOST = 2  # host work of backward over that of forward: two products for each one
_CLIP_PASSES = 3  # over a gradient: read for the norm, read and written for the scale
# Bytes of memory traffic for a parameter: gradient, weight and both moments read, all but the gradient written; LAMB
# and LANS write updates and read them again, after the norms of each tensor are known.
OPTIMIZER_BYTES = {"adam": 28, "lamb": 44, "lans": 52}
_HALF_COPIES_BYTES = 14  # and where gradients are 16-bit: made fp32 and back, of gradients and weights


@dataclass(frozen=True)
class ClipTimes:
    """What a clip variant does to the timeline."""

    overlaps: bool  # whether buckets are sent while backward goes on
    before: bool  # whether gradients are clipped before they are sent
    after: bool  # or after


CLIP_TIMES = {
    "none": ClipTimes(overlaps=True, before=False, after=False),
    "bucket_before": ClipTimes(overlaps=True, before=True, after=False),
    "global_before": ClipTimes(overlaps=False, before=True, after=False),
    "global_after": ClipTimes(overlaps=True, before=False, after=True),
}


@dataclass(frozen=True)
class Timeline:
    """Seconds from the step's start, and the samples and bytes that it moved."""

    forward_GR: np.ndarray  # length of the forward passes, and of the backward passes of all micro-batches but the last
    backward_GR: np.ndarray  # of the last micro-batch's backward pass
    start_s: float  # of computing, on all ranks
    ready_GB: np.ndarray  # when the slowest rank has filled the bucket
    sent_GB: np.ndarray
    reduced_GB: np.ndarray
    clip_after_s: float
    optimizer_s: float
    clip_before_s: float  # inside computing, on each rank
    host_GR: np.ndarray  # inside computing: what the host's starting of kernels adds
    contention_G: np.ndarray  # inside computing: what running all-reduces add
    buckets: Buckets
    samples_GR: np.ndarray
    tokens_GR: np.ndarray

    @property
    def compute_GR(self) -> np.ndarray:
        return self.forward_GR + self.backward_GR

    @property
    def total_G(self) -> np.ndarray:
        return self.reduced_GB[:, -1] + self.clip_after_s + self.optimizer_s

    def split(self) -> dict[str, float]:
        """Mean seconds of a step by what the average rank does; they sum to the mean of `total_G`."""
        slowest_G, mean_G = self.compute_GR.max(axis=1), self.compute_GR.mean(axis=1)
        host_s, contention_s = float(self.host_GR.mean()), float(self.contention_G.mean())
        return {
            "compute": float(mean_G.mean()) - host_s - contention_s - self.clip_before_s,
            "host": self.start_s + host_s,
            "clip": self.clip_before_s + self.clip_after_s,
            "slowed by all-reduces": contention_s,
            "imbalance wait": float((slowest_G - mean_G).mean()),
            "exposed communication": float((self.reduced_GB[:, -1] - self.start_s - slowest_G).mean()),
            "optimizer": self.optimizer_s,
        }


def simulate_steps(job: Job, stage: Stage, cluster: Cluster, lengths_GRK: np.ndarray, seed: int) -> Timeline:
    """One timeline for each step of `lengths_GRK`; the seed draws the ranks' speeds."""
    work = work_of(job, stage, lengths_GRK)
    speeds = speeds_R(cluster, job.layout.num_ranks, seed)
    on_device = [
        seconds_GR(flops_GR, work.tokens_GR, cluster, job) * speeds for flops_GR in (work.forward_GR, work.backward_GR)
    ]
    forward_GR, backward_GR = _with_host(job, stage, cluster, *on_device)
    buckets = buckets_of(job.shape_at(stage), stage, job.bucket_mb, job.gradient_bytes)
    clip = CLIP_TIMES[job.clip]
    clip_s = _CLIP_PASSES * buckets.num_bytes / cluster.memory_bytes_per_s
    before_s = clip_s if clip.before else 0.0  # of each micro-batch
    last_GR = backward_GR / job.micro_batches + before_s
    earlier_GR = forward_GR + (backward_GR / job.micro_batches + before_s) * (job.micro_batches - 1)
    reduce_B = all_reduce_s(buckets.bytes_B, cluster, job.layout.num_nodes, job.layout.ranks_per_node, job.algorithm)
    contention_G = np.zeros(len(last_GR))
    if clip.overlaps:
        hidden_s = reduce_B[:-1].sum()  # the last bucket is sent when backward has ended
        contention_G = cluster.contention * np.minimum(hidden_s, last_GR.mean(axis=1))
    last_GR = last_GR + contention_G[:, None]
    start_s = cluster.host_step_s if job.habits.step_waits else 0.0
    ready_GB = _ready(start_s, earlier_GR, last_GR, buckets.ready_B if clip.overlaps else np.ones(len(reduce_B)))
    sent_GB, reduced_GB = _sent(ready_GB, reduce_B)
    return Timeline(
        forward_GR=earlier_GR,
        backward_GR=last_GR,
        start_s=start_s,
        ready_GB=ready_GB,
        sent_GB=sent_GB,
        reduced_GB=reduced_GB,
        clip_after_s=clip_s if clip.after else 0.0,
        optimizer_s=_optimizer_s(job, cluster, buckets),
        clip_before_s=before_s * job.micro_batches,
        host_GR=forward_GR + backward_GR - sum(on_device),
        contention_G=contention_G,
        buckets=buckets,
        samples_GR=work.samples_GR,
        tokens_GR=work.tokens_GR,
    )


def _with_host(
    job: Job, stage: Stage, cluster: Cluster, forward_GR: np.ndarray, backward_GR: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The passes of all micro-batches where the host starts every kernel: they take at least as long as that.

    A hook that waits lets the host start nothing ahead: it and the accelerator work in turn, and their times add up.
    """
    if job.graphs:
        return forward_GR, backward_GR
    layers = stage.size.num_layers / BERT_LARGE.num_layers
    host_s = cluster.host_forward_s * layers * job.micro_batches
    backward_host_s = _BACKWARD_HOST * host_s * (1 - stage.num_frozen / stage.size.num_layers)
    if job.habits.hook_waits:
        return np.maximum(forward_GR, host_s), backward_GR + backward_host_s
    return np.maximum(forward_GR, host_s), np.maximum(backward_GR, backward_host_s)


def _ready(start_s: float, earlier_GR: np.ndarray, last_GR: np.ndarray, ready_B: np.ndarray) -> np.ndarray:
    """When the slowest rank has filled each bucket, (G, B)."""
    return np.stack([(start_s + earlier_GR + share * last_GR).max(axis=1) for share in ready_B], axis=1)


def _sent(ready_GB: np.ndarray, reduce_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of the all-reduces, one after the other in the order of the buckets."""
    sent_GB, reduced_GB = np.empty_like(ready_GB), np.empty_like(ready_GB)
    free_G = np.zeros(len(ready_GB))
    for bucket, seconds in enumerate(reduce_B):
        sent_GB[:, bucket] = np.maximum(free_G, ready_GB[:, bucket])
        free_G = reduced_GB[:, bucket] = sent_GB[:, bucket] + seconds
    return sent_GB, reduced_GB


def _optimizer_s(job: Job, cluster: Cluster, buckets: Buckets) -> float:
    """Of all that trains, or this rank's part of it; where weights are gathered, half an all-reduce of them more."""
    num_parameters = buckets.num_bytes / job.gradient_bytes
    each = OPTIMIZER_BYTES[job.optimizer] + (_HALF_COPIES_BYTES if job.gradient_bytes == 2 else 0)
    seconds = num_parameters * each / job.shards / cluster.memory_bytes_per_s
    if job.gathers_weights:
        weights = np.array([num_parameters * 4])
        seconds += float(all_reduce_s(weights, cluster, job.layout.num_nodes, job.layout.ranks_per_node)[0]) / 2
    return seconds
