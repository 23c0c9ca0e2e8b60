"""What is to be done next about tablets: pure functions of records, the catalog, and what servers have reported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from stelae.catalog.commands.tables import TableName
from stelae.catalog.value import Catalog
from stelae.model.errors import InvalidArgument
from stelae.model.hybrid import millis_of
from stelae.model.ids import Row, SchemaVersion, TableId, TabletId
from stelae.model.ranges import NOTHING, RangeSet, RowRange
from stelae.registry.control import SERVING, ReportedTablet, TabletReport
from stelae.registry.tablet_records import TabletPhase, TabletRecord


def check_cuts(name: TableName, cuts: Sequence[Row], tablets_max: int) -> None:
    """InvalidArgument if a table cannot be made with these cuts between its tablets."""
    if len(cuts) + 1 > tablets_max:
        raise InvalidArgument(f"table {str(name)!r}: {len(cuts) + 1} tablets; at most {tablets_max}")
    if not all(low < high for low, high in zip((Row(b""), *cuts), cuts, strict=False)):
        raise InvalidArgument(f"table {str(name)!r}: splits must ascend, each be given once, none empty")


def prepared(ids: Sequence[TabletId], table: TableId, ranges: Sequence[RowRange], now_ms: int) -> list[TabletRecord]:
    return [
        TabletRecord(id_, table, rows, TabletPhase.PREPARING, "", now_ms) for id_, rows in zip(ids, ranges, strict=True)
    ]


def in_phase(records: Iterable[TabletRecord], phase: TabletPhase, now_ms: int) -> list[TabletRecord]:
    return [msgspec.structs.replace(record, phase=phase, since_ms=now_ms) for record in records]


class Corrections(msgspec.Struct, frozen=True):
    """What must change so that records, catalog and a server agree: records to write and to remove, tablets the server
    must delete, and create, and tables it must serve again, or no more."""

    puts: tuple[TabletRecord, ...] = ()
    removed: tuple[TabletRecord, ...] = ()
    unwanted: tuple[TabletId, ...] = ()
    missing: tuple[TabletRecord, ...] = ()
    unserved: tuple[TableId, ...] = ()
    dropped: tuple[TableId, ...] = ()


def corrections(records: Iterable[TabletRecord], report: TabletReport, catalog: Catalog, now_ms: int) -> Corrections:
    """What brings the records and what a server has in line, of all tables or of some. `records`: those of the tables
    that the report is about; those that name another server are left as they are. `report` may have the tablets of
    dropped tables too.

    - A tablet of a table that is not in the catalog any more is deleted, its record goes: the table was forgotten.
    - A tablet of a table that the catalog has never had is left alone: it is the catalog that is behind.
    - A tablet that the server has and no record names: it was split or joined just before the end. Its record is made,
      and those of the tablets it took over from, whose rows it covers, go.
      Not one that the server reports a replica of: no split or join ends so, and it is left over.
    - A tablet that is recorded as REPLACED is deleted by the server. If it is not there now it may have been asked for,
      and come late: before its record goes the server is told all the same.
    - A tablet that is to be created and that the server does not have is still to be created. One that ran has data:
      it is never made anew. If it is not served now the server must load it.
    - A dropped table that the server still serves is to be unloaded.
    """
    known = {record.tablet: record for record in records}
    mine = [record for record in known.values() if record.server == report.server]
    is_known = {*catalog.tables, *catalog.dropped}
    puts: list[TabletRecord] = []
    removed = [record for record in mine if record.table not in is_known]
    replaced = [record for record in mine if record.phase is TabletPhase.REPLACED]
    unwanted = dict.fromkeys(record.tablet for record in (*removed, *replaced))
    unserved: set[TableId] = set()
    dropped: set[TableId] = set()
    covered: dict[TableId, list[RowRange]] = {}
    here = set()
    for each in _judged(report, known, catalog):
        record = known.get(each.tablet)
        if each.table not in is_known or (record is not None and record.phase is TabletPhase.REPLACED):
            unwanted[each.tablet] = None
            continue
        if record is not None and record.server not in ("", report.server):
            continue  # nothing is deleted because it should not be there
        if record is not None and record.replicas:
            here.add(each.tablet)
            if each.life == SERVING and each.table in catalog.dropped:
                dropped.add(each.table)
            continue  # who leads it, and since when, is not the report's to say
        if each.life != SERVING and each.table in catalog.tables:
            unserved.add(each.table)
        if each.life == SERVING and each.table in catalog.dropped:
            dropped.add(each.table)
        here.add(each.tablet)
        covered.setdefault(each.table, []).append(each.rows)
        running = TabletRecord(
            each.tablet,
            each.table,
            each.rows,
            TabletPhase.RUNNING,
            report.server,
            now_ms,
            record is not None and record.is_asked,
        )
        if record is None or record.phase is not TabletPhase.RUNNING or record.rows != each.rows:
            puts.append(running)
    missing = []
    taken = {table: RangeSet.of(ranges) for table, ranges in covered.items()}
    for record in mine:
        if record.tablet in here or record.table not in is_known:
            continue
        if record.replicas and record.phase is TabletPhase.RUNNING:
            continue  # its leader is reminded, or another elected
        if record.phase is TabletPhase.REPLACED or taken.get(record.table, NOTHING).meets(record.rows):
            removed.append(record)
        elif record.table in catalog.tables and record.phase is TabletPhase.RUNNING:
            unserved.add(record.table)
        elif record.table in catalog.tables:
            missing.append(record)
    return Corrections(
        tuple(puts),
        tuple(removed),
        tuple(unwanted),
        tuple(missing),
        tuple(sorted(unserved)),
        tuple(sorted(dropped)),
    )


def _judged(report: TabletReport, known: Mapping[TabletId, TabletRecord], catalog: Catalog) -> Iterator[ReportedTablet]:
    """What is reported, without that which is left alone."""
    copied = {each.tablet for each in report.replicas}
    for each in report.tablets:
        if each.table < catalog.next_id and (each.tablet in known or each.tablet not in copied):
            yield each


def unplaced(records: Iterable[TabletRecord], catalog: Catalog) -> tuple[list[TabletRecord], list[TabletRecord]]:
    """Of the tablets that no server was chosen for yet: those still to be created, and the records that go because
    their table is not there, or because others have their rows."""
    waiting: list[TabletRecord] = []
    gone: list[TabletRecord] = []
    covered: dict[TableId, list[RowRange]] = {}
    records = list(records)
    for record in records:
        if record.phase in (TabletPhase.CREATING, TabletPhase.RUNNING):
            covered.setdefault(record.table, []).append(record.rows)
    taken = {table: RangeSet.of(ranges) for table, ranges in covered.items()}
    for record in records:
        if record.phase is TabletPhase.PREPARING:
            is_covered = taken.get(record.table, NOTHING).meets(record.rows)
            (waiting if record.table in catalog.tables and not is_covered else gone).append(record)
    return waiting, gone


def overdue(records: Iterable[TabletRecord], now_ms: int, timeout_ms: int) -> list[TabletRecord]:
    """Tablets that were asked for and not reported in time."""
    return [r for r in records if r.phase is TabletPhase.CREATING and now_ms - r.since_ms >= timeout_ms]


def behind(report: TabletReport, newest: Mapping[TableId, SchemaVersion]) -> tuple[TableId, ...]:
    """Tables with a tablet on the server that is not at the newest schema."""
    late = {each.table for each in report.tablets if each.schema_version < newest.get(each.table, 0)}
    return tuple(sorted(late))


def forgettable(catalog: Catalog, now_ms: int, grace_ms: int) -> tuple[TableId, ...]:
    """Dropped tables whose grace period is over."""
    over = [id_ for id_, dropped in catalog.dropped.items() if now_ms - millis_of(dropped.since) >= grace_ms]
    return tuple(sorted(over))
