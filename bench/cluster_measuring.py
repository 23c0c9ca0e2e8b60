"""What the cluster bench measures, of ours and of peers alike: by the wall, and in processor time of all servers and of
the client together."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, field
from typing import Any

import pyarrow as pa
from cluster_calls import Calls
from harness import Row
from processor_time import ProcessTree, Took
from rich.console import Console
from rich.table import Table

ROW_BYTES = 100
BATCH = 10_000
MANY = 1_000
CALLERS = 8
EACH = 50
DDL_ROUNDS = 10
console = Console(width=180)


@dataclass(frozen=True, slots=True)
class Span:
    """How long calls are repeated: first until all are warm (Java compiles what it has done often), then measured."""

    warm_s: float
    measured_s: float


@dataclass
class Measured:
    """What was measured of one contender, by what was done."""

    pids: Sequence[int] = ()
    took: dict[str, Took] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._tree = ProcessTree(os.getpid(), *self.pids)

    def repeat(self, what: str, span: Span, job: Callable[[], int]) -> None:
        """`job` is repeated, and says how many calls it was: what each of them took."""
        _repeat(job, span.warm_s)
        counts: list[int] = []
        took = self._tree.measured(lambda: counts.append(_repeat(job, span.measured_s)))
        self.took[what] = Took(took.wall_s / counts[0], took.processor_s / counts[0])

    def once(self, what: str, job: Callable[[], object]) -> None:
        self.took[what] = self._tree.measured(job)


def _repeat(job: Callable[[], int], seconds: float) -> int:
    """How many calls that was; the job is done once at least."""
    begun_s, count = time.perf_counter(), job()
    while time.perf_counter() - begun_s < seconds:
        count += job()
    return count


def numbered(first: int, count: int) -> pa.Table:
    numbers = pa.array(range(first, first + count), pa.int64())
    return pa.table({"id": numbers, "v": numbers.cast(pa.string())})


# -- rows


class Rows:
    """Calls about rows of one table."""

    def __init__(self, calls: Calls, rows: int, tablets: int) -> None:
        calls.create("rows", [rows * tablet // tablets for tablet in range(1, tablets)])
        self._calls = calls
        self._rows = rows
        self._chance = random.Random(7)
        for first in range(0, rows, BATCH):
            calls.put_many("rows", self._made(first))

    def _made(self, first: int) -> pa.Table:
        value, count = os.urandom(ROW_BYTES // 2).hex(), min(BATCH, self._rows)
        return pa.table({"id": pa.array(range(first, first + count), pa.int64()), "v": [value] * count})

    def _draw(self) -> int:
        return self._chance.randrange(self._rows)

    def get(self) -> int:
        for _ in range(EACH):
            self._calls.get("rows", self._draw())
        return EACH

    def put(self) -> int:
        for _ in range(EACH):
            self._calls.put("rows", self._draw(), "x" * ROW_BYTES)
        return EACH

    def get_many(self) -> int:
        self._calls.get_many("rows", [self._draw() for _ in range(MANY)])
        return MANY

    def put_many(self) -> int:
        rows = self._made(self._chance.randrange(max(1, self._rows - BATCH)))
        self._calls.put_many("rows", rows)
        return int(rows.num_rows)

    def scan(self) -> int:
        return int(self._calls.scan("rows").num_rows)


def at_once(job: Callable[[], int]) -> Callable[[], int]:
    """The same by several threads."""

    def run() -> int:
        with ThreadPoolExecutor(CALLERS) as threads:
            return sum(each.result() for each in [threads.submit(job) for _ in range(CALLERS)])

    return run


def measure_rows(calls: Calls, pids: Sequence[int], rows: int, tablets: int, span: Span) -> Measured:
    made, measured = Rows(calls, rows, tablets), Measured(pids)
    measured.repeat("get", span, made.get)
    measured.repeat("put", span, made.put)
    measured.repeat(f"get, {CALLERS} threads", span, at_once(made.get))
    measured.repeat(f"put, {CALLERS} threads", span, at_once(made.put))
    measured.repeat(f"get_many of {MANY:,}, a row", span, made.get_many)
    measured.repeat(f"put_many of {BATCH:,}, a row", span, made.put_many)
    measured.repeat("scan to Arrow, a row", span, made.scan)
    return measured


# -- tables


def measure_tables(calls: Calls, pids: Sequence[int], recall: Callable[[str], object] | None = None) -> Measured:
    """Changes of tables of 4 tablets; the middle of some rounds. `recall`: undoes a drop."""
    rounds = [_change_table(calls, f"t{number}", Measured(pids), recall) for number in range(DDL_ROUNDS)]
    middle = Measured(pids)
    for what in rounds[0].took:
        walls, processors = zip(*(astuple(each.took[what]) for each in rounds), strict=True)
        middle.took[what] = Took(statistics.median(walls), statistics.median(processors))
    return middle


def _change_table(calls: Calls, name: str, measured: Measured, recall: Callable[[str], object] | None) -> Measured:
    measured.once("create", lambda: calls.create(name, [1, 2, 3]))
    measured.once("alter", lambda: calls.alter(name))
    if (truncate := calls.truncate(name)) is not None:
        measured.once("truncate", truncate)
    measured.once("drop", lambda: calls.drop(name))
    if recall is not None:
        measured.once("recall", lambda: recall(name))
        calls.drop(name)
    return measured


# -- tablets


def measure_tablets(calls: Calls, pids: Sequence[int], count: int) -> Measured:
    """One table of so many; it is left there. Another one comes before: some are not ready when they take calls."""
    calls.create("first", [])
    calls.drop("first")
    measured = Measured(pids)
    measured.once("create", lambda: calls.create("many", list(range(1, count))))
    measured.once("get", lambda: calls.get("many", count // 2))
    measured.once("put_many of a row in each", lambda: calls.put_many("many", numbered(0, count)))
    measured.once("count of all rows", lambda: calls.count("many"))
    measured.once("alter", lambda: calls.alter("many"))
    measured.once("create a small table beside it", lambda: calls.create("small", []))
    return measured


# -- what was found


def show(title: str, found: Mapping[str, Measured], unit: str, factor: float) -> dict[str, Any]:
    """By contender; as it goes into the file. What a contender has not is left empty."""
    table = Table(title=f"{title}: {unit} by the wall / of processor time")
    table.add_column("what")
    for name in found:
        table.add_column(name, justify="right")
    for what in dict.fromkeys(what for each in found.values() for what in each.took):
        cells = [each.took.get(what) for each in found.values()]
        table.add_row(
            what,
            *(f"{cell.wall_s * factor:,.2f} / {cell.processor_s * factor:,.2f}" if cell else "" for cell in cells),
        )
    console.print(table)
    return {name: {what: astuple(took) for what, took in each.took.items()} for name, each in found.items()}


def rows_beside(title: str, ours: Measured, peers: Mapping[str, Measured], times: int = 1) -> list[Row]:
    """Ours against each peer, by the wall and in processor time; of so many calls together."""
    found = []
    for peer, measured in peers.items():
        for what in (each for each in measured.took if each in ours.took):
            mine, theirs = ours.took[what], measured.took[what]
            found.append(Row(f"{title}: {what}", mine.wall_s * times, theirs.wall_s * times, peer, 1.0))
            processor = (mine.processor_s * times, theirs.processor_s * times)
            found.append(Row(f"{title}: {what}, processor time", *processor, peer, 1.0))
    return found
