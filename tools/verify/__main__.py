"""Command line of the verifier. Exit status: 0 the log stands, 1 it does not, 2 it cannot be judged."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.verify.checks import official_findings, own_findings, summarise
from tools.verify.log import UnreadableLogError, read_log


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.verify", description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("--ruleset", default="5.0.0", help="rules of which round (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        records = read_log(arguments.log)
    except UnreadableLogError as error:
        print(f"verify: {error}", file=sys.stderr)
        return 2
    findings = own_findings(records) + official_findings(arguments.log, arguments.ruleset)
    if findings:
        print(f"FAILED   {arguments.log}, ruleset {arguments.ruleset}")
        for finding in findings:
            print(f"  - {finding}")
        return 1
    summary = summarise(records)
    print(f"PASSED   {arguments.log}, ruleset {arguments.ruleset}")
    print(f"time     {summary.run_s:.1f} s from run_start to run_stop, after {summary.init_s:.1f} s of initialisation")
    print(f"accuracy {summary.accuracy:.4f} masked-LM after {summary.samples:,} samples")
    print(f"speed    {summary.samples_per_s:,.1f} samples/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
