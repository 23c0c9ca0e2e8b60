"""Nodes that are about to be stopped: what they lead is handed over first, so that no call fails for it.

A shard that is drained leads nothing, is not elected while another can be, and gets no new tablets and no new replicas;
those that it has go on. That is written down for the life that its process has now: it ends when the node is started
again. A master that follows another goes on with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from stelae.master.master import Master
from stelae.model.errors import NotFound, Unavailable
from stelae.model.words import counted
from stelae.ports.clock import Clock
from stelae.registry.catalog.service import CatalogService
from stelae.registry.leases.removals import find_shards
from stelae.registry.masters.draining import DrainedServers, mark_drained
from stelae.registry.masters.guard import GuardedStore
from stelae.registry.tablet_records import TabletPhase, TabletRecord, is_only_on

DRAIN_S = 30.0
"""So long is waited for others to lead; after that it is said who does not, and it goes on by itself."""
_PAUSE_S = 0.1


class Draining:
    """For the tasks of one event loop, while its master leads."""

    def __init__(self, store: GuardedStore, master: Master, catalog: CatalogService, clock: Clock) -> None:
        self._store = store
        self._master = master
        self._catalog = catalog
        self._clock = clock

    async def drain(self, name: str) -> DrainedServers:
        """All shards of a node, or one shard, by their name: returns when they lead no tablet that another could lead.
        Unavailable if that takes long."""
        lives = await find_shards(self._store, name)
        if not lives:
            raise NotFound(f"the cluster has no node, and no shard, that is called {name!r}")
        servers = {life.name for life in lives}
        before = len(self._led(servers))
        if not await mark_drained(self._store, lives):
            raise Unavailable(f"{name} was started again, or taken out, in this moment; look again")
        until_s = self._clock.monotonic_s() + DRAIN_S
        while led := self._led(servers):
            if self._clock.monotonic_s() > until_s:
                count = counted(len(led), "tablet is", "tablets are")
                raise Unavailable(
                    f"{count} still led by {name}: no other replica can lead now, because it is away, or behind, or "
                    "being drained, too. It is handed over by itself as soon as one can; then ask again"
                )
            await asyncio.sleep(_PAUSE_S)
        if self._master.replication is not None:
            await self._master.replication.wait_settled()
        alone = [record for record in self._there() if is_only_on(record, servers)]
        return DrainedServers(tuple(sorted(servers)), before, len(alone))

    def _there(self) -> list[TabletRecord]:
        tables, records = self._catalog.latest.tables, self._master.maps.all()
        return [record for record in records if record.table in tables and record.phase is TabletPhase.RUNNING]

    def _led(self, servers: Collection[str]) -> list[TabletRecord]:
        """What they lead that has replicas elsewhere."""
        return [record for record in self._there() if record.server in servers and not is_only_on(record, servers)]
