"""Measure what growth plans reach, and what they take, against training the whole model throughout.

    python -m tools.bench.growth --out DIR

Whole runs of every plan on thin layers (growth.sh), one process and one thread each; then a step in every stage of
every plan, blocks in turn in one run, on one process, on two ranks, and on two ranks over cables that tc slows down
(which needs root). All that is known stands in DIR, so a stopped command goes on; the tables are made of what is there.
Exit status: 0 all is done, 1 something remains or broke, 2 refused.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.bert.complaint import FAILED, REFUSED, complain
from benchmarks.bert.files import atomic_write
from tools.ablation.proxy import VOCABULARY, make_data
from tools.bench.growth_plans import Plans
from tools.bench.growth_ranks import Setting, measured
from tools.bench.growth_report import report
from tools.bench.growth_step import Work
from tools.bench.overlap_link import Link, LinkError
from tools.pool import trial_pool
from tools.trial import OutOfTimeError, RefusedTrialError, TrialError, only_user, run_trial

_ANY_LENGTH = 1000  # of a run whose stages are measured


def main() -> int:
    options = _parser().parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    plans = Plans(options.layers, options.run_steps)
    settings = [Setting(1), Setting(2), *(Setting(2, Link(rate, 0.0)) for rate in options.rates_mbit)]
    try:
        with only_user(options.out):
            make_data()
            remains = _run_all(options, plans, deadline)
            steps, left_out = _measure_all(options, plans, settings)
            _show("\n".join(report(plans, options.out, steps)), plans.folder(options.out))
    except RefusedTrialError as error:
        return complain(error, REFUSED)
    except TrialError as error:
        return complain(error, FAILED)
    except OSError as error:
        return complain(f"{error.filename or 'output'}: {error.strerror}", FAILED)
    except KeyboardInterrupt:
        return complain("stopped; the same command goes on", 130)
    for why in left_out:
        complain(why, FAILED)
    return complain(f"{remains} runs remain; the same command goes on", FAILED) if remains else FAILED * bool(left_out)


def _show(text: str, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    with atomic_write(folder / "table.md") as temporary:
        temporary.write_text(text + "\n", "utf-8")
    print(text, flush=True)


def _run_all(options: argparse.Namespace, plans: Plans, deadline: float) -> int:
    """Run what is due until time is up; how many runs remain."""

    def run(name: str, seed: int) -> bool:
        folder = plans.folder_of(options.out, name, seed)
        try:
            trial = run_trial(plans.variables_of(name, seed), folder, deadline=deadline, cancelled=cancelled)
        except OutOfTimeError:
            return False
        samples, accuracy = trial.evaluations[-1]
        print(f"{name}, seed {seed}: {accuracy:.4f} after {samples:,} samples", file=sys.stderr, flush=True)
        return True

    with trial_pool(options.jobs) as (pool, cancelled):
        due = [pool.submit(run, name, seed) for name, seed in plans.runs_due(options.seeds, options.variant_seeds)]
        return sum(not each.result() for each in due)


def _measure_all(
    options: argparse.Namespace, plans: Plans, settings: Sequence[Setting]
) -> tuple[dict[str, Any], list[str]]:
    """By setting what was measured there, and why others are left out. It is the same for runs of any length."""
    found, left_out = {}, []
    any_length = replace(plans, num_steps=_ANY_LENGTH)
    work = Work(any_length.base, any_length.distinct_stages(), VOCABULARY, 1, None)
    for setting in settings:
        try:
            found[str(setting)] = measured(
                setting, work, options.out, num_rounds=options.rounds, num_steps=options.steps
            )
        except LinkError as error:
            left_out.append(f"{setting}: left out, {error}")
    return found, left_out


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.growth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the logs and tables")
    parser.add_argument(
        "--layers",
        type=_layers,
        default=12,
        metavar="N",
        help="of the model; each has its own --out (%(default)s)",
    )
    parser.add_argument("--run-steps", type=_count, default=1000, metavar="N", help="of each run (%(default)s)")
    parser.add_argument("--seeds", type=_count, default=3, metavar="N", help="of each main plan (%(default)s)")
    parser.add_argument("--variant-seeds", type=_count_or_none, default=1, metavar="N", help="of others (%(default)s)")
    parser.add_argument("--jobs", type=_count, default=1, metavar="J", help="runs at a time (%(default)s)")
    parser.add_argument(
        "--minutes", type=_minutes, default=math.inf, metavar="M", help="end runs after; 0 measures steps alone"
    )
    parser.add_argument(
        "--rates-mbit", type=_rate, nargs="*", default=[100.0, 20.0], metavar="R", help="of slow cables (%(default)s)"
    )
    parser.add_argument("--rounds", type=_count, default=5, metavar="N", help="(%(default)s)")
    parser.add_argument("--steps", type=_count, default=3, metavar="N", help="of each stage and round (%(default)s)")
    return parser


def _count(text: str, least: int = 1) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number from {least}")
    return int(text)


def _count_or_none(text: str) -> int:
    return _count(text, 0)


def _layers(text: str) -> int:
    if _count(text) % 4:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a multiple of 4: plans grow it in quarters")
    return int(text)


def _minutes(text: str) -> float:
    return _number(text, 0.0)


def _rate(text: str) -> float:
    return _number(text, 1.0)


def _number(text: str, least: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a number from {least:g}")
    return number


if __name__ == "__main__":
    sys.exit(main())
