"""Nodes and shards that never come back, taken out of the cluster.

While a shard belongs to a cluster it is asked: what the newest snapshot is, which files it needs, whether it has a
change prepared. One that is gone for good would hold all of that up for ever. It is taken out by an operator alone,
when its lease has stood still for longer than it could rely on it, and by one transaction that compares that: a shard
that comes back in this very moment either stays, or is refused.

The rows of a tablet that has no replica elsewhere are lost if its shard is taken out. So that is refused, unless the
loss is accepted; then tablets without rows take their place. A tablet that has others is led by one of them first.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from stelae.catalog.value import Catalog
from stelae.master.master import Master
from stelae.model.errors import InvalidArgument, NotFound, Retryable, StelaeError, Unavailable, UnknownOutcome
from stelae.model.events import Listener, ShardRemoved
from stelae.model.ids import TableId
from stelae.model.words import counted
from stelae.ports.clock import Clock
from stelae.registry.catalog.service import CatalogService
from stelae.registry.incarnations import ShardLife
from stelae.registry.leases.held import LOOKS
from stelae.registry.leases.removals import find_shards, remove_shard
from stelae.registry.leases.shard import lease_key
from stelae.registry.leases.sight import ShardSight
from stelae.registry.masters.guard import GuardedStore
from stelae.registry.masters.removing import LostTablets, RemovedServers
from stelae.registry.tablet_records import TabletPhase, TabletRecord, is_only_on

_PAUSE_S = 1.0
_TABLES_NAMED_MAX = 5


class Removal:
    """For the tasks of one event loop, while its master leads."""

    def __init__(
        self, store: GuardedStore, master: Master, catalog: CatalogService, clock: Clock, tell: Listener
    ) -> None:
        self._store = store
        self._master = master
        self._catalog = catalog
        self._clock = clock
        self._tell = tell

    async def remove(self, name: str, *, accepts_loss: bool) -> RemovedServers:
        """All shards of a node, or one shard, by their name. InvalidArgument if one of them serves, or has the only
        replica of something whose loss is not accepted. Takes as long as a lease, to see that none serves."""
        lives = await find_shards(self._store, name)
        if not lives:
            raise NotFound(f"the cluster has no node, and no shard, that is called {name!r}")
        self._check_loss(name, lives, accepts_loss)
        sight = await self._see_silent(lives)
        lost = self._check_loss(name, lives, accepts_loss)
        self._check_led(name, lives)
        for life in lives:
            if not await remove_shard(self._store, life, sight, self._clock.wall_ms()):
                raise Unavailable(f"shard {life.name} is being started, or was taken out by somebody else; look again")
            self._tell(ShardRemoved(life.name, len(self._tablets_on([life]))))
        try:
            await self._master.replace_lost()
        except (Retryable, UnknownOutcome):
            raise
        except StelaeError as error:
            raise UnknownOutcome(
                f"{name} is taken out of the cluster; that others take the place of the tablets that it had is tried "
                f"again and again, but meets this: {error}"
            ) from error
        return RemovedServers(tuple(life.name for life in lives), lost)

    def _tablets_on(self, lives: Sequence[ShardLife]) -> list[TabletRecord]:
        """Those that nobody else has a replica of."""
        names = {life.name for life in lives}
        there = (record for record in self._master.maps.all() if is_only_on(record, names))
        return [record for record in there if record.phase is not TabletPhase.REPLACED]

    def _check_led(self, name: str, lives: Sequence[ShardLife]) -> None:
        """Unavailable while tablets that have other replicas are recorded as led there: another leads them soon."""
        names = {life.name for life in lives}
        led = [record for record in self._master.maps.all() if record.server in names and not is_only_on(record, names)]
        if led:
            count = counted(len(led), "tablet that has", "tablets that have")
            raise Unavailable(f"{count} other replicas, and that {name} led, are not led by others yet; try again")

    def _check_loss(self, name: str, lives: Sequence[ShardLife], accepts_loss: bool) -> tuple[LostTablets, ...]:
        catalog, tables = self._catalog.latest, Counter[TableId]()
        tables.update(record.table for record in self._tablets_on(lives))
        lost = tuple(LostTablets(_name(catalog, table), tables[table]) for table in sorted(tables))
        if lost and not accepts_loss:
            raise InvalidArgument(
                f"{counted(sum(tables.values()), 'tablet has its', 'tablets have their')} only replica on {name}: of "
                f"{_listed([each.table for each in lost])}. Their rows would be lost. Start it again; or drop these "
                "tables and wait for their grace; or accept that what it had of them is lost (--accept-loss)"
            )
        return lost

    async def _see_silent(self, lives: Sequence[ShardLife]) -> ShardSight:
        """When the leases of all of them have stood still for long enough."""
        sight, first = ShardSight(), ShardSight()
        await first.look(self._store, self._clock)
        while True:
            await sight.look(self._store, self._clock)
            waiting = [life for life in lives if not self._is_silent(sight, life)]
            if not waiting:
                return sight
            for life in waiting:
                key = lease_key(life.node, life.number)
                if key not in first.seen or first.seen[key].revision != sight.seen[key].revision:
                    raise InvalidArgument(
                        f"shard {life.name} serves at {life.address}: it has just renewed its lease. Stop it first"
                    )
            keys = [lease_key(life.node, life.number) for life in waiting]
            await asyncio.sleep(min(_PAUSE_S, *(sight.seen[key].duration_s / LOOKS for key in keys)))

    def _is_silent(self, sight: ShardSight, life: ShardLife) -> bool:
        """One that has no lease has never served."""
        key = lease_key(life.node, life.number)
        return key not in sight.seen or sight.is_silent(key, self._clock.monotonic_s())


def _name(catalog: Catalog, table: TableId) -> str:
    if (there := catalog.tables.get(table)) is not None:
        return catalog.qualified_name(there)
    dropped = catalog.dropped.get(table)
    return f"table {table}" if dropped is None else f"{dropped.table.name} (dropped)"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_TABLES_NAMED_MAX])
    return shown if len(names) <= _TABLES_NAMED_MAX else f"{shown} and {len(names) - _TABLES_NAMED_MAX} more"
