"""Find the values of variables with which a configuration needs the fewest samples to its target.

With GROWTH, what counts is how many samples of the whole model cost as much.

Every trial is a whole training run, one process on this machine that acts as all of the configuration's ranks. A study
goes on where it was stopped or killed. Exit status: 0 found, 1 no trial reached the target or a run broke, 2 refused.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from benchmarks.bert.complaint import FAILED, REFUSED, complain
from benchmarks.bert.config import VARIABLES, ConfigError, exports_in
from benchmarks.bert.files import atomic_write
from benchmarks.bert.shutdown import end
from tools.trial import RefusedTrialError, TrialError, as_one_process, checked, only_user
from tools.tune.names import RangeError
from tools.tune.options import check_apart, parse_ranges, parse_sets
from tools.tune.placeholders import without
from tools.tune.plan import Plan, check_pruner
from tools.tune.ranges import default_ranges

_OF_A_TRIAL = ("SEED", "RESULT_FILE")  # what a file says of them is of one run


def main() -> int:
    options = _parser().parse_args()
    if importlib.util.find_spec("optuna") is None:
        return complain("tools.tune needs Optuna, which is not there: pip install -r requirements-tune.txt", REFUSED)
    try:
        plan = _plan(options)
        with only_user(options.study):
            return _tune(options, plan)
    except (RangeError, ConfigError, RefusedTrialError) as error:
        return complain(error, REFUSED)
    except TrialError as error:
        return complain(error, FAILED)
    except OSError as error:
        return complain(f"{error.filename}: {error.strerror}", FAILED)
    except KeyboardInterrupt:
        return complain("stopped; the same command goes on", 130)


def _tune(options: argparse.Namespace, plan: Plan) -> int:
    from tools.tune import report, study  # which need Optuna

    with study.named_errors(options.study):
        found = study.open_study(options.study, plan)
        study.run_study(
            found, plan, options.study, num_trials=options.trials, jobs=options.jobs, threads=options.threads, say=_say
        )
        _write(f"{report.table(found)}\n")
        for line in report.refusals(found):
            _say(line)
        first = report.best(found)
    if first is None:
        return complain(report.why_none(found), FAILED)
    text = report.config_file(options.config.name, plan, first)
    _write(f"\n{text}")
    if options.out:
        with atomic_write(options.out) as temporary:
            temporary.write_text(text, "utf-8")
    return 0


def _plan(options: argparse.Namespace) -> Plan:
    """Raises RangeError, ConfigError and RefusedTrialError for all that would keep every trial from running."""
    fixed = parse_sets(options.set)
    base = _base(options.config, fixed)
    if without(base) == base:
        as_one_process(base)  # or each trial would be refused, after the other
    ranges = parse_ranges(options.range, base) or default_ranges(checked(base), but=list(fixed))
    check_apart(ranges, fixed)
    plan = Plan(base, ranges, options.seeds, options.pruner, options.sampler_seed)
    if without(base) != base:
        _check_ends(plan, options.config)
    check_pruner(plan)
    return plan


def _check_ends(plan: Plan, path: Path) -> None:
    """Raises RefusedTrialError for what is wrong with the lowest and the highest of all values alike.

    What is wrong with one of them the study finds out.
    """
    lowest, highest = (_problems(variables, path) for variables in plan.ends())
    if alike := [problem for problem in lowest if problem in highest]:
        raise RefusedTrialError("\n".join(alike))


def _problems(variables: dict[str, str], path: Path) -> list[str]:
    try:
        checked(variables, path)  # whose errors name the file
        as_one_process(variables)
    except RefusedTrialError as error:
        return str(error).splitlines()
    return []


def _base(path: Path, fixed: dict[str, str]) -> dict[str, str]:
    """The variables that the file and `fixed` set, without those that each trial has its own of."""
    in_file = exports_in(path)
    if without(in_file) == in_file:
        checked({}, path)
    return {name: value for name, value in {**in_file, **fixed}.items() if name not in _OF_A_TRIAL}


def _write(text: str) -> None:
    """At once, and with a name for what a full disk's error names no file of."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        error.filename = "standard output"
        raise


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number from 1")
    return int(text)


def _seeds(text: str) -> list[int]:
    seeds = [int(seed) if seed.isdecimal() else -1 for seed in text.split(",")]
    if not all(VARIABLES["SEED"].metadata["check"].accepts(seed) and seed >= 0 for seed in seeds):
        raise argparse.ArgumentTypeError(f"{text!r}, expected whole numbers from 0 with commas between them")
    if len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError(f"{text!r} names a seed twice")
    return seeds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.tune", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the base, a config_*.sh")
    parser.add_argument("--study", type=Path, required=True, metavar="DIR", help="folder of the study and its logs")
    parser.add_argument(
        "--range",
        action="append",
        default=[],
        metavar="NAME=LOW:HIGH[:log] or 'NAME=A|B|...'",
        help="what to try, of a variable or of a {placeholder} in a value; by default learning rate and steps around "
        "the base, and betas and weight decay",
    )
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a fixed value")
    parser.add_argument("--trials", type=_whole, default=30, metavar="N", help="in all, earlier ones too (%(default)s)")
    parser.add_argument("--seeds", type=_seeds, default=[1], metavar="S,S,...", help="of each trial's runs (1)")
    parser.add_argument("--pruner", choices=("median", "halving", "none"), default="median", help="(%(default)s)")
    parser.add_argument("--sampler-seed", type=int, default=0, metavar="S", help="of the draws of values (%(default)s)")
    parser.add_argument("--jobs", type=_whole, default=1, metavar="J", help="runs at a time (%(default)s)")
    parser.add_argument("--threads", type=_whole, default=1, metavar="T", help="of each run (%(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the best configuration there too")
    return parser


if __name__ == "__main__":
    end(main())
