"""Steps and losses in, one line for people out; never in the result log."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from torch import Tensor

_TERMINAL_EVERY_S = 0.5
_PLAIN_EVERY_S = 10.0


class Progress:
    """Redraws one line on a terminal, prints a plain line now and then elsewhere.

    The loss is read from the device only when a line is due, so that most steps do not wait for it.
    """

    def __init__(self, max_steps: int, global_batch: int, target: float, stream: TextIO = sys.stderr) -> None:
        self._max_steps = max_steps
        self._global_batch = global_batch
        self._target = target
        self._stream = stream
        self._live = stream.isatty()
        self._every_s = _TERMINAL_EVERY_S if self._live else _PLAIN_EVERY_S
        self._started = self._shown = time.monotonic()
        self._accuracy = "-"
        self._steps = 0  # since `started`; a resumed run does not begin at step 1

    def step(self, step: int, loss: Tensor) -> None:
        """Show this step if it is time to."""
        self._steps += 1
        now = time.monotonic()
        if now - self._shown < self._every_s:
            return
        self._shown = now
        rate = self._steps / (now - self._started)
        line = (
            f"step {step:,}/{self._max_steps:,}  loss {loss.item():.3f}  accuracy {self._accuracy}  "
            f"{rate * self._global_batch:,.0f} samples/s  {_clock((self._max_steps - step) / rate)} to the last step"
        )
        self._stream.write(f"\r\x1b[K{line}" if self._live else f"{line}\n")
        self._stream.flush()

    def evaluated(self, samples: int, accuracy: float) -> None:
        self._accuracy = f"{accuracy:.4f}"
        self.say(f"{samples:,} samples: masked-LM accuracy {accuracy:.4f} (target {self._target:.4f})")

    def say(self, line: str) -> None:
        """A line of its own."""
        self._stream.write(f"\r\x1b[K{line}\n" if self._live else f"{line}\n")
        self._stream.flush()


class Silent:
    """The progress of every rank but the first."""

    def step(self, step: int, loss: Tensor) -> None: ...

    def evaluated(self, samples: int, accuracy: float) -> None: ...

    def say(self, line: str) -> None: ...


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
