"""A store that another process of the machine has: the same interface, over connections to that process.

    backend = RemoteBackend(connector, executor, hello)

A call takes a connection, asks, waits for the answer and gives the connection back; a scan keeps one until it ends, and
all pins share one. Connections are opened when they are needed, and bounded in number. What the owner raises is raised
here. When the owner is gone, reads raise Unavailable, as does what was never sent; what changes something and was sent
raises UnknownOutcome. The next call connects anew: to whoever has the store by then.

Nothing is cached here, so `newest_cached` always raises NotCached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from threading import Condition
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from stelae.client.remote.jobs import RemoteBulk
from stelae.client.remote.lines import DEFAULT_LINE_SETTINGS, Lines, LineSettings, answered
from stelae.client.remote.streams import ItemStream, RemotePins, RemoteScan, joined_bodies
from stelae.client.remote.writes import WriteLane, write_alone, write_groups, write_in_order
from stelae.model.errors import Closed, LargeAnswer, NotCached, Unavailable, UnknownOutcome
from stelae.model.ids import Row, TableId, Txn
from stelae.model.predicate.plan import ALL_TIME, TimeRange
from stelae.model.predicate.selectors import Selectors
from stelae.ports.blocking import BlockingConnector
from stelae.ports.executor import Executor
from stelae.service import bodies as bodies
from stelae.service import messages as m
from stelae.service.backend import AlterAsk, Pin, Values
from stelae.service.blocks import OrderedBlock
from stelae.service.reports import CheckReport, Progress
from stelae.service.scans import ScanAsk
from stelae.service.tables import CreateAsk, TableInfo, TableStats, TabletInfo
from stelae.storage.read.asking import Version
from stelae.wire.hello import Hello
from stelae.wire.messages import WireMethod

Q = TypeVar("Q", bound=msgspec.Struct)
A = TypeVar("A", bound=msgspec.Struct)

ROWS_BYTES_MAX = 16 * 1024 * 1024
_NOTHING = m.NothingMessage()


class RemoteBackend(RemoteBulk):
    """A `Backend`. `executor` runs what is submitted: one job at a time. `hello` says who attaches, and to which
    store. Safe for threads; not after a fork: attach again in the child."""

    def __init__(
        self,
        connector: BlockingConnector,
        executor: Executor,
        hello: Hello,
        settings: LineSettings = DEFAULT_LINE_SETTINGS,
    ) -> None:
        self._place = connector.address
        self._settings = settings
        self._lines = Lines(connector, hello, settings)
        self._lane = WriteLane(self._lines, executor, settings)
        self._pins = RemotePins(self._lines, settings)
        self._change = Condition()
        self._writes = 0
        self._is_closed = False

    @property
    def is_local(self) -> bool:
        return False

    @property
    def place(self) -> str:
        return self._place

    @property
    def connections(self) -> int:
        """How many are open now."""
        return self._lines.count

    def attach(self) -> None:
        """Connect, if no connection is open: Unavailable if nobody has the store, or nobody answers."""
        self._lines.give(self._lines.take())

    # -- names and schemas

    def find(self, name: str) -> TableInfo:
        return _info(*self._read(m.FIND, m.NameMessage(name)))

    def info(self, table: TableId) -> TableInfo:
        return _info(*self._read(m.INFO, m.TableMessage(table)))

    def names(self) -> tuple[str, ...]:
        return bodies.names_from(self._whole(m.NAMES, _NOTHING))

    def create(self, ask: CreateAsk) -> TableInfo:
        return _info(*self._change_table(m.CREATE, *bodies.create_parts(ask)))

    def alter(self, name: str, ask: AlterAsk) -> TableInfo:
        return _info(*self._change_table(m.ALTER, m.AlterMessage(name, ask)))

    def drop(self, name: str, *, if_exists: bool = False) -> None:
        self._change_table(m.DROP, m.DropMessage(name, if_exists))

    def recall(self, name: str, new_name: str | None = None) -> TableInfo:
        return _info(*self._change_table(m.RECALL, m.RecallMessage(name, new_name)))

    def truncate(self, table: TableId) -> Txn:
        return Txn(self._change_table(m.TRUNCATE, m.TableMessage(table))[0].txn)

    # -- writing

    def write(self, table: TableId, blocks: Sequence[OrderedBlock], max_txn: Txn | None = None) -> Txn:
        if self._lane.is_busy:
            return self.submit(table, blocks, max_txn).result()
        with _Counted(self):
            groups = write_groups(table, blocks, max_txn)
            return write_in_order(groups, lambda group: write_alone(self._lines, group, self._settings.answer_s))

    def submit(self, table: TableId, blocks: Sequence[OrderedBlock], max_txn: Txn | None = None) -> Future[Txn]:
        with _Counted(self):
            return self._lane.submit(table, blocks, max_txn)

    # -- reading

    @property
    def visible(self) -> Txn:
        return self.now()

    def now(self) -> Txn:
        return Txn(self._read(m.NOW, _NOTHING)[0].txn)

    def newest(self, table: TableId, row: Row, columns: Selectors, at: Txn | None = None) -> Values | None:
        try:
            answer, body = self._read(m.NEWEST, m.NewestMessage(table, row, bodies.sent_columns(columns), at))
        except LargeAnswer:
            return self.newest_many(table, [row], columns, at)[0]
        return bodies.values_from(body) if answer.found else None

    def newest_cached(
        self,
        table: TableId,
        row: Row,
        columns: Selectors,  # noqa: ARG002 - the interface's
        at: Txn | None = None,  # noqa: ARG002
    ) -> Values | None:
        raise NotCached(f"row {row!r} of table {table}: nothing is cached of {self._place}: another process has it")

    def newest_many(
        self, table: TableId, rows: Sequence[Row], columns: Selectors, at: Txn | None = None
    ) -> list[Values | None]:
        groups = list(_row_groups(rows))
        if len(groups) < 2 or at is not None:
            return [each for group in groups for each in self._newest_group(table, group, columns, at)]
        pin = self.pin()
        try:
            return self.newest_many(table, rows, columns, pin.txn)
        finally:
            pin.close()

    def _newest_group(
        self, table: TableId, rows: Sequence[Row], columns: Selectors, at: Txn | None
    ) -> list[Values | None]:
        message = m.ManyMessage(table, bodies.sent_columns(columns), at)
        return bodies.many_from(self._whole(m.NEWEST_MANY, message, bodies.rows_bytes(rows)), len(rows))

    def history(
        self,
        table: TableId,
        row: Row,
        columns: Selectors,
        limit: int,
        at: Txn | None = None,
        time: TimeRange = ALL_TIME,
    ) -> dict[str, tuple[Version, ...]] | None:
        asked = m.HistoryMessage(table, row, bodies.sent_columns(columns), limit, at, time.start, time.stop)
        return bodies.history_from(self._whole(m.HISTORY, asked))

    def scan(self, table: TableId, ask: ScanAsk) -> Iterator[pa.RecordBatch]:
        return RemoteScan(self._lines, *bodies.scan_parts(table, ask), timeout_s=self._settings.answer_s)

    def pin(self, at: Txn | None = None) -> Pin:
        return self._pins.pin(at)

    # -- upkeep

    def flush(self, table: TableId) -> None:
        self._ask(m.FLUSH, m.TableMessage(table), timeout_s=self._settings.upkeep_s)

    def compact(self, table: TableId, *, erase_now: bool = False, progress: Progress | None = None) -> None:
        self._watched(m.COMPACT, m.CompactMessage(table, erase_now), progress)

    def split(self, table: TableId, at: Row | None = None, tablet: int | None = None) -> None:
        self._change_table(m.SPLIT, m.SplitMessage(table, at, tablet))

    def join(self, table: TableId, at: Row) -> None:
        self._change_table(m.JOIN, m.JoinMessage(table, at))

    def tablets(self, table: TableId) -> tuple[TabletInfo, ...]:
        return bodies.tablets_from(self._whole(m.TABLETS, m.TableMessage(table)))

    def stats(self, table: TableId) -> TableStats:
        return self._read(m.STATS, m.TableMessage(table))[0]

    def metrics(self) -> Mapping[str, Any]:
        return bodies.values_from(self._whole(m.METRICS, _NOTHING))

    def check(self, progress: Progress | None = None) -> CheckReport:
        return bodies.report_from(self._watched(m.CHECK, _NOTHING, progress))

    def close(self) -> None:
        with self._change:
            self._is_closed = True
            self._change.wait_for(lambda: not self._writes)
        self._lane.wait_idle()
        self._lines.close()

    # -- inside

    def _read(self, method: WireMethod[Q, A], message: Q) -> tuple[A, bytes | memoryview]:
        return self._ask(method, message, timeout_s=self._settings.answer_s)

    def _ask(
        self, method: WireMethod[Q, A], message: Q, body: bytes = b"", *, timeout_s: float | None
    ) -> tuple[A, bytes | memoryview]:
        line, _ = self._lines.ask(method, message, body, timeout_s=timeout_s)
        try:
            return answered(method, line.receive(timeout_s))
        finally:
            self._lines.give(line)

    def _change_table(self, method: WireMethod[Q, A], message: Q, body: bytes = b"") -> tuple[A, bytes | memoryview]:
        """What may have happened although no answer came, and is not to be repeated without a look."""
        with _Counted(self):
            line, _ = self._lines.ask(method, message, body, timeout_s=self._settings.upkeep_s)
            try:
                frame = line.receive(self._settings.upkeep_s)
            except Unavailable as error:
                raise UnknownOutcome(f"{method.name} was sent, and may or may not have happened: {error}") from error
            finally:
                self._lines.give(line)
            return answered(method, frame)

    def _whole(self, method: WireMethod[Q, A], message: Q, body: bytes = b"") -> bytes | memoryview:
        return joined_bodies(ItemStream(self._lines, method, message, body, timeout_s=self._settings.answer_s))

    def _watched(self, method: WireMethod[Q, m.ProgressItem], message: Q, progress: Progress | None) -> bytes:
        result: list[bytes | memoryview] = []
        with closing(ItemStream(self._lines, method, message, timeout_s=self._settings.upkeep_s)) as items:
            for news, body in items:
                if news.has_result:
                    result.append(body)
                elif progress is not None:
                    progress(news.done, news.total)
        return b"".join(result)

    def _begin_write(self) -> None:
        with self._change:
            if self._is_closed:
                raise Closed(f"{self._place}: the store was closed here; open it again")
            self._writes += 1

    def _end_write(self) -> None:
        with self._change:
            self._writes -= 1
            self._change.notify_all()


class _Counted:
    """A write under way, which closing waits for."""

    def __init__(self, backend: RemoteBackend) -> None:
        self._backend = backend

    def __enter__(self) -> None:
        self._backend._begin_write()

    def __exit__(self, *_: object) -> None:
        self._backend._end_write()


def _info(answer: m.InfoMessage, body: bytes | memoryview) -> TableInfo:
    return TableInfo(bodies.table_from(body), answer.name, answer.zone)


def _row_groups(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """As many as can be asked for at once."""
    start = size = 0
    for at, row in enumerate(rows):
        if at - start == m.ROWS_MAX or (at > start and size + len(row) > ROWS_BYTES_MAX):
            yield rows[start:at]
            start, size = at, 0
        size += len(row)
    if start < len(rows):
        yield rows[start:]
