"""An embedded store as a `Backend`: the master and one server in the process of its user.

Reads and writes work on the tablets directly, on the caller's thread. Whatever concerns tables as a whole is the
master's, on its loop. Three steps are to be run by threads of their own (`flush_step`, `compact_step`, `log_step`),
each again and again while it says that there is more, and then when `on_full`, `on_grown` or `on_log` calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from threading import Condition, RLock
from typing import Any

import pyarrow as pa

from stelae.assembly.bulk import BulkJobs
from stelae.assembly.checking import StoreCheck
from stelae.assembly.closing import put_in_order
from stelae.assembly.maintenance import Maintenance
from stelae.assembly.opening import Running, StoreSettings, note_closed_log
from stelae.catalog.commands_tables import CreateTable, TableName
from stelae.catalog.objects import Table, TableProperties
from stelae.model.errors import Closed, NotCached, NotFound, StelaeError, TabletAway
from stelae.model.hybrid import pack
from stelae.model.ids import Row, TableId, Txn
from stelae.model.predicate.plan import ALL_TIME, TimeRange
from stelae.model.predicate.selectors import Selectors
from stelae.registry.spaces import spaces_of
from stelae.service.backend import Pin, Values
from stelae.service.blocks import OrderedBlock
from stelae.service.jobs import TTL_S_DEFAULT
from stelae.service.reports import CheckReport, Progress
from stelae.service.scans import ScanAsk
from stelae.service.spaces import AlterZoneAsk, SpacesAsk, SpacesInfo
from stelae.service.tables import AlterAsk, CreateAsk, TableInfo, TableStats, TabletInfo
from stelae.service.tickets import CompactionTicket, HeldTable, LoadedFile, LoadTicket
from stelae.storage.files.blocks import FragmentFile
from stelae.storage.files.handles import only_cached
from stelae.storage.read.asking import Version
from stelae.storage.shard import Shard
from stelae.storage.tablet.changes import Emptied
from stelae.tserver.reading import StorePin, TableReader
from stelae.tserver.writing import TableWriter


class EmbeddedStore:
    """A `Backend`. Made of a running store."""

    is_local = True

    def __init__(self, running: Running, settings: StoreSettings, place: str) -> None:
        self.running = running
        self.place = place
        self._loop = running.world.loop
        self._server = running.server
        self._shard: Shard = running.server.shard
        schemas = running.catalog.schemas
        self._writer = TableWriter(
            running.server, schemas.of, running.world.clock, settings.overload_wait_s, self._call_for_flush
        )
        self._reader = TableReader(self._shard, running.world.clock, self._check_open)
        self._upkeep = Maintenance(running)
        self._bulk = BulkJobs(running, place, lambda info, now: self._upkeep.move_horizon(info, now, self._check_open))
        self._infos: dict[TableId, TableInfo] = {}
        self._closing = RLock()
        self._closed = False
        self._visits = Condition()
        self._visiting = 0
        self.is_forked = False
        self._full_bytes = settings.shard.serializer.seal_bytes // 2
        self.on_full: Callable[[], None] = _nothing
        self.on_grown: Callable[[], None] = _nothing
        self.on_log: Callable[[], None] = _nothing

    def _check_open(self) -> None:
        if self.is_forked:
            raise Closed(
                f"the store {self.place} was opened before this process was forked, and cannot be used here: open it "
                "again in this process, which attaches to the one that has it"
            )
        if self._closed:
            raise Closed(f"the store {self.place} is closed")

    def _call_for_flush(self) -> None:
        self.on_full()

    # -- steps

    def flush_step(self) -> bool:
        return self.running.keeper.flush_step()

    def compact_step(self) -> bool:
        if self.running.keeper.compact_step():
            return True
        self._bulk.expire()
        if self.running.master.has_work:
            self._loop.run(self.running.master.tend())
        return False

    def log_step(self) -> bool:
        self._shard.drain()
        return False

    @contextmanager
    def _visit(self, table: TableId | None = None) -> Iterator[None]:
        """Something that closing waits for. A tablet that went away meanwhile is explained by what became of it."""
        with self._visits:
            self._check_open()
            self._visiting += 1
        try:
            yield
        except TabletAway as error:
            raise (error if table is None else self._explained(table, error)) from None
        finally:
            with self._visits:
                self._visiting -= 1
                self._visits.notify_all()
            self.on_grown()  # whatever was done, there may be something to do about it

    # -- names and schemas

    def _info(self, table: Table) -> TableInfo:
        catalog, known = self.running.catalog.latest, self._infos.get(table.id)
        name, zone = catalog.qualified_name(table), catalog.zones[table.zone].name
        if known is None or known.table is not table or (known.name, known.zone) != (name, zone):
            known = TableInfo(table, name, zone)
            self._infos[table.id] = known
        return known

    def find(self, name: str) -> TableInfo:
        self._check_open()
        parsed = TableName.parse(name)
        return self._info(self.running.catalog.latest.table(parsed.namespace, parsed.name))

    def info(self, table: TableId) -> TableInfo:
        self._check_open()
        found = self.running.catalog.latest.tables.get(table)
        if found is None:
            known = self._infos.get(table)
            raise NotFound(f"table {known.name if known else table!r} was dropped")
        return self._info(found)

    def names(self) -> tuple[str, ...]:
        self._check_open()
        catalog = self.running.catalog.latest
        return tuple(sorted(catalog.qualified_name(table) for table in catalog.tables.values()))

    def create(self, ask: CreateAsk) -> TableInfo:
        properties = TableProperties() if ask.properties is None else ask.properties
        command = CreateTable(TableName.parse(ask.name), ask.schema, ask.zone, properties, ask.if_not_exists)
        with self._visit():
            return self._info(self._loop.run(self.running.master.create(command, ask.cuts)))

    def alter(self, name: str, ask: AlterAsk) -> TableInfo:
        with self._visit():
            return self._info(self._loop.run(self.running.master.alter(TableName.parse(name), ask)))

    def drop(self, name: str, *, if_exists: bool = False) -> None:
        with self._visit():
            self._loop.run(self.running.master.drop(TableName.parse(name), if_exists=if_exists))
            self.running.keeper.garbage_left()

    def recall(self, name: str, new_name: str | None = None) -> TableInfo:
        with self._visit():
            return self._info(self._loop.run(self.running.master.recall(TableName.parse(name), new_name)))

    def truncate(self, table: TableId) -> Txn:
        with self._visit(table):
            commit = self._server.upkeep.commit(table, Emptied())
            self._shard.drain()
            txn = commit.durable.result()
            self._server.upkeep.save()
            self.running.keeper.grew(state.tablet for state in self._shard.of_table(table))
            return txn

    def spaces(self) -> SpacesInfo:
        self._check_open()
        return spaces_of(self.running.catalog.latest)

    def change_spaces(self, ask: SpacesAsk) -> SpacesInfo:
        with self._visit():
            found = spaces_of(self._loop.run(self.running.master.change_spaces(ask)))
            if isinstance(ask, AlterZoneAsk):  # tablets may be too large now, or too small
                self.running.keeper.grew(self._shard.tablets())
            return found

    # -- writing

    def write(self, table: TableId, blocks: Sequence[OrderedBlock], max_txn: Txn | None = None) -> Txn:
        self._check_open()
        try:
            txn = self._writer.write(table, blocks, max_txn)
        except (TabletAway, Closed) as error:
            raise self._explained(table, error) from None
        if self._shard.unflushed_bytes() > self._full_bytes:
            self.on_full()
        return txn

    def submit(self, table: TableId, blocks: Sequence[OrderedBlock], max_txn: Txn | None = None) -> Future[Txn]:
        self._check_open()
        try:
            future = self._writer.submit(table, blocks, max_txn)
        except (TabletAway, Closed) as error:
            future = Future()
            future.set_exception(self._explained(table, error))
            return future
        self.on_log()
        if self._shard.unflushed_bytes() > self._full_bytes:
            self.on_full()
        return future

    def _explained(self, table: TableId, error: StelaeError) -> StelaeError:
        """A tablet that is not here: the table was dropped, or the store closed, or it is on its way."""
        try:
            self.info(table)
        except StelaeError as reason:
            return reason
        return error

    # -- reading

    @property
    def visible(self) -> Txn:
        return self._shard.visible

    def now(self) -> Txn:
        """As late as the clock says, if nothing is on its way: what is purged by its age is gone then."""
        self._check_open()
        shard = self._shard
        wall = pack(self.running.world.clock.wall_ms())
        if wall > shard.visible:
            shard.ready(wall)
        return shard.visible

    def newest(self, table: TableId, row: Row, columns: Selectors, at: Txn | None = None) -> Values | None:
        if self._closed or self.is_forked:
            self._check_open()
        try:
            return self._reader.newest(table, row, columns, at)
        except TabletAway as error:
            raise self._explained(table, error) from None

    def newest_cached(self, table: TableId, row: Row, columns: Selectors, at: Txn | None = None) -> Values | None:
        with only_cached():
            if at is not None and at > self._shard.visible:
                raise NotCached("the snapshot is not there yet")
            return self.newest(table, row, columns, at)

    def newest_many(
        self, table: TableId, rows: Sequence[Row], columns: Selectors, at: Txn | None = None
    ) -> list[Values | None]:
        self._check_open()
        try:
            return self._reader.newest_many(table, rows, columns, at)
        except TabletAway as error:
            raise self._explained(table, error) from None

    def history(
        self,
        table: TableId,
        row: Row,
        columns: Selectors,
        limit: int,
        at: Txn | None = None,
        time: TimeRange = ALL_TIME,
    ) -> dict[str, tuple[Version, ...]] | None:
        self._check_open()
        try:
            return self._reader.history(table, row, columns, limit, at, time)
        except TabletAway as error:
            raise self._explained(table, error) from None

    def scan(self, table: TableId, ask: ScanAsk) -> Iterator[pa.RecordBatch]:
        return self._reader.scan(table, self.info(table).schema, ask, partial(self._explained, table))

    def pin(self, at: Txn | None = None) -> Pin:
        self._check_open()
        with self._shard.lock:
            txn = self.now() if at is None else at
            for table in self.running.catalog.latest.tables if at is not None else ():
                self._shard.check_snapshot(table, txn)
            return StorePin(txn, self._shard.pinned(txn))

    # -- upkeep

    def flush(self, table: TableId) -> None:
        with self._visit(table):
            self._upkeep.flush(self.info(table))

    def compact(self, table: TableId, *, erase_now: bool = False, progress: Progress | None = None) -> None:
        with self._visit(table):
            self._upkeep.compact(self.info(table), erase_now, progress, self._check_open)

    def split(self, table: TableId, at: Row | None = None, tablet: int | None = None) -> None:
        with self._visit(table):
            self._upkeep.split(self.info(table), at, tablet)

    def join(self, table: TableId, at: Row) -> None:
        with self._visit(table):
            self._upkeep.join(self.info(table), at)

    def tablets(self, table: TableId) -> tuple[TabletInfo, ...]:
        return self._upkeep.tablets(self.info(table).id)

    def stats(self, table: TableId) -> TableStats:
        return self._upkeep.stats(self.info(table).id)

    def metrics(self) -> Mapping[str, Any]:
        self._check_open()
        return self._upkeep.metrics()

    def check(self, progress: Progress | None = None) -> CheckReport:
        with self._visit():
            return StoreCheck(self.running).run(progress)

    # -- jobs that move much data

    def hold(self, table: TableId, at: Txn | None = None, ttl_s: float = TTL_S_DEFAULT) -> HeldTable:
        with self._visit(table):
            txn = self.now() if at is None else at
            self._reader.ready(table, txn)
            return self._bulk.hold(self.info(table), txn, ttl_s)

    def renew(self, ticket: str, ttl_s: float = TTL_S_DEFAULT) -> None:
        with self._visit():
            self._bulk.renew(ticket, ttl_s)

    def release(self, ticket: str) -> None:
        with self._visit():
            self._bulk.release(ticket)

    def begin_load(self, table: TableId, job: str, batch: int = 0, ttl_s: float = TTL_S_DEFAULT) -> LoadTicket:
        with self._visit(table):
            return self._bulk.begin_load(self.info(table), job, batch, ttl_s)

    def commit_load(self, ticket: str, files: Sequence[LoadedFile], *, replaces: bool = False) -> Txn:
        with self._visit():
            return self._bulk.commit_load(ticket, files, replaces=replaces)

    def begin_compaction(
        self, table: TableId, *, full: bool = True, erase_now: bool = False, ttl_s: float = TTL_S_DEFAULT
    ) -> CompactionTicket:
        with self._visit(table):
            return self._bulk.begin_compaction(self.info(table), full=full, erase_now=erase_now, ttl_s=ttl_s)

    def adopt(self, ticket: str, number: int, file: FragmentFile | None) -> bool:
        with self._visit():
            return self._bulk.adopt(ticket, number, file)

    # -- the end

    def close(self) -> None:
        """All in files, so that opening it again reads no log. What cannot be written stays in the log."""
        with self._closing:
            if self._closed:
                return
            self._refuse_visits()
            with suppress(StelaeError):  # nothing acknowledged is lost: the log has it
                put_in_order(self.running)
            self._let_go(in_order=True)

    def abandon(self) -> None:
        """Close without putting anything in order."""
        with self._closing:
            if not self._closed:
                self._refuse_visits()
                self._let_go()

    def _refuse_visits(self) -> None:
        """Those under way come to their end."""
        with self._visits:
            self._closed = True
            self._visits.wait_for(lambda: not self._visiting)

    def _let_go(self, *, in_order: bool = False) -> None:
        try:
            if in_order:
                self._shard.close()
                with suppress(StelaeError):  # then it is not noticed if the end of the log is lost
                    self._loop.run(note_closed_log(self.running.world.metastore, self._shard.segments()))
            else:
                self._shard.abandon()
        finally:
            self._loop.run(self.running.catalog.close())


def _nothing() -> None:
    return
