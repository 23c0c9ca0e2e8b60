"""The demo's report: one HTML file with all that it shows inside, readable anywhere and for ever."""

from __future__ import annotations

import os
import platform
import re
import shlex
from collections.abc import Iterator
from html import escape
from pathlib import Path

import stelae
from stelae.cli.demo.charts import PairedBar, latency_chart, paired_chart, steps_chart
from stelae.cli.demo.stage import DemoFigure, DemoStory, rounded
from stelae.model.values import datetime_of_micros

_STYLE = """
:root { --ink: #17212b; --soft: #5d6b78; --paper: #f6f4ef; --card: #ffffff; --edge: #e3ded3; --now: #0d7c78;
  --then: #c9c2b2; --worst: #d9541e; --band: #0d7c7816; --dot: #8a6fc0; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --soft: #9aa6b2; --paper: #14181d; --card: #1d232a;
  --edge: #2e3741; --now: #2fb5ad; --then: #56606b; --worst: #ff8a50; --band: #2fb5ad1c; --dot: #b79cf0; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 1000px; margin: 0 auto; padding: 48px 20px 80px; }
h1 { font-size: 34px; line-height: 1.15; margin: 0 0 8px; letter-spacing: -.02em; }
h2 { font-size: 20px; margin: 0 0 4px; letter-spacing: -.01em; }
p { margin: 0 0 14px; color: var(--soft); max-width: 70ch; }
.cards { display: flex; flex-wrap: wrap; gap: 14px; margin: 28px 0; }
.card, section { background: var(--card); border: 1px solid var(--edge); border-radius: 14px; }
.card { padding: 16px 18px; flex: 1 1 270px; }
.card b { display: block; font-size: 30px; letter-spacing: -.02em; color: var(--now); white-space: nowrap; }
.card span { color: var(--soft); font-size: 13.5px; }
section { padding: 24px 26px; margin: 18px 0; }
svg { display: block; margin-top: 6px; width: 100%; font-family: system-ui, sans-serif; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 13.5px; color: var(--soft); margin: 6px 0; }
.legend .key { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px; }
.axis { font-size: 13.5px; color: var(--soft); margin: 8px 0; }
.pair { display: flex; gap: 12px; align-items: center; margin: 8px 0; font-size: 14px; }
.pair > span { flex: 0 0 92px; text-align: right; overflow-wrap: anywhere; color: var(--soft); }
.pair > div { flex: 1 1 auto; min-width: 0; }
.step { margin: 10px 0; font-size: 15px; }
.bar { display: flex; align-items: center; gap: 8px; height: 19px; }
.bar i { display: block; height: 14px; border-radius: 3px; flex: none; }
.bar s { text-decoration: none; font-size: 13px; color: var(--soft); white-space: nowrap; }
pre { overflow-x: auto; margin: 6px 0 0; padding: 12px 14px; border-radius: 8px; background: var(--paper);
  border: 1px solid var(--edge); font-size: 13.5px; line-height: 1.7; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
td { padding: 7px 0; border-bottom: 1px solid var(--edge); }
td:last-child { text-align: right; font-weight: 600; }
footer { color: var(--soft); font-size: 13.5px; margin-top: 24px; }
code { background: var(--paper); border: 1px solid var(--edge); border-radius: 5px; padding: 1px 5px; font-size: 90%; }
.ink { fill: var(--ink); } .soft { fill: var(--soft); } .grid { stroke: var(--edge); } .band { fill: var(--band); }
.now, .half.key { background: var(--now); } .then { background: var(--then); }
.dot { fill: var(--dot); } .dot.key { background: var(--dot); } .worst.key { background: var(--worst); }
.band.key { background: var(--band); border: 1px solid var(--edge); }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
.half { stroke: var(--now); } .worst { stroke: var(--worst); }
@media (max-width: 560px) { main { padding: 24px 12px 48px; } section { padding: 18px 14px; } h1 { font-size: 27px; }
  svg text { font-size: 21px; } .card { flex-basis: 100%; } .pair > span { flex-basis: 64px; font-size: 13px; } }
"""


def write_report(path: Path, story: DemoStory) -> None:
    path.write_text(report_text(story), "utf-8")


