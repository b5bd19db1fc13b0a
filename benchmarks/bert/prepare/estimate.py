"""Text, a recipe and a vocabulary in, what its samples will come to out: their number, bytes and time."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bert.prepare.corpus import CorpusError, Document, read_lines
from benchmarks.bert.prepare.samples import Recipe, SpecialIds, draw_samples
from benchmarks.bert.prepare.wordpiece import Encoder, tokenize

_PLACES = 32  # of the text that are looked at
_BYTES_OF_A_SAMPLE = 8 + 8 + 2 + 1 + 2  # two offsets, boundary, nsp; and its length beside the shards
_BYTES_OF_A_SHARD = 6000  # HDF5's own
_SEVERAL_SENTENCES = re.compile(r"[.?!][\"')\]]*\s+[\"'(\[]*[A-Z].*[.?!][\"')\]]*\s+[\"'(\[]*[A-Z]")


@dataclass(frozen=True)
class Estimate:
    num_samples: float
    num_tokens: float
    num_predictions: float
    core_s: float  # on one core
    text_bytes: int
    several_sentences_share: float  # of the lines

    def output_bytes(self, num_shards: int) -> int:
        return round(
            2 * self.num_tokens
            + 4 * self.num_predictions
            + _BYTES_OF_A_SAMPLE * self.num_samples
            + _BYTES_OF_A_SHARD * num_shards
        )


def estimate(
    texts: Sequence[Path], encoder: Encoder, recipe: Recipe, special: SpecialIds, num_vocabulary: int, *, num_bytes: int
) -> Estimate:
    """Make the samples of about `num_bytes` of the text, from places all over it, and scale up; of all, if it is less.

    How many samples a text makes varies with its documents: with 8 MB of an encyclopedia the number lies within some
    percent.
    """
    sizes = [_size(path) for path in texts]
    total = sum(sizes)
    documents: list[Document] = []
    seen = 0
    num_places = _PLACES if total > num_bytes else 1
    for number in range(num_places):
        place = number * total // num_places
        quota = num_bytes // num_places if total > num_bytes else total
        for path, size in zip(texts, sizes, strict=True):
            if place < size and quota > 0:
                found, read = _documents(path, place, quota)
                documents += found
                seen += read
                quota -= size - place
            place = max(0, place - size)
    started = time.process_time()
    drawn = draw_samples(tokenize(documents, encoder), recipe, special, num_vocabulary)
    num_tokens = sum(len(drawn.tokens(row, row + 1000)) for row in range(0, len(drawn), 1000))
    core_s = 1.2 * (time.process_time() - started)  # reading and writing come to it
    scale = total / seen if seen else 0.0
    lines = [sentence for document in documents for sentence in document]
    return Estimate(
        num_samples=scale * len(drawn),
        num_tokens=scale * num_tokens,
        num_predictions=scale * len(drawn.mlm_ids),
        core_s=scale * core_s,
        text_bytes=total,
        several_sentences_share=sum(map(bool, map(_SEVERAL_SENTENCES.search, lines))) / max(1, len(lines)),
    )


def check_room(folder: Path, needed: int) -> None:
    """Refuse where the disk has not `needed` bytes left."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if (free := shutil.disk_usage(existing).free) < needed:
        raise CorpusError(
            f"{folder}: the samples need about {needed:,} bytes, the disk has {free:,} left; make room, give less text "
            "or fewer --duplicates, or another --out"
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise CorpusError(f"{path}: cannot read the text ({error.strerror})") from error


def _documents(path: Path, place: int, quota: int) -> tuple[list[Document], int]:
    """Whole documents from `place` on until `quota` bytes are read, and how many bytes they are.

    A document that is longer than the quota is cut.
    """
    documents: list[Document] = [[]]
    first: int | None = place if place == 0 else None
    after = place
    for start, stop, line in read_lines(path, place):
        if start > place + 2 * quota:
            break
        if first is None:
            # The line that `place` cuts, and the rest of its document, are passed over if they are not too long.
            if start > place and (not line.strip() or start > place + quota):
                first = stop
            continue
        after = stop
        if line.strip():
            documents[-1].append(line)
        else:
            if stop > first + quota:
                break
            documents.append([])
    return [document for document in documents if document], after - first if first is not None else 0
