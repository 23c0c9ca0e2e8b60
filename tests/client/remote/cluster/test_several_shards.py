"""A cluster of three shards, as a program sees it: one store. Its tables are cut so that each shard has some rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

import stelae
import stelae.aio
from stelae.client.remote.cluster.store import ClusterStore
from stelae.model.errors import NotFound, PartialWrite, Unavailable
from stelae.storage.tablet.config import decode_config
from tests.cluster_of_threads import Cluster
from tests.clusters import until
from tests.effort import HANG_S

SHARDS = 3
CUTS = list(range(100, 600, 100))
ROWS = 600


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("several"), shard_count=SHARDS) as cluster:
        with stelae.connect(cluster.address, timeout_s=HANG_S) as db:
            until(lambda: _spread(db))
        yield cluster


def _spread(db: stelae.Database) -> bool:
    """Whether the master gives tablets to all shards: it does when it has heard of them."""
    table = make_table(db, "first")
    found = {tablet.server for tablet in table.tablets()}
    db.drop_table("first")
    return len(found) == SHARDS


@pytest.fixture
def db(cluster: Cluster) -> Iterator[stelae.Database]:
    with stelae.connect(cluster.address, timeout_s=HANG_S) as db:
        yield db


def make_table(db: stelae.Database, name: str) -> stelae.Table:
    return db.create_table(name, {"k": "int64"}, [stelae.columns("g", {"v": "int64"})], splits=CUTS)


@pytest.fixture
def table(db: stelae.Database, request: pytest.FixtureRequest) -> stelae.Table:
    name = request.node.name.partition("[")[0]
    table = make_table(db, name)
    table.put_many([{"k": k, "v": k} for k in range(ROWS)])
    return table


def backend_of(db: stelae.Database) -> ClusterStore:
    found: Any = db._session.backend
    assert isinstance(found, ClusterStore)
    return found


def number_of(table: stelae.Table, key: int) -> int:
    """Of the shard that has a row."""
    (found,) = [t.server for t, start in zip(table.tablets(), [0, *CUTS], strict=True) if start <= key < start + 100]
    return int(found.partition("/")[2])


def test_rows_are_read_and_written_wherever_they_are(table: stelae.Table) -> None:
    assert len({tablet.server for tablet in table.tablets()}) == SHARDS
    for key in range(50, ROWS, 100):
        table.put({"k": key, "v": -key})
        assert table.get(key) == {"k": key, "v": -key}
    keys = [550, 1, 250, 1, 9_999, 350]
    found = [row and row["v"] for row in table.get_many(keys)]
    assert found == [-550, 1, -250, 1, None, -350]
    assert len({row.txn for row in table.get_many(keys) if row}) == 1, "all at one snapshot"
    assert table.increment(450, {"v": 1}) == {"v": -449}
    assert [len(versions["v"]) for versions in [table.history(450)] if versions] == [3]
    table.erase_many([0, 199, 200, 599])
    assert table.get_many([0, 199, 200, 599]) == [None] * 4


def test_scans_go_from_shard_to_shard(table: stelae.Table) -> None:
    def keys(*args: Any, **given: Any) -> list[int]:
        return [row["k"] for row in table.scan(*args, **given)]

    assert keys() == list(range(ROWS))
    assert keys(reverse=True) == list(reversed(range(ROWS)))
    assert keys(limit=250) == list(range(250))
    assert keys(reverse=True, limit=250) == list(range(599, 349, -1))
    assert keys("v >= 150 and v < 420", limit=260) == list(range(150, 410))
    assert keys("k >= 295 and k < 305 or k = 599") == [*range(295, 305), 599]
    assert keys(limit=0) == []
    assert table.count() == ROWS
    rows, token = table.scan().page(333)
    assert [row["k"] for row in rows] == list(range(333))
    assert keys(after=token) == list(range(333, ROWS))


def test_a_hashed_table_is_spread_too(db: stelae.Database) -> None:
    table = db.create_table(
        "hashed", {"k": "int64"}, [stelae.columns("g", {"v": "int64"})], partition="hash", tablets=6
    )
    table.put_many([{"k": k, "v": k} for k in range(ROWS)])
    assert len({tablet.server for tablet in table.tablets()}) == SHARDS
    assert sorted(row["k"] for row in table.scan()) == list(range(ROWS))
    assert [row["k"] for row in table.scan(ordered=True, limit=300)] == list(range(300))


def test_a_snapshot_is_one_moment_of_all_shards(cluster: Cluster, table: stelae.Table) -> None:
    """One program counts up in rows of all shards, one after the other; whatever another reads at once was there at
    some moment: no row is ahead of one that is written before it."""
    keys, ended = [5, 205, 405, 105, 305, 505], Event()
    table.put_many([{"k": key, "v": 0} for key in keys])

    def count() -> int:
        done = 0
        with stelae.connect(cluster.address, timeout_s=HANG_S) as other:
            own = other.table(table.name)
            while not ended.is_set():
                done += 1
                for key in keys:
                    own.put({"k": key, "v": done})
        return done

    with ThreadPoolExecutor(1) as pool:
        counting = pool.submit(count)
        try:
            for _ in range(50):
                for values in (_values(table, keys), _scanned(table, keys)):
                    assert values == sorted(values, reverse=True)
                    assert values[0] - values[-1] <= 1
        finally:
            ended.set()
        assert counting.result(HANG_S) > 0


def _values(table: stelae.Table, keys: list[int]) -> list[int]:
    return [row["v"] for row in table.get_many(keys) if row]


def _scanned(table: stelae.Table, keys: list[int]) -> list[int]:
    found = {row["k"]: row["v"] for row in table.scan("k = 5 or k = 105 or k = 205 or k = 305 or k = 405 or k = 505")}
    return [found[key] for key in keys]


def test_what_was_read_at_a_snapshot_stays(cluster: Cluster, db: stelae.Database, table: stelae.Table) -> None:
    """Also where the shard has heard of the snapshot only when it was taken, and others write there."""
    before = db.now()
    with db.snapshot() as snapshot, stelae.connect(cluster.address, timeout_s=HANG_S) as other:
        assert snapshot.txn >= before
        other.table(table.name).put_many([{"k": k, "v": -1} for k in range(ROWS)])
        for at in (before, snapshot):
            assert [row["v"] for row in table.get_many([1, 201, 401], at=at) if row] == [1, 201, 401]
            assert [row["v"] for row in table.scan(at=at)] == list(range(ROWS))
        assert table.get(1) == {"k": 1, "v": -1}


def test_a_snapshot_is_held_again_by_a_shard_that_was_killed(cluster: Cluster, table: stelae.Table) -> None:
    with stelae.connect(cluster.address, timeout_s=HANG_S) as other, other.snapshot() as snapshot:
        table.put_many([{"k": k, "v": -1} for k in range(ROWS)])
        number = number_of(table, 250)
        cluster.abandon_shard(number)
        cluster.begin_shard(number=number)
        pin: Any = snapshot._pin
        until(lambda: pin.is_held)
        table.compact(erase_now=True)
        assert [row["v"] for row in other.table(table.name).scan(at=snapshot)] == list(range(ROWS))


def test_a_shard_that_is_away_keeps_nobody_from_the_others(cluster: Cluster, table: stelae.Table) -> None:
    number = number_of(table, 250)
    away = f"node-1/{number}"
    others = [key for key in range(50, ROWS, 100) if number_of(table, key) != number]
    cluster.abandon_shard(number)
    try:
        with stelae.connect(cluster.address, timeout_s=1.5) as hasty:
            own = hasty.table(table.name)
            for key in others:
                own.put({"k": key, "v": 7})
                assert own.get(key) == {"k": key, "v": 7}
            with pytest.raises(Unavailable, match=away):
                own.get(250)
            with pytest.raises(Unavailable, match=away):
                list(own.scan())
            with pytest.raises(PartialWrite, match=rf"400 of 600 rows are durable.*{away}"):
                own.put_many([{"k": k, "v": 8} for k in range(ROWS)])
        assert [row and row["v"] for row in table.get_many(others)] == [8] * len(others)
    finally:
        cluster.begin_shard(number=number)
    assert table.get(250) == {"k": 250, "v": 250}
    table.put_many([{"k": k, "v": 9} for k in range(ROWS)])
    assert {row["v"] for row in table.scan()} == {9}


def test_what_waits_for_a_shard_goes_on_when_it_is_back(cluster: Cluster, table: stelae.Table) -> None:
    number = number_of(table, 250)
    cluster.abandon_shard(number)
    with ThreadPoolExecutor(3) as pool:
        waiting: list[Future[Any]] = [
            pool.submit(table.put_many, [{"k": k, "v": 1} for k in range(ROWS)]),
            pool.submit(lambda: len(list(table.scan()))),
            pool.submit(table.get, 250),
        ]
        cluster.begin_shard(number=number)
        assert [bool(each.result(HANG_S)) for each in waiting] == [True] * 3
    assert {row["v"] for row in table.scan()} == {1}


def test_an_event_loop_asks_each_shard_on_one_connection(cluster: Cluster, table: stelae.Table) -> None:
    async def run() -> None:
        async with stelae.aio.connect(cluster.address, timeout_s=HANG_S) as db:
            own = await db.table(table.name)
            await asyncio.gather(*(own.put({"k": k, "v": k + 1}) for k in range(ROWS)))
            found = await asyncio.gather(*(own.get(k) for k in range(ROWS)))
            assert [row and row["v"] for row in found] == [k + 1 for k in range(ROWS)]
            await own.put_many([{"k": k, "v": 0} for k in range(ROWS)])
            assert {row["v"] async for row in own.scan()} == {0}

    asyncio.run(run())


def test_upkeep_is_done_everywhere_and_told_as_one(db: stelae.Database, table: stelae.Table) -> None:
    table.flush()
    seen: list[tuple[int, int]] = []
    table.compact(progress=lambda done, total: seen.append((done, total)))
    stats = table.stats()
    assert (stats.tablets, stats.records, stats.memory_bytes) == (6, ROWS, 0)
    metrics = db.metrics()
    assert metrics["flushes"] == sum(metrics[f"node-1/{n}.flushes"] for n in range(SHARDS))
    assert metrics["visible_txn"] == max(metrics[f"node-1/{n}.visible_txn"] for n in range(SHARDS))
    report = db.check()
    assert report.problems == ()
    assert report.counts["tables"] == len(db.tables())
    table.split(50)
    assert [tablet.start for tablet in table.tablets()] == sorted(tablet.start for tablet in table.tablets())
    assert len(table.tablets()) == 7
    assert len(list(table.scan())) == ROWS


def test_a_hold_is_of_all_shards_at_one_snapshot(cluster: Cluster, db: stelae.Database, table: stelae.Table) -> None:
    store = backend_of(db)
    held = store.hold(table._info.id)
    table.put_many([{"k": k, "v": -1} for k in range(ROWS)])
    ranges = [decode_config(config, "held").rows for config in held.configs]
    assert [rows.start for rows in ranges] == [tablet.start for tablet in table.tablets()]
    store.renew(held.ticket)
    kept = [words for words in table.compact(erase_now=True) if held.ticket in words]
    assert kept, "it keeps what is to be erased"
    with stelae.connect(cluster.address, timeout_s=HANG_S) as other:
        backend_of(other).renew(held.ticket)  # who was not given it asks all shards
        backend_of(other).release(held.ticket)
    with pytest.raises(NotFound, match="not held any more"):
        store.renew(held.ticket)
    assert [words for words in table.compact(erase_now=True) if held.ticket in words] == []


def test_works_of_all_shards_are_in_one_ticket(db: stelae.Database, table: stelae.Table) -> None:
    import stelae.spark

    store = backend_of(db)
    table.flush()
    table.put_many([{"k": k, "v": -k} for k in range(ROWS)])
    ticket = store.begin_compaction(table._info.id)
    assert len(ticket.works) == 6
    assert len({work.number for work in ticket.works}) == 6
    assert len({work.prefix for work in ticket.works}) == SHARDS
    store.renew(ticket.ticket)
    store.release(ticket.ticket)
    with pytest.raises(NotFound):
        store.adopt(ticket.ticket, 0, None)
    done = stelae.spark.compact(None, db, table.name)
    assert (done.works, done.refused, done.files_after) == (6, 0, 6)
    assert [row["v"] for row in table.scan()] == [-k for k in range(ROWS)]


def test_what_is_closed_lets_go_of_all_connections(cluster: Cluster, table: stelae.Table) -> None:
    db = stelae.connect(cluster.address, timeout_s=HANG_S)
    store = backend_of(db)
    assert len(list(db.table(table.name).scan())) == ROWS
    assert store.connections >= SHARDS
    assert store.connections_made >= store.connections
    db.close()
    assert store.connections == 0
    with pytest.raises(stelae.Closed):
        store.now()
