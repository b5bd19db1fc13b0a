"""Signals in, an orderly end out: an exception at the next safe point, or failing that, a forced exit."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def end_with_parent() -> None:
    """Have the kernel send this process SIGTERM when its launcher ends, so that no rank outlives it (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def end(status: int) -> NoReturn:
    """Exit without the interpreter's own end, which a process that had a group may not survive.

    A communication thread may still wait for a dead rank, or still hold a hook's future, which is Python's to free.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@contextmanager
def interruptible(last_words: Callable[[str], None], grace_s: float = 3.0) -> Iterator[Callable[[], None]]:
    """Yield `check()`, which raises `Interrupted` once SIGINT, SIGTERM or SIGHUP has come; call it at safe points.

    Raising only there keeps a signal from cutting a log record or an optimizer step in two. A main thread that waits
    inside a collective reaches no such point: if it has not left this context `grace_s` seconds after the signal,
    `last_words(signal's name)` is called from another thread and the process exits with 128 + signal.
    """
    received: list[int] = []
    left = threading.Event()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)

    def watch() -> None:
        number = os.read(wake_read, 1)
        if number and not left.wait(grace_s):
            last_words(signal.Signals(number[0]).name)
            os._exit(128 + number[0])

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)

    def check() -> None:
        if received:
            raise Interrupted(received[0])

    previous_wakeup = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    previous = {each: signal.signal(each, handle) for each in _SIGNALS}
    threading.Thread(target=watch, daemon=True, name="shutdown").start()
    try:
        yield check
    finally:
        left.set()
        signal.set_wakeup_fd(previous_wakeup)
        for each, handler in previous.items():
            signal.signal(each, handler)
        os.close(wake_write)


@contextmanager
def signals_first(check: Callable[[], None]) -> Iterator[None]:
    """Raise `Interrupted` in place of an error that follows a signal.

    A rank that reaches its safe point first leaves, and the collectives of the others break: the reason is the signal.
    """
    try:
        yield
    except Exception:
        check()
        raise
