"""Bulk loads: files that others wrote become part of a table, all at one txn, once for each job.

The commit, by steps that each survive a crash (see `registry.bulk_sessions`):
1. Every tablet of the table is *prepared*: its config names the files that reach into it, unseen by readers.
2. The record of the attempt says so.
3. One record in the log makes all of it visible; it happened to every tablet, or to none.
4. The record says that the job is done, and at which txn.
Until 3 the attempt can be given up: the record forgets it first, then the tablets do. Files whose names begin as an
attempt's do are kept while it lives; afterwards only what the tablets name is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from stelae.catalog.serial.version1 import CATALOG_SERIALIZERS
from stelae.model.errors import NotFound, TabletAway
from stelae.model.events import LoadCommitted
from stelae.model.ids import Row, TableId, Txn
from stelae.ports.loop import Loop
from stelae.registry.bulk_sessions import (
    Attempt,
    LoadRecord,
    forget_jobs,
    given_up,
    read_loads,
    remove_load,
    write_load,
)
from stelae.registry.views.own import OwnStore
from stelae.service.tables import TableInfo
from stelae.service.tickets import LoadedFile, LoadTicket
from stelae.storage.shard import Commit, Shard
from stelae.storage.tablet.changes import Loaded
from stelae.storage.tablet.state import without_prepared
from stelae.storage.turns import Turn
from stelae.storage.upkeep.upkeep import Upkeep
from stelae.tserver.jobs.preparing import check_loaded, prepare_tablets
from stelae.tserver.keeper import Keeper
from stelae.tserver.surroundings import Tables

UNDER_WAY_MS = 5 * 60 * 1_000
"""A load of which nothing was heard for so long is taken for dead, though it may still commit."""


class Loads:
    """Safe for threads: one commit after the other."""

    def __init__(
        self,
        shard: Shard,
        upkeep: Upkeep,
        keeper: Keeper,
        tables: Tables,
        store: OwnStore,
        loop: Loop,
        now_ms: Callable[[], int],
        root: str,
    ) -> None:
        self._shard = shard
        self._upkeep = upkeep
        self._keeper = keeper
        self._tables = tables
        self._store = store
        self._run = loop.run
        self._now_ms = now_ms
        self._root = root
        self._turn = Turn()
        self._records: dict[tuple[TableId, str], LoadRecord] = {}
        self._prefixes: dict[str, str] = {}
        self._heard_ms: dict[str, int] = {}

    # -- after a restart

    def recover(self, prepared: set[str]) -> None:
        """What was under way when the store ended, before anything is collected. `prepared`: the loads that some tablet
        still holds ready."""
        tables = self._tables.kept()
        self._run(forget_jobs(self._store, lambda table: table in tables, self._now_ms()))
        for record in self._run(read_loads(self._store)):
            attempt = record.attempt
            if attempt is not None and attempt.is_prepared and attempt.ticket not in prepared:
                record = self._done(record, attempt, self._committed_at(record.table, attempt))
                self._run(write_load(self._store, record))
            self._keep(record)
        self._forget(prepared - self._prefixes.keys())
        self.expire()

    def _committed_at(self, table: TableId, attempt: Attempt) -> Txn:
        """By the files; if they have been merged already, it was before now."""
        files = [file for state in self._shard.of_table(table) for file in state.files().values()]
        txns = [file.txn for file in files if file.name.startswith(attempt.prefix) and file.txn is not None]
        return max(txns, default=self._shard.visible)

    # -- loads

    def prefixes(self) -> list[str]:
        """How the names of files begin that loads under way are writing."""
        return list(self._prefixes.values())

    def keeps(self, name: str) -> bool:
        return any(name.startswith(prefix) for prefix in list(self._prefixes.values()))

    def is_under_way(self) -> bool:
        """Whether tasks are likely to be at work on some load."""
        since_ms = self._now_ms() - UNDER_WAY_MS
        return any(heard_ms > since_ms for heard_ms in list(self._heard_ms.values()))

    def begin(self, info: TableInfo, job: str, batch: int, ticket: str, prefix: str, ttl_s: float) -> LoadTicket:
        with self._turn:
            record = self._records.get((info.id, job), LoadRecord(info.id, job, self._now_ms()))
            with self._shard.lock:
                states = self._shard.of_table(info.id)
            if not states:
                raise TabletAway(f"no tablet of table {info.name!r} is here")
            schema = states[0].schema
            done = record.done_txn if batch <= record.done_batch else None
            if done is None:
                self._give_up(record)
                expires_ms = self._now_ms() + int(ttl_s * 1_000)
                attempt = Attempt(ticket, batch, prefix, schema.version, expires_ms)
                self._write(msgspec.structs.replace(record, attempt=attempt))
                self._heard_ms[ticket] = self._now_ms()
            return LoadTicket(
                ticket=ticket,
                table=info.id,
                name=info.name,
                root=self._root,
                prefix=prefix,
                table_bytes=CATALOG_SERIALIZERS.encode(replace(info.table, schema=schema)),
                starts=tuple(Row(state.rows.start) for state in states),
                committed=done,
            )

    def commit(self, ticket: str, files: Sequence[LoadedFile], *, replaces: bool) -> Txn:
        with self._turn:
            record = self._of(ticket)
            attempt = record.attempt
            if attempt is None or attempt.ticket != ticket:
                return record.done_txn
            if attempt.expires_ms <= self._now_ms():
                self._give_up(record)
                raise given_up(ticket)
            check_loaded(self._shard.blobs, attempt.prefix, files)
            self._prepare(record.table, attempt, files)
            committing: Commit | None = None
            try:
                self._upkeep.save()
                record = msgspec.structs.replace(record, attempt=msgspec.structs.replace(attempt, is_prepared=True))
                self._write(record)
                committing = self._upkeep.commit(record.table, Loaded(ticket, replaces))
                self._shard.drain()
                txn = committing.durable.result()
            except BaseException:
                if committing is None or self._wait_if_failed(committing):
                    self._give_up(record)
                else:  # something else ended the waiting, Ctrl-C say: it is in the log all the same
                    self._keep(self._done(record, attempt, committing.txn))
                raise
            done = self._done(record, attempt, txn)
            self._keep(done)
            self._upkeep.save()
            self._write(done)
        self._keeper.note_growth(state.tablet for state in self._shard.of_table(record.table))
        self._keeper.note_garbage()
        self._upkeep.tell(
            LoadCommitted(
                table=record.table,
                job=record.job,
                batch=attempt.batch,
                txn=txn,
                files=len(files),
                records=sum(each.file.stats.records for each in files),
                size_bytes=sum(each.file.seal.size_bytes for each in files),
            )
        )
        return txn

    def _wait_if_failed(self, committing: Commit) -> bool:
        """Wait until it is durable or has failed; whether it has failed."""
        self._shard.drain()
        return committing.durable.exception() is not None

    def _prepare(self, table: TableId, attempt: Attempt, files: Sequence[LoadedFile]) -> None:
        with self._shard.lock:
            states = self._shard.of_table(table)
            if not states and table not in self._tables.ids():
                raise NotFound(f"the table (id {table}) was dropped during load {attempt.ticket}: nothing was loaded")
            if not states:
                raise TabletAway(f"no tablet of table {table} is here")
            known = self._tables.schemas_of(table)
            prepare_tablets(self._upkeep, states, known, attempt.ticket, attempt.schema_version, files)

    def renew(self, ticket: str, ttl_s: float) -> None:
        with self._turn:
            record = next((r for r in self._records.values() if r.attempt and r.attempt.ticket == ticket), None)
            if record is None or record.attempt is None:
                raise NotFound(f"load {ticket!r} is not under way any more: it expired, was given up, or is done")
            expires_ms = self._now_ms() + int(ttl_s * 1_000)
            attempt = msgspec.structs.replace(record.attempt, expires_ms=expires_ms)
            self._write(msgspec.structs.replace(record, attempt=attempt))
            self._heard_ms[ticket] = self._now_ms()

    def release(self, ticket: str) -> bool:
        """Give up, unless it is done. Whether there was anything to do."""
        with self._turn:
            record = next((r for r in self._records.values() if r.attempt and r.attempt.ticket == ticket), None)
            if record is not None:
                self._give_up(record)
            return record is not None

    def expire(self) -> list[str]:
        """Give up what nobody has renewed in time; the tickets that ended. While somebody begins or commits a load,
        none: they are looked at the next time."""
        if not self._turn.take_if_free():
            return []
        try:
            now_ms, ended = self._now_ms(), []
            for record in list(self._records.values()):
                if record.attempt is not None and record.attempt.expires_ms <= now_ms:
                    self._give_up(record)
                    ended.append(record.attempt.ticket)
            return ended
        finally:
            self._turn.give_back()

    # -- inside

    def _of(self, ticket: str) -> LoadRecord:
        for record in self._records.values():
            if ticket == record.done_ticket or (record.attempt is not None and record.attempt.ticket == ticket):
                return record
        raise given_up(ticket)

    def _done(self, record: LoadRecord, attempt: Attempt, txn: Txn) -> LoadRecord:
        return LoadRecord(record.table, record.job, self._now_ms(), attempt.batch, attempt.ticket, txn)

    def _give_up(self, record: LoadRecord) -> None:
        """The record first: a crash in between leaves what no attempt claims."""
        attempt = record.attempt
        if attempt is None:
            return
        rest = msgspec.structs.replace(record, attempt=None)
        if rest.done_batch < 0:
            self._run(remove_load(self._store, rest))
        else:
            self._run(write_load(self._store, rest))
        self._keep(rest)
        self._prefixes.pop(attempt.ticket, None)
        self._forget({attempt.ticket})
        self._keeper.note_garbage()

    def _forget(self, tickets: set[str]) -> None:
        """Let go of what was prepared."""
        changed = False
        with self._shard.lock:
            for state in self._shard.tablets().values():
                for ticket in sorted(tickets & {load.load for load in state.prepared}):
                    self._upkeep.change(state.tablet, partial(without_prepared, load=ticket))
                    changed = True
        if changed:
            self._upkeep.save()

    def _write(self, record: LoadRecord) -> None:
        self._run(write_load(self._store, record))
        self._keep(record)

    def _keep(self, record: LoadRecord) -> None:
        before = self._records.get((record.table, record.job))
        attempt = record.attempt
        if attempt is not None:
            self._prefixes[attempt.ticket] = attempt.prefix
        if (
            before is not None
            and before.attempt is not None
            and (attempt is None or attempt.ticket != before.attempt.ticket)
        ):
            self._prefixes.pop(before.attempt.ticket, None)
            self._heard_ms.pop(before.attempt.ticket, None)
        if attempt is None and record.done_batch < 0:
            self._records.pop((record.table, record.job), None)
        else:
            self._records[record.table, record.job] = record
