"""`stelae up` and `stelae down`, with real processes: what they start, leave alone, and stop."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stelae
from stelae.adapters.liveness import is_alive
from tests.clusters import (
    PROGRAM,
    Background,
    RealCluster,
    kill,
    mark_of,
    real_cluster,
    refusal,
    refused,
    run_stelae,
    until,
)
from tests.effort import HANG_S

GROUPS = [stelae.columns("p", {"v": "int64"})]


def is_of(name: str, what: str, line: Any) -> bool:
    return bool((line["name"], line["what"]) == (name, what))


def test_up_serves_is_left_alone_and_goes_down(tmp_path: Path) -> None:
    with real_cluster(tmp_path / "c") as cluster:
        status = cluster.up()
        (master,), (node,) = status["masters"], status["nodes"]
        (shard,) = node["shards"]
        assert status == {
            "masters": [
                {"name": "master-1", "address": cluster.address, "pid": master["pid"], "leading": True, "alive": True}
            ],
            "nodes": [{"name": "node-1", "pid": node["pid"], "alive": True, "shards": [shard]}],
            "metastore": [{"kind": "sqlite", "address": str(tmp_path / "c" / "metastore")}],
            "connect": cluster.address,
        }
        assert shard == {"number": 0, "pid": shard["pid"], "address": shard["address"], "alive": True}
        pids = {master["pid"], node["pid"], shard["pid"]}
        assert {mark.pid for mark in cluster.living()} == pids
        with stelae.connect(status["connect"]) as db:
            table = db.create_table("t", {"id": "int64"}, GROUPS)
            table.put_many([{"id": n, "v": 2 * n} for n in range(1_000)])
            assert table.get(7) == {"id": 7, "v": 14}
        assert cluster.up() == status
        assert "node-1/0" in run_stelae("up", "--dir", cluster.directory, "--status").stdout

        assert (cluster.directory / "store" / "stelae-store.json").exists()
        wrong = refused("up", "--dir", cluster.directory, "--detach", "--store", tmp_path / "other")
        assert "the cluster has its data in" in wrong
        wrong = refused("up", "--dir", cluster.directory, "--detach", "--metastore", "etcd")
        assert "the cluster agrees by sqlite:///" in wrong
        wrong = refused("up", "--dir", cluster.directory, "--detach", "--port", str(cluster.port + 1))
        assert f"the master serves on {cluster.address}" in wrong
        assert cluster.status() == status

        with pytest.raises(stelae.InvalidArgument, match="is the directory of a cluster: connect to it"):
            stelae.open(cluster.directory)

        cluster.down()
        assert cluster.living() == set()
        after = cluster.status()
        assert [after["masters"][0]["alive"], after["nodes"][0]["alive"]] == [False, False]
        assert after["nodes"][0]["shards"][0] == {"number": 0, "pid": None, "address": None, "alive": False}
        assert "nothing was running" in run_stelae("down", "--dir", cluster.directory).stdout

        cluster.up()
        with cluster.connect() as db:
            assert db.table("t").count() == 1_000
        stopped = json.loads(run_stelae("down", "--dir", cluster.directory, "--json").stdout)["stopped"]
        assert [each["name"] for each in stopped] == ["node-1", "master-1"]


def test_in_the_foreground_it_starts_again_what_ends_and_stops_all(tmp_path: Path) -> None:
    with real_cluster(tmp_path / "c") as cluster:
        words = ("up", "--dir", cluster.directory, "--port", str(cluster.port), "--json")
        with Background(*words) as up:
            said = up.lines_until(lambda line: line["what"] == "up")
            assert said[-1]["connect"] == cluster.address
            assert [(line["name"], line["what"]) for line in said[:-1]] == [
                ("master-1", "serves"),
                ("node-1", "serves"),
            ]
            with cluster.connect() as db:
                table = db.create_table("t", {"id": "int64"}, GROUPS)
                table.put({"id": 1, "v": 1})
                for name in ("master-1", "node-1"):
                    pid = next(line["pid"] for line in said if line.get("name") == name)
                    kill(mark_of(pid))
                    again = up.lines_until(partial(is_of, name, "serves again"))
                    assert (again[0]["name"], again[0]["what"], again[0]["pid"]) == (name, "has ended", pid)
                    assert "killed by SIGKILL" in again[0]["words"]
                assert table.get(1) == {"id": 1, "v": 1}
            # Whoever else wants it up is content with this one, and nobody else looks after it.
            assert cluster.up()["masters"][0]["alive"]
            assert "is in use: process" in refusal("up", "--dir", cluster.directory)
            assert up.stop(signal.SIGINT) == 0
        assert cluster.living() == set()

        with Background(*words) as up:
            up.lines_until(lambda line: line["what"] == "up")
            run_stelae("down", "--dir", cluster.directory)
            assert up.process.wait() == 0
        assert cluster.living() == set()


def test_interrupted_while_it_starts_it_leaves_nothing_behind(tmp_path: Path) -> None:
    with real_cluster(tmp_path / "c") as cluster:
        words = ("up", "--dir", cluster.directory, "--port", str(cluster.port), "--json")
        with Background(*words, errors=tmp_path / "errors") as up:
            up.lines_until(lambda line: line["name"] == "master-1")
            assert up.stop(signal.SIGTERM) == 130
        assert cluster.living() == set()
        assert "Traceback" not in (tmp_path / "errors").read_text()


@pytest.mark.parametrize("words", [[], ["--json"]], ids=["for people", "for programs"])
def test_with_nobody_left_to_hear_it_still_stops_all(tmp_path: Path, words: list[str]) -> None:
    """As when its output went through a pipe to a program that has ended."""
    with real_cluster(tmp_path / "c") as cluster:
        command = [*PROGRAM, "up", "--dir", str(cluster.directory), "--port", str(cluster.port), *words]
        up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert up.stdout is not None
        while b"127.0.0.1" not in up.stdout.readline():
            pass
        up.stdout.close()
        assert cluster.living()
        up.send_signal(signal.SIGTERM)
        assert up.wait(HANG_S) in (0, 141)
        assert cluster.living() == set()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--masters", "8"], "--masters 8: a cluster has 1 to 7 masters; one of them leads"),
        (["--nodes", "0"], "--nodes 0: a cluster on one machine has 1 to 64 nodes"),
        (["--shards", "65"], "--shards 65: a node runs 1 to 64 shards"),
        (["--replicas", "3"], "--replicas 3: each lies on a node of its own, and the cluster has 1: say --nodes 3"),
        (["--metastore", "mysql://x"], "'mysql://x' is not where a metastore is"),
        (["--store", "ftp://x/y"], "nothing is served under ftp:"),
        (["--port", "70000"], "port 70000: a port is a number"),
        (["--detach", "--status"], "--status or --detach, not both"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(tmp_path: Path, words: list[str], said: str) -> None:
    assert said in refused("up", "--dir", tmp_path / "c", "--port", "0", *words)
    assert list(tmp_path.iterdir()) == []


def test_directories_that_are_not_for_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is a file; a cluster is a directory" in refused("up", "--dir", tmp_path / "file")
    stelae.open(tmp_path / "store").close()
    before = sorted(path.name for path in (tmp_path / "store").iterdir())
    assert "is the directory of a store" in refused("up", "--dir", tmp_path / "store", "--detach")
    assert "is the directory of a store" in refused("down", "--dir", tmp_path / "store")
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == before
    assert "no cluster in" in refused("down", "--dir", tmp_path / "nothing")
    assert "no cluster in" in refused("up", "--dir", tmp_path / "nothing", "--status")
    assert not (tmp_path / "nothing").exists()
    assert "Not a directory" in refused("up", "--dir", tmp_path / "file" / "c", "--port", "0", "--detach")


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refused("up", "--dir", tmp_path / "c", "--port", str(port), "--detach")
    assert f"127.0.0.1:{port} is taken" in said
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_start_leaves_nothing_running(tmp_path: Path) -> None:
    """The data is to lie where an embedded store has its own."""
    with stelae.open(tmp_path / "other", store=tmp_path / "taken") as db:
        db.create_table("t", {"id": "int64"}, GROUPS)
    with real_cluster(tmp_path / "c") as cluster:
        words = ["up", "--dir", str(cluster.directory), "--port", str(cluster.port), "--detach"]
        said = refusal(*words, "--store", str(tmp_path / "taken"))
        assert "master-1 did not start: " in said
        assert "taken" in said
        assert cluster.living() == set()
        assert not (cluster.directory / "cluster.json").exists()
        (cluster.directory / "metastore").rename(tmp_path / "aside")
        cluster.up()
        cluster.down()


def test_a_process_that_only_got_the_id_is_not_taken_for_one(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as innocent:
        try:
            mark = mark_of(innocent.pid)
            cluster = RealCluster(tmp_path / "c")
            (tmp_path / "c" / "master-1").mkdir(parents=True)
            note = {"pid": mark.pid, "host": "h", "release": "r", "address": "a", "began": mark.began + "0"}
            (tmp_path / "c" / "master-1" / "owner").write_text(json.dumps(note))
            (tmp_path / "c" / "owner").write_text(json.dumps(note))
            process = {"pid": mark.pid, "began": "another boot/1"}
            plan = {
                "format": 1,
                "metastore": f"sqlite://{tmp_path}/c/metastore",
                "store": f"file://{tmp_path}/c/store",
                "masters": [{"name": "master-1", "address": cluster.address, "process": process}],
                "nodes": [{"name": "node-1", "shards": 1, "process": process}],
                "etcd": None,
            }
            (tmp_path / "c" / "cluster.json").write_text(json.dumps(plan))
            status = json.loads(run_stelae("up", "--dir", tmp_path / "c", "--status", "--json").stdout)
            assert status["masters"][0] == {
                "name": "master-1", "address": cluster.address, "pid": mark.pid, "leading": False, "alive": False
            }  # fmt: skip
            assert status["nodes"][0]["alive"] is False
            run_stelae("down", "--dir", tmp_path / "c")
            assert is_alive(mark)
        finally:
            innocent.kill()


def test_a_plan_of_a_later_release_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "cluster.json").write_text('{"format": 2}')
    assert "is of format 2" in refused("up", "--dir", tmp_path / "c", "--detach")
    (tmp_path / "c" / "cluster.json").write_text("{")
    assert "cannot be read" in refused("up", "--dir", tmp_path / "c", "--detach")


def test_with_several_replicas_and_what_the_page_says_of_them(tmp_path: Path) -> None:
    with real_cluster(tmp_path / "c") as cluster:
        cluster.up("--nodes", "3", "--replicas", "3")
        cluster.up("--replicas", "3")  # it is so already
        with cluster.connect() as db:
            zone = db.zones()["default"]
            assert (zone.replicas, zone.min_replicas, zone.is_default) == (3, 2, True)
            table = db.create_table("t", {"k": "string"}, [stelae.columns("g", {"v": "int64"})])
            table.put({"k": "a", "v": 1})
            until(lambda: [len(each.replicas) for each in table.tablets()] == [2])
        words = ("up", "--dir", cluster.directory, "--detach", "--replicas")
        assert "say --nodes 4" in refusal(*words, "4")
        told = refusal(*words, "1")
        assert "--replicas 1: " in told
        assert "stelae zone create" in told
        assert len(cluster.status()["nodes"]) == 3, "nothing is stopped by a refusal"
        assert all(each["alive"] for each in cluster.status()["nodes"])

        page = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
        section = page.partition("## Several replicas")[2].partition("### ")[0]
        commands = [line for line in section.splitlines() if line.startswith("    stelae ")]
        assert len(commands) == 3
        for command in commands:
            run_stelae(*shlex.split(command.replace("127.0.0.1:7100", cluster.address), comments=True)[1:])
