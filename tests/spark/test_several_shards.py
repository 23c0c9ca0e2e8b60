"""Spark on a cluster of several shards, as real processes: every job sees one table, at one snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import stelae
import stelae.spark
from tests.clusters import RealCluster, real_cluster, until
from tests.effort import HANG_S, long_run
from tests.s3 import names_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 40_000
TABLETS = 8
SPLITS = [ROWS * tablet // TABLETS for tablet in range(1, TABLETS)]
GROUPS = [stelae.columns("g", {"word": "string"}), stelae.columns("h", {"n": "int64"})]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with real_cluster(tmp_path_factory.mktemp("many") / "c") as running:
        running.up("--nodes", "3", "--shards", "2")
        yield running


@pytest.fixture(scope="module")
def db(cluster: RealCluster) -> Iterator[stelae.Database]:
    with stelae.connect(cluster.address, timeout_s=HANG_S) as database:
        database.create_zone("copies", replicas=3, min_replicas=2)
        yield database
        until(lambda: not database.check().problems)


def frame_of(spark: SparkSession, word: str, rows: int = ROWS) -> DataFrame:
    return spark.range(rows).selectExpr("id", f"concat('{word}', id) AS word", "id * 2 AS n")


def make(db: stelae.Database, name: str, zone: str | None = None) -> stelae.Table:
    """In the zone `copies` each tablet has three replicas."""
    table = db.create_table(name, {"id": "int64"}, GROUPS, splits=SPLITS, zone=zone)
    assert len({each.server for each in table.tablets()}) >= 4
    assert {len(each.replicas) for each in table.tablets()} == {2 if zone else 0}
    return table


def sourced(frame_or_session: Any, cluster: RealCluster, table: str) -> Any:
    """A reader of a session, or a writer of a frame."""
    made = getattr(frame_or_session, "read", None) or frame_or_session.write
    return made.format("stelae").options(cluster=cluster.address, table=table)


@pytest.mark.parametrize("zone", [None, "copies"])
def test_loads_overwrites_truncations_and_reads(
    spark: SparkSession, db: stelae.Database, cluster: RealCluster, zone: str | None
) -> None:
    name = f"loaded_{zone}"
    table = make(db, name, zone)
    result = stelae.spark.load(spark, db, name, frame_of(spark, "a"), job="first")
    assert (result.rows, table.count()) == (ROWS, ROWS)
    assert stelae.spark.load(spark, db, name, frame_of(spark, "b"), job="first").was_done
    for key in (0, SPLITS[0] - 1, SPLITS[3], ROWS - 1):
        assert table.get(key) == {"id": key, "word": f"a{key}", "n": 2 * key}
        table.put({"id": key, "word": "mine"})
    read = stelae.spark.read(spark, db, name)
    assert read.count() == ROWS
    assert read.where("word = 'mine'").count() == 4
    assert read.selectExpr("sum(n)").first()[0] == ROWS * (ROWS - 1)

    sourced(frame_of(spark, "c", 100), cluster, name).mode("overwrite").save()
    found = sourced(spark, cluster, name).load()
    assert (found.count(), found.where("word LIKE 'c%'").count(), table.count()) == (100, 100, 100)
    assert stelae.spark.read(spark, db, name, at=result.txn).count() == ROWS
    assert db.truncate_table(name)
    assert (table.count(), sourced(spark, cluster, name).load().count()) == (0, 0)


@pytest.mark.parametrize("zone", [None, pytest.param("copies", marks=long_run)])
def test_jobs_over_whole_tables(spark: SparkSession, db: stelae.Database, tmp_path: Path, zone: str | None) -> None:
    name = f"jobs_{zone}"
    table = make(db, name, zone)
    for word in ("a", "b"):
        stelae.spark.load(spark, db, name, frame_of(spark, word, 4_000))
    table.put_many([{"id": key, "word": "late"} for key in range(0, ROWS, 100)])
    table.flush()
    files = table.stats().files
    stelae.spark.compact(spark, db, name)
    assert table.stats().files < files
    late = ROWS // 100
    assert {row["word"] for row in table.scan(columns=["word"], where="id < 300")} == {
        "late",
        *(f"b{key}" for key in range(300) if key % 100),
    }
    stelae.spark.backup(spark, db, name, tmp_path / "backups")
    table.put({"id": 1, "word": "after"})
    stelae.spark.restore(spark, db, tmp_path / "backups", table=name, name=f"{name}_then")
    then = db.table(f"{name}_then")
    assert then.count() == 4_000 + late - 40
    assert then.get(1)["word"] == "b1"  # type: ignore[index]
    assert stelae.spark.verify(spark, db, f"{name}_then", tmp_path / "backups").is_same
    assert stelae.spark.stats(spark, db, name).rows == then.count()


@long_run
def test_a_cluster_on_an_object_store(on_s3: SparkSession, tmp_path: Path, s3_url: str, s3_endpoint: str) -> None:
    """Shards, master, driver and workers find the files by their URL, each with what its own environment says."""
    with real_cluster(tmp_path / "c") as cluster:
        cluster.up("--nodes", "2", "--shards", "2", "--store", s3_url)
        with stelae.connect(cluster.address, timeout_s=HANG_S) as db:
            table = make(db, "t")
            result = stelae.spark.load(on_s3, db, "t", frame_of(on_s3, "a"), job="first")
            assert (result.rows, table.count()) == (ROWS, ROWS)
            assert stelae.spark.load(on_s3, db, "t", frame_of(on_s3, "b"), job="first").was_done
            for key in (0, SPLITS[0] - 1, SPLITS[3], ROWS - 1):
                assert table.get(key) == {"id": key, "word": f"a{key}", "n": 2 * key}
                table.put({"id": key, "word": "mine"})
            read = stelae.spark.read(on_s3, db, "t")
            assert (read.count(), read.where("word = 'mine'").count()) == (ROWS, 4)
            sourced(frame_of(on_s3, "c", 100), cluster, "t").mode("overwrite").save()
            found = sourced(on_s3, cluster, "t").load()
            assert (found.count(), found.where("word LIKE 'c%'").count(), table.count()) == (100, 100, 100)
            assert stelae.spark.read(on_s3, db, "t", at=result.txn).count() == ROWS
            until(lambda: not db.check().problems)
        assert any(name.startswith("fragments/") for name in names_in(s3_endpoint, s3_url))
        assert not any(cluster.directory.rglob("*.parquet"))
