"""Spark on a cluster: the driver and, where they write rows, the tasks connect to it; files are read and written as
they are of a store in a directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stelae
import stelae.spark
from stelae.model.errors import InvalidArgument, Unavailable
from stelae.spark.source.reader import held_parts
from stelae.spark.source.writer import write_options
from tests.cluster_of_threads import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUPS = [stelae.columns("g", {"word": "string"})]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def db(cluster: Cluster) -> Iterator[stelae.Database]:
    with stelae.connect(cluster.address) as database:
        yield database
        assert database.check().problems == ()


def frame_of(spark: SparkSession, ids: range, word: str) -> DataFrame:
    return spark.createDataFrame([(id_, word) for id_ in ids], "id long, word string")


def words_of(table: stelae.Table) -> dict[int, str]:
    return {row["id"]: row["word"] for row in table.scan()}


def sourced(frame_or_session: Any, cluster: Cluster, table: str, **options: str) -> Any:
    """A reader of a session, or a writer of a frame."""
    made = getattr(frame_or_session, "read", None) or frame_or_session.write
    return made.format("stelae").options(cluster=cluster.address, table=table, **options)


def test_what_is_loaded_is_read(spark: SparkSession, db: stelae.Database) -> None:
    table = db.create_table("loaded", {"id": "int64"}, GROUPS, splits=[50])
    stelae.spark.load(spark, db, "loaded", frame_of(spark, range(100), "one"))
    table.put({"id": 7, "word": "changed"})
    table.erase(8)
    expected = dict.fromkeys(range(100), "one") | {7: "changed"}
    del expected[8]
    assert words_of(table) == expected
    assert dict(stelae.spark.read(spark, db, "loaded").collect()) == expected
    few = stelae.spark.read(spark, db, "loaded", where="id >= 98", columns=["word"])
    assert {row["id"] for row in few.collect()} == {98, 99}
    merged = frame_of(spark, range(99, 102), "two").selectExpr("id", "word", "id = 99 as gone")
    stelae.spark.merge(spark, db, "loaded", merged, delete="gone")
    assert {id_ for id_, word in words_of(table).items() if word == "two"} == {100, 101}
    assert 99 not in words_of(table)


def test_tasks_that_put_rows_connect_by_themselves(spark: SparkSession, db: stelae.Database, cluster: Cluster) -> None:
    table = db.create_table("by_mutations", {"id": "int64"}, GROUPS)
    stelae.spark.load(spark, db, "by_mutations", frame_of(spark, range(20), "one"), via="mutations")
    sourced(frame_of(spark, range(10, 30), "two"), cluster, "by_mutations", via="mutations").mode("append").save()
    assert words_of(table) == dict.fromkeys(range(10), "one") | dict.fromkeys(range(10, 30), "two")


def test_as_a_source_and_a_sink(spark: SparkSession, db: stelae.Database, cluster: Cluster) -> None:
    table = db.create_table("by_format", {"id": "int64"}, GROUPS, splits=[50])
    sourced(frame_of(spark, range(100), "one"), cluster, "by_format").mode("append").save()
    sourced(frame_of(spark, range(40), "two"), cluster, "by_format").mode("overwrite").save()
    table.put({"id": 3, "word": "three"})
    expected = dict.fromkeys(range(40), "two") | {3: "three"}
    assert words_of(table) == expected
    assert dict(sourced(spark, cluster, "by_format").load().collect()) == expected
    view = f"USING stelae OPTIONS (cluster '{cluster.address}', table 'by_format', where 'id < 5')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW a_cluster {view}")
    assert spark.sql("SELECT word FROM a_cluster WHERE id = 3").first()[0] == "three"
    spark.catalog.dropTempView("a_cluster")


def test_streams(spark: SparkSession, db: stelae.Database, cluster: Cluster, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    stream = spark.readStream.schema("id long, word string").option("maxFilesPerTrigger", 1).parquet(str(source))
    by_format = db.create_table("streamed", {"id": "int64"}, GROUPS)
    by_batch = db.create_table("batched", {"id": "int64"}, GROUPS)
    writers = {
        "format": stream.writeStream.format("stelae").options(cluster=cluster.address, table="streamed"),
        "batch": stream.writeStream.foreachBatch(stelae.spark.foreach_batch(db, "batched")),
    }
    for ids, word in ((range(10), "one"), (range(5, 8), "two")):
        pq.write_table(pa.table({"id": list(ids), "word": [word] * len(ids)}), source / f"{word}.parquet")
        for name, writer in writers.items():
            query = writer.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True).start()
            query.awaitTermination()
    for table in (by_format, by_batch):
        assert words_of(table) == dict.fromkeys(range(10), "one") | dict.fromkeys(range(5, 8), "two")
    assert [file for file in (cluster.store / "staging").rglob("*") if file.is_file()] == []


def test_jobs_over_whole_tables(spark: SparkSession, db: stelae.Database, cluster: Cluster, tmp_path: Path) -> None:
    table = db.create_table("jobs", {"id": "int64"}, GROUPS, splits=[50])
    for word in ("one", "two"):
        table.put_many([{"id": id_, "word": word} for id_ in range(100)])
        table.flush()
    stelae.spark.compact(spark, db, "jobs")
    stelae.spark.export(spark, db, "jobs", tmp_path / "out", where="id < 10")
    assert pq.read_table(tmp_path / "out").num_rows == 10
    stelae.spark.backup(spark, db, "jobs", tmp_path / "backups")
    table.put({"id": 1, "word": "three"})
    stelae.spark.restore(spark, db, tmp_path / "backups", table="jobs", name="jobs_then")
    assert words_of(db.table("jobs_then")) == dict.fromkeys(range(100), "two")
    assert stelae.spark.verify(spark, db, "jobs_then", tmp_path / "backups").is_same
    assert stelae.spark.stats(spark, db, "jobs").rows == 100
    with pytest.raises(InvalidArgument, match="is a part of the store"):
        stelae.spark.backup(spark, db, "jobs", cluster.store / "inside")


# -- without Spark


def test_options_that_cannot_be() -> None:
    for read in (held_parts, lambda options: write_options(options, overwrite=False)):
        with pytest.raises(InvalidArgument, match="'path' or option 'cluster', not both"):
            read({"path": "d", "cluster": "h:1", "table": "t"})
        with pytest.raises(InvalidArgument, match=r"needs option 'path', .* or 'cluster'"):
            read({"table": "t"})
        with pytest.raises(InvalidArgument, match="needs option 'table'"):
            read({"cluster": "h:1"})
    with pytest.raises(InvalidArgument, match="not host:port"):
        held_parts({"cluster": "nowhere", "table": "t"})


def test_a_cluster_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = stelae.connect
    monkeypatch.setattr(stelae, "connect", lambda masters: connect(masters, timeout_s=0.1))
    with pytest.raises(Unavailable, match=r"the cluster 127.0.0.1:1 cannot be reached: .*nobody listens there"):
        held_parts({"cluster": "127.0.0.1:1", "table": "t"})
