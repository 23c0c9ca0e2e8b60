"""Statistics: how a table lies in its tablets, counted and not guessed.

A hold gives the table as files; one task for each tablet counts its records in them, and the rows that a reader sees at
the snapshot. Files that lie in one tablet alone say themselves how many records they have; of those that a split left
in several, the records of each are counted. A file's bytes are shared in proportion.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from stelae.adapters.clock import SystemClock
from stelae.client.api.display import html_table, shown_bytes
from stelae.client.arguments.keys import txn_of
from stelae.model.errors import InvalidArgument
from stelae.model.hybrid import show_txn
from stelae.model.ids import Row, Txn
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.model.public import public
from stelae.model.ranges import RangeSet
from stelae.model.schema import TableSchema
from stelae.service.reports import Progress
from stelae.service.tickets import HeldTable
from stelae.spark.driver.progress import Advance, Renewal, released
from stelae.spark.driver.tasks import run_tasks
from stelae.spark.jobs.plots import Plotted, table_plot
from stelae.spark.stores import backend_of, fragments_of
from stelae.spark.tickets import held_tablets
from stelae.storage.offline.scans import count_records, scan_part
from stelae.storage.offline.tablets import HeldTablet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stelae.client.api.database import Database

_KEY_LENGTH_MAX = 24


@dataclass(frozen=True, slots=True)
class TabletStatistics:
    """`rows` are those that a reader sees, `records` all versions and erasures in files, of all groups. `start` is the
    encoded key that the tablet begins at, `begins` the same in words."""

    tablet: int
    start: bytes
    begins: str
    rows: int
    records: int
    erasures: int
    files: int
    size_bytes: int

    @property
    def versions_per_row(self) -> float:
        return (self.records - self.erasures) / self.rows if self.rows else 0.0


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """A table at `txn`, tablet by tablet. It prints as a table; `plot` writes one."""

    table: str
    txn: Txn
    groups: int
    files: int
    tablets: tuple[TabletStatistics, ...]
    seconds: float = 0.0

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.tablets)

    @property
    def records(self) -> int:
        return sum(each.records for each in self.tablets)

    @property
    def erasures(self) -> int:
        return sum(each.erasures for each in self.tablets)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.tablets)

    @property
    def versions_per_row(self) -> float:
        """How many versions a row has on average, in all groups together."""
        return (self.records - self.erasures) / self.rows if self.rows else 0.0

    @property
    def row_skew(self) -> float:
        """How many times the mean the tablet with the most rows has: 1 is even."""
        return _skew([each.rows for each in self.tablets])

    @property
    def byte_skew(self) -> float:
        return _skew([each.size_bytes for each in self.tablets])

    def share(self, tablet: TabletStatistics) -> float:
        """The part of the table's bytes that is the tablet's."""
        return tablet.size_bytes / self.size_bytes if self.size_bytes else 0.0

    def lines(self) -> list[tuple[str, ...]]:
        """The table of it, as text: `HEAD` names the columns, the last line is the whole."""
        lines: list[tuple[str, ...]] = [
            (
                str(each.tablet),
                each.begins,
                f"{each.rows:,}",
                f"{each.records:,}",
                f"{each.versions_per_row:.2f}",
                f"{each.erasures:,}",
                f"{each.files:,}",
                shown_bytes(each.size_bytes),
                f"{100 * self.share(each):.1f}%",
            )
            for each in self.tablets
        ]
        whole = (f"{self.rows:,}", f"{self.records:,}", f"{self.versions_per_row:.2f}", f"{self.erasures:,}")
        lines.append(("all", "", *whole, f"{self.files:,}", shown_bytes(self.size_bytes), ""))
        return lines

    def caption(self) -> str:
        return f"table {self.table} at {show_txn(self.txn)}"

    def skews(self) -> str:
        return (
            f"skew: rows {self.row_skew:.2f}, size {self.byte_skew:.2f} (the largest tablet over the mean; 1 is even)"
        )

    def __str__(self) -> str:
        lines = [HEAD, *self.lines()]
        widths = [max(len(line[place]) for line in lines) for place in range(len(HEAD))]
        shown = [
            "  ".join(
                cell.ljust(width) if place in _LEFT else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        return "\n".join([self.caption(), *shown, self.skews()])

    def _repr_html_(self) -> str:
        return html_table(f"{self.caption()}; {self.skews()}", HEAD, self.lines())

    def plot(self, path: object) -> None:
        """Write a picture of it to a file: `.svg`, or `.html` with the table beside it.

        stelae.spark.stats(spark, db, "users").plot("users.html")
        """
        bars = [
            Plotted(f"{each.tablet}: {each.begins or 'first row'}", each.rows, each.size_bytes, each.versions_per_row)
            for each in self.tablets
        ]
        table_plot(path, self.caption(), self.skews(), bars, HEAD, self.lines())


HEAD = ("tablet", "from", "rows", "records", "versions/row", "erasures", "files", "size", "share")
_LEFT = (1,)


def _skew(values: list[int]) -> float:
    total = sum(values)
    return max(values) * len(values) / total if total else 1.0


@public("stats", "stelae.spark")
def stats(
    spark: SparkSession | None, db: Database, table: str, *, at: object = None, progress: Progress | None = None
) -> TableStatistics:
    """Count what a table holds, tablet by tablet: rows, versions, erasures, files, bytes, and how even they are.

        print(stelae.spark.stats(spark, db, "users"))

    All is counted at one snapshot (default: now), while reading and writing go on. `progress` is called with the bytes
    that were looked at and how many there are. Without Spark (None) it is done in this process.
    """
    clock = SystemClock()
    started_s = clock.monotonic_s()
    backend = backend_of(db)
    info = backend.find(table)
    with released(backend, backend.hold(info.id, None if at is None else txn_of(at))) as held:
        tablets = held_tablets(held)
        works = [_Work(data, tablet.size_bytes) for data, tablet in zip(held.configs, tablets, strict=True)]
        advance = Advance(progress, sum(work.size_bytes for work in works))
        found: list[TabletStatistics] = []

        def take(counted: tuple[TabletStatistics, int]) -> None:
            found.append(counted[0])
            advance.add(counted[1])

        run_tasks(
            spark,
            f"count {info.name}",
            works,
            partial(_counted, msgspec.structs.replace(held, configs=())),
            take,
            size_bytes=lambda work: work.size_bytes,
            beat=Renewal(backend, [held.ticket]),
        )
        files = {name for tablet in tablets for name in tablet.files()}
    counts = tuple(sorted(found, key=lambda each: each.start))
    result = TableStatistics(info.name, held.txn, len(held.schema().groups), len(files), counts)
    return replace(result, seconds=clock.monotonic_s() - started_s)


class _Work(NamedTuple):
    config: bytes
    size_bytes: int


def _counted(held: HeldTable, work: _Work) -> tuple[TabletStatistics, int]:
    """Count the versions and erasures of one tablet. Runs in a task of Spark's."""
    schema = held.schema()
    tablet = HeldTablet.decode(work.config, schema, f"table {held.name!r}")
    with closing(fragments_of(held.root)) as fragments:
        seen = scan_part(tablet, fragments, RangeSet.of([tablet.rows]), ALL_COLUMNS, held.txn)
        rows = sum(len(batch.rows) for batch in seen)
        records = erasures = size_bytes = 0
        # A file may have parts in several groups; its records are the same ones.
        refs = {(ref.file.name, ref.rows.start): ref for ref in tablet.refs()}
        for ref in refs.values():
            inside, erased = count_records(ref, fragments)
            records, erasures = records + inside, erasures + erased
            size_bytes += ref.file.seal.size_bytes * inside // max(1, ref.file.stats.records)
    return (
        TabletStatistics(
            tablet=tablet.tablet,
            start=tablet.rows.start,
            begins=_words(schema, tablet.rows.start),
            rows=rows,
            records=records,
            erasures=erasures,
            files=len({name for name, _ in refs}),
            size_bytes=size_bytes,
        ),
        work.size_bytes,
    )


def _words(schema: TableSchema, row: bytes) -> str:
    """The key that a tablet begins at, as far as it can be said in words."""
    if not row:
        return ""
    try:
        values = list(schema.codec.decode(Row(row)))
        while len(values) > 1 and not values[-1] and isinstance(values[-1], str | bytes):
            values.pop()  # a cut by the first columns alone
        text = ", ".join(str(value) for value in values)
    except InvalidArgument:
        text = f"0x{row.hex()}"  # a cut need not be a whole key
    return text if len(text) <= _KEY_LENGTH_MAX else f"{text[: _KEY_LENGTH_MAX - 3]}..."
