"""The tables of a metastore's SQLite file (layout version 2), and how a file of version 1 becomes one.

    store       one row: the newest revision, the one up to which history was compacted, and the digest of `live`
    change      every change since then: `version` counts a key's changes since it was created; 0 is a deletion
    live        each key there is now, its newest change, and the lease it is bound to
    superseded  changes that no revision from this one on can see: what a compaction deletes
    lease       `renewals` counts keep-alives; `elapsed_ms` is a lower bound of the time since the last one

`sum` and `digest` are told in `sums`. Version 1 had neither; it is carried forward by the first who opens it to write.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache

from stelae.adapters.sqlite.sums import EMPTY, DamagedRow, sum_of_change, sum_of_lease, with_sum
from stelae.adapters.sqlite.tables import LAYOUT_VERSION, read_store, write_store
from stelae.model.errors import InvalidArgument, UnsupportedFormat
from stelae.ports.metastore import Revision

OLDER_VERSION = 1

_APPLICATION_ID = 1398033477  # "STLE" as four bytes

_TABLES = """
CREATE TABLE store (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL, compacted INTEGER NOT NULL,
    digest INTEGER NOT NULL, sum INTEGER NOT NULL);
CREATE TABLE change (
    id INTEGER PRIMARY KEY, revision INTEGER NOT NULL, key BLOB NOT NULL, version INTEGER NOT NULL,
    create_revision INTEGER NOT NULL, lease INTEGER, value BLOB NOT NULL, sum INTEGER NOT NULL);
CREATE UNIQUE INDEX change_by_key ON change (key, revision, version);
CREATE INDEX change_by_revision ON change (revision, key);
CREATE TABLE live (key BLOB PRIMARY KEY, change INTEGER NOT NULL, lease INTEGER) WITHOUT ROWID;
CREATE INDEX live_by_lease ON live (lease) WHERE lease IS NOT NULL;
CREATE TABLE superseded (revision INTEGER, change INTEGER, PRIMARY KEY (revision, change)) WITHOUT ROWID;
CREATE TABLE lease (
    id INTEGER PRIMARY KEY AUTOINCREMENT, ttl_ms INTEGER NOT NULL, renewals INTEGER NOT NULL,
    elapsed_ms INTEGER NOT NULL, sum INTEGER NOT NULL);
"""

_TABLES_1 = """
CREATE TABLE store (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL, compacted INTEGER NOT NULL);
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
"""

_CARRIED = """
ALTER TABLE change RENAME TO change_1;
ALTER TABLE lease RENAME TO lease_1;
ALTER TABLE store RENAME TO store_1;
ALTER TABLE live RENAME TO live_1;
ALTER TABLE superseded RENAME TO superseded_1;
DROP INDEX change_by_key;
DROP INDEX change_by_revision;
DROP INDEX live_by_lease;
"""

_COPIED = """
INSERT INTO change SELECT id, revision, key, version, create_revision, lease, value,
    sum_of_change(key, value, create_revision, revision, version, lease) FROM change_1;
INSERT INTO live SELECT key, change, lease FROM live_1;
INSERT INTO superseded SELECT revision, change FROM superseded_1;
INSERT INTO lease SELECT id, ttl_ms, renewals, elapsed_ms, sum_of_lease(id, ttl_ms, renewals, elapsed_ms) FROM lease_1;
DELETE FROM sqlite_sequence WHERE name = 'lease';
UPDATE sqlite_sequence SET name = 'lease' WHERE name = 'lease_1';
INSERT INTO store SELECT one, revision, compacted, 0, 0 FROM store_1;
DROP TABLE change_1;
DROP TABLE lease_1;
DROP TABLE store_1;
DROP TABLE live_1;
DROP TABLE superseded_1;
"""

_OBJECTS = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"


def layout_version(db: sqlite3.Connection, path: str) -> int:
    """Of which layout the file is; 0 if nothing was ever put into it. Within a transaction.

    DamagedRow if it was ours and is damaged, InvalidArgument if it is another program's, UnsupportedFormat if a newer
    release wrote it.
    """
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    objects = db.execute(_OBJECTS).fetchall()
    if not (application or version or objects):
        return 0
    tables = next((known for known in (LAYOUT_VERSION, OLDER_VERSION) if objects == _objects_of(known)), None)
    if tables is not None and (application, version) == (_APPLICATION_ID, tables):
        return tables
    if tables == OLDER_VERSION or (tables == LAYOUT_VERSION and _is_whole(db)):
        raise DamagedRow(f"its header does not say that its tables are of layout version {tables}")
    if application != _APPLICATION_ID:
        raise InvalidArgument(f"{path} is an SQLite file of another program, not a metastore")
    if version > LAYOUT_VERSION:
        raise UnsupportedFormat(
            f"{path} has layout version {version}; this release reads version {LAYOUT_VERSION}: use a newer release"
        )
    raise DamagedRow(f"its tables are not those of layout version {version}")


def create_tables(db: sqlite3.Connection) -> None:
    """Make the tables in an empty file. The caller is within a transaction."""
    _execute_all(db, _TABLES)
    db.execute("INSERT INTO store VALUES (1, 1, 0, 0, 0)")
    write_store(db, Revision(1), Revision(0), EMPTY)
    _write_header(db)


def carry_forward(db: sqlite3.Connection) -> None:
    """Give a file of version 1 the tables of this one, with everything in them. Within a transaction."""
    db.create_function("sum_of_change", 6, sum_of_change, deterministic=True)
    db.create_function("sum_of_lease", 4, sum_of_lease, deterministic=True)
    _execute_all(db, _CARRIED)
    _execute_all(db, _TABLES)
    _execute_all(db, _COPIED)
    digest = EMPTY
    for (sum_,) in db.execute("SELECT change.sum FROM live JOIN change ON change.id = live.change"):
        digest = with_sum(digest, sum_)
    revision, compacted = db.execute("SELECT revision, compacted FROM store").fetchone()
    write_store(db, Revision(revision), Revision(compacted), digest)
    _write_header(db)


def _write_header(db: sqlite3.Connection) -> None:
    db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {LAYOUT_VERSION}")


def _execute_all(db: sqlite3.Connection, statements: str) -> None:
    for statement in filter(str.strip, statements.split(";")):
        db.execute(statement)


@cache
def _objects_of(version: int) -> list[tuple[str, str, str, str | None]]:
    """What SQLite itself then says of the tables."""
    with closing(sqlite3.connect(":memory:")) as db:
        _execute_all(db, _TABLES if version == LAYOUT_VERSION else _TABLES_1)
        return db.execute(_OBJECTS).fetchall()


def _is_whole(db: sqlite3.Connection) -> bool:
    try:
        read_store(db)
    except DamagedRow:
        return False
    return True
