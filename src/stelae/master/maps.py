"""The master's maps of tablets: by id, and by table and first row. Tables by id and by name are the catalog's.

Readers need no lock: what is published is a new table of tablets in the place of the old one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from stelae.model.errors import NotFound
from stelae.model.ids import TableId, TabletId
from stelae.registry.tablet_records import TabletPhase, TabletRecord


class TabletMaps:
    def __init__(self) -> None:
        self._by_id: dict[TabletId, TabletRecord] = {}
        self._by_table: dict[TableId, tuple[TabletRecord, ...]] = {}

    def publish(self, records: Iterable[TabletRecord], removed: Iterable[TabletId] = ()) -> None:
        """What was written. A tablet that is REPLACED is known by id alone."""
        by_id, tables = dict(self._by_id), set()
        for tablet in removed:
            gone = by_id.pop(tablet, None)
            tables |= {gone.table} if gone is not None else set()
        for record in records:
            by_id[record.tablet] = record
            tables.add(record.table)
        by_table: dict[TableId, list[TabletRecord]] = {table: [] for table in tables}
        for known in by_id.values():
            if known.table in by_table and known.phase is not TabletPhase.REPLACED:
                by_table[known.table].append(known)
        self._by_id = by_id
        for table, found in by_table.items():
            self._by_table[table] = tuple(sorted(found, key=lambda each: each.rows.start))
            if not found:
                del self._by_table[table]

    def tablet(self, tablet: TabletId) -> TabletRecord:
        try:
            return self._by_id[tablet]
        except KeyError:
            raise NotFound(f"no tablet {tablet}") from None

    def all(self) -> tuple[TabletRecord, ...]:
        return tuple(self._by_id.values())

    def of_table(self, table: TableId) -> tuple[TabletRecord, ...]:
        """In the order of their rows."""
        return self._by_table.get(table, ())

    def at(self, table: TableId, row: bytes) -> TabletRecord:
        found = self.of_table(table)
        at = bisect_right(found, row, key=lambda each: each.rows.start) - 1
        if at < 0 or row not in found[at].rows:
            raise NotFound(f"no tablet of table {table} holds row {row!r}")
        return found[at]
