"""Rates of a link in, how much of the all-reduce each clip variant hides under backward on it out, as Markdown.

    python -m tools.bench.overlap
    python -m tools.bench.overlap --rates-mbit 500 --traces results/overlap

Two ranks with one core each train in two network namespaces of this machine, joined by a cable that tc shapes; with the
project's own trainer, hook and model. Blocks of steps of all variants alternate, and a ratio is one of block medians of
the same round. Needs root, iproute2 and util-linux; a delay needs a kernel with netem.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bert.complaint import FAILED, REFUSED, complain
from tools.bench.overlap_link import INTERFACE, Link, LinkError, check_machine, joined, python_module
from tools.bench.overlap_rank import ALL_REDUCE, COMPUTE, SUBJECTS, VARIANTS, Sizes

HEADING = "| link | what | time, of `none` | range | all-reduce hidden |"
_OF_RANKS = {
    "GLOO_SOCKET_IFNAME": INTERFACE,
    "OMP_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # the networks know no names of hosts
    "KINETO_LOG_LEVEL": "5",
}
Seconds = dict[str, list[list[float]]]  # by subject: of each round the steps'


def main() -> int:
    arguments = _parser().parse_args()
    sizes = Sizes(arguments.layers, arguments.hidden, arguments.tokens, arguments.bucket_mb)
    if arguments.traces and arguments.traces.exists():
        return complain(f"--traces {arguments.traces}: exists; name a folder that is to be made", REFUSED)
    try:
        check_machine()
    except LinkError as error:
        return complain(error, REFUSED)
    try:
        _measure(arguments, sizes)
    except LinkError as error:
        return complain(error, FAILED)
    except KeyboardInterrupt:
        return complain("stopped by SIGINT", 130)
    return 0


def _measure(arguments: argparse.Namespace, sizes: Sizes) -> None:
    """Print a line on what is measured and the table, each link's rows once they are known."""
    environment = os.environ | _OF_RANKS
    links = [Link(rate, delay) for rate, delay in product(arguments.rates_mbit, arguments.delay_ms)]
    with joined([*python_module("tools.bench.overlap_rank"), json.dumps(asdict(sizes))], environment) as pair:
        for link in links:
            pair.shape(link)
            traces = str(arguments.traces.resolve() / link.folder) if arguments.traces else None
            request = {"num_rounds": arguments.rounds, "num_steps": arguments.steps, "traces": traces}
            answer = json.loads(pair.ask(json.dumps(request)))
            if link == links[0]:
                print("\n".join(heading(answer, arguments.rounds, arguments.steps)))
            print("\n".join(rows(link, answer["seconds"])), flush=True)


def heading(answer: dict[str, Any], num_rounds: int, num_steps: int) -> list[str]:
    return [
        f"{answer['parameters']:,} parameters, {answer['bytes'] / 2**20:.1f} MiB of gradients in {answer['buckets']} "
        f"buckets; {num_rounds} rounds of {num_steps} steps",
        "",
        HEADING,
        "|" + "---|" * (HEADING.count("|") - 1),
    ]


def rows(link: Link, seconds: Seconds) -> list[str]:
    """A row for each subject. Hidden is what a step takes less than computing and all-reduces one after the other."""
    found = []
    for name in SUBJECTS:
        ratios = [median(own) / median(none) for own, none in zip(seconds[name], seconds["none"], strict=True)]
        hidden = f"{median(hidden_shares(seconds, name)):.0%}" if name in VARIANTS else ""
        if name == ALL_REDUCE:
            busy = median(own[0] / median(wall) for own, wall in zip(seconds["processor"], seconds[name], strict=True))
            hidden = f"(its core is busy for {busy:.0%} of it)"
        found.append(f"| {link} | {name} | {median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} | {hidden} |")
    return found


def hidden_shares(seconds: Seconds, name: str) -> list[float]:
    """Of each round, (compute + all-reduces - step) / all-reduces: 0 where one follows the other."""
    shares = []
    for compute, all_reduce, step in zip(seconds[COMPUTE], seconds[ALL_REDUCE], seconds[name], strict=True):
        shares.append((median(compute) + median(all_reduce) - median(step)) / median(all_reduce))
    return shares


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.overlap", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates-mbit", type=_positive, nargs="+", default=[100.0, 500.0, 2000.0])
    parser.add_argument("--delay-ms", type=_delay, nargs="+", default=[0.0], help="of each direction")
    parser.add_argument("--rounds", type=_count, default=6)
    parser.add_argument("--steps", type=_count, default=3, help="of each variant and round")
    parser.add_argument("--traces", type=Path, help="folder for a Chrome trace of each link and variant")
    parser.add_argument("--layers", type=_count, default=8)
    parser.add_argument("--hidden", type=_count, default=256, help="width of the encoder")
    parser.add_argument("--tokens", type=_count, default=512, help="of each rank and step")
    parser.add_argument("--bucket-mb", type=_positive, default=2.0)
    return parser


def _positive(text: str) -> float:
    if not 0 < (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} must be above 0")
    return value


def _count(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return value


def _delay(text: str) -> float:
    if not 0 <= (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} must be at least 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
