"""Nodes of several shards, as real processes: each shard lives and dies by itself, and all end with their node."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import stelae
from stelae.adapters.liveness import is_alive, wait_for_end
from tests.clusters import Background, free_port, kill, mark_of, real_cluster, refusal, run_stelae, until
from tests.effort import HANG_S
from tests.launch.test_metrics import told
from tests.s3 import names_in

GROUPS = [stelae.columns("p", {"v": "int64"})]


@contextmanager
def master(root: Path) -> Iterator[tuple[str | Path, ...]]:
    """What the processes of the cluster have in common, while its master runs."""
    shared = ("--metastore", f"sqlite://{root}/meta", "--store", root / "data", "--json")
    words = ("master", "--name", "m1", "--dir", root / "m1", "--listen", f"127.0.0.1:{free_port()}", *shared)
    with Background(*words, errors=root / "m.log") as leading:
        leading.line()
        yield shared


def node(root: Path, shared: tuple[str | Path, ...], *words: str) -> Background:
    return Background("node", "--name", "n1", "--dir", root / "n1", *words, *shared, errors=root / "n.log")


def serving(root: Path, number: int) -> Any:
    """What a shard's process says of itself in its directory; empty while it does not serve."""
    note = (root / "n1" / f"shard-{number}" / "owner").read_bytes()
    found = json.loads(note) if note.strip() else {}
    return found if found.get("address") else {}


def test_each_shard_is_started_again_by_itself_and_all_end_with_the_node(tmp_path: Path) -> None:
    with master(tmp_path) as shared:
        with node(tmp_path, shared, "--shards", "2", "--metrics", "127.0.0.1:0") as running:
            first, second = running.line()["shards"]
            assert [first["number"], second["number"]] == [0, 1]
            assert len({each[name] for each in (first, second) for name in ("address", "metrics", "pid")}) == 6
            assert 'stelae_tablets{process="n1/1",role="shard"}' in told(second["metrics"])

            kill(mark_of(second["pid"]))
            again = until(lambda: serving(tmp_path, 1) if serving(tmp_path, 1).get("pid") != second["pid"] else None)
            assert serving(tmp_path, 0)["pid"] == first["pid"]
            marks = [mark_of(first["pid"]), mark_of(again["pid"])]
            assert running.stop(signal.SIGTERM) == 0
            assert all(wait_for_end(mark, 0) for mark in marks)
        assert "shard n1/1 (process" in (tmp_path / "n.log").read_text()
        assert "Traceback" not in (tmp_path / "n.log").read_text()

        fewer = refusal("node", "--name", "n1", "--dir", tmp_path / "n1", "--shards", "1", *shared)
        assert (
            "has the directories of 2 shards, and what is in them would not be served: start it with --shards 2"
            in fewer
        )

        with node(tmp_path, shared, "--shards", "3") as running:
            marks = [mark_of(each["pid"]) for each in running.line()["shards"]]
            assert len(marks) == 3
            kill(mark_of(running.process.pid))
            assert all(wait_for_end(mark, HANG_S) for mark in marks)


def test_a_shard_that_cannot_be_started_holds_up_no_other(tmp_path: Path) -> None:
    with master(tmp_path) as shared:
        identity = tmp_path / "n1" / "shard-0" / "shard.json"
        identity.parent.mkdir(parents=True)
        identity.write_text("garbled")
        with node(tmp_path, shared, "--shards", "2") as running:
            assert [each["number"] for each in running.line()["shards"]] == [1]
            until(lambda: "cannot be read" in (tmp_path / "n.log").read_text())
            identity.unlink()
            until(lambda: serving(tmp_path, 0))
            assert running.stop(signal.SIGTERM) == 0
        identity.write_text("garbled")
        (tmp_path / "n1" / "shard-1" / "shard.json").write_text("garbled")
        assert "cannot be read" in refusal("node", "--name", "n1", "--dir", tmp_path / "n1", "--shards", "2", *shared)


def test_a_shard_for_which_the_machine_has_no_room_ends_no_other(tmp_path: Path) -> None:
    with master(tmp_path) as shared, node(tmp_path, shared, "--shards", "2") as running:
        first, second = running.line()["shards"]
        few, many = 3, resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, (few, many[1]))
        kill(mark_of(second["pid"]))
        until(lambda: "shard n1/1 could not be started" in (tmp_path / "n.log").read_text())
        assert serving(tmp_path, 0)["pid"] == first["pid"]
        resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, many)
        assert until(lambda: serving(tmp_path, 1).get("pid", second["pid"]) != second["pid"])
        assert serving(tmp_path, 0)["pid"] == first["pid"]
        assert is_alive(mark_of(first["pid"]))
        assert running.stop(signal.SIGTERM) == 0


