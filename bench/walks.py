"""How many Python calls a put, a get and a short scan take, and through which rooms they go.

    walks.py                                   # prints all walks
    walks.py --json                            # the same, for programs
    walks.py --write docs/architecture.md      # puts the walks that the page shows into its table

A call is a `call` event of `sys.setprofile` on the thread that asks: functions, generators each time they are resumed,
and, before Python 3.12, comprehensions. What is in the files is in the cache, so this is about code alone. A room is
`stelae.<room>`; what stands between two rooms is not counted as either ("python").
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

import stelae

ROWS = 20_000
WARM_UP = 1_000
"""So many gets make a block warm: see `storage/files/blocks`."""

TRACES = 5
"""Each walk is traced so often, and the shortest counts: on a longer one the call met work that goes on beside it."""

SHOWN = (
    ("get", "1 field, in a file"),
    ("put", "1 field, in a file"),
    ("scan with a limit", "1 field, in a file"),
    ("scan with a limit", "10 fields, in a file"),
    ("scan of a range", "1 field, in a file"),
    ("scan of a range", "10 fields, in a file"),
    ("scan of a range", "1 field, overwritten"),
)
"""The walks in docs/architecture.md."""

SHOWN_ROOMS = ("client", "tserver", "storage", "service", "format", "model", "adapters", "python")
HERE = "here"
_FIRST, _PAST = "k00100", "k00110"


@dataclass(frozen=True, slots=True)
class Walk:
    """`path`: the rooms in the order in which the call came into them, without Python's own library."""

    name: str
    table: str
    rooms: dict[str, int]
    path: tuple[str, ...]
    c_calls: int

    @property
    def calls(self) -> int:
        return sum(self.rooms.values())


def room_of(frame: FrameType) -> str:
    parts = str(frame.f_globals.get("__name__", "")).split(".")
    if parts == ["__main__"]:
        return HERE
    return parts[1] if parts[0] == "stelae" and len(parts) > 1 else "python"


def traced(name: str, table: str, call: Callable[[], object]) -> Walk:
    entered: list[str] = []
    c_calls = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal c_calls
        if event == "call":
            entered.append(room_of(frame))
        elif event == "c_call":
            c_calls += 1

    gc.collect()
    gc.disable()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    entered = [room for room in entered if room != HERE]
    path = tuple(room for room, _ in groupby(room for room in entered if room != "python"))
    return Walk(name, table, dict(Counter(entered)), path, c_calls - 1)


def _filled(db: stelae.Database, name: str, fields: int, *, flushed: bool = True) -> stelae.Table:
    columns = {f"field{number}": "int64" for number in range(fields)}
    table = db.create_table(name, {"id": "string"}, [stelae.columns("data", columns)])
    table.put_many([{"id": f"k{at:05}", **dict.fromkeys(columns, at)} for at in range(ROWS)])
    if flushed:
        table.flush()
    return table


def tables(db: stelae.Database) -> Iterator[tuple[str, stelae.Table]]:
    yield "1 field, in a file", _filled(db, "one", 1)
    yield "10 fields, in a file", _filled(db, "ten", 10)
    yield "1 field, in memory", _filled(db, "memory", 1, flushed=False)
    updated = _filled(db, "updated", 1)
    for at in range(100, 110):
        updated.put({"id": f"k{at:05}", "field0": -at})
    yield "1 field, overwritten", updated


def walks() -> Iterator[Walk]:
    """Of each table, each call once it is warm."""
    with tempfile.TemporaryDirectory(prefix="walks-") as directory, stelae.open(directory) as db:
        for about, table in tables(db):
            row = {**(table.get(_FIRST) or {}), "id": "k00050"}
            calls: dict[str, Callable[[], object]] = {
                "scan of a range": partial(_scanned, table, start=_FIRST, stop=_PAST),
                "scan with a limit": partial(_scanned, table, limit=10),
                "get": partial(table.get, _FIRST),
                "put": partial(table.put, row),
            }
            for name, call in calls.items():
                for _ in range(WARM_UP if name == "get" else 3):
                    call()
                yield min((traced(name, about, call) for _ in range(TRACES)), key=lambda walk: walk.calls)


def _scanned(table: stelae.Table, **options: Any) -> list[Any]:
    return list(table.scan(**options))


def table_lines(found: list[Walk]) -> list[str]:
    """The table of docs/architecture.md, as Markdown."""
    by_call = {(walk.name, walk.table): walk for walk in found}
    headings = ["call", "table", "all", *SHOWN_ROOMS, "others"]
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for key in SHOWN:
        walk = by_call[key]
        counts = [walk.rooms.get(room, 0) for room in SHOWN_ROOMS]
        cells = [*key, walk.calls, *(count or "" for count in [*counts, walk.calls - sum(counts)])]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def table_in(page: str) -> list[str]:
    """The lines of the table that a page has."""
    start = page.index("| call | table | all |")
    return page[start : page.index("\n\n", start)].splitlines()


def write_table(path: Path, found: list[Walk]) -> None:
    page = path.read_text("utf-8")
    old, new = "\n".join(table_in(page)), "\n".join(table_lines(found))
    path.write_text(page.replace(old, new), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into docs/architecture.md")
    options = parser.parse_args()
    found = list(walks())
    if options.write:
        write_table(options.write, found)
        return
    if options.json:
        print(json.dumps([{"name": w.name, "table": w.table, "rooms": w.rooms, "path": w.path} for w in found]))
        return
    rooms = sorted({room for walk in found for room in walk.rooms}, key=lambda room: (room == "python", room))
    shown = Table(title="Python calls by room")
    shown.add_column("walk")
    shown.add_column("table")
    for heading in ("calls", *rooms, "C calls"):
        shown.add_column(heading, justify="right")
    for walk in sorted(found, key=lambda walk: walk.name):
        counts = [str(walk.rooms.get(room, "")) for room in rooms]
        shown.add_row(walk.name, walk.table, str(walk.calls), *counts, str(walk.c_calls))
    Console(width=160).print(shown)


if __name__ == "__main__":
    main()
