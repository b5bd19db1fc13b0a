"""Sentences in, WordPiece ids out; and a vocabulary from a corpus.

Lower-cased, accents stripped, punctuation split: the reference's `FullTokenizer` with `do_lower_case`, on this Python's
Unicode tables. Hugging Face `tokenizers` trains the vocabulary but does not encode: it departs from the reference where
text is odd (docs/prepare.md lists how), and looking up words that were met before is faster.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from array import array
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from benchmarks.bert.files import atomic_write
from benchmarks.bert.prepare.corpus import Document
from benchmarks.bert.prepare.samples import TokenizedText

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = [PAD, UNK, CLS, SEP, MASK]
MAX_VOCABULARY = 1 << 16  # shards store ids in 16 bits

_LONGEST_WORD = 200  # characters; the reference maps longer words to [UNK]
_MOST_WORDS = 1 << 19  # remembered at once: 150 MB at most
_CJK = (  # ideographs, each a word of its own
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)
_LONGEST_AT_ONCE = 1 << 20  # characters of a sentence
_WHITE_SPACE = re.compile(r"\s")
_ASCII_PARTS = re.compile(r"[0-9a-z]+|[^0-9a-z]")  # of a word without control characters
_ASCII_PUNCTUATION = frozenset(map(chr, [*range(33, 48), *range(58, 65), *range(91, 97), *range(123, 127)]))


class VocabularyError(ValueError):
    """The vocabulary file cannot be used; the message names the file and what it lacks."""


def _tokenizer(model: models.WordPiece) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def train_vocabulary(documents: Iterable[Document], size: int) -> list[str]:
    """A WordPiece vocabulary of at most `size` entries, special tokens first, the same for the same text."""
    sentences = [sentence for document in documents for sentence in document]
    # The trainer numbers the "##" letters in an order that changes from call to call, and breaks ties by number.
    # A first pass that learns no pairs finds those letters; given as special tokens they keep their sorted order.
    letters = [entry for entry in sorted(_train(sentences, 0, SPECIAL_TOKENS)) if entry.startswith("##")]
    vocabulary = _train(sentences, size, [*SPECIAL_TOKENS, *letters])
    return sorted(vocabulary, key=vocabulary.__getitem__)


def _train(sentences: list[str], size: int, special_tokens: list[str]) -> dict[str, int]:
    tokenizer = _tokenizer(models.WordPiece(unk_token=UNK))
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special_tokens, show_progress=False)
    tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer.get_vocab()


def write_vocabulary(path: Path, vocabulary: list[str]) -> None:
    """One entry a line, the line number is the id."""
    with atomic_write(path) as temporary:
        temporary.write_text("".join(f"{entry}\n" for entry in vocabulary), "utf-8")


def read_vocabulary(path: Path) -> list[str]:
    """Entries by id. Refuses a file without BERT's special tokens, with a repeated entry or too long for 16 bits."""
    try:
        # Lines end at \n alone: an entry may hold what Python takes for another line end, as U+2028.
        vocabulary = path.read_text("utf-8").removesuffix("\n").split("\n")
    except OSError as error:
        raise VocabularyError(f"{path}: cannot read the vocabulary ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise VocabularyError(f"{path}: not a BERT vocabulary, not UTF-8 at byte {error.start}") from error
    if missing := [token for token in SPECIAL_TOKENS if token not in vocabulary]:
        raise VocabularyError(f"{path}: not a BERT vocabulary, it lacks {', '.join(missing)}")
    if len(set(vocabulary)) != len(vocabulary):
        raise VocabularyError(f"{path}: an entry stands twice")
    if len(vocabulary) > MAX_VOCABULARY:
        raise VocabularyError(f"{path}: {len(vocabulary)} entries, at most {MAX_VOCABULARY} fit the shards' 16 bits")
    return vocabulary


def encode(documents: Iterable[Document], vocabulary: list[str]) -> list[list[list[int]]]:
    """Ids of each sentence of each document, without special tokens; sentences and documents left empty are dropped."""
    encoder = Encoder(vocabulary)
    encoded = (
        [np.frombuffer(ids, np.uint16).tolist() for sentence in document if (ids := encoder.encode(sentence))]
        for document in documents
    )
    return [document for document in encoded if document]


def tokenize(documents: Iterable[Iterable[str]], encoder: Encoder) -> TokenizedText:
    """The same as flat arrays: ten times smaller than lists."""
    tokens, sentences, lengths = bytearray(), array("q", [0]), array("q", [0])
    for document in documents:
        for sentence in document:
            if ids := encoder.encode(sentence):
                tokens += ids
                sentences.append(len(tokens) // 2)
        if len(sentences) - 1 > lengths[-1]:
            lengths.append(len(sentences) - 1)
    return TokenizedText(
        np.frombuffer(tokens, np.uint16), np.frombuffer(sentences, np.int64), np.frombuffer(lengths, np.int64)
    )


class Encoder:
    """WordPiece with one vocabulary; it remembers the words it has met."""

    def __init__(self, vocabulary: list[str]) -> None:
        self._words = _Words(vocabulary)
        self._odd = _odd_characters()

    def encode(self, sentence: str) -> bytes:
        """Ids of a sentence as uint16, end to end; empty where nothing of it is left."""
        if len(sentence) > _LONGEST_AT_ONCE:
            return b"".join(map(self._encode, _portions(sentence)))
        return self._encode(sentence)

    def _encode(self, sentence: str) -> bytes:
        if not (sentence.isascii() and sentence.isprintable()) and self._odd.search(sentence):
            sentence = self._odd.sub(_replace_odd, sentence)
        ids = b"".join(map(self._words.__getitem__, sentence.split()))
        if len(self._words) > _MOST_WORDS:
            self._words.clear()
        return ids


def _portions(sentence: str) -> Iterator[str]:
    """A very long sentence in parts that end at white space: its words all at once would take ten times its size."""
    start = 0
    while start < len(sentence):
        border = _WHITE_SPACE.search(sentence, start + _LONGEST_AT_ONCE // 2)
        stop = border.end() if border else len(sentence)
        yield sentence[start:stop]
        start = stop


class _Words(dict[str, bytes]):
    """The ids of each word between white space, found when it is first asked for."""

    def __init__(self, vocabulary: list[str]) -> None:
        super().__init__()
        numbers = np.arange(len(vocabulary), dtype=np.uint16).tobytes()
        self._ids = {entry: numbers[2 * index : 2 * index + 2] for index, entry in enumerate(vocabulary)}
        self._longest = max(map(len, vocabulary))
        self._later_ids = {entry[2:]: ids for entry, ids in self._ids.items() if entry.startswith("##")}
        self._pieces: dict[str, bytes] = {}  # of the parts of words between punctuation

    def clear(self) -> None:
        super().clear()
        self._pieces.clear()

    def __missing__(self, word: str) -> bytes:
        # Lower case first, of the whole word: what a capital sigma becomes depends on its place in it.
        plain = word.lower()
        if not plain.isascii():
            decomposed = unicodedata.normalize("NFD", plain)
            bare = "".join(character for character in decomposed if unicodedata.category(character) != "Mn")
            found = b"".join(map(self._piece, _parts(bare)))
        elif plain.isalnum():
            found = self._piece(plain)
        else:
            found = b"".join(map(self._piece, _ASCII_PARTS.findall(plain)))
        self[word] = found
        return found

    def _piece(self, part: str) -> bytes:
        if (found := self._pieces.get(part)) is None:
            found = self._pieces[part] = self._longest_matches(part)
        return found

    def _longest_matches(self, part: str) -> bytes:
        """From left to right the longest entry that fits, later ones with ## before them; [UNK] where none does."""
        unknown = self._ids[UNK]
        if len(part) > _LONGEST_WORD:
            return unknown
        pieces = []
        start, ids = 0, self._ids
        while start < len(part):
            for stop in range(min(len(part), start + self._longest), start, -1):
                if (piece := ids.get(part[start:stop])) is not None:
                    break
            else:
                return unknown
            pieces.append(piece)
            start, ids = stop, self._later_ids
        return b"".join(pieces)


def _parts(word: str) -> Iterator[str]:
    """The parts of a word between punctuation, and each punctuation mark; none is empty."""
    start = 0
    for place, character in enumerate(word):
        if character in _ASCII_PUNCTUATION or (character > "\x7f" and unicodedata.category(character)[0] == "P"):
            if start < place:
                yield word[start:place]
            yield character
            start = place + 1
    if start < len(word):
        yield word[start:]


@cache
def _odd_characters() -> re.Pattern[str]:
    """Finds what `_replace_odd` replaces."""
    dropped = [
        point
        for point in range(sys.maxunicode + 1)
        if point == 0xFFFD or (unicodedata.category(chr(point)) in ("Cc", "Cf") and chr(point) not in "\t\n\r")
    ]
    return re.compile(f"[{''.join(f'{chr(low)}-{chr(high)}' for low, high in [*_CJK, *_runs(dropped)])}]")


def _runs(points: list[int]) -> Iterator[tuple[int, int]]:
    """Ranges of consecutive numbers in an ascending list."""
    first = last = points[0]
    for point in points[1:]:
        if point != last + 1:
            yield first, last
            first = point
        last = point
    yield first, last


def _replace_odd(found: re.Match[str]) -> str:
    """Space around an ideograph; nothing for a control or format character or one that could not be decoded."""
    character = found[0]
    return f" {character} " if any(low <= ord(character) <= high for low, high in _CJK) else ""
