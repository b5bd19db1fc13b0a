"""Sizes in, the speed of our training step out: by samples, by FLOPs, by part, and beside a padded Hugging Face BERT.

    python -m pip install -r requirements-bench.txt
    python -m benchmarks.bert.bench step --vs-huggingface

Everything that is divided by another is measured in one process, in turn, on the same samples, so that a busy machine
disturbs both alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.bert.bench.configurations import CONFIGURATIONS, TINY
from benchmarks.bert.bench.lengths import read_shares, wikipedia_shares
from benchmarks.bert.bench.measure import Plan, measure
from benchmarks.bert.bench.ranks import on_ranks
from benchmarks.bert.config import ATTENTIONS, FUSIONS, LAST_LAYERS, OPTIMIZERS, PRECISIONS

_SHAPES = CONFIGURATIONS | {"tiny": TINY}  # `tiny` is for tests, and too small to mean anything


def main(argv: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(argv)
    share_L = read_shares(options.histogram) if options.histogram else wikipedia_shares()
    for name in options.configuration or list(CONFIGURATIONS):
        plan = Plan(
            name=name,
            shape=replace(_SHAPES[name], dropout=options.dropout),
            num_steps=options.steps,
            batch_size=options.batch,
            precision=options.precision,
            attention=options.attention,
            fusion=options.fusion,
            last_layer=options.last_layer,
            share_L=share_L,
            optimizer=options.optimizer,
            versus_padded=options.vs_huggingface,
            versus_sharded=options.vs_sharded,
        )
        on_ranks(options.ranks, options.device, options.threads, measure, plan)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bert.bench step")
    parser.add_argument("--vs-huggingface", action="store_true", help="compare with a padded BERT of transformers")
    parser.add_argument("--vs-sharded", action="store_true", help="compare with a sharded optimizer")
    parser.add_argument("--configuration", nargs="+", choices=_SHAPES, metavar="|".join(CONFIGURATIONS))
    parser.add_argument("--steps", type=_at_least_1, default=10, help="measured steps (default 10)")
    parser.add_argument("--batch", type=_at_least_1, default=16, help="samples per rank and step (default 16)")
    parser.add_argument("--dropout", type=_probability, default=0.1, help="of both models (default 0.1)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument("--attention", choices=ATTENTIONS, default="auto")
    parser.add_argument("--fusion", choices=FUSIONS, default="auto")
    parser.add_argument("--last-layer", choices=LAST_LAYERS, default="only_read")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adam")
    parser.add_argument("--threads", type=_at_least_1, default=1, help="of each rank on a CPU (default 1)")
    parser.add_argument("--ranks", type=_at_least_1, default=1, help="processes that train together (default 1)")
    parser.add_argument("--histogram", type=Path, help="length,count lines instead of the built-in coarse lengths")
    return parser


def _at_least_1(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number from 1")
    return int(text)


def _probability(text: str) -> float:
    if not 0.0 <= (value := float(text)) < 1.0:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a number from 0 to below 1")
    return value


if __name__ == "__main__":
    main()
