"""What the Spark bench works on: one session, stores in this process, the same data for everybody.

Things are made when they are first asked for, so that a part of the bench costs no more than it needs. Times are
medians of rounds in which all contenders take their turns, so that they meet the same machine; a round before them does
not count.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import spark_deltalake
from harness import Row
from processor_time import ProcessTree, Took
from rich.console import Console
from spark_data import COLUMNS, KEY, SETTINGS, all_of, in_tablets, splits, table_frame, update_frame
from spark_peers import Peer, PeerFailed, Refusal, running

import stelae
import stelae.spark

TABLE = "t"
console = Console(width=140)


@dataclass(frozen=True, slots=True)
class Options:
    rows: int
    rounds: int
    master: str
    memory: str
    peers: tuple[str, ...]
    is_cold: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """Our contender: a table in a store of its own."""

    spark: Any
    db: Any
    path: Path

    def load(self, source: Path) -> None:
        stelae.spark.load(self.spark, self.db, TABLE, self.spark.read.parquet(str(source)))

    def frame(self, columns: list[str] | None = None) -> Any:
        return stelae.spark.read(self.spark, self.db, TABLE, columns=columns)

    def rows(self) -> Any:
        return self.db.table(TABLE)

    def drop(self) -> None:
        self.db.close()
        shutil.rmtree(self.path)


@dataclass(slots=True)
class World:
    options: Options
    directory: Path
    spark: Any
    peers: list[Peer]
    lake: spark_deltalake.DeltaLake | None
    refusals: list[Refusal]
    processes: ProcessTree = field(default_factory=ProcessTree)
    """This one, its Java and its Python workers. Peers count their own, which are among these too: they take turns."""
    _made: set[str] = field(default_factory=set)
    _stored: dict[str, Stored] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return self.options.rows

    def fresh(self, rows: int) -> World:
        """The same for another number of rows."""
        options = dataclasses.replace(self.options, rows=rows)
        return World(options, self.directory, self.spark, self.peers, self.lake, self.refusals, self.processes)

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
        return self._once("native", self.write_native)

    def write_native(self, path: Path) -> None:
        in_tablets(self.spark.read.parquet(str(self.source())), self.rows).write.mode("overwrite").parquet(str(path))

    def updates(self, how: str, number: int, columns: Sequence[str] = tuple(COLUMNS)) -> Path:
        def write(path: Path) -> None:
            frame = update_frame(self.spark, self.rows, how, number).select(*columns)
            frame.coalesce(2).write.parquet(str(path))

        return self._once(f"updates-{how}-{number}-{len(columns)}", write)

    def empty(self, name: str) -> Stored:
        path = self.directory / f"store-{name}-{self.rows}"
        db = stelae.open(path)
        group = stelae.columns("values", {column: type_ for column, type_ in COLUMNS.items() if column != KEY})
        db.create_table(TABLE, key={KEY: COLUMNS[KEY]}, groups=[group], splits=splits(self.rows))
        return Stored(self.spark, db, path)

    def stored(self, name: str) -> Stored:
        """The data, loaded."""
        if name not in self._stored:
            self._stored[name] = self.empty(name)
            self._stored[name].load(self.source())
        return self._stored[name]

    def updated(self, how: str) -> Stored:
        """The data, loaded, and then the first updates of that kind."""
        if how not in self._stored:
            self.stored(how).load(self.updates(how, 0))
        return self._stored[how]

    def drop(self, *names: str) -> None:
        """What all contenders have under these names goes; disks are not endless."""
        for name in names:
            if name in self._stored:
                self._stored.pop(name).drop()
            for peer in self.peers:
                if f"{peer.kind}-{name}" in self._made:
                    self._made.discard(f"{peer.kind}-{name}")
                    try:
                        peer.ask("drop", table=self.name_of(name))
                    except PeerFailed as error:
                        self.refuse(f"{peer.title}, dropping a table", error)
            if self.lake is not None:
                self.lake.drop(self.name_of(name))

    def drop_all(self) -> None:
        self.drop(*list(self._stored))
        for path in self.directory.glob(f"*-{self.rows}"):
            shutil.rmtree(path)
        self._made.clear()

    def name_of(self, table: str) -> str:
        """As the peers call it."""
        return f"{table}_{self.rows}"

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
                peer.ask("make", table=self.name_of(table), source=str(self.source()), rows=self.rows)
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

    def medians(self, contenders: Mapping[str, Callable[[], object]], *, warm: bool = True) -> dict[str, Took]:
        """What each takes, in turns; what a contender returns as `Took` is what it measured itself. One that fails is
        left out, in words."""
        times: dict[str, list[Took]] = {name: [] for name in contenders}
        for number in range(self.options.rounds + warm):
            for name, run in contenders.items():
                if name not in times:
                    continue
                self.drop_pages()
                gc.collect()
                try:
                    took = self._took(run)
                except PeerFailed as error:
                    self.refuse(name, error)
                    del times[name]
                    continue
                if number >= warm:
                    times[name].append(took)
        return {name: _median(each) for name, each in times.items()}

    def _took(self, run: Callable[[], object]) -> Took:
        found: list[object] = []
        took = self.processes.measured(lambda: found.append(run()))
        return found[0] if isinstance(found[0], Took) else took


def _median(took: Sequence[Took]) -> Took:
    return Took(
        statistics.median(each.wall_s for each in took), max(0.01, statistics.median(each.processor_s for each in took))
    )


def compared(what: str, ours: Took, other: Took, title: str, wanted: float | None = None) -> list[Row]:
    """By processor time, which is what counts on a machine that others use too, and by seconds."""
    return [
        Row(f"{what}, processor time", ours.processor_s, other.processor_s, title, wanted),
        Row(f"{what}, seconds", ours.wall_s, other.wall_s, title, wanted),
    ]


@contextmanager
def opened(options: Options) -> Iterator[World]:
    directory = Path(tempfile.mkdtemp(prefix="bench-spark-"))
    try:
        conf = SETTINGS | {"spark.driver.memory": options.memory}
        spark = stelae.spark.session("stelae-bench", options.master, **conf)
        all_of(spark.range(1_000_000).selectExpr("id", "id * 2 as v").repartition(4))
        kinds = [kind for kind in options.peers if kind in ("delta", "iceberg")]
        with running(kinds, directory, options.master, options.memory) as (peers, refusals):
            lake = None
            if "deltalake" in options.peers:
                if spark_deltalake.version() is None:
                    refusals.append(Refusal("deltalake", "it is not installed; pip install deltalake"))
                else:
                    lake = spark_deltalake.DeltaLake(directory / "deltalake")
            world = World(options, directory, spark, peers, lake, refusals)
            yield world
            world.drop_all()
        spark.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
