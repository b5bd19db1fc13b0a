"""WikiExtractor's output in, its paragraphs out: titles and tags gone, then left-over markup.

The two steps of the benchmark's clean-up (`cleanup_file.py` and `clean.sh`), byte for byte: docs/prepare.md names the
checksums that show it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_DOCUMENT = re.compile(r"<doc [^>]*>")
_CATEGORY = re.compile(r"\[\[Category:[^\[\]]*\]\]")

_FORMATS = ("sup", "br", "BR", "Br", "del", "nowiki", "NOWIKI")
_TAGS = (*_FORMATS, "onlyinclude", "includeonly", "small", "chem", "noinclude", "gallery")

# Each is applied to the whole line, in this order, as `sed s///g` would: what one leaves, a later one may find.
_EDITS: list[tuple[str, str]] = [
    (r"\[\[([^\]|\[]*)\]\]", r"\1"),  # [[target]]
    (r"\[\[([^\]|\[]*)\]\]", r"\1"),
    (r"\[\[[^\]|\[]*\|([^\]|\[]*)\]\]", r"\1"),  # [[target|text]]
    (r"\[\[[^\]|\[]*\|([^\]|\[]*)\]\]", r"\1"),
    (r"\[\[:*[Ff]ile:[^\[\]]*\]\]", ""),
    (r"\[\[[Mm]edia:[^\[\]]*\]\]", ""),
    (r"\[\[[Ii]mage:[^\[\]]*\]\]", ""),
    (r"\[([^\]|\[]*)\]", r"\1"),  # [text]
    (r"\[\[([^\[\]]*)\]\]", ""),
    (r"alt=", ""),
    (r"</doc>", "\r"),
    (r"<chem([^<]*)</chem>", r"\1"),
    (r"<ins([^<]*)</ins>", r"\1"),
    (r"<, ref ([^<]*)</ref>", ""),
    (r"<includeonly([^<]*)</includeonly>", ""),
    (r"<graph([^<]*)</graph>", ""),
    (r"<section([^\\]*)/>", ""),
    (r"<meta([^\\]*)/>", ""),
    (r"<hr([^\\]*)/>", ""),
    (r"<gallery([^>]*)>", ""),
    (r"<ref([^<]*)</ref>", ""),
    (r"<ref([^>]*)>", ""),
    (r"<http([^>]*)>", ""),
    (r"<Ref([^>]*)>", ""),
    (r"<mapframe ([^\\/]*)/>", ""),  # GNU sed 4.9 takes the backslash of \/ in brackets as itself
    (r"<mapframe([^>]*)>", ""),
    (r"</mapframe>", ""),
    *((re.escape(tag), "") for tag in ("<poem>", "</poem>", "<math>", "</math>", "<ref>", "</ref>")),
    (r"<div([^>]*)>", ""),
    (r"</div([^>]*)>", ""),
    *((re.escape(f"<{slash}{name}>"), "") for name in _TAGS for slash in ("", "/")),
    *((re.escape(tag), "") for tag in ("<graph>{", "<graph>", "}</graph>", "</graph>", "</references>")),
    (r"<poem ([^>]*)>", ""),
]
_COMPILED = [(re.compile(pattern), replacement) for pattern, replacement in _EDITS]
_MARKUP = re.compile(r"[\[<]|alt=|\}</graph>")  # no edit finds anything in a line without one of these


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Step .1: WikiExtractor's lines without tags, titles and empty lines; an empty line before each document.

    Lines come and go with their line ends, as from a file opened for text.
    """
    is_title = False
    for line in lines:
        if is_title:
            is_title = False
        elif "<doc" in line:
            is_title = True
            yield "\n"
        elif "</doc>" not in line and len(line) > 1:
            yield line


def without_markup(lines: Iterable[str]) -> Iterator[str]:
    """Step .2: the lines without categories, links, and tags that WikiExtractor leaves."""
    for line in lines:
        line = line.removesuffix("\n")
        if _MARKUP.search(line):
            if _DOCUMENT.fullmatch(line) or _CATEGORY.search(line):
                continue
            for pattern, replacement in _COMPILED:
                line = pattern.sub(replacement, line)
        yield f"{line}\n"
