"""How a master reaches its servers: in the same process, or over connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

from stelae.master.descriptors import Descriptors
from stelae.master.maps import TabletMaps
from stelae.model.errors import ConnectionLost, InvalidArgument, TabletAway, Unavailable
from stelae.model.ids import Row, TableId, TabletId
from stelae.ports.clock import Clock
from stelae.ports.metastore import Metastore
from stelae.registry.catalog.service import CatalogService
from stelae.registry.changes.asking import CHANGE, ChangeReport, ChangeRequest
from stelae.registry.control import ControlRequest, TabletReport
from stelae.registry.control_operations import (
    CHOOSE_SPLIT,
    CONTROL,
    FILES_NEEDED,
    LOOK_AT_SIZES,
    REPORT,
    ChosenSplit,
    FilesNeeded,
)
from stelae.registry.incarnations import read_lives
from stelae.registry.peers import Peer
from stelae.registry.tablet_records import TabletRecord
from stelae.service.deadlines import Deadline
from stelae.service.tickets import LoadedFile

_PAUSE_S = 0.05

_SILENCE_S = 15.0
"""A shard that works at a request says so every second: one of which nothing is heard for so long is given up."""


class RemoteServerLink:
    """A `ServerLink` over connections. Each request names the version of the catalog that the master knows.

    A shard that is away is asked again until it has been away for `away_s`: mostly it is being started again, and what
    is asked of it is the second half of a change that is made already."""

    def __init__(self, server: str, shard: Peer, catalog: CatalogService, clock: Clock, away_s: float) -> None:
        self._server = server
        self._shard = shard
        self._catalog = catalog
        self._clock = clock
        self._away_s = away_s
        self._away_from_s: float | None = None

    def end(self) -> None:
        """From now on a shard that is away is not waited for."""
        self._away_s = 0.0

    async def close(self) -> None:
        await self._shard.close()

    @property
    def server(self) -> str:
        return self._server

    async def ask(self, request: ControlRequest, deadline: Deadline | None = None) -> TabletReport:
        while True:
            try:
                version = self._catalog.latest.version
                return self._heard(await self._shard.ask(CONTROL, self._until(deadline), request, version))
            except ConnectionLost:
                now_s = self._clock.monotonic_s()
                if self._away_from_s is None:
                    self._away_from_s = now_s
                is_over = deadline is not None and deadline.is_over
                if is_over or now_s - self._away_from_s >= self._away_s:
                    raise
            await asyncio.sleep(_PAUSE_S)

    async def ask_change(self, request: ChangeRequest, files: Sequence[LoadedFile]) -> ChangeReport:
        """A shard that is away is not waited for: whoever leads the change comes again."""
        report = await self._shard.ask(CHANGE, self._until(), request, files, self._catalog.latest.version)
        self._away_from_s = None
        return report

    async def report(self, table: TableId | None = None, deadline: Deadline | None = None) -> TabletReport:
        return self._heard(await self._shard.ask(REPORT, self._until(deadline), table))

    async def choose_split(self, table: TableId, at: Row | None, tablet: int | None) -> ChosenSplit:
        """Which of its tablets of a table to split and where."""
        return await self._shard.ask(CHOOSE_SPLIT, self._until(), table, at, tablet, self._catalog.latest.version)

    async def look_at_sizes(self) -> None:
        """A shard that is not there now looks at them when it starts."""
        with suppress(Unavailable):
            await self._shard.ask(LOOK_AT_SIZES, self._until())

    async def files_needed(self) -> FilesNeeded:
        return await self._shard.ask(FILES_NEEDED, self._until())

    def _until(self, deadline: Deadline | None = None) -> Deadline:
        return Deadline(self._clock, _SILENCE_S) if deadline is None else deadline.within(_SILENCE_S)

    def _heard(self, report: TabletReport) -> TabletReport:
        self._away_from_s = None
        return report


class ShardServers:
    """`Servers` of a cluster: a link to each shard that was ever started. `open_peer` connects to a shard by name."""

    def __init__(
        self,
        store: Metastore,
        open_peer: Callable[[str], Peer],
        catalog: CatalogService,
        clock: Clock,
        away_s: float,
    ) -> None:
        self.descriptors = Descriptors()
        self._store = store
        self._open_peer = open_peer
        self._catalog = catalog
        self._clock = clock
        self._away_s = away_s
        self._links: dict[str, RemoteServerLink] = {}

    async def names(self) -> tuple[str, ...]:
        return tuple(life.name for life in await read_lives(self._store))

    async def placeable(self) -> tuple[str, ...]:
        """All but those of which the heartbeats have told no good."""
        return self.descriptors.placeable(await self.names(), self._clock.monotonic_s())

    def link(self, server: str) -> RemoteServerLink:
        link = self._links.get(server)
        if link is None:
            peer = self._open_peer(server)
            link = self._links[server] = RemoteServerLink(server, peer, self._catalog, self._clock, self._away_s)
        return link

    def end(self) -> None:
        """From now on no shard that is away is waited for."""
        self._away_s = 0.0
        for link in self._links.values():
            link.end()

    async def close(self) -> None:
        for link in self._links.values():
            await link.close()

    async def choose_split(
        self, maps: TabletMaps, table: TableId, at: Row | None, tablet: int | None
    ) -> tuple[TabletId, Row]:
        """Which tablet of a table to split and where: the one that holds the row; or this one, or the largest that any
        shard has, at the row that halves it."""
        if tablet is not None:
            servers = [maps.tablet(TabletId(tablet)).server]
        elif at is not None:
            servers = [maps.at(table, at).server]
        else:
            servers = sorted({record.server for record in maps.of_table(table) if record.server})
        if not servers:
            raise TabletAway(f"no tablet of table {table} is on any shard yet")
        asked = (self.link(server).choose_split(table, at, tablet) for server in servers)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found = [each for each in answers if isinstance(each, ChosenSplit)]
        failed = [each for each in answers if isinstance(each, BaseException)]
        for error in failed:
            if not found or not isinstance(error, InvalidArgument | TabletAway):  # another has rows to part
                raise error
        chosen = max(found, key=lambda each: each.size_bytes)
        return chosen.tablet, chosen.at

    async def files_needed(self) -> list[FilesNeeded]:
        """What each shard needs of the store; Unavailable if one does not answer."""
        return await asyncio.gather(*(self.link(server).files_needed() for server in await self.names()))

    async def look_at_sizes(self) -> None:
        await asyncio.gather(*(self.link(server).look_at_sizes() for server in await self.names()))


class ChangedServers:
    """`ChangeServers` of a cluster: where tablets are is known by the master's maps."""

    def __init__(self, servers: ShardServers, maps: TabletMaps) -> None:
        self._servers = servers
        self._maps = maps

    def records(self, table: TableId) -> Sequence[TabletRecord]:
        return self._maps.of_table(table)

    async def ask_change(self, server: str, request: ChangeRequest, files: Sequence[LoadedFile] = ()) -> ChangeReport:
        return await self._servers.link(server).ask_change(request, files)


