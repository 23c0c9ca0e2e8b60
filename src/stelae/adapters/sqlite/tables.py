"""What each call of the metastore does to the tables, inside a transaction that the caller opened."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from stelae.adapters.sqlite.sums import (
    DamagedRow,
    Digest,
    check_change,
    check_lease,
    shown_key,
    sum_of_change,
    sum_of_lease,
    sum_of_store,
    with_sum,
    without_sum,
)
from stelae.ports.metastore import (
    Change,
    Compacted,
    Compare,
    DeleteKey,
    DeletePrefix,
    Entry,
    IsAbsent,
    KeyDeleted,
    KeyPut,
    LeaseExpired,
    LeaseId,
    ModRevisionIs,
    PutKey,
    RangeRead,
    Revision,
    TxnOutcome,
    ValueIs,
    WatchBatch,
)
from stelae.ports.metastore_rules import check_not_ahead, key_bytes, prefix_bytes, prefix_end

LAYOUT_VERSION = 2
"""It is part of the sum of `store`: a row of another layout is not taken for one of this."""

BATCH_ROWS_MAX = 1000
BATCH_BYTES_MAX = 4 << 20
COMPACT_ROWS_MAX = 1000

_PAST_ALL = b"\xff"  # greater than any UTF-8
_NO_LIMIT = -1

_COLUMNS = "change.key, change.value, change.create_revision, change.revision, change.version, change.lease, change.sum"
_LIVE_ONE = f"SELECT {_COLUMNS} FROM live JOIN change ON change.id = live.change WHERE live.key = ?"  # noqa: S608
LIVE = f"SELECT live.key, live.lease, {_COLUMNS} FROM live LEFT JOIN change ON change.id = live.change"  # noqa: S608
"""Every live key, also one whose change is missing."""
_LIVE_RANGE = f"""
SELECT {_COLUMNS} FROM live CROSS JOIN change ON change.id = live.change
WHERE live.key >= ? AND live.key < ? ORDER BY live.key LIMIT ?"""  # noqa: S608
# Of the rows of a group, SQLite takes the other columns from the one that has the max(); so this reads the index alone,
# in its order, and stops at the limit.
_OLD_RANGE = f"""
SELECT {_COLUMNS} FROM (
    SELECT id, key, version, max(revision) FROM change INDEXED BY change_by_key
    WHERE key >= ? AND key < ? AND revision <= ? GROUP BY key HAVING version > 0 ORDER BY key LIMIT ?
) AS newest CROSS JOIN change ON change.id = newest.id ORDER BY newest.key"""  # noqa: S608
_CHANGES = f"""
SELECT {_COLUMNS} FROM change INDEXED BY change_by_revision
WHERE revision >= ? AND key >= ? AND key < ? ORDER BY revision, key"""  # noqa: S608
_NEWEST = """
SELECT id, version, create_revision, sum FROM change WHERE id = (SELECT change FROM live WHERE key = ?)"""
_ADD_CHANGE = """
INSERT INTO change (revision, key, version, create_revision, lease, value, sum) VALUES (?, ?, ?, ?, ?, ?, ?)"""
_LEASES = "SELECT id, ttl_ms, renewals, elapsed_ms, sum FROM lease"

ChangeRow: TypeAlias = tuple[bytes, bytes, int, int, int, int | None, int]
"""A change as it is read: its values in the order of `_COLUMNS`."""


class LeaseRow(msgspec.Struct, frozen=True):
    id: LeaseId
    ttl_ms: int
    renewals: int
    elapsed_ms: int


def read_one(db: sqlite3.Connection, key: str, revision: Revision | None) -> Entry | None:
    if revision is None:
        return _live(db, key)
    _readable(db, revision)
    name = key_bytes(key)
    row = db.execute(_OLD_RANGE, (name, name + b"\0", revision, 1)).fetchone()
    return None if row is None else _entry(row)


def read_range(
    db: sqlite3.Connection, prefix: str, start: str | None, limit: int | None, revision: Revision | None
) -> RangeRead:
    newest = _readable(db, revision)
    begin, end = _bounds(prefix, start)
    wanted = _NO_LIMIT if limit is None else limit + 1
    if revision is None or revision == newest:
        rows = db.execute(_LIVE_RANGE, (begin, end, wanted))
    else:
        rows = db.execute(_OLD_RANGE, (begin, end, revision, wanted))
    entries = tuple(_entry(row) for row in rows)
    return RangeRead(entries[:limit], revision or newest, limit is not None and len(entries) > limit)


def read_batches(db: sqlite3.Connection, prefix: str, from_revision: Revision) -> tuple[list[WatchBatch], Revision]:
    """Some of the batches at or after the revision, whole ones, and the revision from which to read on."""
    newest, compacted, _ = read_store(db)
    if from_revision <= compacted:
        raise Compacted(from_revision, Revision(compacted + 1))
    batches: list[WatchBatch] = []
    events: list[KeyPut | KeyDeleted] = []
    revision, bytes_read = Revision(0), 0
    for rows_read, row in enumerate(db.execute(_CHANGES, (from_revision, *_bounds(prefix, None)))):
        if row[3] != revision:
            if events:
                batches.append(WatchBatch(revision, tuple(events)))
                events = []
            if rows_read >= BATCH_ROWS_MAX or bytes_read >= BATCH_BYTES_MAX:
                return batches, Revision(revision + 1)
        entry = _entry(row)
        revision = entry.mod_revision
        bytes_read += len(entry.value)
        events.append(KeyPut(entry) if entry.version else KeyDeleted(entry.key))
    if events:
        batches.append(WatchBatch(revision, tuple(events)))
    return batches, max(from_revision, Revision(newest + 1))


def run_txn(db: sqlite3.Connection, compares: Sequence[Compare], changes: Sequence[Change]) -> TxnOutcome:
    if not all(_holds(db, compare) for compare in compares):
        return TxnOutcome(False, read_store(db)[0])
    puts = [change for change in changes if isinstance(change, PutKey)]
    for put in puts:
        if put.lease is not None:
            lease_row(db, put.lease)
    gone = [key for change in changes for key in _deleted_by(db, change)]
    return TxnOutcome(True, _commit(db, puts, gone))


def begin_compaction(db: sqlite3.Connection, revision: Revision) -> None:
    """From here on nothing older can be asked for; the rows go by `compact_some`."""
    newest, compacted, digest = read_store(db)
    check_not_ahead(revision, newest)
    if revision > compacted:
        write_store(db, newest, revision, digest)


def compact_some(db: sqlite3.Connection) -> bool:
    """Delete some of what was compacted away; whether there may be more. Oldest first: a deletion goes after the
    change that it undid, which could be read again otherwise."""
    _, compacted, _ = read_store(db)
    rows = db.execute(
        "SELECT revision, change FROM superseded WHERE revision <= ? ORDER BY revision, change LIMIT ?",
        (compacted, COMPACT_ROWS_MAX),
    ).fetchall()
    db.executemany("DELETE FROM change WHERE id = ?", [(change,) for _, change in rows])
    db.executemany("DELETE FROM superseded WHERE revision = ? AND change = ?", rows)
    return len(rows) == COMPACT_ROWS_MAX


def add_lease(db: sqlite3.Connection, ttl_ms: int) -> LeaseId:
    made = db.execute("INSERT INTO lease (ttl_ms, renewals, elapsed_ms, sum) VALUES (?, 0, 0, 0)", (ttl_ms,))
    lease = LeaseId(made.lastrowid or 0)
    _write_lease(db, LeaseRow(lease, ttl_ms, renewals=0, elapsed_ms=0))
    return lease


def lease_row(db: sqlite3.Connection, lease: LeaseId) -> LeaseRow:
    row = db.execute(f"{_LEASES} WHERE id = ?", (lease,)).fetchone()
    if row is None:
        raise LeaseExpired(f"lease {lease} is not there: it ran out, was revoked, or never was")
    check_lease(row)
    return LeaseRow(*row[:4])


def lease_rows(db: sqlite3.Connection) -> list[LeaseRow]:
    rows = db.execute(_LEASES).fetchall()
    for row in rows:
        check_lease(row)
    return [LeaseRow(*row[:4]) for row in rows]


def renew_lease(db: sqlite3.Connection, lease: LeaseId) -> LeaseRow:
    before = lease_row(db, lease)
    renewed = LeaseRow(lease, before.ttl_ms, before.renewals + 1, elapsed_ms=0)
    _write_lease(db, renewed)
    return renewed


def age_lease(db: sqlite3.Connection, row: LeaseRow, elapsed_ms: int) -> None:
    """Remember that at least this time has passed since that renewal."""
    try:
        now = lease_row(db, row.id)
    except LeaseExpired:
        return
    if now.renewals == row.renewals and now.elapsed_ms < elapsed_ms:
        _write_lease(db, LeaseRow(row.id, now.ttl_ms, now.renewals, elapsed_ms))


def end_lease(db: sqlite3.Connection, lease: LeaseId, renewals: int | None = None) -> None:
    """Delete the lease and its keys, in one revision; only if it was not renewed since, where `renewals` is given."""
    try:
        row = lease_row(db, lease)
    except LeaseExpired:
        return
    if renewals not in (None, row.renewals):
        return
    _commit(db, [], _keys(db, "SELECT key FROM live WHERE lease = ?", lease))
    db.execute("DELETE FROM lease WHERE id = ?", (lease,))


def _write_lease(db: sqlite3.Connection, row: LeaseRow) -> None:
    numbers = (row.ttl_ms, row.renewals, row.elapsed_ms)
    db.execute(
        "UPDATE lease SET ttl_ms = ?, renewals = ?, elapsed_ms = ?, sum = ? WHERE id = ?",
        (*numbers, sum_of_lease(row.id, *numbers), row.id),
    )


def read_store(db: sqlite3.Connection) -> tuple[Revision, Revision, Digest]:
    """The newest revision, the one up to which history was compacted, and the digest of what is live."""
    rows = db.execute("SELECT revision, compacted, digest, sum FROM store").fetchall()
    if len(rows) != 1 or any(type(number) is not int for number in rows[0]):
        raise DamagedRow("it does not say at which revision it is")
    revision, compacted, digest, sum_ = rows[0]
    if sum_of_store(LAYOUT_VERSION, revision, compacted, digest) != sum_:
        raise DamagedRow("the revision that it is at does not have its checksum")
    return Revision(revision), Revision(compacted), digest


def write_store(db: sqlite3.Connection, revision: Revision, compacted: Revision, digest: Digest) -> None:
    sum_ = sum_of_store(LAYOUT_VERSION, revision, compacted, digest)
    db.execute("UPDATE store SET revision = ?, compacted = ?, digest = ?, sum = ?", (revision, compacted, digest, sum_))


def _readable(db: sqlite3.Connection, revision: Revision | None) -> Revision:
    newest, compacted, _ = read_store(db)
    if revision is not None:
        check_not_ahead(revision, newest)
        if revision < compacted:
            raise Compacted(revision, compacted)
    return newest


def _bounds(prefix: str, start: str | None) -> tuple[bytes, bytes]:
    begin = prefix_bytes(prefix)
    return max(begin, prefix_bytes(start or "")), prefix_end(begin) or _PAST_ALL


def _live(db: sqlite3.Connection, key: str) -> Entry | None:
    row = db.execute(_LIVE_ONE, (key_bytes(key),)).fetchone()
    return None if row is None else _entry(row)


def _holds(db: sqlite3.Connection, compare: Compare) -> bool:
    entry = _live(db, compare.key)
    match compare:
        case IsAbsent():
            return entry is None
        case ValueIs(_, value):
            return entry is not None and entry.value == value
        case ModRevisionIs(_, revision):
            return entry is not None and entry.mod_revision == revision


def _deleted_by(db: sqlite3.Connection, change: Change) -> list[bytes]:
    match change:
        case PutKey():
            return []
        case DeleteKey(key):
            return _keys(db, "SELECT key FROM live WHERE key = ?", key_bytes(key))
        case DeletePrefix(prefix):
            return _keys(db, "SELECT key FROM live WHERE key >= ? AND key < ?", *_bounds(prefix, None))


def _keys(db: sqlite3.Connection, query: str, *arguments: bytes | int) -> list[bytes]:
    return [key for (key,) in db.execute(query, arguments)]


def _commit(db: sqlite3.Connection, puts: list[PutKey], gone: list[bytes]) -> Revision:
    newest, compacted, digest = read_store(db)
    if not puts and not gone:
        return newest
    revision = Revision(newest + 1)
    for put in puts:
        digest = _put(db, put, revision, digest)
    for key in gone:
        digest = _delete(db, key, revision, digest)
    write_store(db, revision, compacted, digest)
    return revision


def _put(db: sqlite3.Connection, put: PutKey, revision: Revision, digest: Digest) -> Digest:
    key = key_bytes(put.key)
    change, version, create_revision, sum_before = db.execute(_NEWEST, (key,)).fetchone() or (None, 0, revision, 0)
    if change is not None:
        db.execute("INSERT INTO superseded VALUES (?, ?)", (revision, change))
    sum_ = sum_of_change(key, put.value, create_revision, revision, version + 1, put.lease)
    made = db.execute(_ADD_CHANGE, (revision, key, version + 1, create_revision, put.lease, put.value, sum_))
    db.execute("INSERT OR REPLACE INTO live VALUES (?, ?, ?)", (key, made.lastrowid, put.lease))
    return with_sum(without_sum(digest, sum_before), sum_)


def _delete(db: sqlite3.Connection, key: bytes, revision: Revision, digest: Digest) -> Digest:
    """The deletion itself is superseded at once: it is kept for watches only."""
    before = db.execute(_NEWEST, (key,)).fetchone()
    if before is None:
        raise DamagedRow(f"the value of key {shown_key(key)} is missing")
    change, _, _, sum_before = before
    sum_ = sum_of_change(key, b"", 0, revision, 0, None)
    made = db.execute(_ADD_CHANGE, (revision, key, 0, 0, None, b"", sum_))
    db.execute("INSERT INTO superseded VALUES (?, ?)", (revision, change))
    db.execute("INSERT INTO superseded VALUES (?, ?)", (revision, made.lastrowid))
    db.execute("DELETE FROM live WHERE key = ?", (key,))
    return without_sum(digest, sum_before)


def _entry(row: ChangeRow) -> Entry:
    check_change(row)
    key, value, create_revision, revision, version, lease, _ = row
    bound = None if lease is None else LeaseId(lease)
    return Entry(key.decode(), value, Revision(create_revision), Revision(revision), version, bound)
