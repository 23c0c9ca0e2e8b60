"""The plots of the demo's report: SVG made by hand, coloured by the page's own variables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

from stelae.cli.demo.stage import Latency, StepTaken, short_time
from stelae.cli.demo.traffic import slices

_WIDTH = 920
_SLICE_S = 0.5
_TEXT = 'font-size="12" class="soft"'


class PairedBar(NamedTuple):
    label: str
    before: int
    after: int


def latency_chart(latencies: Sequence[Latency], scans: Sequence[tuple[float, float]]) -> str:
    """Reads over time, on a scale of powers of ten, with bands where Spark was scanning; updates as dots."""
    end_s = max((each.at_s for each in latencies), default=1.0) or 1.0
    frame = _Frame(end_s, [each.took_s for each in latencies])
    parts = [frame.band(start, stop) for start, stop in scans]
    parts += frame.axes()
    updates = [each for each in latencies if each.is_update]
    parts += [
        f'<circle cx="{frame.x(each.at_s):.1f}" cy="{frame.y(each.took_s):.1f}" r="1.6" class="dot"/>'
        for each in updates[:: max(1, len(updates) // 400)]
    ]
    parts.append(frame.line(slices(latencies, 0.5, _SLICE_S), "half"))
    parts.append(frame.line(slices(latencies, 0.99, _SLICE_S), "worst"))
    legend = [("worst", "reads, p99"), ("half", "reads, p50"), ("dot", "one update, durable")]
    if scans:
        legend.append(("band", "Spark scans the table"))
        parts.append(f'<text x="{frame.x(scans[0][0]) + 8:.1f}" y="30" {_TEXT}>Spark scans</text>')
    return _svg(frame.height + 30, [*parts, *_legend(legend, frame.height + 18)])


class _Frame:
    """Seconds to the right, time taken upwards."""

    height = 300
    _left, _top, _bottom = 64, 14, 34

    def __init__(self, end_s: float, took: Sequence[float]) -> None:
        positive = [value for value in took if value > 0] or [1e-3]
        self._end_s = end_s
        self._low = floor(log10(min(positive)))
        self._high = max(self._low + 1, ceil(log10(max(positive))))

    def x(self, at_s: float) -> float:
        return self._left + (_WIDTH - self._left - 12) * min(at_s, self._end_s) / self._end_s

    def y(self, took_s: float) -> float:
        room = self.height - self._top - self._bottom
        place = (log10(max(took_s, 10**self._low)) - self._low) / (self._high - self._low)
        return self._top + room * (1 - place)

    def band(self, start_s: float, stop_s: float) -> str:
        width = max(1.0, self.x(stop_s) - self.x(start_s) - 1)
        height = self.height - self._top - self._bottom
        return f'<rect x="{self.x(start_s):.1f}" y="{self._top}" width="{width:.1f}" height="{height}" class="band"/>'

    def axes(self) -> list[str]:
        parts = []
        for power in range(self._low, self._high + 1):
            y = self.y(10.0**power)
            parts.append(f'<line x1="{self._left}" x2="{_WIDTH - 12}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
            label = short_time(10.0**power).replace(".0 ", " ")
            parts.append(f'<text x="{self._left - 8}" y="{y + 4:.1f}" text-anchor="end" {_TEXT}>{label}</text>')
        every = max(1, ceil(self._end_s / 10))
        for second in range(0, int(self._end_s) + 1, every):
            x, y = self.x(second), self.height - self._bottom + 18
            parts.append(f'<text x="{x:.1f}" y="{y}" text-anchor="middle" {_TEXT}>{second} s</text>')
        return parts

    def line(self, points: Sequence[tuple[float, float]], kind: str) -> str:
        drawn = " ".join(f"{self.x(at):.1f},{self.y(took):.1f}" for at, took in points)
        return f'<polyline points="{drawn}" class="line {kind}"/>'


def paired_chart(bars: Sequence[PairedBar], names: tuple[str, str]) -> str:
    """Two bars under each other for each label."""
    most = max((max(bar.before, bar.after) for bar in bars), default=0) or 1
    room, left, height = 620, 130, 42
    parts = []
    for place, bar in enumerate(bars):
        y = 6 + place * height
        parts.append(f'<text x="{left - 10}" y="{y + 21}" text-anchor="end" {_TEXT}>{escape(bar.label)}</text>')
        for at, (value, kind) in enumerate(((bar.before, "then"), (bar.after, "now"))):
            top, length = y + at * 17, max(1.0, room * value / most)
            parts.append(f'<rect x="{left}" y="{top}" width="{length:.1f}" height="14" rx="3" class="{kind}"/>')
            parts.append(f'<text x="{left + length + 7:.1f}" y="{top + 11}" {_TEXT}>{value:,}</text>')
    bottom = 6 + len(bars) * height
    return _svg(bottom + 22, [*parts, *_legend([("then", names[0]), ("now", names[1])], bottom + 10)])


def steps_chart(steps: Sequence[StepTaken]) -> str:
    """One behind the other, as they came."""
    total = sum(step.seconds for step in steps) or 1.0
    room, left, height, start = 330, 470, 26, 0.0
    parts = []
    for place, step in enumerate(steps):
        y, x = 4 + place * height, left + room * start / total
        length = max(2.0, room * step.seconds / total)
        parts.append(f'<text x="0" y="{y + 13}" font-size="12.5" class="ink">{place + 1}. {escape(step.title)}</text>')
        parts.append(f'<rect x="{x:.1f}" y="{y}" width="{length:.1f}" height="16" rx="3" class="now"/>')
        parts.append(f'<text x="{x + length + 7:.1f}" y="{y + 12}" {_TEXT}>{short_time(step.seconds)}</text>')
        start += step.seconds
    return _svg(4 + len(steps) * height, parts)


def _legend(entries: Sequence[tuple[str, str]], y: float) -> list[str]:
    parts, x = [], 64.0
    for kind, label in entries:
        if kind == "dot":
            parts.append(f'<circle cx="{x + 6}" cy="{y - 4}" r="3" class="dot"/>')
        else:
            parts.append(f'<rect x="{x}" y="{y - 9}" width="12" height="10" rx="2" class="key {kind}"/>')
        parts.append(f'<text x="{x + 18}" y="{y}" {_TEXT}>{escape(label)}</text>')
        x += 40 + 6.6 * len(label)
    return parts


def _svg(height: float, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {_WIDTH} {height:.0f}" width="100%"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">', *parts, "</svg>"])
