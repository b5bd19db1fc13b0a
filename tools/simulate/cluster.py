"""A cluster's file in, its constants out: how fast ranks compute and links carry, each with where it is from.

Files lie in `clusters/`; a path to one of your own does as well. `like` takes what a file does not say from another.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "clusters"
FITTED = "fitted"
_KINDS: dict[str, tuple[type, ...]] = {"ranks_per_node": (int,), "memory_gb": (int, float)}
_MAY_BE_0 = {
    "rank_spread",
    "start_s",
    "workers_s",
    "host_forward_s",
    "host_step_s",
    "contention",
    "half_tokens",
    "node_latency_s",
    "link_latency_s",
}


class ClusterError(ValueError):
    """A cluster that cannot be used; the message names the file, what is wrong, and what is expected."""


@dataclass(frozen=True)
class Cluster:
    """Seconds, bytes and FLOPs. A rank is one accelerator; `half_tokens` is where it reaches half its rate."""

    name: str
    accelerator: str
    ranks_per_node: int
    memory_gb: float
    matmul_flops_per_s: float  # of one rank, with a batch without end, 16-bit
    half_tokens: float  # tokens of a rank's micro-batch at which half of that is reached
    start_s: float  # from run_start until the first batch is there
    workers_s: float  # more, where processes are started that load batches
    fp8_gain: float  # rate with FP8 over that with 16 bit
    memory_bytes_per_s: float  # of one rank
    rank_spread: float  # standard deviation of the ranks' speeds, as a share
    host_forward_s: float  # that the host needs to start a forward pass's kernels one by one
    host_step_s: float  # that the host keeps an idle accelerator waiting, in trainers that do
    contention: float  # share of computing that a running all-reduce costs
    node_bytes_per_s: float  # of an all-reduce inside a node: bus bandwidth of one rank
    node_latency_s: float  # of a hop inside a node
    num_links: float  # of a node to the network
    link_bytes_per_s: float  # of each
    link_latency_s: float  # of a hop between nodes

    @property
    def network_bytes_per_s(self) -> float:
        """Of a node."""
        return self.num_links * self.link_bytes_per_s


CONSTANTS = tuple(field.name for field in fields(Cluster))[4:]


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def path_of(name: str) -> Path:
    """Of a described cluster, or the path itself. Raises ClusterError."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        raise ClusterError(f"{name}: no such cluster; expected {', '.join(names())}, or a path to a .toml file")
    return path


def load(name: str) -> Cluster:
    """Raises ClusterError."""
    path = path_of(name)
    plain, constants = _read(path)
    return Cluster(
        name=path.stem,
        accelerator=plain["accelerator"],
        ranks_per_node=plain["ranks_per_node"],
        memory_gb=plain["memory_gb"],
        **{each: float(constants[each]["value"]) for each in CONSTANTS},
    )


def sources(name: str) -> dict[str, str]:
    """Of each constant."""
    return {each: constant["source"] for each, constant in _read(path_of(name))[1].items()}


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What stands outside and inside the table of constants, complete and checked."""
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ClusterError(f"{path}: cannot read it ({error})") from error
    constants = found.pop("constants", {})
    if "like" in found:
        other = path_of(str(found.pop("like")))
        if "like" in tomllib.loads(other.read_text("utf-8")):
            raise ClusterError(f"{path}: like names {other.stem}, which is itself like another; name that one")
        plain, of_other = _read(other)
        found, constants = plain | found, of_other | constants
    _check(path, found, constants)
    return found, constants


def _check(path: Path, plain: Mapping[str, Any], constants: Mapping[str, Any]) -> None:
    for name in ("accelerator", "ranks_per_node", "memory_gb"):
        if name not in plain:
            raise ClusterError(f"{path}: {name} is missing")
    for name, kinds in _KINDS.items():
        if not isinstance(plain[name], kinds) or not plain[name] > 0:
            raise ClusterError(f"{path}: {name} = {plain[name]!r}, expected a number above 0")
    if unknown := set(constants) - set(CONSTANTS):
        raise ClusterError(
            f"{path}: {', '.join(sorted(unknown))}: no constant of a cluster; see tools/simulate/cluster.py"
        )
    for name in CONSTANTS:
        constant = constants.get(name)
        if not isinstance(constant, dict) or set(constant) != {"value", "source"}:
            raise ClusterError(f"{path}: {name}: expected {{ value = NUMBER, source = TEXT }}")
        value, least = constant["value"], "from 0" if name in _MAY_BE_0 else "above 0"
        is_number = isinstance(value, (int, float)) and math.isfinite(value)
        if not is_number or not (value > 0 or (value == 0 and name in _MAY_BE_0)):
            raise ClusterError(f"{path}: {name} = {value!r}, expected a number {least}")


def with_constants(cluster: Cluster, values: Mapping[str, float]) -> Cluster:
    """The cluster with other values of these constants."""
    return Cluster(**{**vars(cluster), **values})


def with_fitted(text: str, values: Mapping[str, float]) -> str:
    """A cluster file's text with these constants' values in it; raises ClusterError for one that is not fitted."""
    for name, value in values.items():
        form = rf"(?m)^({name} = {{ value = )[^,]+(, source = \"{FITTED}\" }})$"
        text, count = re.subn(form, rf"\g<1>{value:.4g}\g<2>", text)
        if count != 1:
            raise ClusterError(f'{name}: no line `{name} = {{ value = NUMBER, source = "{FITTED}" }}` in the file')
    return text
