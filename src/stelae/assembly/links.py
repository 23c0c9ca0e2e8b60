"""How a master and its server reach each other: in one process, or over connections."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from stelae.assembly.world import Aside
from stelae.master.master import Master
from stelae.model.errors import ConnectionLost, Unavailable
from stelae.model.ids import Row, TableId, TabletId
from stelae.ports.clock import Clock
from stelae.ports.loop import Loop
from stelae.ports.metastore import Metastore
from stelae.registry.catalog.service import CatalogService
from stelae.registry.control import ControlRequest, TabletReport
from stelae.registry.control_operations import (
    CHOOSE_SPLIT,
    CONTROL,
    JOIN_TABLETS,
    LOOK_AT_SIZES,
    REPORT,
    SPLIT_TABLET,
    TABLETS_AT_REST,
    TabletsAtRest,
)
from stelae.registry.peers import Peer
from stelae.registry.tablet_records import TabletRecord, read_tablets
from stelae.service.deadlines import Deadline
from stelae.tserver.server import TabletServer

_PAUSE_S = 0.05

ANSWER_S = 60.0
"""How long nothing may be heard of what one process has asked another."""


class LocalServerLink:
    """A `ServerLink`: requests are carried out by a thread."""

    def __init__(self, server: TabletServer, aside: Aside) -> None:
        self._server = server
        self._aside = aside

    @property
    def server(self) -> str:
        return self._server.name

    async def ask(self, request: ControlRequest) -> TabletReport:
        return await self._aside(self._server.ask, request)

    async def report(self) -> TabletReport:
        return await self._aside(self._server.report)


class LocalMasterLink:
    """A `MasterLink`. The master is made after its server: until `connect`, nothing is asked of it."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._master: Master | None = None

    def connect(self, master: Master) -> None:
        self._master = master

    def split(self, tablet: TabletId, at: Row) -> None:
        if self._master is not None:
            self._loop.run(self._master.split(tablet, at))

    def join(self, left: TabletId, right: TabletId) -> None:
        if self._master is not None:
            self._loop.run(self._master.join(left, right))

    def records(self, table: TableId) -> Mapping[TabletId, TabletRecord]:
        found = () if self._master is None else self._master.maps.of_table(table)
        return {record.tablet: record for record in found}


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


class RemoteMasterLink:
    """A `MasterLink` over connections; what is recorded is read from the metastore, whoever leads."""

    def __init__(self, master: Peer, metastore: Metastore, loop: Loop, clock: Clock) -> None:
        self._master = master
        self._metastore = metastore
        self._loop = loop
        self._clock = clock

    def split(self, tablet: TabletId, at: Row) -> None:
        self._loop.run(self._master.ask(SPLIT_TABLET, self._until(), tablet, at))

    def join(self, left: TabletId, right: TabletId) -> None:
        self._loop.run(self._master.ask(JOIN_TABLETS, self._until(), left, right))

    def records(self, table: TableId) -> Mapping[TabletId, TabletRecord]:
        return {record.tablet: record for record in self._loop.run(read_tablets(self._metastore, table))}

    def tablets_at_rest(self) -> TabletsAtRest:
        """What the master has recorded while it changes nothing."""
        return self._loop.run(self._master.ask(TABLETS_AT_REST, self._until()))

    def _until(self) -> Deadline:
        return Deadline(self._clock, ANSWER_S)
