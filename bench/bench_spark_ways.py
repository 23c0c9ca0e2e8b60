"""What a million rows cost in processor time by each way that a read may go: by Spark from files, with rows merged when
the frame is opened, by tasks in Python; and how long frames take to open.

    python bench/bench_spark_ways.py --rows 1000000 --only by-spark,half,verify

The peer is plain Parquet with the same rows in the same session; less is better. The least of the rounds counts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from processor_time import ProcessTree, Took
from rich.console import Console
from rich.table import Table
from spark_data import COLUMNS, KEY, SETTINGS, table_frame

import stelae
import stelae.spark

_BATCH_ROWS = 100_000
_WARM_UP = 10
_SUM = "sum(visits)"
console = Console(width=120)


class Ways:
    """A store with the tables that the ways need, each made when it is first asked for."""

    def __init__(self, spark: Any, db: Any, directory: Path, rows: int) -> None:
        self.spark, self.db, self.directory, self.rows = spark, db, directory, rows
        self.frame = table_frame(spark, rows)

    def load(self, name: str, frame: Any = None) -> str:
        loaded = self.frame if frame is None else frame
        stelae.spark.load(self.spark, self.db, name, loaded, create=True, key=[KEY], tablets=4)
        return name

    def narrow(self, name: str, part: int) -> str:
        """Each so-many-th row changed in one column."""
        table = self.db.table(self.load(name))
        for first in range(0, self.rows, _BATCH_ROWS):
            ids = range(first, min(first + _BATCH_ROWS, self.rows), part)
            table.put_many(pa.table({KEY: list(ids), "age": pa.array([1] * len(ids), pa.int32())}))
        table.flush()
        return name

    def two_groups(self) -> str:
        values = {name: type_ for name, type_ in COLUMNS.items() if name != KEY}
        own = {name: values.pop(name) for name in ("age", "score")}
        groups = [stelae.columns("some", own), stelae.columns("others", values)]
        self.db.create_table("two", {KEY: COLUMNS[KEY]}, groups)
        stelae.spark.load(self.spark, self.db, "two", self.frame)
        return "two"

    def cells(self) -> str:
        self.db.create_table("cells", {KEY: COLUMNS[KEY]}, [stelae.cells("events", families=["click"])])
        frame = self.frame.selectExpr(
            KEY, "'click' AS family", "city AS qualifier", "CAST(note AS BINARY) AS value", "1700000000000000L AS ts"
        )
        stelae.spark.load(self.spark, self.db, "cells", frame, cells="long")
        return "cells"

    def read(self, name: str, **asked: Any) -> Any:
        return stelae.spark.read(self.spark, self.db, name, **asked)


@contextmanager
def opened(rows: int, memory: str) -> Iterator[Ways]:
    with tempfile.TemporaryDirectory(prefix="bench-ways-") as place:
        directory = Path(place)
        spark = stelae.spark.session("stelae-ways", "local[2]", **SETTINGS, **{"spark.driver.memory": memory})
        with stelae.open(directory / "store") as db:
            yield Ways(spark, db, directory, rows)
        spark.stop()


def least(processes: ProcessTree, rounds: int, run: Callable[[], object]) -> Took:
    """One run before them does not count."""
    run()
    took = [processes.measured(run) for _ in range(rounds)]
    return min(took, key=lambda each: each.processor_s)


def summing(frame: Any, *sql: str) -> Callable[[], object]:
    """With a new plan each time: Spark keeps what it shuffled for one that has run, and does not read again."""
    return lambda: frame.selectExpr(*(sql or (_SUM,))).collect()


class Measuring:
    """What is measured, line by line. `only`: the lines that are wanted; none: all."""

    def __init__(self, ways: Ways, rounds: int, only: list[str]) -> None:
        self.ways = ways
        self._rounds = rounds
        self._only = only
        self._processes = ProcessTree()
        self._base_s = 0.0
        self.table = Table(title=f"processor time per million rows; {ways.rows:,} rows of {len(COLUMNS)} columns")
        for heading in ("way", "seconds", "of Parquet's", "opened first", "again"):
            self.table.add_column(heading, justify="left" if heading == "way" else "right")

    def parquet(self, way: str, run: Callable[[], object]) -> None:
        """What the next lines are compared with. It runs often before: Java compiles what runs often."""
        for _ in range(_WARM_UP):
            run()
        self._base_s = max(0.01, least(self._processes, self._rounds, run).processor_s)
        self._show(way, self._base_s)

    def asked(self, line: str, way: str, name: Callable[[], str], *sql: str, **how: Any) -> None:
        if self._is_wanted(line):
            table = name()
            opens = [self._opening(table, how) for _ in range(2)]
            frame = self.ways.read(table, **how)
            run = summing(frame, *sql)
            self._show(way, least(self._processes, self._rounds, run).processor_s, opens)

    def run(self, line: str, way: str, make: Callable[[], Callable[[], object]]) -> None:
        if self._is_wanted(line):
            self._show(way, least(self._processes, self._rounds, make()).processor_s)

    def _is_wanted(self, line: str) -> bool:
        return not self._only or line in self._only

    def _opening(self, table: str, how: dict[str, Any]) -> float:
        start = time.perf_counter()
        self.ways.read(table, **how)
        return time.perf_counter() - start

    def _show(self, way: str, seconds: float, opens: Sequence[float] = ()) -> None:
        per_million = f"{seconds * 1e6 / self.ways.rows:.2f}"
        cells = [per_million, f"{seconds / self._base_s:.1f}", *(f"{each:.3f} s" for each in opens)]
        self.table.add_row(way, *cells)
        console.print(f"[dim]{way}: {', '.join(cells)}[/]")


def measure(found: Measuring) -> None:
    ways = found.ways
    spark = ways.spark

    @cache
    def clean() -> str:
        return ways.load("clean")

    @cache
    def changed() -> str:
        return ways.narrow("changed", 20)

    def source(**options: str) -> Callable[[], object]:
        return summing(spark.read.format("stelae").options(path=str(ways.db.path), table=clean(), **options).load())

    ways.frame.write.parquet(str(ways.directory / "parquet"))
    parquet = spark.read.parquet(str(ways.directory / "parquet"))
    found.parquet("count(*) of plain Parquet", parquet.count)
    found.run("count", "count(*), as it was loaded", lambda: ways.read(clean()).count)
    found.run("count", "count(*), 5% changed in one column", lambda: ways.read(changed()).count)
    found.parquet("plain Parquet", summing(parquet))
    found.asked("by-spark", "by Spark, as it was loaded", clean)
    found.asked("by-spark", "by Spark, 5% changed in one column", changed)
    found.asked("half", "by tasks: half of the rows changed", lambda: ways.narrow("half", 2))
    found.asked("condition", "by tasks: a condition that SQL cannot say", clean, where="visits > 1.5")
    found.asked("two-groups", "by tasks: two groups of all rows", ways.two_groups, "sum(visits)", "sum(age)")
    history = {"columns": ["visits"], "history": 1}
    found.asked("history", "by tasks: history=1 of one column", clean, "sum(visits[0].value)", **history)
    found.asked("cells", 'by tasks: cells="long"', ways.cells, "count(value)", cells="long")
    found.run("format", 'format("stelae"), all columns', source)
    found.run("format", 'format("stelae"), one column', lambda: source(columns="visits"))

    def verify() -> Callable[[], object]:
        copy = ways.load("copy")
        return lambda: stelae.spark.verify(spark, ways.db, clean(), copy)

    found.run("verify", "verify, for each million rows on both sides", verify)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", default="2g")
    parser.add_argument(
        "--only", default="", help="count,by-spark,half,condition,two-groups,history,cells,format,verify"
    )
    said = parser.parse_args()
    with opened(said.rows, said.memory) as ways:
        found = Measuring(ways, said.rounds, said.only.split(",") if said.only else [])
        measure(found)
    console.print(found.table)


if __name__ == "__main__":
    main()
