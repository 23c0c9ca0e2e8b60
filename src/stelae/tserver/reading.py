"""Rows, histories and scans at snapshots, as plain functions of the tablets' states.

A read without `at` looks at the newest visible snapshot and never waits. A later one waits until all below it is
decided; an older one is checked against the history that is kept. Files that are deleted under a read were replaced:
it is done again on the tablet as it is now. Where a change of the table is prepared that others decide, a read first
finds out whether it has happened (`changes`): after its snapshot is chosen, and before it takes a state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TypeVar

import pyarrow as pa

from stelae.model.errors import (
    ClockTooFarAhead,
    InvalidArgument,
    Overloaded,
    StaleSchema,
    StelaeError,
    Unavailable,
)
from stelae.model.hybrid import TXN_MIN, micros_of, pack, show_txn
from stelae.model.ids import Micros, Row, TableId, Txn
from stelae.model.predicate.plan import ALL_TIME, TimeRange
from stelae.model.predicate.selectors import Selectors
from stelae.model.schema import TableSchema
from stelae.ports.clock import Clock
from stelae.service.backend import Values
from stelae.service.deadlines import Deadline
from stelae.service.scans import ScanAsk, bind
from stelae.storage.files.handles import MissingFile
from stelae.storage.read.asking import Asking, Version
from stelae.storage.read.points.rows import RowReader, reader_for
from stelae.storage.read.scans.rows import RowBatch, ScanRequest
from stelae.storage.read.scans.tables import TableScan
from stelae.storage.shard import Shard
from stelae.storage.tablet.state import TabletState
from stelae.tserver.writing import Settle, wait_decided

T = TypeVar("T")

_NO_FLOOR = Txn(0)
_ANY_TIME = Micros(0)
_RETRIES_MAX = 20


class TableReader:
    """Safe for threads. `check_open` raises when the store is closed; scans ask before each batch. `is_alone`: this
    clock gives out all txns of the store, so one that lies ahead of it is a caller's mistake."""

    def __init__(
        self, shard: Shard, clock: Clock, check_open: Callable[[], None], settle: Settle, *, is_alone: bool = True
    ) -> None:
        self._shard = shard
        self._too_far = InvalidArgument if is_alone else ClockTooFarAhead
        self._clock = clock
        self._check_open = check_open
        self._settle = settle
        self._unsettled = shard.unsettled
        self._fragments = shard.fragments
        self._commits = shard.commits
        self._map = shard.map

    def newest(
        self, table: TableId, row: Row, columns: Selectors, at: Txn | None, deadline: Deadline | None
    ) -> tuple[Txn, Values | None]:
        if at is not None:
            self.ready(table, at, deadline)
        changes = self._map.changes
        state = self._map.at(table, row)
        if at is None and state.is_plain:  # the usual read, without a call more than it needs
            own, of_all = state.commits.visible, self._commits.visible
            visible = own if own > of_all else of_all  # noqa: FURB136 - as `visible_in`, and `max` is a call
            # Looked at after `visible`: what is prepared or changed later happens above it.
            if self._unsettled or self._map.changes != changes:
                return self._again(table, row, columns, None, ALL_TIME, _newest, deadline)
            read_us = _ANY_TIME if state.keeps_all else Micros(self._clock.wall_ms() * 1_000)
            asking = Asking(visible, _NO_FLOOR, read_us)
        elif at is None:
            return self._again(table, row, columns, None, ALL_TIME, _newest, deadline)
        else:
            asking = self._asking(state, at)
        try:
            reader = state.readers.get(columns)
            if not isinstance(reader, RowReader):
                reader = reader_for(state, self._fragments, columns)
            return asking.at, reader.newest(row, asking)
        except MissingFile:
            return self._again(table, row, columns, at, ALL_TIME, _newest, deadline, state)

    def newest_many(
        self, table: TableId, rows: Sequence[Row], columns: Selectors, at: Txn | None, deadline: Deadline | None
    ) -> tuple[Txn, list[Values | None]]:
        """All at one snapshot. Rows of one tablet share their reader."""
        with self.pinned(table, at, deadline) as txn:
            read_us = Micros(self._clock.wall_ms() * 1_000) if at is None else micros_of(txn)
            found: list[Values | None] = [None] * len(rows)
            state: TabletState | None = None
            reader: RowReader | None = None
            stop: bytes | None = None
            asking = Asking(txn, _NO_FLOOR, read_us)
            for place in sorted(range(len(rows)), key=rows.__getitem__):
                row = rows[place]
                if state is None or reader is None or (stop is not None and row >= stop):
                    state = self._shard.state_at(table, row)
                    self._shard.check_readable(state, txn)
                    stop = state.rows.stop
                    asking = Asking(txn, state.floor_at(txn), read_us)
                    reader = reader_for(state, self._fragments, columns)
                try:
                    found[place] = reader.newest(row, asking)
                except MissingFile:
                    _, found[place] = self._again(table, row, columns, txn, ALL_TIME, _newest, deadline, state)
                    state = None
            return txn, found

    def history(
        self,
        table: TableId,
        row: Row,
        columns: Selectors,
        limit: int,
        at: Txn | None,
        time: TimeRange,
        deadline: Deadline | None,
    ) -> dict[str, tuple[Version, ...]] | None:
        if at is not None:
            self.ready(table, at, deadline)
        read = partial(_history, limit=limit)
        return self._again(table, row, columns, at, time, read, deadline)

    def _asking(self, state: TabletState, at: Txn | None, time: TimeRange = ALL_TIME) -> Asking:
        """Of a state that was taken before: the horizon it was compacted to is then known, and at or below what is
        visible. The other way round, what is read could be gone by the time the state is taken. Without `at`, the state
        must be the current one still: of a later one what is visible may be in it alone."""
        shard = self._shard
        if at is None:
            now, read_us = shard.visible_in(state), Micros(self._clock.wall_ms() * 1_000)
        else:
            shard.check_readable(state, at)
            now, read_us = at, micros_of(at)
        return Asking(now, state.floor_at(now) if state.floors else _NO_FLOOR, read_us, time)

    def _again(
        self,
        table: TableId,
        row: Row,
        columns: Selectors,
        at: Txn | None,
        time: TimeRange,
        read: Callable[[RowReader, Row, Asking], T],
        deadline: Deadline | None,
        before: TabletState | None = None,
    ) -> T:
        """With the tablet as it is now, and as long as it changes."""
        for _ in range(_RETRIES_MAX):
            changes = self._map.changes
            state = self._shard.state_at(table, row)
            asking = self._asking(state, at, time)
            if at is None and self._map.changes != changes:
                continue
            if at is None and (state.prepared or table in self._unsettled):
                return self._read_when_settled(table, row, columns, time, read, deadline)
            try:
                return read(reader_for(state, self._fragments, columns), row, asking)
            except MissingFile as error:
                if state is before:
                    raise error.needed() from None
                before = state
        raise Overloaded(f"row {row!r}: its tablet changed faster than it could be read; try again")

    def _read_when_settled(
        self,
        table: TableId,
        row: Row,
        columns: Selectors,
        time: TimeRange,
        read: Callable[[RowReader, Row, Asking], T],
        deadline: Deadline | None,
    ) -> T:
        """Where changes are prepared: the newest snapshot of the row's tablet is chosen first, then made certain, then
        read. It is as late as the clock says: who is told of a change later than its floor has to find out."""
        read_us = Micros(self._clock.wall_ms() * 1_000)
        now(self._shard, self._clock.wall_ms())
        with ExitStack() as held:
            with self._shard.lock:
                txn = self._shard.visible_in(self._shard.state_at(table, row))
                held.enter_context(self._shard.pinned(txn, table))
            self._settle(table, txn, deadline)

            def read_now(reader: RowReader, of: Row, given: Asking) -> T:
                return read(reader, of, Asking(given.at, given.floor, read_us, given.time))

            return self._again(table, row, columns, txn, time, read_now, deadline)

    @contextmanager
    def pinned(self, table: TableId, at: Txn | None, deadline: Deadline | None) -> Iterator[Txn]:
        """The snapshot, held; without one, the newest."""
        if at is not None:
            self.ready(table, at, deadline)
        elif self._unsettled:
            now(self._shard, self._clock.wall_ms())
        with ExitStack() as held:
            with self._shard.lock:
                txn = self._commits.newest if at is None else at
                held.enter_context(self._shard.pinned(txn, table))
            if txn > self._commits.visible:
                wait_decided(self._shard, txn, deadline, table)
            if self._unsettled:
                self._settle(table, txn, deadline)
            yield txn

    def ready(self, table: TableId, at: Txn, deadline: Deadline | None) -> None:
        """Wait until all at or below the txn is decided; SnapshotTooOld if history it needs may be gone."""
        shard = self._shard
        shard.check_snapshot(table, at)
        ahead_ms = shard.clock.too_far_ms(at)
        if ahead_ms:
            raise self._too_far(
                f"at={at} is {show_txn(at)}, {ahead_ms / 1_000:.1f} s in the future: what is written until then is not "
                "known yet; leave at= out for the newest, or wait"
            )
        wait_decided(shard, at, deadline, table)
        if self._unsettled:
            self._settle(table, at, deadline)

    def scan(
        self,
        table: TableId,
        ask: ScanAsk,
        schema_of: Callable[[TableId], TableSchema],
        explained: Callable[[TableId, StelaeError], StelaeError],
        deadline: Deadline | None,
    ) -> OpenScan:
        """Checked when this returns; read as it is iterated. Nothing is pinned: whoever asks holds a pin at `ask.at`.
        `explained`: what is behind a tablet that is not there."""
        if ask.at > self._shard.visible:
            self.ready(table, ask.at, deadline)
        else:
            self._shard.check_snapshot(table, ask.at)
            if self._unsettled:
                self._settle(table, ask.at, deadline)
        predicate, binding = ask.predicate, ask.binding
        if binding is None:
            schema = schema_of(table)
            if ask.schema_version is not None and ask.schema_version != schema.version:
                raise StaleSchema(
                    f"the scan is bound to version {ask.schema_version} of the table's schema, which is at version "
                    f"{schema.version}"
                )
            predicate, binding = bind(predicate, schema)
        asking = Asking(ask.at, _NO_FLOOR, micros_of(ask.at), predicate.time)
        request = ScanRequest(
            predicate.rows,
            predicate.columns,
            asking,
            binding.condition,
            ask.reverse,
            limit=ask.limit,
            having=ask.having,
        )
        batches = TableScan(self._shard, table, binding.schema, request).batches()
        return OpenScan(batches, table, self._check_open, explained)


