"""The plots of the demo's report, made by hand and coloured by the page's own variables.

Bars are HTML, which fits itself to any screen, a phone's too. The plot over time is SVG, as wide as the screen; on a
narrow one the page gives it larger letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

from stelae.cli.demo.stage import Latency, StepTaken, short_time
from stelae.cli.demo.traffic import slices

_WIDTH = 680
_SLICE_S = 0.5
_TEXT = 'font-size="13" class="soft"'


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
    return f"{_legend(legend)}{_svg(frame.height, parts)}"


class _Frame:
    """Seconds to the right, time taken upwards."""

    height = 330
    _left, _top, _bottom = 84, 14, 58

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
        middle = self._top + (self.height - self._top - self._bottom) / 2
        turned = f'transform="rotate(-90 14 {middle:.0f})" text-anchor="middle" {_TEXT}'
        parts.append(f'<text x="14" y="{middle:.0f}" {turned}>time of one request</text>')
        across = (self._left + _WIDTH - 12) / 2
        below = f'x="{across:.0f}" y="{self.height - 8}" text-anchor="middle" {_TEXT}'
        parts.append(f"<text {below}>seconds since the first request</text>")
        every = max(1, ceil(self._end_s / 10))
        for second in range(0, int(self._end_s) + 1, every):
            x, y = self.x(second), self.height - self._bottom + 18
            parts.append(f'<text x="{x:.1f}" y="{y}" text-anchor="middle" {_TEXT}>{second}</text>')
        return parts

    def line(self, points: Sequence[tuple[float, float]], kind: str) -> str:
        drawn = " ".join(f"{self.x(at):.1f},{self.y(took):.1f}" for at, took in points)
        return f'<polyline points="{drawn}" class="line {kind}"/>'


def paired_chart(bars: Sequence[PairedBar], names: tuple[str, str], of: str) -> str:
    """Two bars under each other for each label. `of`: what they count."""
    most = max((max(bar.before, bar.after) for bar in bars), default=0) or 1
    parts = [_legend([("then", names[0]), ("now", names[1])]), f'<div class="axis">{escape(of)}</div>']
    for bar in bars:
        pair = "".join(
            f'<div class="bar"><i class="{kind}" style="width:{length:.1f}%"></i><s>{value:,}</s></div>'
            for value, kind in ((bar.before, "then"), (bar.after, "now"))
            for length in [max(0.3, 78 * value / most)]
        )
        parts.append(f'<div class="pair"><span>{escape(bar.label)}</span><div>{pair}</div></div>')
    return "\n".join(parts)


def steps_chart(steps: Sequence[StepTaken]) -> str:
    """One behind the other, as they came."""
    total = sum(step.seconds for step in steps) or 1.0
    parts, start = ['<div class="axis">time, one step after the other</div>'], 0.0
    for place, step in enumerate(steps, 1):
        before, length = 75 * start / total, max(0.4, 75 * step.seconds / total)
        took = f"<s>{short_time(step.seconds)}</s>"
        bar = f'<i class="now" style="margin-left:{before:.1f}%;width:{length:.1f}%"></i>{took}'
        parts.append(f'<div class="step"><span>{place}. {escape(step.title)}</span><div class="bar">{bar}</div></div>')
        start += step.seconds
    return "\n".join(parts)


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    keys = "".join(f'<span><i class="key {kind}"></i>{escape(label)}</span>' for kind, label in entries)
    return f'<div class="legend">{keys}</div>'


def _svg(height: float, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {_WIDTH} {height:.0f}"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">', *parts, "</svg>"])
