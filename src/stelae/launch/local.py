"""Opens the embedded store of a directory, with real files, threads and clocks.

    DIR/metastore.db     the catalog, the tablets' records, the root of the META tables
    DIR/log/             what is not in fragments yet
    DIR/*.mark           how far the metastore and the log have come, for whoever finds less of them later
    DIR/fragments/       the data, as Parquet files, unless they lie elsewhere (see `fragments`)
    DIR/owner            who has the directory open

Opened only to be read, nothing in the directory is changed, not even what a crash left: the metastore and the log are
copied, and recovery works on the copies.
"""

from __future__ import annotations

import atexit
import getpass
import os
import shutil
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from stelae.adapters.clock import SystemClock
from stelae.adapters.descriptors import take_descriptors
from stelae.adapters.event_log import EventLog
from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.files import memory_of_machine
from stelae.adapters.logfiles.deferred import DeferredLogFiles
from stelae.adapters.logfiles.local import LocalLogFiles
from stelae.adapters.logfiles.marks import LogMarks
from stelae.adapters.ownership import Ownership
from stelae.adapters.rng import SystemRng
from stelae.adapters.sqlite.metastore import SqliteMetastore
from stelae.adapters.threads import LoopThread
from stelae.assembly.embedded import EmbeddedStore
from stelae.assembly.world import StoreSettings, World
from stelae.launch.copies import copy_files, name_original
from stelae.launch.fragments import open_fragment_blobs
from stelae.launch.metastores import LOG_DIRECTORY, MARKS, METASTORE_FILE, SEGMENT_SUFFIX, has_metastore
from stelae.launch.steps import start_steps
from stelae.model.errors import InvalidArgument, NotFound, StelaeError
from stelae.model.events import Listener, Listeners, tell_nobody
from stelae.storage.files.handles import OPEN_FILES
from stelae.storage.shard import ShardSettings

_READING_QUEUED_MAX = 10_000
_CACHE_BYTES_MAX = 2 * 2**30
_MEMORY_BYTES_MIN = 16 * 2**20


def shard_settings(memory_bytes: int | None, sharing: int = 1) -> ShardSettings:
    """`memory_bytes` bounds the block cache and what is not yet in files, together. Unless it is given, the cache may
    have an eighth of the machine's memory, or its part of that if so many are `sharing` it."""
    plain = ShardSettings()
    if memory_bytes is None:
        cache_bytes = min(max(memory_of_machine() // 8 // sharing, plain.cache_bytes), _CACHE_BYTES_MAX)
        return replace(plain, cache_bytes=cache_bytes)
    if type(memory_bytes) is not int or memory_bytes < _MEMORY_BYTES_MIN:
        raise InvalidArgument(f"memory_bytes is {memory_bytes!r}; a store needs {_MEMORY_BYTES_MIN} or more")
    share = memory_bytes // 8
    serializer = replace(plain.serializer, seal_bytes=min(plain.serializer.seal_bytes, share), memory_bytes=2 * share)
    return replace(
        plain, cache_bytes=3 * share, unflushed_bytes_max=4 * share, reserve_bytes=share, serializer=serializer
    )


class LocalStore(EmbeddedStore):
    """An embedded store with the threads and files it lives on, all of which end with it."""

    def __init__(
        self,
        directory: Path,
        ownership: Ownership | None,
        settings: StoreSettings,
        *,
        read_only: bool = False,
        fragments: str | None = None,
        listener: Listener = tell_nobody,
    ) -> None:
        """What happens in the store is in the process's log (`adapters.event_log`), and told to `listener`."""
        self._users = 1
        self._ends: list[Callable[[], None]] = []
        self._ending = threading.RLock()
        self._ownership = ownership
        self.is_forked = False
        working = directory
        OPEN_FILES.allow(take_descriptors())
        try:
            if ownership is not None:
                self._ends.append(ownership.release)
            working = self._copy_metadata(directory) if read_only else directory
            loop = self.loop = LoopThread("stelae-master")
            self._ends.append(loop.close)
            clock = SystemClock()
            metastore = loop.run(SqliteMetastore.open(working / METASTORE_FILE, clock, held=True))
            self._ends.append(lambda: loop.run(metastore.close()))
            reading = ThreadExecutor(max(2, os.cpu_count() or 1), _READING_QUEUED_MAX)
            self._ends.append(reading.close)
            marks = LogMarks(working, SEGMENT_SUFFIX)
            self._ends.append(marks.close)
            logs = DeferredLogFiles(LocalLogFiles(working / LOG_DIRECTORY, SEGMENT_SUFFIX, marks))
            rng = SystemRng()
            blobs, url = open_fragment_blobs(directory, metastore, rng, loop.run, fragments, read_only=read_only)
            world = World(logs, blobs, metastore, clock, rng, loop, reading)
            heard = Listeners(EventLog(str(directory)), listener)

            def settle() -> None:
                """What was found has proved good: from now on the directory is written to."""
                loop.run(metastore.settle())
                logs.settle()

            super().__init__(world, settings, str(directory), settle, heard, fragments=url)
            self._ends.append(super().abandon if read_only else super().close)
            if not read_only:
                self._ends += reversed(start_steps(self))
            _close_at_exit(self)
        except StelaeError as error:
            self.end()
            raise name_original(directory, working, error) from error.__cause__
        except BaseException:
            self.end()
            raise

    def _copy_metadata(self, directory: Path) -> Path:
        """The metastore and the log, in a directory that goes when the store is closed."""
        if not has_metastore(directory):
            raise NotFound(f"no store in {directory}: there is no {METASTORE_FILE}")
        copy = copy_files(directory, MARKS, f"{METASTORE_FILE}*", LOG_DIRECTORY)
        self._ends.append(lambda: shutil.rmtree(copy, ignore_errors=True))
        return copy

    def before_close(self, end: Callable[[], None]) -> None:
        """Whatever else lives on the store ends first."""
        self._ends.append(end)

    def share(self) -> LocalStore:
        """One more user of the same process: the store ends with the last of them."""
        with self._ending:
            self._users += 1
        return self

    def close(self) -> None:
        """One user less. Closing after the end is no error."""
        with self._ending:
            self._users -= 1
            if self._users <= 0 and not self.is_forked:
                self.end()

    def end(self) -> None:
        """In the reverse of the order in which things began; whatever fails, the rest still ends."""
        with self._ending:
            while self._ends:
                end = self._ends.pop()
                try:
                    end()
                except BaseException:
                    self.end()
                    raise

    def after_fork(self) -> None:
        """In the child: its threads are gone, and locks may be held for ever. Nothing may be touched any more."""
        self.is_forked = True
        self.server.visits.fork()
        if self._ownership is not None:
            self._ownership.forget()


_registered: list[bool] = []
_open_stores: weakref.WeakSet[LocalStore] = weakref.WeakSet()


def _close_at_exit(store: LocalStore) -> None:
    """A store that nobody closed is closed while threads can still work: what is written is found in files next time,
    not in the log."""
    if not _registered:
        _registered.append(True)
        register = getattr(threading, "_register_atexit", atexit.register)
        register(_close_all)
        os.register_at_fork(after_in_child=_note_fork)
    _open_stores.add(store)


def _close_all() -> None:
    for store in list(_open_stores):
        if not store.is_forked:
            store.end()


def _note_fork() -> None:
    for store in list(_open_stores):
        store.after_fork()


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
