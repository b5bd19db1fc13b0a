"""Build an MLPerf submission tree from a commit and result folders, and verify it; or describe this machine for it.

  python -m tools.package describe > systems/mine.json      on the system that runs; then fill in what is left
  python -m tools.package build results/mine --system-template systems/mine.json --org ME --out package

Exit status: 0 built and verified, 1 the tree fails verification and is not left, 2 the input was refused.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.package import machine, system
from tools.package.build import Submission, build, check_place, failed_name, unfinished_name
from tools.package.commit import changes_outside, resolve
from tools.package.names import PackageError, checked_name
from tools.package.readme import is_default_data
from tools.package.results import NOT_SET, Results, check_distinct, read_results
from tools.verify import rounds
from tools.verify.log import UnreadableLogError
from tools.verify.render.text import render_text

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    arguments = _parser().parse_args()
    try:
        return _describe() if arguments.command == "describe" else _build(arguments)
    except (PackageError, UnreadableLogError, rounds.UnknownRoundError, OSError) as error:
        print(f"package: {error}", file=sys.stderr)
        return 2


def _describe() -> int:
    description = system.described(machine.facts(machine.probe()))
    print(system.render(description), end="")
    still = [key for key, value in description.items() if value.startswith(system.FILL_IN)]
    _say(f"{len(still)} of {len(description)} values are for people to fill in: {', '.join(still)}")
    return 0


def _build(arguments: argparse.Namespace) -> int:
    out = Path(os.path.abspath(arguments.out))
    check_place(out)
    repository = arguments.repository.resolve()
    commit = resolve(repository, arguments.commit)
    results = [read_results(folder) for folder in arguments.results]
    check_distinct(results)
    organisation = _organisation(results, arguments.org)
    submission = Submission(
        organisation=organisation,
        implementation=checked_name("--implementation", arguments.implementation),
        repository=repository,
        commit=commit,
        systems=tuple((each, _description(each, arguments.system_template, organisation)) for each in results),
    )
    round_name = rounds.ruleset_named(arguments.round or _round(results))
    _warn(submission)
    report, left_out = build(
        submission,
        out,
        round_name=round_name,
        num_runs=arguments.runs,
        keep_failed=arguments.keep_failed,
    )
    place = failed_name(out) if report.failed and arguments.keep_failed else out
    text = render_text(report, colour=_colour())
    print(text.replace(str(unfinished_name(out)), str(place)))
    if left_out:
        _say(f"left out of the commit, because repo_checker refuses hidden files: {', '.join(left_out)}")
    if report.failed:
        left = f"it is kept in {place}" if arguments.keep_failed else "nothing is left; --keep-failed would keep it"
        _say(f"the tree fails verification; {left}")
        return 1
    _say(f"built and verified: {out / submission.organisation}")
    return 0


def _organisation(results: Sequence[Results], given: str | None) -> str:
    logged = {each.organisation for each in results} - {NOT_SET}
    if given is None and len(logged) != 1:
        says = f"the logs say {', '.join(map(ascii, sorted(logged)))}" if logged else "the logs do not say it"
        raise PackageError(f"--org: {says}; name the one folder of the submitter")
    return checked_name(
        "--org" if given else "the logs' submission_org (--org names another folder)", given or logged.pop()
    )


def _description(results: Results, templates: Sequence[Path], submitter: str) -> dict[str, str]:
    """By the template called like the system, else by the only one."""
    path = next((path for path in templates if path.stem == results.system), None)
    if path is None:
        if len(templates) > 1:
            raise PackageError(f"--system-template: none of several is called {results.system}.json")
        path = templates[0] if templates else ROOT / "systems" / "template.json"
    return system.complete(system.read_template(path), path, results, submitter)


def _round(results: Sequence[Results]) -> str:
    rulesets = {str(each.configuration.get("RULESET", rounds.LATEST)) for each in results}
    if len(rulesets) > 1:
        raise PackageError(f"the logs are of rounds {', '.join(sorted(rulesets))}; say which with --round")
    return rulesets.pop()


def _warn(submission: Submission) -> None:
    if changed := changes_outside(submission.repository, submission.commit):
        shown = ", ".join(map(ascii, changed[:5])) + (f" and {len(changed) - 5:,} more" if len(changed) > 5 else "")
        _say(f"warning: the working folder differs from commit {submission.commit[:12]}, which is packaged: {shown}")
    for results, _ in submission.systems:
        if results.stray:
            _say(f"warning: {results.folder}: not packaged: {', '.join(map(ascii, results.stray))}")
        for number, log in enumerate(results.logs):
            if log.path.name != f"result_{number}.txt":
                _say(f"{log.path} becomes result_{number}.txt")
        if not is_default_data(results.configuration):
            _say(f"warning: {results.system} used data of its own; see that README.md says enough of how to make them")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.package", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands: Any = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("describe", help="write what this machine tells of itself as a template, to stdout")
    add = commands.add_parser("build", help="build and verify a submission tree").add_argument
    add("results", type=Path, nargs="+", metavar="RESULTS", help="a folder of result_*.txt; one for each system")
    add("--out", type=Path, required=True, metavar="DIR", help="where the tree goes; new or empty")
    add("--org", metavar="NAME", help="the submitter's folder (as the logs say)")
    add("--commit", default="HEAD", help="what the code is taken from (%(default)s)")
    add("--round", metavar="ROUND", help="v5.0, 5.0 or 5.0.0 (as the logs' RULESET says)")
    add(
        "--system-template",
        type=Path,
        action="append",
        default=[],
        metavar="FILE.json",
        help="description of the system; several are told apart by <system>.json (systems/template.json)",
    )
    add("--runs", type=int, default=rounds.NUM_RUNS, metavar="N", help="runs that a system must have (%(default)s)")
    add("--implementation", default="pytorch", metavar="NAME", help="the code's folder (%(default)s)")
    add("--repository", type=Path, default=ROOT, metavar="DIR", help="the git checkout (that of this program)")
    add("--keep-failed", action="store_true", help="keep a tree that fails, as DIR.failed")
    return parser


def _say(text: str) -> None:
    print(f"package: {text}", file=sys.stderr)


def _colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that nothing half is left
    sys.exit(main())
