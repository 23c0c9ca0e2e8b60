"""Who leads changes of many tablets to their end: announces them, has them prepared, decides, and lets servers know.

The protocol is in `registry/changes`. All that is known of a change is in the metastore: a master that begins to lead
goes on with what another one left (`tend`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from stelae.master.changes.jobs import finish_job, leave_job
from stelae.model.errors import (
    Deposed,
    InvalidArgument,
    NotFound,
    Retryable,
    StelaeError,
    Unavailable,
    UnknownOutcome,
)
from stelae.model.events import Listener, TicketExpired, tell_nobody
from stelae.model.hybrid import HybridClock, pack
from stelae.model.ids import TableId
from stelae.model.ranges import RangeSet, RowRange, check_cover
from stelae.ports.clock import Clock
from stelae.ports.metastore import Metastore
from stelae.registry.bulk_sessions import given_up
from stelae.registry.changes.asking import (
    AdoptChange,
    ChangeReport,
    ChangeRequest,
    ChangeServers,
    DropChange,
    PrepareChange,
)
from stelae.registry.changes.decisions import put_decided, read_decided
from stelae.registry.changes.sessions import (
    LOAD,
    ChangeKind,
    ChangeSession,
    ChangeState,
    HeldSession,
    aborted,
    announced,
    committed,
    forget_session,
    read_session,
    read_sessions,
    step_session,
)
from stelae.registry.tablet_records import TabletPhase, TabletRecord
from stelae.service.deadlines import Deadline
from stelae.service.tables import TableInfo
from stelae.service.tickets import LoadedFile

FLOOR_AHEAD_MS = 500
"""So long do servers answer without asking anybody, from when a change is announced."""

ADOPT_S = 5.0
"""How long servers that are away are waited for with what was decided. Whoever reads from one that did not hear of it
has long passed the floor by then, so it finds out by itself."""

_PAUSE_S = 0.05
_TRIES_MAX = 100


class ChangeCoordinator:
    """For the tasks of one event loop. `store` compares the guard of its master in whatever it writes. `info_of` raises
    NotFound once a table is dropped."""

    def __init__(
        self,
        store: Metastore,
        servers: ChangeServers,
        info_of: Callable[[TableId], TableInfo],
        clock: Clock,
        time: HybridClock,
        tell: Listener = tell_nobody,
    ) -> None:
        self._store = store
        self._servers = servers
        self._info_of = info_of
        self._clock = clock
        self._time = time
        self._tell = tell

    async def commit(
        self, held: HeldSession, kind: ChangeKind, files: Sequence[LoadedFile], deadline: Deadline | None = None
    ) -> ChangeSession:
        """Announce, prepare, decide, adopt, forget. A change that is committed already is adopted again. Conflict if it
        was aborted. Servers that are not heard of until the deadline are given up."""
        session = held.session
        if session.is_open:
            self._info_of(session.table)
            running = self._running(session.table)
            held = await self._announce(session, kind, running)
            if held.session.is_open:
                reports = await self._prepare(held.session, running, files, deadline)
                held = await self._decide(held.session, reports)
        if held.session.state is ChangeState.ABORTED:
            raise given_up(session.id)
        await self._spread(held, ADOPT_S, deadline)
        return held.session

    def _running(self, table: TableId) -> dict[str, list[RowRange]]:
        """Which rows each server has. Unavailable unless all rows are on some server."""
        records: Sequence[TabletRecord] = self._servers.records(table)
        rows: dict[str, list[RowRange]] = {}
        for record in records:
            if record.phase is TabletPhase.RUNNING:
                rows.setdefault(record.server, []).append(record.rows)
        try:
            check_cover(sorted((each for some in rows.values() for each in some), key=lambda each: each.start))
        except InvalidArgument:
            raise Unavailable(f"not all tablets of table {table} are running; try again") from None
        return rows

    async def _announce(
        self, session: ChangeSession, kind: ChangeKind, running: dict[str, list[RowRange]]
    ) -> HeldSession:
        for _ in range(_TRIES_MAX):
            held = await self._read(session.table, session.id)
            if not held.session.is_open:
                return held
            floor = pack(self._clock.wall_ms() + FLOOR_AHEAD_MS)
            try:
                step = await step_session(self._store, held, announced(held.session, kind, running, floor))
            except UnknownOutcome:
                continue  # another attempt is announced, whether that one was or not
            if step is not None:
                return step
        raise _crowded(session.id)

    async def _prepare(
        self,
        session: ChangeSession,
        running: dict[str, list[RowRange]],
        files: Sequence[LoadedFile],
        deadline: Deadline | None,
    ) -> list[ChangeReport]:
        request = PrepareChange(session.table, session.id, session.attempt)
        outcomes = await asyncio.gather(
            *(
                self._servers.ask_change(server, request, [each for each in files if _reaches(each, rows)], deadline)
                for server, rows in running.items()
            ),
            return_exceptions=True,
        )
        failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for error in failed:
            if not isinstance(error, Retryable | UnknownOutcome):
                raise error
        for error in failed:
            # Nothing has happened, and nothing will by this attempt: it may be tried again.
            raise Unavailable(f"change {session.id!r} is not prepared everywhere: {error}") from error
        return [outcome for outcome in outcomes if isinstance(outcome, ChangeReport)]

    async def _decide(self, session: ChangeSession, reports: Sequence[ChangeReport]) -> HeldSession:
        """Committed, or decided by somebody else meanwhile."""
        prepared = {report.server: RangeSet.of(report.rows) for report in reports}
        times = [report.at for report in reports]
        self._time.merge(max(times))
        for _ in range(_TRIES_MAX):
            held = await self._read(session.table, session.id)
            if not held.session.is_open:
                return held
            for server, rows in self._running(session.table).items():
                if not prepared.get(server, RangeSet()).covers(RangeSet.of(rows)):
                    raise Unavailable(f"tablets of table {session.table} came to {server} meanwhile; try again")
            last, is_last = await read_decided(self._store, session.table)
            following = committed(held.session, session.attempt, times, last, self._time.tick())
            compares, changes = await finish_job(self._store, following, self._clock.wall_ms())
            decided = put_decided(session.table, following.txn)
            try:
                step = await step_session(self._store, held, following, [is_last, *compares], [decided, *changes])
            except UnknownOutcome:
                continue  # it is read again: committed, or as it was, and then the same is tried again
            if step is not None:
                return step
        raise _crowded(session.id)

    async def abort(self, held: HeldSession, deadline: Deadline | None = None) -> ChangeSession:
        """Unless it is decided; what it is then. One that is forgotten meanwhile was ended by somebody else. Servers
        hear of it until the deadline, or from whoever looks next at what is under way."""
        for _ in range(_TRIES_MAX):
            if not held.session.is_open:
                break
            compares, changes = await leave_job(self._store, held.session)
            try:
                step = await step_session(self._store, held, aborted(held.session), compares, changes)
            except UnknownOutcome:
                step = None
            found = await read_session(self._store, held.session.table, held.session.id) if step is None else step
            if found is None:
                return aborted(held.session)
            held = found
        else:
            raise _crowded(held.session.id)
        await self._spread(held, 0.0, deadline)
        return held.session

    async def _spread(
        self, held: HeldSession, patience_s: float, deadline: Deadline | None = None, *, is_last: bool = False
    ) -> None:
        """Let servers know what was decided, until the deadline, and those that are away for so long; forget it when
        none needs it. Those that were asked to prepare it hear of it first. Whoever leads a tablet after one of them
        has it prepared, too: if there may be such, they are asked at the next look (`is_last`), for which nobody
        waits."""
        session, away = held.session, Deadline(self._clock, patience_s)
        request: ChangeRequest = DropChange(session.table, session.id)
        if session.state is ChangeState.COMMITTED:
            request = AdoptChange(session.table, session.id, session.txn, session.replaces)
        heirs = self._heirs(session)
        told = (*session.servers, *heirs) if is_last else session.servers
        released = await asyncio.gather(*(self._tell_server(each, request, away, deadline) for each in told))
        if all(released) and (is_last or not heirs):
            with suppress(Retryable, UnknownOutcome):  # the next look at what is under way finds it, if it is there
                await forget_session(self._store, held)

    def _heirs(self, session: ChangeSession) -> list[str]:
        """Servers that have something of the table now, and were not asked to prepare the change."""
        if not session.servers:
            return []  # nobody was
        has = dict.fromkeys(each for record in self._servers.records(session.table) for each in record.servers)
        return [server for server in has if server not in session.servers]

    async def _tell_server(
        self, server: str, request: ChangeRequest, away: Deadline, deadline: Deadline | None
    ) -> bool:
        """Whether it has the change prepared no more. A server that is away, or cannot adopt it now, is asked again at
        the next look; whoever reads there finds out by itself."""
        while True:
            try:
                return not (await self._servers.ask_change(server, request, (), deadline)).is_held
            except StelaeError as error:
                is_over = away.is_over or (deadline is not None and deadline.is_over)
                if is_over or isinstance(error, Deposed):
                    return False
            await asyncio.sleep(_PAUSE_S)

    async def tend(self) -> None:
        """Lead on what others left: spread what was decided, give up what expired or has lost its table."""
        await asyncio.gather(*(self._tend_one(held) for held in await read_sessions(self._store)))

    async def _tend_one(self, held: HeldSession) -> None:
        session = held.session
        if not session.is_open:
            await self._spread(held, 0.0, Deadline(self._clock, ADOPT_S), is_last=True)
        elif session.expires_ms <= self._clock.wall_ms() or not self._is_there(session.table):
            ended = await self.abort(held)
            if ended.state is ChangeState.ABORTED and session.job:
                self._tell(TicketExpired(LOAD, session.id))

    def _is_there(self, table: TableId) -> bool:
        try:
            self._info_of(table)
        except NotFound:
            return False
        return True

    async def _read(self, table: TableId, id_: str) -> HeldSession:
        held = await read_session(self._store, table, id_)
        if held is None:
            raise given_up(id_)
        return held


def _reaches(file: LoadedFile, rows: Sequence[RowRange]) -> bool:
    stats = file.file.stats
    return any(stats.last_row >= each.start and (each.stop is None or stats.first_row < each.stop) for each in rows)


def _crowded(what: str) -> Unavailable:
    return Unavailable(f"{what} was changed by others {_TRIES_MAX} times while it was being changed; try again")
