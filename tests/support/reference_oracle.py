"""A text's bytes and a vocabulary in, the samples of the benchmark's recipe out: slowly, step by step, token by token.

Written from the description of the recipe alone (docs/prepare.md), with strings for tokens and `random` for the draws;
it shares nothing with what it checks.
"""

from __future__ import annotations

import hashlib
import struct
import unicodedata
from dataclasses import dataclass
from random import Random

SENTENCE_BORDERS = 3  # [CLS], [SEP] and [SEP]


@dataclass
class Drawn:
    tokens: list[str]
    boundary: int
    positions: list[int]
    labels: list[str]
    is_random: bool


def reference_samples(
    text: bytes,
    vocabulary: list[str],
    *,
    seed: int = 12345,
    max_length: int = 512,
    max_predictions: int = 76,
    duplicates: int = 10,
    short_share: float = 0.1,
    masked_share: float = 0.15,
) -> list[Drawn]:
    documents = read_documents(text, set(vocabulary))
    rng = Random(seed)
    rng.shuffle(documents)
    result = []
    for _ in range(duplicates):
        for number in range(len(documents)):
            for first, second, is_random in Pairs(documents, number, max_length - SENTENCE_BORDERS, short_share, rng):
                tokens = ["[CLS]", *first, "[SEP]", *second, "[SEP]"]
                limit = min(max_predictions, max(1, round(len(tokens) * masked_share)))
                masked, positions, labels = mask(tokens, limit, vocabulary, rng)
                result.append(Drawn(masked, len(first) + 2, positions, labels, is_random))
    rng.shuffle(result)
    return result


def read_documents(text: bytes, entries: set[str]) -> list[list[list[str]]]:
    """Documents of sentences of tokens. Lines end at line feeds, carriage returns vanish, an empty line is a border."""
    documents: list[list[list[str]]] = [[]]
    for line in text.decode("utf-8").replace("\r", "").split("\n"):
        if line.strip() == "":
            documents.append([])
        tokens = [piece for word in basic_words(line) for piece in pieces_of(word, entries)]
        if tokens:
            documents[-1].append(tokens)
    return [document for document in documents if document]


def basic_words(line: str) -> list[str]:
    """Words in lower case without accents; each punctuation mark and each ideograph is a word of its own."""
    cleaned = ""
    for character in line:
        kind = unicodedata.category(character)
        if character in "\t\n\r" or kind == "Zs":
            cleaned += " "
        elif kind in ("Cc", "Cf") or ord(character) in (0, 0xFFFD):
            continue
        elif is_ideograph(ord(character)):
            cleaned += " " + character + " "
        else:
            cleaned += character
    words = []
    for word in cleaned.split():
        bare = [
            character
            for character in unicodedata.normalize("NFD", word.lower())
            if unicodedata.category(character) != "Mn"
        ]
        spaced = "".join(f" {character} " if is_punctuation(character) else character for character in bare)
        words.extend(spaced.split())
    return words


def is_ideograph(point: int) -> bool:
    return (
        0x4E00 <= point <= 0x9FFF
        or 0x3400 <= point <= 0x4DBF
        or 0x20000 <= point <= 0x2A6DF
        or 0x2A700 <= point <= 0x2B73F
        or 0x2B740 <= point <= 0x2B81F
        or 0x2B820 <= point <= 0x2CEAF
        or 0xF900 <= point <= 0xFAFF
        or 0x2F800 <= point <= 0x2FA1F
    )


def is_punctuation(character: str) -> bool:
    if "!" <= character <= "~":
        return not character.isalnum()
    return unicodedata.category(character).startswith("P")


def pieces_of(word: str, entries: set[str]) -> list[str]:
    """The longest entry from the left, again and again; [UNK] for a word that has none somewhere or is too long."""
    if len(word) > 200:
        return ["[UNK]"]
    pieces: list[str] = []
    rest = word
    while rest:
        for size in range(len(rest), 0, -1):
            piece = rest[:size] if not pieces else "##" + rest[:size]
            if piece in entries:
                pieces.append(piece)
                rest = rest[size:]
                break
        else:
            return ["[UNK]"]
    return pieces


class Pairs:
    """Pairs of A and B of one document, one at a time: masking draws from the same generator between two pairs."""

    def __init__(
        self, documents: list[list[list[str]]], number: int, room: int, short_share: float, rng: Random
    ) -> None:
        self.documents, self.number, self.room, self.rng = documents, number, room, rng
        self.target = rng.randint(2, room) if rng.random() < short_share else room
        self.place = 0

    def __iter__(self) -> Pairs:
        return self

    def __next__(self) -> tuple[list[str], list[str], bool]:
        document = self.documents[self.number]
        if self.place >= len(document):
            raise StopIteration
        chunk: list[list[str]] = []
        while self.place < len(document):
            chunk.append(document[self.place])
            self.place += 1
            if sum(len(sentence) for sentence in chunk) >= self.target:
                break
        num_first = self.rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
        first = [token for sentence in chunk[:num_first] for token in sentence]
        if len(chunk) == 1 or self.rng.random() < 0.5:
            second, is_random = self.stranger(self.target - len(first)), True
            self.place -= len(chunk) - num_first
        else:
            second, is_random = [token for sentence in chunk[num_first:] for token in sentence], False
        self.cut(first, second)
        return first, second, is_random

    def stranger(self, wanted: int) -> list[str]:
        for _ in range(10):
            other = self.rng.randint(0, len(self.documents) - 1)
            if other != self.number:
                break
        sentences = self.documents[other]
        tokens: list[str] = []
        for place in range(self.rng.randint(0, len(sentences) - 1), len(sentences)):
            tokens.extend(sentences[place])
            if len(tokens) >= wanted:
                break
        return tokens

    def cut(self, first: list[str], second: list[str]) -> None:
        while len(first) + len(second) > self.room:
            longer = first if len(first) > len(second) else second
            if self.rng.random() < 0.5:
                longer.pop(0)
            else:
                longer.pop()


def mask(tokens: list[str], limit: int, vocabulary: list[str], rng: Random) -> tuple[list[str], list[int], list[str]]:
    places = [place for place, token in enumerate(tokens) if token not in ("[CLS]", "[SEP]")]
    rng.shuffle(places)
    shown = list(tokens)
    for place in places[:limit]:
        if rng.random() < 0.8:
            shown[place] = "[MASK]"
        elif rng.random() >= 0.5:
            shown[place] = vocabulary[rng.randint(0, len(vocabulary) - 1)]
    positions = sorted(places[:limit])
    return shown, positions, [tokens[place] for place in positions]


def content_digest(samples: list[Drawn], vocabulary: list[str]) -> str:
    """SHA-256 over the seven arrays of int32: tokens, their offsets, boundary, positions, ids, their offsets, label."""
    ids = {entry: number for number, entry in enumerate(vocabulary)}
    token_offsets, mlm_offsets = [0], [0]
    for sample in samples:
        token_offsets.append(token_offsets[-1] + len(sample.tokens))
        mlm_offsets.append(mlm_offsets[-1] + len(sample.positions))
    arrays = [
        [ids[token] for sample in samples for token in sample.tokens],
        token_offsets,
        [sample.boundary for sample in samples],
        [position for sample in samples for position in sample.positions],
        [ids[label] for sample in samples for label in sample.labels],
        mlm_offsets,
        [int(sample.is_random) for sample in samples],
    ]
    return hashlib.sha256(b"".join(struct.pack(f"<{len(array)}i", *array) for array in arrays)).hexdigest()
