"""Schemas that a shard's log still names are known as long as it does (T40)."""

from __future__ import annotations

from pathlib import Path

import pytest

import stelae
from tests.cluster_of_threads import Cluster


def test_a_shard_that_closes_leaves_the_schemas_that_another_ones_log_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stelae.registry.catalog.following.CATALOG_VERSIONS_MAX", 2)
    with Cluster(tmp_path, shard_count=2) as cluster:
        with stelae.connect(cluster.address) as db:
            groups = [stelae.columns("data", {"a": "int64"})]
            table = db.create_table("t", key={"id": "int64"}, groups=groups, splits=[10])
            table.put_many([{"id": 1, "a": 1}, {"id": 11, "a": 2}])
            for name in ("b", "c", "d", "e"):
                db.alter_table("t", add={"data": {name: "int64"}})
        cluster.abandon_shard(1)
        cluster.end_shard(0)
        cluster.begin_shards()
        with stelae.connect(cluster.address) as db:
            assert [(row["id"], row["a"], row["e"]) for row in db.table("t").scan()] == [(1, 1, None), (11, 2, None)]
