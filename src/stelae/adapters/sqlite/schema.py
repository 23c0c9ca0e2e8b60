"""How the metastore's SQLite file is opened, and what SQLite's refusals mean.

WAL mode lets readers of all processes go on beside one writer. With synchronous=FULL a commit returns after its bytes
were synced: it survives power loss, for one fsync. A process killed at any instant leaves a log that the next one reads
up to its last whole commit.

Whoever opens the file first looks at all of it, by a connection that cannot write (`proving`): SQLite writes its log
into the file, and deletes the log, as soon as one that can write is closed. What is not ours, or damaged, is not
touched.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from stelae.adapters.files import make_directories, os_errors, sync_directory
from stelae.adapters.marks import Mark, Reached
from stelae.adapters.sqlite.layout import OLDER_VERSION, carry_forward, create_tables, layout_version
from stelae.adapters.sqlite.proving import check_missing, prove
from stelae.adapters.sqlite.sums import DamagedRow
from stelae.adapters.sqlite.tables import LAYOUT_VERSION
from stelae.model.errors import (
    Corruption,
    DiskFailed,
    DiskFull,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    StelaeError,
    Unavailable,
    UnknownOutcome,
)

T = TypeVar("T")

LOCK_WAIT_S = 10.0

_LOG_BYTES_KEPT_MAX = 64 << 20
_RETRY_S = 0.01

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_REFUSED = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_CANTOPEN}
# The statements are fixed and were tried: only a file whose tables are not ours makes SQLite call one an ERROR.
_DAMAGED = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_TOOBIG,
}


def prepare_file(path: str, mark: Mark, *, read_only: bool, held: bool = False) -> bool:
    """See that the file is whole and of this layout; it is made if it is not there, and carried forward if it is of an
    older one. Read-only, NotFound and OutdatedLayout say so instead. `held`: whether it is to be carried forward is
    told, and left to the caller. Blocking."""
    marked = mark.read()  # first: others may commit and note it while this looks
    if not (os.path.exists(path) and os.path.getsize(path)):  # SQLite would delete the log of an empty file
        check_missing(path, marked)
        if read_only:
            raise NotFound(f"{path}: there is no metastore to read")
        with os_errors(path):
            make_directories(os.path.dirname(path))
        version = 0
    else:
        version = _patiently(path, lambda: _prove_file(path, marked))
    if version != LAYOUT_VERSION:
        if read_only:
            raise NotFound(f"{path}: there is no metastore to read") if not version else OutdatedLayout(path)
        if version and held:
            return True
        _patiently(path, lambda: _make_layout(path))
    return False


class OutdatedLayout(Exception):
    """The file is of an older layout, and whoever opened it may not change it."""


def _prove_file(path: str, marked: Reached | None) -> int:
    with closing(_connect(path, read_only=True)) as connection, reading(connection, path):
        return prove(connection, path, marked)


def _make_layout(path: str) -> None:
    with closing(_connect(path, read_only=False)) as connection:
        _set_wal(connection, path)
        connection.execute("PRAGMA synchronous = FULL")
        with writing(connection, path):
            match layout_version(connection, path):
                case 0:
                    create_tables(connection)
                case _ as version if version == OLDER_VERSION:
                    carry_forward(connection)
    with os_errors(path):
        sync_directory(os.path.dirname(path))


def open_connection(path: str, *, read_only: bool) -> sqlite3.Connection:
    """A connection to a file that `prepare_file` has looked at."""
    connection = _patiently(path, lambda: _connect(path, read_only))
    try:
        if not read_only:
            _patiently(path, lambda: _prepare(connection, path))
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def sqlite_errors(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise _meaning(error, path) from error
    except (DamagedRow, UnicodeError) as error:  # what SQLite calls text is not
        raise Corruption(str(error), path) from error


@contextmanager
def reading(connection: sqlite3.Connection, path: str) -> Iterator[None]:
    """All statements see one state: that of the last commit before, of whichever process."""
    with sqlite_errors(path):
        connection.execute("BEGIN")
        try:
            yield
        finally:
            if connection.in_transaction:
                connection.execute("COMMIT")


@contextmanager
def writing(connection: sqlite3.Connection, path: str) -> Iterator[None]:
    """One durable transaction, alone among all processes. UnknownOutcome if its last step failed half-way: its bytes
    may be found, whole, by whoever opens the file after a crash."""
    with sqlite_errors(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            roll_back(connection)
            raise
    commit(connection, path)


@contextmanager
def writing_within(connection: sqlite3.Connection, path: str) -> Iterator[None]:
    """A part of a transaction that was begun: all of it, or none."""
    with sqlite_errors(path):
        connection.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK TO part")
                connection.execute("RELEASE part")
            raise
        connection.execute("RELEASE part")


def begin_writing(connection: sqlite3.Connection, path: str) -> None:
    """Nobody else writes until this is committed or rolled back."""
    _patiently(path, lambda: connection.execute("BEGIN IMMEDIATE"))


def commit(connection: sqlite3.Connection, path: str) -> None:
    """Commit to the disk. UnknownOutcome if it is not known whether that was done."""
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        roll_back(connection)
        meaning = _meaning(error, path)
        if isinstance(meaning, DiskFailed):
            raise UnknownOutcome(f"{path}: {error}") from error
        raise meaning from error


def roll_back(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):  # SQLite has rolled back by itself
        connection.execute("ROLLBACK")


def _connect(path: str, read_only: bool) -> sqlite3.Connection:
    url = f"{Path(path).as_uri()}?mode={'ro' if read_only else 'rwc'}"
    return sqlite3.connect(url, uri=True, timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False)


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    _set_wal(connection, path)
    connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES_KEPT_MAX}")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")
    connection.execute("PRAGMA checkpoint_fullfsync = ON")


def _set_wal(connection: sqlite3.Connection, path: str) -> None:
    if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise InvalidArgument(f"{path}: its file system cannot share memory between processes, which SQLite needs")


def _patiently(path: str, action: Callable[[], T]) -> T:
    """Changing the journal mode does not wait for locks by itself, so it is tried again while another process opens."""
    give_up = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            with sqlite_errors(path):
                return action()
        except Unavailable as error:
            if isinstance(error, DiskFull | DiskFailed) or time.monotonic() > give_up:
                raise
        time.sleep(_RETRY_S)


def _meaning(error: sqlite3.Error, path: str) -> StelaeError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _BUSY:
        return Unavailable(f"{path}: another process held the lock for more than {LOCK_WAIT_S:g} seconds")
    if code in _REFUSED:
        return PermissionDenied(f"{path}: {error}")
    if code in _DAMAGED:
        return Corruption(str(error), path)
    if code == sqlite3.SQLITE_FULL:
        return DiskFull(f"{path}: {error}")
    return DiskFailed(f"{path}: {error}")
