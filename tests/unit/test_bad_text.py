"""Text as nobody would write it: broken encodings by file and place, empty documents, control characters, no limit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.bert.data.manifest import read_manifest
from benchmarks.bert.prepare import pool as pool_module
from benchmarks.bert.prepare.__main__ import main
from benchmarks.bert.prepare.clean import paragraphs
from benchmarks.bert.prepare.corpus import read_corpus
from benchmarks.bert.prepare.extract import plain_paragraphs
from benchmarks.bert.prepare.wiki import _lines
from benchmarks.bert.prepare.wordpiece import encode
from tests.support.corpora import make_documents, make_vocabulary, write_text, write_words
from tests.support.dumps import page

SAMPLES = ["--max-length", "32", "--max-predictions", "5", "--duplicates", "1", "--processes", "1"]
BROKEN = {
    "latin-1": (b"caf\xe9\n", 3),
    "utf-16": ("caf\u00e9".encode("utf-16"), 0),
    "a surrogate": (b"one\xed\xa0\x80two\n", 3),
    "overlong": (b"one\xc0\xaftwo\n", 3),
    "cut at the end": ("one \u20ac".encode()[:-1], 4),
}


@pytest.fixture(autouse=True)
def _threads_for_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "ProcessPoolExecutor", lambda count, *_, **__: ThreadPoolExecutor(count))


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """The command line: exit status, and what it says on stderr."""

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["prepare", *map(str, arguments)])
        return main(), capsys.readouterr().err

    return run


def steps(folder: Path) -> dict[str, list[object]]:
    """Every step that reads text, its result in folder/out."""
    text, vocabulary, out = folder / "text.txt", folder / "words.txt", folder / "out"
    samples = ["samples", text, "--vocab", vocabulary, "--out", out, *SAMPLES]
    return {
        "split": ["split", text, "--out", out],
        "vocabulary": ["vocabulary", text, "--size", 100, "--out", out / "vocab.txt"],
        "samples": [*samples, "--shards", 1],
        "reference": [*samples, "--recipe", "reference"],
    }


@pytest.mark.parametrize(("broken", "place"), BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("step", steps(Path()))
def test_a_broken_encoding_is_refused_by_file_and_byte_and_nothing_is_written(
    prepare: Callable[..., tuple[int, str]], tmp_path: Path, step: str, broken: bytes, place: int
) -> None:
    write_words(tmp_path / "words.txt")
    text = write_text(tmp_path / "text.txt", make_documents(20))
    sound = text.read_bytes() + b"\n"
    text.write_bytes(sound + broken)
    status, stderr = prepare(*steps(tmp_path)[step])
    assert status == 1
    assert stderr.startswith(f"error: {text}: not UTF-8 at byte {len(sound) + place}; convert it")
    assert stderr.count("\n") == 1
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file() and path.name != ".lock"] == []
    text.write_bytes(sound)  # the twin
    status, stderr = prepare(*steps(tmp_path)[step])
    assert (status, [line for line in stderr.splitlines() if not line.startswith("warning")]) == (0, [])


def test_a_broken_encoding_far_down_an_extracted_file_has_its_true_line(tmp_path: Path) -> None:
    path = tmp_path / "wiki_00"
    path.write_bytes(b"text\n" * 5000 + b"caf\xe9\n" + b"text\n" * 5000)
    with pytest.raises(ValueError, match="wiki_00:5001: not UTF-8"):
        list(_lines(path))


def test_a_broken_encoding_in_a_dump_is_refused_by_its_line(
    prepare: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    dump = tmp_path / "dump.xml"
    article = page("T", "caf\u00e9.")
    sound = f"<mediawiki>\n{article}</mediawiki>".encode()
    for content, status in ((sound, 0), (sound.replace(b"\xc3\xa9", b"\xe9"), 1)):
        dump.write_bytes(content)
        found, stderr = prepare("extract", dump, "--out", tmp_path / str(status), "--processes", 1)
        assert found == status
        assert stderr.startswith(f"error: {dump}:3:") == bool(status)


def documents_of(folder: Path, content: bytes) -> list[list[str]]:
    (folder / "text.txt").write_bytes(content)
    return list(read_corpus([folder / "text.txt"]))


NOTHING = {
    "empty": b"",
    "spaces": b" \t \n",
    "control characters": b"\x01\x02\x7f\n",
    "a byte order mark": b"\xef\xbb\xbf\n",
    "NUL": b"\0\0\0\n",
    "a form feed": b"\f\n",
    "format characters": "\u200b\u200e\u2060\n".encode(),
    "what could not be decoded": "\ufffd\ufffd\n".encode(),
}


@pytest.mark.parametrize("nothing", NOTHING.values(), ids=NOTHING)
def test_a_document_of_nothing_leaves_the_samples_as_they_are(tmp_path: Path, nothing: bytes) -> None:
    vocabulary = make_vocabulary()
    some = make_documents(3)
    before, after = ("\n".join(document).encode() for document in some[:2])
    with_it = documents_of(tmp_path, before + b"\n\n" + nothing + b"\n" + after + b"\n")
    assert encode(with_it, vocabulary) == encode(some[:2], vocabulary)


@pytest.mark.parametrize("nothing", NOTHING.values(), ids=NOTHING)
def test_a_text_of_nothing_is_refused_by_every_step(
    prepare: Callable[..., tuple[int, str]], tmp_path: Path, nothing: bytes
) -> None:
    write_words(tmp_path / "words.txt")
    (tmp_path / "text.txt").write_bytes(nothing)
    for name in ("samples", "reference"):
        status, stderr = prepare(*steps(tmp_path)[name])
        assert status == 1, name
        assert stderr.startswith(f"error: {tmp_path}/text.txt: "), name
        assert not (tmp_path / "out" / "manifest.json").exists()


def test_an_article_without_a_paragraph_is_an_empty_document() -> None:
    articles = ["<doc id=1>\n", "Title\n", "\n", "</doc>\n", "<doc id=2>\n", "Other\n", "\n", "Text.\n", "</doc>\n"]
    assert list(paragraphs(articles)) == ["\n", "\n", "Text.\n"]
    assert plain_paragraphs("") == plain_paragraphs("\x01\x02\n\n\x7f") == []


def test_a_line_of_megabytes_is_one_sentence(prepare: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    """As in the reference it becomes one sample, cut to the longest. Of a hundred megabytes: docs/prepare.md."""
    write_words(tmp_path / "words.txt")
    word = make_vocabulary()[10]
    (tmp_path / "text.txt").write_text(f"{word} " * (1 << 20) + f"\n\n{word}\n\n")
    status, _ = prepare(*steps(tmp_path)["reference"])
    assert status == 0
    manifest = read_manifest(tmp_path / "out")
    assert (manifest.num_samples, manifest.num_tokens) == (2, 2 * 32)
