"""Rows of frames get to tasks whole, by batches of Arrow made by our class or by `mapInArrow`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import stelae
import stelae.spark
from stelae.spark.driver.compiled import Compiled
from stelae.spark.loading import crossing

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


def _kept(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What came, batch by batch, as streams of Arrow: a task that reports all."""
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write(batch)
        yield pa.RecordBatch.from_arrays([pa.array([sink.getvalue().to_pybytes()], pa.binary())], ["report"])


def _batches(frame: DataFrame) -> list[pa.Table]:
    return [pa.ipc.open_stream(report).read_all() for report in crossing.reports_of(frame, _kept)]


def _is_ours(frame: DataFrame) -> bool:
    compiled = crossing._parts.of(frame.sparkSession.sparkContext)
    return compiled is not None and compiled.of(frame._jdf, 1, 1) is not None


@pytest.fixture(params=["ours", "mapInArrow"])
def way(request: pytest.FixtureRequest, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "mapInArrow":
        monkeypatch.setattr(crossing._parts, "_made", {spark.sparkContext: None})
    return str(request.param)


EVERYTHING = [
    "id AS `a.b`",
    "CAST(id % 100 AS TINYINT) AS `odd ``name`",
    "IF(id % 3 = 0, NULL, CAST(id AS STRING)) AS text",
    "CAST(CAST(id AS STRING) AS BINARY) AS bytes",
    "id % 2 = 0 AS truth",
    "CAST(id AS FLOAT) / 3 AS small",
    "IF(id = 7, DOUBLE('NaN'), id / 7) AS large",
    "CAST(id AS DECIMAL(38, 10)) AS exact",
    "date_from_unix_date(CAST(id - 100 * id AS INT)) AS day",
    "timestamp_micros(id * 1000003) AS moment",
    "CAST(timestamp_micros(id * 1000003) AS TIMESTAMP_NTZ) AS clock",
    "NULL AS nothing",
    "IF(id % 4 = 0, NULL, array(id, NULL, 3)) AS list",
    "named_struct('x', id, 'y', array(named_struct('z', 1.5D))) AS nested",
    "map('k', CAST('v' AS BINARY)) AS cells",
]


def test_every_type_comes_as_it_is(spark: SparkSession, way: str) -> None:
    """In any time zone of the session: moments are moments."""
    frame = spark.range(0, 5_000, 1, 3).selectExpr(*EVERYTHING)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        assert _is_ours(frame) == (way == "ours")
        found = pa.concat_tables(_batches(frame), promote_options="permissive")
        wanted = frame.toArrow()
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    assert found.column_names == frame.columns
    floats = ["small", "large"]
    found, wanted = found.sort_by("a.b"), wanted.sort_by("a.b")
    for name in floats:
        assert repr(found[name].to_pylist()) == repr(wanted[name].to_pylist())
    moments = [each["moment"].cast(pa.int64()).to_pylist() for each in (found, wanted)]
    assert moments[0] == moments[1]
    assert found.drop_columns([*floats, "moment"]).to_pylist() == wanted.drop_columns([*floats, "moment"]).to_pylist()


def test_what_was_shuffled_or_is_nothing(spark: SparkSession, way: str) -> None:
    frame = spark.range(1_000).selectExpr("id", "id % 7 AS n").repartition(4, "n").sortWithinPartitions("id")
    assert sorted(row["id"] for table in _batches(frame) for row in table.to_pylist()) == list(range(1_000))
    assert sum(table.num_rows for table in _batches(frame.where("id < 0"))) == 0


def test_batches_of_large_rows_are_small(spark: SparkSession) -> None:
    """So that no task needs memory for thousands of large rows at once."""
    frame = spark.range(0, 40, 1, 1).selectExpr("id", f"repeat('x', {2**20}) AS text")
    tables = _batches(frame)
    assert sum(table.num_rows for table in tables) == 40
    assert max(table.num_rows for table in tables) <= crossing._BATCH_BYTES // 2**20 + 1


def test_a_frame_that_is_observed_goes_as_a_query(spark: SparkSession, tmp_path: Path) -> None:
    """Spark tells metrics of queries alone: whoever waits for them would wait for ever."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    seen = Observation()
    frame = spark.range(50).selectExpr("id", "id AS n").observe(seen, f.count("*").alias("rows")).where("id < 40")
    assert not _is_ours(frame)
    with stelae.open(tmp_path / "db") as db:
        loaded = stelae.spark.load(spark, db, "t", frame, create=True, key=["id"])
        assert loaded.rows == db.table("t").scan().to_arrow().num_rows == 40
    assert seen.get == {"rows": 50}


def test_a_spark_with_another_writer_takes_mapinarrow(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Compiled("stelae.spark.loading", "ArrowParts.java", "stelae.spark.Nothing", "other.jar", "tried")
    monkeypatch.setattr(crossing, "_parts", other)
    frame = spark.range(10).toDF("n")
    assert not _is_ours(frame)
    assert sorted(row["n"] for table in _batches(frame) for row in table.to_pylist()) == list(range(10))


def test_what_a_task_raises_is_told(spark: SparkSession, way: str) -> None:
    def failing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            raise ValueError(f"not these {batch.num_rows}")
        yield from ()

    with pytest.raises(Exception, match="not these") as caught:
        crossing.reports_of(spark.range(0, 10, 1, 1).toDF("n"), failing)
    story: Any = caught.value
    assert "ValueError" in str(story)
