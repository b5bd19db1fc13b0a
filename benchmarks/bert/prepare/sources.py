"""Text files in, the text of each shard out: documents dealt over shards, or each file as a shard of its own.

A source says where its documents stand, and what they were when the preparation began: a worker that finds them changed
refuses them.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import numpy as np

from benchmarks.bert.files import sha256_of
from benchmarks.bert.prepare.corpus import CorpusError, Document, read_as_reference, read_lines, read_places


class Source(Protocol):
    """The text of one shard."""

    @property
    def sha256(self) -> str:
        """Identifies the text."""

    @property
    def num_bytes(self) -> int: ...

    def documents(self) -> Iterator[Document]:
        """The documents; raises CorpusError, at the latest after the last one, if they have changed since."""


@dataclass(frozen=True)
class WholeFile:
    """One file, read as the reference reads its input."""

    path: Path
    sha256: str
    num_bytes: int

    def documents(self) -> Iterator[Document]:
        yield from read_as_reference(self.path)
        if sha256_of(self.path) != self.sha256:
            raise _changed(self.path)


@dataclass(frozen=True)
class Dealt:
    """Some documents of some files."""

    texts: tuple[Path, ...]
    places: np.ndarray  # int64 (documents, 3): number of the file, first byte, byte after the last
    sha256: str  # over the documents as JSON

    @property
    def num_bytes(self) -> int:
        return int((self.places[:, 2] - self.places[:, 1]).sum())

    def documents(self) -> Iterator[Document]:
        found = _JsonDigest()
        for number, start, stop in self.places.tolist():
            lines = (line.strip() for _, _, line in read_lines(self.texts[number], start, stop))
            document = [line for line in lines if line]
            found.add(document)
            yield document
        if found.hexdigest() != self.sha256:
            raise _changed(*self.texts)


def whole_files(texts: Sequence[Path]) -> list[Source]:
    """A shard for each file."""
    sources: list[Source] = []
    for path in texts:
        try:
            sources.append(WholeFile(path, sha256_of(path), path.stat().st_size))
        except OSError as error:
            raise CorpusError(f"{path}: cannot read the text ({error.strerror})") from error
    if not sources:
        raise CorpusError("no text; name at least one file")
    return sources


def dealt(texts: Sequence[Path], num_shards: int) -> list[Source]:
    """Documents dealt round-robin over `num_shards` shards. Reads all text once; holds only where documents stand."""
    places = [array("q") for _ in range(num_shards)]
    digests = [_JsonDigest() for _ in range(num_shards)]
    count = 0
    for document, *place in read_places(texts):
        places[count % num_shards].extend(place)
        digests[count % num_shards].add(document)
        count += 1
    if count < 2 * num_shards:
        raise CorpusError(
            f"{', '.join(map(str, texts)) or 'no text'}: {count} documents, at least two for each of "
            f"{num_shards} shards are needed; give more text or fewer shards"
        )
    return [
        Dealt(tuple(texts), np.array(own, np.int64).reshape(-1, 3), digest.hexdigest())
        for own, digest in zip(places, digests, strict=True)
    ]


class _JsonDigest:
    """SHA-256 of a list of documents as JSON, document by document."""

    def __init__(self) -> None:
        self._digest = sha256(b"[")
        self._separator = b""

    def add(self, document: Document) -> None:
        self._digest.update(self._separator + json.dumps(document).encode())
        self._separator = b", "

    def hexdigest(self) -> str:
        whole = self._digest.copy()
        whole.update(b"]")
        return whole.hexdigest()


def _changed(*paths: Path) -> CorpusError:
    return CorpusError(
        f"{', '.join(map(str, paths))}: changed while it was being prepared; run the command again when it is final"
    )
