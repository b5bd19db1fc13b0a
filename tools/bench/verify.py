"""Folders of logs in, our verifier's speed beside the official checker's out.

    python -m tools.bench.verify 2.0.0 FOLDER...

Both judge the same folders in one process, in turn, so that only the ratio counts. The official side is
mlperf-logging's compliance checker alone, log by log, as its package checker calls it; ours is the whole verification
of the folder: the official rules, our own, seeds, RCP and score. Then both read a log with a million records more.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from mlperf_logging.compliance_checker import mlp_compliance

from tools.verify.folder import result_files
from tools.verify.verify import verify

_ROUNDS = 5
_EXTRA_RECORDS = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ruleset")
    parser.add_argument("folder", type=Path, nargs="+")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    for folder in arguments.folder:
        compare_speed(folder, arguments.ruleset)
    read_a_million_more(result_files(arguments.folder[0])[0], arguments.ruleset)


def compare_speed(folder: Path, ruleset: str) -> None:
    logs = result_files(folder)
    ours, theirs = _in_turn(lambda: verify(folder, round_name=ruleset), lambda: _official(logs, ruleset))
    print(
        f"{folder}: {len(logs)} logs, ours {1000 * ours:.0f} ms, official compliance alone {1000 * theirs:.0f} ms: "
        f"{theirs / ours:.1f} times as fast"
    )


def read_a_million_more(log: Path, ruleset: str) -> None:
    for key in ("eval_accuracy", "tracked_stats"):
        with tempfile.TemporaryDirectory() as folder:
            long = Path(folder) / "result_0.txt"
            _lengthen(log, long, key)
            started = time.perf_counter()
            verify(long, round_name=ruleset)
            seconds = time.perf_counter() - started
        memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{_EXTRA_RECORDS:,} more {key}: {seconds:.1f} s, {memory_mb:.0f} MB at most so far")


def _lengthen(log: Path, long: Path, key: str) -> None:
    """The log with its first evaluation a million times more, under `key`."""
    lines = log.read_text("latin-1").splitlines(keepends=True)
    at = next(index for index, line in enumerate(lines) if '"eval_accuracy"' in line)
    extra = lines[at].replace('"eval_accuracy"', f'"{key}"')
    with open(long, "w", encoding="latin-1") as file:
        file.writelines(lines[:at])
        file.writelines([extra] * _EXTRA_RECORDS)
        file.writelines(lines[at:])


def _in_turn(*works: Callable[[], object]) -> list[float]:
    """The median seconds of each, after one run that warms up."""
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(1 + _ROUNDS):
        for work, times in zip(works, seconds, strict=True):
            started = time.perf_counter()
            work()
            times.append(time.perf_counter() - started)
    return [median(times[1:]) for times in seconds]


def _official(logs: Sequence[Path], ruleset: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for log in logs:
            checker = mlp_compliance.make_checker("training", ruleset, quiet=False, werror=False)
            mlp_compliance.main(str(log), f"training_{ruleset}/common.yaml", checker)


if __name__ == "__main__":
    main()
