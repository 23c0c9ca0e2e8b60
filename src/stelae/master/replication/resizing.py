"""Tablets that become others: their servers do it, and it is recorded. The caller has the turn of the table."""

from __future__ import annotations

from collections.abc import Sequence

from stelae.master.records import Records
from stelae.master.replication.replication import Replication
from stelae.master.servers import Servers
from stelae.master.tables.outcomes import made_already
from stelae.model.errors import InvalidArgument
from stelae.model.ids import Row
from stelae.ports.clock import Clock
from stelae.ports.metastore import Metastore
from stelae.registry.control import JoinTablets, SplitTablet, TabletReport
from stelae.registry.tablet_records import TabletPhase, TabletRecord, take_tablet_ids
from stelae.service.deadlines import Deadline


class Resizing:
    """For the tasks of one event loop."""

    def __init__(
        self, store: Metastore, records: Records, servers: Servers, clock: Clock, replication: Replication | None
    ) -> None:
        self._store = store
        self._records = records
        self._servers = servers
        self._clock = clock
        self._replication = replication

    async def split(self, record: TabletRecord, at: Row, is_asked: bool, deadline: Deadline | None) -> None:
        left, right = await take_tablet_ids(self._store, 2)
        request = SplitTablet(record.tablet, at, left, right)
        if record.replicas and self._replication is not None:
            rows = record.rows.split(at)
            await self._replication.resize(request, [record], rows, is_asked, deadline)
            return
        report = await self._servers.link(record.server).ask(request, deadline)
        with made_already(f"tablet {record.tablet} is split"):
            await self._record([record], report, is_asked)

    async def join(self, records: Sequence[TabletRecord], deadline: Deadline | None) -> None:
        left, right = records
        if set(left.replicas) != set(right.replicas):
            raise InvalidArgument(f"tablets {left.tablet} and {right.tablet} have their replicas on different shards")
        (into,) = await take_tablet_ids(self._store, 1)
        request = JoinTablets(left.tablet, right.tablet, into)
        if left.replicas and self._replication is not None:
            rows = [left.rows.join(right.rows)]
            await self._replication.resize(request, records, rows, is_asked=False, deadline=deadline)
            return
        report = await self._servers.link(left.server).ask(request, deadline)
        with made_already(f"tablets {left.tablet} and {right.tablet} are joined"):
            await self._record(records, report)

    async def _record(self, old: Sequence[TabletRecord], report: TabletReport, is_asked: bool = False) -> None:
        now_ms = self._clock.wall_ms()
        new = [
            TabletRecord(each.tablet, each.table, each.rows, TabletPhase.RUNNING, report.server, now_ms, is_asked)
            for each in report.tablets
        ]
        await self._records.write(new, old)
