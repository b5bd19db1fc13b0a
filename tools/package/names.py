"""A text from a log or a caller in, the same as a name of a file or folder out, or a refusal."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


class PackageError(ValueError):
    """No package can be built from this input; the message says what is wrong and how to mend it."""


def checked_name(what: str, name: str) -> str:
    """Raises PackageError where `name` would not be one plain folder on any machine."""
    if not _NAME.fullmatch(name):
        raise PackageError(
            f"{what} is {shown(name)}, which cannot name a folder; "
            "accepted: letters, digits, '.', '_' and '-', no '.' or '-' in front, at most 100"
        )
    return name


def shown(text: object) -> str:
    """A foreign text as a message may show it: quoted, escaped, short."""
    quoted = ascii(text)
    return quoted if len(quoted) <= 120 else f"{quoted[:117]}..."
