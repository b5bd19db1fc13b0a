"""A configuration in, the scripts of a system's folder out: they run the packaged implementation with it."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

from tools.package.names import PackageError, shown

CONFIG = "config.sh"
SCRIPTS = ("setup.sh", "init_datasets.sh", "run_and_time.sh")

_CONFIG_HEAD = """\
# shellcheck shell=bash
# The configuration of the submitted runs, from their logs.
"""
_HEAD = """\
#!/usr/bin/env bash
# {does}
set -euo pipefail
unset CDPATH
here=$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)
"""
_DOES = {
    "setup.sh": "Once: find or make the Python environment of the implementation.",
    "init_datasets.sh": "Once, untimed: download and prepare the default data set.",
    "run_and_time.sh": "One timed trial with this system's configuration; see README.md.",
}
_NEED_DATA = """\
if [[ -z ${DATA_DIR:-} ]]; then
  echo "error: DATA_DIR is not set; name the folder of the prepared data (README.md)" >&2
  exit 2
fi
"""


def script(name: str, implementation: str, configuration: dict[str, Any]) -> str:
    """One of SCRIPTS, to lie in benchmarks/bert/<system>/."""
    lines = _HEAD.format(does=_DOES[name])
    if name == "run_and_time.sh":
        lines += "" if data_dir(configuration) else _NEED_DATA
        lines += f'export CONFIG="${{CONFIG:-$here/{CONFIG}}}"\n'
    return lines + f'exec "$here/../implementations/{implementation}/{name}" "$@"\n'


def config_file(configuration: dict[str, Any]) -> str:
    """Lines `export NAME=value`, as benchmarks/bert/config.py and the shell read alike.

    Raises PackageError for a value that would not mean to the shell what it says.
    """
    own = {} if data_dir(configuration) else {"DATA_DIR"}
    lines = [f"export {name}={_word(name, value)}\n" for name, value in configuration.items() if name not in own]
    return "".join([_CONFIG_HEAD, *lines])


def data_dir(configuration: dict[str, Any]) -> str | None:
    """Where the data lie within the implementation; None where they lay elsewhere on the machine that ran."""
    path = PurePosixPath(str(configuration.get("DATA_DIR", "")))
    return None if path.is_absolute() or ".." in path.parts or path == PurePosixPath() else str(path)


def _word(name: str, value: Any) -> str:
    text = str(int(value)) if isinstance(value, bool) else str(value)
    if re.fullmatch(r"[\w@%+=:,./-]*", text, re.ASCII):
        return text
    if not text.isprintable():
        raise PackageError(f"the configuration's {name} is {shown(text)}, expected printable text")
    if "'" not in text:
        return f"'{text}'"
    if re.search(r'["$`\\]', text):
        raise PackageError(f"the configuration's {name} is {shown(text)}, which no line export NAME=value can hold")
    return f'"{text}"'
