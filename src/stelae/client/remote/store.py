"""A store that another process has: the same interface, over connections to that process.

    store = RemoteStore(connector, executor, hello, clock)

A call takes a connection, asks, waits for the answer and gives the connection back (`asking`); a scan keeps one until
it ends, and all pins share one. In a cluster, what is asked of tables as a whole goes to a master, the rest to a shard.
Connections are opened when they are needed, and bounded in number. What is asked and answered, and what may be
repeated, is in the table of operations (`service.operations`). What the owner raises is raised here. When
the owner is gone, what is safe to repeat raises ConnectionLost, as does what was never sent; anything else that was
sent raises UnknownOutcome. The next call connects anew: to whoever has the store by then.

Nothing is cached here, so `newest_cached` always raises NotCached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import chain
from typing import Any, ParamSpec, TypeVar

from stelae.client.remote.asking import Asker
from stelae.client.remote.changes import ChangesUnderWay
from stelae.client.remote.lines import DEFAULT_LINE_SETTINGS, Lines, LineSettings
from stelae.client.remote.on_loop import RemoteRowsOnLoop
from stelae.client.remote.pins import RemotePin, RemotePins
from stelae.client.remote.reads import row_groups
from stelae.client.remote.scans import RemoteScan
from stelae.client.remote.writes import WriteGroup, write_groups, write_in_order
from stelae.format.fragment.footer import FragmentFile
from stelae.model.errors import NotCached
from stelae.model.ids import Row, TableId, Txn
from stelae.model.predicate.plan import ALL_TIME, TimeRange
from stelae.model.predicate.selectors import Selectors
from stelae.ports.blocking import BlockingConnector
from stelae.ports.clock import Clock
from stelae.ports.executor import Executor
from stelae.registry.peers import Peer
from stelae.service import job_operations as jobs
from stelae.service import operations as ops
from stelae.service.backend import Values
from stelae.service.blocks import OrderedBlock
from stelae.service.deadlines import Deadline
from stelae.service.jobs import TTL_S_DEFAULT
from stelae.service.operations import Operation
from stelae.service.reports import CheckReport, Progress
from stelae.service.scans import ScanAsk
from stelae.service.spaces import SpacesAsk, SpacesInfo
from stelae.service.tables import AlterAsk, CreateAsk, TableInfo, TableStats, TabletInfo
from stelae.service.tickets import CompactionTicket, HeldTable, LoadedFile, LoadTicket
from stelae.storage.read.asking import Version
from stelae.wire.faults import ProtocolError
from stelae.wire.handshake import Introduction
from stelae.wire.hello import Hello

P = ParamSpec("P")
R = TypeVar("R")


class RemoteStore:
    """A `Backend`. `executor` runs what is submitted. `hello` says who attaches, and to which store. A call without a
    deadline has that of `settings.answer_s`. `tables`: asks about tables as a whole, if that is another process than
    the one that has the rows. `besides`: whatever else is asked, which ends with this. `open_peer`: connects the
    running event loop to the one that has the rows. Safe for threads; not after a fork: attach again in the child."""

    is_local = False

    def __init__(
        self,
        connector: BlockingConnector,
        executor: Executor,
        hello: Hello | Introduction,
        clock: Clock,
        settings: LineSettings = DEFAULT_LINE_SETTINGS,
        *,
        tables: Asker | None = None,
        besides: Sequence[Asker] = (),
        open_peer: Callable[[], Peer] | None = None,
    ) -> None:
        self.place = connector.address
        self._open_peer = open_peer
        self._executor = executor
        self._rows = Asker(connector, hello, clock, settings)
        self._tables = self._rows if tables is None else tables
        self._besides = besides
        self._lines = self._rows.lines
        self._pins = RemotePins(self._lines, clock)
        self._changes = ChangesUnderWay(self.place)

    @property
    def connections(self) -> int:
        """How many are open now."""
        return sum(lines.count for lines in self._all_lines())

    @property
    def connections_made(self) -> int:
        """How many were ever open."""
        return sum(lines.made for lines in self._all_lines())

    def attach(self, deadline: Deadline | None = None) -> None:
        """Connect, if no connection is open: ConnectionLost if nobody has the rows, or nobody answers."""
        self._lines.give(self._lines.take(self._rows.until(deadline)))

    def _all_lines(self) -> list[Lines]:
        return list(dict.fromkeys(each.lines for each in (self._rows, self._tables, *self._besides)))

    def abandon(self, why: str) -> None:
        """From here on everything raises Closed with these words, and nothing of it is touched: for a forked child."""
        self._changes.abandoned = why
        for lines in self._all_lines():
            lines.abandon()
        self._pins.abandon()

    def close(self) -> None:
        if self._changes.abandoned is not None:
            return
        self._changes.close()
        for lines in self._all_lines():
            lines.close()

    def open_rows(self) -> RemoteRowsOnLoop | None:
        """For the tasks of the running event loop; None if it has no way to the store but threads."""
        if self._open_peer is None:
            return None
        return RemoteRowsOnLoop(self._open_peer(), self._changes.check, self._changes.counted)

    # -- tables

    def find(self, name: str, *, deadline: Deadline | None = None) -> TableInfo:
        return self._ask_tables(ops.FIND, deadline, name)

    def info(self, table: TableId, *, deadline: Deadline | None = None) -> TableInfo:
        return self._ask(ops.INFO, deadline, table)

    def names(self, *, deadline: Deadline | None = None) -> tuple[str, ...]:
        return self._ask_tables(ops.NAMES, deadline)

    def spaces(self, *, deadline: Deadline | None = None) -> SpacesInfo:
        return self._ask_tables(ops.SPACES, deadline)

    def change_spaces(self, ask: SpacesAsk, *, deadline: Deadline | None = None) -> SpacesInfo:
        return self._ask_tables(ops.CHANGE_SPACES, deadline, ask)

    def create(self, ask: CreateAsk, *, deadline: Deadline | None = None) -> TableInfo:
        return self._ask_tables(ops.CREATE, deadline, ask)

    def alter(self, name: str, ask: AlterAsk, *, deadline: Deadline | None = None) -> TableInfo:
        return self._ask_tables(ops.ALTER, deadline, name, ask)

    def drop(self, name: str, *, if_exists: bool = False, deadline: Deadline | None = None) -> None:
        self._ask_tables(ops.DROP, deadline, name, if_exists)

    def recall(self, name: str, new_name: str | None = None, *, deadline: Deadline | None = None) -> TableInfo:
        return self._ask_tables(ops.RECALL, deadline, name, new_name)

    def split(
        self, table: TableId, at: Row | None = None, tablet: int | None = None, *, deadline: Deadline | None = None
    ) -> None:
        self._ask_tables(ops.SPLIT, deadline, table, at, tablet)

    def join(self, table: TableId, at: Row, *, deadline: Deadline | None = None) -> None:
        self._ask_tables(ops.JOIN, deadline, table, at)

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
        with self._changes.counted():
            return self._write(write_groups(table, blocks, max_txn, must_show), self._rows.until(deadline))

    def _write(self, groups: Iterator[WriteGroup], deadline: Deadline) -> Txn:
        def write_group(group: WriteGroup) -> Txn:
            self._changes.check()
            return self._rows.receive(ops.WRITE, group.message, group.body, deadline)

        return write_in_order(groups, write_group)

    def submit(
        self,
        table: TableId,
        blocks: Sequence[OrderedBlock],
        max_txn: Txn | None = None,
        *,
        must_show: bool = False,
        deadline: Deadline | None = None,
    ) -> Future[Txn]:
        self._changes.begin()
        try:
            groups = write_groups(table, blocks, max_txn, must_show)
            future = self._executor.submit(self._write, groups, self._rows.until(deadline))
        except BaseException:
            self._changes.end()
            raise
        future.add_done_callback(lambda _: self._changes.end())
        return future

    def wait_for_room(self, seconds: float) -> None:
        """How the owner fares is not known here: it is asked again after that time."""
        self._changes.ended.wait(seconds)

    def truncate(self, table: TableId, *, deadline: Deadline | None = None) -> Txn:
        return self._ask(ops.TRUNCATE, deadline, table)

    # -- reading

    def now(self, *, deadline: Deadline | None = None) -> Txn:
        return self._ask(ops.NOW, deadline)

    def newest(
        self, table: TableId, row: Row, columns: Selectors, at: Txn | None = None, *, deadline: Deadline | None = None
    ) -> tuple[Txn, Values | None]:
        return self._ask(ops.NEWEST, deadline, table, row, columns, at)

    def newest_cached(
        self,
        table: TableId,
        row: Row,
        columns: Selectors,  # noqa: ARG002 - the interface's
        at: Txn | None = None,  # noqa: ARG002
    ) -> tuple[Txn, Values | None]:
        raise NotCached(f"row {row!r} of table {table}: nothing is cached of {self.place}: another process has it")

    def newest_many(
        self,
        table: TableId,
        rows: Sequence[Row],
        columns: Selectors,
        at: Txn | None = None,
        *,
        deadline: Deadline | None = None,
    ) -> tuple[Txn, list[Values | None]]:
        until = self._rows.until(deadline)
        groups = list(row_groups(rows))
        if len(groups) < 2:
            return self._newest_group(table, rows, columns, at, until)
        if at is not None:
            found = [self._newest_group(table, group, columns, at, until)[1] for group in groups]
            return at, list(chain.from_iterable(found))
        pin = self.pin(deadline=until)
        try:
            return self.newest_many(table, rows, columns, pin.txn, deadline=until)
        finally:
            pin.close()

    def _newest_group(
        self, table: TableId, rows: Sequence[Row], columns: Selectors, at: Txn | None, deadline: Deadline
    ) -> tuple[Txn, list[Values | None]]:
        txn, found = self._ask(ops.NEWEST_MANY, deadline, table, rows, columns, at)
        if len(found) != len(rows):
            raise ProtocolError(f"{self.place}: values of {len(found)} rows, where {len(rows)} were asked for")
        return txn, found

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
        return self._ask(ops.HISTORY, deadline, table, row, columns, limit, at, time)

    def scan(self, table: TableId, ask: ScanAsk, *, deadline: Deadline | None = None) -> RemoteScan:
        self._changes.check()
        message, body = ops.SCAN.ask(table, ask)
        until = self._rows.until(deadline)
        return RemoteScan(self._rows.open_stream(ops.SCAN, message, body, until, each_anew=True))

    def pin(self, at: Txn | None = None, *, deadline: Deadline | None = None) -> RemotePin:
        self._changes.check()
        return self._pins.pin(at, self._rows.until(deadline))

    # -- upkeep

    def flush(self, table: TableId, *, deadline: Deadline | None = None) -> None:
        self._ask(ops.FLUSH, deadline, table)

    def compact(
        self,
        table: TableId,
        *,
        erase_now: bool = False,
        progress: Progress | None = None,
        deadline: Deadline | None = None,
    ) -> tuple[str, ...]:
        return self._watch(ops.COMPACT, deadline, progress, table, erase_now)

    def tablets(self, table: TableId, *, deadline: Deadline | None = None) -> tuple[TabletInfo, ...]:
        return self._ask(ops.TABLETS, deadline, table)

    def stats(self, table: TableId, *, deadline: Deadline | None = None) -> TableStats:
        return self._ask(ops.STATS, deadline, table)

    def metrics(self, *, deadline: Deadline | None = None) -> Mapping[str, Any]:
        return self._ask(ops.METRICS, deadline)

    def check(self, progress: Progress | None = None, *, deadline: Deadline | None = None) -> CheckReport:
        return self._watch(ops.CHECK, deadline, progress)

    # -- jobs

    def hold(
        self, table: TableId, at: Txn | None = None, ttl_s: float = TTL_S_DEFAULT, *, deadline: Deadline | None = None
    ) -> HeldTable:
        return self._ask(jobs.HOLD, deadline, table, at, ttl_s)

    def renew(self, ticket: str, ttl_s: float = TTL_S_DEFAULT, *, deadline: Deadline | None = None) -> None:
        self._ask(jobs.RENEW, deadline, ticket, ttl_s)

    def release(self, ticket: str, *, deadline: Deadline | None = None) -> None:
        self._ask(jobs.RELEASE, deadline, ticket)

    def begin_load(
        self,
        table: TableId,
        job: str,
        batch: int = 0,
        ttl_s: float = TTL_S_DEFAULT,
        *,
        deadline: Deadline | None = None,
    ) -> LoadTicket:
        return self._ask(jobs.BEGIN_LOAD, deadline, table, job, batch, ttl_s)

    def commit_load(
        self, ticket: str, files: Sequence[LoadedFile], *, replaces: bool = False, deadline: Deadline | None = None
    ) -> Txn:
        return self._ask(jobs.COMMIT_LOAD, deadline, ticket, files, replaces)

    def begin_compaction(
        self,
        table: TableId,
        *,
        full: bool = True,
        erase_now: bool = False,
        ttl_s: float = TTL_S_DEFAULT,
        deadline: Deadline | None = None,
    ) -> CompactionTicket:
        return self._ask(jobs.BEGIN_COMPACTION, deadline, table, full, erase_now, ttl_s)

    def adopt(self, ticket: str, number: int, file: FragmentFile | None, *, deadline: Deadline | None = None) -> bool:
        return self._ask(jobs.ADOPT, deadline, ticket, number, file)

    # -- inside

    def _ask(self, operation: Operation[P, R], deadline: Deadline | None, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._watch(operation, deadline, None, *args, **kwargs)

    def _watch(
        self,
        operation: Operation[P, R],
        deadline: Deadline | None,
        progress: Progress | None,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        if operation.changes:
            with self._changes.counted():
                return self._rows.watch(operation, deadline, progress, *args, **kwargs)
        self._changes.check()
        return self._rows.watch(operation, deadline, progress, *args, **kwargs)

    def _ask_tables(
        self, operation: Operation[P, R], deadline: Deadline | None, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        if operation.changes:
            with self._changes.counted():
                return self._tables.ask(operation, deadline, *args, **kwargs)
        self._changes.check()
        return self._tables.ask(operation, deadline, *args, **kwargs)
