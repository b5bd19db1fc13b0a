"""Say whether a result log, a folder of them or a submission tree stands, and why not.

Exit status: 0 everything holds, 1 something fails, 2 it cannot be judged.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from pathlib import Path

from tools.verify import rounds
from tools.verify.log import UnreadableLogError
from tools.verify.render.as_json import render_json
from tools.verify.render.html import render_html
from tools.verify.render.markdown import render_markdown
from tools.verify.render.text import render_text
from tools.verify.verify import verify


def main() -> int:
    arguments = _parser().parse_args()
    try:
        report = verify(
            arguments.path,
            round_name=arguments.round,
            as_submitted=arguments.rules == "as-submitted",
            num_runs=arguments.runs,
        )
    except (UnreadableLogError, rounds.UnknownRoundError) as error:
        print(f"verify: {error}", file=sys.stderr)
        return 2
    for path, render in ((arguments.html, render_html), (arguments.markdown, render_markdown)):
        if path is not None:
            try:
                path.write_text(render(report), "utf-8")
            except OSError as error:
                print(f"verify: {path}: cannot write it ({error.strerror})", file=sys.stderr)
                return 2
    _print(render_json(report) if arguments.json else render_text(report, colour=_colour(), verbose=arguments.verbose))
    return 1 if report.failed else 0


def _print(text: str) -> None:
    """To a terminal or a file that may know no more than ASCII, or to a reader that may have gone."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what Python writes when it ends


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.verify", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, help="a log, a folder of result_*.txt, or an organisation's tree")
    parser.add_argument(
        "--round",
        "--ruleset",
        metavar="ROUND",
        help="v2.1, 2.1 or 2.1.0; by default as a folder's name tells, else v5.0",
    )
    parser.add_argument(
        "--rules",
        choices=("as-submitted", "as-shipped"),
        default="as-submitted",
        help="the rules as they were in the round, or as mlperf-logging ships them today (default: %(default)s)",
    )
    parser.add_argument(
        "--runs",
        type=_at_least_1,
        default=rounds.NUM_RUNS,
        metavar="N",
        help="runs that a folder must hold (%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page besides")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write Markdown besides")
    parser.add_argument("-v", "--verbose", action="store_true", help="show what only follows from a finding")
    return parser


def _at_least_1(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number from 1")
    return int(text)


def _colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


if __name__ == "__main__":
    sys.exit(main())
