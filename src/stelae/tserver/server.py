"""A shard at work: what clients ask of it (`TabletService`), what its master asks, and what it does by itself.

Reads and writes work on the tablets directly, on the caller's thread. Three steps are to be run by threads of their own
(`flush_step`, `compact_step`, `log_step`), each again and again while it says that there is more, and then when `wakes`
calls for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import RLock
from typing import Any

import pyarrow as pa

from stelae.model.errors import Closed, NotCached, StelaeError, TabletAway
from stelae.model.events import Listener, Listeners, tell_nobody
from stelae.model.hybrid import TXN_MIN
from stelae.model.ids import Row, TableId, TabletId, Txn
from stelae.model.predicate.plan import ALL_TIME, TimeRange
from stelae.model.predicate.selectors import Selectors
from stelae.model.schema import TableSchema
from stelae.registry.control import ControlRequest, DeleteTablets, TabletReport, UnloadTable
from stelae.registry.shard_records import write_horizon, write_log_mark
from stelae.service.backend import Pin, Values
from stelae.service.blocks import OrderedBlock
from stelae.service.deadlines import Deadline
from stelae.service.reports import CheckReport, Progress
from stelae.service.scans import ScanAsk
from stelae.service.tables import TableStats, TabletInfo
from stelae.storage.files.handles import only_cached
from stelae.storage.read.asking import Version
from stelae.storage.shard import Shard
from stelae.storage.upkeep.upkeep import Upkeep
from stelae.tserver.changes import ShardChanges
from stelae.tserver.checking import AtRest, StoreCheck
from stelae.tserver.control import TabletControl
from stelae.tserver.flushing import Flushing
from stelae.tserver.jobs.tickets import Tickets
from stelae.tserver.keeper import Keeper, patience
from stelae.tserver.lives import Life
from stelae.tserver.quick import QuickReader
from stelae.tserver.reading import TableReader, check_readable, now
from stelae.tserver.recovery import RecoveredShard, recover_shard
from stelae.tserver.replication.comparing import AskImages
from stelae.tserver.replication.hosting import Hosting
from stelae.tserver.short_log import end_of_log, shorten_log
from stelae.tserver.surroundings import MasterLink, ServerPorts, ServerSettings, Tables, Wakeups
from stelae.tserver.telling.troubles import FLUSH, Troubles
from stelae.tserver.upkeep import TableUpkeep
from stelae.tserver.visits import Visits
from stelae.tserver.writing import TableWriter


class TabletServer:
    """A `TabletService`. Safe for threads."""

    keeper: Keeper

    def __init__(
        self,
        ports: ServerPorts,
        tables: Tables,
        master: MasterLink,
        settings: ServerSettings,
        found: RecoveredShard,
        visits: Visits,
        tell: Listener = tell_nobody,
    ) -> None:
        self.shard: Shard = found.shard
        self.upkeep: Upkeep = found.upkeep
        self.visits = visits
        self._troubles = Troubles(found.shard, tell, found.upkeep.empty_trash)
        self._ports = ports
        self._tables = tables
        self._is_alone = settings.is_alone
        self._closing = RLock()
        self._is_closed = False
        self._full_bytes = settings.shard.serializer.seal_bytes // 2
        self.wakes = Wakeups()
        self.shard.wal.on_left = lambda: self.wakes.log()  # noqa: PLW0108 - set later, by whoever runs the steps
        store, loop, shard, upkeep = ports.metastore, ports.loop, self.shard, self.upkeep
        self.flushing = Flushing(shard, upkeep)
        self.hosting: Hosting | None = None
        if not settings.is_alone:
            me, lives, schemas_of = settings.replica, found.lives, tables.schemas_of
            wake = lambda: self.wakes.streams()  # noqa: E731, PLW0108 - set later
            expect_pins = lambda table: self.keeper.expect_pins(table)  # noqa: E731, PLW0108 - likewise
            self.hosting = Hosting(me, shard, upkeep, lives, schemas_of, wake, expect_pins)
        self.control = TabletControl(
            shard, upkeep, self.flushing, found.configs, tables.schemas_of, found.lives, found.away, self.hosting
        )
        self.control.make_meta_tables()
        self.keeper = Keeper(
            shard,
            upkeep,
            self.flushing,
            tables.rules,
            lambda table, txn: loop.run(write_horizon(store, table, txn)),
            master,
            patience(ports.clock, 0.0 if found.was_closed else settings.pins_wait_s),
            lambda: patience(ports.clock, settings.pins_wait_s),
        )
        self.changes = ShardChanges(shard, upkeep, self.keeper, self.control, tables, ports, settings)
        settle = self.changes.settle
        self._writer = TableWriter(shard, tables.schemas_of, settle, is_alone=settings.is_alone)
        self._reader = TableReader(shard, ports.clock, visits.check, settle, is_alone=settings.is_alone)
        self.quick = QuickReader(shard, ports.clock, visits.check, self._reader)
        self._by_hand = TableUpkeep(shard, upkeep, self.flushing, self.keeper, self.control, master, visits.check)
        self._tickets = tickets = Tickets(
            shard, upkeep, self.keeper, visits, self.wakes, ports, tables, settings, self._reader.ready, self._by_hand
        )
        self.hold, self.renew, self.release = tickets.hold, tickets.renew, tickets.release
        self.begin_load, self.commit_load = tickets.begin_load, tickets.commit_load
        self.begin_compaction, self.adopt = tickets.begin_compaction, tickets.adopt
        self.files_needed = tickets.files_needed

    @staticmethod
    def open(
        ports: ServerPorts,
        tables: Tables,
        master: MasterLink,
        settings: ServerSettings,
        visits: Visits | None = None,
        proved: Callable[[], None] | None = None,
        listener: Listener = tell_nobody,
    ) -> TabletServer:
        """From what lies on the metastore, the log and the files, or from nothing. Blocking: for a thread that is not
        the loop's. `visits`: those of a store that the server is part of. `proved` is called when all that was found
        has proved good, before anything is changed. `listener` hears what happens from then on."""
        tell = Listeners(listener)
        found = recover_shard(ports, tables, settings, tell, proved or (lambda: None))
        try:
            visits = visits or Visits(settings.place, tables.info)
            return TabletServer(ports, tables, master, settings, found, visits, tell)
        except BaseException:
            found.shard.abandon()
            raise

    # -- what the master asks

    @property
    def name(self) -> str:
        return self.shard.name

    def ask(self, request: ControlRequest, check: Callable[[], None] | None = None) -> TabletReport:
        report = self.control.ask(request, check)
        if isinstance(request, DeleteTablets | UnloadTable):
            self.keeper.note_garbage()
        self.wakes.grown()  # whatever was done, there may be something to do about it
        return report

    def report(self, table: TableId | None = None) -> TabletReport:
        return self.control.report(table)

    def life(self, tablet: TabletId) -> Life:
        return self.control.life(tablet)

    def choose_split(
        self,
        table: TableId,
        at: Row | None,
        tablet: int | None,
        deadline: Deadline | None = None,  # noqa: ARG002 - it never waits
    ) -> tuple[TabletId, Row]:
        """Which tablet to split and where: the one that holds the row; or this one, or the largest, at the row that
        halves it."""
        with self.visits.visit(table):
            return self._by_hand.choose_split(self.visits.info(table), at, tablet)

    def look_at_sizes(self) -> None:
        """See whether tablets are to be split or joined: how large they should be may have changed."""
        self.keeper.note_growth(self.shard.tablets())
        self.wakes.grown()

    # -- steps

    def flush_step(self) -> bool:
        with self._troubles.watch(FLUSH):
            return self.keeper.flush_step()

    def compact_step(self) -> bool:
        with self._troubles.watch("a compaction"):
            if self.keeper.compact_step():
                return True
            self._tickets.expire()
            self.changes.tend()
            return False

    def log_step(self) -> bool:
        with self._troubles.watch("the log"):
            self.shard.drain_all()
        return False

    # -- writing

    def write(
        self,
        table: TableId,
        blocks: Sequence[OrderedBlock],
        max_txn: Txn | None = None,
        *,
        must_show: bool = False,
        deadline: Deadline | None = None,
    ) -> Txn:
        if self.visits.is_over:
            self.visits.check()
        try:
            txn = self._writer.write(table, blocks, max_txn, must_show, deadline)
        except (TabletAway, Closed) as error:
            raise self.visits.explained(table, error) from None
        except StelaeError as error:
            raise self._troubles.tell_refused(error) from error.__cause__
        self._troubles.is_full = self._troubles.is_log_refused = False
        if self.shard.unflushed_bytes() > self._full_bytes:
            self.wakes.full()
        return txn

    def submit(
        self,
        table: TableId,
        blocks: Sequence[OrderedBlock],
        max_txn: Txn | None = None,
        *,
        must_show: bool = False,
        deadline: Deadline | None = None,
    ) -> Future[Txn]:
        self.visits.check()
        try:
            future = self._writer.submit(table, blocks, max_txn, must_show, deadline)
        except (TabletAway, Closed) as error:
            future = Future()
            future.set_exception(self.visits.explained(table, error))
            return future
        if future.done() and (refused := future.exception()) is not None:
            future = self._troubles.refuse(refused)
        self.wakes.log()
        if self.shard.unflushed_bytes() > self._full_bytes:
            self.wakes.full()
        return future

    def wait_for_room(self, seconds: float) -> None:
        self.visits.check()
        until = Deadline(self._ports.clock, seconds)
        room = self.shard.when_room()  # asked for before anything can make it
        self.shard.drain(until)
        self.wakes.full()
        with suppress(TimeoutError):
            room.result(until.left_s)

    def truncate(self, table: TableId, *, deadline: Deadline | None = None) -> Txn:
        with self.visits.visit(table):
            txn = self._by_hand.truncate(table, deadline)
        self.wakes.grown()
        return txn

    # -- reading

    def now(self, table: TableId | None = None, *, deadline: Deadline | None = None) -> Txn:  # noqa: ARG002
        self.visits.check()
        heard = TXN_MIN if self._is_alone else self.shard.clock.heard
        return now(self.shard, self._ports.clock.wall_ms(), heard)

    def newest(
        self,
        table: TableId,
        row: Row,
        columns: Selectors,
        at: Txn | None = None,
        *,
        deadline: Deadline | None = None,
    ) -> tuple[Txn, Values | None]:
        if self.visits.is_over:
            self.visits.check()
        try:
            return self._reader.newest(table, row, columns, at, deadline)
        except TabletAway as error:
            raise self.visits.explained(table, error) from None

    def newest_cached(
        self, table: TableId, row: Row, columns: Selectors, at: Txn | None = None
    ) -> tuple[Txn, Values | None]:
        with only_cached():
            if at is not None and at > self.shard.visible:
                raise NotCached("the snapshot is not there yet")
            return self.newest(table, row, columns, at)

    def newest_many(
        self,
        table: TableId,
        rows: Sequence[Row],
        columns: Selectors,
        at: Txn | None = None,
        *,
        deadline: Deadline | None = None,
    ) -> tuple[Txn, list[Values | None]]:
        self.visits.check()
        try:
            return self._reader.newest_many(table, rows, columns, at, deadline)
        except TabletAway as error:
            raise self.visits.explained(table, error) from None

    def history(
        self,
        table: TableId,
        row: Row,
        columns: Selectors,
        limit: int,
        at: Txn | None = None,
        time: TimeRange = ALL_TIME,
        *,
        deadline: Deadline | None = None,
    ) -> dict[str, tuple[Version, ...]] | None:
        self.visits.check()
        try:
            return self._reader.history(table, row, columns, limit, at, time, deadline)
        except TabletAway as error:
            raise self.visits.explained(table, error) from None

    def scan(self, table: TableId, ask: ScanAsk, *, deadline: Deadline | None = None) -> Iterator[pa.RecordBatch]:
        self.visits.check()
        return self._reader.scan(table, ask, self._schema_now, self.visits.explained, deadline)

    def _schema_now(self, table: TableId) -> TableSchema:
        return self.visits.info(table).schema

    def pin(self, at: Txn | None = None, table: TableId | None = None, *, deadline: Deadline | None = None) -> Pin:  # noqa: ARG002
        self.visits.check()
        with self.shard.lock:
            if at is not None:
                check_readable(self.shard, self._tables.ids(), at)
            return self.shard.pin(self.now(deadline=deadline) if at is None else at)

    # -- upkeep by hand: as long as it takes

    def flush(self, table: TableId, *, deadline: Deadline | None = None) -> None:  # noqa: ARG002
        with self.visits.visit(table):
            self._by_hand.flush(self.visits.info(table).id)
        self.wakes.grown()

    def compact(
        self,
        table: TableId,
        *,
        erase_now: bool = False,
        progress: Progress | None = None,
        deadline: Deadline | None = None,
    ) -> tuple[str, ...]:
        with self.visits.visit(table):
            boundaries = self._tickets.erased_boundaries(table) if erase_now else ()
            self._by_hand.compact(self.visits.info(table), erase_now, progress, deadline)
            return (*self._tickets.kept_by(table), *boundaries) if erase_now else ()

    def tablets(self, table: TableId, *, deadline: Deadline | None = None) -> tuple[TabletInfo, ...]:  # noqa: ARG002
        return self._by_hand.tablets(self.visits.info(table).id)

    def stats(self, table: TableId, *, deadline: Deadline | None = None) -> TableStats:  # noqa: ARG002
        return self._by_hand.stats(self.visits.info(table).id)

    def metrics(self) -> Mapping[str, Any]:
        """Numbers about the shard, by name."""
        self.visits.check()
        return self._by_hand.metrics()

    def check(
        self, tables_at_rest: AtRest, progress: Progress | None = None, ask_images: AskImages | None = None
    ) -> CheckReport:
        """Read everything and say what is wrong; `tables_at_rest` says what the master has recorded, `ask_images` what
        others have of the tablets that are led here."""
        with self.visits.visit():
            known = (self.shard, self.upkeep, self._ports.logs, self._tables, self.life, tables_at_rest)
            server = None if self._is_alone else self.name
            return StoreCheck(*known, self.control.away, server, self.hosting, ask_images).run(progress)

    # -- the end

    def close(self, forget_schemas: Callable[[], None] | None = None) -> None:
        """All in files, so that opening it again reads no log. What cannot be written stays in the log. Closing twice
        is no error. `forget_schemas`: see `shorten_log`."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            self.visits.end()
            with suppress(StelaeError):  # nothing acknowledged is lost: the log has it
                shorten_log(self.shard, self.upkeep, self.flushing, forget_schemas)
            self.shard.close()
            with suppress(StelaeError):  # then it is not noticed if the end of the log is lost
                self._ports.loop.run(write_log_mark(self._ports.metastore, end_of_log(self.shard)))

    def abandon(self) -> None:
        """Close without putting anything in order."""
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                self.visits.end()
                self.shard.abandon()
