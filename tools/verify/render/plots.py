"""A folder's runs in, two SVG plots out: accuracy over time, and the time of each run. Colours are in page.css."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from tools.verify.render import facts, words
from tools.verify.report import Evaluation, Folder

_WIDTH = 380  # units of the view box; about as many pixels on a telephone, so that 12 units of text stay readable
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 26, 40  # margins of the accuracy plot
_HEIGHT = 250
_ROW, _NAME, _TIME = 20, 104, 64  # of the bars: height, room for the name and for the figure
_MOST_LETTERS = 14  # of a name beside its bar


@dataclass(frozen=True)
class _Scale:
    """From values low to high to places start to stop."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        return self.start + (self.stop - self.start) * (value - self.low) / ((self.high - self.low) or 1)


def accuracy_plot(folder: Folder, most_points: int) -> str:
    """One line per run of its evaluations over time, thinned to about `most_points`; empty without evaluations."""
    curves = [[e for e in run.evaluations if _drawable(e.seconds) and _drawable(e.accuracy)] for run in folder.runs]
    shown = [evaluation for curve in curves for evaluation in curve]
    if not shown:
        return ""
    targets = sorted({run.target for run, c in zip(folder.runs, curves, strict=True) if c and _drawable(run.target)})
    heights = [*(evaluation.accuracy for evaluation in shown), *targets]
    levels = ticks(min(heights), max(heights))
    x = _Scale(0, max(evaluation.seconds for evaluation in shown) / 60, _LEFT, _WIDTH - _RIGHT)
    y = _Scale(levels[0], levels[-1], _HEIGHT - _BOTTOM, _TOP)
    parts = [
        *_grid_y(levels, y),
        *_axis_x(x, _HEIGHT - _BOTTOM, "minutes since run_start"),
        _text(4, 14, "masked-LM accuracy", "start"),
        *(_curve(folder, index, thin(curves[index], most_points), x, y) for index in _back_to_front(folder, curves)),
        *(_target(target, y(target)) for target in targets),
    ]
    return _svg(_HEIGHT, f"Accuracy over time of {words.plural(len(folder.runs), 'run')}", parts)


