"""Whether a cluster has room for the replicas of a table, before it is made."""

from __future__ import annotations

from stelae.catalog.objects import Zone
from stelae.master.replication.racks import racks_of
from stelae.master.replication.replication import Replication
from stelae.model.errors import InvalidArgument, Unavailable
from stelae.ports.metastore import Metastore
from stelae.registry.incarnations import read_lives


async def check_room(store: Metastore, replication: Replication, zone: Zone) -> None:
    """Unavailable, in words, if there is no room now: shards that are away may come back. InvalidArgument if there were
    none with all that belong to the cluster: to wait for them is no use."""
    try:
        await replication.check_room(zone.id)
    except Unavailable:
        lives = {life.name: life for life in await read_lives(store)}
        try:
            racks_of(zone, lives).check(zone.replicas, tuple(lives))
        except Unavailable as error:
            raise InvalidArgument(str(error)) from None
        raise
