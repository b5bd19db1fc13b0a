"""WikiExtractor's files in, text for the samples out: cleaned, one sentence a line, held-out articles apart.

    OUT/steps/AA/wiki_00.3      the sentences of each file; .1 and .2 too on request
    OUT/parts/part-00000-of-00500 …   the training text, whole files until a part is full
    OUT/eval.txt, OUT/eval.md5  the held-out articles, and the MD5 of each

The steps are the benchmark's (docs/prepare.md says which are compared with its own output). Files are done one by one
in parallel, and not again when they were done before.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from benchmarks.bert.files import atomic_write, sha256_of
from benchmarks.bert.prepare import pool
from benchmarks.bert.prepare.clean import paragraphs, without_markup
from benchmarks.bert.prepare.corpus import CorpusError
from benchmarks.bert.prepare.extracted import refuse_unfinished
from benchmarks.bert.prepare.lock import only_writer
from benchmarks.bert.prepare.meter import Meter
from benchmarks.bert.prepare.segment import Splitter, load_splitter, sentences

_DONE = ".done"  # in the steps' folder: a JSON line for each file that is done
_PART_BYTES = 26.92 * 1024 * 1024  # of WikiExtractor's files, as in the benchmark
_LARGEST_FILE = 256 << 20
_SHOWN = 5  # of missing hashes


@dataclass(frozen=True)
class _File:
    source: Path
    target: Path  # of step .3
    name: str
    punkt: Path
    keep_steps: bool
    done: tuple[str, str] | None  # sha256 of what was read and of what was written, by an earlier call


@dataclass(frozen=True)
class _Result:
    record: tuple[str, str]
    num_bytes: int
    num_documents: int
    kept: bool


def prepare_wiki(
    extracted: Sequence[Path],
    folder: Path,
    *,
    punkt: Path,
    num_held_out: int,
    seed: int,
    keep_steps: bool,
    num_processes: int,
    expected_md5: Path | None = None,
) -> None:
    """Make `folder` from WikiExtractor's folders or files. Prints what it made."""
    sources = find_extracted(extracted)
    _, identity = load_splitter(punkt)  # its refusals first
    steps = folder / "steps"
    with only_writer(folder):
        records = _records(steps / _DONE, identity)
        files = [
            _File(source, steps / f"{name}.3", name, punkt, keep_steps, records.get(name)) for name, source in sources
        ]
        num_documents = _do_files(files, steps / _DONE, identity, num_processes)
        held_out: list[str] = []
        if expected_md5 is not None:  # before anything is written that looks final
            for _ in _training_text(files, num_held_out, seed, held_out):
                pass
            _compare(_hashes(held_out), expected_md5)
            held_out.clear()
        num_parts = _gather(_training_text(files, num_held_out, seed, held_out), folder / "parts")
        if num_held_out:
            _write(folder / "eval.txt", (f"{article}\n\n" for article in held_out))
            _write(folder / "eval.md5", (f"{each}\n" for each in _hashes(held_out)))
    print(f"{folder}: {num_documents:,} articles, {len(held_out):,} of them held out, {num_parts:,} parts")


def find_extracted(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """(name, path) of every file, sorted as the benchmark's glob sorts them; in folders the files named wiki_*."""
    found: dict[str, Path] = {}
    for path in paths:
        refuse_unfinished(path)
        files = sorted(path.glob("**/wiki_*")) if path.is_dir() else [path]
        for file in files:
            name = str(file.relative_to(path)) if path.is_dir() else file.name
            if name in found:
                raise CorpusError(f"{file}: {found[name]} has the same name; give the folder above both")
            if not file.is_file():
                raise CorpusError(f"{file}: no such file; give WikiExtractor's folder or its files")
            if (size := file.stat().st_size) > _LARGEST_FILE:
                raise CorpusError(f"{file}: {size:,} bytes; extract into files of at most {_LARGEST_FILE:,} (-b 1M)")
            found[name] = file
    if not found:
        raise CorpusError(f"{', '.join(map(str, paths))}: no file named wiki_*; give WikiExtractor's output")
    return sorted(found.items())


def _records(path: Path, identity: str) -> dict[str, tuple[str, str]]:
    """Files that an earlier call did with the same splitter."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return {}
    found = {}
    for line in lines:
        try:
            name, splitter, read, written = json.loads(line)
        except ValueError:
            continue  # cut off when the call was interrupted
        if splitter == identity:
            found[name] = (read, written)
    return found


def _do_files(files: Sequence[_File], done: Path, identity: str, num_processes: int) -> int:
    done.parent.mkdir(parents=True, exist_ok=True)
    meter = Meter("wiki", sum(file.source.stat().st_size for file in files), "articles")
    num_documents = 0
    try:
        with open(done, "a", encoding="utf-8") as log:
            for number, result in pool.each(_do_file, files, num_processes=num_processes):
                num_documents += result.num_documents
                if result.kept:
                    meter.kept(result.num_bytes)
                else:
                    meter.done(result.num_bytes, result.num_documents)
                    log.write(json.dumps([files[number].name, identity, *result.record]) + "\n")
                    log.flush()
    finally:
        meter.close()
    return num_documents


def _do_file(file: _File) -> _Result:
    read = sha256_of(file.source)
    size = file.source.stat().st_size
    kept = file.done is not None and file.done[0] == read and _is(file.target, file.done[1]) and _has_steps(file)
    num_documents = _num_documents(file.source)
    if not kept:
        step_1 = list(paragraphs(_lines(file.source)))
        step_2 = list(without_markup(step_1))
        step_3 = list(sentences(step_2, _splitter(file.punkt)))
        if sha256_of(file.source) != read:
            raise CorpusError(f"{file.source}: changed while it was being read; run the command again when it is final")
        if file.keep_steps:
            _write(file.target.with_suffix(".1"), step_1)
            _write(file.target.with_suffix(".2"), step_2)
        _write(file.target, step_3)
    return _Result((read, sha256_of(file.target)), size, num_documents, kept)


def _is(path: Path, sha256: str) -> bool:
    return path.is_file() and sha256_of(path) == sha256


def _has_steps(file: _File) -> bool:
    return not file.keep_steps or all(file.target.with_suffix(step).is_file() for step in (".1", ".2"))


def _num_documents(path: Path) -> int:
    return sum("<doc" in line for line in _lines(path))


def _lines(path: Path) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if "\0" in line:
                    raise CorpusError(f"{path}:{number}: a NUL character; this is not text, extract it again")
                yield line
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path}:{_broken_line(path)}: not UTF-8 ({error.reason}); extract it again") from error
    except OSError as error:
        raise CorpusError(f"{path}: cannot read it ({error.strerror})") from error


def _broken_line(path: Path) -> int:
    """The first line that is not UTF-8; where reading stops is the end of a block of many lines."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return number
    return 0  # it was changed meanwhile


def _write(path: Path, lines: Iterable[str]) -> None:
    with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)


