"""A trainer in, the same trainer with a clock on each part of its step out; the model knows nothing of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.futures import Future

from benchmarks.bert.bench.clock import BACKWARD, FORWARD, PartClock, Section, timed
from benchmarks.bert.model.bert import Layer
from benchmarks.bert.model.kernels import eager_linear_add_norm
from benchmarks.bert.trainer import Trainer

EMBEDDING = "embedding"
PROJECTIONS = "attention, projections"
ATTENTION = "attention itself"
FEED_FORWARD = "feed-forward"
NORMS = "norms, dropout, sums"
HEADS = "heads and loss"
CLIP = "clipping"
COMMUNICATION = "communication not hidden"
OPTIMIZER = "optimizer"
PARTS = (EMBEDDING, PROJECTIONS, ATTENTION, FEED_FORWARD, NORMS, HEADS, CLIP, COMMUNICATION, OPTIMIZER)


def install(clock: PartClock, trainer: Trainer) -> None:
    """What no part claims is the heads' and the loss's: it lies between the last layer and backward."""
    model = trainer.model
    _time_module(clock, EMBEDDING, model.embeddings)
    for layer in model.layers:
        _install_in_layer(clock, layer)
    _install_around_backward(clock, trainer)
    trainer.optimizer.step_unless = timed(clock, OPTIMIZER, trainer.optimizer.step_unless)  # type: ignore[method-assign]
    trainer.optimizer.zero_grad = timed(clock, OPTIMIZER, trainer.optimizer.zero_grad)  # type: ignore[method-assign]


def start_step(clock: PartClock) -> None:
    clock.switch(Section(HEADS, FORWARD))


def _install_in_layer(clock: PartClock, layer: Layer) -> None:
    _time_module(clock, NORMS, layer)
    attention, kernels = layer.attention, layer.kernels
    for projection in (attention.query, attention.key, attention.value, attention.output):
        _time_module(clock, PROJECTIONS, projection)
    attention.attention = timed(clock, ATTENTION, attention.attention)
    _time_module(clock, FEED_FORWARD, layer.ffn_out)
    layer.kernels = replace(kernels, linear_gelu=timed(clock, FEED_FORWARD, kernels.linear_gelu))
    if kernels.linear_add_norm is not eager_linear_add_norm:
        # Compiled, the product's module is not called, and the sum and the norm are in one kernel with its bias.
        of_output = timed(clock, PROJECTIONS, kernels.linear_add_norm)
        of_ffn = timed(clock, FEED_FORWARD, kernels.linear_add_norm)

        def linear_add_norm(linear: nn.Linear, *args: Any) -> Tensor:
            return (of_output if linear is attention.output else of_ffn)(linear, *args)

        layer.kernels = replace(layer.kernels, linear_add_norm=linear_add_norm)


def _time_module(clock: PartClock, part: str, module: nn.Module) -> None:
    module.forward = timed(clock, part, module.forward)


def _install_around_backward(clock: PartClock, trainer: Trainer) -> None:
    """Backward begins once the loss is scaled; it ends in the hook of the last bucket, and what follows is waiting."""
    gradient, scaled, reduce = trainer.gradient, trainer.loss_scale.scaled, trainer.gradient.reduce
    after_last = COMMUNICATION if trainer.ddp.process_group.size() > 1 else CLIP

    def start_backward(loss: Tensor) -> Tensor:
        scaled_loss = scaled(loss)
        if clock.section is not None:
            clock.switch(Section(HEADS, BACKWARD))
        return scaled_loss

    def clip_and_reduce(bucket: GradBucket) -> Future[Tensor]:
        around = clock.section
        if around is None:
            return reduce(bucket)
        clock.switch(Section(CLIP, BACKWARD))
        future = reduce(bucket)
        clock.switch(Section(after_last, BACKWARD) if bucket.is_last() else around)
        return future

    trainer.loss_scale.scaled = start_backward  # type: ignore[method-assign]
    gradient.reduce = clip_and_reduce  # type: ignore[method-assign]
