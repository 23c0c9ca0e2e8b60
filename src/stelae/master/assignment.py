"""Tablets on their way to servers: put on one, asked for, recorded as running when that has reported them; replaced by
others when it has not in time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby

import msgspec

from stelae.master.plan import in_phase, prepared
from stelae.master.records import Records
from stelae.master.replication.replication import Replication
from stelae.master.servers import Servers, place_tablets
from stelae.master.settings import MasterSettings
from stelae.model.errors import Deposed, DiskFailed, DiskFull, Retryable, Unavailable, UnknownOutcome
from stelae.model.words import counted
from stelae.ports.clock import Clock
from stelae.ports.metastore import Metastore
from stelae.registry.control import CreateTablets, DeleteTablets, NewTablet, reported_ids
from stelae.registry.tablet_records import TabletPhase, TabletRecord, take_tablet_ids
from stelae.service.deadlines import Deadline


class _Tried(msgspec.Struct):
    """What one round of asking has come to."""

    late: list[TabletRecord] = msgspec.field(default_factory=list)
    full: list[str] = msgspec.field(default_factory=list)
    broken: list[DiskFailed] = msgspec.field(default_factory=list)
    silent: set[str] = msgspec.field(default_factory=set)


class Assignment:
    """For the tasks of one event loop; the caller has the turn of the tablets' table."""

    def __init__(
        self,
        store: Metastore,
        records: Records,
        servers: Servers,
        clock: Clock,
        settings: MasterSettings,
        replication: Replication | None = None,
    ) -> None:
        self._replication = replication
        self._store = store
        self._records = records
        self._servers = servers
        self._clock = clock
        self._settings = settings

    async def create(self, records: Sequence[TabletRecord], deadline: Deadline | None = None) -> None:
        """Create tablets on the servers that they were put on, or else are put on now. Those that are not reported in
        time are replaced by others, elsewhere if there is another server. Returns when all run."""
        waiting, silent = list(records), set[str]()
        for attempt in range(self._settings.attempts_max):
            if not waiting:
                return
            creating = in_phase(await self._place(waiting, silent), TabletPhase.CREATING, self._clock.wall_ms())
            await self._records.write(creating)
            tried = await self._ask(creating, deadline)
            if tried.full:  # other tablets would meet the same disk
                count = counted(len(creating), "tablet is", "tablets are")
                raise DiskFull(f"{count} recorded, and made before the next change of the table: {tried.full[0]}")
            is_over = deadline is not None and deadline.is_over
            if tried.late and (is_over or attempt + 1 == self._settings.attempts_max):
                raise _not_running(tried)
            silent |= {record.server for record in tried.late if not record.replicas} | tried.silent
            waiting = await self.replace(tried.late, deadline)

    async def replace(self, late: Sequence[TabletRecord], deadline: Deadline | None = None) -> list[TabletRecord]:
        """Others in their place. The old ones are remembered: whoever reports one deletes it."""
        if not late:
            return []
        now_ms = self._clock.wall_ms()
        ids = await take_tablet_ids(self._store, len(late))
        replaced = in_phase(late, TabletPhase.REPLACED, now_ms)
        following = [prepared([id_], old.table, [old.rows], now_ms)[0] for id_, old in zip(ids, late, strict=True)]
        # Side by side: what is written in pieces has both of a pair or none.
        await self._records.write([record for pair in zip(replaced, following, strict=True) for record in pair])
        await asyncio.gather(*(self._give_up(server, mine, deadline) for server, mine in by_server(late).items()))
        return following

    async def _give_up(self, server: str, mine: Sequence[TabletRecord], deadline: Deadline | None) -> None:
        """A server that does not hear it now is told when it is lined up, as long as there is a record."""
        if self._servers.is_silent(server):
            return
        with suppress(Retryable, UnknownOutcome):
            await self._servers.link(server).ask(DeleteTablets(tuple(record.tablet for record in mine)), deadline)

    async def make_anew(self, lost: Sequence[TabletRecord]) -> None:
        """Others, without rows, in the place of tablets of one table whose server is gone for good."""
        ranges = [record.rows for record in lost if record.phase is not TabletPhase.REPLACED]
        ids = await take_tablet_ids(self._store, len(ranges)) if ranges else []
        following = prepared(ids, lost[0].table, ranges, self._clock.wall_ms()) if lost else []
        await self._records.write(following, lost)
        await self.create(following)

    async def _place(self, records: Sequence[TabletRecord], silent: set[str]) -> list[TabletRecord]:
        """Each with a server: the one that it was put on before, which may have it already."""
        copied: list[TabletRecord] = []
        if self._replication is not None:
            is_copied = self._replication.is_replicated
            copied = await self._replication.place([r for r in records if r.replicas or is_copied(r.table)], silent)
            records = [record for record in records if not (record.replicas or is_copied(record.table))]
        unplaced = sorted((r for r in records if not r.server), key=lambda r: (r.table, r.rows.start))
        if not unplaced:
            return [*records, *copied]
        servers = await self._servers.placeable()
        placed: list[TabletRecord] = []
        for table, some in groupby(unplaced, lambda record: record.table):
            mine = list(some)
            usable = servers if self._replication is None else await self._replication.on_racks(table, servers)
            chosen = place_tablets(len(mine), usable, (*self._records.maps.all(), *placed), silent)
            placed += [msgspec.structs.replace(r, server=at) for r, at in zip(mine, chosen, strict=True)]
        return [*(record for record in records if record.server), *placed, *copied]

    async def _ask(self, creating: Sequence[TabletRecord], deadline: Deadline | None) -> _Tried:
        """All servers at once: none waits for another."""
        tried = _Tried()
        found = by_server([record for record in creating if not record.replicas]).items()
        asked = [self._ask_one(server, mine, tried, deadline) for server, mine in found]
        if copied := [record for record in creating if record.replicas]:
            asked.append(self._ask_members(copied, tried, deadline))
        await asyncio.gather(*asked)
        return tried

    async def _ask_members(self, copied: Sequence[TabletRecord], tried: _Tried, deadline: Deadline | None) -> None:
        """The servers of tablets that have several replicas."""
        if self._replication is None:
            raise Unavailable("this master has no tablets with several replicas")
        running, tried.silent = await self._replication.create(copied, deadline)
        there = [record for record in copied if record.tablet in running]
        await self._records.write(in_phase(there, TabletPhase.RUNNING, self._clock.wall_ms()))
        tried.late += [record for record in copied if record.tablet not in running]

    async def _ask_one(
        self, server: str, mine: Sequence[TabletRecord], tried: _Tried, deadline: Deadline | None
    ) -> None:
        request = CreateTablets(tuple(NewTablet(r.tablet, r.table, r.rows) for r in mine))
        try:
            async with asyncio.timeout(self._settings.assignment_timeout_s):
                here = reported_ids(await self._servers.link(server).ask(request, deadline))
        except Deposed:
            raise
        except DiskFull as error:
            tried.full.append(str(error))
            return
        except (Retryable, UnknownOutcome, TimeoutError) as error:
            here = frozenset()
            tried.broken += [error] if isinstance(error, DiskFailed) else []
        running = [record for record in mine if record.tablet in here]
        await self._records.write(in_phase(running, TabletPhase.RUNNING, self._clock.wall_ms()))
        tried.late += [record for record in mine if record.tablet not in here]


def by_server(records: Sequence[TabletRecord]) -> dict[str, list[TabletRecord]]:
    """The records of each server, in their order; of tablets with several replicas, those of all that have one."""
    found: dict[str, list[TabletRecord]] = {}
    for record in records:
        for server in record.servers or ("",):
            found.setdefault(server, []).append(record)
    return found


def _not_running(tried: _Tried) -> Unavailable:
    count = f"{counted(len(tried.late), 'tablet is', 'tablets are')} not running yet"
    if tried.broken:
        error = DiskFailed(f"{count}: {tried.broken[0]}")
        error.__cause__ = tried.broken[0]
        return error
    servers = ", ".join(sorted({record.server for record in tried.late}))
    return Unavailable(f"{count}: {'server' if ',' not in servers else 'servers'} {servers} does not report them")
