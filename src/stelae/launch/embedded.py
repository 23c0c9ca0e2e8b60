"""Opens the store of a directory: in this process if nobody else has it, else attached to the process that does.

The first process to open the directory owns the store and serves the others by a socket. When it ends, the next call of
one of the others takes over (`client.remote.takeover`).

What makes a store here, and what serves it, is imported by those who open it to write: they own it, or may take over.
Who only reads starts without, and if another process has the store, ends without. What is attached to another process
is imported when there is one.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock, RLock
from typing import TYPE_CHECKING

from stelae.adapters.blobs.urls import blobs_url, store_directory
from stelae.adapters.clock import SystemClock
from stelae.adapters.event_log import EventLog
from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.ownership import Ownership, read_owner
from stelae.adapters.sockets.unix import UnixConnector, UnixTransport
from stelae.adapters.threads import AlarmThread
from stelae.client.calls.retries import Patience
from stelae.client.calls.session import Session
from stelae.client.remote.places import own_or_attach
from stelae.launch.fragments import check_new_place, fragments_url
from stelae.launch.metastores import METASTORE_FILE, has_metastore
from stelae.model.errors import (
    ConnectionLost,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    PermissionDenied,
)
from stelae.model.events import Attached
from stelae.model.events import Event as StoreEvent
from stelae.ports.transport import Address
from stelae.service.backend import Backend
from stelae.service.deadlines import Deadline
from stelae.service.refusing import ReadOnlyStore
from stelae.wire.hello import PROTOCOL_MAX, PROTOCOL_MIN, Hello

if TYPE_CHECKING:
    from stelae.assembly.world import StoreSettings
    from stelae.launch.attached import ConnectedStore
    from stelae.launch.local import LocalStore
    from stelae.registry.peers import Dial

CLOCK = SystemClock()
SOCKET_FILE = "socket"
_ALARMS = "stelae-batches"
_nap = Event()


def _serve(store: LocalStore, directory: Path, ownership: Ownership, release: str) -> None:
    """Let other processes of the machine in, for as long as the store is open here."""
    from stelae.tserver.serving.service import ServiceLimits, StoreService

    limits = ServiceLimits()
    executor = ThreadExecutor(limits.threads_max(0), limits.connections_max * limits.requests_max)
    hello = Hello(PROTOCOL_MIN, PROTOCOL_MAX, release, store.mark.token, "owner")

    async def start() -> StoreService:
        service = StoreService(store, executor, hello, CLOCK, limits)
        await service.start(await UnixTransport().listen(Address(str(directory / SOCKET_FILE))))
        return service

    service = store.loop.run(start())

    def end() -> None:
        store.loop.run(service.close())
        executor.close()

    store.before_close(end)
    ownership.note(SOCKET_FILE)


class Opener:
    """Opens one directory, again and again if need be. A `StorePlace`."""

    def __init__(self, directory: Path, memory_bytes: int | None, release: str, fragments: str | None = None) -> None:
        """`fragments`: the URL that the user says its fragments lie under, or None."""
        self.directory = directory
        self.fragments = fragments
        self._log = EventLog(str(directory))
        self._memory_bytes = memory_bytes
        self._release = release
        if memory_bytes is not None:
            self.settings()  # a number that cannot be is refused at once, whoever has the store

    def settings(self) -> StoreSettings:
        """What a store that is made here goes by."""
        from stelae.assembly.world import StoreSettings
        from stelae.launch.local import shard_settings, user_name

        return StoreSettings(shard_settings(self._memory_bytes), author=user_name())

    def tell(self, event: StoreEvent) -> None:
        """A `Listener`. What becomes of the store's owner is counted by the store, if it is in this process now."""
        self._log(event)
        with _noting:
            own = _own_stores.get(str(self.directory.resolve()))
        if own is not None:
            own.count(event)

    def own(self) -> LocalStore | None:
        """The store in this process; None if another process has it."""
        # Imported before the directory is taken, and by those who are attached, too: taking over is quick.
        from stelae.launch.local import LocalStore

        settings = self.settings()
        has_metastore(self.directory)
        ownership = Ownership.take(self.directory, self._release)
        if ownership is None:
            return None
        store = LocalStore(self.directory, ownership, settings, fragments=self.fragments)
        try:
            _serve(store, self.directory, ownership, self._release)
        except BaseException:
            store.end()
            raise
        with _noting:
            _own_stores[str(self.directory.resolve())] = store
        return store

    def attach(self, deadline: Deadline | None) -> ConnectedStore:
        """Connected to whoever has the store: ConnectionLost if nobody answers there."""
        from stelae.launch.attached import ConnectedStore
        from stelae.wire.handshake import Introduction

        me = Introduction(Hello(PROTOCOL_MIN, PROTOCOL_MAX, self._release, "", "client"))
        began = CLOCK.monotonic_s()
        path = str(self.directory / SOCKET_FILE)

        def make_dial() -> Dial:
            transport = UnixTransport()
            return lambda _: transport.connect(Address(path))

        remote = ConnectedStore(UnixConnector(path), me, str(self.directory), make_dial)
        with _closed_on_error(remote):
            remote.attach(deadline)
        self.tell(Attached(CLOCK.monotonic_s() - began))
        return remote

    def away_words(self) -> str:
        owner = read_owner(self.directory) or "another process"
        return f"the store {self.directory} is open in {owner}, and does not let others in"


