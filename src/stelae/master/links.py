"""How a master reaches its servers: in the same process, or over connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from stelae.model.errors import ConnectionLost, Unavailable
from stelae.model.ids import Row, TableId, TabletId
from stelae.ports.clock import Clock
from stelae.ports.loop import Loop
from stelae.ports.metastore import Metastore
from stelae.registry.catalog.service import CatalogService
from stelae.registry.control import ControlRequest, TabletReport
from stelae.registry.control_operations import ANSWER_S, CHOOSE_SPLIT, CONTROL, LOOK_AT_SIZES, REPORT
from stelae.registry.incarnations import read_lives
from stelae.registry.peers import Peer
from stelae.service.deadlines import Deadline

_PAUSE_S = 0.05


class RemoteServerLink:
    """A `ServerLink` over connections. Each request names the version of the catalog that the master knows.

    A shard that is away is asked again until it has been away for `away_s`: mostly it is being started again, and what
    is asked of it is the second half of a change that is made already."""

    def __init__(self, shard: Peer, catalog: CatalogService, loop: Loop, clock: Clock, away_s: float) -> None:
        self._shard = shard
        self._catalog = catalog
        self._loop = loop
        self._clock = clock
        self._away_s = away_s
        self._away_from_s: float | None = None
        self._server = ""

    def end(self) -> None:
        """From now on a shard that is away is not waited for."""
        self._away_s = 0.0

    @property
    def server(self) -> str:
        """As it called itself last."""
        return self._server

    async def ask(self, request: ControlRequest) -> TabletReport:
        while True:
            try:
                version = self._catalog.latest.version
                return self._heard(await self._shard.ask(CONTROL, self._until(), request, version))
            except ConnectionLost:
                now_s = self._clock.monotonic_s()
                if self._away_from_s is None:
                    self._away_from_s = now_s
                if now_s - self._away_from_s >= self._away_s:
                    raise
            await asyncio.sleep(_PAUSE_S)

    async def report(self) -> TabletReport:
        return self._heard(await self._shard.ask(REPORT, self._until()))

    def choose_split(self, table: TableId, at: Row | None, tablet: int | None) -> tuple[TabletId, Row]:
        """Which tablet of a table to split and where. Blocking."""
        asked = self._shard.ask(CHOOSE_SPLIT, self._until(), table, at, tablet, self._catalog.latest.version)
        chosen = self._loop.run(asked)
        return chosen.tablet, chosen.at

    def look_at_sizes(self) -> None:
        """Blocking. A shard that is not there now looks at them when it starts."""
        with suppress(Unavailable):
            self._loop.run(self._shard.ask(LOOK_AT_SIZES, self._until()))

    def _until(self) -> Deadline:
        return Deadline(self._clock, ANSWER_S)

    def _heard(self, report: TabletReport) -> TabletReport:
        self._server, self._away_from_s = report.server, None
        return report


class NearServer(Protocol):
    """A server in the same process. Blocking."""

    @property
    def name(self) -> str: ...

    def ask(self, request: ControlRequest) -> TabletReport: ...

    def report(self) -> TabletReport: ...


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

    async def ask(self, request: ControlRequest) -> TabletReport:
        return await self._aside(self._server.ask, request)

    async def report(self) -> TabletReport:
        return await self._aside(self._server.report)


class ShardFinder:
    """Finds where the shard serves, by what the metastore knows of its life."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore

    async def __call__(self, _: Deadline | None) -> str:
        lives = await read_lives(self._metastore)
        if not lives:
            raise Unavailable("no shard has been started yet")
        return lives[0].address
