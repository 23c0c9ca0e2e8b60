"""Is all that a metastore's file held still in it? Asked before anybody writes to it.

SQLite reads a damaged page as it is, and takes a damaged or missing `-wal` for one that ended earlier: what was
committed is then silently gone. So before a file is used, all of this is looked at, and nothing changed:

- the structure of the file, its indexes included (`PRAGMA integrity_check`), and what its tables are;
- every live row has its checksum, is found under its own key, and all of them together are those that the newest
  revision speaks of (`sums`); so do the leases;
- the newest revision is not below the one that the mark beside the file says it had come to (`adapters.marks`).
"""

from __future__ import annotations

import os
import sqlite3

from stelae.adapters.marks import Mark, Reached
from stelae.adapters.sqlite.layout import OLDER_VERSION, layout_version
from stelae.adapters.sqlite.sums import EMPTY, DamagedRow, Digest, check_change, shown_key, with_sum
from stelae.adapters.sqlite.tables import LIVE, lease_rows, read_store
from stelae.model.errors import Corruption
from stelae.ports.metastore import Revision

_MARK_SUFFIX = ".mark"
_LEFT = "The data was left as it is"
_UNSIGNED = (1 << 64) - 1


def mark_of(path: str) -> Mark:
    """The mark of a metastore: beside it."""
    return Mark(os.path.splitext(path)[0] + _MARK_SUFFIX)


def reached_by(revision: Revision, digest: Digest) -> Reached:
    """A revision with the digest of all up to it, in the mark's form: its digests are unsigned, SQLite's are not."""
    return revision, digest & _UNSIGNED


def check_missing(path: str, marked: Reached | None) -> None:
    """Of a file that is not there, or empty: Corruption if it was there."""
    if marked is not None:
        raise Corruption(f"is missing or empty, and had come to revision {marked[0]}: bring it back. {_LEFT}", path)
    if os.path.exists(f"{path}-wal") and os.path.getsize(f"{path}-wal"):
        raise Corruption(f"is missing or empty, and its log {path}-wal is there: bring it back. {_LEFT}", path)


def prove(db: sqlite3.Connection, path: str, marked: Reached | None) -> int:
    """The version of the file's layout; 0 if it is empty. Within one transaction of reading.

    DamagedRow or Corruption if anything is not as it was written. `marked`: what its mark said before.
    """
    version = layout_version(db, path)
    if version == 0:
        if marked is not None:
            raise DamagedRow(f"it is empty, and had come to revision {marked[0]}: bring it back. {_LEFT}")
        return 0
    ((found,),) = db.execute("PRAGMA integrity_check(1)").fetchall()
    if found != "ok":
        raise DamagedRow(f"{found.splitlines()[-1]}. {_LEFT}")
    if version == OLDER_VERSION:
        return version
    revision, _, digest = read_store(db)
    if _digest(db, revision) != digest:
        raise DamagedRow(f"keys are missing or are not those of revision {revision}: restore a backup. {_LEFT}")
    _check_leases(db)
    _check_mark(revision, digest, marked)
    return version


def _digest(db: sqlite3.Connection, newest: Revision) -> Digest:
    digest = EMPTY
    for key, lease, *columns in db.execute(LIVE):
        row = tuple(columns)
        if row[0] is None:
            raise DamagedRow(f"the value of key {shown_key(key)} is missing")
        check_change(row)
        if key != row[0] or lease != row[5] or row[3] > newest:
            raise DamagedRow(f"key {shown_key(key)} has the value of another")
        digest = with_sum(digest, row[6])
    return digest


def _check_leases(db: sqlite3.Connection) -> None:
    leases = {row.id for row in lease_rows(db)}
    for key, lease in db.execute("SELECT key, lease FROM live WHERE lease IS NOT NULL"):
        if lease not in leases:
            raise DamagedRow(f"the lease of key {shown_key(key)} is missing")
    (live,) = db.execute("SELECT count(*) FROM superseded WHERE change IN (SELECT change FROM live)").fetchone()
    if live:
        raise DamagedRow("values that are needed are listed as outdated")


def _check_mark(revision: Revision, digest: Digest, marked: Reached | None) -> None:
    if marked is None or marked < (revision, 0):
        return
    if marked[0] > revision:
        raise DamagedRow(
            f"it is at revision {revision}, and had come to revision {marked[0]}: its newest changes were lost, or an "
            f"older file was put in its place. Bring it back, with its -wal. {_LEFT}"
        )
    if marked != reached_by(revision, digest):
        raise DamagedRow(f"it is not what it was at revision {revision}: bring it back. {_LEFT}")
