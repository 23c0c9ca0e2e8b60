"""Whether there is room for a table's replicas: later perhaps, or not as long as the cluster is as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from stelae.catalog.objects import Zone, ZoneId
from stelae.master.replication.racks import racks_of
from stelae.master.tables.room import check_room
from stelae.model.errors import InvalidArgument, Unavailable
from stelae.ports.metastore import PutKey
from stelae.registry.incarnations import ShardLife, life_key
from tests.master.servers import Office


class Placing:
    """What of `Replication` says whether there is room: on these nodes, each with one shard."""

    def __init__(self, zone: Zone, there: int) -> None:
        self._zone = zone
        self._there = there

    async def check_room(self, _: ZoneId) -> None:
        racks_of(self._zone, {}).check(self._zone.replicas, [f"n{number}/0" for number in range(self._there)])


@pytest.fixture
def office() -> Iterator[Office]:
    """With three nodes registered, of two shards each."""
    made = Office().start()
    lives = [ShardLife(f"id{n}", f"n{n}", number, 1, "log", "a:1") for n in range(3) for number in range(2)]
    for life in lives:
        made.run(made.store.txn([], [PutKey(life_key(life.node, life.number), msgspec.json.encode(life))]))
    yield made
    made.close()


def check(office: Office, replicas: int, there: int) -> None:
    zone = Zone(ZoneId(5), "z", replicas)
    placing: Any = Placing(zone, there)
    office.run(check_room(office.store, placing, zone))


def test_nodes_that_are_away_may_come_back(office: Office) -> None:
    check(office, replicas=3, there=3)
    with pytest.raises(Unavailable, match="there are 2 nodes: start more"):
        check(office, replicas=3, there=2)


def test_more_replicas_than_nodes_belong_to_the_cluster_are_refused_for_good(office: Office) -> None:
    for there in (2, 3):
        with pytest.raises(
            InvalidArgument, match="9 replicas, each on another node, and there are 3 nodes: start more"
        ):
            check(office, replicas=9, there=there)
