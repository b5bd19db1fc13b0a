"""A dump's articles as plain text: markup goes, paragraphs stay, any day is the same; and the whole way to shards."""

from __future__ import annotations

import zipfile
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import pytest

from benchmarks.bert.data.manifest import read_lengths, read_manifest
from benchmarks.bert.prepare import extract as extract_module
from benchmarks.bert.prepare import pool as pool_module
from benchmarks.bert.prepare.build import build
from benchmarks.bert.prepare.corpus import CorpusError, read_corpus
from benchmarks.bert.prepare.extract import DUMP_DATE, extract, plain_paragraphs
from benchmarks.bert.prepare.samples import Recipe
from benchmarks.bert.prepare.wiki import prepare_wiki
from benchmarks.bert.prepare.wordpiece import train_vocabulary, write_vocabulary
from tests.support.dumps import page, write_dump
from tests.support.wheels import find_wheel

DUMP = "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"


@pytest.fixture(autouse=True)
def _threads_for_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "ProcessPoolExecutor", lambda count, *_, **__: ThreadPoolExecutor(count))


@pytest.mark.parametrize(
    ("wikitext", "expected"),
    [
        ("One.\n\nTwo.", ["One.", "Two."]),
        ("'''Bold''' and ''italic''.", ['Bold and "italic".']),
        ("[[Target]] and [[target|text]]s, [[:Category:X]].", ["Target and texts,."]),
        ("a [[File:x.png|thumb|with [[link|text]] in it]] b", ["a b"]),
        ("text [[de:Text]][[Category:X]]", ["text"]),
        ("[http://x.org a page] and [http://x.org]", ["a page and"]),
        ("a{{one|{{two}}}} b {| table\n|cell\n|}", ["a b"]),
        ("a {{never closed", ["a never closed"]),
        ("a<ref name=x/> b<ref>no</ref> c<ref name='y'>no</ref>.", ["a b c."]),
        ("a<!-- no --> b<br />c <math>x^2</math>", ["a bc"]),
        ("== Heading ==\n* item\n# item\n: indented\n; term\nText.", ["Text."]),
        ("1 &lt; 2 &amp;amp; 3&nbsp;m", ["1 < 2 &amp; 3 m"]),
        ("__NOTOC__\n--\nText", ["Text"]),
    ],
)
def test_markup_goes_and_paragraphs_stay(wikitext: str, expected: list[str]) -> None:
    assert plain_paragraphs(wikitext) == expected


def test_pages_see_the_dumps_date_whatever_day_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dump = write_dump(
        tmp_path / "dump.xml.bz2", page("Day", "It is {{CURRENTDAY}} {{CURRENTMONTHNAME}} {{CURRENTYEAR}}.")
    )
    made = []
    for day in (date(2021, 3, 4), date(2031, 12, 24)):

        class Today(date):
            @classmethod
            def today(cls, day: date = day) -> date:  # type: ignore[override]
                return day

        monkeypatch.setattr(extract_module, "date", Today)
        extract(dump, tmp_path / str(day), file_bytes=1000)
        made.append((tmp_path / str(day) / "AA" / "wiki_00").read_bytes())
    assert made[0] == made[1]
    assert b"It is 1 January 2020." in made[0]
    extract(dump, tmp_path / "other", file_bytes=1000, today=date(2021, 3, 4))
    assert (tmp_path / "other" / "AA" / "wiki_00").read_bytes() != made[0]


def test_articles_are_pages_of_the_main_name_space_that_are_no_redirects(tmp_path: Path) -> None:
    dump = write_dump(
        tmp_path / "dump.xml.bz2",
        page("A &amp; B", "First &lt;b&gt;text&lt;/b&gt;.", number=7),
        page("Talk:A", "No.", space=1),
        page("C", "#REDIRECT [[A]]", more='<redirect title="A"/>'),
        page("D", "Second.", number=8),
    )
    assert extract(dump, tmp_path / "out", file_bytes=1000) == (2, 1)
    assert (tmp_path / "out" / "AA" / "wiki_00").read_text() == (
        '<doc id="7" url="https://en.wikipedia.org/wiki?curid=7" title="A &amp; B">\nA & B\n\nFirst text.\n\n</doc>\n'
        '<doc id="8" url="https://en.wikipedia.org/wiki?curid=8" title="D">\nD\n\nSecond.\n\n</doc>\n'
    )