def report_text(story: DemoStory) -> str:
    seconds = sum(step.seconds for step in story.steps)
    did = ", ".join(dict.fromkeys(word for step in story.steps for word in step.did))
    who = "Spark jobs and single rows" if any(step.with_spark for step in story.steps) else "scans and single rows"
    one_copy = f"One directory of Parquet files; {who} on the same data."
    body = "\n".join(
        [
            f"<h1>{story.rows:,} rows, one copy{f':<br>{escape(did)}' if did else ''}</h1>",
            f"<p>What <code>stelae demo</code> did on this machine in {seconds:.0f} seconds. {one_copy}</p>",
            f'<div class="cards">{"".join(_card(each) for each in story.figures if each.head)}</div>',
            *_sections(story),
            _section("All figures", "Of this machine, with everything else that it was doing.", _figures(story)),
            *([_section("Go on from here", "The store is still there.", _commands(story))] if story.store else []),
            f"<footer>{escape(', '.join(_machine(story)))}</footer>",
        ]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Stelae, a demo</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


def _machine(story: DemoStory) -> list[str]:
    """When and on what it was: figures mean little without."""
    day = f"{datetime_of_micros(story.taken_ms * 1_000):%Y-%m-%d %H:%M} UTC" if story.taken_ms else ""
    hardware = [_processor(), f"{os.cpu_count()} cores", _memory()]
    system = f"{platform.system()} {platform.release()} on {platform.machine()}"
    software = [f"stelae {stelae.__version__}", f"Python {platform.python_version()}", system]
    return [each for each in (day, *hardware, *software) if each]


def _processor() -> str:
    """The processor's name, as Linux tells it; no text on other systems."""
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    except OSError:
        return ""
    return found[1].strip() if found else ""


def _memory() -> str:
    try:
        size_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return ""
    return f"{size_bytes / 2**30:.0f} GiB of memory"


def _commands(story: DemoStory) -> str:
    return f"<pre>{escape(chr(10).join(next_commands(story)))}</pre>"


def next_commands(story: DemoStory) -> list[str]:
    """What to try on the store that the demo has left."""
    place = shlex.quote(story.store)
    code = f'import stelae; print(stelae.open("{story.store}").table("fleet").count())'
    return [
        f"export STELAE_PATH={place}",
        "stelae table describe fleet",
        "stelae scan fleet \"city = 'Oslo'\" --limit 5",
        "stelae get fleet dev-00000007 --history 3",
        "stelae stats fleet",
        f"python -c {shlex.quote(code)}",
    ]


def _sections(story: DemoStory) -> Iterator[str]:
    if story.latencies:
        yield _section(
            "Single rows, while Spark scans",
            f"Spark scanned all {story.rows:,} rows {len(story.scans)} times, each time as they were at that moment. "
            "The same store went on answering reads of single rows, and durable updates, from the same data.",
            latency_chart(story.latencies, story.scans),
        )
    if story.firmware:
        yield _section(
            "The table before and after an upsert",
            "One Spark job changed these rows at one txn. Both moments stay readable: <code>at=</code> chooses.",
            paired_chart(
                [PairedBar(*each) for each in story.firmware], ("before, with at=", "now"), "devices by their firmware"
            ),
        )
    if story.tablets:
        yield _section(
            "Files of each tablet, before and after compaction",
            "The table is cut by key into tablets. Updates and upserts add sorted Parquet files; compacting merges "
            "them, while reading and writing go on.",
            paired_chart(
                [PairedBar(*each) for each in story.tablets],
                ("before", "compacted"),
                "files of each tablet, by where it begins",
            ),
        )
    yield _section("What happened, and how long it took", "", steps_chart(story.steps))


def _section(title: str, words: str, inside: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{f'<p>{words}</p>' if words else ''}{inside}</section>"


def _card(figure: DemoFigure) -> str:
    """Of percentiles the worse; many digits are for the table below."""
    value = rounded(figure.value.rpartition(", p99 ")[2])
    return f'<div class="card"><b>{escape(value)}</b><span>{escape(figure.head)}</span></div>'


def _figures(story: DemoStory) -> str:
    values = [(each.name, rounded(each.value)) for each in story.figures]
    lines = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in values)
    return f"<table>{lines}</table>"
