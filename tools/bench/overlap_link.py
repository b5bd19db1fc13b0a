"""A command in, two processes of it out, each in a network of its own, joined by a cable of a given rate and delay.

The networks have no names: they, and the cable with them, are gone when the processes are, whatever ends those.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

INTERFACE = "overlap"
ADDRESSES = ("10.78.0.1", "10.78.0.2")
_ALONE = ("setpriv", "--pdeathsig", "KILL", "unshare", "--net")  # the first: the kernel ends them with this process
_NEEDED = {
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "ip": "iproute2",
    "tc": "iproute2",
}
_BURST_BYTES = 131_072  # two of the largest packets that TCP hands down; smaller ones are cut up first
_QUEUE_BYTES = 16 * 2**20  # more than TCP has under way: nothing is dropped
_QUEUE_PACKETS = 100_000
_START_S = 10
_ENDED = "a rank ended before it had answered; what it said is above"


class LinkError(RuntimeError):
    """No link can be made here, or one of its processes ended."""


@dataclass(frozen=True)
class Link:
    rate_mbit: float  # per second and direction
    delay_ms: float  # per direction

    @property
    def folder(self) -> str:
        return f"{self.rate_mbit:g}mbit_{self.delay_ms:g}ms"

    def __str__(self) -> str:
        return f"{self.rate_mbit:g} Mbit/s" + (f", {self.delay_ms:g} ms" if self.delay_ms else "")


def check_machine() -> None:
    """Raises LinkError with all that is missing here."""
    if os.geteuid() != 0:
        raise LinkError("needs root, to make network namespaces; start it as root")
    if missing := sorted(program for program in _NEEDED if shutil.which(program) is None):
        packages = ", ".join(sorted({_NEEDED[program] for program in missing}))
        raise LinkError(f"{', '.join(missing)} not found; install Debian's {packages}")
    if len(os.sched_getaffinity(0)) < 2:
        raise LinkError("needs two cores, one for each rank")
    tried = subprocess.run([*_ALONE, "true"], capture_output=True, text=True)
    if tried.returncode:
        raise LinkError(f"cannot make a network namespace: {tried.stderr.strip()}")


class Pair:
    """Two processes that read lines and whose first one answers each with a line."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def shape(self, link: Link) -> None:
        """From here on the cable is this one. Raises LinkError where the kernel cannot."""
        rate = f"{link.rate_mbit:g}mbit"
        for process in self._processes:
            _run_in(process, "tc", "qdisc", "delete", "dev", INTERFACE, "root", may_fail=True)  # none at first
            root = ("root", "handle", "1:", "tbf", "rate", rate, "burst", str(_BURST_BYTES), "limit", str(_QUEUE_BYTES))
            _run_in(process, "tc", "qdisc", "add", "dev", INTERFACE, *root)
            if link.delay_ms:
                delay = ("netem", "delay", f"{link.delay_ms:g}ms", "limit", str(_QUEUE_PACKETS))
                _run_in(process, "tc", "qdisc", "add", "dev", INTERFACE, "parent", "1:1", "handle", "10:", *delay)

    def ask(self, line: str) -> str:
        """Both get the line; the first one's answer. Raises LinkError when one of them ends instead."""
        for process in self._processes:
            assert process.stdin is not None
            try:
                process.stdin.write(line + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                raise LinkError(_ENDED) from None
        answers = self._processes[0].stdout
        assert answers is not None
        ends: list[int] = [os.pidfd_open(process.pid) for process in self._processes]
        try:
            # A process that ends takes the cable along, and the other one would wait for long.
            ready, _, _ = select.select([answers.fileno(), *ends], [], [])
            answer = answers.readline() if answers.fileno() in ready else ""
        finally:
            for end in ends:
                os.close(end)
        if not answer:
            raise LinkError(_ENDED)
        return answer


@contextmanager
def joined(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Pair]:
    """`command` with 0 and with 1 at its end, each in its network; killed when this is left.

    Until they are asked the first time their networks may not be there.
    """
    processes: list[subprocess.Popen[str]] = []
    try:
        for rank in (0, 1):
            processes.append(
                subprocess.Popen(
                    [*_ALONE, *command, str(rank)],
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,  # Ctrl-C is for this process, which then ends them
                )
            )
        _lay_cable(processes)
        yield Pair(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _lay_cable(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        _await_network(process)
    ends = [f"netns {process.pid}".split() for process in processes]
    _run("ip", "link", "add", INTERFACE, *ends[0], "type", "veth", "peer", "name", INTERFACE, *ends[1])
    for process, address in zip(processes, ADDRESSES, strict=True):
        _run_in(process, "ip", "link", "set", "lo", "up")
        _run_in(process, "ip", "link", "set", INTERFACE, "addrgenmode", "none")  # no IPv6
        _run_in(process, "ip", "address", "add", f"{address}/24", "dev", INTERFACE)
        _run_in(process, "ip", "link", "set", INTERFACE, "up")


def _await_network(process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + _START_S
    while os.readlink(f"/proc/{process.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        if process.poll() is not None or time.monotonic() > deadline:
            raise LinkError("a rank did not get a network of its own")
        time.sleep(0.01)


def _run_in(process: subprocess.Popen[str], *command: str, may_fail: bool = False) -> None:
    try:
        _run("nsenter", "--target", str(process.pid), "--net", *command, may_fail=may_fail)
    except LinkError:
        if process.poll() is not None:  # and its network with it
            raise LinkError(_ENDED) from None
        raise


def _run(*command: str, may_fail: bool = False) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and not may_fail:
        hint = "; this kernel has no netem, use --delay-ms 0" if "netem" in command else ""
        raise LinkError(f"{' '.join(command)}: {done.stderr.strip()}{hint}")


def python_module(name: str) -> list[str]:
    return [sys.executable, "-m", name]
