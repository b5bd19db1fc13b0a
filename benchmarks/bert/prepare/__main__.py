"""Command line of the preparation: `python -m benchmarks.bert.prepare STEP --help`. Untimed."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import BrokenExecutor
from importlib import import_module

from benchmarks.bert.complaint import FAILED, complain

# Each step, and the function that gives a parser the step's options and what runs it. Only the module of the step that
# is asked for is imported: some take seconds, and every process of a preparation would wait for them.
_STEPS = {
    "kjv": "commands.add_kjv",
    "split": "commands.add_split",
    "vocabulary": "commands.add_vocabulary",
    "extract": "commands.add_extract",
    "wiki": "commands.add_wiki",
    "samples": "commands.add_samples",
    "digest": "commands.add_digest",
    "import": "exchange.add_import",
    "export": "exchange.add_export",
    "check": "check.command.add_check",
    "stage": "stage.add_stage",
}


def _parser(name: str) -> argparse.ArgumentParser:
    """The parser of one step, or of all of them where `name` is none."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bert.prepare", description=__doc__)
    steps = parser.add_subparsers(required=True, metavar="STEP")
    for place in [_STEPS[name]] if name in _STEPS else _STEPS.values():
        module, _, add = place.rpartition(".")
        getattr(import_module(f"benchmarks.bert.prepare.{module}"), add)(steps)
    return parser


def main() -> int:
    arguments = _parser(sys.argv[1] if len(sys.argv) > 1 else "").parse_args()
    try:
        status: int | None = arguments.run(arguments)  # of a step that has more to say than done
    except (ValueError, OSError) as error:  # every refusal of ours is a ValueError whose text is the message
        return complain(error, FAILED)
    except KeyboardInterrupt:
        return complain("interrupted; run it again to go on", 130)
    except BrokenExecutor:
        return complain("a process of the preparation was killed, perhaps for memory; run it again", FAILED)
    return status or 0


if __name__ == "__main__":
    sys.exit(main())