def time_plot(folder: Folder, name: str) -> str:
    """A bar per run, the dropped ones hatched, and the mean of the counted ones; `name` is unique in the page."""
    minutes = [run.minutes for run in folder.runs if run.minutes is not None and _drawable(run.minutes)]
    if not minutes:
        return ""
    x = _Scale(0, max(minutes), _NAME, _WIDTH - _TIME)
    bottom = _TOP + _ROW * len(folder.runs)
    parts = [
        f'<pattern id="{name}" class="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="6" height="6"/><path d="M0 0V6"/></pattern>',
        *_axis_x(x, bottom, "minutes"),
        *(part for index in range(len(folder.runs)) for part in _bar(folder, index, x, name)),
        *_mean(folder, x, bottom),
    ]
    return _svg(bottom + _BOTTOM, f"Time of {words.plural(len(folder.runs), 'run')}", parts)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most about `most` + 2 round numbers, evenly spaced, from not above `low` to not below `high`."""
    width = max(high - low, abs(high) * 1e-3, 1e-3) / most
    power = 10 ** math.floor(math.log10(width))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor >= width)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [step * number for number in range(first, max(last, first + 1) + 1)]


def thin(curve: Sequence[Evaluation], most: int) -> list[Evaluation]:
    """At most `most` + 2 evaluations in their order: first, last, and lowest and highest of equal parts."""
    if len(curve) <= most:
        return list(curve)
    parts = max(1, most // 2)
    kept = {0, len(curve) - 1}
    for part in range(parts):
        indices = range(part * len(curve) // parts, (part + 1) * len(curve) // parts)
        kept |= {min(indices, key=lambda i: curve[i].accuracy), max(indices, key=lambda i: curve[i].accuracy)}
    return [curve[index] for index in sorted(kept)]


def _drawable(value: float) -> bool:
    """Whether the value can be drawn beside others: not negative, not infinite, no number, no absurd one."""
    return 0 <= value < 1e9


def _back_to_front(folder: Folder, curves: Sequence[Sequence[Evaluation]]) -> list[int]:
    """Indices of the runs with a curve, so that the few dropped and failed are drawn over the many counted."""
    drawn = (index for index, curve in enumerate(curves) if curve)
    return sorted(drawn, key=lambda index: ("counted", "dropped", "failed").index(facts.role(folder, index)))


def _curve(folder: Folder, index: int, curve: Sequence[Evaluation], x: _Scale, y: _Scale) -> str:
    points = [f"{x(evaluation.seconds / 60):.1f},{y(evaluation.accuracy):.1f}" for evaluation in curve]
    last_x, last_y = points[-1].split(",")
    label = f"{_name(folder, index)}: {words.fixed(curve[-1].accuracy, 4)} in the end"
    return (
        f'<g class="curve {facts.role(folder, index)}"><title>{escape(label)}</title>'
        f'<polyline points="{" ".join(points)}"/><circle cx="{last_x}" cy="{last_y}" r="2.5"/></g>'
    )


def _bar(folder: Folder, index: int, x: _Scale, hatch: str) -> Iterator[str]:
    minutes, top = folder.runs[index].minutes, _TOP + _ROW * index
    name, role = _name(folder, index), facts.role(folder, index)
    yield _text(_NAME - 8, top + 14, words.cut(name, _MOST_LETTERS), "end")
    if minutes is not None and _drawable(minutes):
        fill = f' fill="url(#{hatch})"' if role == "dropped" else ""
        yield (
            f'<rect class="bar {role}" x="{_NAME}" y="{top + 3}" width="{x(minutes) - _NAME:.1f}" '
            f'height="{_ROW - 6}"{fill}><title>{escape(f"{name}: {words.minutes(minutes)}, {role}")}</title></rect>'
        )
    yield _text(_WIDTH - 4, top + 14, words.fixed(minutes, 3), "end")


def _mean(folder: Folder, x: _Scale, bottom: float) -> Iterator[str]:
    mean = folder.score.mean_minutes if folder.score else None
    if mean is None or not _drawable(mean):
        return
    yield f'<path class="line" d="M{x(mean):.1f} {_TOP - 4}V{bottom}"/>'
    yield _text(min(x(mean) + 30, _WIDTH - 4), _TOP - 9, f"mean of the counted {words.fixed(mean, 3)}", "end")


def _target(target: float, at: float) -> str:
    label = _text(_LEFT + 4, at + 14, f"target {words.fixed(target, 4)}", "start")
    return f'<path class="line" d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}"/>{label}'


def _grid_y(levels: Sequence[float], y: _Scale) -> Iterator[str]:
    digits = _digits(levels)
    for level in levels:
        yield f'<path class="grid" d="M{_LEFT} {y(level):.1f}H{_WIDTH - _RIGHT}"/>'
        yield _text(_LEFT - 6, y(level) + 4, words.fixed(level, digits), "end")


def _axis_x(x: _Scale, bottom: float, label: str) -> Iterator[str]:
    marks = ticks(x.low, x.high)
    digits = _digits(marks)
    for mark in (mark for mark in marks if mark <= x.high):
        yield f'<path class="grid" d="M{x(mark):.1f} {_TOP}V{bottom}"/>'
        yield _text(x(mark), bottom + 15, words.fixed(mark, digits), "middle")
    yield _text((x.start + x.stop) / 2, bottom + 32, label, "middle")


def _digits(marks: Sequence[float]) -> int:
    """Digits after the point that tell the marks apart."""
    return min(6, max(0, -math.floor(math.log10(marks[1] - marks[0]))))


def _name(folder: Folder, index: int) -> str:
    return words.within(folder.runs[index].path, folder.path)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(height: float, label: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(label)}">'
        f"<title>{escape(label)}</title>{''.join(parts)}</svg>"
    )
