"""A timeline in, an SVG picture and a Chrome trace of one of its steps out.

One lane for each of a few ranks, from the fastest to the slowest, and one for the network; a bucket has one colour
wherever it appears: where its gradients are computed and where it is reduced.
"""

from __future__ import annotations

from collections.abc import Iterator
from colorsys import hls_to_rgb
from dataclasses import dataclass
from html import escape

import numpy as np

from tools.simulate.step import Timeline

_WIDTH, _LEFT, _RIGHT, _TOP, _LANE, _BOTTOM = 960, 110, 16, 30, 26, 34  # units of the view box
_PLAIN = {"host": "#bbbbbb", "forward": "#d0d7de", "wait": "#ffffff", "clip": "#999999", "optimizer": "#555555"}
_MICROSECOND = 1e6


@dataclass(frozen=True)
class Bar:
    lane: str
    name: str
    start_s: float
    stop_s: float
    bucket: int | None = None


def bars(timeline: Timeline, num_ranks: int = 5) -> list[Bar]:
    """Of the step whose total is the median one; ranks at even places between fastest and slowest."""
    total_G = timeline.total_G
    step = int(np.argsort(total_G, kind="stable")[len(total_G) // 2])
    order = np.argsort(timeline.compute_GR[step], kind="stable")
    places = np.unique(np.linspace(0, len(order) - 1, num_ranks).round().astype(int))
    found = [bar for rank in order[places] for bar in _of_rank(timeline, step, int(rank))]
    network = zip(timeline.sent_GB[step], timeline.reduced_GB[step], strict=True)
    return [*found, *(Bar("network", f"bucket {b}", s, r, b) for b, (s, r) in enumerate(network) if r > s)]


def _of_rank(timeline: Timeline, step: int, rank: int) -> Iterator[Bar]:
    lane, at = f"rank {rank}", timeline.start_s
    if at:
        yield Bar(lane, "host", 0.0, at)
    backward = at + timeline.forward_GR[step, rank]
    yield Bar(lane, "forward", at, backward)
    begun = backward
    for bucket, share in enumerate(timeline.buckets.ready_B):
        done = backward + share * timeline.backward_GR[step, rank]
        yield Bar(lane, f"backward of bucket {bucket}", begun, done, bucket)
        begun = done
    reduced = timeline.reduced_GB[step, -1]
    yield Bar(lane, "wait", begun, reduced)
    clipped = reduced + timeline.clip_after_s
    if timeline.clip_after_s:
        yield Bar(lane, "clip", reduced, clipped)
    yield Bar(lane, "optimizer", clipped, clipped + timeline.optimizer_s)


def svg(timeline: Timeline, title: str) -> str:
    drawn = [bar for bar in bars(timeline) if bar.stop_s > bar.start_s]
    lanes = list(dict.fromkeys(bar.lane for bar in drawn))
    scale = (_WIDTH - _LEFT - _RIGHT) / max(bar.stop_s for bar in drawn)
    num_buckets = len(timeline.buckets.bytes_B)
    height = _TOP + _LANE * len(lanes) + _BOTTOM
    parts = [f'<text x="{_LEFT}" y="18" font-weight="bold">{escape(title)}</text>']
    for index, lane in enumerate(lanes):
        parts.append(f'<text x="{_LEFT - 8}" y="{_TOP + _LANE * index + 16}" text-anchor="end">{lane}</text>')
    for bar in drawn:
        x, y = _LEFT + bar.start_s * scale, _TOP + _LANE * lanes.index(bar.lane)
        width = (bar.stop_s - bar.start_s) * scale
        label = f"{bar.name}: {1000 * bar.start_s:.2f} to {1000 * bar.stop_s:.2f} ms"
        parts.append(
            f'<rect x="{x:.2f}" y="{y + 3}" width="{width:.2f}" height="{_LANE - 6}" fill="{_fill(bar, num_buckets)}" '
            f'stroke="#777777" stroke-width="0.3"><title>{escape(label)}</title></rect>'
        )
    parts += _axis(max(bar.stop_s for bar in drawn), scale, height)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12"><title>{escape(title)}</title>'
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _fill(bar: Bar, num_buckets: int) -> str:
    if bar.bucket is None:
        return _PLAIN[bar.name]
    red, green, blue = hls_to_rgb(bar.bucket / num_buckets, 0.68 if bar.bucket % 2 else 0.52, 0.65)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def _axis(last_s: float, scale: float, height: int) -> Iterator[str]:
    bottom = height - _BOTTOM + 4
    step_ms = next(each for each in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10_000) if 1000 * last_s / each <= 12)
    for mark in range(0, int(1000 * last_s) + 1, step_ms):
        x = _LEFT + mark / 1000 * scale
        yield f'<path d="M{x:.1f} {_TOP}V{bottom}" stroke="#cccccc" stroke-width="0.5"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{mark}</text>'
    yield f'<text x="{_WIDTH - _RIGHT}" y="{height - 4}" text-anchor="end">milliseconds of a step</text>'


def chrome_trace(timeline: Timeline) -> dict[str, list[dict[str, object]]]:
    """For chrome://tracing or Perfetto: complete events, microseconds."""
    events: list[dict[str, object]] = []
    drawn = bars(timeline)
    lanes = list(dict.fromkeys(bar.lane for bar in drawn))
    for number, lane in enumerate(lanes):
        events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": lane}})
    for bar in drawn:
        start, stop = round(bar.start_s * _MICROSECOND, 3), round(bar.stop_s * _MICROSECOND, 3)
        events.append(
            {"ph": "X", "name": bar.name, "pid": lanes.index(bar.lane), "tid": 0, "ts": start, "dur": stop - start}
        )
    return {"traceEvents": events}
