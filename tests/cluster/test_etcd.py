"""A cluster that has an etcd to itself."""

from __future__ import annotations

from pathlib import Path

import stelae
from stelae.adapters.etcd.server import find_etcd
from tests.clusters import kill, mark_of, real_cluster, run_stelae


def test_an_etcd_of_its_own_is_started_looked_after_and_stopped(tmp_path: Path) -> None:
    with real_cluster(tmp_path / "c") as cluster:
        words = ("up", "--dir", cluster.directory, "--port", str(cluster.port), "--metastore", "etcd", "--detach")
        said = run_stelae(*words).stderr
        assert "etcd serves" in said
        assert ("is older than 3.5.3" in said) == (not find_etcd().is_sound)
        status = cluster.status()
        (metastore,) = status["metastore"]
        assert (metastore["kind"], metastore["alive"]) == ("etcd", True)
        assert (cluster.directory / "etcd" / "data" / "member").is_dir()
        assert status["masters"][0]["leading"]
        with cluster.connect() as db:
            table = db.create_table("t", {"id": "int64"}, [stelae.columns("p", {"v": "int64"})])
            table.put({"id": 1, "v": 1})
            kill(mark_of(metastore["pid"]))
            assert not cluster.status()["metastore"][0]["alive"]
            table.put({"id": 1, "v": 2})
            again = cluster.up()
            assert again["metastore"][0]["alive"]
            assert again["metastore"][0]["address"] == metastore["address"]
            assert again["masters"][0]["pid"] == status["masters"][0]["pid"]
            db.create_table("u", {"id": "int64"}, [stelae.columns("p", {"v": "int64"})])
            assert table.get(1) == {"id": 1, "v": 2}
        cluster.down()
        assert cluster.living() == set()
