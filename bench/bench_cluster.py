"""A cluster of several shards: what calls cost over 1, 2 and 4 of them, changes of tables, tables of many tablets, and
how long a reader waits while a truncation's master is killed.

    bench_cluster.py [--seconds 2] [--shards 1,2,4] [--rows 200000] [--tablets 1000,10000]
                     [--only rows,tables,tablets,waits]

All processes are those that users run (`stelae up`), with SQLite as their metastore; all traffic is on 127.0.0.1. A put
has been synced when it returns. Processor time is that of all servers and of the client together: on a machine of few
cores, or a busy one, it says more than what the clock on the wall says.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, field
from threading import Event
from typing import Any

import pyarrow as pa
from harness import write_facts
from processor_time import ProcessTree, Took
from remote_servers import StelaeServer, serve_stelae
from rich.console import Console
from rich.table import Table

import stelae

ROW_BYTES = 100
BATCH = 10_000
MANY = 1_000
CALLERS = 8
EACH = 50
DDL_ROUNDS = 10
WAIT_ROUNDS = 5
PATIENCE_S = 900.0
NODES, SHARDS = 3, 2
"""What tables of many tablets lie on."""
ROWS_READ = 40
GROUPS = [stelae.columns("g", {"v": "int64"})]
console = Console(width=150)


@dataclass
class Measured:
    """What was measured of one contender, by what was done."""

    pids: Sequence[int] = ()
    took: dict[str, Took] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._tree = ProcessTree(os.getpid(), *self.pids)

    def repeat(self, what: str, seconds: float, job: Callable[[], int]) -> None:
        """`job` is repeated for so long, and says how many calls it was: what each of them took."""
        job()
        counts: list[int] = []

        def run() -> None:
            begun_s = time.perf_counter()
            while time.perf_counter() - begun_s < seconds:
                counts.append(job())

        took = self._tree.measured(run)
        self.took[what] = Took(took.wall_s / sum(counts), took.processor_s / sum(counts))

    def once(self, what: str, job: Callable[[], object]) -> None:
        self.took[what] = self._tree.measured(job)


def numbered(first: int, count: int) -> pa.Table:
    numbers = pa.array(range(first, first + count), pa.int64())
    return pa.table({"id": numbers, "v": numbers})


def show(title: str, found: dict[str, Measured], unit: str, factor: float) -> dict[str, Any]:
    """By contender; as it goes into the file."""
    table = Table(title=f"{title}: {unit} by the wall / of processor time")
    table.add_column("what")
    for name in found:
        table.add_column(name, justify="right")
    for what in next(iter(found.values())).took:
        cells = [each.took[what] for each in found.values()]
        table.add_row(what, *(f"{cell.wall_s * factor:,.2f} / {cell.processor_s * factor:,.2f}" for cell in cells))
    console.print(table)
    return {name: {what: astuple(took) for what, took in each.took.items()} for name, each in found.items()}


# -- rows


class Rows:
    """Calls about rows of a table that has two tablets on each shard."""

    def __init__(self, db: stelae.Database, rows: int, tablets: int) -> None:
        splits = [rows * tablet // tablets for tablet in range(1, tablets)]
        groups = [stelae.columns("g", {"v": "string"})]
        self._table = db.create_table("rows", {"id": "int64"}, groups, splits=splits)
        self._rows = rows
        self._chance = random.Random(7)
        for first in range(0, rows, BATCH):
            self._table.put_many(self._made(first))

    @staticmethod
    def _made(first: int) -> pa.Table:
        value = os.urandom(ROW_BYTES // 2).hex()
        return pa.table({"id": pa.array(range(first, first + BATCH), pa.int64()), "v": [value] * BATCH})

    def _draw(self) -> int:
        return self._chance.randrange(self._rows)

    def get(self) -> int:
        for _ in range(EACH):
            self._table.get(self._draw())
        return EACH

    def put(self) -> int:
        for _ in range(EACH):
            self._table.put({"id": self._draw(), "v": "x" * ROW_BYTES})
        return EACH

    def get_many(self) -> int:
        self._table.get_many([self._draw() for _ in range(MANY)])
        return MANY

    def put_many(self) -> int:
        self._table.put_many(self._made(self._chance.randrange(self._rows - BATCH)))
        return BATCH

    def scan(self) -> int:
        return int(self._table.scan().to_arrow().num_rows)


def at_once(job: Callable[[], int]) -> Callable[[], int]:
    """The same by several threads."""

    def run() -> int:
        with ThreadPoolExecutor(CALLERS) as threads:
            return sum(each.result() for each in [threads.submit(job) for _ in range(CALLERS)])

    return run


def bench_rows(shards: Sequence[int], rows: int, seconds: float) -> dict[str, Any]:
    found: dict[str, Measured] = {}
    for count in shards:
        with serve_stelae(shards=count) as server, stelae.connect(server.endpoint, timeout_s=PATIENCE_S) as db:
            calls, measured = Rows(db, rows, 2 * count), Measured(server.pids)
            measured.repeat("get", seconds, calls.get)
            measured.repeat("put", seconds, calls.put)
            measured.repeat(f"get, {CALLERS} threads", seconds, at_once(calls.get))
            measured.repeat(f"put, {CALLERS} threads", seconds, at_once(calls.put))
            measured.repeat(f"get_many of {MANY:,}, a row", seconds, calls.get_many)
            measured.repeat(f"put_many of {BATCH:,}, a row", seconds, calls.put_many)
            measured.repeat("scan to Arrow, a row", seconds, calls.scan)
            found[f"{count} shards" if count > 1 else "1 shard"] = measured
    return show("one call", found, "microseconds", 1e6)


# -- tables


def bench_tables() -> dict[str, Any]:
    """Changes of tables of 4 tablets on 4 shards; the middle of some rounds."""
    with serve_stelae(nodes=2, shards=2) as server, stelae.connect(server.endpoint, timeout_s=PATIENCE_S) as db:
        rounds = [_change_table(db, f"t{number}", Measured(server.pids)) for number in range(DDL_ROUNDS)]
    middle = Measured()
    for what in rounds[0].took:
        walls, processors = zip(*(astuple(each.took[what]) for each in rounds), strict=True)
        middle.took[what] = Took(statistics.median(walls), statistics.median(processors))
    return show("changes of a table of 4 tablets", {"4 shards": middle}, "milliseconds", 1e3)


def _change_table(db: stelae.Database, name: str, measured: Measured) -> Measured:
    measured.once("create", lambda: db.create_table(name, {"id": "int64"}, GROUPS, splits=[1, 2, 3]))
    measured.once("alter", lambda: db.alter_table(name, add={"g": {"w": "int64"}}))
    measured.once("truncate", lambda: db.truncate_table(name))
    measured.once("drop", lambda: db.drop_table(name))
    measured.once("recall", lambda: db.recall_table(name))
    db.drop_table(name)
    return measured


# -- tablets


def bench_tablets(counts: Sequence[int]) -> dict[str, Any]:
    found: dict[str, Measured] = {}
    for count in counts:
        with serve_stelae(nodes=NODES, shards=SHARDS) as server:
            found[f"{count:,} tablets"] = _use_tablets(server, count)
    return show(f"tables of many tablets on {NODES * SHARDS} shards", found, "milliseconds", 1e3)


def _use_tablets(server: StelaeServer, count: int) -> Measured:
    measured = Measured(server.pids)
    with stelae.connect(server.endpoint, timeout_s=PATIENCE_S) as db:
        splits = list(range(1, count))
        measured.once("create", lambda: db.create_table("many", {"id": "int64"}, GROUPS, splits=splits))
        table = db.table("many")
        measured.once("list", table.tablets)
        with stelae.connect(server.endpoint, timeout_s=PATIENCE_S) as other:
            measured.once("get by one who has to locate it", lambda: other.table("many").get(0))
        measured.once("get", lambda: table.get(count // 2))
        measured.once("put_many of a row in each", lambda: table.put_many(numbered(0, count)))
        measured.once("count of all rows", table.count)
        measured.once("alter", lambda: db.alter_table("many", add={"g": {"w": "int64"}}))
        measured.once("create a small table beside it", lambda: db.create_table("small", {"id": "int64"}, GROUPS))
        measured.once("check", db.check)
        os.kill(server.master_pid(), signal.SIGKILL)
        server.start_again()
        measured = Measured((*server.pids, server.master_pid()), measured.took)
        measured.once("create one after the master was killed", lambda: db.create_table("x", {"id": "int64"}, GROUPS))
        measured.once("drop", lambda: db.drop_table("many"))
    return measured


# -- waits


def bench_waits() -> dict[str, Any]:
    """The longest wait of somebody who gets one row after the other, of all tablets, while the table is truncated on
    four shards; and while the master is killed with -9 meanwhile, a little later each time."""
    with serve_stelae(nodes=2, shards=2) as server, stelae.connect(server.endpoint, timeout_s=PATIENCE_S) as db:
        table = db.create_table("t", {"id": "int64"}, GROUPS, splits=[10, 20, 30])
        table.put_many(numbered(0, ROWS_READ))
        found = {"nothing happens": longest_get(table, lambda: time.sleep(3))}

        def truncate_often() -> None:
            for _ in range(WAIT_ROUNDS):
                _truncate(db)
                table.put_many(numbered(0, ROWS_READ))

        def kill_often() -> None:
            for number in range(WAIT_ROUNDS):
                pid = server.master_pid()
                with ThreadPoolExecutor(1) as threads:
                    truncating = threads.submit(_truncate, db)
                    time.sleep(0.005 * number)
                    os.kill(pid, signal.SIGKILL)
                    server.start_again()
                    truncating.result()

        found["it is truncated"] = longest_get(table, truncate_often)
        found["it is truncated, and the master killed"] = longest_get(table, kill_often)
    shown = Table(title="the longest of many gets while ... (wanted: 300 ms at most)")
    shown.add_column("what")
    shown.add_column("ms", justify="right")
    for what, seconds in found.items():
        shown.add_row(what, f"{seconds * 1e3:,.1f}")
    console.print(shown)
    return found


def _truncate(db: stelae.Database) -> None:
    """Until it is known to have happened."""
    while True:
        try:
            db.truncate_table("t")
        except (stelae.Unavailable, stelae.UnknownOutcome):
            continue
        return


def longest_get(table: stelae.Table, job: Callable[[], object]) -> float:
    is_over = Event()

    def read() -> float:
        longest_s, number = 0.0, 0
        while not is_over.is_set():
            begun_s = time.perf_counter()
            table.get(number % ROWS_READ)
            longest_s, number = max(longest_s, time.perf_counter() - begun_s), number + 7
        return longest_s

    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(read)
        try:
            job()
        finally:
            is_over.set()
        return reading.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--shards", default="1,2,4")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--tablets", default="1000,10000")
    parser.add_argument("--only", default="rows,tables,tablets,waits")
    said = parser.parse_args()
    benches: dict[str, Callable[[], dict[str, Any]]] = {
        "rows": lambda: bench_rows([int(each) for each in said.shards.split(",")], said.rows, said.seconds),
        "tables": bench_tables,
        "tablets": lambda: bench_tablets([int(each) for each in said.tablets.split(",")]),
        "waits": bench_waits,
    }
    console.print(f"load of the machine before: {os.getloadavg()[0]:.1f}")
    for name in said.only.split(","):
        write_facts("cluster", {name: benches[name]()})
    console.print(f"load of the machine after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
