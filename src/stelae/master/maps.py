"""The master's maps of tablets: by id, and by table and first row. Tables by id and by name are the catalog's.

Readers need no lock: what is published of a table is a new tuple in the place of the old one. What it takes to publish
a change grows with the tablets of its table, not with all there are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from stelae.model.errors import NotFound
from stelae.model.ids import TableId, TabletId
from stelae.registry.tablet_records import TabletPhase, TabletRecord


class TabletMaps:
    """Changed by one thread, read by all."""

    def __init__(self) -> None:
        self._by_id: dict[TabletId, TabletRecord] = {}
        self._known: dict[TableId, tuple[TabletRecord, ...]] = {}
        self._by_table: dict[TableId, tuple[TabletRecord, ...]] = {}

    def publish(self, records: Iterable[TabletRecord], removed: Iterable[TabletId] = ()) -> None:
        """What was written. A tablet that is REPLACED is known by id alone."""
        changed: dict[TableId, dict[TabletId, TabletRecord]] = {}

        def of_table(table: TableId) -> dict[TabletId, TabletRecord]:
            if table not in changed:
                changed[table] = {record.tablet: record for record in self._known.get(table, ())}
            return changed[table]

        for tablet in removed:
            gone = self._by_id.get(tablet)
            if gone is not None:
                of_table(gone.table).pop(tablet, None)
                del self._by_id[tablet]
        for record in records:
            before = self._by_id.get(record.tablet)
            if before is not None and before.table != record.table:
                of_table(before.table).pop(record.tablet, None)
            of_table(record.table)[record.tablet] = record
            self._by_id[record.tablet] = record
        for table, found in changed.items():
            self._put(table, tuple(found.values()))

    def _put(self, table: TableId, found: tuple[TabletRecord, ...]) -> None:
        shown = [record for record in found if record.phase is not TabletPhase.REPLACED]
        self._known[table] = found
        self._by_table[table] = tuple(sorted(shown, key=lambda each: each.rows.start))
        if not found:
            del self._known[table]
        if not shown:
            del self._by_table[table]

    def tablet(self, tablet: TabletId) -> TabletRecord:
        try:
            return self._by_id[tablet]
        except KeyError:
            raise NotFound(f"no tablet {tablet}") from None

    def all(self) -> tuple[TabletRecord, ...]:
        return tuple(self._by_id.values())

    def not_running(self) -> int:
        """How many tablets are still to be made."""
        return sum(each.phase in (TabletPhase.PREPARING, TabletPhase.CREATING) for each in self.all())

    def of_table(self, table: TableId) -> tuple[TabletRecord, ...]:
        """The table's tablets that serve rows, in the order of their rows."""
        return self._by_table.get(table, ())

    def with_replaced(self, table: TableId) -> tuple[TabletRecord, ...]:
        """All of a table's that are known: also those that others took the place of."""
        return self._known.get(table, ())

    def at(self, table: TableId, row: bytes) -> TabletRecord:
        found = self.of_table(table)
        at = bisect_right(found, row, key=lambda each: each.rows.start) - 1
        if at < 0 or row not in found[at].rows:
            raise NotFound(f"no tablet of table {table} holds row {row!r}")
        return found[at]
