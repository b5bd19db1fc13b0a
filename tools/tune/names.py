"""The name of a variable in, an error out where it is unknown or is not the command line's to tune or to set."""

from __future__ import annotations

from benchmarks.bert.config import VARIABLES
from benchmarks.bert.names import nearest

# What samples to target are measured by, and what a trial sets itself.
_FIXED = {"SEED", "MAX_STEPS", "MAX_LENGTH", "NUM_NODES", "RANKS_PER_NODE", "VIRTUAL_RANKS", "DATA_DIR"}
_FIXED_PREFIXES = ("EVAL_", "TARGET_", "CHECKPOINT_", "COLLECTIVE_", "PROFILE_")
_IN_THE_STUDY = "what a trial writes lies in --study"
_ANEW = "a trial keeps no checkpoints and begins anew"
_OWN = {  # of a trial, which would make `--set` of it void, and what to do
    "SEED": "use --seeds",
    "RESULT_FILE": _IN_THE_STUDY,
    "CHECKPOINT_DIR": _IN_THE_STUDY,
    "PROFILE_DIR": _IN_THE_STUDY,
    "CHECKPOINT_INTERVAL_STEPS": _ANEW,
    "RESUME": _ANEW,
}


class RangeError(ValueError):
    """An option of the command line that cannot be used; the message says what would be."""


def check_known(name: str, also: str = "") -> None:
    """`also` ends the message: what else the name may be."""
    if name not in VARIABLES:
        raise RangeError(
            f"{name}: unknown variable; the nearest valid one is {nearest(name, VARIABLES, always=True)} "
            f"(all: python -m benchmarks.bert.config list){also}"
        )


def check_settable(name: str) -> None:
    if name in _OWN:
        raise RangeError(f"each trial has its own {name}; {_OWN[name]}")


def check_tunable(name: str) -> None:
    if name in _OWN:
        raise RangeError(f"{name} must be fixed, each trial has its own; {_OWN[name]}")
    if name in _FIXED or name.startswith(_FIXED_PREFIXES):
        raise RangeError(f"{name}: trials are compared by it, so it must be fixed; use --set {name}=VALUE")
