"""What the TPC-H bench found, as tables and as rows for the file."""

from __future__ import annotations

from collections.abc import Sequence

from harness import Row
from rich.table import Table
from tpch_measuring import OURS, PARQUET, PROCESSOR, WALL, Found
from tpch_world import console

WANTED = {"clean": 1.0, "whole": 1.1, "narrow": 1.15, "erased": 1.05}
"""The geometric mean of processor time over Parquet's, all 22 queries, at scale 1."""

_NATIVE = "native Parquet"
"""How the title of Parquet on the peers' Spark begins."""


def print_state(found: Found) -> None:
    table = Table(title=f"TPC-H, {found.state}: ours over plain Parquet, less is better")
    for heading in ("query", "processor: ours", "Parquet", "ratio", "seconds: ours", "Parquet", "ratio"):
        table.add_column(heading, justify="right")
    processor, wall = found.ratios(PROCESSOR), found.ratios(WALL)
    for number, took in found.took.items():
        ours, parquet = took[OURS], took[PARQUET]
        table.add_row(
            str(number),
            f"{ours.processor_s:.2f} s",
            f"{parquet.processor_s:.2f} s",
            f"{processor[number]:.2f}",
            f"{ours.wall_s:.2f} s",
            f"{parquet.wall_s:.2f} s",
            f"{wall[number]:.2f}",
        )
    table.add_section()
    table.add_row("geometric mean", "", "", _judged(found), "", "", f"{found.mean(WALL):.2f}")
    console.print(table)


def _judged(found: Found) -> str:
    mean, wanted = found.mean(PROCESSOR), WANTED.get(found.state)
    if wanted is None:
        return f"{mean:.2f}"
    return f"[{'green' if round(mean, 2) <= wanted else 'red'}]{mean:.2f}[/] (wanted: {wanted:g})"


def print_summary(all_found: Sequence[Found]) -> None:
    table = Table(title="TPC-H: geometric means, ours over plain Parquet; and the time to open all 8 frames")
    for heading in ("state", "processor", "seconds", "worst", "opening (processor)", "again", "Parquet's opening"):
        table.add_column(heading, justify="left" if heading in ("state", "worst") else "right")
    for found in all_found:
        ratios = found.ratios(PROCESSOR)
        worst = sorted(ratios, key=lambda number: -ratios[number])[:5]
        opening = (found.opening, found.opening_again, found.parquet_opening)
        table.add_row(
            found.state,
            _judged(found),
            f"{found.mean(WALL):.2f}",
            ", ".join(f"q{number} {ratios[number]:.2f}" for number in worst),
            *(f"{each.wall_s:.2f} s ({each.processor_s:.2f} s)" for each in opening),
        )
    console.print(table)


def print_peers(all_found: Sequence[Found]) -> None:
    """A peer on another Spark is set beside the Parquet of that Spark, as we are beside that of ours."""
    table = Table(title="TPC-H, peers: geometric means of all queries")
    for heading in ("state", "peer", "ours over it: processor", "seconds", "it over its Parquet", "ours over ours"):
        table.add_column(heading, justify="left" if heading in ("state", "peer") else "right")
    for found in all_found:
        parquet = next((title for title in found.peers if title.startswith(_NATIVE)), PARQUET)
        for title in found.peers:
            table.add_row(
                found.state,
                title,
                f"{found.mean(PROCESSOR, OURS, title):.2f}",
                f"{found.mean(WALL, OURS, title):.2f}",
                f"{found.mean(PROCESSOR, title, parquet):.2f}",
                f"{found.mean(PROCESSOR):.2f}",
            )
    console.print(table)


def rows_of(found: Found) -> list[Row]:
    return [
        Row(f"{found.state}, query {number}, {words}", getattr(took[OURS], of), getattr(took[title], of), title)
        for number, took in found.took.items()
        for title in (PARQUET, *found.peers)
        for of, words in ((PROCESSOR, "processor time"), (WALL, "seconds"))
    ]


def facts_of(found: Found) -> dict[str, object]:
    return {
        "processor_over_parquet": round(found.mean(PROCESSOR), 3),
        "wanted": WANTED.get(found.state),
        "seconds_over_parquet": round(found.mean(WALL), 3),
        "processor_over_peers": {title: round(found.mean(PROCESSOR, OURS, title), 3) for title in found.peers},
        "open_s": round(found.opening.wall_s, 3),
        "open_processor_s": round(found.opening.processor_s, 3),
        "open_again_s": round(found.opening_again.wall_s, 3),
        "open_again_processor_s": round(found.opening_again.processor_s, 3),
        "parquet_open_s": round(found.parquet_opening.wall_s, 3),
    }
