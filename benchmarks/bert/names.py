"""A name in, the known name that was probably meant out."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], *, always: bool = False) -> str | None:
    """The known name at the least edit distance; unless `always`, only if it can hardly be anything else.

    Underscores do not count. Short names are too easily near something foreign: below six letters none is offered.
    """
    letters = name.replace("_", "").upper()
    distance, best = min((edit_distance(letters, candidate.replace("_", "")), candidate) for candidate in known)
    if always or (len(letters) >= 6 and distance <= (1 if len(letters) < 9 else 2)):
        return best
    return None


def edit_distance(a: str, b: str) -> int:
    """Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`."""
    rows = [list(range(len(b) + 1))]
    for i, x in enumerate(a, start=1):
        row = [i]
        for j, y in enumerate(b, start=1):
            best = min(row[j - 1] + 1, rows[i - 1][j] + 1, rows[i - 1][j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                best = min(best, rows[i - 2][j - 2] + 1)
            row.append(best)
        rows.append(row)
    return rows[-1][-1]
