"""From WikiExtractor's files to parts: steps, held-out articles, parts, and going on where a call stopped."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.bert.prepare import pool as pool_module
from benchmarks.bert.prepare import wiki
from benchmarks.bert.prepare.corpus import CorpusError
from benchmarks.bert.prepare.lock import FolderError, only_writer
from tests.support.wheels import find_wheel

SHARED = Path(__file__).parents[3] / "shared" / "data"
STEPS = {  # sha256, from the README of the reference samples
    "wiki_00.1": "31590b724762ef073a751085b712e36ea7670f106134f70bdaaa4398780082ea",
    "wiki_00.2": "ea55aa81841a12ea12640a207b485f5af143c90a3d0d098423589667dd3dfe1f",
    "wiki_00.3": "26bbd901c43619165d3f176545614ef646e60093c4151cf96438afd746b2feeb",
    "wiki_02.1": "36a6593912f0a812e3476b6a0fcb3e8a710bb7f094a7769d6320783d04857355",
    "wiki_02.2": "ee5b56a712536a9f29525c0e89e51be9e037d49790031d6b3aa0ed727330fae0",
    "wiki_02.3": "adc95f971bccfe63a3c1bbbe1892bf1e4207a7ce197b5efadb6e18ba175dede6",
}


def by_stops(text: str) -> list[str]:
    return [f"{part}." for part in text.strip().split(".") if part]


@pytest.fixture(autouse=True)
def _threads_and_a_simple_splitter(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(pool_module, "ProcessPoolExecutor", lambda count, *_, **__: ThreadPoolExecutor(count))
    if "references" not in request.node.name:
        monkeypatch.setattr(wiki, "load_splitter", lambda _: (by_stops, "by stops"))
        wiki._splitter.cache_clear()


def write_extracted(root: Path, num_files: int = 3, num_articles: int = 5) -> Path:
    for number in range(num_files):
        path = root / "AA" / f"wiki_{number:02d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            "".join(
                f'<doc id="1" url="u" title="T">\nT\n\nArticle {number} {article}. It goes on.\n\nAnd on.\n\n</doc>\n'
                for article in range(num_articles)
            )
        )
    return root


def prepare(root: Path, *, num_held_out: int = 0, keep_steps: bool = False, expected_md5: Path | None = None) -> Path:
    wiki.prepare_wiki(
        [root / "extracted"],
        root / "out",
        punkt=root,
        num_held_out=num_held_out,
        seed=12345,
        keep_steps=keep_steps,
        num_processes=2,
        expected_md5=expected_md5,
    )
    return root / "out"


def parts(folder: Path) -> str:
    return "".join(path.read_text() for path in sorted((folder / "parts").iterdir()))


def test_every_article_comes_through_in_order(tmp_path: Path) -> None:
    write_extracted(tmp_path / "extracted")
    expected = [f"Article {file} {article}.\nIt goes on.\nAnd on." for file in range(3) for article in range(5)]
    assert [document.strip() for document in parts(prepare(tmp_path)).split("\n\n") if document.strip()] == expected


def test_held_out_articles_are_those_that_the_seed_draws_and_stand_on_one_side_only(tmp_path: Path) -> None:
    write_extracted(tmp_path / "extracted")
    out = prepare(tmp_path, num_held_out=7)
    expected = []
    for number, count in enumerate([2, 2, 3]):  # 7 i / 3, rounded down, to 7 (i + 1) / 3
        articles = (out / "steps" / "AA" / f"wiki_{number:02d}.3").read_text().split("\n\n")
        rng, drawn = random.Random(12345 + 13 * number), []
        while len(drawn) < count:
            if (place := int(rng.random() * len(articles))) not in drawn:
                drawn.append(place)
        expected += [article for place, article in enumerate(articles) if place in drawn]
    assert (out / "eval.txt").read_text() == "".join(f"{article}\n\n" for article in expected)
    hashes = [hashlib.md5(article.rstrip().encode()).hexdigest() for article in expected]
    assert (out / "eval.md5").read_text().split() == hashes
    training = [document.strip() for document in parts(out).split("\n\n") if document.strip()]
    held_out = [article.strip() for article in expected if article.strip()]
    assert len(training) + len(held_out) == 15
    assert not set(training) & set(held_out)


def test_expected_hashes_are_compared_before_anything_looks_final(tmp_path: Path) -> None:
    write_extracted(tmp_path / "extracted")
    hashes = (prepare(tmp_path, num_held_out=4) / "eval.md5").read_text().split()
    (tmp_path / "same.md5").write_text("\n".join(hashes))
    prepare(tmp_path, num_held_out=4, expected_md5=tmp_path / "same.md5")
    (tmp_path / "other.md5").write_text("\n".join(["f" * 32, *hashes[1:]]))
    other = tmp_path / "other"
    write_extracted(other / "extracted")
    with pytest.raises(
        CorpusError, match=rf"other\.md5: 3 of its 4 held-out articles were found .*missing: {'f' * 32};"
    ):
        prepare(other, num_held_out=4, expected_md5=tmp_path / "other.md5")
    assert not (other / "out" / "parts").exists()
    assert not (other / "out" / "eval.txt").exists()


def test_more_held_out_articles_than_there_are_are_refused(tmp_path: Path) -> None:
    write_extracted(tmp_path / "extracted")
    with pytest.raises(CorpusError, match=r"wiki_00\.3: 33 of its 6 articles would be held out"):
        prepare(tmp_path, num_held_out=99)


def test_parts_hold_whole_files_and_begin_anew_when_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extracted = write_extracted(tmp_path / "extracted")
    one = (extracted / "AA" / "wiki_00").stat().st_size
    whole = parts(prepare(tmp_path))
    monkeypatch.setattr(wiki, "_PART_BYTES", 2 * one)
    out = prepare(tmp_path)
    assert [path.name for path in sorted((out / "parts").iterdir())] == ["part-00000-of-00500", "part-00001-of-00500"]
    assert parts(out) == whole
    monkeypatch.undo()


def test_a_second_call_does_only_what_changed(tmp_path: Path) -> None:
    extracted = write_extracted(tmp_path / "extracted")
    out = prepare(tmp_path)
    steps = sorted((out / "steps").glob("AA/*.3"))
    before = [path.stat().st_mtime_ns for path in steps]
    (extracted / "AA" / "wiki_01").write_text('<doc id="1">\nT\n\nNew.\n</doc>\n')
    steps[2].write_text("altered")
    prepare(tmp_path)
    after = [path.stat().st_mtime_ns for path in steps]
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, False]
    assert "New." in parts(out)
    assert "altered" not in parts(out)


def test_a_record_that_was_cut_off_is_done_again(tmp_path: Path) -> None:
    write_extracted(tmp_path / "extracted")
    out = prepare(tmp_path)
    whole = parts(out)
    done = out / "steps" / ".done"
    done.write_text(done.read_text()[:-20])
    prepare(tmp_path)
    assert parts(out) == whole


def add_nul(path: Path) -> None:
    path.write_bytes(b"text\n\0\n")


def add_latin_1(path: Path) -> None:
    path.write_bytes(b"text\ncaf\xe9\n")


@pytest.mark.parametrize(("damage", "named"), [(add_nul, "wiki_01:2: a NUL"), (add_latin_1, "wiki_01:2: not UTF-8")])
def test_a_file_that_is_no_text_is_refused_by_its_line(
    tmp_path: Path, damage: Callable[[Path], None], named: str
) -> None:
    damage(write_extracted(tmp_path / "extracted") / "AA" / "wiki_01")
    with pytest.raises(CorpusError, match=named):
        prepare(tmp_path)
    assert not (tmp_path / "out" / "parts").exists()


def test_no_extracted_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "extracted").mkdir()
    with pytest.raises(CorpusError, match=r"extracted: no file named wiki_\*"):
        prepare(tmp_path)
    with pytest.raises(CorpusError, match=r"absent: no such file"):
        wiki.find_extracted([tmp_path / "absent"])


def test_two_preparations_of_one_folder_are_refused(tmp_path: Path) -> None:
    write_extracted(tmp_path / "extracted")
    with only_writer(tmp_path / "out"), pytest.raises(FolderError, match="another preparation is writing it"):
        prepare(tmp_path)
    prepare(tmp_path)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    write_extracted(tmp_path / "extracted")
    with pytest.raises(FolderError, match=r"out: cannot write there \(File exists\); choose another --out"):
        prepare(tmp_path)


def test_the_steps_of_the_sample_text_are_the_references(tmp_path: Path) -> None:
    pytest.importorskip("nltk", reason="requirements-wiki.txt is not installed")
    if not (SHARED / "wiki").exists():
        pytest.skip(f"{SHARED / 'wiki'} is not there: the sample text lies beside the checkout")
    files = [SHARED / "wiki" / name for name in ("wiki_00", "wiki_02")]
    wiki._splitter.cache_clear()
    wiki.prepare_wiki(
        files,
        tmp_path,
        punkt=find_wheel("llama_index_core"),
        num_held_out=0,
        seed=1,
        keep_steps=True,
        num_processes=2,
    )
    found = {name: hashlib.sha256((tmp_path / "steps" / name).read_bytes()).hexdigest() for name in STEPS}
    assert found == STEPS
