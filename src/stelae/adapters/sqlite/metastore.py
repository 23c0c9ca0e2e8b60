"""The metastore of one machine: an SQLite file that any number of its processes have open at once.

Two threads serve each open metastore, one reading and one writing, so that reads do not wait behind an fsync. A write
waits up to ten seconds for other processes' writes, then raises Unavailable. Queues are bounded: Overloaded.

A watch reads the table of changes from where it is, so it can neither miss nor repeat one. When it has read all, it
waits to be woken: at once by a change of its own metastore, and otherwise by looking whether another process committed
(`PRAGMA data_version`), every 2 ms after a change and ever less often while nothing changes, down to ten times a
second, or twice a second if no one watches. The same look finds leases that ran out, and removes them: any process does
so.

Not after a fork: the child opens its own.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import ceil
from typing import TypeVar

from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.marks import Mark
from stelae.adapters.sqlite import tables as tables
from stelae.adapters.sqlite.layout import carry_forward
from stelae.adapters.sqlite.leases import LeaseWatcher
from stelae.adapters.sqlite.proving import mark_of, reached_by
from stelae.adapters.sqlite.schema import (
    begin_writing,
    commit,
    open_connection,
    prepare_file,
    reading,
    roll_back,
    sqlite_errors,
    writing,
    writing_within,
)
from stelae.adapters.watches import BatchWatch
from stelae.model.errors import Closed, PermissionDenied, Retryable, StelaeError
from stelae.ports.clock import Clock
from stelae.ports.metastore import Change, Compare, Entry, LeaseId, RangeRead, Revision, TxnOutcome
from stelae.ports.metastore_rules import (
    check_read_request,
    check_revision,
    check_ttl,
    check_txn_request,
    key_bytes,
    prefix_bytes,
)

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]

QUEUED_MAX = 1024

_POLL_S_MIN = 0.002
_POLL_S_MAX_WATCHED = 0.1
_POLL_S_MAX = 0.5
_POLL_GROWTH = 1.5
_RETRY_S = 0.1
_MS_PER_S = 1000


class _Worker:
    """A connection, and the one thread that uses it. What it commits it notes in the mark."""

    def __init__(self, path: str, mark: Mark) -> None:
        self._path = path
        self._mark = mark
        self._executor = ThreadExecutor(1, QUEUED_MAX)
        self._connection: sqlite3.Connection | None = None
        self._is_holding = False

    async def prepare(self, *, read_only: bool, held: bool) -> bool:
        """The first of the workers sees whether the file is whole; whether it is still to be carried forward."""
        prepare = partial(prepare_file, self._path, self._mark, read_only=read_only, held=held)
        return await asyncio.wrap_future(self._executor.submit(prepare))

    async def open(self, *, read_only: bool) -> None:
        def connect() -> None:
            self._connection = open_connection(self._path, read_only=read_only)

        await asyncio.wrap_future(self._executor.submit(connect))

    async def hold(self, *, carries: bool) -> None:
        """All that is written from now on is in one transaction, until `settle`. Until then the loop itself reads and
        writes: nobody else is served by it yet, nothing is synced, and to wake a thread takes longer than to read."""

        def run() -> None:
            begin_writing(self._opened(), self._path)
            self._is_holding = True
            if carries:
                with writing_within(self._opened(), self._path):
                    carry_forward(self._opened())

        await asyncio.wrap_future(self._executor.submit(run))

    async def settle(self) -> None:
        def run() -> None:
            with sqlite_errors(self._path):
                revision, _, digest = tables.read_store(self._opened())
            commit(self._opened(), self._path)
            self._mark.note(reached_by(revision, digest))

        self._is_holding = False  # from here on others wait for the thread, and so for the commit
        await asyncio.wrap_future(self._executor.submit(run))

    async def read(self, job: Job[T]) -> T:
        if self._is_holding:
            with sqlite_errors(self._path):
                return job(self._opened())

        def run() -> T:
            with reading(self._opened(), self._path):
                return job(self._opened())

        return await asyncio.wrap_future(self._executor.submit(run))

    async def write(self, job: Job[T]) -> T:
        if self._is_holding:
            with writing_within(self._opened(), self._path):
                return job(self._opened())

        def run() -> T:
            with writing(self._opened(), self._path):
                result = job(self._opened())
                revision, _, digest = tables.read_store(self._opened())
            self._mark.note(reached_by(revision, digest))
            return result

        return await asyncio.wrap_future(self._executor.submit(run))

    async def data_version(self) -> int:
        """Another number whenever another connection has committed."""

        def run() -> int:
            with sqlite_errors(self._path):
                return int(self._opened().execute("PRAGMA data_version").fetchone()[0])

        return await asyncio.wrap_future(self._executor.submit(run))

    async def sync_mark(self) -> None:
        await asyncio.wrap_future(self._executor.submit(self._mark.sync))

    async def close(self) -> None:
        def end() -> None:
            self._mark.close()
            if self._connection is not None:
                if self._is_holding:
                    roll_back(self._connection)
                self._connection.close()

        with suppress(Closed):
            await asyncio.wrap_future(self._executor.submit(end))
        await asyncio.to_thread(self._executor.close)

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise Closed(f"{self._path} was not opened")
        return self._connection


class SqliteMetastore:
    """Made by `SqliteMetastore.open`; belongs to the event loop that opened it. Durations are by `clock`."""

    def __init__(self, path: str, clock: Clock, reader: _Worker, writer: _Worker | None, *, held: bool = False) -> None:
        self._path = path
        self._committed = reader
        self._reader = writer if held and writer is not None else reader
        self._writer_or_none = writer
        self._leases = LeaseWatcher(clock)
        self._process = os.getpid()
        self._closed = False
        self._changed = asyncio.Event()
        self._poke = asyncio.Event()
        self._watching = 0
        self._poller = asyncio.get_running_loop().create_task(self._poll(), name=f"poll {path}")

    @classmethod
    async def open(
        cls, path: str | os.PathLike[str], clock: Clock, *, read_only: bool = False, held: bool = False
    ) -> SqliteMetastore:
        """The metastore in this file, made if it is not there; its directory too. Read-only, it must be there: whatever
        changes it raises PermissionDenied, and leases that run out are left to others. `held`: what is written to one
        that was there is seen here, and is in the file only after `settle`; closed before, the file stays as it was.

        Raises Corruption, UnsupportedFormat (a newer release wrote it), PermissionDenied: nothing was changed.
        """
        place = os.path.abspath(path)
        mark = mark_of(place)
        workers = [_Worker(place, mark)] if read_only else [_Worker(place, mark), _Worker(place, mark)]
        try:
            carries = await workers[-1].prepare(read_only=read_only, held=held)
            # SQLite writes its log into the file when the last connection is closed, if that may write. One that has
            # read nothing yet does not count: so this one, which may not write and is closed last, reads at once.
            await workers[0].open(read_only=read_only or held)
            if held:
                await workers[0].read(lambda db: db.execute("SELECT count(*) FROM sqlite_master").fetchone())
            if not read_only:
                await workers[1].open(read_only=False)
                if held:
                    await workers[1].hold(carries=carries)
        except BaseException:
            for worker in reversed(workers):
                await worker.close()
            raise
        return cls(place, clock, workers[0], None if read_only else workers[1], held=held)

    async def settle(self) -> None:
        """Of one that was opened `held`: what was written so far is in the file, and from now on what is written."""
        self._check_open()
        await self._writer().settle()
        self._reader = self._committed

    async def get(self, key: str, revision: Revision | None = None) -> Entry | None:
        self._check_open()
        key_bytes(key)
        check_read_request(None, revision)
        return await self._reader.read(lambda db: tables.read_one(db, key, revision))

    async def range(
        self, prefix: str, *, start: str | None = None, limit: int | None = None, revision: Revision | None = None
    ) -> RangeRead:
        self._check_open()
        prefix_bytes(prefix)
        prefix_bytes(start or "")
        check_read_request(limit, revision)
        return await self._reader.read(lambda db: tables.read_range(db, prefix, start, limit, revision))

    async def txn(self, compares: Sequence[Compare], changes: Sequence[Change]) -> TxnOutcome:
        self._check_open()
        check_txn_request(compares, changes)
        asked = (tuple(compares), tuple(changes))
        if not changes:
            return await self._reader.read(lambda db: tables.run_txn(db, *asked))
        outcome = await self._writer().write(lambda db: tables.run_txn(db, *asked))
        self._wake()
        return outcome

    def watch(self, prefix: str, from_revision: Revision) -> SqliteWatch:
        return SqliteWatch(self, prefix, from_revision)

    async def grant(self, ttl_s: float) -> LeaseId:
        self._check_open()
        check_ttl(ttl_s)
        ttl_ms = ceil(ttl_s * _MS_PER_S)
        lease = await self._writer().write(lambda db: tables.add_lease(db, ttl_ms))
        self._see(tables.LeaseRow(lease, ttl_ms, renewals=0, elapsed_ms=0))
        return lease

    async def keep_alive(self, lease: LeaseId) -> float:
        self._check_open()
        row = await self._writer().write(lambda db: tables.renew_lease(db, lease))
        self._see(row)
        return row.ttl_ms / _MS_PER_S

    async def revoke(self, lease: LeaseId) -> None:
        self._check_open()
        await self._writer().write(lambda db: tables.end_lease(db, lease))
        self._wake()

    async def compact(self, revision: Revision) -> None:
        """In many small transactions, between which others go on."""
        self._check_open()
        check_revision(revision)
        await self._writer().write(lambda db: tables.begin_compaction(db, revision))
        while await self._writer().write(tables.compact_some):
            self._check_open()

    async def close(self) -> None:
        if self._closed:
            return
        self._check_open()
        self._closed = True
        self._wake()
        self._poller.cancel()
        with suppress(asyncio.CancelledError):
            await self._poller
        is_settled = self._reader is self._committed
        if is_settled:
            await self._store_ages()
        for worker in (self._committed, self._writer_or_none) if is_settled else (self._reader, self._committed):
            if worker is not None:
                await worker.close()

    def _check_open(self) -> None:
        if self._process != os.getpid():
            raise Closed(f"{self._path} was opened by the process that this one was forked from: open it again here")
        if self._closed:
            raise Closed(f"the metastore {self._path} was closed")

    def _writer(self) -> _Worker:
        if self._writer_or_none is None:
            raise PermissionDenied(f"the metastore {self._path} was opened read-only")
        return self._writer_or_none

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _see(self, row: tables.LeaseRow) -> None:
        self._leases.see(row)
        self._poke.set()

    async def _wait_for_change(self, changed: asyncio.Event) -> None:
        """Wait until something may have changed since the event was taken."""
        self._watching += 1
        if self._watching == 1:
            self._poke.set()
        try:
            await changed.wait()
        finally:
            self._watching -= 1

    async def _poll(self) -> None:
        """Look for other processes' commits, and for leases that ran out, for as long as this is open."""
        interval_s = _POLL_S_MIN
        version = -1
        while True:
            try:
                newest = await self._committed.data_version()
                if newest != version:
                    self._leases.see_all(await self._reader.read(tables.lease_rows))
                    version = newest
                    interval_s = _POLL_S_MIN
                    self._wake()
                await self._end_leases()
                if interval_s >= self._poll_s_max() and self._writer_or_none is not None:
                    await self._writer_or_none.sync_mark()  # while nothing else is to be written
            except StelaeError:  # the watches meet it too, and tell
                self._wake()
                interval_s = _POLL_S_MAX
            interval_s = min(interval_s * _POLL_GROWTH, self._poll_s_max())
            await self._pause(interval_s)

    def _poll_s_max(self) -> float:
        return _POLL_S_MAX_WATCHED if self._watching else _POLL_S_MAX

    async def _pause(self, seconds: float) -> None:
        until_lease_s = self._leases.until_next_s()
        pause_s = seconds if until_lease_s is None else max(min(seconds, until_lease_s), _POLL_S_MIN)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._poke.wait()
        self._poke.clear()

    async def _end_leases(self) -> None:
        if self._writer_or_none is None:
            return
        for row in self._leases.run_out():
            await self._writer_or_none.write(partial(tables.end_lease, lease=row.id, renewals=row.renewals))
            self._wake()

    async def _store_ages(self) -> None:
        ages = self._leases.ages()
        if not ages or self._writer_or_none is None:
            return

        def store(db: sqlite3.Connection) -> None:
            for row, elapsed_ms in ages:
                tables.age_lease(db, row, elapsed_ms)

        with suppress(StelaeError):  # it only makes the leases longer
            await self._writer_or_none.write(store)


class SqliteWatch(BatchWatch):
    """Made by `SqliteMetastore.watch`."""

    def __init__(self, store: SqliteMetastore, prefix: str, from_revision: Revision) -> None:
        super().__init__(prefix, from_revision)
        self._store = store

    def _check_open(self) -> None:
        self._store._check_open()

    async def _read_on(self) -> None:
        changed = self._store._changed
        try:
            batches, self._next = await self._store._reader.read(
                lambda db: tables.read_batches(db, self._prefix, self._next)
            )
        except Retryable:
            await asyncio.sleep(_RETRY_S)
            return
        except Closed:
            return
        except StelaeError as error:
            self._failed = error
            return
        self._batches = batches[::-1]
        if not batches:
            await self._store._wait_for_change(changed)
