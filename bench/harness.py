"""What every bench shares: fair timing of two contenders, one table, one JSON file."""

from __future__ import annotations

import gc
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison; seconds are the best of the rounds. `wanted` is the ratio we aim at, if there is one."""

    what: str
    ours_s: float
    peer_s: float
    peer: str
    wanted: float | None = None

    @property
    def ratio(self) -> float:
        return self.peer_s / self.ours_s


def best(rounds: int, ours: Callable[[], object], peer: Callable[[], object]) -> tuple[float, float]:
    """Seconds of each, the best of the rounds, taken in turns so that both meet the same machine."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for times, run in zip(seconds, (ours, peer), strict=True):
            gc.collect()
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
    return min(seconds[0]), min(seconds[1])


def report(name: str, rows: list[Row]) -> None:
    table = Table(title=f"stelae bench: {name}")
    for heading, justify in (("what", "left"), ("ours", "right"), ("peer", "right"), ("ratio", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    table.add_column("wanted", justify="right")
    table.add_column("peer is")
    for row in rows:
        met = row.wanted is None or row.ratio >= row.wanted
        ratio = f"[{'green' if met else 'red'}]{row.ratio:.2f}[/]"
        wanted = "" if row.wanted is None else f"{row.wanted:g}"
        table.add_row(row.what, f"{row.ours_s:.4f} s", f"{row.peer_s:.4f} s", ratio, wanted, row.peer)
    Console(width=140).print(table)
    write_rows(name, rows)


def report_growth(
    name: str, found: Mapping[int, Sequence[Row]], cell: Callable[[int, Row], tuple[str, str, str]]
) -> None:
    """How figures change with the size. `cell`: what it is about and what the peer is, as for every size, and what is
    shown of this one."""
    table = Table(title=f"stelae bench: {name}")
    table.add_column("what")
    table.add_column("peer is")
    for size in found:
        table.add_column(f"{size / 1e6:g} M", justify="right")
    lines: dict[tuple[str, str], dict[int, str]] = {}
    for size, rows in found.items():
        for row in rows:
            what, peer, text = cell(size, row)
            lines.setdefault((what, peer), {})[size] = text
    for (what, peer), by_size in lines.items():
        table.add_row(what, peer, *(by_size.get(size, "") for size in found))
    Console(width=140).print(table)
    write_rows(name, [row for rows in found.values() for row in rows])


def write_rows(name: str, rows: Sequence[Row]) -> None:
    RESULTS.mkdir(exist_ok=True)
    content = {
        "python": platform.python_version(),
        "rows": [{**asdict(row), "ratio": round(row.ratio, 3)} for row in rows],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


def write_facts(name: str, facts: Mapping[str, Any]) -> None:
    """Beside the rows that are in the file."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | dict(facts), indent=2) + "\n")
