"""Tables that random things happen to: rows written whole and in part, erased, purged, flushed, compacted, split, and
their schema changed. Deterministic by seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime
from typing import Any

import stelae
from stelae.client.api.database import Database
from stelae.model.hybrid import micros_of

KEYS: dict[str, tuple[dict[str, str], Callable[[int], Any]]] = {
    "string": ({"id": "string"}, lambda n: f"k{n:03}"),
    "int": ({"id": "int32"}, lambda n: n - 40),
    "both": ({"a": "string", "b": "int16"}, lambda n: (f"k{n // 7}", n % 7)),
    "hash": ({"id": "int64"}, lambda n: n),
    "ntz": ({"id": "timestamp_ntz"}, lambda n: datetime(2024, 1, n // 24 + 1, n % 24)),  # noqa: DTZ001
}
ROWS = 100
WHERE = (
    "n > 40",
    "not (x > 0.5)",
    'name ~= "n1" or x is null',
    "n in (3, 5, 80) and name is not null",
    "x != 0.0",
    "not (n in (1, 2) or x >= 3.0)",
)


class RandomTable:
    """`txns`: of the moments after each step. `steady`: rows are only written whole, a file each
    time. `beside`: and there are rows that only other groups have."""

    def __init__(self, db: Database, seed: int, key: str, *, steady: bool = False, beside: bool = False) -> None:
        self.rng = random.Random(seed)
        self.db = db
        self.steady = steady
        self.is_hashed = key == "hash"
        self.types, self.make_key = KEYS[key]
        purge = [None, "max-history=2", "max-age=1h", "max-age=1h and max-history=1 or max-history=2"]
        groups = [
            stelae.columns(
                "data",
                {"n": "int32", "name": "string", "x": "float64", "d": "int16 default 7"},
                purge=None if steady else self.rng.choice(purge),
                block_bytes=4096,
            ),
            stelae.columns("more", {"extra": "string"}),
            stelae.cells("events", families=["click", "view"], purge=self.rng.choice([None, "max-history=1"])),
        ]
        groups = groups[: 3 if beside else 1 if steady else self.rng.randint(1, 3)]
        self.has_more, self.has_cells = len(groups) > 1, len(groups) > 2
        hashed: dict[str, Any] = {"partition": "hash", "tablets": 3} if self.is_hashed else {}
        self.table = db.create_table("t", key=self.types, groups=groups, **hashed)
        self.columns = ["n", "name", "x", "d"]
        self.changes = ["renamed", "wide", "added", "dropped", "taken", "again"]
        self.cuts: set[int] = set()
        self.txns: list[int] = []

    def keys(self, n: int) -> dict[str, Any]:
        key = self.make_key(n)
        return dict(zip(self.types, key if isinstance(key, tuple) else (key,), strict=True))

    def row(self, n: int, part: float = 1.0) -> dict[str, Any]:
        rng = self.rng
        values: list[Any] = [
            rng.choice([None, n, n + 1]),
            rng.choice([None, f"n{n}{'-' * 90}", "", "ü\x00"]),
            rng.choice([None, n / 8, -0.0, 0.0, float("nan"), float("inf")]),
            rng.choice([0, 1, n % 50]),
        ]
        values += [rng.choice([None, n]) for _ in self.columns[4:]]
        kept = {name: value for name, value in zip(self.columns, values, strict=True) if rng.random() < part}
        return self.keys(n) | kept

    def write(self, numbers: Any, part: float = 1.0) -> None:
        self.table.put_many([self.row(n, part) for n in numbers])
        if self.steady:
            self.table.flush()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> None:
        rng, table = self.rng, self.table
        plain: list[Callable[[], Any]] = [
            lambda: self.write(range(rng.randrange(60), ROWS)),
            lambda: self.write(rng.sample(range(ROWS), 20)),
            lambda: self.write(range(low := rng.randrange(90), low + 10)),
            table.flush,
            table.flush,
            table.compact,
            self.split,
            lambda: self.alter(rng.choice(["renamed", "taken", "again"])),
        ]
        others: list[Callable[[], Any]] = [
            lambda: self.write(rng.sample(range(ROWS), 10), 0.4),
            lambda: [table.erase(self.make_key(rng.randrange(ROWS))) for _ in range(3)],
            lambda: table.erase(self.make_key(rng.randrange(ROWS)), columns=["x"]),
            lambda: self.alter(rng.choice(self.changes or [""])),
            self.more,
            lambda: self.late(rng.sample(range(ROWS + 10), 5)),
        ]
        if self.steady:
            others = [self.more, self.more] if self.has_more else []
        rng.choice(plain + others)()
        self.txns.append(self.db.now())

    def more(self) -> None:
        keys = self.keys(self.rng.randrange(ROWS + 20))
        if self.has_more:
            self.table.put(keys | {"extra": "e"})
        if self.has_cells:
            self.table.put(keys | {f"click:{self.rng.randrange(3)}": b"c", "view:all": b"v"})
        if not self.steady:
            self.table.put(keys)

    def late(self, numbers: list[int]) -> None:
        """As of two hours ago."""
        self.table.put_many([self.row(n) for n in numbers], ts=micros_of(self.db.now()) - 7_200_000_000)

    def split(self) -> None:
        at = self.rng.randrange(1, ROWS - 1)
        if not self.is_hashed and at not in self.cuts:
            self.cuts.add(at)
            self.table.split(self.make_key(at))

    def alter(self, what: str) -> None:
        if what not in self.changes:
            return
        self.changes.remove(what)
        last = self.columns[3]
        if what == "renamed":
            self.db.alter_table("t", rename_columns={last: "dd"})
            self.columns[3] = "dd"
        elif what == "taken":
            # Another column gets the name, but for the case.
            self.db.alter_table("t", rename_columns={last: "was"})
            self.db.alter_table("t", add={"data": {last.swapcase(): "int16"}})
            self.columns[3:] = ["was", last.swapcase()]
        elif what == "again":
            self.db.alter_table("t", drop=[last])
            self.db.alter_table("t", add={"data": {last.swapcase(): "int16"}})
            self.columns[3] = last.swapcase()
        elif what == "wide":
            self.db.alter_table("t", widen={"n": "int64"})
        elif what == "added":
            self.db.alter_table("t", add={"data": {"new": "string default 'x'"}})
        elif self.has_more:
            self.db.alter_table("t", add={"more": {"other": "int32 not null default 5"}})
            self.db.alter_table("t", drop=["extra"])
            self.has_more = False

    def questions(self) -> list[dict[str, Any]]:
        """What can be asked of it, as arguments of a scan."""
        asked: list[dict[str, Any]] = [
            {},
            {"columns": list(self.columns)},
            {"columns": self.columns[:1]},
            {"columns": list(self.types)},
            {"where": self.rng.choice(WHERE), "columns": self.columns[:3]},
            {"where": f"{self.columns[0]} is null", "columns": self.columns[:2]},
            {"columns": self.columns[:2], "rows": "having"},
            {"where": "x is null", "columns": self.columns[:1], "rows": "having"},
            {"columns": self.columns[3:]},
        ]
        if self.has_more:
            asked.append({"columns": ["extra"]})
        if self.has_cells:
            asked.append({"columns": ["click:", "view:all"], "rows": self.rng.choice(["all", "having"])})
        if not self.is_hashed:
            low = self.rng.randrange(50)
            asked.append({"start": self.make_key(low), "stop": self.make_key(low + 40), "columns": list(self.columns)})
        return asked
