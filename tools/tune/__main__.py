"""Find the values of variables with which a configuration needs the fewest samples to its target.

Every trial is a whole training run, one process on this machine that acts as all of the configuration's ranks. A study
goes on where it was stopped or killed. Exit status: 0 found, 1 no trial reached the target or a run broke, 2 refused.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from benchmarks.bert.complaint import FAILED, REFUSED, complain
from benchmarks.bert.config import VARIABLES
from benchmarks.bert.files import atomic_write
from benchmarks.bert.shutdown import end
from tools.trial import RefusedTrialError, TrialError, as_one_process, checked, exports_of, only_user
from tools.tune.ranges import Range, RangeError, check_apart, default_ranges, parse_range, parse_set

_OF_A_TRIAL = ("SEED", "RESULT_FILE")  # what a file says of them is of one run


def main() -> int:
    options = _parser().parse_args()
    if importlib.util.find_spec("optuna") is None:
        return complain("tools.tune needs Optuna, which is not there: pip install -r requirements-tune.txt", REFUSED)
    try:
        fixed = dict(map(parse_set, options.set))
        base = _base(options.config, fixed)
        as_one_process(base)  # or each trial would be refused, after the other
        ranges = _ranges(options.range, fixed, base)
        with only_user(options.study):
            return _tune(options, base, ranges)
    except (RangeError, RefusedTrialError) as error:
        return complain(error, REFUSED)
    except TrialError as error:
        return complain(error, FAILED)
    except OSError as error:
        return complain(f"{error.filename}: {error.strerror}", FAILED)
    except KeyboardInterrupt:
        return complain("stopped; the same command goes on", 130)


def _tune(options: argparse.Namespace, base: dict[str, str], ranges: list[Range]) -> int:
    from tools.tune import report, study  # which need Optuna

    plan = study.Plan(base, ranges, options.seeds, options.pruner, options.sampler_seed)
    with study.named_errors(options.study):
        found = study.open_study(options.study, plan)
        study.run_study(
            found, plan, options.study, num_trials=options.trials, jobs=options.jobs, threads=options.threads, say=_say
        )
        print(report.table(found))
        first = report.best(found)
    if first is None:
        return complain("no trial reached the target; widen the ranges, raise MAX_STEPS or --trials", FAILED)
    text = report.config_file(options.config.name, plan.variables(first.params), first, len(options.seeds))
    print(f"\n{text}", end="")
    if options.out:
        with atomic_write(options.out) as temporary:
            temporary.write_text(text, "utf-8")
    return 0


def _base(path: Path, fixed: dict[str, str]) -> dict[str, str]:
    """The variables that the file and `fixed` set, without those that each trial has its own of."""
    return {name: value for name, value in {**exports_of(path), **fixed}.items() if name not in _OF_A_TRIAL}


def _ranges(given: list[str], fixed: dict[str, str], base: dict[str, str]) -> list[Range]:
    config = checked(base)
    ranges = [parse_range(text) for text in given] or default_ranges(config, but=list(fixed))
    check_apart(ranges, fixed)
    return ranges


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
        metavar="NAME=LOW:HIGH[:log]",
        help="what to try; by default learning rate and steps around the base, and betas and weight decay",
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
