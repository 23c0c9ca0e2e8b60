"""Shards that never come back are taken out of their cluster: nobody waits for them any more, and nobody is them
again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import stelae
from stelae.launch.access import Access
from stelae.launch.looking import ClusterMasters
from stelae.model.errors import InvalidArgument, NotFound
from stelae.registry.masters.removing import LostTablets, RemovedServers
from tests.cluster_of_threads import Cluster
from tests.clusters import until
from tests.effort import HANG_S

GROUPS = [stelae.columns("g", {"v": "int64"})]
SOON_S = 1.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, shard_count=3, collect_every_s=0.1) as running:
        yield running


@pytest.fixture
def db(cluster: Cluster) -> Iterator[stelae.Database]:
    with stelae.connect(cluster.address, timeout_s=HANG_S) as database:
        yield database


def masters(cluster: Cluster) -> ClusterMasters:
    return ClusterMasters(cluster.address, Access(), "", HANG_S)


def late(cluster: Cluster) -> dict[str, str]:
    return {each.what: each.words for each in masters(cluster).look().late}


def files(cluster: Cluster) -> set[str]:
    return {file.name for file in cluster.store.rglob("*.parquet") if "trash" not in str(file)}


def shard_of(table: stelae.Table, tablet: int) -> int:
    """The number of the shard that has a tablet of the table, by its place among them."""
    return int(table.tablets()[tablet].server.rpartition("/")[2])


def test_collection_goes_on_by_itself_and_says_why_it_does_not(cluster: Cluster, db: stelae.Database) -> None:
    table = db.create_table("t", {"id": "int64"}, GROUPS)
    for value in range(2):
        table.put({"id": 1, "v": value})
        table.flush()
    before = files(cluster)
    idle = min({0, 1, 2} - {shard_of(table, 0)})
    cluster.end_shard(idle)
    words = until(lambda: late(cluster).get("collection of files"))
    assert "has been put off for" in words
    assert f"node-1/{idle}" in words
    table.compact()
    merged = files(cluster) - before
    assert merged
    assert before <= files(cluster), "nothing goes while a shard is away"
    cluster.begin_shard(number=idle)
    until(lambda: not before & files(cluster))
    until(lambda: "collection of files" not in late(cluster))
    assert merged <= files(cluster)
    assert table.get(1) == {"id": 1, "v": 1}


def test_who_is_gone_is_waited_for_no_more_once_it_is_taken_out(cluster: Cluster, db: stelae.Database) -> None:
    table = db.create_table("t", {"id": "int64"}, GROUPS)
    table.put({"id": 1, "v": 1})
    with pytest.raises(NotFound, match="no node, and no shard, that is called 'node-9'"):
        masters(cluster).remove("node-9", accepts_loss=False)
    idle = min({0, 1, 2} - {shard_of(table, 0)})
    with pytest.raises(InvalidArgument, match=rf"shard node-1/{idle} serves at .*Stop it first"):
        masters(cluster).remove(f"node-1/{idle}", accepts_loss=True)
    cluster.end_shard(idle)
    with stelae.connect(cluster.address, timeout_s=SOON_S) as hasty, pytest.raises(stelae.Unavailable):
        hasty.now()
    assert masters(cluster).remove(f"node-1/{idle}", accepts_loss=False) == RemovedServers((f"node-1/{idle}",))
    assert db.now()
    until(lambda: not late(cluster))
    assert [each.number for each in masters(cluster).look().shards] == [n for n in range(3) if n != idle]
    assert db.check().problems == ()
    with pytest.raises(InvalidArgument, match="was taken out of the cluster for good"):
        cluster.begin_shard(number=idle)
    with pytest.raises(InvalidArgument, match="a node that was called 'node-1' was taken out"):
        cluster.begin_shard(node="another", directory="other", number=7)
    with pytest.raises(NotFound):
        masters(cluster).remove(f"node-1/{idle}", accepts_loss=False)


def test_the_only_replica_is_not_given_up_unless_that_is_said(cluster: Cluster, db: stelae.Database) -> None:
    table = db.create_table("t", {"id": "int64"}, GROUPS, splits=[10, 20])
    table.put_many([{"id": key, "v": key} for key in (5, 15, 25)])
    table.flush()
    db.create_table("dropped", {"id": "int64"}, GROUPS, splits=[10, 20])
    db.drop_table("dropped")
    gone = shard_of(table, 1)
    before = db.now()
    cluster.end_shard(gone)
    refusal = r"2 tablets have their only replica on node-1/\d: of t, dropped \(dropped\)\. Their rows would"
    with pytest.raises(InvalidArgument, match=refusal):
        masters(cluster).remove(f"node-1/{gone}", accepts_loss=False)
    removed = masters(cluster).remove(f"node-1/{gone}", accepts_loss=True)
    assert removed.lost == (LostTablets("t", 1), LostTablets("dropped (dropped)", 1))
    assert {row["id"] for row in table.scan()} == {5, 25}
    table.put({"id": 15, "v": 16})
    assert table.get(15) == {"id": 15, "v": 16}
    assert {row["id"] for row in table.scan(at=before)} == {5, 25}
    with pytest.raises(NotFound, match="had of the table is lost: it was taken out of the cluster"):
        db.recall_table("dropped")
    assert db.truncate_table("t")
    assert table.count() == 0
    cluster.end_master()
    cluster.begin_master()
    assert db.tables() == ["t"]
    table.put({"id": 15, "v": 17})
    assert table.count() == 1
    assert db.check().problems == ()
