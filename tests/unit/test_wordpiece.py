"""WordPiece: a vocabulary that the text alone decides, encoding as BERT's, and unusable vocabulary files refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bert.prepare.wordpiece import (
    MAX_VOCABULARY,
    SPECIAL_TOKENS,
    UNK,
    VocabularyError,
    encode,
    read_vocabulary,
    train_vocabulary,
    write_vocabulary,
)
from tests.support.corpora import make_documents, make_vocabulary

ENTRIES = [*SPECIAL_TOKENS, "the", "un", "##aff", "##able", "cafe", ",", ".", "[", "]", "mask", "一", "##s"]


def pieces(sentence: str, vocabulary: list[str] = ENTRIES) -> list[str]:
    [[ids]] = encode([[sentence]], vocabulary)
    return [vocabulary[index] for index in ids]


@pytest.mark.parametrize("size", [60, 120, 400])
def test_training_gives_the_same_vocabulary_every_time(size: int) -> None:
    documents = make_documents(80)
    first = train_vocabulary(documents, size)
    for _ in range(4):
        assert train_vocabulary(iter(documents), size) == first


def test_training_puts_the_special_tokens_first_and_repeats_nothing() -> None:
    vocabulary = train_vocabulary(make_documents(80), 120)
    assert vocabulary[: len(SPECIAL_TOKENS)] == SPECIAL_TOKENS
    assert len(set(vocabulary)) == len(vocabulary) == 120


def test_a_trained_vocabulary_spells_its_own_text_without_unknowns() -> None:
    documents = make_documents(40)
    vocabulary = train_vocabulary(documents, 100)
    ids = {index for document in encode(documents, vocabulary) for sentence in document for index in sentence}
    assert vocabulary.index(UNK) not in ids
    assert min(ids) >= len(SPECIAL_TOKENS)


def test_training_knows_no_words_in_empty_text() -> None:
    assert train_vocabulary([], 100) == SPECIAL_TOKENS


def test_vocabulary_survives_writing_and_reading(tmp_path: Path) -> None:
    write_vocabulary(tmp_path / "new" / "vocab.txt", make_vocabulary())
    assert read_vocabulary(tmp_path / "new" / "vocab.txt") == make_vocabulary()


@pytest.mark.parametrize("entry", ["\u2028", "a\x85b", "\x1c", "\u00e9", " "])
def test_entries_that_hold_odd_characters_keep_their_ids(tmp_path: Path, entry: str) -> None:
    vocabulary = [*SPECIAL_TOKENS, entry, "last"]
    write_vocabulary(tmp_path / "vocab.txt", vocabulary)
    assert read_vocabulary(tmp_path / "vocab.txt") == vocabulary


@pytest.mark.parametrize("content", ["\r\n".join(ENTRIES) + "\r\n", "\n".join(ENTRIES)])
def test_line_ends_of_other_systems_and_a_missing_last_one_are_read(tmp_path: Path, content: str) -> None:
    (tmp_path / "vocab.txt").write_bytes(content.encode())
    assert read_vocabulary(tmp_path / "vocab.txt") == ENTRIES


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        ([], r"lacks \[PAD\], \[UNK\], \[CLS\], \[SEP\], \[MASK\]"),
        (["the", "of"], "not a BERT vocabulary"),
        ([token for token in ENTRIES if token != "[MASK]"], r"lacks \[MASK\]"),
        ([*ENTRIES, "the"], "stands twice"),
        ([*ENTRIES, *(f"word{number}" for number in range(MAX_VOCABULARY))], "at most 65536"),
    ],
)
def test_an_unusable_vocabulary_is_refused_by_name(tmp_path: Path, entries: list[str], complaint: str) -> None:
    write_vocabulary(tmp_path / "vocab.txt", entries)
    with pytest.raises(VocabularyError, match=rf"vocab\.txt: .*{complaint}"):
        read_vocabulary(tmp_path / "vocab.txt")


def test_the_largest_vocabulary_is_accepted(tmp_path: Path) -> None:
    entries = [*SPECIAL_TOKENS, *(f"word{number}" for number in range(MAX_VOCABULARY - len(SPECIAL_TOKENS)))]
    write_vocabulary(tmp_path / "vocab.txt", entries)
    assert len(read_vocabulary(tmp_path / "vocab.txt")) == MAX_VOCABULARY


def test_a_missing_vocabulary_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match=r"vocab\.txt: cannot read the vocabulary \(No such file"):
        read_vocabulary(tmp_path / "vocab.txt")


def test_a_vocabulary_that_is_not_utf8_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes("[PAD]\ncaf\u00e9\n".encode("latin-1"))
    with pytest.raises(VocabularyError, match=r"vocab\.txt: .*not UTF-8 at byte 9"):
        read_vocabulary(tmp_path / "vocab.txt")


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("The UNAFFABLE cafe", ["the", "un", "##aff", "##able", "cafe"]),
        ("Caf\u00e9, cafe\u0301.", ["cafe", ",", "cafe", "."]),
        ("the zebra", ["the", UNK]),
        ("thezebra the", [UNK, "the"]),
        ("[MASK]", ["[", "mask", "]"]),
        ("the\u4e00the", ["the", "\u4e00", "the"]),
        ("the\u2028un\u00a0the\tun", ["the", "un", "the", "un"]),
        ("\ufeffun\u200baff\x00able\f", ["un", "##aff", "##able"]),
        ("un" + "s" * 198, ["un", *["##s"] * 198]),
        ("un" + "s" * 199, [UNK]),
    ],
)
def test_encoding_is_berts(sentence: str, expected: list[str]) -> None:
    assert pieces(sentence) == expected


def test_sentences_and_documents_without_a_token_are_dropped() -> None:
    documents = [["\ufffd", "the", "\u200b"], ["\u200b"], [], ["un", "un"]]
    assert encode(documents, ENTRIES) == [[[5]], [[6], [6]]]
