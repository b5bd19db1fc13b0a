"""An error in, one line for each of its problems on stderr out."""

from __future__ import annotations

import sys
from textwrap import shorten

_LONGEST = 400  # characters

FAILED, REFUSED = 1, 2  # exit statuses: the run broke or missed its target; the input was refused before it began


def complain(error: object, status: int) -> int:
    """Print the error and return `status`, for `sys.exit(complain(…))`."""
    for line in str(error).splitlines():
        print(f"error: {line}", file=sys.stderr, flush=True)
    return status


def describe(error: BaseException) -> str:
    """An error that was not foreseen, on one line: its kind and the beginning of its text."""
    return f"{type(error).__name__}: {shorten(str(error), _LONGEST, placeholder=' …')}"
