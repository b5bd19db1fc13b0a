"""A folder of extracted articles in, out which of its files a call that was interrupted has finished.

    OUT/.extract    what the articles come from; then of each finished file its articles and the sha256 of its bytes

Its last line says that the extraction is complete.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bert.files import atomic_write, sha256_of
from benchmarks.bert.prepare.corpus import CorpusError

RECORD = ".extract"
_COMPLETE = "complete"
_FILES_A_FOLDER = 100
_LETTERS = 26


class Extracted:
    """The finished files, in order; each is whole, for it gets its name when it is, and its line after that."""

    def __init__(self, folder: Path, identity: str) -> None:
        """Find what there is of this extraction. Raises CorpusError where the folder holds another, or files of others.

        From the first file that is damaged or missing on all are to be made again.
        """
        self._folder, self._record = folder, folder / RECORD
        lines = self._lines()
        if lines and lines[0] != json.dumps(identity):
            raise CorpusError(
                f"{folder}: holds articles of another dump, --date or --file-bytes; name an empty folder with --out"
            )
        if not lines and (found := next(folder.glob("*/wiki_*"), None)) is not None:
            raise CorpusError(f"{found}: there already, and not by this step; name an empty folder with --out")
        whole = self._whole(lines[1:])
        self._counts = [count for count, _ in whole]
        self.is_complete = bool(lines) and lines[-1] == _COMPLETE and len(whole) == len(lines) - 2
        if not self.is_complete:
            with atomic_write(self._record) as temporary:  # a line that was cut off goes
                temporary.write_text("".join(f"{json.dumps(line)}\n" for line in (identity, *whole)), "utf-8")

    @property
    def num_files(self) -> int:
        return len(self._counts)

    @property
    def num_articles(self) -> int:
        return sum(self._counts)

    def add(self, articles: Sequence[str]) -> None:
        """Write the next file."""
        path = self._path(self.num_files)
        with atomic_write(path) as temporary:
            temporary.write_bytes("".join(articles).encode())
        self._append(json.dumps((len(articles), sha256_of(path))))
        self._counts.append(len(articles))

    def finish(self) -> None:
        self._append(_COMPLETE)
        self.is_complete = True

    def _lines(self) -> list[str]:
        return self._record.read_text("utf-8").splitlines() if self._record.exists() else []

    def _whole(self, lines: Sequence[str]) -> list[tuple[int, str]]:
        """What the lines say, up to the first one that is cut off or whose file is not what it was."""
        whole: list[tuple[int, str]] = []
        for line in lines:
            try:
                count, sha256 = json.loads(line)
                if sha256_of(self._path(len(whole))) != sha256:
                    break
            except (ValueError, OSError):
                break
            whole.append((count, sha256))
        return whole

    def _append(self, line: str) -> None:
        with open(self._record, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def _path(self, number: int) -> Path:
        """AA/wiki_00, as WikiExtractor names them."""
        letters, within = divmod(number, _FILES_A_FOLDER)
        first, second = divmod(letters, _LETTERS)
        return self._folder / f"{chr(ord('A') + first)}{chr(ord('A') + second)}" / f"wiki_{within:02d}"


def refuse_unfinished(folder: Path) -> None:
    """Raise CorpusError where `extract` was interrupted and has not been run to its end since."""
    record = folder / RECORD
    if record.exists() and not record.read_text("utf-8").endswith(f"{_COMPLETE}\n"):
        raise CorpusError(f"{folder}: its extraction is unfinished; run prepare extract again, it goes on")
