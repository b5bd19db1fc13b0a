"""A Wikipedia dump in, its articles as plain text out, in the form that WikiExtractor writes.

    OUT/AA/wiki_00 …   <doc id="12" url="…" title="Anarchism">, the title, an empty line, the paragraphs, </doc>

Paragraphs only, without headings, lists, tables, templates and references, as WikiExtractor leaves them; but its very
bytes it does not make (templates are not expanded). The same dump gives the same bytes on any day: pages see one fixed
date. The dump is read as a stream; a call holds a few hundred pages. An interrupted call is gone on with: the dump is
read from its beginning, but pages whose file is finished are not done again.
"""

from __future__ import annotations

import bz2
import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import partial
from itertools import islice
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.bert.files import sha256_of
from benchmarks.bert.prepare import pool
from benchmarks.bert.prepare.corpus import CorpusError
from benchmarks.bert.prepare.extracted import Extracted
from benchmarks.bert.prepare.lock import only_writer
from benchmarks.bert.prepare.meter import Meter

DUMP_DATE = date(2020, 1, 1)  # of the benchmark's dump
_PAGES_A_TASK = 64

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_DROPPED_TAGS = "ref|gallery|math|chem|ce|timeline|imagemap|table|score|hiero|syntaxhighlight|source|graph|mapframe"
_SELF_CLOSED = re.compile(r"<\s*(?:ref|references|section|br|hr|nowiki)\b[^<>]*/\s*>", re.IGNORECASE)
_DROPPED = re.compile(rf"<\s*({_DROPPED_TAGS})\b[^<>]*>.*?<\s*/\s*\1\s*>", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<\s*/?\s*[a-zA-Z][^<>]*>")
_BRACES = re.compile(r"\{\{|\}\}|\{\||^\|\}(?!\})", re.MULTILINE)
_BRACKETS = re.compile(r"\[\[|\]\]")
_NOT_TEXT = re.compile(r"\s*:?\s*(?:file|image|media|category|[a-z]{2,3}(?:-[a-z-]+)?|simple)\s*:", re.IGNORECASE)
_EXTERNAL = re.compile(r"\[(?:https?:|ftp:)?//[^\s\]]+\s*([^\]]*)\]")
_BOLD = re.compile(r"'''''|'''")
_NO_PARAGRAPH = re.compile(r"[=*#:;|!{}]|----")
_BEHAVIOUR = re.compile(r"__[A-Z]+__")
_SPACES = re.compile(r"[ \t\u00a0]+")
_HOLES = re.compile(r" +(?=[,.;:!?)])|(?<=\() +")


@dataclass(frozen=True)
class Page:
    number: str
    title: str
    text: str


def extract(
    dump: Path, folder: Path, *, file_bytes: int, today: date = DUMP_DATE, num_processes: int = 1
) -> tuple[int, int]:
    """Write the articles of `dump` into files of `file_bytes` or an article more; returns how many of both.

    Files that an earlier, interrupted call made from the same dump, date and size are kept.
    """
    if not dump.is_file():
        raise CorpusError(f"{dump}: no such file; give a pages-articles dump, .xml or .xml.bz2")
    with only_writer(folder):
        made = Extracted(folder, f"{sha256_of(dump)} {today} {file_bytes}")
        if not made.is_complete:
            tasks = _batches(islice(read_pages(dump), made.num_articles, None))  # each page is an article
            articles = pool.in_order(partial(_articles, today=today), tasks, num_processes=num_processes)
            for content in _files(articles, file_bytes):
                made.add(content)
            if not made.num_articles:
                raise CorpusError(f"{dump}: no article in it; give a pages-articles dump")
            made.finish()
    return made.num_articles, made.num_files


def _files(batches: Iterator[list[str]], file_bytes: int) -> Iterator[list[str]]:
    """The articles of each file."""
    meter = Meter("extract", 0, "articles")
    content: list[str] = []
    size = 0
    try:
        for articles in batches:
            for article in articles:
                content.append(article)
                size += len(article.encode())
                if size >= file_bytes:
                    yield content
                    content, size = [], 0
            meter.done(0, len(articles))
        if content:
            yield content
    finally:
        meter.close()


def read_pages(dump: Path) -> Iterator[Page]:
    """Articles of a dump: pages of the main name space that are no redirects."""
    try:
        with bz2.open(dump, "rb") if dump.suffix == ".bz2" else open(dump, "rb") as file:
            events = ElementTree.iterparse(file, ("start", "end"))
            _, root = next(events)
            for event, element in events:
                if event == "end" and element.tag.rpartition("}")[2] == "page":
                    if (page := _page(element)) is not None:
                        yield page
                    root.clear()  # what was read is not needed again
    except ElementTree.ParseError as error:
        line, column = error.position
        raise CorpusError(f"{dump}:{line}:{column}: broken XML ({error}); fetch the dump again") from error
    except (OSError, EOFError) as error:
        raise CorpusError(f"{dump}: cannot read it to its end ({error}); fetch the dump again") from error


def _page(element: ElementTree.Element) -> Page | None:
    fields = {child.tag.rpartition("}")[2]: child for child in element.iter()}
    number = next((child.text for child in element if child.tag.rpartition("}")[2] == "id"), None)
    if "redirect" in fields or fields["ns"].text != "0" or fields["text"].text is None or number is None:
        return None
    return Page(number, fields["title"].text or "", fields["text"].text)


def _batches(pages: Iterator[Page]) -> Iterator[list[Page]]:
    batch: list[Page] = []
    for page in pages:
        batch.append(page)
        if len(batch) == _PAGES_A_TASK:
            yield batch
            batch = []
    if batch:
        yield batch


def _articles(pages: list[Page], *, today: date) -> list[str]:
    return [_article(page, today) for page in pages]


def _article(page: Page, today: date) -> str:
    title = html.escape(page.title)
    url = f"https://en.wikipedia.org/wiki?curid={page.number}"
    paragraphs = "".join(f"{paragraph}\n\n" for paragraph in plain_paragraphs(page.text, today))
    return f'<doc id="{page.number}" url="{url}" title="{title}">\n{page.title}\n\n{paragraphs}</doc>\n'


def plain_paragraphs(wikitext: str, today: date = DUMP_DATE) -> list[str]:
    """The paragraphs of a page without its markup."""
    text = _COMMENT.sub("", wikitext)
    for word, value in _dates(today).items():
        text = text.replace(f"{{{{{word}}}}}", value)
    text = _SELF_CLOSED.sub("", text)
    text = _DROPPED.sub("", text)
    text = _without_braces(text)
    text = _TAG.sub("", text)
    text = _links(text)
    text = _EXTERNAL.sub(r"\1", text)
    text = _BOLD.sub("", text).replace("''", '"')
    text = _BEHAVIOUR.sub("", html.unescape(text))
    lines = (_SPACES.sub(" ", line).strip() for line in text.split("\n"))
    plain = (_HOLES.sub("", line) for line in lines if line and not _NO_PARAGRAPH.match(line))
    return [line for line in plain if any(character.isalnum() for character in line)]


def _dates(today: date) -> dict[str, str]:
    """What the magic words for today's date stand for."""
    values = {
        "YEAR": f"{today:%Y}",
        "MONTH": f"{today:%m}",
        "MONTHNAME": f"{today:%B}",
        "MONTHABBREV": f"{today:%b}",
        "DAY": str(today.day),
        "DAY2": f"{today:%d}",
        "DAYNAME": f"{today:%A}",
        "DOW": f"{today:%w}",
        "WEEK": str(today.isocalendar().week),
        "TIME": "00:00",
        "HOUR": "00",
        "TIMESTAMP": f"{today:%Y%m%d}000000",
    }
    return {f"{prefix}{word}": value for prefix in ("CURRENT", "LOCAL") for word, value in values.items()}


def _without_braces(text: str) -> str:
    """Templates {{…}} and tables {|…|} dropped with all that stands inside them; one that never ends drops nothing."""
    kept: list[str] = []
    open_at: list[tuple[str, int]] = []  # what closes it, and how many pieces were kept before it
    end = 0
    for found in _BRACES.finditer(text):
        kept.append(text[end : found.start()])
        end = found.end()
        if found[0] in ("{{", "{|"):
            open_at.append(("}}" if found[0] == "{{" else "|}", len(kept)))
        elif open_at and open_at[-1][0] == found[0]:
            del kept[open_at.pop()[1] :]
    return "".join(kept) + text[end:]


def _links(text: str) -> str:
    """[[target|text]] becomes text; files, categories and links to other languages go."""
    pieces: list[list[str]] = [[]]  # the text so far, and that of each link which has begun
    end = 0
    for found in _BRACKETS.finditer(text):
        pieces[-1].append(text[end : found.start()])
        end = found.end()
        if found[0] == "[[":
            pieces.append([])
        elif len(pieces) > 1:
            inside = "".join(pieces.pop())
            if not _NOT_TEXT.match(inside):
                pieces[-1].append(inside.rpartition("|")[2])
    return "".join(piece for part in pieces for piece in part) + text[end:]
