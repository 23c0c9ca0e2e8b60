"""How a master and its server reach each other: in one process."""

from __future__ import annotations

from collections.abc import Mapping

from stelae.assembly.world import Aside
from stelae.master.master import Master
from stelae.model.ids import Row, TableId, TabletId
from stelae.ports.loop import Loop
from stelae.registry.control import ControlRequest, TabletReport
from stelae.registry.tablet_records import TabletRecord
from stelae.tserver.server import TabletServer


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
