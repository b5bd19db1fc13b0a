"""Pages in, a Wikipedia dump of them out."""

from __future__ import annotations

import bz2
from pathlib import Path

PAGE = """<page><title>{title}</title><ns>{space}</ns><id>{number}</id>{more}
<revision><id>99</id><text xml:space="preserve">{text}</text></revision></page>
"""


def page(title: str, text: str, *, number: int = 1, space: int = 0, more: str = "") -> str:
    return PAGE.format(title=title, text=text, number=number, space=space, more=more)


def write_dump(path: Path, *pages: str) -> Path:
    content = f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/">{"".join(pages)}</mediawiki>'
    path.write_bytes(bz2.compress(content.encode()))
    return path
