"""Hidden rows by the reader that says which they are, and by their places where it cannot be had: the same rows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import stelae
from stelae.client.api.database import Database
from stelae.client.api.table import Table
from stelae.spark.driver.compiled import Compiled
from stelae.spark.reading import frames as reading
from stelae.spark.reading import hiding
from tests.effort import HANG_S, long_run
from tests.spark.same import assert_same

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 90_000
"""Several pages in a block, and several blocks in a file."""


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Rows of which some were replaced whole, some in one column, and some erased; the first thousand were not."""
    with stelae.open(tmp_path_factory.mktemp("hiding") / "db") as opened:
        columns = stelae.columns("g", {"n": "int64", "m": "int64", "text": "string"}, block_bytes=2**20)
        table = opened.create_table("t", key={"id": "int64"}, groups=[columns], splits=[ROWS // 2])
        table.put_many([_row(number) for number in range(ROWS)])
        table.flush()
        table.put_many([_row(number) | {"n": -1} for number in range(1_000, ROWS, 20)])
        table.flush()
        table.put_many([{"id": number, "m": -2} for number in range(1_005, ROWS, 70)])
        table.erase_many(list(range(1_007, ROWS, 90)))
        yield opened


def _row(number: int) -> dict[str, Any]:
    return {"id": number, "n": number, "m": number % 7, "text": f"text {number % 1_000}"}


@pytest.fixture(params=["said by the reader", "by their places"])
def way(request: pytest.FixtureRequest, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "by their places":
        monkeypatch.setattr(hiding._frames, "_made", {spark.sparkContext: None})
    return str(request.param)


def _is_said(frame: DataFrame) -> bool:
    return "~_tmp_metadata_row_index" in frame._jdf.queryExecution().executedPlan().toString()


def test_rows_are_those_of_a_scan(spark: SparkSession, db: Database, way: str) -> None:
    frame = reading.read(spark, db, "t")
    assert _is_said(frame) == (way == "said by the reader")
    seen = assert_same(frame, db.table("t"), db.now())
    assert seen < ROWS
    assert frame.count() == seen


CONDITIONS = ["id >= 70000 and id < 70100", "n = -1", "n > 44990 and n < 45010", "m = -2 and id > 50000", "id = 1007"]


@pytest.mark.parametrize("where", CONDITIONS)
def test_filters_of_the_frame_leave_places_as_they_are(spark: SparkSession, db: Database, way: str, where: str) -> None:
    """Row groups and pages that a filter passes over do not count."""
    found = reading.read(spark, db, "t").where(where).orderBy("id").toArrow().to_pylist()
    assert found == db.table("t").scan(where=where).to_arrow().to_pylist()


def test_where_rows_come_one_by_one(spark: SparkSession, db: Database, way: str) -> None:
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", "false")
    try:
        assert_same(reading.read(spark, db, "t"), db.table("t"), db.now())
    finally:
        spark.conf.unset("spark.sql.parquet.enableVectorizedReader")


def test_batches_of_any_length(spark: SparkSession, db: Database) -> None:
    """Also of such as begin inside a word of the bits."""
    spark.conf.set("spark.sql.parquet.columnarReaderBatchSize", "1001")
    try:
        assert_same(reading.read(spark, db, "t"), db.table("t"), db.now())
    finally:
        spark.conf.unset("spark.sql.parquet.columnarReaderBatchSize")


def test_frames_that_hide_the_same_are_the_same(spark: SparkSession, db: Database, tmp_path: Path) -> None:
    first, second = reading.read(spark, db, "t"), reading.read(spark, db, "t")
    files = first._jdf.queryExecution().analyzed().collectLeaves().apply(0).relation()
    other = second._jdf.queryExecution().analyzed().collectLeaves().apply(0).relation()
    assert files.fileFormat().equals(other.fileFormat())
    assert files.fileFormat().hashCode() == other.fileFormat().hashCode()
    table = db.create_table("other", key={"id": "int64"}, groups=[stelae.columns("g", {"n": "int64"})])
    for n in (1, 2):
        table.put_many([{"id": number, "n": n} for number in range(10 * n)])
        table.flush()
    strange = reading.read(spark, db, "other")._jdf.queryExecution().analyzed().collectLeaves().apply(0).relation()
    assert not files.fileFormat().equals(strange.fileFormat())


COUNTS = ["count(*)", "count(1), count('x') AS again"]


def _is_known(frame: DataFrame) -> bool:
    """Whether Spark has the answer before it runs anything."""
    return "LocalRelation" in frame._jdf.queryExecution().optimizedPlan().toString()


@pytest.mark.parametrize("asked", COUNTS)
def test_counts_of_all_rows_read_no_file(spark: SparkSession, db: Database, asked: str) -> None:
    counted = reading.read(spark, db, "t").selectExpr(*asked.split(", "))
    assert _is_known(counted)
    rows = db.table("t").scan().to_arrow().num_rows
    assert set(counted.first() or ()) == {rows}


OTHERS = {
    "SELECT count(n) FROM seen": "count(n)",
    "SELECT count(DISTINCT m) FROM seen": "count(DISTINCT m)",
    "SELECT count(*) FROM seen WHERE id < 2000": "count(*) FILTER (WHERE id < 2000)",
    "SELECT count(*) FILTER (WHERE m = 3) FROM seen": "count(*) FILTER (WHERE m = 3)",
    "SELECT count(*) FROM seen WHERE NOT EXISTS (SELECT 1 FROM seen WHERE m = -2)": "0",
    "SELECT count(*) FROM (SELECT * FROM seen LIMIT 10)": "10",
    "SELECT sum(c) FROM (SELECT count(*) AS c FROM seen GROUP BY m)": "count(*)",
    "SELECT count(*) FROM (SELECT explode(array(id, n)) FROM seen)": "2 * count(*)",
    "SELECT count(*) FROM (SELECT * FROM seen UNION ALL SELECT * FROM seen)": "2 * count(*)",
}


@pytest.mark.parametrize("asked", OTHERS)
def test_what_is_no_count_of_all_rows_is_read(spark: SparkSession, db: Database, asked: str) -> None:
    """What it must be is asked of the rows of a scan."""
    reading.read(spark, db, "t").createOrReplaceTempView("seen")
    spark.createDataFrame(db.table("t").scan().to_arrow()).createOrReplaceTempView("scanned")
    assert not _is_known(spark.sql(asked))
    assert spark.sql(asked).first() == spark.sql(f"SELECT {OTHERS[asked]} FROM scanned LIMIT 1").first()


def test_a_count_is_that_of_its_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    with stelae.open(tmp_path / "db") as opened:
        table = opened.create_table("t", key={"id": "int64"}, groups=[stelae.columns("g", {"n": "int64"})])
        table.put_many([{"id": number, "n": number} for number in range(100)])
        table.flush()
        table.erase_many([1, 2, 3])
        before = reading.read(spark, opened, "t")
        table.erase_many([4, 5])
        table.put({"id": 200, "n": 1})
        after = reading.read(spark, opened, "t")
        assert (before.count(), after.count()) == (97, 96)
        assert _is_known(before.selectExpr("count(*)"))


def test_a_spark_with_another_reader_filters_by_places(
    spark: SparkSession, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Compiled("stelae.spark.reading", "HidingFormat.java", "stelae.spark.Nothing", "other.jar", "tried")
    monkeypatch.setattr(hiding, "_frames", other)
    frame = reading.read(spark, db, "t")
    assert not _is_said(frame)
    assert_same(frame, db.table("t"), db.now())


@pytest.fixture(scope="module")
def altered(db: Database) -> Table:
    """Rows that were written before their table had these columns; some of them again since, in part, or erased."""
    columns = stelae.columns("g", {"n": "int32", "f": "float64", "gone": "string", "s": "string"})
    table = db.create_table("altered", key={"id": "int64"}, groups=[columns], splits=[200])
    table.put_many([{"id": n, "n": n % 9, "f": n / 4 or float("nan"), "gone": "x", "s": f"s{n}"} for n in range(400)])
    table.flush()
    added = {"with space": "int64", "parts": "struct<a: float32, list: array<string>>", "map": "map<string, int32>"}
    changed = db.alter_table("altered", drop=["gone"], widen={"n": "int64"}, rename_columns={"s": "text"})
    changed = db.alter_table("altered", add={"g": added})
    changed.put_many([{"id": n, "n": -n, "f": -0.0, "with space": n, "map": {"k": n}} for n in range(0, 400, 7)])
    changed.erase_many(list(range(3, 400, 50)))
    return changed


ASKED: list[dict[str, Any]] = [
    {},
    {"columns": ["with space", "parts", "f"]},
    {"where": "f > 20 and f < 60"},
    {"where": "n = 3 or f = 0", "columns": ["text"]},
    {"where": "`with space` is null"},
]


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_columns_that_were_altered(
    spark: SparkSession, db: Database, altered: Table, way: str, asked: dict[str, Any]
) -> None:
    """Renamed, of a larger type, added since, dropped."""
    frame = reading.read(spark, db, "altered", **asked)
    assert _is_said(frame) == (way == "said by the reader")
    assert assert_same(frame, altered, db.now(), **asked) > 0


@long_run
def test_executors_in_processes_of_their_own_get_the_class(tmp_path: Path) -> None:
    """It is compiled in the driver, and no jar of it lies anywhere before: it goes there with the context."""
    with stelae.open(tmp_path / "db") as opened:
        table = opened.create_table("t", key={"id": "int64"}, groups=[stelae.columns("g", {"n": "int64"})])
        table.put_many([{"id": number, "n": number} for number in range(1_000)])
        table.flush()
        table.put_many([{"id": number, "n": 0} for number in range(0, 1_000, 10)])
        table.erase_many(list(range(5, 1_000, 10)))
    kept = [number for number in range(1_000) if number % 5]
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.hiding_driver", str(tmp_path / "db")],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "loaded 1100 rows, by our class True" in done.stdout
    rows = len(kept) + 100
    assert f"rows {rows}, sum {sum(kept)}, said by the reader True" in done.stdout
    assert "processes 2" in done.stdout, "the driver and one executor"