class NearServer(Protocol):
    """A server in the same process. Blocking."""

    @property
    def name(self) -> str: ...

    def ask(self, request: ControlRequest) -> TabletReport: ...

    def report(self, table: TableId | None = None) -> TabletReport: ...


class Aside(Protocol):
    """Carries out what blocks while the loop goes on."""

    def __call__(self, job: Callable[..., TabletReport], /, *args: object) -> Awaitable[TabletReport]: ...


class LocalServerLink:
    """A `ServerLink`: requests are carried out by a thread."""

    def __init__(self, server: NearServer, aside: Aside) -> None:
        self._server = server
        self._aside = aside

    @property
    def server(self) -> str:
        return self._server.name

    async def ask(self, request: ControlRequest, deadline: Deadline | None = None) -> TabletReport:  # noqa: ARG002 - it never falls silent
        return await self._aside(self._server.ask, request)

    async def report(self, table: TableId | None = None, deadline: Deadline | None = None) -> TabletReport:  # noqa: ARG002
        return await self._aside(self._server.report, table)


class ShardFinder:
    """Finds where a shard serves, by what the metastore knows of its life."""

    def __init__(self, metastore: Metastore, shard: str) -> None:
        self._metastore = metastore
        self._shard = shard

    async def __call__(self, _: Deadline | None) -> str:
        for life in await read_lives(self._metastore):
            if life.name == self._shard:
                return life.address
        raise Unavailable(f"shard {self._shard} has not been started yet")