@lru_cache(maxsize=1)
def _splitter(punkt: Path) -> Splitter:
    return load_splitter(punkt)[0]


def _training_text(
    files: Sequence[_File], num_held_out: int, seed: int, held_out: list[str]
) -> Iterator[tuple[int, str]]:
    """(size of the extracted file, its text without the held-out articles) of each file; those go to `held_out`.

    As in the benchmark: file i of n gives its share of the articles, drawn by the seed plus 13 i; what stands between
    two empty lines is an article, the last, empty one of a file too.
    """
    for number, file in enumerate(files):
        text = file.target.read_text("utf-8")
        if num_held_out:
            articles = text.split("\n\n")
            count = (number + 1) * num_held_out // len(files) - number * num_held_out // len(files)
            drawn = _draw_articles(len(articles), count, seed + 13 * number, file)
            held_out += [article for place, article in enumerate(articles) if place in drawn]
            text = "".join(f"{article}\n\n" for place, article in enumerate(articles) if place not in drawn)
        yield file.source.stat().st_size, text


def _draw_articles(num_articles: int, count: int, seed: int, file: _File) -> set[int]:
    if count > num_articles:
        raise CorpusError(
            f"{file.target}: {count} of its {num_articles} articles would be held out; give more text or a smaller "
            "--hold-out"
        )
    rng = random.Random(seed)
    drawn: set[int] = set()
    while len(drawn) < count:
        drawn.add(int(rng.random() * num_articles))
    return drawn


def _gather(texts: Iterable[tuple[int, str]], folder: Path) -> int:
    """Write the texts end to end into parts, a new one where the extracted files would pass _PART_BYTES; their number.

    As in the benchmark: of the empty lines at the end of a text one is left out.
    """
    folder.mkdir(exist_ok=True)
    part: list[str] = []
    num_parts, size = 0, 0
    for num_bytes, text in texts:
        if part and size + num_bytes > _PART_BYTES:
            _write(folder / _part_name(num_parts), part)
            num_parts, size, part = num_parts + 1, 0, []
        part.append(text.removesuffix("\n") if text.endswith("\n\n") else text)
        size += num_bytes
    _write(folder / _part_name(num_parts), part)
    num_parts += 1
    for stale in folder.glob("part-*-of-00500"):
        if stale.name >= _part_name(num_parts):
            stale.unlink()
    return num_parts


def _part_name(number: int) -> str:
    return f"part-{number:05d}-of-00500"  # the benchmark's name, whatever their number


def _hashes(articles: Iterable[str]) -> list[str]:
    return [hashlib.md5(article.rstrip().encode()).hexdigest() for article in articles]


def _compare(found: Sequence[str], path: Path) -> None:
    """Refuse held-out articles that are not those of a list of hashes."""
    try:
        expected = path.read_text("ascii").split()
    except (OSError, ValueError) as error:
        raise CorpusError(f"{path}: cannot read the list of MD5 sums ({error})") from error
    missing = sorted(set(expected) - set(found))
    if list(found) != expected:
        raise CorpusError(
            f"{path}: {len(expected) - len(missing):,} of its {len(expected):,} held-out articles were found "
            f"(held out: {len(found):,}); missing: {', '.join(missing[:_SHOWN]) or 'none, another order'}"
            f"{' …' if len(missing) > _SHOWN else ''}; extract with the benchmark's WikiExtractor from the same dump"
        )
