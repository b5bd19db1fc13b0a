"""Paragraphs in, sentences out: by nltk's punkt with its English parameters, as the benchmark splits them.

nltk is an extra (requirements-wiki.txt). Its parameters are read from plain text files, never from a pickle, which
could hold code.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path, PurePosixPath

from benchmarks.bert.prepare.corpus import CorpusError

Splitter = Callable[[str], list[str]]

_FILES = ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt")
_BELOW = ("punkt_tab/english", "english", "")  # where a folder or a wheel may hold them


def sentences(lines: Iterable[str], split: Splitter) -> Iterator[str]:
    """Step .3: each line's sentences, one a line, stripped; an empty line for each empty line, and one at the end."""
    for whole in lines:
        # The reference reads what its clean-up wrote as text: a carriage return ends a line too.
        for line in whole.removesuffix("\n").removesuffix("\r").split("\r"):
            if line:
                for sentence in split(f"{line}\n"):
                    yield f"{sentence.strip()}\n"
            else:
                yield "\n"
    yield "\n"


def load_splitter(punkt: Path) -> tuple[Splitter, str]:
    """The splitter, and what identifies it. `punkt` is punkt_tab's folder, or a wheel or zip file that holds it."""
    try:
        import nltk
        from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer
    except ImportError as error:
        raise CorpusError(
            f"nltk is not installed ({error}); install it: python -m pip install -r requirements-wiki.txt"
        ) from error
    texts = read_punkt(punkt)
    parameters = PunktParameters()
    try:
        parameters.abbrev_types = set(texts["abbrev_types.txt"].splitlines())
        parameters.sent_starters = set(texts["sent_starters.txt"].splitlines())
        parameters.collocations = {_pair(line) for line in texts["collocations.tab"].splitlines()}
        for line in texts["ortho_context.tab"].splitlines():
            word, context = _pair(line)
            parameters.ortho_context[word] = int(context)
    except ValueError as error:
        raise CorpusError(f"{punkt}: not punkt_tab's data ({error}); fetch it again (docs/prepare.md)") from error
    identity = sha256("\0".join([nltk.__version__, *(texts[name] for name in _FILES)]).encode()).hexdigest()
    return PunktSentenceTokenizer(parameters).tokenize, identity


def read_punkt(punkt: Path) -> dict[str, str]:
    """The texts of the four files by name."""
    if punkt.is_dir():
        for below in _BELOW:
            for folder in (punkt / below, punkt / "tokenizers" / below):
                if all((folder / name).is_file() for name in _FILES):
                    return {name: (folder / name).read_text("utf-8") for name in _FILES}
        raise CorpusError(f"{punkt}: no punkt_tab data in it ({', '.join(_FILES)}); docs/prepare.md tells where it is")
    try:
        with zipfile.ZipFile(punkt) as archive:
            members = [PurePosixPath(name) for name in archive.namelist()]
            found = {
                path.name: archive.read(str(path)).decode("utf-8")
                for path in members
                if path.name in _FILES and path.parts[-3:-1] == ("punkt_tab", "english")
            }
    except (OSError, zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise CorpusError(f"{punkt}: neither a folder nor a wheel with punkt_tab's data ({error})") from error
    if missing := [name for name in _FILES if name not in found]:
        raise CorpusError(f"{punkt}: it lacks punkt_tab/english/{missing[0]}; docs/prepare.md names the wheel to take")
    return found


def _pair(line: str) -> tuple[str, str]:
    first, second = line.split("\t")
    return first, second
