"""A configuration, stages and a setting in, what a step of each stage costs there out; an answer on disk is read.

A setting is a number of ranks, and perhaps the cable between two of them.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.bert.files import atomic_write
from tools.bench.growth_step import Work
from tools.bench.overlap_link import ADDRESSES, INTERFACE, Link, Pair, check_machine, joined, python_module

_PORT = 29_500  # in networks of their own
_OF_RANKS = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}


@dataclass(frozen=True)
class Setting:
    num_ranks: int
    link: Link | None = None

    def __str__(self) -> str:
        ranks = "1 process" if self.num_ranks == 1 else f"{self.num_ranks} ranks"
        return f"{ranks}, {self.link}" if self.link else ranks

    @property
    def file(self) -> str:
        return f"steps_{self.num_ranks}{f'_{self.link.folder}' if self.link else ''}.json"


def measured(setting: Setting, work: Work, folder: Path, *, num_rounds: int, num_steps: int) -> dict[str, Any]:
    """`facts` and `seconds` of every stage, measured now unless `folder` has them of the same work.

    Raises LinkError where there can be no cable here, or a rank ended.
    """
    path = folder / setting.file
    asked = json.loads(json.dumps({"work": asdict(work), "num_rounds": num_rounds, "num_steps": num_steps}))
    if (known := read(setting, folder)) is not None and known["asked"] == asked:
        return known
    if setting.link:
        check_machine()
        work = replace(work, rendezvous=f"tcp://{ADDRESSES[0]}:{_PORT}")
    elif setting.num_ranks > 1:
        work = replace(work, rendezvous=f"tcp://127.0.0.1:{_free_port()}")
    work = replace(work, num_ranks=setting.num_ranks)
    with _processes(setting, [*python_module("tools.bench.growth_step"), json.dumps(asdict(work))]) as pair:
        if setting.link:
            pair.shape(setting.link)
        said = json.loads(pair.ask(json.dumps({"num_rounds": num_rounds, "num_steps": num_steps})))
    found = {"asked": asked, **said}
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(found), "utf-8")
    return found


def read(setting: Setting, folder: Path) -> dict[str, Any] | None:
    path = folder / setting.file
    return json.loads(path.read_text("utf-8")) if path.exists() else None


@contextmanager
def _processes(setting: Setting, command: Sequence[str]) -> Iterator[Pair]:
    environment = os.environ | _OF_RANKS
    if setting.link:
        with joined(command, environment | {"GLOO_SOCKET_IFNAME": INTERFACE}) as pair:
            yield pair
    else:
        with _beside_each_other(setting.num_ranks, command, environment | {"GLOO_SOCKET_IFNAME": "lo"}) as pair:
            yield pair


@contextmanager
def _beside_each_other(num_ranks: int, command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Pair]:
    processes: list[subprocess.Popen[str]] = []
    try:
        for rank in range(num_ranks):
            processes.append(
                subprocess.Popen(
                    [*command, str(rank)],
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,  # Ctrl-C is for this process, which then ends them
                )
            )
        yield Pair(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