def test_files_and_folders_begin_anew_when_full_and_keep_the_order(tmp_path: Path) -> None:
    pages = [page(f"T{number}", f"Text {number}.", number=number) for number in range(230)]
    dump = write_dump(tmp_path / "dump.xml.bz2", *pages)
    assert extract(dump, tmp_path / "out", file_bytes=1, num_processes=2) == (230, 230)
    files = sorted((tmp_path / "out").glob("*/wiki_*"))
    assert [str(path.relative_to(tmp_path / "out")) for path in files[98:102]] == [
        "AA/wiki_98",
        "AA/wiki_99",
        "AB/wiki_00",
        "AB/wiki_01",
    ]
    assert [path.read_text().split("\n")[1] for path in files] == [f"T{number}" for number in range(230)]


def test_a_cut_dump_is_refused(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump.xml.bz2", *(page("T", "Text. " * 300, number=n) for n in range(50)))
    dump.write_bytes(dump.read_bytes()[:-20])
    with pytest.raises(CorpusError, match=r"dump\.xml\.bz2.*fetch the dump again"):
        extract(dump, tmp_path / "out", file_bytes=1000)


def test_broken_xml_is_refused_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "dump.xml").write_text("<mediawiki>\n<page><title>A</page>\n</mediawiki>")
    with pytest.raises(CorpusError, match=r"dump\.xml:2:\d+: broken XML"):
        extract(tmp_path / "dump.xml", tmp_path / "out", file_bytes=1000)


def test_what_holds_no_article_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"dump\.xml\.bz2: no article in it"):
        extract(write_dump(tmp_path / "dump.xml.bz2"), tmp_path / "out", file_bytes=1000)
    with pytest.raises(CorpusError, match=r"absent\.xml: no such file"):
        extract(tmp_path / "absent.xml", tmp_path / "out", file_bytes=1000)


def test_the_whole_way_from_a_dump_to_shards(tmp_path: Path) -> None:
    pytest.importorskip("nltk", reason="requirements-wiki.txt is not installed")
    with zipfile.ZipFile(find_wheel("gensim")) as wheel:
        (tmp_path / "dump.bz2").write_bytes(wheel.read(DUMP))
    articles, files = extract(tmp_path / "dump.bz2", tmp_path / "extracted", file_bytes=1 << 20, num_processes=2)
    assert (articles, files) == (106, 3)
    text = "".join(path.read_text() for path in sorted((tmp_path / "extracted").glob("*/*")))
    assert text.count("<doc ") == text.count("</doc>") == 106
    left = sum(text.count(mark) for mark in ("[[", "]]", "{{", "}}", "{|", "<ref", "'''"))
    assert left < 20
    prepare_wiki(
        [tmp_path / "extracted"],
        tmp_path / "text",
        punkt=find_wheel("llama_index_core"),
        num_held_out=6,
        seed=12345,
        keep_steps=False,
        num_processes=2,
    )
    parts = sorted((tmp_path / "text" / "parts").iterdir())
    documents = list(read_corpus(parts))
    evaluation = list(read_corpus([tmp_path / "text" / "eval.txt"]))
    assert 90 < len(documents) + len(evaluation) <= 106
    write_vocabulary(tmp_path / "vocab.txt", train_vocabulary(documents[:20], 2000))
    recipe = Recipe(max_length=128, max_predictions=20, duplicates=1)
    for name, texts in (("train", parts), ("eval", [tmp_path / "text" / "eval.txt"])):
        build(
            texts,
            tmp_path / "vocab.txt",
            tmp_path / name,
            recipe=recipe,
            num_shards=None,
            num_processes=2,
            say=lambda _: None,
            warn=pytest.fail,
        )
    manifest = read_manifest(tmp_path / "train")
    assert manifest.num_samples > 3000
    assert read_lengths(tmp_path / "train", manifest).max() == 128
    assert DUMP_DATE.year == 2020
