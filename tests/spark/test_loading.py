"""Frames into tables by Spark: `load`, `merge`, `df.write`, and what each refuses."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import stelae
import stelae.spark
from stelae.model.errors import InvalidArgument, InvalidSchema, NotFound
from stelae.model.hybrid import micros_of
from stelae.spark.loading.job import LoadResult
from stelae.spark.loading.mutation_task import session_micros

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_numbers = count()
GROUPS = [
    stelae.columns("one", {"name": "string", "age": "int32"}),
    stelae.columns("two", {"note": "string"}),
    stelae.cells("events", families=["click"]),
]


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stelae.Database]:
    with stelae.open(tmp_path_factory.mktemp("store")) as database:
        yield database
        report = database.check()
        assert not report.problems


@pytest.fixture
def users(db: stelae.Database) -> stelae.Table:
    return db.create_table(f"users{next(_numbers)}", {"id": "int64"}, GROUPS, splits=[100, 200])


def rows(table: stelae.Table, **more: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in table.scan(**more)]


def people(spark: SparkSession, start: int, stop: int, *more: str) -> DataFrame:
    return spark.range(start, stop, 1, 2).selectExpr("id", "concat('n', id) AS name", *more)


def test_a_named_job_is_done_once(spark: SparkSession, db: stelae.Database, users: stelae.Table) -> None:
    told: list[tuple[int, int]] = []
    name = users._info.name
    frame = people(spark, 0, 300, "CAST(id AS INT) AS age")
    first = stelae.spark.load(spark, db, name, frame, job="j", progress=lambda *at: told.append(at))
    assert (first.rows, first.files, first.skipped, first.was_done) == (300, 3, 0, False)
    assert rows(users) == [{"id": id_, "name": f"n{id_}", "age": id_, "note": None} for id_ in range(300)]
    assert rows(users, at=first.txn - 1) == []
    assert told[-1][0] == told[-1][1] > 0
    assert f"loaded table {name}" in str(first)
    again = stelae.spark.load(spark, db, name, people(spark, 0, 1), job="j")
    assert again == LoadResult(name, "j", first.txn, was_done=True)
    assert "was done before" in str(again)
    assert rows(users, columns=["age"], stop=1) == [{"id": 0, "age": 0}]


def test_overwriting(spark: SparkSession, db: stelae.Database, users: stelae.Table) -> None:
    """Earlier snapshots stay; frames may be empty in both modes."""
    name = users._info.name
    users.put({"id": 1, "name": "before", "click:x": b"1"})
    before = db.now()
    stelae.spark.load(spark, db, name, people(spark, 0, 0))
    assert users.count() == 1
    done = stelae.spark.load(spark, db, name, people(spark, 5, 7), mode="overwrite")
    assert rows(users) == [{"id": id_, "name": f"n{id_}", "age": None, "note": None} for id_ in (5, 6)]
    assert rows(users, at=before) == [{"id": 1, "name": "before", "age": None, "note": None, "click:x": b"1"}]
    users.put({"id": 5, "age": 3})
    nothing = stelae.spark.load(spark, db, name, people(spark, 0, 0), mode="overwrite")
    assert (users.count(), nothing.rows, nothing.files) == (0, 0, 0)
    assert len(rows(users, at=done.txn)) == 2


def test_bad_rows(spark: SparkSession, db: stelae.Database, users: stelae.Table, tmp_path: Path) -> None:
    name = users._info.name
    frame = spark.range(0, 300, 1, 2).selectExpr("IF(id = 7, NULL, id) AS id", "IF(id = 250, 1L << 40, id) AS age")
    with pytest.raises(InvalidArgument) as refused:
        stelae.spark.load(spark, db, name, frame, job="j")
    assert f"table {name!r}: 2 rows cannot be loaded, so nothing was" in str(refused.value)
    assert "{'id': None, 'age': 7}: key column 'id': a key cannot be NULL" in str(refused.value)
    assert "{'id': 250, 'age': 1099511627776}: column 'age': 1099511627776 (int) is not a int32" in str(refused.value)
    assert users.count() == 0
    aside = tmp_path / "aside"
    done = stelae.spark.load(spark, db, name, frame, job="j", on_bad="skip", quarantine=str(aside))
    assert (done.rows, done.skipped, users.count()) == (298, 2, 298)
    assert done.quarantine is not None
    kept = spark.read.parquet(done.quarantine).orderBy("age").collect()
    assert [(row.id, row.age, "NULL" in row["_reason"]) for row in kept] == [(None, 7, True), (250, 1 << 40, False)]
    assert f"skipped     2, see {done.quarantine}" in str(done)


def test_days_that_python_has_no_objects_for(spark: Any, db: stelae.Database) -> None:
    """Among bad rows they are shown as text."""
    values = {"d": "date", "ts": "timestamp", "days": "array<date>", "at": "map<string, timestamp>"}
    db.create_table("far", key={"id": "date"}, groups=[stelae.columns("g", values)])
    day, moment = "make_date(12000, 1, 31)", "timestamp_micros(4611686018427387904L)"
    for column, far, shown in (
        ("d", day, "'12000-01-31'"),
        ("ts", moment, "'17036-07-06"),
        ("days", f"array({day})", "['12000-01-31']"),
        ("at", f"map('x', {moment})", "'at': [('x'"),
    ):
        frame = spark.sql(f"SELECT make_date(2026, 1, 31) AS id, {far} AS {column}")
        with pytest.raises(stelae.InvalidArgument) as refused:
            stelae.spark.load(spark, db, "far", frame)
        assert shown in str(refused.value)
        assert "a time outside the years 1 to 9999" in str(refused.value)
        assert stelae.spark.load(spark, db, "far", frame, on_bad="skip").skipped == 1
    with pytest.raises(stelae.InvalidArgument, match="'id': '12000-01-31'"):
        stelae.spark.load(spark, db, "far", spark.sql(f"SELECT {day} AS id"))


def test_the_last_of_several_mentions(spark: SparkSession, db: stelae.Database, users: stelae.Table) -> None:
    name = users._info.name
    frame = people(spark, 0, 5, "0 AS age").union(people(spark, 3, 8, "1 AS age"))
    with pytest.raises(InvalidArgument, match=r"2 rows of the frame say again what another says, as of [34], [34]"):
        stelae.spark.load(spark, db, name, frame)
    done = stelae.spark.load(spark, db, name, frame, duplicates="last")
    assert (done.rows, done.duplicates) == (10, 2)
    assert [row["age"] for row in rows(users)] == [0, 0, 0, 1, 1, 1, 1, 1]


def test_merging_with_erasures(spark: SparkSession, db: stelae.Database, users: stelae.Table) -> None:
    """All groups of a row are erased, whatever the frame has; other rows keep what the frame has not."""
    name = users._info.name
    for id_ in range(4):
        users.put({"id": id_, "name": "old", "age": id_, "note": "x", "click:p": b"1"})
    before = db.now()
    frame = spark.range(0, 6).selectExpr("id", "'new' AS name", "IF(id % 2 = 0, 'D', 'U') AS op")
    done = stelae.spark.merge(spark, db, name, frame, delete="OP = 'D'")
    assert rows(users) == [
        {"id": 1, "name": "new", "age": 1, "note": "x", "click:p": b"1"},
        {"id": 3, "name": "new", "age": 3, "note": "x", "click:p": b"1"},
        {"id": 5, "name": "new", "age": None, "note": None},
    ]
    assert len(rows(users, at=before)) == 4
    assert rows(users, at=done.txn - 1) == rows(users, at=before)
    both = spark.sql("SELECT 1L AS id, 'z' AS name, 'U' AS op UNION ALL SELECT 1L, 'z', 'D'")
    with pytest.raises(InvalidArgument, match="as of 1; nothing was loaded"):
        stelae.spark.merge(spark, db, name, both, delete="op = 'D'")
    stelae.spark.merge(spark, db, name, both.coalesce(1), delete="op = 'D'", duplicates="last")
    assert users.get(1) is None


def test_cells_as_maps(spark: SparkSession, db: stelae.Database, users: stelae.Table) -> None:
    name = users._info.name
    frame = spark.range(2).selectExpr("id", "map('p', CAST('1' AS BINARY), 'q', CAST(id AS STRING)) AS click")
    with pytest.raises(
        InvalidArgument, match=r"column 'click' is map<string, binary>: map<string,string> does not fit"
    ):
        stelae.spark.load(spark, db, name, frame.selectExpr("id", "map('p', 'x') AS click"))
    frame = frame.selectExpr("id", "transform_values(click, (k, v) -> CAST(v AS BINARY)) AS click")
    stelae.spark.load(spark, db, name, frame, ts=5)
    assert users.get(1) == {"id": 1, "click:p": b"1", "click:q": b"1", "name": None, "age": None, "note": None}
    found = users.history(1, columns=["click:q"])
    assert [version.ts for version in found["click:q"]] == [5]


def test_by_mutations(spark: SparkSession, db: stelae.Database, users: stelae.Table) -> None:
    """With the time of the load, so that a task that runs twice says the same."""
    name = users._info.name
    done = stelae.spark.load(spark, db, name, people(spark, 0, 20), via="mutations", job="j")
    assert (done.rows, done.files, users.count()) == (20, 0, 20)
    versions = [users.history(id_, columns=["name"], limit=5) for id_ in (0, 19)]
    times = {version.ts for each in versions for version in each["name"]}
    assert len(times) == 1
    assert times.pop() <= micros_of(done.txn)
    assert stelae.spark.load(spark, db, name, people(spark, 0, 20), via="mutations", job="j").was_done
    with pytest.raises(InvalidArgument, match="say again"):
        stelae.spark.load(spark, db, name, people(spark, 0, 2).union(people(spark, 0, 1)), via="mutations")
    assert session_micros("fragments/00000001/0000000000100000-ab") == micros_of(0x100000)  # type: ignore[arg-type]


def test_names_that_spark_takes_for_paths(spark: SparkSession, db: stelae.Database) -> None:
    table = db.create_table("paths", {"k.1": "int64"}, [stelae.columns("g", {"x.y": "int64", "b`t": "string"})])
    table.put({"k.1": 1, "x.y": 2, "b`t": "three"})
    frame = stelae.spark.read(spark, db, "paths")
    assert stelae.spark.load(spark, db, "paths", frame, mode="overwrite").rows == 1
    assert rows(table) == [{"k.1": 1, "x.y": 2, "b`t": "three"}]


def test_a_row_said_twice_counts_once(spark: SparkSession, db: stelae.Database, users: stelae.Table) -> None:
    """Also where it is of several groups."""
    frame = people(spark, 0, 2, "'x' AS note").union(people(spark, 0, 1, "'y' AS note"))
    with pytest.raises(InvalidArgument, match="1 row of the frame say again"):
        stelae.spark.load(spark, db, users._info.name, frame)


def test_a_table_made_for_a_load_that_fails_goes(spark: SparkSession, db: stelae.Database) -> None:
    with pytest.raises(InvalidArgument, match="say again what another says"):
        stelae.spark.load(spark, db, "fleeting", people(spark, 0, 2).union(people(spark, 0, 1)), create=True, key="id")
    assert "fleeting" not in db.tables()


def test_a_table_is_made(spark: SparkSession, db: stelae.Database) -> None:
    frame = people(spark, 0, 400, "id % 2 = 0 AS even")
    done = stelae.spark.load(spark, db, "made", frame, create=True, key="id", tablets=4)
    table = db.table("made")
    assert str(table.schema.key[0].type) == "int64"
    assert (done.rows, table.count(), len(table.tablets())) == (400, 400, 4)
    counts = [sum(1 for _ in table.scan(start=a, stop=b)) for a, b in ((0, 100), (300, None))]
    assert counts == [100, 100]
    assert stelae.spark.load(spark, db, "made", frame, create=True, mode="overwrite").rows == 400


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("id", {"mode": "upsert"}, "mode= is 'append' or 'overwrite', not 'upsert'"),
    ("id", {"duplicates": "first"}, "duplicates= is 'error', 'last' or 'any'"),
    ("id", {"mode": "overwrite", "via": "mutations"}, "which via='mutations' cannot"),
    ("id", {"quarantine": "x"}, "it needs on_bad='skip'"),
    ("id", {"key": "id"}, "say create=True"),
    ("id", {"job": ""}, "job= is text"),
    ("id, 'x' AS nam", {}, "no column 'nam'; did you mean 'name'?"),
    ("'x' AS name", {}, "key column 'id' is missing"),
    ("id, 'x' AS age", {}, "column 'age' is int32: string does not fit"),
    ("CAST(id AS STRING) AS id", {}, "key column 'id' is int64: string does not fit"),
    ("id, 'a' AS name, 'b' AS NAME", {}, "column 'NAME' is given twice"),
    ("id, INTERVAL 1 DAY AS age", {}, "no column type holds Spark's interval day"),
    ("id, 'click' AS family", {"cells": "long"}, "column 'qualifier' is missing"),
    ("id, 1 AS what", {"cells": "long"}, "no column 'what' with cells='long'"),
]


@pytest.mark.parametrize(("columns", "options", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_refused(spark: SparkSession, db: stelae.Database, columns: str, options: dict[str, Any], words: str) -> None:
    """Before anything is computed."""
    if "refusing" not in [name.rpartition(".")[2] for name in db.tables()]:
        db.create_table("refusing", {"id": "int64"}, GROUPS)
    frame = spark.range(1).selectExpr(f"struct({columns.replace('id, ', 'id AS id, ')}) AS s").select("s.*")
    with pytest.raises((InvalidArgument, InvalidSchema)) as refused:
        stelae.spark.load(spark, db, "refusing", frame, **options)
    assert words in str(refused.value)


def test_what_is_no_frame(spark: SparkSession, db: stelae.Database) -> None:
    with pytest.raises(InvalidArgument, match="not a Spark frame"):
        stelae.spark.load(spark, db, "x", [{"id": 1}])
    with pytest.raises(InvalidArgument, match="not a Spark session"):
        stelae.spark.load(None, db, "x", spark.range(1))
    with pytest.raises(InvalidArgument, match="not a database"):
        stelae.spark.load(spark, "data", "x", spark.range(1))  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="nowhere"):
        stelae.spark.load(spark, db, "nowhere", spark.range(1))
    with pytest.raises(InvalidArgument, match="delete= is a condition"):
        stelae.spark.merge(spark, db, "x", spark.range(1), delete=" ")


def test_a_needed_column_is_missing(spark: SparkSession, db: stelae.Database) -> None:
    table = db.create_table("needing", {"id": "int64"}, [stelae.columns("g", {"a": "int32 not null", "b": "int32"})])
    with pytest.raises(InvalidArgument, match="column 'a' is NOT NULL without a default"):
        stelae.spark.load(spark, db, table._info.name, spark.range(1).selectExpr("id", "1 AS b"))


# -- df.write


def written(frame: DataFrame, db: stelae.Database, table: stelae.Table, mode: str = "append", **options: str) -> None:
    from stelae.spark.source.source import StelaeSource

    frame.sparkSession.dataSource.register(StelaeSource)
    said = {"path": db.path, "table": table._info.name} | options
    frame.write.format("stelae").options(**said).mode(mode).save()


def test_writing_by_format(spark: SparkSession, db: stelae.Database, users: stelae.Table) -> None:
    """Partitions as they come, in no order; a job by name; overwriting; what stands twice across partitions."""
    frame = people(spark, 0, 300).repartition(3)
    written(frame, db, users, job="first")
    assert rows(users, columns=["name"]) == [{"id": id_, "name": f"n{id_}"} for id_ in range(300)]
    before = db.now()
    written(people(spark, 0, 1), db, users, mode="overwrite", job="first")
    assert users.count() == 300
    written(people(spark, 150, 160), db, users, mode="overwrite")
    assert users.count() == 10
    assert len(rows(users, at=before)) == 300
    twice = spark.range(150, 152, 1, 1).selectExpr("id", "'a' AS name").union(people(spark, 151, 155))
    with pytest.raises(
        Exception, match=r"1 row of the frame say again what another says, as of 151; nothing was loaded"
    ):
        written(twice, db, users)
    assert users.get(150) == {"id": 150, "name": "n150", "age": None, "note": None}
    written(twice, db, users, duplicates="last")
    found = users.get(151)
    assert found is not None
    assert found["name"] == "n151"


def test_writing_by_format_refused(spark: SparkSession, db: stelae.Database, users: stelae.Table) -> None:
    with pytest.raises(Exception, match="no column 'nam'; did you mean 'name'"):
        written(spark.range(1).selectExpr("id", "'x' AS nam"), db, users)
    with pytest.raises(Exception, match="no option 'jobb' for writing format stelae; did you mean 'job'"):
        written(people(spark, 0, 1), db, users, jobb="x")
    with pytest.raises(Exception, match="CREATE TABLE and saveAsTable pass no options"):
        people(spark, 0, 1).write.format("stelae").mode("append").save()
    assert users.count() == 0


def test_tables_of_sparks_catalog_are_refused(spark: SparkSession, db: stelae.Database, users: stelae.Table) -> None:
    from stelae.spark.source.source import StelaeSource

    spark.dataSource.register(StelaeSource)
    for mode in ("error", "append", "overwrite"):
        options = {"path": db.path, "table": users._info.name}
        with pytest.raises(Exception, match=f"nothing was written to '{users._info.name}': saveAsTable"):
            people(spark, 0, 10).write.format("stelae").mode(mode).options(**options).saveAsTable(f"of_{mode}")
    assert users.count() == 0
    assert [each.name for each in spark.catalog.listTables() if each.name.startswith("of_")] == []


def test_a_batch_of_a_stream_is_written_by_format(
    spark: SparkSession, db: stelae.Database, users: stelae.Table, tmp_path: Path
) -> None:
    people(spark, 0, 10).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(people(spark, 0, 1).schema).parquet(str(tmp_path / "in"))
    writing = stream.writeStream.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "at"))
    writing.foreachBatch(lambda frame, _: written(frame, db, users)).start().awaitTermination()
    assert users.count() == 10
