"""What a million rows cost in processor time by each way that a read may go: by Spark from files, with rows merged when
the frame is opened, by tasks in Python; and how long frames take to open.

    python bench/bench_spark_ways.py --rows 1000000

The peer is plain Parquet with the same rows in the same session; less is better. The least of the rounds counts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def opening(ways: Ways, name: str, **asked: Any) -> float:
    start = time.perf_counter()
    ways.read(name, **asked)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", default="2g")
    said = parser.parse_args()
    processes = ProcessTree()
    table = Table(title=f"processor time of {_SUM} per million rows, {said.rows:,} rows of {len(COLUMNS)} columns")
    for heading in ("way", "seconds", "of Parquet's", "opened first", "again"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    with opened(said.rows, said.memory) as ways:
        spark = ways.spark
        ways.frame.write.parquet(str(ways.directory / "parquet"))
        parquet = spark.read.parquet(str(ways.directory / "parquet"))
        base = least(processes, said.rounds, lambda: parquet.selectExpr(_SUM).collect()).processor_s
        whole = least(processes, said.rounds, parquet.count).processor_s

        def show(way: str, seconds: float, open_s: tuple[float, float] | None = None, of: float = base) -> None:
            opens = [f"{each:.3f} s" for each in open_s or ()]
            table.add_row(way, f"{seconds * 1e6 / said.rows:.2f}", f"{seconds / of:.1f}", *opens)
            console.print(f"[dim]{way}: {seconds * 1e6 / said.rows:.2f} s, {opens}[/]")

        def asked(way: str, name: str, *sql: str, **how: Any) -> None:
            open_s = opening(ways, name, **how), opening(ways, name, **how)
            frame = ways.read(name, **how).selectExpr(*(sql or (_SUM,)))
            show(way, least(processes, said.rounds, frame.collect).processor_s, open_s)

        show("plain Parquet", base)
        clean, changed = ways.load("clean"), ways.narrow("changed", 20)
        asked("by Spark, as it was loaded", clean)
        asked("by Spark, 5% changed in one column", changed)
        show("count(*) of plain Parquet", whole, of=whole)
        for name in (clean, changed):
            counted = ways.read(name)
            show(f"count(*), {name}", least(processes, said.rounds, counted.count).processor_s, of=whole)
        asked("by tasks: half of the rows changed", ways.narrow("half", 2))
        asked("by tasks: a condition that SQL cannot say", clean, where="visits > 1.5")
        asked("by tasks: two groups of all rows", ways.two_groups(), "sum(visits)", "sum(age)")
        asked("by tasks: history=1 of one column", clean, "sum(visits[0].value)", columns=["visits"], history=1)
        asked('by tasks: cells="long"', ways.cells(), "count(value)", cells="long")
        options = {"path": str(ways.db.path), "table": clean}
        source = spark.read.format("stelae").options(**options).load().selectExpr(_SUM)
        show('format("stelae"), all columns', least(processes, said.rounds, source.collect).processor_s)
        source = spark.read.format("stelae").options(columns="visits", **options).load().selectExpr(_SUM)
        show('format("stelae"), one column', least(processes, said.rounds, source.collect).processor_s)
        copy = ways.load("copy")
        took = least(processes, 1, lambda: stelae.spark.verify(spark, ways.db, clean, copy))
        show("verify, for each million rows on both sides", took.processor_s)
    console.print(table)


if __name__ == "__main__":
    main()
