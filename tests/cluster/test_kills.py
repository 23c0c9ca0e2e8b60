"""Processes of a cluster that are killed with -9: what was acknowledged is there, and clients go on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import stelae
from stelae.adapters.liveness import send_signal, wait_for_end
from tests.clusters import RealCluster, connected, kill, mark_of, real_cluster, until
from tests.effort import HANG_S, tries

GROUPS = [stelae.columns("p", {"v": "int64"})]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """One cluster for all of these tests; each leaves it as it likes."""
    with real_cluster(tmp_path_factory.mktemp("kills") / "c") as cluster:
        cluster.up()
        with cluster.connect() as db:
            db.create_table("t", {"id": "int64"}, GROUPS)
        yield cluster


@pytest.fixture
def cluster(shared: RealCluster) -> RealCluster:
    """All of it runs."""
    shared.up()
    return shared


class Writer:
    """Puts rows of its own one by one and counts them in another, until it is told to stop; keeps the numbers of those
    that were acknowledged."""

    def __init__(self, address: str, first: int) -> None:
        self.acknowledged: list[int] = []
        self.counts: list[int] = []
        self.is_stopped = False
        self._address = address
        self._first = first

    def run(self) -> None:
        with stelae.connect(self._address, timeout_s=HANG_S) as db:
            table, number = db.table("t"), self._first
            while not self.is_stopped:
                table.put({"id": number, "v": 2 * number})
                self.counts.append(table.increment(self._first - 1, {"v": 1})["v"])
                self.acknowledged.append(number)
                number += 1

    def wait_for_more(self, count: int) -> None:
        """Until so many more were acknowledged."""
        wanted = len(self.acknowledged) + count
        until(lambda: len(self.acknowledged) >= wanted)


def test_a_shard_that_is_killed_is_started_again_and_nothing_is_lost_or_done_twice(cluster: RealCluster) -> None:
    """Whatever was under way is sent again when the shard is back: nobody is told that the outcome is unknown."""
    writer = Writer(cluster.address, 1_000_000)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(writer.run)
        try:
            for _ in range(tries(4)):
                writer.wait_for_more(20)
                before = cluster.shard()
                kill(before)
                assert cluster.shard() != before
            writer.wait_for_more(20)
        finally:
            writer.is_stopped = True
        running.result(HANG_S)
    with cluster.connect() as db:
        found = {row["id"]: row["v"] for row in db.table("t").scan(start=1_000_000)}
        assert [number for number in writer.acknowledged if found.get(number) != 2 * number] == []
        assert len(found) == len(writer.acknowledged)
        assert writer.counts == list(range(1, len(writer.acknowledged) + 1))
        assert db.table("t").get(999_999) == {"id": 999_999, "v": len(writer.acknowledged)}
        assert db.check().problems == ()


def test_a_read_waits_for_the_shard(cluster: RealCluster) -> None:
    with cluster.connect() as db:
        table = db.table("t")
        table.put({"id": 1, "v": 1})
        kill(cluster.shard())
        assert table.get(1) == {"id": 1, "v": 1}
        assert table.put({"id": 1, "v": 2}) > 0
        assert table.get(1) == {"id": 1, "v": 2}


def test_the_shard_of_a_node_that_is_killed_ends_with_it(cluster: RealCluster) -> None:
    with cluster.connect() as db:
        table = db.table("t")
        table.put({"id": 2, "v": 2})
        status = cluster.status()
        shard = cluster.shard()
        kill(mark_of(status["nodes"][0]["pid"]))
        assert wait_for_end(shard, HANG_S)
        after = cluster.status()
        assert [after["nodes"][0]["alive"], after["nodes"][0]["shards"][0]["alive"]] == [False, False]
        assert after["masters"] == status["masters"]
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(table.get, 2)
            again = cluster.up()
            assert waiting.result(HANG_S) == {"id": 2, "v": 2}
        assert again["masters"] == status["masters"]
        assert again["nodes"][0]["pid"] != status["nodes"][0]["pid"]


def test_without_the_master_rows_go_on_and_changes_wait_or_fail_in_words(cluster: RealCluster) -> None:
    with cluster.connect() as db, connected(cluster.address, 5.0) as hasty:
        table = db.table("t")
        table.put({"id": 3, "v": 3})
        kill(mark_of(cluster.status()["masters"][0]["pid"]))
        table.put({"id": 3, "v": 4})
        assert table.get(3) == {"id": 3, "v": 4}
        assert table.increment(3, {"v": 1}) == {"v": 5}
        with pytest.raises(stelae.Unavailable) as refused:
            hasty.create_table("late", {"id": "int64"}, GROUPS)
        assert cluster.address in str(refused.value)
        status = cluster.status()
        assert (status["masters"][0]["alive"], status["masters"][0]["leading"]) == (False, False)
        with ThreadPoolExecutor(1) as threads:
            made = threads.submit(db.create_table, "patient", {"id": "int64"}, GROUPS)
            cluster.up()
            made.result(HANG_S).put({"id": 1, "v": 1})
        assert db.table("patient").get(1) == {"id": 1, "v": 1}


def test_all_of_it_killed_at_once(cluster: RealCluster) -> None:
    with cluster.connect() as db:
        table = db.table("t")
        table.put_many([{"id": n, "v": n} for n in range(2_000_000, 2_010_000)])
        status = cluster.status()
        kill(mark_of(status["nodes"][0]["pid"]))
        kill(mark_of(status["masters"][0]["pid"]))
        until(lambda: not cluster.living())
        cluster.up()
        assert table.scan(start=2_000_000).to_arrow().num_rows == 10_000


def test_a_node_that_is_asked_to_stop_closes_its_shard_in_order(cluster: RealCluster) -> None:
    node, shard = mark_of(cluster.status()["nodes"][0]["pid"]), cluster.shard()
    with cluster.connect() as db:
        db.table("t").put({"id": 4, "v": 4})
    send_signal(node, signal.SIGTERM)
    assert wait_for_end(node, HANG_S)
    assert wait_for_end(shard, 0)
    cluster.up()
    log = (cluster.directory / "node-1" / "log.txt").read_text().splitlines()
    assert "was_closed=True" in [line for line in log if " recovered " in line][-1]
