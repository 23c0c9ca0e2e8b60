"""Spark on a cluster of several shards, as real processes: every job sees one table, at one snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import stelae
import stelae.spark
from tests.clusters import RealCluster, real_cluster
from tests.effort import HANG_S

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 40_000
TABLETS = 8
SPLITS = [ROWS * tablet // TABLETS for tablet in range(1, TABLETS)]
GROUPS = [stelae.columns("g", {"word": "string"}), stelae.columns("h", {"n": "int64"})]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with real_cluster(tmp_path_factory.mktemp("many") / "c") as running:
        running.up("--nodes", "2", "--shards", "2")
        yield running


@pytest.fixture(scope="module")
def db(cluster: RealCluster) -> Iterator[stelae.Database]:
    with stelae.connect(cluster.address, timeout_s=HANG_S) as database:
        yield database
        assert database.check().problems == ()


def frame_of(spark: SparkSession, word: str, rows: int = ROWS) -> DataFrame:
    return spark.range(rows).selectExpr("id", f"concat('{word}', id) AS word", "id * 2 AS n")


def make(db: stelae.Database, name: str) -> stelae.Table:
    table = db.create_table(name, {"id": "int64"}, GROUPS, splits=SPLITS)
    assert len({each.server for each in table.tablets()}) == 4
    return table


def sourced(frame_or_session: Any, cluster: RealCluster, table: str) -> Any:
    """A reader of a session, or a writer of a frame."""
    made = getattr(frame_or_session, "read", None) or frame_or_session.write
    return made.format("stelae").options(cluster=cluster.address, table=table)


def test_loads_overwrites_truncations_and_reads(spark: SparkSession, db: stelae.Database, cluster: RealCluster) -> None:
    table = make(db, "loaded")
    result = stelae.spark.load(spark, db, "loaded", frame_of(spark, "a"), job="first")
    assert (result.rows, table.count()) == (ROWS, ROWS)
    assert stelae.spark.load(spark, db, "loaded", frame_of(spark, "b"), job="first").was_done
    for key in (0, SPLITS[0] - 1, SPLITS[3], ROWS - 1):
        assert table.get(key) == {"id": key, "word": f"a{key}", "n": 2 * key}
        table.put({"id": key, "word": "mine"})
    read = stelae.spark.read(spark, db, "loaded")
    assert read.count() == ROWS
    assert read.where("word = 'mine'").count() == 4
    assert read.selectExpr("sum(n)").first()[0] == ROWS * (ROWS - 1)

    sourced(frame_of(spark, "c", 100), cluster, "loaded").mode("overwrite").save()
    found = sourced(spark, cluster, "loaded").load()
    assert (found.count(), found.where("word LIKE 'c%'").count(), table.count()) == (100, 100, 100)
    assert stelae.spark.read(spark, db, "loaded", at=result.txn).count() == ROWS
    assert db.truncate_table("loaded")
    assert (table.count(), sourced(spark, cluster, "loaded").load().count()) == (0, 0)


def test_jobs_over_whole_tables(spark: SparkSession, db: stelae.Database, tmp_path: Path) -> None:
    table = make(db, "jobs")
    for word in ("a", "b"):
        stelae.spark.load(spark, db, "jobs", frame_of(spark, word, 4_000))
    table.put_many([{"id": key, "word": "late"} for key in range(0, ROWS, 100)])
    table.flush()
    files = table.stats().files
    stelae.spark.compact(spark, db, "jobs")
    assert table.stats().files < files
    late = ROWS // 100
    assert {row["word"] for row in table.scan(columns=["word"], where="id < 300")} == {
        "late",
        *(f"b{key}" for key in range(300) if key % 100),
    }
    stelae.spark.backup(spark, db, "jobs", tmp_path / "backups")
    table.put({"id": 1, "word": "after"})
    stelae.spark.restore(spark, db, tmp_path / "backups", table="jobs", name="jobs_then")
    then = db.table("jobs_then")
    assert then.count() == 4_000 + late - 40
    assert then.get(1)["word"] == "b1"  # type: ignore[index]
    assert stelae.spark.verify(spark, db, "jobs_then", tmp_path / "backups").is_same
    assert stelae.spark.stats(spark, db, "jobs").rows == then.count()
