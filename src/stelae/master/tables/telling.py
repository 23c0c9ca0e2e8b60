"""How the servers of a table hear of its changes: all at once, each with tablets of it.

What a change cannot do without is *asked* of all of them. What they may as well hear later is *told*: a dropped table
is gone by name as soon as the catalog says so, so nobody waits for a server that is stopped or away. What such a one
has is looked at when it is back (`alignment`).
"""

from __future__ import annotations

import asyncio

from stelae.master.alignment import Alignment
from stelae.master.assignment import by_server
from stelae.master.records import Records
from stelae.master.servers import Servers
from stelae.model.errors import Deposed, DiskFailed, DiskFull, Retryable, UnknownOutcome
from stelae.model.ids import TableId
from stelae.ports.clock import Clock
from stelae.registry.control import ControlRequest, DeleteTablets
from stelae.service.deadlines import Deadline

TOLD_S = 1.0
"""So long may nothing be heard of a server that is told something. One that works at it says so, and is waited for
longer (`Servers.patience_s`): it may itself wait for others that are away."""

_LATER = (Retryable, UnknownOutcome, TimeoutError)


class Telling:
    """For the tasks of one event loop."""

    def __init__(self, records: Records, servers: Servers, alignment: Alignment, clock: Clock) -> None:
        self._records = records
        self._servers = servers
        self._alignment = alignment
        self._clock = clock

    def soon(self, deadline: Deadline | None) -> Deadline:
        return Deadline(self._clock, TOLD_S) if deadline is None else deadline.within(TOLD_S)

    async def ask(self, table: TableId, request: ControlRequest, deadline: Deadline | None) -> None:
        """Raises what the first has raised, when all have answered. Each that has not done it is looked at by itself:
        it does not wait for the others of the table."""
        servers = self._servers_of(table)
        asked = (self._servers.link(server).ask(request, deadline) for server in servers)
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        failed: list[BaseException] = []
        for server, outcome in zip(servers, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                self._alignment.note_back(server)
                failed.append(outcome)
        for error in failed:
            raise error

    async def tell(self, table: TableId, request: ControlRequest, deadline: Deadline | None) -> None:
        """A disk that is full or broken is told as it is: that is for somebody to mend."""
        servers, until = self._servers_of(table), self.soon(deadline)
        for server in servers:
            if self._servers.is_silent(server):
                self._alignment.note_back(server)
        heard = [server for server in servers if not self._servers.is_silent(server)]
        asked = (self._tell_one(server, request, until) for server in heard)
        failed: list[BaseException] = []
        for server, outcome in zip(heard, await asyncio.gather(*asked, return_exceptions=True), strict=True):
            if not isinstance(outcome, BaseException):
                continue
            self._alignment.note_back(server)
            if isinstance(outcome, DiskFull | DiskFailed) or not isinstance(outcome, _LATER):
                failed.append(outcome)
        for error in failed:
            raise error

    async def _tell_one(self, server: str, request: ControlRequest, until: Deadline) -> None:
        async with asyncio.timeout(self._servers.patience_s):
            await self._servers.link(server).ask(request, until)

    async def forget(self, table: TableId, deadline: Deadline | None) -> int:
        """Delete what the servers have of a table, and their records; of a server that is away, when it is back."""
        count = 0
        for server, mine in by_server(self._records.maps.with_replaced(table)).items():
            try:
                if server and not self._servers.is_silent(server):
                    request = DeleteTablets(tuple(record.tablet for record in mine))
                    await self._servers.link(server).ask(request, deadline)
                elif server:
                    self._alignment.note_back(server)
                    continue
            except (Retryable, UnknownOutcome) as error:
                if isinstance(error, Deposed):
                    raise
                self._alignment.note_back(server)
                continue
            await self._records.write((), mine)
            count += len(mine)
        return count

    def _servers_of(self, table: TableId) -> list[str]:
        return sorted({record.server for record in self._records.maps.with_replaced(table) if record.server})
