"""How a master reaches its servers: in the same process, or over connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

from stelae.master.descriptors import Descriptors
from stelae.master.maps import TabletMaps
from stelae.model.errors import (
    Closed,
    ConnectionLost,
    DeadlineExceeded,
    Deposed,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Retryable,
    TabletAway,
    Unavailable,
    UnknownOutcome,
)
from stelae.model.ids import Row, TableId, TabletId
from stelae.ports.clock import Clock
from stelae.ports.metastore import Metastore
from stelae.registry.catalog.service import CatalogService
from stelae.registry.changes.asking import CHANGE, ChangeReport, ChangeRequest, PrepareChange
from stelae.registry.control import (
    ControlRequest,
    DeleteTablets,
    JoinTablets,
    ProveTable,
    SplitTablet,
    TabletReport,
    UnloadTable,
)
from stelae.registry.control_operations import (
    CHOOSE_SPLIT,
    CONTROL,
    FILES_NEEDED,
    LOOK_AT_SIZES,
    REPORT,
    RESIZE,
    ChosenSplit,
    FilesNeeded,
)
from stelae.registry.incarnations import read_lives, read_shards
from stelae.registry.masters.draining import read_drained
from stelae.registry.peers import Peer
from stelae.registry.tablet_records import TabletRecord
from stelae.service.deadlines import Deadline
from stelae.service.tickets import LoadedFile

_PAUSE_S = 0.05
_FILES_TRIES = 20

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
        operation = RESIZE if isinstance(request, SplitTablet | JoinTablets) else CONTROL
        lost: UnknownOutcome | None = None
        while True:
            try:
                version = self._catalog.latest.version
                return self._heard(await self._shard.ask(operation, self._until(deadline), request, version))
            except (ConnectionLost, UnknownOutcome) as error:
                if isinstance(error, UnknownOutcome):
                    if error.is_fault:
                        raise
                    lost = error  # asked again, the shard says what came of it
                if self._gives_up(deadline):
                    raise lost or error from None
            except Retryable:
                if lost is not None:
                    raise lost from None
                raise
            await asyncio.sleep(_PAUSE_S)

    def _gives_up(self, deadline: Deadline | None) -> bool:
        """Whether a shard that cannot be reached now is not to be asked again."""
        now_s = self._clock.monotonic_s()
        if self._away_from_s is None:
            self._away_from_s = now_s
        return now_s - self._away_from_s >= self._away_s or (deadline is not None and deadline.is_over)

    async def ask_change(
        self, request: ChangeRequest, files: Sequence[LoadedFile], deadline: Deadline | None = None
    ) -> ChangeReport:
        """A shard that is away is not waited for: whoever leads the change comes again."""
        report = await self._shard.ask(CHANGE, self._until(deadline), request, files, self._catalog.latest.version)
        self._away_from_s = None
        return report

    async def report(self, table: TableId | None = None, deadline: Deadline | None = None) -> TabletReport:
        """Unavailable also if the shard does not let its master in: nobody can do anything about that here, and others
        are asked besides."""
        try:
            return self._heard(await self._shard.ask(REPORT, self._until(deadline), table))
        except PermissionDenied as error:
            raise Unavailable(f"shard {self._server} does not say what it has: {error}") from error

    async def choose_split(
        self, table: TableId, at: Row | None, tablet: int | None, deadline: Deadline | None = None
    ) -> ChosenSplit:
        """Which of its tablets of a table to split and where."""
        version = self._catalog.latest.version
        return await self._shard.ask(CHOOSE_SPLIT, self._until(deadline), table, at, tablet, version)

    async def look_at_sizes(self) -> None:
        """A shard that is not there now looks at them when it starts."""
        with suppress(Unavailable, Closed):
            await self._shard.ask(LOOK_AT_SIZES, self._until())

    async def files_needed(self, deadline: Deadline | None = None) -> FilesNeeded:
        """A shard whose clock is behind the master's refuses once, and asks for a later bound of its times: so it is
        asked again soon. When the master looks next, its own time would have gone on as well."""
        for left in reversed(range(_FILES_TRIES)):
            try:
                return await self._shard.ask(FILES_NEEDED, self._until(deadline))
            except Deposed:
                raise
            except Unavailable as error:
                is_over = deadline is not None and deadline.is_over
                if not left or is_over or isinstance(error, ConnectionLost | DeadlineExceeded):
                    raise Unavailable(f"shard {self._server} does not say which files it needs: {error}") from error
            await asyncio.sleep(_PAUSE_S)
        raise AssertionError("the last try returns or raises")

    def _until(self, deadline: Deadline | None = None) -> Deadline:
        return Deadline(self._clock, _SILENCE_S) if deadline is None else deadline.within(_SILENCE_S)

    def _heard(self, report: TabletReport) -> TabletReport:
        self._away_from_s = None
        return report


class GoneServerLink:
    """To a shard that was taken out of the cluster: what is to be deleted there is gone, and it holds nothing."""

    def __init__(self, server: str) -> None:
        self.server = server

    def end(self) -> None:
        return None

    async def close(self) -> None:
        return None

    async def ask(self, request: ControlRequest, deadline: Deadline | None = None) -> TabletReport:  # noqa: ARG002
        if isinstance(request, DeleteTablets | UnloadTable):
            return TabletReport(self.server, ())
        if isinstance(request, ProveTable):
            raise NotFound(f"what shard {self.server} had of the table is lost: it was taken out of the cluster")
        raise self._refusal()

    async def report(self, table: TableId | None = None, deadline: Deadline | None = None) -> TabletReport:  # noqa: ARG002
        raise self._refusal()

    async def ask_change(
        self,
        request: ChangeRequest,
        files: Sequence[LoadedFile],  # noqa: ARG002
        deadline: Deadline | None = None,  # noqa: ARG002
    ) -> ChangeReport:
        if isinstance(request, PrepareChange):
            raise self._refusal()
        return ChangeReport(self.server, is_held=False)

    async def choose_split(
        self,
        table: TableId,  # noqa: ARG002
        at: Row | None,  # noqa: ARG002
        tablet: int | None,  # noqa: ARG002
        deadline: Deadline | None = None,  # noqa: ARG002
    ) -> ChosenSplit:
        raise self._refusal()

    async def look_at_sizes(self) -> None:
        return None

    async def files_needed(self, deadline: Deadline | None = None) -> FilesNeeded:  # noqa: ARG002
        raise self._refusal()

    def _refusal(self) -> Unavailable:
        return Unavailable(f"shard {self.server} was taken out of the cluster")


class ShardServers:
    """`Servers` of a cluster: a link to each shard. `open_peer` connects to a shard by name."""

    patience_s: float | None = 3.0

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
        self._links: dict[str, RemoteServerLink | GoneServerLink] = {}

    async def names(self) -> tuple[str, ...]:
        return tuple(life.name for life in await read_lives(self._store))

    async def gone(self) -> tuple[str, ...]:
        """Those that were taken out of the cluster."""
        found = tuple(each.name for each in (await read_shards(self._store))[1])
        for server in found:
            await self._note_gone(server)
        return found

    async def _note_gone(self, server: str) -> None:
        link = self._links.get(server)
        if not isinstance(link, GoneServerLink):
            self._links[server] = GoneServerLink(server)
            self.descriptors.forget(server)
            if link is not None:
                await link.close()

    async def placeable(self) -> tuple[str, ...]:
        """All but those of which the heartbeats have told no good, and, if there are others, those that are drained."""
        names, drained = await self.names(), await read_drained(self._store)
        staying = [name for name in names if name not in drained]
        return self.descriptors.placeable(staying or names, self._clock.monotonic_s())

    def is_silent(self, server: str) -> bool:
        known = self.descriptors.of(server)
        return known is not None and known.is_silent(self._clock.monotonic_s())

    async def is_whole(self) -> bool:
        """Whether all shards that belong to the cluster were heard of lately."""
        now_s, heard = self._clock.monotonic_s(), self.descriptors.of
        return all((known := heard(name)) is not None and not known.is_silent(now_s) for name in await self.names())

    def link(self, server: str) -> RemoteServerLink | GoneServerLink:
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
        self, maps: TabletMaps, table: TableId, at: Row | None, tablet: int | None, deadline: Deadline | None = None
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
        asked = (self.link(server).choose_split(table, at, tablet, deadline) for server in servers)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found = [each for each in answers if isinstance(each, ChosenSplit)]
        failed = [each for each in answers if isinstance(each, BaseException)]
        for error in failed:
            if not found or not isinstance(error, InvalidArgument | TabletAway):  # another has rows to part
                raise error
        chosen = max(found, key=lambda each: each.size_bytes)
        return chosen.tablet, chosen.at

    async def files_needed(self, deadline: Deadline | None = None) -> list[FilesNeeded]:
        """What each shard needs of the store; Unavailable if one does not answer."""
        return await asyncio.gather(*(self.link(server).files_needed(deadline) for server in await self.names()))

    async def look_at_sizes(self) -> None:
        await asyncio.gather(*(self.link(server).look_at_sizes() for server in await self.names()))


class ChangedServers:
    """`ChangeServers` of a cluster: where tablets are is known by the master's maps."""

    def __init__(self, servers: ShardServers, maps: TabletMaps) -> None:
        self._servers = servers
        self._maps = maps

    def records(self, table: TableId) -> Sequence[TabletRecord]:
        return self._maps.of_table(table)

    async def ask_change(
        self,
        server: str,
        request: ChangeRequest,
        files: Sequence[LoadedFile] = (),
        deadline: Deadline | None = None,
    ) -> ChangeReport:
        return await self._servers.link(server).ask_change(request, files, deadline)


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
