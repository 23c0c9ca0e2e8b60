"""One directory, several processes: the first owns the store and serves the others; one of them takes over in the end.

Whoever opens the directory tries to own it. If another process does, it attaches to that one's socket. When the owner
is gone, the next call finds out: it tries to own the directory again, and either becomes the owner, replays the log and
goes on in its own process, or attaches to the process that was faster. Reads go on as if nothing had happened, at the
same snapshots, scans in the middle included. A write whose answer was lost may or may not have happened, and its caller
is told so.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, RLock
from typing import Any, cast

import pyarrow as pa

from stelae.adapters.blobs.urls import blobs_url
from stelae.adapters.clock import SystemClock
from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.ownership import OwnerNote, Ownership, read_owner
from stelae.adapters.sockets.blocking import UnixConnector
from stelae.adapters.sockets.unix import UnixTransport
from stelae.adapters.threads import StepThread
from stelae.assembly.opening import StoreSettings
from stelae.client.remote.store import RemoteBackend
from stelae.launch.fragments import check_new_place, fragments_url
from stelae.launch.local import LocalStore, shard_settings, user_name
from stelae.model.errors import Closed, InvalidArgument, NotFound, PermissionDenied, StelaeError, Unavailable
from stelae.model.ids import Row, TableId, Txn
from stelae.model.ranges import RangeSet, RowRange
from stelae.ports.transport import Address
from stelae.service.backend import Backend, Pin
from stelae.service.blocks import OrderedBlock
from stelae.service.read_only import read_only as only_read
from stelae.service.scans import ScanAsk
from stelae.tserver.serving.service import ServiceLimits, StoreService
from stelae.wire.hello import PROTOCOL_MAX, PROTOCOL_MIN, Hello

SOCKET_FILE = "socket"
_NAP_S = 0.02
_TAKE_OVER_S = 30.0
_WRITERS = 16
_WATCH_S = 1.0
_nap = Event()
_clock = SystemClock()


def _served(store: LocalStore, directory: Path, ownership: Ownership, release: str) -> None:
    """Let other processes of the machine in, for as long as the store is open here."""
    limits = ServiceLimits()
    executor = ThreadExecutor(limits.jobs_max + limits.upkeep_max, limits.connections_max * limits.requests_max)
    hello = Hello(PROTOCOL_MIN, PROTOCOL_MAX, release, store.running.mark.token, "owner")

    async def start() -> StoreService:
        service = StoreService(cast(Backend, store), executor, hello, limits)
        await service.start(await UnixTransport().listen(Address(str(directory / SOCKET_FILE))))
        return service

    service = store.loop.run(start())

    def end() -> None:
        store.loop.run(service.close())
        executor.close()

    store.before_close(end)
    ownership.note(SOCKET_FILE)


class Opener:
    """Opens one directory, again and again if need be."""

    def __init__(
        self,
        directory: Path,
        settings: StoreSettings,
        release: str,
        *,
        fragments: str | None = None,
        wait_s: float = _TAKE_OVER_S,
    ) -> None:
        self.directory = directory
        self.fragments = fragments
        self._settings = settings
        self._release = release
        self.wait_s = wait_s

    def own(self) -> LocalStore | None:
        """The store in this process; None if another process has it."""
        ownership = Ownership.take(self.directory, self._release)
        if ownership is None:
            return None
        store = LocalStore(self.directory, ownership, self._settings, fragments=self.fragments)
        try:
            _served(store, self.directory, ownership, self._release)
        except BaseException:
            store.end()
            raise
        return store

    def attach(self) -> RemoteBackend:
        """Connected to whoever has the store: Unavailable if nobody answers there."""
        hello = Hello(PROTOCOL_MIN, PROTOCOL_MAX, self._release, "", "client")
        executor = ThreadExecutor(1, 100_000)
        connector = UnixConnector(str(self.directory / SOCKET_FILE))
        remote = RemoteBackend(connector, executor, hello)
        try:
            remote.attach()
        except BaseException:
            remote.close()
            executor.close()
            raise
        return remote

    def either(self) -> LocalStore | RemoteBackend:
        """Own it or attach to it; while the owner is coming or going, again and again."""
        deadline_s = _clock.monotonic_s() + self.wait_s
        while True:
            store = self.own()
            if store is not None:
                return store
            try:
                return self.attach()
            except Unavailable as error:
                if _clock.monotonic_s() >= deadline_s:
                    raise Unavailable(
                        f"the store {self.directory} is open in {self._owner()}, which does not let others in: {error}"
                    ) from None
                _nap.wait(_NAP_S)

    def _owner(self) -> OwnerNote | str:
        return read_owner(self.directory) or "another process"


class _SharedPin:
    """A snapshot that is pinned again wherever the store goes."""

    def __init__(self, pin: Pin) -> None:
        self.txn = pin.txn
        self.pin: Pin | None = pin

    def close(self) -> None:
        pin, self.pin = self.pin, None
        if pin is not None:
            pin.close()


class _AttachedStore:
    """A `Backend` that another process serves, until this one has to take over. Every call that finds nobody there
    opens the store anew and is made again: what raises Unavailable itself has not happened."""

    def __init__(self, opener: Opener, remote: RemoteBackend) -> None:
        self._opener = opener
        self._current = cast(Backend, remote)
        self._pid = os.getpid()
        self._lock = RLock()
        self._pins: weakref.WeakSet[_SharedPin] = weakref.WeakSet()
        self._writers = ThreadExecutor(_WRITERS, 100_000)
        self._is_closed = False
        self._past: Backend | None = None
        self._watching: StepThread | None = None

    @property
    def is_local(self) -> bool:
        return self._current.is_local

    @property
    def place(self) -> str:
        return str(self._opener.directory)

    @property
    def visible(self) -> Txn:
        found: Txn = self._call(lambda backend: backend.visible)
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self._call(lambda backend: getattr(backend, name)(*args, **kwargs))

    def _call(self, job: Callable[[Backend], Any]) -> Any:
        deadline_s = _clock.monotonic_s() + self._opener.wait_s
        while True:
            self._check_usable()
            backend = self._current
            try:
                return job(backend)
            except Unavailable as error:
                if type(error) is not Unavailable or _clock.monotonic_s() >= deadline_s:
                    raise
                self._find_again(backend)

    def _check_usable(self) -> None:
        if self._is_closed:
            raise Closed(f"the store {self.place} is closed")
        if self._pid != os.getpid():
            raise Closed(f"the store {self.place} was opened before this process was forked: open it again here")

    def _find_again(self, lost: Backend) -> None:
        with self._lock:
            if self._current is not lost or self._is_closed:
                return
            store = self._opener.own()
            if store is not None:
                self._current = cast(Backend, store)
                self._past = lost  # closed with this store: others may still be in the middle of a call
            else:
                _nap.wait(_NAP_S)
            for pin in list(self._pins):
                self._pin_again(pin)

    def _pin_again(self, pin: _SharedPin) -> None:
        if pin.pin is not None:
            try:
                pin.pin = self._current.pin(pin.txn)
            except StelaeError:
                return  # reads at it say what is wrong

    def pin(self, at: Txn | None = None) -> Pin:
        pin = _SharedPin(self._call(lambda backend: backend.pin(at)))
        with self._lock:
            self._pins.add(pin)
            if self._watching is None:
                self._watching = StepThread("stelae-pins", self._watch, _WATCH_S)
        return pin

    def _watch(self) -> bool:
        """Whoever holds snapshots notices the end of the owner without asking for anything, and pins them again."""
        backend = self._current
        if not self._pins or self._is_closed or backend.is_local:
            return False
        try:
            backend.now()
        except Unavailable:
            self._find_again(backend)
        with self._lock:
            for pin in list(self._pins):
                if not getattr(pin.pin, "is_held", True):
                    self._pin_again(pin)
        return False

    def submit(self, table: TableId, blocks: Sequence[OrderedBlock], max_txn: Txn | None = None) -> Future[Txn]:
        current = self._current
        if current.is_local:
            return current.submit(table, blocks, max_txn)
        return self._writers.submit(self._call, lambda backend: backend.write(table, blocks, max_txn))

    def scan(self, table: TableId, ask: ScanAsk) -> Iterator[pa.RecordBatch]:
        """Goes on behind the last row it gave out, at the same snapshot, wherever the store is then."""
        codec = self._call(lambda backend: backend.info(table)).schema.codec
        return self._scanned(table, ask, self._call(lambda backend: backend.scan(table, ask)), codec)

    def _scanned(self, table: TableId, ask: ScanAsk, batches: Iterator[pa.RecordBatch], codec: Any) -> Any:
        while True:
            try:
                for batch in batches:
                    if batch.num_rows:
                        ask = _rest(ask, codec, batch)
                    yield batch
            except Unavailable as error:
                if type(error) is not Unavailable:
                    raise
                backend = self._current
                self._find_again(backend)
                batches = self._call(partial(_scan, table, ask))
            else:
                return

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if self._pid == os.getpid():
            if self._watching is not None:
                self._watching.close()
            self._current.close()
            self._writers.close()
            if self._past is not None:
                self._past.close()


def _scan(table: TableId, ask: ScanAsk, backend: Backend) -> Iterator[pa.RecordBatch]:
    return backend.scan(table, ask)


def _rest(ask: ScanAsk, codec: Any, batch: pa.RecordBatch) -> ScanAsk:
    """What is left behind the last row of a batch."""
    last = batch.slice(batch.num_rows - 1)
    row = Row(codec.encode(codec.check(tuple(last.column(name)[0].as_py() for name in codec.names))))
    done = RowRange(row, None) if ask.reverse else RowRange(b"", row + b"\0")
    rows = ask.predicate.rows.subtract(RangeSet.of([done]))
    limit = None if ask.limit is None else ask.limit - batch.num_rows
    return replace(ask, predicate=replace(ask.predicate, rows=rows), limit=limit)


_own_stores: weakref.WeakValueDictionary[str, LocalStore] = weakref.WeakValueDictionary()
_opening = RLock()


def open_embedded(
    path: str | os.PathLike[str],
    *,
    store: str | os.PathLike[str] | None = None,
    memory_bytes: int | None = None,
    read_only: bool = False,
    release: str = "",
) -> Backend:
    """The store in a directory, which is made if it is not there (unless it is only to be read). Opened twice by one
    process it is the same store; opened by another, it is shared. `store`: where its fragments lie; None: where they
    do, and of a new store in the directory."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):  # type: ignore[redundant-expr]
        raise InvalidArgument(f"a store is opened by the path of its directory, not by {path!r}")
    directory = Path(path).absolute()
    if directory.exists() and not directory.is_dir():
        raise InvalidArgument(f"{directory} is a file; a store is a directory")
    settings = StoreSettings(shard_settings(memory_bytes), author=user_name())
    fragments = None if store is None else blobs_url(store)
    if fragments is not None:
        check_new_place(directory, fragments)
    opener = Opener(directory, settings, release, fragments=fragments)
    with _opening:
        shared = _own_stores.get(str(directory.resolve()))
        if shared is not None and shared.is_usable:
            _check_place(opener)
            backend = cast(Backend, shared.share())
        elif read_only:
            return _opened_to_read(opener, settings)
        else:
            opened = opener.either()
            if isinstance(opened, LocalStore):
                _own_stores[str(directory.resolve())] = opened
                backend = cast(Backend, opened)
            else:
                with _closed_on_error(opened):
                    _check_place(opener)
                backend = cast(Backend, _AttachedStore(opener, opened))
    return only_read(backend) if read_only else backend


def _opened_to_read(opener: Opener, settings: StoreSettings) -> Backend:
    """Attached, if somebody has it; otherwise nothing in the directory is touched."""
    if not opener.directory.is_dir():
        raise NotFound(f"no store in {opener.directory}: there is no such directory")
    try:
        remote = opener.attach()
    except (Unavailable, NotFound, PermissionDenied):
        local = LocalStore(opener.directory, None, settings, read_only=True, fragments=opener.fragments)
        return only_read(cast(Backend, local))
    with _closed_on_error(remote):
        _check_place(opener)
    return only_read(cast(Backend, remote))


def _check_place(opener: Opener) -> None:
    """That a store which is open already has its fragments where the user says, if anything is said."""
    if opener.fragments is not None:
        fragments_url(opener.directory, opener.fragments)


@contextmanager
def _closed_on_error(remote: RemoteBackend) -> Iterator[None]:
    try:
        yield
    except BaseException:
        remote.close()
        raise
