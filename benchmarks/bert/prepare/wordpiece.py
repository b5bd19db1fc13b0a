"""Sentences in, WordPiece ids out; and a vocabulary from a corpus.

Lower-cased, accents stripped, punctuation split: the reference's `FullTokenizer` with `do_lower_case`,
by Hugging Face `tokenizers`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from benchmarks.bert.files import atomic_write
from benchmarks.bert.prepare.corpus import Document

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = [PAD, UNK, CLS, SEP, MASK]
MAX_VOCABULARY = 1 << 16  # shards store ids in 16 bits

_LONGEST_WORD = 200  # characters; the reference maps longer words to [UNK]


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
    model = models.WordPiece(
        vocab={entry: index for index, entry in enumerate(vocabulary)},
        unk_token=UNK,
        max_input_chars_per_word=_LONGEST_WORD,
    )
    tokenizer = _tokenizer(model)
    encoded = (
        [ids for sentence in tokenizer.encode_batch_fast(document) if (ids := sentence.ids)] for document in documents
    )
    return [document for document in encoded if document]
