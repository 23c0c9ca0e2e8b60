"""What the TPC-H bench works on: one session, one store in this process, and plain Parquet with the same rows.

Tables that a state does not change are shared by the states. Those that it does are loaded anew and changed: whole rows
by a load of Spark's, narrow and new ones by `put_many`, erased ones by `erase_many`. Parquet is written by Spark after
the changes, sorted by key, a file for each tablet, zstd as the store's files are.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from processor_time import ProcessTree, Took
from rich.console import Console
from spark_data import KEEP_GENERATED, SETTINGS, all_of
from tpch_data import COMPACTED, TABLES, Change, Shape, Truth, changed_tables, changes_of
from tpch_queries import Answer, plain

import stelae
import stelae.spark

_BATCH_ROWS = 50_000
console = Console(width=140)


@dataclass(frozen=True, slots=True)
class Frames:
    """A contender in this session: its frames, under the names of TPC-H."""

    spark: Any
    processes: ProcessTree
    by_table: dict[str, Any]

    def ask(self, sql: str) -> tuple[Took, Answer]:
        """Which frames the names stand for is said before the time is taken."""
        self.show()
        found: list[Any] = []
        took = self.processes.measured(lambda: found.extend(self.spark.sql(sql).collect()))
        return took, plain(found)

    def explain(self, sql: str) -> str:
        self.show()
        return str(self.spark.sql(f"explain formatted {sql}").first()[0])

    def show(self) -> None:
        for table, frame in self.by_table.items():
            frame.createOrReplaceTempView(table)


@dataclass(slots=True)
class World:
    scale: float
    directory: Path
    spark: Any
    db: Any
    truth: Truth
    processes: ProcessTree = field(default_factory=ProcessTree)
    _made: set[str] = field(default_factory=set)

    def frames(self, state: str) -> Frames:
        """Ours. Opened anew each time; what must be made for the state is made the first time."""
        self.prepare(state)
        return Frames(
            self.spark,
            self.processes,
            {table: stelae.spark.read(self.spark, self.db, self.name_of(state, table)) for table in TABLES},
        )

    def parquet_frames(self, state: str) -> Frames:
        return Frames(
            self.spark,
            self.processes,
            {table: self.spark.read.parquet(str(self.parquet_path(state, table))) for table in TABLES},
        )

    def prepare(self, state: str) -> None:
        """All that the state needs, of both contenders."""
        for table in TABLES:
            name = self.name_of(state, table)
            if name not in self._made:
                self._load(name, table)
                self._write_parquet(state, table)
        if state not in self._made:
            for change in changes_of(state):
                self._apply(state, change)
            if state == COMPACTED:
                for table in changed_tables(state):
                    stelae.spark.compact(self.spark, self.db, self.name_of(state, table))
            self._made.add(state)

    def name_of(self, state: str, table: str) -> str:
        return f"{table}_{state}" if table in changed_tables(state) else table

    def parquet_path(self, state: str, table: str) -> Path:
        return self.directory / "parquet" / self.name_of(state, table)

    def _load(self, name: str, table: str) -> None:
        shape = TABLES[table]
        group = stelae.columns("data", shape.values)
        self.db.create_table(name, key=shape.key, groups=[group], splits=_splits(shape, self.scale))
        stelae.spark.load(self.spark, self.db, name, self.spark.read.parquet(str(self.truth.generated(table))))
        self._made.add(name)

    def _write_parquet(self, state: str, table: str) -> None:
        shape = TABLES[table]
        rows = self.spark.read.parquet(str(self.truth.rows_file(state, table))).select(*shape.columns)
        spread = rows.repartitionByRange(shape.tablets, *shape.key).sortWithinPartitions(*shape.key)
        spread.write.parquet(str(self.parquet_path(state, table)))

    def _apply(self, state: str, change: Change) -> None:
        name, file = self.name_of(state, change.table), self.truth.change_file(change)
        if change.name == "whole":
            stelae.spark.load(self.spark, self.db, name, self.spark.read.parquet(str(file)))
            return
        table = self.db.table(name)
        for batch in ds.dataset(file).to_batches(batch_size=_BATCH_ROWS):
            if change.erases:
                table.erase_many(batch)
            else:
                table.put_many(batch)


def _splits(shape: Shape, scale: float) -> list[Any]:
    """Whole keys: what is not said of a split is the least number."""
    rest = (0,) * (len(shape.key) - 1)
    return [(first, *rest) if rest else first for first in shape.splits(scale)]


@contextmanager
def opened(scale: float, master: str, memory: str) -> Iterator[World]:
    directory = Path(tempfile.mkdtemp(prefix="bench-tpch-"))
    try:
        console.print(f"[dim]generating TPC-H at scale {scale:g} ...[/]")
        truth = Truth(directory, scale)
        conf = SETTINGS | KEEP_GENERATED | {"spark.driver.memory": memory}
        spark = stelae.spark.session("stelae-bench-tpch", master, **conf)
        all_of(spark.range(1_000_000).selectExpr("id", "id * 2 as v").repartition(4))
        with stelae.open(directory / "store") as db:
            yield World(scale, directory, spark, db, truth)
        spark.stop()
        truth.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
