"""Tablets with several replicas, as real processes: what is acknowledged outlives any one of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import stelae
from stelae.adapters.liveness import ProcessMark
from stelae.adapters.ownership import read_owner
from tests.clusters import RealCluster, kill, real_cluster, run_stelae, until
from tests.effort import HANG_S

GROUPS = [stelae.columns("p", {"v": "int64"})]
COUNTER = 500


@contextmanager
def three_nodes(directory: Path) -> Iterator[tuple[RealCluster, stelae.Database, stelae.Table]]:
    with real_cluster(directory) as cluster:
        cluster.up("--nodes", "3")
        with cluster.connect() as db:
            db.create_zone("copies", replicas=3, min_replicas=2)
            yield cluster, db, db.create_table("t", key={"k": "int64"}, groups=GROUPS, zone="copies", splits=[100])


def process_of(cluster: RealCluster, server: str) -> ProcessMark:
    node, _, number = server.partition("/")
    note = until(lambda: read_owner(cluster.directory / node / f"shard-{number}"))
    return ProcessMark(note.pid, note.began)


class Writer:
    """Writes rows one after the other, and counts them in a row of the same tablet, in a thread; knows which were
    acknowledged. Whatever is killed, it is told of no unknown outcome."""

    def __init__(self, cluster: RealCluster, first: int) -> None:
        self.acknowledged: list[int] = []
        self.counts: list[int] = []
        self.error: BaseException | None = None
        self._cluster = cluster
        self._first = first
        self._is_over = False
        self._thread = Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        with self._cluster.connect() as db:
            table, row = db.table("t"), self._first
            try:
                while not self._is_over:
                    table.put({"k": row, "v": row})
                    self.counts.append(table.increment(COUNTER, {"v": 1})["v"])
                    self.acknowledged.append(row)
                    row += 1
            except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
                self.error = error

    def wait_for(self, count: int) -> None:
        """Until so many more rows are acknowledged."""
        upto = len(self.acknowledged) + count
        until(lambda: len(self.acknowledged) >= upto or self.error is not None)
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        self._is_over = True
        self._thread.join(HANG_S)
        assert not self._thread.is_alive()


def check_rows(table: stelae.Table, writer: Writer) -> None:
    found = {row["k"]: row["v"] for row in table.scan(stelae.col("k") >= 1_000)}
    assert all(row == value for row, value in found.items())
    assert set(writer.acknowledged) <= found.keys(), "an acknowledged row is lost"
    assert found.keys() == set(writer.acknowledged)
    assert writer.counts == list(range(1, len(writer.counts) + 1)), "an increment was lost or done twice"
    assert table.get(COUNTER) == {"k": COUNTER, "v": len(writer.counts)}


def test_another_shard_leads_when_one_is_killed(tmp_path: Path) -> None:
    with three_nodes(tmp_path) as (cluster, db, table):
        writer = Writer(cluster, 1_000)
        writer.wait_for(20)
        leader = table.tablets()[-1]
        assert len(leader.replicas) == 2
        gone = process_of(cluster, leader.server)
        kill(gone)
        until(lambda: table.tablets()[-1].epoch > leader.epoch)
        writer.wait_for(20)
        until(lambda: len(table.tablets()[-1].replicas) == 2)
        writer.wait_for(20)
        writer.end()
        check_rows(table, writer)
        listed = run_stelae("tablet", "list", "t", "--cluster", cluster.address, "--json").stdout.splitlines()
        assert len(json.loads(listed[-1])["replicas"]) == 2
        until(lambda: not db.check().problems)


def test_a_shard_that_lost_its_disk_is_rebuilt_by_itself(tmp_path: Path) -> None:
    with three_nodes(tmp_path) as (cluster, _, table):
        table.put_many([{"k": row, "v": row} for row in range(1_000, 2_000)])
        lost = table.tablets()[-1].server
        directory = cluster.directory / lost.partition("/")[0] / "shard-0"
        before = json.loads((directory / "shard.json").read_text())["log"]
        process = process_of(cluster, lost)
        moved = directory.with_name("lost")
        directory.rename(moved)
        kill(process)
        until((directory / "shard.json").exists)
        assert json.loads((directory / "shard.json").read_text())["log"] != before
        shutil.rmtree(moved)

        def is_whole() -> bool:
            return all(len(each.replicas) == 2 and not sum(lag for _, lag in each.replicas) for each in table.tablets())

        until(is_whole)
        assert lost in {server for each in table.tablets() for server in (each.server, *dict(each.replicas))}
        assert table.count() == 1_000
