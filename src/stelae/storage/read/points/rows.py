"""Point reads: the newest values, or the history, of one row at a snapshot.

A `RowReader` is prepared once per tablet state and set of columns, and kept with the state; reading a row with it is
then a few dictionary lookups, a bisection and the values. It is a plain function of an immutable state: no lock, no
waiting, callable from any thread. Only a block that is not in the cache is read from the store.

The usual row has one record, or its newest values are the last ones written to memory; both are answered at once. All
others go through the plain rule. Only where nothing is found of the columns asked for, the row's other columns are
looked at: `columns` is a projection, and a row that exists appears without a value of them, too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from stelae.model.ids import ColumnId, Row, Txn
from stelae.model.predicate.selectors import ALL_COLUMNS, Selectors, selects_of_family
from stelae.model.ranges import RowRange
from stelae.model.record import ROW_EXISTS
from stelae.model.schema import CellsGroup, ColumnsGroup
from stelae.model.values import Value
from stelae.storage.files.fragments import Fragment, Fragments
from stelae.storage.files.warm import FewRows
from stelae.storage.read.asking import Asking, Version
from stelae.storage.read.markers import MarkersReader
from stelae.storage.read.points.cells import CellsReader
from stelae.storage.read.points.columns import ColumnsReader
from stelae.storage.tablet.parts import LEFT_OVER
from stelae.storage.tablet.state import TabletState

READERS_MAX = 64


class RowReader:
    """Reads rows of one tablet state, with a fixed choice of columns."""

    def __init__(self, state: TabletState, fragments: Fragments, columns: Selectors) -> None:
        self._state = state
        self._fragments = fragments
        self._is_whole = columns == ALL_COLUMNS
        schema = state.schema
        existing = schema.existence_group
        self._names: dict[ColumnId, str] = {}
        self._columns: list[ColumnsReader] = []
        self._cells: list[CellsReader] = []
        self._defaults: dict[str, Value] = {}
        for group in schema.groups:
            match group:
                case ColumnsGroup():
                    chosen = [c for c in group.columns if any(s.matches(c.name) for s in columns)]
                    self._names |= {c.id: c.name for c in chosen}
                    self._defaults |= {c.name: c.default for c in chosen}
                    ids = tuple(c.id for c in chosen)
                    refs, options = state.refs(group.id), group.options
                    wanted = (*ids, ROW_EXISTS) if group is existing and not options.keys_past else ids
                    if wanted:
                        self._columns.append(ColumnsReader(refs, fragments, wanted, options.purging, self._names))
                    if group is existing and options.keys_past:
                        keys = ColumnsReader(refs, fragments, (ROW_EXISTS,), options.keys_purging, self._names)
                        self._columns.append(keys)
                case CellsGroup():
                    if group is existing or _may_match(group, columns):
                        refs = state.refs(group.id)
                        reads_rows = group is existing
                        self._cells.append(CellsReader(refs, fragments, columns, reads_rows, group.purging))
        left = state.refs(LEFT_OVER)
        erasing = state.refs(existing.id)
        self._markers = MarkersReader(left, erasing, fragments, existing.options.keys_purging) if left else None
        self._only = self._columns[0] if len(self._columns) == 1 and not self._cells else None
        self._alone = self._only if self._markers is None else None

    def newest(self, row: Row, asking: Asking) -> dict[str, Value] | None:
        """The newest value of each column and cell that has one; defaults for the columns that have none; None if the
        row does not exist."""
        if self._only is not None:
            quick = self._only.quick(row, asking)
            if isinstance(quick, dict):
                return quick
        return self._merged(row, asking)

    def values(self, row: Row, asking: Asking) -> dict[str, Value] | tuple[Value, ...] | None:
        """The same; where that is quicker without names, in the order of the columns."""
        if self._only is not None:
            quick = self._only.quick(row, asking, bare=True)
            if quick is not None:
                return quick
        return self._merged(row, asking)

    def _merged(self, row: Row, asking: Asking) -> dict[str, Value] | None:
        """The newest values of a row, from everything that has any of it; None if it does not exist."""
        found: dict[str, Value] = {}
        exists = False
        names = self._names
        for columns in self._columns:
            values = columns.newest(row, asking)
            if values:
                exists = True
                for id_, value in values.items():
                    if id_ != ROW_EXISTS:
                        found[names[id_]] = value
        for cells in self._cells:
            for (family, qualifier), versions in cells.history(row, asking, 1).items():
                exists = True
                if family:
                    found[f"{family}:{qualifier}"] = versions[0].value
        if not exists and not self._exists(row, asking):
            return None
        if len(found) < len(self._defaults) or self._cells:
            for name, default in self._defaults.items():
                found.setdefault(name, default)
        return found

    def many(self, rows: Sequence[Row], asking: Asking) -> list[tuple[Value, ...] | dict[str, Value] | None]:
        """As `newest` of each of these rows, which are in order. Where it is quicker, the values alone, in the order of
        the columns."""
        found: list[tuple[Value, ...] | dict[str, Value] | None] = []
        only = self._only
        if only is None:
            return [self.newest(row, asking) for row in rows]
        written = only.written
        known: list[bytes] = []
        values: list[tuple[Value, ...]] = []
        end, at, count = b"", 0, 0
        for row in rows:
            if row >= end:
                around = only.warm_around(row, asking)
                (known, values), end = around or (([], []), row + b"\0")
                at, count = 0, len(known)
            at = bisect_left(known, row, at)
            is_known = at < count and known[at] == row
            if is_known and not (written and any(memory.may_have(row) for memory in written)):
                found.append(values[at])
            else:
                found.append(self.newest(row, asking))
        return found

    def few(self, rows: RowRange, count: int, asking: Asking) -> FewRows | None:
        """The first so many rows of a range, with the values of the columns in the order of the schema, where that is
        quick to tell; None: scan them."""
        return None if self._alone is None else self._alone.few(rows, count, asking)

    def history(self, row: Row, asking: Asking, limit: int) -> dict[str, tuple[Version, ...]] | None:
        """Up to so many versions of each column and cell, newest first; None if the row does not exist."""
        found: dict[str, tuple[Version, ...]] = {}
        exists = False
        for columns in self._columns:
            for id_, versions in columns.history(row, asking, limit).items():
                exists = True
                if id_ != ROW_EXISTS:
                    found[self._names[id_]] = versions
        for cells in self._cells:
            for (family, qualifier), versions in cells.history(row, asking, limit).items():
                exists = True
                if family:
                    found[f"{family}:{qualifier}"] = versions
        return found if exists or self._exists(row, asking) else None

    def _exists(self, row: Row, asking: Asking) -> bool:
        """Of a row that has nothing of the columns asked for: whether it was put by its key alone where no group knows
        of it any more, or has any other column."""
        if self._markers is not None and self._markers.versions(row, asking):
            return True
        if self._is_whole:
            return False
        return reader_for(self._state, self._fragments, ALL_COLUMNS).newest(row, asking) is not None


def reader_for(state: TabletState, fragments: Fragments, columns: Selectors) -> RowReader:
    found = state.readers.get(columns)
    if not isinstance(found, RowReader):
        if len(state.readers) >= READERS_MAX:
            state.readers.clear()
        found = state.readers[columns] = RowReader(state, fragments, columns)
    return found


def last_txn(state: TabletState, fragments: Fragments, row: Row, above: Txn) -> Txn:
    """The greatest txn of any record of the row, if it is above `above`; else something that is not. Looks at memory,
    and only into files that hold anything so new."""
    latest = max((memory.last_txn(row) for memory in state.memories), default=Txn(0))
    if latest > above:
        return latest
    for _, refs in state.groups:
        for ref in refs:
            if ref.file is not None and ref.file.txn_max > max(above, latest) and row in ref.rows:
                latest = max(latest, _last_in_file(fragments.of(ref.file), row))
    return latest


def _last_in_file(fragment: Fragment, row: Row) -> Txn:
    latest = Txn(0)
    for number in fragment.reader.blocks_of_row(row):
        block = fragment.block(number, fragment.needed(()), keep=True)
        for at in range(*block.find(row)):
            latest = max(latest, block.stamp(at)[1])
    return latest


def _may_match(group: CellsGroup, columns: Selectors) -> bool:
    if group.wildcard:
        return any(":" in s.text or s.is_prefix for s in columns)
    return any(selects_of_family(columns, family.name) for family in group.families)
