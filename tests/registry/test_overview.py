"""A cluster at a glance: what is seen of shards, and what is late."""

from __future__ import annotations

import msgspec

from stelae.model.ids import TableId, TabletId
from stelae.model.ranges import RowRange
from stelae.ports.metastore import Metastore
from stelae.registry.incarnations import ShardLife
from stelae.registry.masters.lives import MasterLife, read_masters, register_master, remove_master
from stelae.registry.masters.overview import Heard, Late, MasterSeen, Numbers, ShardSeen, find_late, see_shards
from stelae.registry.tablet_records import TabletPhase, TabletRecord
from tests.registry.test_incarnations import play

TABLE = TableId(1)
LEADING = MasterSeen("m1", "a:1", "1.0", leads=True)


def record(number: int, phase: TabletPhase, server: str = "", since_ms: int = 0) -> TabletRecord:
    return TabletRecord(TabletId(number), TABLE, RowRange(b""), phase, server, since_ms)


def shard(name: str, *, trouble: str = "", version: int | None = 3) -> ShardSeen:
    node, _, number = name.partition("/")
    numbers: dict[str, int | float] = {} if version is None else {"catalog_version": version}
    return ShardSeen(name, node, int(number), "a:2", 1, 0, trouble, numbers)


def test_shards_have_the_tablets_that_run_there() -> None:
    lives = [ShardLife("id2", "n2", 0, 1, "log", "a:3"), ShardLife("id1", "n1", 1, 4, "log", "a:2")]
    records = [
        record(1, TabletPhase.RUNNING, "n1/1"),
        record(2, TabletPhase.RUNNING, "n1/1"),
        record(3, TabletPhase.CREATING, "n2/0"),
        record(4, TabletPhase.REPLACED, "n2/0"),
    ]
    told: dict[str, tuple[Numbers, str]] = {"n1/1": ({"log_bytes": 5}, ""), "n2/0": ({}, "away")}
    first, second = see_shards(lives, records, told, {"n2/0": Heard(9, 1)})
    assert (first.name, first.tablets, first.incarnation, first.numbers) == ("n1/1", 2, 4, {"log_bytes": 5})
    assert (second.name, second.tablets, second.trouble, second.heard) == ("n2/0", 0, "away", Heard(9, 1))
    assert first.heard is None


def test_nothing_is_late() -> None:
    assert find_late([LEADING], [shard("n1/0"), shard("n1/1", version=4)], [], 3, 0) == ()


def test_what_is_late() -> None:
    standing_by = MasterSeen("m2", "a:9", "1.0", leads=False, trouble="nobody listens")
    records = [
        record(1, TabletPhase.CREATING, "n1/0", 5_000),
        record(2, TabletPhase.CREATING, "n1/0", 3_000),
        record(3, TabletPhase.PREPARING, "", 9_000),
        record(4, TabletPhase.RUNNING, "n9/0"),
        record(5, TabletPhase.RUNNING, "n1/0"),
        record(6, TabletPhase.REPLACED, "n8/0"),
    ]
    shards = [shard("n1/0", version=2), shard("n1/1", trouble="it is gone", version=None)]
    assert find_late([standing_by], shards, records, 3, 10_000) == (
        Late("m2", "does not answer: nobody listens"),
        Late("n1/1", "does not answer: it is gone"),
        Late("masters", "none of them leads now"),
        Late("n1/0", "knows version 2 of the catalog; the newest is 3"),
        Late("n1/0", "2 tablets still to be made, for 7 s"),
        Late("the master", "1 tablet still to be made, for 1 s"),
        Late("n9/0", "has 1 tablet, and is no shard of the cluster: it was never started, or was taken out"),
    )


def test_who_is_not_heard_of_or_has_another_time() -> None:
    shards = [
        msgspec.structs.replace(shard(name), heard=Heard(ago_s, off_ms))
        for name, ago_s, off_ms in (("n1/0", 3, 10_000), ("n1/1", 61.4, 0), ("n1/2", 0, -12_000), ("n1/3", 0, 12_000))
    ]
    assert find_late([LEADING], shards, [], 3, 0) == (
        Late("n1/1", "was last heard of 61 s ago, and gets no new tablets"),
        Late("n1/2", "its clock is 12 s behind the master's, and it gets no new tablets"),
        Late("n1/3", "its clock is 12 s ahead of the master's, and it gets no new tablets"),
    )


def test_who_has_no_lease() -> None:
    without = msgspec.structs.replace(shard("n1/0"), numbers={"lease_is_valid": 0})
    having = msgspec.structs.replace(shard("n1/1"), numbers={"lease_is_valid": 1})
    assert find_late([LEADING], [without, having], [], 3, 0) == (
        Late("n1/0", "could not renew its lease, and does not answer about rows"),
    )


def test_masters_say_where_they_serve_until_they_stop() -> None:
    async def story(store: Metastore) -> None:
        first, second = MasterLife("m1", "id1", "a:1"), MasterLife("m2", "id2", "a:2", "1.0")
        await register_master(store, second)
        await register_master(store, first)
        assert await read_masters(store) == (first, second)
        again = MasterLife("m1", "another disk", "a:3")
        await register_master(store, again)
        await remove_master(store, first)
        assert await read_masters(store) == (again, second)
        await remove_master(store, again)
        assert await read_masters(store) == (second,)

    play(story)
