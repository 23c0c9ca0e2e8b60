"""Which tablets are here, and which of them holds a row."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from stelae.model.errors import InvalidArgument, TabletAway
from stelae.model.ids import TableId, TabletId
from stelae.model.ranges import RowRange
from stelae.storage.tablet.state import TabletState


class _Table(msgspec.Struct, frozen=True):
    """Tablets in row order. Another cut of the rows is another object, so readers without the lock see one or the
    other; the list changes only in place."""

    starts: tuple[bytes, ...]
    states: list[TabletState]


class TabletMap:
    """Readers need no lock; whoever installs holds the shard's."""

    def __init__(self) -> None:
        self.states: dict[TabletId, TabletState] = {}
        self.changes = 0
        self.unsettled: dict[TableId, tuple[str, ...]] = {}
        """The changes that are prepared in tablets of a table, of tables that have any. Always the same object."""
        self._tables: dict[TableId, _Table] = {}

    def state(self, tablet: TabletId) -> TabletState:
        try:
            return self.states[tablet]
        except KeyError:
            raise TabletAway(f"tablet {tablet} is not here") from None

    def of_table(self, table: TableId) -> list[TabletState]:
        found = self._tables.get(table)
        return list(found.states) if found is not None else []

    def at(self, table: TableId, row: bytes) -> TabletState:
        found = self._tables.get(table)
        at = bisect_right(found.starts, row) - 1 if found is not None else -1
        if found is not None and at >= 0:
            state = found.states[at]
            stop = state.rows.stop
            if stop is None or row < stop:
                return state
        raise TabletAway(f"no tablet of table {table} is here for row {row!r}")

    def before(self, table: TableId, row: bytes | None) -> TabletState:
        found = self._tables.get(table)
        at = -1
        if found is not None:
            at = len(found.starts) - 1 if row is None else bisect_left(found.starts, row) - 1
        if found is None or at < 0 or not _reaches(found.states[at].rows, row):
            raise TabletAway(f"no tablet of table {table} is here for rows below {row!r}")
        return found.states[at]

    def install(self, states: Sequence[TabletState], removed: Sequence[TabletId]) -> None:
        """InvalidArgument if tablets of one table would overlap: then nothing is changed."""
        gone = [self.states[tablet] for tablet in removed if tablet in self.states]
        cut = {state.table for state in gone}
        prepared = {state.table for state in (*gone, *states) if state.prepared}
        for state in states:
            old = self.states.get(state.tablet)
            if old is None or old.rows != state.rows:
                cut.add(state.table)
            if old is not None and old.prepared:
                prepared.add(state.table)
        tables = {table: self._cut(table, states, removed) for table in cut}
        for tablet in removed:
            self.states.pop(tablet, None)
        for state in states:
            self.states[state.tablet] = state
            if state.table not in tables:
                found = self._tables[state.table]
                found.states[bisect_right(found.starts, state.rows.start) - 1] = state
        self._tables.update(tables)
        for table in prepared:
            self._note_prepared(table)
        self.changes += 1

    def _note_prepared(self, table: TableId) -> None:
        found = tuple(dict.fromkeys(load.load for state in self.of_table(table) for load in state.prepared))
        if found:
            self.unsettled[table] = found
        else:
            self.unsettled.pop(table, None)

    def _cut(self, table: TableId, states: Sequence[TabletState], removed: Sequence[TabletId]) -> _Table:
        """The table with these tablets changed and those removed: what `install` puts in its place."""
        known = self.states | {state.tablet: state for state in states}
        for tablet in set(removed).difference(state.tablet for state in states):
            known.pop(tablet, None)
        ordered = sorted((s for s in known.values() if s.table == table), key=lambda s: s.rows.start)
        for left, right in pairwise(ordered):
            if left.rows.overlaps(right.rows):
                raise InvalidArgument(f"tablets {left.tablet} and {right.tablet} overlap")
        return _Table(tuple(s.rows.start for s in ordered), ordered)


def _reaches(rows: RowRange, below: bytes | None) -> bool:
    return rows.stop is None or (below is not None and rows.stop >= below)
