"""Rows, files and snapshots that one other process has, over connections to it.

A call takes a connection, asks, waits for the answer and gives the connection back (`asking`); a scan keeps one until
it ends, and all pins share one. Connections are opened when they are needed, and bounded in number. What is asked and
answered, and what may be repeated, is in the table of operations (`service.operations`). What the other process raises
is raised here. When it is gone, what is safe to repeat raises ConnectionLost, as does what was never sent; anything
else that was sent raises UnknownOutcome. The next call connects anew.

Nothing is cached here, so `newest_cached` always raises NotCached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, ParamSpec, TypeVar

from stelae.client.remote.asking import Asker
from stelae.client.remote.changes import ChangesUnderWay
from stelae.client.remote.lines import DEFAULT_LINE_SETTINGS, HasMoved, LineSettings
from stelae.client.remote.pins import RemotePin, RemotePins
from stelae.client.remote.reads import row_groups
from stelae.client.remote.scans import RemoteScan
from stelae.client.remote.writes import WriteGroup, write_groups, write_in_order
from stelae.format.fragment.footer import FragmentFile
from stelae.model.errors import NotCached, ProtocolError
from stelae.model.ids import Row, TableId, Txn
from stelae.model.predicate.plan import ALL_TIME, TimeRange
from stelae.model.predicate.selectors import Selectors
from stelae.ports.blocking import BlockingConnector
from stelae.ports.clock import Clock
from stelae.registry.peers import Sign, unsigned
from stelae.service import job_operations as jobs
from stelae.service import operations as ops
from stelae.service.backend import Values
from stelae.service.blocks import OrderedBlock
from stelae.service.deadlines import Deadline
from stelae.service.jobs import TTL_S_DEFAULT
from stelae.service.operations import Operation
from stelae.service.reports import CheckReport, Progress
from stelae.service.scans import ScanAsk
from stelae.service.tables import TableInfo, TableStats, TabletInfo
from stelae.service.tickets import CompactionTicket, HeldTable, LoadedFile, LoadTicket
from stelae.storage.read.asking import Version
from stelae.wire.handshake import Introduction
from stelae.wire.hello import Hello

P = ParamSpec("P")
R = TypeVar("R")


class RemoteTablets:
    """A `TabletService`, but for `submit` and `wait_for_room`. `hello` says who attaches, and to which store. A call
    without a deadline has that of `settings.answer_s`. `sign`: adds to each request what this side says of itself.
    `has_moved`: whether another has its rows, asked when it is silent. Safe for threads; not after a fork."""

    def __init__(
        self,
        connector: BlockingConnector,
        hello: Hello | Introduction,
        clock: Clock,
        settings: LineSettings = DEFAULT_LINE_SETTINGS,
        sign: Sign = unsigned,
        has_moved: HasMoved | None = None,
    ) -> None:
        self.place = connector.address
        self._rows = Asker(connector, hello, clock, settings, sign, has_moved)
        self.lines = self._rows.lines
        self._pins = RemotePins(self.lines, clock)
        self._changes = ChangesUnderWay(self.place)

    def attach(self, deadline: Deadline | None = None) -> None:
        """Connect, if no connection is open: ConnectionLost if nobody has the rows, or nobody answers."""
        self.lines.give(self.lines.take(self._rows.until(deadline)))

    def abandon(self, why: str) -> None:
        """From here on everything raises Closed with these words, and nothing of it is touched: for a forked child."""
        self._changes.abandoned = why
        self.lines.abandon()
        self._pins.abandon()

    def close(self) -> None:
        if self._changes.abandoned is None:
            self._changes.close()
            self.lines.close()

    def info(self, table: TableId, *, deadline: Deadline | None = None) -> TableInfo:
        return self._ask(ops.INFO, deadline, table)

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
        def begin(group: WriteGroup) -> Callable[[], Txn]:
            self._changes.check()
            return self._rows.begin(ops.WRITE, group.message, group.body, deadline)

        return write_in_order(groups, begin)

    def truncate(self, table: TableId, *, deadline: Deadline | None = None) -> Txn:
        return self._ask(ops.TRUNCATE, deadline, table)

    # -- reading

    def now(self, table: TableId | None = None, *, deadline: Deadline | None = None) -> Txn:  # noqa: ARG002
        """All tables of one process have one clock."""
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

    def pin(
        self,
        at: Txn | None = None,
        table: TableId | None = None,  # noqa: ARG002 - a process pins all that it has
        *,
        deadline: Deadline | None = None,
    ) -> RemotePin:
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
        self,
        table: TableId,
        at: Txn | None = None,
        ttl_s: float = TTL_S_DEFAULT,
        ticket: str | None = None,
        *,
        deadline: Deadline | None = None,
    ) -> HeldTable:
        return self._ask(jobs.HOLD, deadline, table, at, ttl_s, ticket)

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
        ticket: str | None = None,
        deadline: Deadline | None = None,
    ) -> CompactionTicket:
        return self._ask(jobs.BEGIN_COMPACTION, deadline, table, full, erase_now, ttl_s, ticket)

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
