"""The metastore's SQLite file: its layout (version 1), how it is opened, and what SQLite's refusals mean.

    store       one row: the newest revision, and the one up to which history was compacted
    change      every change since then: `version` counts a key's changes since it was created; 0 is a deletion
    live        each key there is now, its newest change, and the lease it is bound to
    superseded  changes that no revision from this one on can see: what a compaction deletes
    lease       `renewals` counts keep-alives; `elapsed_ms` is a lower bound of the time since the last one

WAL mode lets readers of all processes go on beside one writer. With synchronous=FULL a commit returns after its bytes
were synced: it survives power loss, for one fsync. A process killed at any instant leaves a log that the next one reads
up to its last whole commit.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from stelae.adapters.files import make_directories, os_errors, sync_directory
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
    UnsupportedFormat,
)

T = TypeVar("T")

LAYOUT_VERSION = 1
LOCK_WAIT_S = 10.0

_APPLICATION_ID = 1398033477  # "STLE" as four bytes
_LOG_BYTES_KEPT_MAX = 64 << 20
_RETRY_S = 0.01

_LAYOUT = """
CREATE TABLE store (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL, compacted INTEGER NOT NULL);
INSERT INTO store VALUES (1, 1, 0);
CREATE TABLE change (
    id INTEGER PRIMARY KEY, revision INTEGER NOT NULL, key BLOB NOT NULL, version INTEGER NOT NULL,
    create_revision INTEGER NOT NULL, lease INTEGER, value BLOB NOT NULL);
CREATE UNIQUE INDEX change_by_key ON change (key, revision, version);
CREATE INDEX change_by_revision ON change (revision, key);
CREATE TABLE live (key BLOB PRIMARY KEY, change INTEGER NOT NULL, lease INTEGER) WITHOUT ROWID;
CREATE INDEX live_by_lease ON live (lease) WHERE lease IS NOT NULL;
CREATE TABLE superseded (revision INTEGER, change INTEGER, PRIMARY KEY (revision, change)) WITHOUT ROWID;
CREATE TABLE lease (
    id INTEGER PRIMARY KEY AUTOINCREMENT, ttl_ms INTEGER NOT NULL, renewals INTEGER NOT NULL,
    elapsed_ms INTEGER NOT NULL);
PRAGMA application_id = 1398033477;
PRAGMA user_version = 1;
"""

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_REFUSED = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_CANTOPEN}
# The statements are fixed and were tried: only a file whose tables are not ours makes SQLite call one an ERROR.
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR}


def open_connection(path: str, *, read_only: bool) -> sqlite3.Connection:
    """A connection to a file of our layout, made if it is not there. What is not ours is not touched."""
    if not os.path.exists(path):
        if read_only:
            raise NotFound(f"{path}: there is no metastore to read")
        with os_errors(path):
            make_directories(os.path.dirname(path))
    connection = _patiently(path, lambda: _connect(path, read_only))
    try:
        _patiently(path, lambda: _prepare(connection, path, read_only))
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
            _roll_back(connection)
            raise
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        _roll_back(connection)
        meaning = _meaning(error, path)
        if isinstance(meaning, DiskFailed):
            raise UnknownOutcome(f"{path}: {error}") from error
        raise meaning from error


def _roll_back(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):  # SQLite has rolled back by itself
        connection.execute("ROLLBACK")


def _connect(path: str, read_only: bool) -> sqlite3.Connection:
    url = f"{Path(path).as_uri()}?mode={'ro' if read_only else 'rwc'}"
    return sqlite3.connect(url, uri=True, timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False)


def _prepare(connection: sqlite3.Connection, path: str, read_only: bool) -> None:
    if _is_empty(connection, path):
        if read_only:
            raise NotFound(f"{path}: there is no metastore to read")
        _create(connection, path)
        _is_empty(connection, path)
    if not read_only:
        _set_wal(connection, path)
        connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES_KEPT_MAX}")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")
        connection.execute("PRAGMA checkpoint_fullfsync = ON")


def _is_empty(connection: sqlite3.Connection, path: str) -> bool:
    """Whether nothing was ever put into the file. Raises if what was put there is not ours, or is newer than we."""
    with reading(connection, path):
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not (application or version or tables):
        return True
    if application != _APPLICATION_ID:
        raise InvalidArgument(f"{path} is an SQLite file of another program, not a metastore")
    if version != LAYOUT_VERSION:
        raise UnsupportedFormat(
            f"{path} has layout version {version}; this release reads version {LAYOUT_VERSION}: use a newer release"
        )
    return False


def _create(connection: sqlite3.Connection, path: str) -> None:
    _set_wal(connection, path)
    connection.execute("PRAGMA synchronous = FULL")
    with writing(connection, path):
        if _is_still_empty(connection):
            for statement in filter(str.strip, _LAYOUT.split(";")):
                connection.execute(statement)
    with os_errors(path):
        sync_directory(os.path.dirname(path))


def _is_still_empty(connection: sqlite3.Connection) -> bool:
    return not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


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
