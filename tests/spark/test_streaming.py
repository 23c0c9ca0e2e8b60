"""Streams into tables: every batch once, across restarts, and whatever is tried again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stelae
import stelae.spark
from stelae.model.errors import InvalidArgument
from stelae.spark.loading.job import LoadResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stelae.Database]:
    with stelae.open(tmp_path_factory.mktemp("store")) as database:
        yield database
        assert not database.check().problems


def arrive(directory: Path, name: str, ids: range, word: str) -> None:
    directory.mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": list(ids), "word": [word] * len(ids)}), directory / f"{name}.parquet")


def stream(spark: SparkSession, directory: Path) -> DataFrame:
    reader = spark.readStream.schema("id long, word string").option("maxFilesPerTrigger", 1)
    return reader.parquet(str(directory))


def finish(writing: Any, checkpoint: Path) -> None:
    query = writing.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def forget_last(checkpoint: Path) -> None:
    """As if the query had ended between its batch and its note of that."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    last.unlink()
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)


def versions(table: stelae.Table, id_: int) -> list[Any]:
    found = table.history(id_, columns=["word"], limit=10)
    return [version.value for version in found["word"]]


def test_each_batch_once_by_format(spark: SparkSession, db: stelae.Database, tmp_path: Path) -> None:
    from stelae.spark.source.source import StelaeSource

    spark.dataSource.register(StelaeSource)
    table = db.create_table("by_format", {"id": "int64"}, [stelae.columns("g", {"word": "string"})], splits=[50])
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"

    def go() -> None:
        writer = stream(spark, source).writeStream.format("stelae").option("table", "by_format")
        finish(writer.option("path", db.path), checkpoint)

    arrive(source, "a", range(100), "one")
    go()
    assert (table.count(), versions(table, 7)) == (100, ["one"])
    forget_last(checkpoint)
    go()
    assert versions(table, 7) == ["one"]
    arrive(source, "b", range(5, 10), "two")
    go()
    assert (table.count(), versions(table, 7), versions(table, 1)) == (100, ["two", "one"], ["one"])
    staging = Path(db.path) / "staging"
    assert [file for file in staging.rglob("*") if file.is_file()] == []


def test_each_batch_once_by_foreach_batch(spark: SparkSession, db: stelae.Database, tmp_path: Path) -> None:
    """A query that keeps state, in update mode; then the same from the start, under the job's name."""
    table = db.create_table("counts", {"word": "string"}, [stelae.columns("g", {"count": "int64"})])
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    told: list[LoadResult] = []

    def go(checkpoint: Path, job: str | None = None) -> None:
        counted = stream(spark, source).groupBy("word").count()
        sink = stelae.spark.foreach_batch(db, "counts", job=job, told=told.append)
        finish(counted.writeStream.outputMode("update").foreachBatch(sink), checkpoint)

    arrive(source, "a", range(3), "x")
    go(checkpoint)
    forget_last(checkpoint)
    arrive(source, "b", range(4), "x")
    go(checkpoint)
    assert [(result.rows, result.was_done) for result in told] == [(1, False), (0, True), (1, False)]
    assert [dict(row) for row in table.scan()] == [{"word": "x", "count": 7}]
    other = tmp_path / "other"
    go(other, job="named")
    before = table.get("x")
    shutil.rmtree(other)
    told.clear()
    go(other, job="named")
    assert [result.was_done for result in told] == [True, True]
    assert table.get("x") == before


def test_a_batch_in_two_parts_needs_two_names(spark: SparkSession, db: stelae.Database, tmp_path: Path) -> None:
    """The second would be taken for the first, done before."""
    table = db.create_table("parts", {"id": "int64"}, [stelae.columns("g", {"word": "string"})])
    arrive(tmp_path / "in", "a", range(10), "one")

    def go(*sinks: Any) -> None:
        def apply(frame: DataFrame, batch: int) -> None:
            for number, sink in enumerate(sinks):
                sink(frame.where(f"id % 2 = {number}"), batch)

        finish(stream(spark, tmp_path / "in").writeStream.foreachBatch(apply), tmp_path / "checkpoint")

    same = stelae.spark.foreach_batch(db, "parts")
    with pytest.raises(Exception, match="give each its own name"):
        go(same, same)
    go(*(stelae.spark.foreach_batch(db, "parts", job=f"part {number}") for number in range(2)))
    assert table.count() == 10


def test_outside_a_stream(spark: SparkSession, db: stelae.Database) -> None:
    sink = stelae.spark.foreach_batch(db, "by_format")
    with pytest.raises(InvalidArgument, match="no batch of a stream"):
        sink(spark.range(1), 0)
    with pytest.raises(InvalidArgument, match="mode= is"):
        stelae.spark.foreach_batch(db, "by_format", mode="complete")
