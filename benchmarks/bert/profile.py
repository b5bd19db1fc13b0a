"""A window of steps in, a Chrome trace of what this rank did in them out; nothing where no window is set.

The spans that it names are put around the trainer's methods while the window lasts, and taken off again: torch's
record_function takes microseconds even with no profiler running, and a step of ten buckets has some thirty of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.bert.complaint import describe
from benchmarks.bert.config import Config, ConfigError
from benchmarks.bert.files import atomic_write
from benchmarks.bert.trainer import Trainer
from benchmarks.bert.world import World


class NoProfile(AbstractContextManager["NoProfile"]):
    """Of a run without a window."""

    def before(self, step: int) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class ProfileWindow(AbstractContextManager["ProfileWindow"]):
    """Call `before` each step. The trace is written at the window's end or the run's."""

    def __init__(self, config: Config, trainer: Trainer, world: World, num_done: int) -> None:
        """`num_done` steps were taken before, by the run that this one goes on from. Raises ConfigError."""
        self._trainer = trainer
        self._rank = world.rank
        self._start = config.profile_start_step
        self._steps = range(max(self._start, num_done + 1), self._start + config.profile_num_steps)
        self._path = _free_path(config.profile_dir, world.rank)
        self._recording: Generator[None, None, None] | None = None

    def before(self, step: int) -> None:
        """The `step`-th step begins now, and what is left of the one before ends."""
        if step in self._steps[:1]:
            self._recording = self._record()
        if self._recording is not None:
            next(self._recording, None)

    def __exit__(self, *_: object) -> None:
        if self._recording is not None:
            self._recording.close()
        elif self._rank == 0:
            print(
                f"warning: no trace: PROFILE_START_STEP={self._start}, but the run took no such step", file=sys.stderr
            )

    def _record(self) -> Generator[None, None, None]:
        """Yields once in each step of the window."""
        activities = [ProfilerActivity.CPU]
        if self._trainer.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        profiler = profile(activities=activities)
        try:
            with profiler:
                for step in self._steps:  # named anew in each, for growth may have replaced what the names are on
                    with record_function(f"step {step}"), named_spans(self._trainer):
                        yield
        finally:
            self._write(profiler)

    def _write(self, profiler: profile) -> None:
        """A trace that failed is said and left out; the run does not depend on it."""
        try:
            with atomic_write(self._path) as temporary:
                try:
                    profiler.export_chrome_trace(str(temporary))
                finally:  # torch's own temporary file, where its disk is full
                    temporary.with_name(f"{temporary.name}.tmp").unlink(missing_ok=True)
        except (OSError, RuntimeError) as error:
            print(f"warning: rank {self._rank}: no trace: {describe(error)}", file=sys.stderr, flush=True)


def profile_of(config: Config, trainer: Trainer, world: World, num_done: int) -> NoProfile | ProfileWindow:
    """What the loop calls. Raises ConfigError where PROFILE_DIR holds this rank's trace already or cannot be made."""
    if not config.profile_start_step:
        return NoProfile()
    return ProfileWindow(config, trainer, world, num_done)


@contextmanager
def named_spans(trainer: Trainer) -> Iterator[None]:
    """While this lasts, the parts of a step have names in a trace.

    forward and backward of each micro-batch, with the loss; clip and start of the all-reduce of each bucket, by its
    number; optimizer. An all-reduce itself shows under its library's name, gloo:all_reduce or nccl:all_reduce.
    """
    gradient, passes = trainer.gradient, ExitStack()
    is_inside = [False]  # a pass of this gradient; growth's warm-up goes through another one

    def turn_to(name: str) -> None:
        passes.close()
        passes.enter_context(record_function(name))

    def accumulate(original: Callable[..., Iterator[Any]], *args: Any, **kwargs: Any) -> Iterator[Any]:
        for batch in original(*args, **kwargs):
            turn_to("forward")
            is_inside[0] = True
            yield batch
            is_inside[0] = False
            passes.close()  # before what a variant of clipping does once backward is over

    def scaled(original: Callable[[Tensor], Tensor], loss: Tensor) -> Tensor:
        result = original(loss)
        if is_inside[0]:
            turn_to("backward")
        return result

    def named(name: Callable[..., str]) -> Callable[..., Any]:
        def call(original: Callable[..., Any], *args: Any) -> Any:
            with record_function(name(*args)):
                return original(*args)

        return call

    with passes, ExitStack() as stack:
        for owner, method, around in (
            (gradient, "accumulate", accumulate),
            (trainer.loss_scale, "scaled", scaled),
            (gradient, "clip", named(lambda bucket: f"clip bucket {bucket.index()}")),
            (gradient, "start_all_reduce", named(lambda index, _: f"start all-reduce of bucket {index}")),
            (trainer.optimizer, "step_unless", named(lambda _: "optimizer")),
        ):
            stack.enter_context(_wrapped(owner, method, around))
        yield


@contextmanager
def _wrapped(owner: object, method: str, around: Callable[..., Any]) -> Iterator[None]:
    """While this lasts, `owner.method(...)` is `around(the original, ...)`."""
    original = getattr(owner, method)

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(owner, method, call)
    try:
        yield
    finally:
        delattr(owner, method)


def _free_path(folder: Path, rank: int) -> Path:
    path = folder / f"rank_{rank}.json"
    if path.exists():
        raise ConfigError(
            f"PROFILE_DIR={folder}: holds {path.name}; a trace is never overwritten, move it or name another folder"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for unfinished in folder.glob(f".{path.name}.*"):
            unfinished.unlink()
    except OSError as error:
        raise ConfigError(f"PROFILE_DIR={folder}: cannot make the folder ({error.strerror}); name another") from error
    return path