def test_up_with_several_nodes(tmp_path: Path) -> None:
    with real_cluster(tmp_path / "c") as cluster:
        status = cluster.up("--nodes", "2", "--shards", "2", "--metrics")
        assert [node["name"] for node in status["nodes"]] == ["node-1", "node-2"]
        shards = [shard for node in status["nodes"] for shard in node["shards"]]
        assert [shard["number"] for shard in shards] == [0, 1, 0, 1]
        assert all(shard["alive"] and shard["address"] for shard in shards)
        assert len({shard["address"] for shard in shards}) == 4
        metrics = [each["metrics"] for each in (*status["masters"], *shards)]
        assert len(set(metrics)) == 5
        names = ["master-1", "node-1/0", "node-1/1", "node-2/0", "node-2/1"]
        for address, name in zip(metrics, names, strict=True):
            assert any(f'process="{name}"' in line for line in told(address))

        with cluster.connect() as db:
            table = db.create_table("t", {"id": "int64"}, GROUPS, splits=[100, 200, 300])
            table.put_many([{"id": n, "v": n} for n in range(400)])
        listed = run_stelae("tablet", "list", "t", "--cluster", cluster.address, "--json").stdout.splitlines()
        servers = [json.loads(line)["server"] for line in listed]
        assert len(servers) == 4
        assert len(set(servers)) > 1
        assert set(servers) <= set(names[1:])

        up = ("up", "--dir", cluster.directory, "--detach")
        assert "--shards 1: the cluster has 2, and they stay" in refusal(*up, "--shards", "1")
        assert "--nodes 1: the cluster has 2, and they stay" in refusal(*up, "--nodes", "1")
        assert "--shards 3: node-1 runs with 2; `stelae down` stops it" in refusal(*up, "--shards", "3")
        assert cluster.status() == status

        kill(mark_of(status["nodes"][0]["pid"]))
        seen = json.loads(run_stelae("cluster", "show", "--cluster", cluster.address, "--json").stdout)
        assert [each["name"] for each in seen["shards"]] == names[1:]
        assert [each["tablets"] for each in seen["shards"]] == [servers.count(name) for name in names[1:]]
        assert [bool(each["trouble"]) for each in seen["shards"]] == [True, True, False, False]
        assert {"node-1/0", "node-1/1"} <= {each["what"] for each in seen["late"]}
        grown = cluster.up("--nodes", "3")
        assert [node["alive"] for node in grown["nodes"]] == [True] * 3
        assert grown["nodes"][1] == status["nodes"][1]
        with cluster.connect() as db:
            assert db.table("t").count() == 400
        cluster.down()
        assert cluster.living() == set()


def test_up_on_an_object_store(tmp_path: Path, s3_url: str, s3_endpoint: str) -> None:
    with real_cluster(tmp_path / "c") as cluster:
        cluster.up("--nodes", "2", "--store", s3_url)
        assert "the cluster has its data in s3://" in refusal(
            "up", "--dir", cluster.directory, "--detach", "--store", str(tmp_path / "elsewhere")
        )
        with cluster.connect() as db:
            table = db.create_table("t", {"id": "int64"}, GROUPS, splits=[50])
            table.put_many([{"id": n, "v": n} for n in range(100)])
            table.flush()
            assert len({each.server for each in table.tablets()}) == 2
        fragments = [name for name in names_in(s3_endpoint, s3_url) if name.endswith(".parquet")]
        assert len(fragments) >= 2
        assert not (cluster.directory / "store").exists()
        cluster.down()
        cluster.up()
        with cluster.connect() as db:
            assert db.table("t").count() == 100
        cluster.down()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--shards", "0"], "--shards 0: a node runs 1 to 64 shards"),
        (["--shards", "3", "--metrics", "127.0.0.1:65534"], "there is no port 65536 for shard 2"),
        (["--metrics", "9100"], "'9100' is not host:port"),
        (["--metrics", "0.0.0.0:9100"], "knows neither token nor TLS"),
    ],
)
def test_what_a_node_cannot_be(tmp_path: Path, words: list[str], said: str) -> None:
    shared = ("--metastore", f"sqlite://{tmp_path}/meta", "--store", tmp_path / "data")
    assert said in refusal("node", "--name", "n1", "--dir", tmp_path / "n1", *words, *shared)
