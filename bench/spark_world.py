"""What the Spark bench works on: one session, one store in this process, the same data for everybody.

Things are made when they are first asked for, so that a part of the bench costs no more than it needs. Times are medians
of rounds in which all contenders take their turns, so that they meet the same machine; one round before them does not
count.
"""

from __future__ import annotations

import gc
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import spark_deltalake
from rich.console import Console
from spark_data import COLUMNS, KEY, SETTINGS, all_of, in_tablets, splits, table_frame, update_frame
from spark_peers import Peer, PeerFailed, Refusal, running

import stelae
import stelae.spark

console = Console(width=140)


@dataclass(frozen=True, slots=True)
class Options:
    rows: int
    rounds: int
    master: str
    memory: str
    peers: tuple[str, ...]
    is_cold: bool = False


@dataclass(slots=True)
class World:
    options: Options
    directory: Path
    spark: Any
    db: Any
    peers: list[Peer]
    lake: spark_deltalake.DeltaLake | None
    refusals: list[Refusal]
    _made: set[str] = field(default_factory=set)

    @property
    def rows(self) -> int:
        return self.options.rows

    def fresh(self, rows: int) -> World:
        """The same for another number of rows."""
        options = Options(**{**{f: getattr(self.options, f) for f in Options.__slots__}, "rows": rows})
        return World(options, self.directory, self.spark, self.db, self.peers, self.lake, self.refusals)

    def _once(self, name: str, make: Callable[[Path], object]) -> Path:
        path = self.directory / f"{name}-{self.rows}"
        if name not in self._made:
            make(path)
            self._made.add(name)
        return path

    def source(self) -> Path:
        """What is loaded: rows in no order, in several files."""
        return self._once(
            "source", lambda path: table_frame(self.spark, self.rows).repartition(8).write.parquet(str(path))
        )

    def native(self) -> Path:
        """The same in native Parquet, sorted, a file for each tablet."""
        return self._once("native", lambda path: self.write_native(path))

    def write_native(self, path: Path) -> None:
        in_tablets(self.spark.read.parquet(str(self.source())), self.rows).write.mode("overwrite").parquet(str(path))

    def updates(self, how: str, number: int) -> Path:
        return self._once(
            f"updates-{how}-{number}",
            lambda path: update_frame(self.spark, self.rows, how, number).coalesce(2).write.parquet(str(path)),
        )

    def table(self, name: str) -> str:
        """A table of the store, loaded."""
        found = f"{name}_{self.rows}"
        if f"table-{name}" not in self._made:
            self.load(found)
            self._made.add(f"table-{name}")
        return found

    def load(self, name: str) -> None:
        values = {column: type_ for column, type_ in COLUMNS.items() if column != KEY}
        group = stelae.columns("values", values)
        self.db.create_table(name, key={KEY: COLUMNS[KEY]}, groups=[group], splits=splits(self.rows))
        stelae.spark.load(self.spark, self.db, name, self.spark.read.parquet(str(self.source())))

    def frame(self, table: str, columns: list[str] | None = None) -> Any:
        return stelae.spark.read(self.spark, self.db, table, columns=columns)

    def native_frame(self, columns: list[str] | None = None) -> Any:
        frame = self.spark.read.parquet(str(self.native()))
        return frame if columns is None else frame.select(*columns)

    def refuse(self, what: str, why: object) -> None:
        self.refusals.append(Refusal(what, str(why)))
        console.print(f"[yellow]{what}: {why}[/]")

    def made(self, peer: Peer, table: str) -> bool:
        """Whether this peer has the table; it is left out from here on if it could not make it."""
        name = f"{peer.kind}-{table}"
        if name not in self._made:
            try:
                peer.ask("make", table=f"{table}_{self.rows}", source=str(self.source()), rows=self.rows)
            except PeerFailed as error:
                self.refuse(f"{peer.title}, writing", error)
                return False
            self._made.add(name)
        return True

    def drop_pages(self) -> None:
        """The system forgets the files of everybody, where it is asked for."""
        if self.options.is_cold:
            os.sync()
            for path in self.directory.rglob("*"):
                if path.is_file():
                    with path.open("rb") as file:
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def medians(self, contenders: Mapping[str, Callable[[], object]], *, warm: bool = True) -> dict[str, float]:
        """Seconds of each, in turns; what a contender returns as a float is what it measured itself. One that fails is
        left out, in words."""
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(self.options.rounds + warm):
            for name, run in contenders.items():
                if name not in times:
                    continue
                self.drop_pages()
                gc.collect()
                try:
                    took = seconds(run)
                except PeerFailed as error:
                    self.refuse(name, error)
                    del times[name]
                    continue
                if number >= warm:
                    times[name].append(took)
        return {name: statistics.median(each) for name, each in times.items()}


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    found = run()
    took = time.perf_counter() - start
    return found if isinstance(found, float) else took


@contextmanager
def opened(options: Options) -> Iterator[World]:
    directory = Path(tempfile.mkdtemp(prefix="bench-spark-"))
    try:
        conf = SETTINGS | {"spark.driver.memory": options.memory}
        spark = stelae.spark.session("stelae-bench", options.master, **conf)
        all_of(spark.range(1_000_000).selectExpr("id", "id * 2 as v").repartition(4))
        kinds = [kind for kind in options.peers if kind in ("delta", "iceberg")]
        with stelae.open(directory / "store") as db, running(kinds, directory, options.master, options.memory) as found:
            peers, refusals = found
            lake = None
            if "deltalake" in options.peers:
                if spark_deltalake.version() is None:
                    refusals.append(Refusal("deltalake", "it is not installed; pip install deltalake"))
                else:
                    lake = spark_deltalake.DeltaLake(directory / "deltalake")
            yield World(options, directory, spark, db, peers, lake, refusals)
        spark.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
