"""A folder in, the right to write it out, for one preparation at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".lock"


class FolderError(ValueError):
    """The folder cannot be written; the message names it and the remedy."""


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Make `folder` and hold its lock; refuses where another preparation holds it. The lock ends with its process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / LOCK, "ab")  # noqa: SIM115
    except OSError as error:
        raise FolderError(f"{folder}: cannot write there ({error.strerror}); choose another --out") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FolderError(
                f"{folder}: another preparation is writing it; wait for its end, or choose another --out"
            ) from error
        yield