def _newest(reader: RowReader, row: Row, asking: Asking) -> tuple[Txn, Values | None]:
    return asking.at, reader.newest(row, asking)


def _history(reader: RowReader, row: Row, asking: Asking, limit: int) -> dict[str, tuple[Version, ...]] | None:
    return reader.history(row, asking, limit)


def now(shard: Shard, wall_ms: int, heard: Txn = TXN_MIN) -> Txn:
    """The newest snapshot, with all that anybody was told is done: as late as the clock says, if nothing is on its way,
    since what is purged by its age is gone then. `heard`: the greatest time that others have named. What they were told
    is done may be in a tablet that another led, and that is led here only soon: so it is never before that, even if
    something older is undecided here, for which whoever reads at it waits."""
    wall, commits = max(pack(wall_ms), heard), shard.commits
    if wall > commits.visible:
        shard.ready(wall)
    return max(commits.newest, heard)


def check_readable(shard: Shard, tables: Collection[TableId], at: Txn) -> None:
    """SnapshotTooOld if there is no table that could be read at it; of the others, reads say so."""
    if tables:
        shard.check_snapshot(min(tables, key=shard.horizon), at)


class OpenScan:
    """The batches of a scan, and what its errors mean. Closed early, it reads no further."""

    def __init__(
        self,
        batches: Generator[RowBatch, None, None],
        table: TableId,
        check_open: Callable[[], None],
        explained: Callable[[TableId, StelaeError], StelaeError],
    ) -> None:
        self._batches = batches
        self._table = table
        self._check_open = check_open
        self._explained = explained

    def __iter__(self) -> OpenScan:
        return self

    def __next__(self) -> pa.RecordBatch:
        self._check_open()
        try:
            return next(self._batches).batch
        except Unavailable as error:
            raise self._explained(self._table, error) from None
        except MissingFile as error:
            raise error.needed() from None

    def close(self) -> None:
        """Closing twice is no error."""
        self._batches.close()
