"""Finished work in, one line for people out: how far, how fast, how much longer."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_TERMINAL_EVERY_S = 0.2
_PLAIN_EVERY_S = 10.0


class Meter:
    """Redraws one line on a terminal, prints a plain line now and then elsewhere.

    Time left goes by the share of the text that is done; text that was found done already is not counted.
    """

    def __init__(self, name: str, total_bytes: int, unit: str, stream: TextIO = sys.stderr) -> None:
        self._name, self._unit = name, unit
        self._total = total_bytes
        self._stream = stream
        self._live = stream.isatty()
        self._every_s = _TERMINAL_EVERY_S if self._live else _PLAIN_EVERY_S
        self._started = self._shown = time.monotonic()
        self._kept = self._done = self._count = 0

    def kept(self, num_bytes: int) -> None:
        """So much text needs no work: an earlier call did it."""
        self._kept += num_bytes

    def done(self, num_bytes: int, count: int) -> None:
        """So much more text is done, and made so many of what is counted."""
        self._done += num_bytes
        self._count += count
        now = time.monotonic()
        if now - self._shown >= self._every_s:
            self._shown = now
            line = self.line(now - self._started)
            self._stream.write(f"\r\x1b[K{line}" if self._live else f"{line}\n")
            self._stream.flush()

    def line(self, elapsed_s: float) -> str:
        done = self._kept + self._done
        left_s = (self._total - done) / self._done * elapsed_s if self._done else 0.0
        return (
            f"{self._name} {done / max(1, self._total):.0%}  {self._count:,} {self._unit}  "
            f"{self._count / elapsed_s:,.0f} {self._unit}/s  {clock(left_s)} left"
        )

    def close(self) -> None:
        """Clear the line."""
        if self._live:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
