"""A picture of a table's tablets, as SVG drawn by hand: nothing but text, readable anywhere and for ever."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from stelae.client.api.display import html_table, shown_bytes
from stelae.model.errors import InvalidArgument

_LABEL, _WIDTH, _BAR, _GAP, _TOP = 190, 300, 16, 8, 64
_NUMBER = 90
_TABLETS_MAX = 200
_FONT = 'font-family="system-ui, sans-serif"'

_STYLE = """
body { font: 14px system-ui, sans-serif; margin: 2em auto; max-width: 1240px; color: #222; }
table { border-collapse: collapse; margin-top: 2em; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .5em; }
td, th { padding: .25em .8em; text-align: right; border-bottom: 1px solid #ddd; }
"""


class Plotted(NamedTuple):
    """What is drawn of one tablet."""

    label: str
    rows: int
    size_bytes: int
    versions_per_row: float


def check_plot(path: object) -> str:
    """The name of a file that a plot can be written to."""
    name = str(path)
    if not name.lower().endswith((".svg", ".html", ".htm")):
        raise InvalidArgument(f"a plot is written to a file that ends in .svg or .html, not to {name!r}")
    return name


def table_plot(
    path: object, title: str, words: str, bars: Sequence[Plotted], head: Sequence[str], lines: Sequence[Sequence[str]]
) -> None:
    """To a file: a page with the table of it, or by the ending of its name the picture alone."""
    name = check_plot(path)
    text = svg_of(title, words, bars)
    if not name.lower().endswith(".svg"):
        text = (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
            f"<style>{_STYLE}</style></head><body>\n{text}\n{html_table(title, head, lines)}\n</body></html>\n"
        )
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)


def svg_of(title: str, words: str, bars: Sequence[Plotted]) -> str:
    """Bars for rows, bytes and versions beside each other, with a line where the mean is. Of very many tablets the
    largest are shown."""
    shown = bars
    if len(bars) > _TABLETS_MAX:
        shown = sorted(bars, key=lambda bar: bar.size_bytes, reverse=True)[:_TABLETS_MAX]
        words = f"{words}; the {_TABLETS_MAX} largest of {len(bars):,} tablets"
    panels = (
        _Panel("rows", "#4c78a8", [float(bar.rows) for bar in shown], [f"{bar.rows:,}" for bar in shown]),
        _Panel("size", "#f58518", [float(b.size_bytes) for b in shown], [shown_bytes(b.size_bytes) for b in shown]),
        _Panel(
            "versions per row",
            "#54a24b",
            [bar.versions_per_row for bar in shown],
            [f"{bar.versions_per_row:.2f}" for bar in shown],
        ),
    )
    height = _TOP + len(shown) * (_BAR + _GAP) + _GAP
    width = _LABEL + len(panels) * (_WIDTH + _GAP)
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {_FONT} font-size="12" fill="#222">',
        f'<text x="0" y="16" font-size="15" font-weight="600">{escape(title)}</text>',
        f'<text x="0" y="34" fill="#666">{escape(words)}</text>',
    ]
    for place, bar in enumerate(shown):
        y = _TOP + place * (_BAR + _GAP) + _BAR - 4
        parts.append(f'<text x="{_LABEL - 10}" y="{y}" text-anchor="end">{escape(bar.label)}</text>')
    for number, panel in enumerate(panels):
        parts += _drawn(panel, _LABEL + number * (_WIDTH + _GAP))
    return "\n".join([*parts, "</svg>"])


class _Panel(NamedTuple):
    name: str
    colour: str
    values: Sequence[float]
    texts: Sequence[str]


def _drawn(panel: _Panel, x: int) -> list[str]:
    room = _WIDTH - _NUMBER
    most = max(panel.values, default=0.0) or 1.0
    parts = [f'<text x="{x}" y="{_TOP - 10}" font-weight="600">{escape(panel.name)}</text>']
    for place, (value, text) in enumerate(zip(panel.values, panel.texts, strict=True)):
        y = _TOP + place * (_BAR + _GAP)
        length = max(1.0, room * value / most)
        parts.append(f'<rect x="{x}" y="{y}" width="{length:.1f}" height="{_BAR}" rx="2" fill="{panel.colour}"/>')
        parts.append(f'<text x="{x + length + 5:.1f}" y="{y + _BAR - 4}" fill="#444">{escape(text)}</text>')
    if panel.values:
        mean = x + room * (sum(panel.values) / len(panel.values)) / most
        ends = f'y1="{_TOP - 4}" y2="{_TOP + len(panel.values) * (_BAR + _GAP)}"'
        parts.append(f'<line x1="{mean:.1f}" x2="{mean:.1f}" {ends} stroke="#888" stroke-dasharray="3 3"/>')
    return parts
