"""Verifying: two tables, or a table and its backup, row by row at pinned snapshots.

Both sides are cut at the tablets' bounds of both, so that each task reads the same stretch of rows of each, in order,
with the store's own code, and compares value by value: no row goes over the network, and no checksum stands for a
value. What is equal is equal in all bits; NaN is equal to itself.

A backup of the very table is read under the table's schema of now, where columns are found by their ids, as a restore
in place would do; all else is compared by the names of columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from stelae.adapters.blobs.urls import blobs_url, open_blobs, shown_place
from stelae.adapters.clock import SystemClock
from stelae.catalog.objects import Table
from stelae.client.arguments.keys import txn_of
from stelae.client.calls.views import TableView
from stelae.model.errors import Corruption, InvalidArgument, NotFound
from stelae.model.hybrid import show_txn
from stelae.model.ids import Txn
from stelae.model.predicate.selectors import Selectors
from stelae.model.public import public
from stelae.model.ranges import RangeSet, RowRange
from stelae.model.values import show
from stelae.service.reports import Progress
from stelae.service.tables import TableInfo
from stelae.service.tickets import HeldTable
from stelae.spark.driver.progress import Advance, Renewal, Summary, released, shown_seconds
from stelae.spark.driver.tasks import run_tasks
from stelae.spark.jobs.comparing import ComparedRows, Comparison, RowDifference, RowStream, SomeRows, wider
from stelae.spark.jobs.manifests import backup_key, backups_of_table, covering, found_backups
from stelae.spark.stores import backend_of, fragments_of
from stelae.spark.tickets import held_tablets
from stelae.storage.offline.scans import output_schema, scan_part
from stelae.storage.offline.tablets import Fragments, HeldTablet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stelae.client.api.database import Database
    from stelae.client.calls.patient import PatientStore


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """How two sides compare. `different` rows are on both; `by_column` counts them by the columns that differ."""

    here: str = ""
    there: str = ""
    rows_here: int = 0
    rows_there: int = 0
    only_here: int = 0
    only_there: int = 0
    different: int = 0
    by_column: tuple[tuple[str, int], ...] = ()
    columns_only_here: tuple[str, ...] = ()
    columns_only_there: tuple[str, ...] = ()
    samples: tuple[RowDifference, ...] = ()
    seconds: float = 0.0

    @property
    def is_same(self) -> bool:
        rows = self.only_here + self.only_there + self.different
        return not (rows or self.columns_only_here or self.columns_only_there)

    def __str__(self) -> str:
        return str(self.summary)

    @property
    def summary(self) -> Summary:
        facts = [
            ("here", f"{self.here}: {self.rows_here:,} rows"),
            ("there", f"{self.there}: {self.rows_there:,} rows"),
        ]
        for name, columns in (("here", self.columns_only_here), ("there", self.columns_only_there)):
            facts += [(f"columns only {name}", ", ".join(columns))] if columns else []
        if not self.is_same:
            by = ", ".join(f"{name}: {count:,}" for name, count in self.by_column)
            facts += [
                ("only here", f"{self.only_here:,}"),
                ("only there", f"{self.only_there:,}"),
                ("different", f"{self.different:,}" + (f" ({by})" if by else "")),
                *(("such as", str(sample)) for sample in self.samples),
            ]
        facts.append(("time", shown_seconds(self.seconds)))
        return Summary("the same" if self.is_same else "NOT the same", tuple(facts))


@public("verify", "stelae.spark")
def verify(
    spark: SparkSession,
    db: Database,
    table: str,
    other: object,
    *,
    at: object = None,
    other_at: object = None,
    backup_of: str | None = None,
    columns: Sequence[str] | None = None,
    samples: int = 10,
    progress: Progress | None = None,
) -> VerifyResult:
    """Compare a table with another, or with a backup of it; the result says what differs and prints as a short text.

        stelae.spark.verify(spark, db, "users", "backups").is_same

    `other` is the name of a table, or a backup directory or its URL. `at` is the snapshot of the table, `other_at` that
    of the other side. Without them tables are compared as they are now, and a backup of this table with the table as it
    was then. `backup_of`: which table of a backup directory, if it is neither this one nor the only one. `columns`
    restricts what is compared, `samples` is how many differing rows are kept. `progress` is called with the bytes that
    were compared and how many there are.
    """
    clock = SystemClock()
    started_s = clock.monotonic_s()
    if type(samples) is not int or samples < 0:
        raise InvalidArgument(f"samples= is a number of rows, not {show(samples)}")
    backend = backend_of(db)
    info = backend.find(table)
    with ExitStack() as holds:
        sides = _Sides(
            backend, holds, None if at is None else txn_of(at), None if other_at is None else txn_of(other_at)
        )
        here, there = sides.of(info, other, backup_of)
        plan = _planned(here, there, columns)
        works = _works(here.held, there.held)
        advance = Advance(progress, sum(work.size_bytes for work in works))
        found: list[tuple[bytes, ComparedRows]] = []

        def take(compared: tuple[bytes, ComparedRows]) -> None:
            found.append(compared)
            advance.add(compared[1].size_bytes)

        run_tasks(
            spark,
            f"verify {info.name}",
            works,
            partial(_compare, here.without_configs(), there.without_configs(), plan, samples),
            take,
            size_bytes=lambda work: work.size_bytes,
            beat=Renewal(backend, sides.tickets),
        )
    result = _summed([compared for _, compared in sorted(found, key=lambda each: each[0])], samples)
    return replace(
        result,
        here=_shown(here.held),
        there=_shown(there.held),
        columns_only_here=plan.only_here,
        columns_only_there=plan.only_there,
        seconds=clock.monotonic_s() - started_s,
    )


def _shown(held: HeldTable) -> str:
    where = "" if held.ticket else f" in {shown_place(held.root)}"
    return f"{held.name}{where} at {show_txn(held.txn)}"


def _summed(found: Sequence[ComparedRows], samples: int) -> VerifyResult:
    by_column: Counter[str] = Counter()
    for each in found:
        by_column.update(each.by_column)
    return VerifyResult(
        rows_here=sum(each.rows_here for each in found),
        rows_there=sum(each.rows_there for each in found),
        only_here=sum(each.only_here for each in found),
        only_there=sum(each.only_there for each in found),
        different=sum(each.different for each in found),
        by_column=tuple(by_column.most_common()),
        samples=tuple(sample for each in found for sample in each.samples)[:samples],
    )


class _Side(NamedTuple):
    """A table in files, and the table, as the catalog has it, under whose schema it is read."""

    held: HeldTable
    read_as: bytes

    @property
    def table(self) -> Table:
        return msgspec.structs.replace(self.held, table=self.read_as).description()

    def without_configs(self) -> _Side:
        """What every task needs to know."""
        return self._replace(held=msgspec.structs.replace(self.held, configs=()))


class _Sides:
    """Finds both, and holds them as long as they are needed."""

    def __init__(self, store: PatientStore, holds: ExitStack, at: Txn | None, other_at: Txn | None) -> None:
        self._store = store
        self._holds = holds
        self._at = at
        self._other_at = other_at
        self.tickets: list[str] = []

    def of(self, info: TableInfo, other: object, backup_of: str | None) -> tuple[_Side, _Side]:
        named = self._table(other) if backup_of is None else None
        if named is None:
            here, there, is_same = self._with_backup(info, blobs_url(other), backup_of)
        else:
            here, there = self._hold(info, self._at), self._hold(named, self._other_at)
            is_same = info.id == named.id
        return _Side(here, here.table), _Side(there, here.table if is_same else there.table)

    def _table(self, other: object) -> TableInfo | None:
        """None if a directory is meant."""
        if not isinstance(other, str):
            return None
        try:
            return self._store.find(other)
        except (NotFound, InvalidArgument) as error:
            if not found_backups(open_blobs(other, read_only=True)):
                raise NotFound(f"{error}; and there is no directory {other!r} with backups") from None
            return None

    def _with_backup(self, info: TableInfo, root: str, backup_of: str | None) -> tuple[HeldTable, HeldTable, bool]:
        blobs = open_blobs(root, read_only=True)
        with released(self._store, self._store.hold(info.id)) as now:
            key = backup_key(now)
        own = found_backups(blobs, key) if backup_of is None else []
        found = own or backups_of_table(blobs, shown_place(root), backup_of)
        is_same = found[-1].key == key
        wanted = self._at if self._other_at is None and is_same else self._other_at
        manifest = covering(found, wanted)
        txn = manifest.txn if wanted is None else min(wanted, manifest.txn)
        at = txn if self._at is None and is_same else self._at
        return self._hold(info, at), manifest.held(root, txn), is_same

    def _hold(self, info: TableInfo, at: Txn | None) -> HeldTable:
        held = self._holds.enter_context(released(self._store, self._store.hold(info.id, at)))
        self.tickets.append(held.ticket)
        return held


class _Plan(NamedTuple):
    """What is read of each side, and the columns that are compared: families are maps."""

    selected: tuple[Selectors, Selectors]
    keys: Sequence[str]
    names: tuple[str, ...]
    only_here: tuple[str, ...]
    only_there: tuple[str, ...]


def _planned(here: _Side, there: _Side, columns: Sequence[str] | None) -> _Plan:
    schemas = here.table.schema, there.table.schema
    keys = [", ".join(f"{key.name} {key.type}" for key in schema.key) for schema in schemas]
    if keys[0] != keys[1]:
        raise InvalidArgument(f"the keys are not the same: {keys[0]} here, {keys[1]} there")
    if schemas[0].hashed != schemas[1].hashed:
        raise InvalidArgument("one is partitioned by hash, the other by range: their rows have no common order")
    mine, other = _chosen(here, columns), _chosen(there, columns)
    common = tuple(name for name in mine.types if name in other.types)
    for name in common:
        if mine.types[name] != other.types[name] and wider(mine.types[name], other.types[name]) is None:
            raise InvalidArgument(
                f"column {name!r} is {mine.types[name]} here and {other.types[name]} there: choose columns= without it"
            )
    only = [tuple(name for name in each.types if name not in common) for each in (mine, other)]
    return _Plan((mine.selectors, other.selectors), schemas[0].codec.names, common, only[0], only[1])


class _Chosen(NamedTuple):
    """What is read, and the columns with their Arrow types that come of it."""

    selectors: Selectors
    types: dict[str, Any]


def _chosen(side: _Side, columns: Sequence[str] | None) -> _Chosen:
    table = side.table
    shape = TableView(TableInfo(table, side.held.name, "")).shape(columns)
    fields = [] if shape.keys_only else output_schema(table.schema, shape.selectors)
    keys = table.schema.codec.names
    return _Chosen(shape.selectors, {field.name: field.type for field in fields if field.name not in keys})


class _Work(NamedTuple):
    rows: RowRange
    here: bytes
    there: bytes
    size_bytes: int


def _works(here: HeldTable, there: HeldTable) -> list[_Work]:
    """One for each stretch of rows that lies in one tablet of each."""
    tablets = [held_tablets(held) for held in (here, there)]
    starts = sorted({tablet.rows.start for each in tablets for tablet in each})
    works = []
    for start, stop in zip(starts, [*starts[1:], None], strict=True):
        rows = RowRange(start, stop)
        mine, size = _of_range(tablets[0], here.configs, rows)
        other, other_size = _of_range(tablets[1], there.configs, rows)
        works.append(_Work(rows, mine, other, size + other_size))
    return works


def _of_range(tablets: Sequence[HeldTablet], encoded: Sequence[bytes], rows: RowRange) -> tuple[bytes, int]:
    """The tablet that has the rows, and how many bytes lie in files that may have some of them."""
    for tablet, data in zip(tablets, encoded, strict=True):
        if rows.start in tablet.rows:
            return data, sum(ref.file.seal.size_bytes for ref in tablet.refs() if ref.rows.overlaps(rows))
    raise Corruption(f"no tablet has the row {rows.start!r}", "the list of tablets")


def _compare(here: _Side, there: _Side, plan: _Plan, samples: int, work: _Work) -> tuple[bytes, ComparedRows]:
    """Compare one stretch of rows. Runs in a Spark task."""
    with ExitStack() as opened:
        streams = []
        for side, data, selected in zip((here, there), (work.here, work.there), plan.selected, strict=True):
            fragments = fragments_of(side.held.root)
            opened.callback(fragments.close)
            streams.append(RowStream(_scanned(side, data, fragments, work.rows, selected)))
        comparison = Comparison(plan.keys, plan.names, samples)
        comparison.run(*streams)
        return work.rows.start, comparison.result(work.size_bytes)


def _scanned(side: _Side, data: bytes, fragments: Fragments, rows: RowRange, columns: Selectors) -> Iterator[SomeRows]:
    own, schema = side.held.schema(), side.table.schema
    read_as = schema if schema.version != own.version else None
    tablet = HeldTablet.decode(data, own, "what is verified", read_as)
    for found in scan_part(tablet, fragments, RangeSet.of([rows]), columns, side.held.txn):
        yield found.rows, found.batch