_own_stores: weakref.WeakValueDictionary[str, LocalStore] = weakref.WeakValueDictionary()
_opening = RLock()
_noting = Lock()
"""For a moment only: a store that is taken over does not wait for another that is being opened."""


def open_session(
    path: str | os.PathLike[str],
    patience: Patience,
    *,
    store: str | os.PathLike[str] | None = None,
    memory_bytes: int | None = None,
    read_only: bool = False,
    create: bool = True,
    release: str = "",
) -> Session:
    """The store in a directory, which is made if it is not there (unless it is only to be read, or not to be created).
    Opened twice by one process it is the same store; opened by another, it is shared. `store`: where its fragments lie;
    None: where they do, and of a new store in the directory."""
    directory = store_directory(path).absolute()
    if directory.exists() and not directory.is_dir():
        raise InvalidArgument(f"{directory} is a file; a store is a directory")
    if not create and not has_metastore(directory):
        raise NotFound(
            f"no store in {directory}: there is no {METASTORE_FILE}; name another directory, or let one be made, with "
            "create=True"
        )
    fragments = None if store is None else blobs_url(store)
    if fragments is not None:
        check_new_place(directory, fragments)
    opener, deadline = Opener(directory, memory_bytes, release, fragments), patience.deadline()
    with _one_at_a_time(deadline, directory):
        shared = _own_stores.get(str(directory.resolve()))
        if shared is not None and shared.is_usable:
            _check_place(opener)
            local: Backend = shared.share()
            return Session(ReadOnlyStore(local) if read_only else local, patience, alarms=AlarmThread(_ALARMS))
        if read_only:
            return Session(ReadOnlyStore(_open_to_read(opener, deadline)), patience)
        opened = own_or_attach(opener, deadline, _nap.wait)
    from stelae.launch.local import LocalStore

    if isinstance(opened, LocalStore):
        return Session(opened, patience, alarms=AlarmThread(_ALARMS))
    from stelae.launch.attached import WatchedStore

    with _closed_on_error(opened):
        _check_place(opener)
    finder = WatchedStore(opener, opened, CLOCK, ThreadExecutor(1, 1), opener.tell)
    return Session(opened, patience, finder, alarms=AlarmThread(_ALARMS))


@contextmanager
def _one_at_a_time(deadline: Deadline, directory: Path) -> Iterator[None]:
    """Stores are opened one after the other, none waiting longer than it may."""
    if not _opening.acquire(timeout=deadline.left_s):
        raise DeadlineExceeded(f"the store {directory}: another one was being opened for {deadline.seconds:g} s")
    try:
        yield
    finally:
        _opening.release()


def _open_to_read(opener: Opener, deadline: Deadline) -> Backend:
    """Attached, if somebody has it; otherwise nothing in the directory is touched."""
    if not opener.directory.is_dir():
        raise NotFound(f"no store in {opener.directory}: there is no such directory")
    remote = _attach_to_read(opener, deadline)
    if remote is None:
        from stelae.launch.local import LocalStore

        return LocalStore(opener.directory, None, opener.settings(), read_only=True, fragments=opener.fragments)
    with _closed_on_error(remote):
        _check_place(opener)
    return remote


def _attach_to_read(opener: Opener, deadline: Deadline) -> ConnectedStore | None:
    """None: nobody has it, or lets this process in."""
    if not (opener.directory / SOCKET_FILE).exists():
        return None  # nobody answers where there is no socket, and what would ask need not be imported
    try:
        return opener.attach(deadline)
    except (ConnectionLost, NotFound, PermissionDenied):
        return None


def _check_place(opener: Opener) -> None:
    """That a store which is open already has its fragments where the user says, if anything is said."""
    if opener.fragments is not None:
        fragments_url(opener.directory, opener.fragments)


@contextmanager
def _closed_on_error(remote: ConnectedStore) -> Iterator[None]:
    try:
        yield
    except BaseException:
        remote.close()
        raise
