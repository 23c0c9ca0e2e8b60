"""What jobs hold of a store, and what they have loaded into it, as everybody may read it in the metastore.

    bulk/hold/{ticket}                           a table at a snapshot, and the files it needs
    bulk/load/{table id, 16 hex digits}/{job}    what a job has loaded, and its attempt under way; the job hashed

A hold's files are written in chunks before it: there may be very many.

The life of an attempt: *open* (files are being written), *prepared* (every tablet's config names them, unseen), then
the commit in the log, then *committed* here. A store that finds an attempt prepared, and no tablet that still has it
so, knows that the commit is in the log: only that lets go of what is prepared while the record says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from stelae.model.errors import Conflict, Corruption
from stelae.model.ids import SchemaVersion, TableId, Txn
from stelae.ports.metastore import (
    Change,
    Compare,
    DeleteKey,
    DeletePrefix,
    IsAbsent,
    Metastore,
    ModRevisionIs,
    PutKey,
)
from stelae.registry.chunks import Manifest, read_chunks, write_chunks
from stelae.registry.decoding import entries_under
from stelae.registry.views.own import OwnStore

HOLDS_PREFIX = "bulk/hold/"
HELD_FILES_PREFIX = "bulk/held/"
LOADS_PREFIX = "bulk/load/"
DONE_KEPT_MS = 90 * 24 * 3_600 * 1_000
"""So long is it known what a job has loaded, after it last loaded something."""


class HoldRecord(msgspec.Struct, frozen=True):
    ticket: str
    table: TableId
    txn: Txn
    expires_ms: int
    files: Manifest


class Attempt(msgspec.Struct, frozen=True):
    """One driver's work on a job. `prefix`: how its files' names begin."""

    ticket: str
    batch: int
    prefix: str
    schema_version: SchemaVersion
    expires_ms: int
    is_prepared: bool = False


class LoadRecord(msgspec.Struct, frozen=True):
    """Batches up to `done_batch` are loaded, the last by `done_ticket` at `done_txn`. What is under way for the job: an
    `attempt`, or in a cluster the record of a change (`changes.sessions`), whose id `session` is."""

    table: TableId
    job: str
    touched_ms: int
    done_batch: int = -1
    done_ticket: str = ""
    done_txn: Txn = Txn(0)
    attempt: Attempt | None = None
    session: str = ""


R = TypeVar("R")

_ENCODER = msgspec.json.Encoder()
_HOLDS = msgspec.json.Decoder(HoldRecord)
_LOADS = msgspec.json.Decoder(LoadRecord)


def load_key(table: TableId, job: str) -> str:
    return f"{LOADS_PREFIX}{table:016x}/{hashlib.sha256(job.encode()).hexdigest()[:32]}"


async def write_hold(
    store: OwnStore, ticket: str, table: TableId, txn: Txn, expires_ms: int, files: Sequence[str]
) -> HoldRecord:
    manifest = await write_chunks(store, f"{HELD_FILES_PREFIX}{ticket}/", [name.encode() for name in files])
    record = HoldRecord(ticket, table, txn, expires_ms, manifest)
    await renew_hold(store, record)
    return record


async def renew_hold(store: OwnStore, record: HoldRecord) -> None:
    await store.txn([], [PutKey(HOLDS_PREFIX + record.ticket, _ENCODER.encode(record))])


async def remove_hold(store: OwnStore, ticket: str) -> None:
    await store.txn([], [DeleteKey(HOLDS_PREFIX + ticket), DeletePrefix(f"{HELD_FILES_PREFIX}{ticket}/")])


async def read_holds(store: Metastore) -> list[tuple[HoldRecord, frozenset[str]]]:
    found = []
    for key, value in await _all(store, HOLDS_PREFIX):
        record = _decoded(_HOLDS, key, value)
        names = frozenset(part.decode() for part in await read_chunks(store, record.files))
        found.append((record, names))
    return found


async def write_load(store: OwnStore, record: LoadRecord) -> None:
    await store.txn([], [PutKey(load_key(record.table, record.job), _ENCODER.encode(record))])


async def remove_load(store: OwnStore, record: LoadRecord) -> None:
    await store.txn([], [DeleteKey(load_key(record.table, record.job))])


async def read_loads(store: Metastore) -> list[LoadRecord]:
    return [_decoded(_LOADS, key, value) for key, value in await _all(store, LOADS_PREFIX)]


async def read_jobs(store: Metastore, table: TableId) -> list[LoadRecord]:
    """What jobs have loaded into a table."""
    found = await _all(store, f"{LOADS_PREFIX}{table:016x}/")
    return [_decoded(_LOADS, key, value) for key, value in found]


async def forget_jobs(store: Metastore, is_kept: Callable[[TableId], bool], now_ms: int) -> int:
    """Remove the records of jobs whose table is gone for good, and of those that are done for long: how many. Nothing
    is removed of a job that somebody begins meanwhile."""
    count = 0
    for entry in await entries_under(store, LOADS_PREFIX):
        record = _decoded(_LOADS, entry.key, entry.value)
        is_done = record.attempt is None and not record.session
        if not is_kept(record.table) or (is_done and now_ms - record.touched_ms > DONE_KEPT_MS):
            unchanged = ModRevisionIs(entry.key, entry.mod_revision)
            count += (await store.txn([unchanged], [DeleteKey(entry.key)])).succeeded
    return count


async def read_job(store: Metastore, table: TableId, job: str) -> tuple[LoadRecord | None, Compare]:
    """What a job has loaded, and what holds as long as that is all."""
    key = load_key(table, job)
    entry = await store.get(key)
    if entry is None:
        return None, IsAbsent(key)
    return _decoded(_LOADS, key, entry.value), ModRevisionIs(key, entry.mod_revision)


def put_job(record: LoadRecord) -> Change:
    """The write of a load's record, for a transaction of the metastore."""
    return PutKey(load_key(record.table, record.job), _ENCODER.encode(record))


def _decoded(decoder: msgspec.json.Decoder[R], key: str, value: bytes) -> R:
    try:
        return decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise Corruption(f"the record of a job cannot be read: {error}", key) from None


async def _all(store: Metastore, prefix: str) -> list[tuple[str, bytes]]:
    return [(entry.key, entry.value) for entry in await entries_under(store, prefix)]


def given_up(ticket: str) -> Conflict:
    """What a job is told whose load nobody keeps any more."""
    return Conflict(
        f"load {ticket!r} was given up: it took longer than its ticket lives, another attempt at the same job has "
        "begun, or it was let go; nothing of it was loaded"
    )
