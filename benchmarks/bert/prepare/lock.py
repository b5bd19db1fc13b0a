"""A folder in, the right to write it out, for one process at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".lock"


class FolderError(ValueError):
    """The folder cannot be written; the message names it and the remedy."""


@contextmanager
def only_writer(
    folder: Path, *, busy: str = "another preparation is writing it", instead: str = "another --out"
) -> Iterator[None]:
    """Make `folder` and hold its lock, which ends with the process. Raises FolderError where another one holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / LOCK, "ab")  # noqa: SIM115
    except OSError as error:
        raise FolderError(f"{folder}: cannot write there ({error.strerror}); choose {instead}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FolderError(f"{folder}: {busy}; wait for its end, or choose {instead}") from error
        yield
