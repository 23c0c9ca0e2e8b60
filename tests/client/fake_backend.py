"""A backend that remembers what it was asked, and answers what it was told to: both as values that can be compared.

`StoreWorld` serves one over a local socket, in a thread of this process, and attaches to it as another process would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa

from stelae.adapters.clock import SystemClock
from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.sockets.unix import UnixConnector, UnixTransport
from stelae.adapters.threads import LoopThread
from stelae.catalog.objects import NamespaceId, Table, TableProperties, ZoneId
from stelae.client.remote.lines import LineSettings
from stelae.client.remote.store import RemoteStore
from stelae.format.block import encode_block
from stelae.format.fragment.footer import FragmentFile
from stelae.model.errors import NotCached, NotFound
from stelae.model.ids import Row, TableId, Txn
from stelae.model.predicate.plan import ALL_TIME, TimeRange
from stelae.model.predicate.selectors import Selectors
from stelae.model.schema import TableSchema
from stelae.ports.transport import Address
from stelae.service.backend import Values
from stelae.service.blocks import OrderedBlock
from stelae.service.deadlines import Deadline
from stelae.service.jobs import TTL_S_DEFAULT
from stelae.service.reports import CheckReport, Progress
from stelae.service.scans import ScanAsk
from stelae.service.spaces import SpacesAsk, SpacesInfo
from stelae.service.tables import AlterAsk, CreateAsk, TableInfo, TableStats, TabletInfo
from stelae.service.tickets import CompactionTicket, HeldTable, LoadedFile, LoadTicket
from stelae.storage.read.asking import Version
from stelae.tserver.serving.service import ServiceLimits, StoreService
from stelae.wire.hello import PROTOCOL_MAX, PROTOCOL_MIN, Hello

READ_AT = Txn(2**40)
"""The newest snapshot of a `FakeBackend`."""
OWNER = Hello(PROTOCOL_MIN, PROTOCOL_MAX, "0.1.0", "a-store", "owner")
_MOMENTS_MAX = 10_000
CLIENT = Hello(PROTOCOL_MIN, PROTOCOL_MAX, "0.1.0", "a-store", "client")


class FakePin:
    def __init__(self, backend: FakeBackend, txn: Txn) -> None:
        self._backend = backend
        self.txn = txn

    def close(self) -> None:
        with self._backend.lock:
            self._backend.pins.discard(self)


class FakeScan(Iterator[pa.RecordBatch]):
    """Batches as they are asked for; whoever waits for `closed` learns that it was freed."""

    def __init__(self, backend: FakeBackend, batches: Iterator[pa.RecordBatch]) -> None:
        self._backend = backend
        self._batches = batches
        with backend.lock:
            backend.scans.add(self)

    def __next__(self) -> pa.RecordBatch:
        try:
            return next(self._batches)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with self._backend.lock:
            self._backend.scans.discard(self)


class FakeBulk:
    """The operations of jobs."""

    def _told(self, method: str, *args: Any, deadline: Deadline | None) -> Any:
        raise NotImplementedError

    def hold(
        self,
        table: TableId,
        at: Txn | None = None,
        ttl_s: float = TTL_S_DEFAULT,
        ticket: str | None = None,
        *,
        deadline: Deadline | None = None,
    ) -> HeldTable:
        return self._told("hold", table, at, ttl_s, ticket, deadline=deadline)

    def renew(self, ticket: str, ttl_s: float = TTL_S_DEFAULT, *, deadline: Deadline | None = None) -> None:
        return self._told("renew", ticket, ttl_s, deadline=deadline)

    def release(self, ticket: str, *, deadline: Deadline | None = None) -> None:
        return self._told("release", ticket, deadline=deadline)

    def begin_load(
        self,
        table: TableId,
        job: str,
        batch: int = 0,
        ttl_s: float = TTL_S_DEFAULT,
        *,
        deadline: Deadline | None = None,
    ) -> LoadTicket:
        return self._told("begin_load", table, job, batch, ttl_s, deadline=deadline)

    def commit_load(
        self, ticket: str, files: Sequence[LoadedFile], *, replaces: bool = False, deadline: Deadline | None = None
    ) -> Txn:
        return self._told("commit_load", ticket, tuple(files), replaces, deadline=deadline)

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
        return self._told("begin_compaction", table, full, erase_now, ttl_s, ticket, deadline=deadline)

    def adopt(self, ticket: str, number: int, file: FragmentFile | None, *, deadline: Deadline | None = None) -> bool:
        return self._told("adopt", ticket, number, file, deadline=deadline)


@dataclass
class FakeBackend(FakeBulk):
    """`answers`: by method, what it returns, a function of its arguments, or an error to raise. `calls`: what came;
    `deadlines`: until when, of each of them."""

    tables: dict[TableId, TableInfo] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    is_local: bool = True
    quick: Any = None
    place: str = "fake"
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    deadlines: list[Deadline | None] = field(default_factory=list)
    pins: set[FakePin] = field(default_factory=set)
    scans: set[FakeScan] = field(default_factory=set)
    lock: Lock = field(default_factory=Lock)

    def _told(self, method: str, *args: Any, deadline: Deadline | None) -> Any:
        with self.lock:
            self.calls.append((method, *args))
            self.deadlines.append(deadline)
        answer = self.answers[method]
        if callable(answer):
            answer = answer(*args)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def find(self, name: str, *, deadline: Deadline | None = None) -> TableInfo:
        return self._told("find", name, deadline=deadline)

    def info(self, table: TableId, *, deadline: Deadline | None = None) -> TableInfo:
        """Not among the calls unless an answer was given for it: every write asks for it."""
        if "info" in self.answers:
            return self._told("info", table, deadline=deadline)
        try:
            return self.tables[table]
        except KeyError:
            raise NotFound(f"no table {table}") from None

    def names(self, *, deadline: Deadline | None = None) -> tuple[str, ...]:
        return self._told("names", deadline=deadline)

    def spaces(self, *, deadline: Deadline | None = None) -> SpacesInfo:
        return self._told("spaces", deadline=deadline)

    def change_spaces(self, ask: SpacesAsk, *, deadline: Deadline | None = None) -> SpacesInfo:
        return self._told("change_spaces", ask, deadline=deadline)

    def create(self, ask: CreateAsk, *, deadline: Deadline | None = None) -> TableInfo:
        return self._told("create", ask, deadline=deadline)

    def alter(self, name: str, ask: AlterAsk, *, deadline: Deadline | None = None) -> TableInfo:
        return self._told("alter", name, ask, deadline=deadline)

    def drop(self, name: str, *, if_exists: bool = False, deadline: Deadline | None = None) -> None:
        return self._told("drop", name, if_exists, deadline=deadline)

    def recall(self, name: str, new_name: str | None = None, *, deadline: Deadline | None = None) -> TableInfo:
        return self._told("recall", name, new_name, deadline=deadline)

    def truncate(self, table: TableId, *, deadline: Deadline | None = None) -> Txn:
        return self._told("truncate", table, deadline=deadline)

    def write(
        self,
        table: TableId,
        blocks: Sequence[OrderedBlock],
        max_txn: Txn | None = None,
        *,
        must_show: bool = False,
        deadline: Deadline | None = None,
    ) -> Txn:
        return self.submit(table, blocks, max_txn, must_show=must_show, deadline=deadline).result()

    def submit(
        self,
        table: TableId,
        blocks: Sequence[OrderedBlock],
        max_txn: Txn | None = None,
        *,
        must_show: bool = False,
        deadline: Deadline | None = None,
    ) -> Future[Txn]:
        """Of each block its bytes: those it came with, if it came as bytes."""
        said = tuple(
            (bytes(encode_block(each.block) if each.data is None else each.data), tuple(each.rows.to_pylist()))
            for each in blocks
        )
        future: Future[Txn] = Future()
        try:
            shown = ("must show",) if must_show else ()
            answer = self._told("write", table, said, max_txn, *shown, deadline=deadline)
        except Exception as error:  # noqa: BLE001 - as a real one does
            future.set_exception(error)
            return future
        if isinstance(answer, Future):
            return answer
        future.set_result(answer)
        return future

    def wait_for_room(self, seconds: float) -> None:
        return None

    def now(self, table: TableId | None = None, *, deadline: Deadline | None = None) -> Txn:
        return self._told("now", deadline=deadline)

    def newest(
        self, table: TableId, row: Row, columns: Selectors, at: Txn | None = None, *, deadline: Deadline | None = None
    ) -> tuple[Txn, Values | None]:
        return READ_AT if at is None else at, self._told("newest", table, row, columns, at, deadline=deadline)

    def newest_cached(
        self, table: TableId, row: Row, columns: Selectors, at: Txn | None = None
    ) -> tuple[Txn, Values | None]:
        if "newest_cached" not in self.answers:
            raise NotCached("not here")
        return READ_AT if at is None else at, self._told("newest_cached", table, row, columns, at, deadline=None)

    def newest_many(
        self,
        table: TableId,
        rows: Sequence[Row],
        columns: Selectors,
        at: Txn | None = None,
        *,
        deadline: Deadline | None = None,
    ) -> tuple[Txn, list[Values | None]]:
        found = self._told("newest_many", table, tuple(rows), columns, at, deadline=deadline)
        return READ_AT if at is None else at, found

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
        return self._told("history", table, row, columns, limit, at, time, deadline=deadline)

    def scan(self, table: TableId, ask: ScanAsk, *, deadline: Deadline | None = None) -> Iterator[pa.RecordBatch]:
        return FakeScan(self, iter(self._told("scan", table, ask, deadline=deadline)))

    def pin(self, at: Txn | None = None, table: TableId | None = None, *, deadline: Deadline | None = None) -> FakePin:
        pin = FakePin(self, self._told("pin", at, deadline=deadline))
        with self.lock:
            self.pins.add(pin)
        return pin

    def flush(self, table: TableId, *, deadline: Deadline | None = None) -> None:
        return self._told("flush", table, deadline=deadline)

    def compact(
        self,
        table: TableId,
        *,
        erase_now: bool = False,
        progress: Progress | None = None,
        deadline: Deadline | None = None,
    ) -> tuple[str, ...]:
        for done, total in self._told("compact", table, erase_now, deadline=deadline):
            if progress is not None:
                progress(done, total)
        return ("a snapshot",)

    def split(
        self, table: TableId, at: Row | None = None, tablet: int | None = None, *, deadline: Deadline | None = None
    ) -> None:
        return self._told("split", table, at, tablet, deadline=deadline)

    def join(self, table: TableId, at: Row, *, deadline: Deadline | None = None) -> None:
        return self._told("join", table, at, deadline=deadline)

    def tablets(self, table: TableId, *, deadline: Deadline | None = None) -> tuple[TabletInfo, ...]:
        return self._told("tablets", table, deadline=deadline)

    def stats(self, table: TableId, *, deadline: Deadline | None = None) -> TableStats:
        return self._told("stats", table, deadline=deadline)

    def metrics(self, *, deadline: Deadline | None = None) -> Mapping[str, Any]:
        return self._told("metrics", deadline=deadline)

    def check(self, progress: Progress | None = None, *, deadline: Deadline | None = None) -> CheckReport:
        report: CheckReport = self._told("check", deadline=deadline)
        if progress is not None:
            progress(1, 2)
        return report

    def close(self) -> None:
        return None


def table_info(schema: TableSchema, number: int = 7, name: str = "things") -> TableInfo:
    table = Table(TableId(number), NamespaceId(1), name, ZoneId(2), schema, TableProperties(5, "a comment"))
    return TableInfo(table, f"main.{name}", "default")


class StoreWorld:
    """One backend, served; and those who attach to it."""

    def __init__(self, directory: Path, backend: FakeBackend, limits: ServiceLimits | None = None) -> None:
        self.backend = backend
        self.path = str(directory / "s.sock")
        self.loop = LoopThread("serve")
        self.threads = ThreadExecutor(16, 1_000)
        self._callers = ThreadExecutor(16, 1_000)
        self.service = StoreService(backend, self.threads, OWNER, SystemClock(), limits or ServiceLimits())
        self.transport = UnixTransport()
        self.loop.run(self._start())
        self._attached: list[RemoteStore] = []
        self._is_stopped = False

    async def _start(self) -> None:
        await self.service.start(await self.transport.listen(Address(self.path)))

    def attach(self, settings: LineSettings | None = None, hello: Hello = CLIENT) -> RemoteStore:
        remote = RemoteStore(UnixConnector(self.path), self._callers, hello, SystemClock(), settings or LineSettings())
        self._attached.append(remote)
        return remote

    def stop(self) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            self.loop.run(self.service.close())
            self.loop.close()

    def close(self) -> None:
        for remote in self._attached:
            remote.close()
        self.stop()
        self.threads.close()
        self._callers.close()


@contextmanager
def served(directory: Path, backend: FakeBackend, limits: ServiceLimits | None = None) -> Iterator[StoreWorld]:
    world = StoreWorld(directory, backend, limits)
    try:
        yield world
    finally:
        world.close()


def until(condition: Callable[[], bool], loop: LoopThread) -> None:
    """Wait for what the serving side does in its own time."""
    for _ in range(_MOMENTS_MAX):
        if condition():
            return
        loop.run(_a_moment())
    raise AssertionError("what was waited for did not happen")


async def _a_moment() -> None:
    await asyncio.sleep(0.001)
