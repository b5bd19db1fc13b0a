"""Measure samples to target of every optimizer, clip variant and global batch on a very small BERT.

All state is the logs in DIR: whatever stops the command, the same command goes on, and the table is of what is done.
Exit status: 0 all is done, 1 something remains or a run broke, 2 refused.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.bert.complaint import FAILED, REFUSED, complain
from benchmarks.bert.files import atomic_write
from benchmarks.bert.shutdown import end
from tools.ablation.grid import Results, fill
from tools.ablation.plan import BATCHES, UNIT, Run, cells_of, next_run
from tools.ablation.plot import svg
from tools.ablation.proxy import make_data, variables_of
from tools.ablation.table import markdown, put_between_marks, rows_of
from tools.trial import ROOT, Evaluations, RefusedTrialError, Trial, TrialError, only_user, run_trial

PAGE, PLOT = ROOT / "docs" / "ablation.md", "ablation.svg"


def main() -> int:
    options = _parser().parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    seeds = range(1, options.seeds + 1)
    try:
        with only_user(options.out):
            make_data()
            results = fill(
                cells_of(options.batches),
                partial(_run_one, options, deadline),
                seeds=seeds,
                num_rates=options.rates,
                jobs=options.jobs,
                after=partial(_after, options),
            )
            _write(options, results)
    except RefusedTrialError as error:
        return complain(error, REFUSED)
    except (TrialError, ValueError) as error:
        return complain(error, FAILED)
    except OSError as error:
        return complain(f"{error.filename or 'output'}: {error.strerror}", FAILED)
    except KeyboardInterrupt:
        return complain("stopped; the same command goes on", 130)
    remaining = [cell for cell, done in results.items() if next_run(cell, done, seeds, options.rates)]
    if remaining:
        return complain(f"{len(remaining)} of {len(results)} cells are not finished; the same command goes on", FAILED)
    return 0


def _run_one(
    options: argparse.Namespace, deadline: float, run: Run, samples_to_beat: float, cancelled: Callable[[], bool]
) -> Trial:
    variables = variables_of(run)
    target = float(variables["TARGET_ACCURACY"])

    def stop(evaluations: Evaluations) -> str:
        samples, accuracy = evaluations[-1]
        late = samples >= samples_to_beat and accuracy < target
        return f"another rate took {samples_to_beat:,.0f} samples, this one more than {samples:,}" if late else ""

    folder = options.out / _folder(run)
    return run_trial(variables, folder, threads=options.threads, stop=stop, deadline=deadline, cancelled=cancelled)


def _folder(run: Run) -> Path:
    cell = run.cell
    return Path(f"{cell.batch}", f"{cell.optimizer}-{cell.clip}", f"rate_{cell.rate(run.place)}_seed_{run.seed}")


def _after(options: argparse.Namespace, run: Run, trial: Trial, results: Results) -> None:
    """One line, and the table anew: a partial one is of use too."""
    what = f"{trial.samples:,} samples" if trial.samples is not None else f"not reached, {trial.best_accuracy:.4f}"
    cell = run.cell
    line = f"{cell.batch} {cell.optimizer} {cell.clip} rate {cell.rate(run.place)} seed {run.seed}: {what}"
    print(f"{line}{', pruned' if trial.pruned else ''}, {trial.seconds:.0f} s", file=sys.stderr, flush=True)
    _write_text(options.out / "table.md", markdown(rows_of(results, 1), options.seeds) + "\n")


def _write(options: argparse.Namespace, results: Results) -> None:
    rows = rows_of(results, 1)
    table = markdown(rows, options.seeds)
    _write_text(options.out / "table.md", table + "\n")
    _write_text(options.out / PLOT, svg(rows))
    print(table)
    if options.docs:
        picture = f"![Samples to target over the global batch]({PLOT})"
        try:
            page = put_between_marks(PAGE.read_text("utf-8"), f"{table}\n\n{picture}")
        except ValueError as error:
            raise ValueError(f"{PAGE}: {error}") from error
        _write_text(PAGE.with_name(PLOT), svg(rows))
        _write_text(PAGE, page)


def _write_text(path: Path, text: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(text, "utf-8")


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number from 1")
    return int(text)


def _rates(text: str) -> int:
    if (number := _whole(text)) < 3:
        raise argparse.ArgumentTypeError(f"{text}, expected at least 3: a rate and both its neighbours")
    return number


def _batches(text: str) -> list[int]:
    batches = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if not all(batch > 0 and batch % UNIT == 0 for batch in batches) or len(set(batches)) < len(batches):
        raise argparse.ArgumentTypeError(f"{text!r}, expected different multiples of {UNIT} with commas between them")
    return batches


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not minutes >= 0:
        raise argparse.ArgumentTypeError(f"{text!r}, expected minutes from 0")
    return minutes


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.ablation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder of the logs, the table, the plot"
    )
    parser.add_argument(
        "--batches",
        type=_batches,
        default=list(BATCHES),
        metavar="B,B,...",
        help=f"global batches, multiples of {UNIT} ({','.join(map(str, BATCHES))})",
    )
    parser.add_argument("--seeds", type=_whole, default=3, metavar="N", help="of each cell's best rate (%(default)s)")
    parser.add_argument("--rates", type=_rates, default=5, metavar="N", help="most to try in each cell (%(default)s)")
    parser.add_argument("--jobs", type=_whole, default=2, metavar="J", help="runs at a time (%(default)s)")
    parser.add_argument("--threads", type=_whole, default=1, metavar="T", help="of each run (%(default)s)")
    parser.add_argument(
        "--minutes", type=_minutes, default=math.inf, metavar="M", help="end after so many; 0 only writes the table"
    )
    parser.add_argument("--docs", action="store_true", help="write the table and the plot to docs/ too")
    return parser


if __name__ == "__main__":
    end(main())
