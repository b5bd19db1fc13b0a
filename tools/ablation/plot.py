"""Rows of the table in, an SVG file's text out: samples to target over the batch, a panel for each optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

from tools.ablation.plan import CLIPS, OPTIMIZERS
from tools.ablation.table import Row

_PANEL, _GAP, _HEIGHT = 230, 24, 290  # units of the view box
_LEFT, _TOP, _BOTTOM = 58, 34, 62
_COLOURS = dict(zip(CLIPS, ("#555555", "#0072b2", "#e69f00", "#d55e00"), strict=True))  # also apart without colour:
_DASHES = dict(zip(CLIPS, ("2 3", "7 3", "7 3 2 3", "none"), strict=True))


def svg(rows: Sequence[Row]) -> str:
    """Both axes are logarithmic; bars span the seeds. Cells where a seed missed the target are left out."""
    shown = [row for row in rows if row.samples and not row.most_samples]
    width = _LEFT + len(OPTIMIZERS) * (_PANEL + _GAP)
    parts = list(_panels(shown)) if shown else [_text(width / 2, _HEIGHT / 2, "no cell has reached the target yet")]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" role="img" '
        'font-family="system-ui, sans-serif" font-size="12">'
        "<title>Samples to target over the global batch</title>"
        f'<rect width="{width}" height="{_HEIGHT}" fill="white"/>{"".join(parts)}{"".join(_legend())}</svg>\n'
    )


def _panels(rows: Sequence[Row]) -> Iterator[str]:
    batches = sorted({row.cell.batch for row in rows})
    counts = [samples for row in rows for samples in row.samples]
    levels = _levels(min(counts), max(counts))
    bottom = _HEIGHT - _BOTTOM

    def y(samples: float) -> float:
        share = math.log(samples / levels[0]) / math.log(levels[-1] / levels[0])
        return bottom - share * (bottom - _TOP)

    for index, optimizer in enumerate(OPTIMIZERS):
        left = _LEFT + index * (_PANEL + _GAP)
        places = {batch: left + _PANEL * (i + 0.5) / len(batches) for i, batch in enumerate(batches)}
        yield _text(left + _PANEL / 2, _TOP - 14, optimizer, weight="bold")
        for level in levels:
            yield f'<path d="M{left} {y(level):.1f}h{_PANEL}" stroke="#dddddd"/>'
            if index == 0:
                yield _text(left - 6, y(level) + 4, f"{level:,}", anchor="end")
        for batch, x in places.items():
            yield _text(x, bottom + 16, f"{batch:,}")
        for number, clip in enumerate(CLIPS):
            shift = 5 * (number - 1.5)  # so that bars of equal batches stand beside each other
            own = sorted((r for r in rows if (r.cell.optimizer, r.cell.clip) == (optimizer, clip)), key=_batch)
            yield from _line(own, [places[row.cell.batch] + shift for row in own], y, clip)


def _batch(row: Row) -> int:
    return row.cell.batch


def _line(rows: Sequence[Row], xs: Sequence[float], y: Callable[[float], float], clip: str) -> Iterator[str]:
    means = [y(row.mean) for row in rows if row.mean is not None]
    points = " ".join(f"{x:.1f},{mean:.1f}" for x, mean in zip(xs, means, strict=True))
    stroke = f'stroke="{_COLOURS[clip]}"'
    yield f'<polyline points="{points}" fill="none" {stroke} stroke-width="1.5" stroke-dasharray="{_DASHES[clip]}"/>'
    for row, x, mean in zip(rows, xs, means, strict=True):
        yield f'<path d="M{x:.1f} {y(min(row.samples)):.1f}V{y(max(row.samples)):.1f}" {stroke}/>'
        yield f'<circle cx="{x:.1f}" cy="{mean:.1f}" r="3" fill="{_COLOURS[clip]}"/>'


def _levels(low: float, high: float) -> list[int]:
    """1, 2 and 5 times powers of ten that enclose the values."""
    steps = [m * 10**e for e in range(1, 10) for m in (1, 2, 5)]
    first = max(i for i, step in enumerate(steps) if step <= low)
    last = min(i for i, step in enumerate(steps) if step >= high)
    return steps[first : max(last, first + 1) + 1]


def _legend() -> Iterator[str]:
    yield _text(_LEFT, 14, "samples to target", anchor="start")
    yield _text(_LEFT, _HEIGHT - 26, "global batch", anchor="start")
    for index, clip in enumerate(CLIPS):
        x = _LEFT + index * 170
        line = f'stroke="{_COLOURS[clip]}" stroke-width="1.5" stroke-dasharray="{_DASHES[clip]}"'
        yield f'<path d="M{x} {_HEIGHT - 10}h28" {line}/>' + _text(x + 34, _HEIGHT - 6, clip, anchor="start")


def _text(x: float, y: float, text: str, *, anchor: str = "middle", weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'
