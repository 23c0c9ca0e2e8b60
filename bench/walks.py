"""How many Python calls a put, a get and a short scan take, and through which rooms they go.

    walks.py [--json]

A call is a `call` event of `sys.setprofile` on the thread that asks: functions, generators each time they are resumed,
and comprehensions where they are functions of their own. What is in the files is in the cache, so this is about code
alone. A room is `stelae.<room>`; what stands between two rooms is not counted as either ("python").
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
from types import FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

import stelae

ROWS = 20_000
WARM_UP = 1_000
"""So many gets make a block warm: see `storage/files/blocks`."""

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
                yield traced(name, about, call)


def _scanned(table: stelae.Table, **options: Any) -> list[Any]:
    return list(table.scan(**options))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="for programs")
    found = list(walks())
    if parser.parse_args().json:
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
