"""The steps `import` and `export` of the command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bert.prepare.exporting import DTYPES, export_fixed
from benchmarks.bert.prepare.forms.form import FIXED, FORMS
from benchmarks.bert.prepare.importing import import_files
from benchmarks.bert.prepare.options import count, num_cores, warn
from benchmarks.bert.prepare.samples import Recipe

if TYPE_CHECKING:
    Steps = argparse._SubParsersAction[argparse.ArgumentParser]


def add_import(steps: Steps) -> None:
    step = steps.add_parser("import", help="sample files of other harnesses, as a folder of shards")
    step.set_defaults(run=_import)
    step.add_argument("files", type=Path, nargs="+", help="TFRecord, fixed-length or variable-length HDF5")
    step.add_argument("--vocab", type=Path, required=True, help="the vocabulary that they were made with")
    step.add_argument("--out", type=Path, required=True)
    step.add_argument("--form", choices=FORMS, help="default: found by content, file by file")
    step.add_argument("--shards", type=count, help="default: one for each file")
    default = Recipe()
    step.add_argument("--max-length", type=count, default=default.max_length)
    step.add_argument("--max-predictions", type=count, default=default.max_predictions)
    step.add_argument("--processes", type=count, default=num_cores())


def _import(arguments: argparse.Namespace) -> None:
    manifest = import_files(
        arguments.files,
        arguments.vocab,
        arguments.out,
        form=arguments.form,
        max_length=arguments.max_length,
        max_predictions=arguments.max_predictions,
        num_shards=arguments.shards,
        num_processes=arguments.processes,
        warn=warn,
    )
    print(
        f"{arguments.out}: {manifest.num_samples:,} samples, {manifest.num_tokens:,} tokens, "
        f"mean length {manifest.num_tokens / manifest.num_samples:.1f} of {manifest.max_length}"
    )


def add_export(steps: Steps) -> None:
    step = steps.add_parser("export", help="a folder of shards as HDF5 files that other harnesses read")
    step.set_defaults(run=_export)
    step.add_argument("folder", type=Path)
    step.add_argument("--out", type=Path, required=True, help="folder for part_00000_of_N.hdf5 …")
    step.add_argument("--form", choices=(FIXED,), default=FIXED, help="fixed: padded to the recipe's length")
    step.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help="of ids and positions (int32)")
    step.add_argument("--processes", type=count, default=num_cores())


def _export(arguments: argparse.Namespace) -> None:
    num_samples = export_fixed(
        arguments.folder, arguments.out, dtype=arguments.dtype, num_processes=arguments.processes
    )
    print(f"{arguments.out}: {num_samples:,} samples")
