"""Reads of callers in the same process, in the quickest way there is, where nothing is odd.

They give what `TableReader` gives, without the steps that only a connection needs: values in the order of their columns
instead of by name, a few rows instead of batches. Whatever is odd is left to the plain way; nothing was read by then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from stelae.model.errors import TabletAway
from stelae.model.hybrid import micros_of
from stelae.model.ids import Micros, Row, SchemaVersion, TableId, Txn
from stelae.model.predicate.selectors import Selectors
from stelae.model.ranges import RowRange
from stelae.model.values import Value
from stelae.ports.clock import Clock
from stelae.service.backend import Values
from stelae.service.deadlines import Deadline
from stelae.storage.files.handles import MissingFile
from stelae.storage.files.warm import FewRows
from stelae.storage.read.asking import Asking
from stelae.storage.read.points.rows import RowReader, reader_for
from stelae.storage.shard import Shard
from stelae.tserver.reading import TableReader

_NO_FLOOR = Txn(0)
_ANY_TIME = Micros(0)


class QuickReader:
    """Safe for threads. `reader`: the plain way."""

    def __init__(self, shard: Shard, clock: Clock, check_open: Callable[[], None], reader: TableReader) -> None:
        self._reader = reader
        self._clock = clock
        self._check_open = check_open
        self._check_readable = shard.check_readable
        self._unsettled = shard.unsettled
        self._fragments = shard.fragments
        self._commits = shard.commits
        self._map = shard.map

    def values(
        self, table: TableId, row: Row, columns: Selectors, version: SchemaVersion
    ) -> tuple[Txn, tuple[Value, ...] | Values | None] | None:
        """As `newest` without a snapshot, for callers in this process: where that is quicker the values alone, in the
        order of the columns of that version of the schema. None: something is odd, ask `newest`."""
        self._check_open()
        changes = self._map.changes
        state = self._map.at(table, row)
        if not (state.is_plain and state.keeps_all and state.schema.version == version):
            return None
        own, of_all = state.commits.visible, self._commits.visible
        visible = own if own > of_all else of_all  # noqa: FURB136 - as in `newest`, and so is the next
        if self._unsettled or self._map.changes != changes:
            return None
        reader = state.readers.get(columns)
        if not isinstance(reader, RowReader):
            reader = reader_for(state, self._fragments, columns)
        try:
            return visible, reader.values(row, Asking(visible, _NO_FLOOR, _ANY_TIME))
        except MissingFile:
            return None

    def many(
        self,
        table: TableId,
        rows: Sequence[Row],
        columns: Selectors,
        version: SchemaVersion,
        at: Txn | None,
        deadline: Deadline | None,
    ) -> tuple[Txn, list[tuple[Value, ...] | Values | None]]:
        """As `newest_many`, for callers in this process; of rows that are quickly told the values alone, in the order
        of the columns of that version of the schema."""
        self._check_open()
        order = sorted(range(len(rows)), key=rows.__getitem__)
        ordered = [rows[place] for place in order]
        found: list[tuple[Value, ...] | Values | None] = [None] * len(rows)
        begin = 0
        with self._reader.pinned(table, at, deadline) as txn:
            read_us = Micros(self._clock.wall_ms() * 1_000) if at is None else micros_of(txn)
            while begin < len(ordered):
                state = self._map.at(table, ordered[begin])
                stop = state.rows.stop
                end = len(ordered) if stop is None else bisect_left(ordered, stop, begin)
                self._check_readable(state, txn)
                asking = Asking(txn, state.floor_at(txn), read_us)
                if state.schema.version != version:
                    break
                try:
                    told = reader_for(state, self._fragments, columns).many(ordered[begin:end], asking)
                except MissingFile:
                    break  # the tablet has changed meanwhile
                for place, each in zip(order[begin:end], told, strict=True):
                    found[place] = each
                begin = end
            if begin < len(ordered):
                rest = order[begin:]
                _, told_singly = self._reader.newest_many(
                    table, [rows[place] for place in rest], columns, txn, deadline
                )
                for place, values in zip(rest, told_singly, strict=True):
                    found[place] = values
        return txn, found

    def few(
        self, table: TableId, rows: RowRange, columns: Selectors, version: SchemaVersion, at: Txn, count: int
    ) -> FewRows | None:
        """The first so many rows of a range at a snapshot that is pinned, with the values of the columns in the order
        of that version of the schema, where that is quick to tell; None: scan them."""
        if at > self._commits.visible or self._unsettled:
            return None
        try:
            state = self._map.at(table, rows.start)
            if not (state.is_plain and state.keeps_all and state.schema.version == version):
                return None
            found = reader_for(state, self._fragments, columns).few(rows, count, Asking(at, _NO_FLOOR, _ANY_TIME))
        except (MissingFile, TabletAway):
            return None  # the scan finds out what it is
        if found is None:
            return None
        self._check_open()
        self._check_readable(state, at)  # of a state that was taken before, as in `_asking`
        stop = state.rows.stop
        goes_on = stop is not None and (rows.stop is None or rows.stop > stop)
        return None if goes_on and len(found[0]) < count else found
