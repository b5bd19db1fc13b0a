"""What the command line's steps have in common."""

from __future__ import annotations

import argparse
import os
import sys


def count(text: str) -> int:
    """An option's whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def num_cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


def warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr, flush=True)
