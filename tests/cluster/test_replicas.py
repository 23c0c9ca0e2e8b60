"""Tablets with several replicas, as real processes: what is acknowledged outlives any one of them."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import stelae
from stelae.adapters.liveness import ProcessMark, send_signal, wait_for_end
from stelae.adapters.ownership import read_owner
from stelae.launch.access import Access
from stelae.launch.looking import ClusterMasters
from tests.clusters import RealCluster, kill, real_cluster, refusal, run_stelae, until
from tests.effort import HANG_S

GROUPS = [stelae.columns("p", {"v": "int64"})]
COUNTER = 500
TABLETS = 2
SHARDS = 2
"""Of each of three nodes."""


def start_nodes(cluster: RealCluster) -> None:
    """Those of the three that do not live."""
    cluster.up("--nodes", "3", "--shards", str(SHARDS))


@contextmanager
def three_nodes(
    directory: Path, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[RealCluster, stelae.Database, stelae.Table]]:
    with real_cluster(directory, environment) as cluster:
        start_nodes(cluster)
        with cluster.connect() as db:
            db.create_zone("copies", replicas=3, min_replicas=2)
            yield cluster, db, db.create_table("t", key={"k": "int64"}, groups=GROUPS, zone="copies", splits=[100])


def directory_of(cluster: RealCluster, server: str) -> Path:
    node, _, number = server.partition("/")
    return cluster.directory / node / f"shard-{number}"


def process_of(cluster: RealCluster, server: str) -> ProcessMark:
    note = until(lambda: read_owner(directory_of(cluster, server)))
    return ProcessMark(note.pid, note.began)


def node_process(cluster: RealCluster, node: str) -> ProcessMark:
    """The one that starts the node's shards."""
    note = until(lambda: read_owner(cluster.directory / node))
    return ProcessMark(note.pid, note.began)


class Writer:
    """Writes rows one after the other, in a thread, and reads each back; knows which were acknowledged. Whatever is
    killed, it is told of no unknown outcome. `counter`: a row in which it counts them. `pause_s`: after each row, for
    one that writes for long. `error`: what it ended with, if that is not expected."""

    def __init__(self, cluster: RealCluster, first: int, counter: int | None = None, *, pause_s: float = 0.0) -> None:
        self.acknowledged: list[int] = []
        self.counts: list[int] = []
        self._counter = counter
        self.error: BaseException | None = None
        self._cluster = cluster
        self._first = first
        self._pause_s = pause_s
        self._is_over = Event()
        self._thread = Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        try:
            with self._cluster.connect() as db:
                table, row = db.table("t"), self._first
                while not self._is_over.wait(self._pause_s):
                    table.put({"k": row, "v": row})
                    assert table.get(row) == {"k": row, "v": row}, "an older read after an acknowledged write"
                    if self._counter is not None:
                        self.counts.append(table.increment(self._counter, {"v": 1})["v"])
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
        self._is_over.set()
        self._thread.join(HANG_S)
        assert not self._thread.is_alive()
        assert self.error is None, self.error


def check_rows(table: stelae.Table, writer: Writer) -> None:
    found = {row["k"]: row["v"] for row in table.scan(stelae.col("k") >= 1_000)}
    assert all(row == value for row, value in found.items())
    assert set(writer.acknowledged) <= found.keys(), "an acknowledged row is lost"
    assert found.keys() == set(writer.acknowledged)
    assert writer.counts == list(range(1, len(writer.counts) + 1)), "an increment was lost or done twice"
    assert table.get(COUNTER) == {"k": COUNTER, "v": len(writer.counts)}


def test_another_shard_leads_when_one_is_killed(tmp_path: Path) -> None:
    with three_nodes(tmp_path) as (cluster, db, table):
        writer = Writer(cluster, 1_000, COUNTER)
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
        directory = directory_of(cluster, lost)
        before = json.loads((directory / "shard.json").read_text())["log"]
        process = process_of(cluster, lost)
        moved = directory.with_name("lost")
        directory.rename(moved)
        kill(process)
        until((directory / "shard.json").exists)
        assert json.loads((directory / "shard.json").read_text())["log"] != before
        shutil.rmtree(moved)

        until(lambda: is_whole(table))
        for each in table.tablets():  # that shard, or the other one of its node, has what was lost
            nodes = sorted(server.partition("/")[0] for server in (each.server, *dict(each.replicas)))
            assert nodes == ["node-1", "node-2", "node-3"]
        assert table.count() == 1_000


def is_whole(table: stelae.Table) -> bool:
    """Every tablet is led, has all its replicas, and none is behind."""
    shown = table.tablets()  # those that somebody leads
    is_well = all(len(each.replicas) == 2 and not sum(lag for _, lag in each.replicas) for each in shown)
    return is_well and len(shown) == TABLETS


def test_nodes_are_restarted_one_after_the_other_and_no_call_fails(tmp_path: Path) -> None:
    with three_nodes(tmp_path) as (cluster, db, table):
        writers = [Writer(cluster, 1_000), Writer(cluster, -1_000_000)]
        for node in ("node-1", "node-2", "node-3"):
            for writer in writers:
                writer.wait_for(5)
            said = json.loads(run_stelae("node", "drain", node, "--cluster", cluster.address, "--json").stdout)
            assert (said["shards"], said["alone"]) == ([f"{node}/{number}" for number in range(SHARDS)], 0)
            assert said["moved"] in range(3)
            assert node not in {each.server.partition("/")[0] for each in table.tablets()}
            shown = ClusterMasters(cluster.address, Access(), "", HANG_S).look().shards
            assert [each.node for each in shown if each.is_drained] == [node] * SHARDS
            for writer in writers:
                writer.wait_for(5)
            gone = node_process(cluster, node)
            send_signal(gone, signal.SIGTERM)
            assert wait_for_end(gone, HANG_S)
            start_nodes(cluster)
            until(lambda: is_whole(table))
        for writer in writers:
            writer.wait_for(5)
            writer.end()
        found = {row["k"] for row in table.scan()}
        assert found == {*writers[0].acknowledged, *writers[1].acknowledged}
        assert "can be stopped: " in run_stelae("node", "drain", "node-1", "--cluster", cluster.address).stdout
        assert "no node, and no shard, that is called 'node-9'" in refusal(
            "node", "drain", "node-9", "--cluster", cluster.address
        )
        until(lambda: not db.check().problems)
