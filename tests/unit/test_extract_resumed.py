"""An extraction that was killed goes on: what is finished stays, the end is the same bytes, no half is taken for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from benchmarks.bert.prepare import extract as extract_module
from benchmarks.bert.prepare.corpus import CorpusError
from benchmarks.bert.prepare.extract import DUMP_DATE, extract
from benchmarks.bert.prepare.extracted import RECORD
from benchmarks.bert.prepare.lock import FolderError, only_writer
from benchmarks.bert.prepare.wiki import find_extracted
from tests.support.dumps import page, write_dump
from tests.support.tiny import ROOT

NUM_PAGES, FILE_BYTES = 200, 2000
DIED_AT = {
    "the third file's name": ("os.replace", 4),  # the record's own comes first
    "the third file's line": ("builtins.open", 0),
    "half of the third file's line": ("builtins.open", 9),
}

# Dies of SIGKILL, its workers with it: at the n-th file that gets its name, or after n characters of a line.
KILLED = """
import builtins, os, signal, sys
from pathlib import Path
import benchmarks.bert.files as files
import benchmarks.bert.prepare.extracted as extracted
from benchmarks.bert.prepare.extract import extract

def die():
    os.killpg(0, signal.SIGKILL)

what, number = sys.argv[3], int(sys.argv[4])
replace, append, count = os.replace, extracted.Extracted._append, 0

def replace_or_die(source, target):
    global count
    count += 1
    if count == number:
        die()
    replace(source, target)

def append_or_die(self, line):
    if self.num_files < 2:
        return append(self, line)
    with open(self._record, "a") as file:
        file.write(line[:number])
    die()

if __name__ == "__main__":
    if what == "os.replace":
        files.os.replace = replace_or_die
    else:
        extracted.Extracted._append = append_or_die
    extract(Path(sys.argv[1]), Path(sys.argv[2]), file_bytes=2000, num_processes=2)
"""


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pages = [page(f"T{number}", f"Text {number}. " * (1 + number % 40), number=number) for number in range(NUM_PAGES)]
    return write_dump(tmp_path_factory.mktemp("dump") / "dump.xml.bz2", *pages)


@pytest.fixture(scope="module")
def whole(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Every file of an extraction that nothing disturbs, its record among them."""
    folder = tmp_path_factory.mktemp("whole")
    run(dump, folder)
    return content_of(folder)


def run(dump: Path, folder: Path, *, file_bytes: int = FILE_BYTES, today: date = DUMP_DATE) -> tuple[int, int]:
    return extract(dump, folder, file_bytes=file_bytes, today=today)


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/wiki_*"))


def kill(dump: Path, folder: Path, what: str, number: int) -> None:
    script = folder.parent / "killed.py"
    script.write_text(KILLED)
    command = [sys.executable, str(script), str(dump), str(folder), what, str(number)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    killed = subprocess.Popen(
        command, cwd=ROOT, env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    _, stderr = killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL, stderr


def counting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The titles of the pages that are made into text from now on."""
    titles, making = [], extract_module._article

    def counted(each: extract_module.Page, today: date) -> str:
        titles.append(each.title)
        return making(each, today)

    monkeypatch.setattr(extract_module, "_article", counted)
    monkeypatch.setattr(extract_module.pool, "in_order", lambda work, tasks, num_processes: map(work, tasks))
    return titles


@pytest.mark.parametrize(("what", "number"), DIED_AT.values(), ids=DIED_AT)
def test_a_killed_extraction_goes_on_and_equals_an_undisturbed_one(
    dump: Path, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, number: int
) -> None:
    out = tmp_path / "out"
    kill(dump, out, what, number)
    kept = files_of(out)[:2]
    assert content_of(out) != whole
    inodes = [path.stat().st_ino for path in kept]
    titles = counting(monkeypatch)
    assert run(dump, out) == (NUM_PAGES, len(files_of(out)))
    assert {name: data for name, data in content_of(out).items() if not name.endswith(".tmp")} == whole
    assert [path.stat().st_ino for path in kept] == inodes
    done = sum(path.read_text().count("<doc ") for path in kept)
    assert titles == [f"T{page_number}" for page_number in range(done, NUM_PAGES)]


def test_an_unfinished_extraction_is_not_taken_for_the_text(dump: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    kill(dump, out, "os.replace", 4)
    with pytest.raises(CorpusError, match=rf"{out}: its extraction is unfinished; run prepare extract again"):
        find_extracted([out])
    run(dump, out)
    assert len(find_extracted([out])) == len(files_of(out)) > 3


def test_a_finished_extraction_is_left_alone(
    dump: Path, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(dump, tmp_path)
    times = [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))]
    titles = counting(monkeypatch)
    assert run(dump, tmp_path) == first
    assert titles == []
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))] == times
    assert content_of(tmp_path) == whole


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage", [Path.unlink, flip, halve])
def test_a_damaged_file_is_made_again(
    dump: Path, whole: dict[str, bytes], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    run(dump, tmp_path)
    kept, damaged = files_of(tmp_path)[0], files_of(tmp_path)[1]
    inode = kept.stat().st_ino
    damage(damaged)
    run(dump, tmp_path)
    assert content_of(tmp_path) == whole
    assert kept.stat().st_ino == inode


@pytest.mark.parametrize(
    "changed", [{"file_bytes": FILE_BYTES + 1}, {"today": date(2021, 3, 4)}, {"dump": "other"}], ids=str
)
def test_articles_of_another_dump_date_or_size_are_left_alone(
    dump: Path, whole: dict[str, bytes], tmp_path: Path, changed: dict[str, object]
) -> None:
    other = write_dump(tmp_path / "other.xml.bz2", page("T", "Text."))
    run(dump, tmp_path / "out")
    with pytest.raises(CorpusError, match=r"out: holds articles of another dump, --date or --file-bytes; name an"):
        run(other if changed.pop("dump", None) else dump, tmp_path / "out", **changed)  # type: ignore[arg-type]
    assert content_of(tmp_path / "out") == whole


def test_files_that_this_step_did_not_make_are_left_alone(dump: Path, tmp_path: Path) -> None:
    (tmp_path / "AA").mkdir()
    (tmp_path / "AA" / "wiki_00").write_text("mine")
    with pytest.raises(CorpusError, match=r"wiki_00: there already, and not by this step; name an empty folder"):
        run(dump, tmp_path)
    assert (tmp_path / "AA" / "wiki_00").read_text() == "mine"
    assert not (tmp_path / RECORD).exists()
    assert len(find_extracted([tmp_path])) == 1  # what WikiExtractor itself wrote has no record


def test_two_extractions_do_not_write_one_folder(dump: Path, tmp_path: Path) -> None:
    with only_writer(tmp_path), pytest.raises(FolderError, match="another preparation is writing it; wait"):
        run(dump, tmp_path)
    assert files_of(tmp_path) == []
    run(dump, tmp_path)  # the lock ends with its holder
