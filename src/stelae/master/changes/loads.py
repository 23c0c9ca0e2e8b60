"""What users ask for that changes many tablets at once: loads by ticket, and truncation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from stelae.catalog.serial.version1 import CATALOG_SERIALIZERS
from stelae.master.changes.coordinator import ChangeCoordinator
from stelae.master.changes.jobs import begin_job
from stelae.model.errors import InvalidArgument, NotFound, Retryable, StelaeError, Unavailable, UnknownOutcome
from stelae.model.events import Listener, LoadCommitted, tell_nobody
from stelae.model.hybrid import HybridClock
from stelae.model.ids import Row, TableId, Txn
from stelae.ports.clock import Clock
from stelae.ports.metastore import Metastore
from stelae.ports.rng import Rng
from stelae.registry.bulk_sessions import forget_jobs, given_up, read_jobs
from stelae.registry.changes.asking import ChangeServers
from stelae.registry.changes.decisions import forget_decided
from stelae.registry.changes.sessions import (
    LOAD,
    TRUNCATION,
    ChangeKind,
    ChangeSession,
    ChangeState,
    begin_session,
    change_id,
    read_session,
    renewed,
    step_session,
    table_of_change,
)
from stelae.service.deadlines import Deadline
from stelae.service.tables import TableInfo
from stelae.service.tickets import LoadedFile, LoadTicket
from stelae.storage.files.names import file_name_prefix

TRUNCATION_S = 60.0
JOBS_LOOK_S = 3_600.0
"""So often are jobs looked for that are done for long, or whose table is gone."""

_TRIES_MAX = 100


class TableChanges:
    """For the tasks of one event loop. `store` compares the guard of its master in whatever it writes. `info_of` raises
    NotFound once a table is dropped. `root`: the URL under which jobs write files."""

    def __init__(
        self,
        store: Metastore,
        servers: ChangeServers,
        info_of: Callable[[TableId], TableInfo],
        clock: Clock,
        time: HybridClock,
        rng: Rng,
        root: str,
        is_kept: Callable[[TableId], bool],
        tell: Listener = tell_nobody,
    ) -> None:
        """`is_kept`: whether a table is there, or was dropped and can be recalled."""
        self.coordinator = ChangeCoordinator(store, servers, info_of, clock, time, tell)
        self._store = store
        self._servers = servers
        self._info_of = info_of
        self._clock = clock
        self._time = time
        self._rng = rng
        self._root = root
        self._is_kept = is_kept
        self._tell = tell
        self._jobs_due_s = clock.monotonic_s()

    async def tend(self) -> None:
        """Bring to their end what others left, and forget jobs that nobody asks for any more, and tables that are gone
        for good."""
        await self.coordinator.tend()
        if self._clock.monotonic_s() >= self._jobs_due_s:
            await forget_jobs(self._store, self._is_kept, self._clock.wall_ms())
            await forget_decided(self._store, self._is_kept)
            self._jobs_due_s = self._clock.monotonic_s() + JOBS_LOOK_S

    async def begin_load(self, table: TableId, job: str, batch: int, ttl_s: float) -> LoadTicket:
        info, id_ = self._info_of(table), change_id(LOAD, table, self._rng.token(12).hex())
        prefix = file_name_prefix(table, self._time.tick(), self._rng.token(8).hex())
        starts = tuple(Row(record.rows.start) for record in self._servers.records(table))
        described = CATALOG_SERIALIZERS.encode(info.table)
        ticket = LoadTicket(id_, table, info.name, self._root, prefix, described, starts)
        session = ChangeSession(
            id_,
            table,
            ChangeKind.LOAD,
            self._expires_ms(ttl_s),
            job=job,
            batch=batch,
            prefix=prefix,
            schema_version=info.schema.version,
        )
        for _ in range(_TRIES_MAX):
            before, besides = await begin_job(self._store, session, self._clock.wall_ms())
            if batch <= before.done_batch:
                return msgspec.structs.replace(ticket, committed=before.done_txn)
            if await begin_session(self._store, session, *besides):
                return ticket
        raise Unavailable(f"job {job!r} was changed by others {_TRIES_MAX} times while it was being begun; try again")

    async def commit_load(
        self, ticket: str, files: Sequence[LoadedFile], *, replaces: bool, deadline: Deadline | None = None
    ) -> Txn:
        table = table_of_change(ticket)
        held = await read_session(self._store, table, ticket)
        if held is None:
            return await self._done_by(table, ticket)
        if held.session.is_open and held.session.expires_ms <= self._clock.wall_ms():
            await self.coordinator.abort(held, deadline)
            raise given_up(ticket)
        kind = ChangeKind.OVERWRITE if replaces else ChangeKind.LOAD
        try:
            session = await self.coordinator.commit(held, kind, files, deadline)
        except (InvalidArgument, NotFound):
            await self.coordinator.abort(held, deadline)
            raise
        self._tell(
            LoadCommitted(
                table=table,
                job=session.job,
                batch=session.batch,
                txn=session.txn,
                files=len(files),
                records=sum(each.file.stats.records for each in files),
                size_bytes=sum(each.file.seal.size_bytes for each in files),
            )
        )
        return session.txn

    async def _done_by(self, table: TableId, ticket: str) -> Txn:
        """When a load has happened whose record is forgotten."""
        for record in await read_jobs(self._store, table):
            if record.done_ticket == ticket:
                return record.done_txn
        raise given_up(ticket)

    async def renew(self, ticket: str, ttl_s: float) -> None:
        for _ in range(_TRIES_MAX):
            held = await read_session(self._store, table_of_change(ticket), ticket)
            if held is None or not held.session.is_open:
                raise NotFound(f"load {ticket!r} is not under way any more: it expired, was given up, or is done")
            if await step_session(self._store, held, renewed(held.session, self._expires_ms(ttl_s))) is not None:
                return
        raise Unavailable(f"load {ticket!r} was changed {_TRIES_MAX} times while it was being renewed; try again")

    async def release(self, ticket: str, deadline: Deadline | None = None) -> None:
        """Give up, unless it is done."""
        held = await read_session(self._store, table_of_change(ticket), ticket)
        if held is not None:
            await self.coordinator.abort(held, deadline)

    async def truncate(self, table: TableId, deadline: Deadline | None = None) -> Txn:
        info, id_ = self._info_of(table), change_id(TRUNCATION, table, self._rng.token(12).hex())
        expires_ms, version = self._expires_ms(TRUNCATION_S), info.schema.version
        session = ChangeSession(id_, table, ChangeKind.TRUNCATE, expires_ms, schema_version=version)
        await begin_session(self._store, session)
        held = await read_session(self._store, table, id_)
        if held is None:
            raise Unavailable(f"change {id_!r} was given up before it had begun; try again")
        try:
            return (await self.coordinator.commit(held, ChangeKind.TRUNCATE, (), deadline)).txn
        except StelaeError as error:
            # Nobody comes again for this one: it has happened, or never will.
            try:
                ended = await self.coordinator.abort(held, deadline)
            except (Retryable, UnknownOutcome):
                raise UnknownOutcome(f"whether the table was emptied is not known: {error}") from error
            if ended.state is ChangeState.COMMITTED:
                return ended.txn
            raise

    def _expires_ms(self, ttl_s: float) -> int:
        return self._clock.wall_ms() + int(ttl_s * 1_000)
