"""What would this configuration do on that cluster? docs/simulator.md has the model and what it was held against.

python -m tools.simulate run --cluster dgx_a100_4hdr --config config_DGXA100_128x8x16x1.sh   where its time goes
python -m tools.simulate whatif --cluster dgx_a100_4hdr --config config_DGXA100_128x8x16x1.sh   other choices
python -m tools.simulate plan --cluster dgx_h100 --minutes 1                    nodes, batch, strategy for a time
python -m tools.simulate validate public_results.csv                            public results, predicted
python -m tools.simulate fit public_results.csv --write                         its fitted constants
python -m tools.simulate calibrate                                              this machine's constants
python -m tools.simulate papers                                                 the papers' arguments as tables
python -m tools.simulate docs public_results.csv                                the tables of docs/simulator.md
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.bert.complaint import FAILED, REFUSED, complain
from benchmarks.bert.refusals import REFUSALS
from benchmarks.bert.shutdown import end
from tools.simulate import cluster as clusters
from tools.simulate import commands

_REFUSED = (*REFUSALS, ValueError)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, 1 where some rows of a table could not be simulated, 2 for input that cannot be used."""
    options = _parser().parse_args(argv)
    try:
        return options.command(options)
    except _REFUSED as error:
        return complain(error, REFUSED)
    except OSError as error:
        return complain(f"{error.filename or 'output'}: {error.strerror}", FAILED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.simulate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    adder = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, function: Callable[[argparse.Namespace], int], what: str) -> argparse.ArgumentParser:
        command = adder.add_parser(name, help=what, description=what)
        command.set_defaults(command=function)
        command.add_argument("--histogram", type=Path, metavar="FILE.csv", help="of lengths; else Wikipedia's, coarse")
        return command

    run = add("run", commands.run, "the split of a step and of the run")
    _add_job(run, steps=50)
    run.add_argument("--timeline", type=Path, metavar="FILE.svg", help="draw a step")
    run.add_argument("--trace", type=Path, metavar="FILE.json", help="write the step as a Chrome trace")
    what_if = add("whatif", commands.what_if, "strategies, clip variants, ranks and networks")
    _add_job(what_if, steps=10)
    what_if.add_argument("--nodes", type=_whole, nargs="+", metavar="N", help="1 and the configuration's, if not given")
    plan = add("plan", commands.plan, "the fewest nodes that reach the target in time, and their configuration")
    _add_cluster(plan)
    plan.add_argument("--minutes", type=_minutes, required=True, metavar="M", help="from run_start to the target")
    plan.add_argument("--max-nodes", type=_whole, default=512, metavar="N", help="to think of (%(default)s)")
    plan.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="for config_*_plan.sh (here)")
    validate = add("validate", commands.validate, "predict public results")
    validate.add_argument("file", type=Path, metavar="FILE.csv")
    fit = add("fit", commands.fit, "fit constants to the rows marked fit")
    fit.add_argument("file", type=Path, metavar="FILE.csv")
    fit.add_argument("--write", action="store_true", help="into the clusters' files")
    calibrate = add("calibrate", commands.calibrate_machine, "measure this machine's constants")
    calibrate.add_argument("--config", default="config_CPU_1x2x8x1.sh", metavar="FILE.sh", help="what to train")
    calibrate.add_argument("--cluster", default="cpu_pair", metavar="NAME", help="whose other constants stay")
    calibrate.add_argument("--rounds", type=_rounds, default=12, metavar="N", help="of measuring (%(default)s)")
    calibrate.add_argument("--out", type=Path, metavar="FILE.toml", help="write the cluster there")
    add("papers", commands.papers, "the papers' arguments as tables")
    docs = add("docs", commands.docs, "write the tables and pictures of docs/simulator.md")
    docs.add_argument("file", type=Path, metavar="FILE.csv", help="of public results")
    return parser


def _add_cluster(command: argparse.ArgumentParser) -> None:
    named = ", ".join(clusters.names())
    command.add_argument("--cluster", required=True, metavar="NAME", help=f"{named}, or a .toml file")


def _add_job(command: argparse.ArgumentParser, steps: int) -> None:
    _add_cluster(command)
    what = command.add_mutually_exclusive_group()
    what.add_argument("--config", metavar="FILE.sh", help="of this project; else its defaults")
    what.add_argument("--row", nargs=2, metavar=("FILE.csv", "SYSTEM"), help="a public result")
    command.add_argument(
        "--set", type=_setting, action="append", default=[], metavar="NAME=VALUE", help="over --config"
    )
    command.add_argument("--samples", type=_whole, metavar="N", help="to the target (DECAY_STEPS x global batch)")
    command.add_argument("--algorithm", default="auto", choices=["auto", "ring", "tree", "hierarchical"])
    command.add_argument("--data", type=Path, metavar="DIR", help="take lengths from this data folder's index")
    command.add_argument("--steps", type=_whole, default=steps, metavar="N", help="to simulate (%(default)s)")
    command.add_argument("--seed", type=_whole, default=1, metavar="N", help="of lengths and speeds (%(default)s)")


def _setting(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"([A-Z_][A-Z0-9_]*)=(.*)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r}, expected NAME=VALUE of docs/configuration.md")
    return match[1], match[2]


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number from 1")
    return int(text)


def _rounds(text: str) -> int:
    if (number := _whole(text)) < 3:
        raise argparse.ArgumentTypeError(f"{text}, expected at least 3: the first only warms up")
    return number


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not 0 < minutes < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}, expected minutes above 0")
    return minutes


if __name__ == "__main__":
    end(main())
