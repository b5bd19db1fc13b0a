"""The step `check` of the command line. Exit status: 0 nothing but warnings, 1 findings, 2 it cannot be judged."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bert.complaint import FAILED, REFUSED, complain
from benchmarks.bert.data.manifest import ManifestError
from benchmarks.bert.prepare.check.finding import Severity, lines
from benchmarks.bert.prepare.check.folder import check_folder
from benchmarks.bert.prepare.options import count, num_cores
from benchmarks.bert.prepare.wordpiece import VocabularyError

if TYPE_CHECKING:
    Steps = argparse._SubParsersAction[argparse.ArgumentParser]


def add_check(steps: Steps) -> None:
    step = steps.add_parser("check", help="what is wrong with a prepared folder; 0 nothing, 1 something, 2 unusable")
    step.set_defaults(run=_check)
    step.add_argument("folder", type=Path)
    step.add_argument("--against", type=Path, metavar="EVALDIR", help="evaluation samples, which must not be in it")
    step.add_argument("--vocab", type=Path, help="default: vocab.txt in the folder or beside it")
    step.add_argument("--processes", type=count, default=num_cores())


def _check(arguments: argparse.Namespace) -> int:
    try:
        report = check_folder(
            arguments.folder,
            vocabulary=arguments.vocab,
            against=arguments.against,
            num_processes=arguments.processes,
        )
    except (ManifestError, VocabularyError, OSError) as error:
        return complain(error, REFUSED)
    for line in lines(report.findings):
        print(line)
    num_errors, num_warnings = report.count(Severity.ERROR), report.count(Severity.WARNING)
    print(
        f"{arguments.folder}: {report.num_shards:,} shards, {report.num_samples:,} samples, "
        f"{report.num_tokens:,} tokens; {num_errors:,} errors, {num_warnings:,} warnings"
    )
    return FAILED if num_errors else 0
