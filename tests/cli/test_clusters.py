"""Every verb on a cluster, as on a directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import Result

import stelae
from stelae.cli.app import _VERBS
from tests.cli.running import Cli, run
from tests.cluster_of_threads import Cluster

WITHOUT = {
    "bench": "measures a directory or a cluster of its own, and says so itself",
    "catalog": "looks at a metastore",
    "inspect": "looks at a file",
    "demo": "makes a store of its own",
}
"""Verbs that are not asked where the store is, and why."""
MAKES_CLUSTERS = {"master", "node", "up", "down"}


class ClusterCli(Cli):
    def __init__(self, address: str) -> None:
        super().__init__(Path())
        self._address = address

    def run(self, *words: str | Path, given: str | bytes | None = None) -> Result:
        return run("--cluster", self._address, *words, given=given)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def cli(cluster: Cluster) -> ClusterCli:
    """On a cluster without tables."""
    with stelae.connect(cluster.address) as db:
        for name in db.tables():
            db.drop_table(name)
    return ClusterCli(cluster.address)


@pytest.fixture
def users(cli: ClusterCli) -> ClusterCli:
    cli.done("table", "create", "users", "--key", "id string", "--columns", "p: name string, age int32")
    cli.done("put", "users", given='{"id": "ann", "name": "Ann", "age": 31}\n{"id": "bob"}')
    return cli


def test_all_verbs_are_here() -> None:
    tried = {
        "get",
        "put",
        "erase",
        "scan",
        "import",
        "table",
        "tablet",
        "namespace",
        "zone",
        "check",
        "cluster",
        "topology",
    }
    jobs = {"compact", "backup", "stats", "verify", "load", "export", "restore"}
    assert tried | jobs | WITHOUT.keys() == _VERBS.keys() - MAKES_CLUSTERS


def test_rows(users: ClusterCli, tmp_path: Path) -> None:
    users.done("put", "users", "cay", "name=Cay", "age=9")
    assert users.lines("get", "users", "cay") == [{"id": "cay", "name": "Cay", "age": 9}]
    users.done("erase", "users", "bob")
    assert [row["id"] for row in users.lines("scan", "users", "age > 3")] == ["ann", "cay"]
    (tmp_path / "more.csv").write_text("id,name,age\ndan,Dan,4\n")
    users.done("import", "users", tmp_path / "more.csv")
    assert [row["id"] for row in users.lines("scan", "users")] == ["ann", "cay", "dan"]
    assert "no table 'user'" in users.refused("get", "user", "ann")


def test_tables_tablets_and_spaces(users: ClusterCli) -> None:
    assert [each["name"] for each in users.lines("table", "list")] == ["users"]
    users.done("table", "alter", "users", "--add", "p: email string")
    assert "email" in users.done("table", "describe", "users")
    users.done("tablet", "split", "users", "b")
    assert {each["server"] for each in users.lines("tablet", "list", "users")} == {"node-1/0"}
    assert users.done("tablet", "list", "users").count("\tnode-1/0\t") == 2
    assert len(users.lines("tablet", "list", "users")) == 2
    users.done("tablet", "join", "users", "b")
    assert len(users.lines("tablet", "list", "users")) == 1
    users.done("table", "drop", "users", "--yes")
    users.done("table", "recall", "users")
    assert len(users.lines("scan", "users")) == 2
    users.done("namespace", "create", "sales", "--if-not-exists")
    assert "sales" in users.done("namespace", "list")
    users.done("namespace", "drop", "sales")
    assert "default" in users.done("zone", "list")


def test_a_check(users: ClusterCli) -> None:
    report = users.json("check")
    assert report["whole"]
    assert report["counts"]["tables"] == 1
    assert "unneeded fragments" in report["counts"]


def test_who_serves_is_not_taken_out(users: ClusterCli) -> None:
    assert "only replica on node-1: of users" in users.refused("topology", "remove", "node-1")
    assert "shard node-1/0 serves at" in users.refused("topology", "remove", "node-1", "--accept-loss")


def test_a_cluster_at_a_glance(users: ClusterCli, cluster: Cluster) -> None:
    found = users.json("cluster", "show")
    (master,), (shard,) = found["masters"], found["shards"]
    assert (master["name"], master["address"], master["leads"], master["trouble"]) == (
        "master-1",
        cluster.address,
        True,
        "",
    )
    assert (shard["name"], shard["node"], shard["number"], shard["trouble"]) == ("node-1/0", "node-1", 0, "")
    assert shard["tablets"] >= 1
    assert shard["numbers"]["catalog_version"] <= found["catalog_version"]
    assert (found["asked"], found["leader"], found["tables"]) == ("master-1", "master-1", 1)
    shown = users.done("cluster", "show")
    assert "master-1 leads, number 1; version" in shown
    assert "\nnode-1/0\t127.0.0.1:" in shown


def test_a_glance_at_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STELAE_CLUSTER", raising=False)
    result = run("cluster", "show", "--path", "data")
    assert result.exit_code == 2
    result = run("cluster", "show")
    assert result.exit_code == 1
    assert "say which cluster: --cluster HOST:PORT, or STELAE_CLUSTER" in result.stderr


def test_jobs_on_small_tables(users: ClusterCli, tmp_path: Path) -> None:
    users.done("compact", "users")
    users.done("backup", "users", tmp_path / "backups")
    assert users.json("stats", "users")["rows"] == 2
    users.done("verify", "users", tmp_path / "backups")


def test_jobs_on_spark(spark: Any, users: ClusterCli, tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text("id,name,age\ndan,Dan,4\n")
    users.done("load", tmp_path / "more.csv", "--table", "users")
    assert users.lines("get", "users", "dan", "--columns", "age") == [{"id": "dan", "age": 4}]
    users.done("export", "users", tmp_path / "out")
    assert pq.read_table(tmp_path / "out").num_rows == 3
    users.done("backup", "users", tmp_path / "backups")
    users.done("restore", tmp_path / "backups", "--name", "users_then")
    assert len(users.lines("scan", "users_then")) == 3


def test_a_bench_leaves_no_table(cli: ClusterCli, cluster: Cluster) -> None:
    result = run("bench", "--rows", "1000", "--cluster", cluster.address, "--json")
    assert result.exit_code == 0, result.stderr
    assert len(json.loads(result.stdout)["figures"]) == 8
    assert cli.lines("table", "list") == []
    both = run("bench", "--dir", ".", "--cluster", cluster.address)
    assert "give --dir or --cluster, not both" in both.stderr


def test_said_in_the_environment_and_in_the_file(
    users: ClusterCli, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("stelae.toml").write_text(f'cluster = "{cluster.address}"')
    assert '"users"' in run("table", "list", "--json").stdout
    Path("stelae.toml").write_text('path = "nowhere"')
    monkeypatch.setenv("STELAE_CLUSTER", cluster.address)
    assert '"users"' in run("table", "list", "--json").stdout
    assert "no store in" in run("table", "list", "--path", "nowhere").stderr


def test_what_a_cluster_agrees_on_is_in_its_metastore(users: ClusterCli, cluster: Cluster) -> None:
    assert "its catalog is read from its metastore" in users.refused("catalog", "show")
    shown = run("catalog", "show", "--path", cluster.root / "metastore", "--json")
    assert '"users"' in shown.stdout


def test_the_directory_of_a_cluster_is_no_store_to_open(cluster: Cluster) -> None:
    result = run("table", "list", "--path", cluster.root / "metastore")
    assert result.exit_code == 1
    assert "the metastore is a cluster's" in result.stderr
    assert "--cluster HOST:PORT" in result.stderr


def test_who_names_a_shard_is_told_to_name_a_master(cluster: Cluster) -> None:
    assert cluster.shard is not None
    address = cluster.shard.address
    for words in (("check",), ("table", "list"), ("cluster", "show")):
        said = run("--cluster", address, *words) if words[0] != "cluster" else run(*words, "--cluster", address)
        assert f"{address}: a shard serves there, or another that is no master; name a master" in said.stderr
