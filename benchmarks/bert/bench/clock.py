"""Marks set while a step runs in, the time that each part of it took out, forward and backward apart.

A part is a function or a module. Its inputs and outputs pass through identities of autograd: forward calls say when a
part begins and ends, and so does the gradient when it comes by. Autograd runs backward in the reverse order, so what
lies between two marks belongs to one part. On a GPU the marks are events, and nothing waits for it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

FORWARD, BACKWARD = "forward", "backward"


class Section(NamedTuple):
    part: str
    direction: str


class PartClock:
    """Time goes to the section that was named last."""

    def __init__(self, device: torch.device, now_s: Callable[[], float] = time.perf_counter) -> None:
        self._on_gpu = device.type == "cuda"
        self._now_s = now_s
        self._marks: list[tuple[Section | None, Any]] = []
        self.section: Section | None = None

    def switch(self, section: Section | None) -> None:
        """From here on it is this section's time; None: no one's."""
        self.section = section
        self._marks.append((section, self._instant()))

    def seconds(self) -> dict[Section, float]:
        """By section, of all steps; waits for the device."""
        if self._on_gpu:
            torch.cuda.synchronize()
        total: dict[Section, float] = defaultdict(float)
        for (section, start), (_, end) in zip(self._marks, self._marks[1:], strict=False):
            if section is not None:
                total[section] += start.elapsed_time(end) / 1000 if self._on_gpu else end - start
        return total

    def _instant(self) -> Any:
        if not self._on_gpu:
            return self._now_s()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class _Mark(torch.autograd.Function):
    """The identity; when its gradient comes by, it is `part`'s turn."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, clock: PartClock, part: str) -> Tensor:
        ctx.clock, ctx.part = clock, part
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.clock.switch(Section(ctx.part, BACKWARD))
        return gradient, None, None


def timed(clock: PartClock, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose time, and whose gradient's, is `part`'s and not that of the part around it."""

    def marked(values: Any, name: str) -> Any:
        if isinstance(values, tuple | list):
            return tuple(marked(value, name) for value in values)
        if isinstance(values, Tensor) and values.requires_grad:
            return _Mark.apply(values, clock, name)
        return values

    def call(*args: Any) -> Any:
        around = clock.section
        if around is None:
            return function(*args)
        args = marked(args, around.part)
        clock.switch(Section(part, around.direction))
        result = function(*args)
        clock.switch(around)
        return marked(result, part)

    return call
