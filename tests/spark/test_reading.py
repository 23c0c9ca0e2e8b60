"""`stelae.spark.read`: how it is read, that it stays what it was, and every type there and back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest

import stelae
import stelae.spark
from stelae.client.api.database import Database
from stelae.model.errors import InvalidArgument, NotFound
from stelae.spark.reading import frames as reading
from stelae.spark.reading import native
from stelae.spark.reading.plans import PlanLimits
from stelae.spark.stores import backend_of
from tests.spark.emulation import BY_TASKS, SMALL, hold, remove_files
from tests.spark.same import assert_same, plain_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """In a place whose name means something to Spark, if it is not told otherwise."""
    with stelae.open(tmp_path / "a b%20ü" / "_day=1") as opened:
        yield opened


@pytest.mark.parametrize("name", ["a[b]", "{a,b}"])
def test_a_place_that_looks_like_a_pattern(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Spark would list each of its files twice."""
    with stelae.open(tmp_path / name) as db:
        table = _create(db)
        frame = reading.read(spark, db, "t")
        assert _way(frame) == (False, True)
        assert assert_same(frame, table, db.now()) == 6


def _create(db: Database, *, splits: bool = True, cells: bool = False) -> Any:
    groups: list[Any] = [stelae.columns("data", {"n": "int64", "s": "string"})]
    groups += [stelae.cells("events", families=["click"])] if cells else []
    table = db.create_table("t", key={"id": "string"}, groups=groups, splits=["m"] if splits else None)
    _write(table, "abcxyz", 1)
    return table


def _write(table: Any, keys: str, n: int) -> None:
    table.put_many([{"id": key, "n": n, "s": key} for key in keys])
    table.flush()


def _way(frame: DataFrame) -> tuple[bool, bool]:
    """Whether Spark reads files itself, and whether tasks merge."""
    plan = frame._jdf.queryExecution().executedPlan().toString()
    return "FileScan parquet" in plan, "MapInArrow" in plan


def test_clean_tablets_are_read_by_spark_itself(spark: SparkSession, db: Database) -> None:
    table = _create(db)
    clean = reading.read(spark, db, "t")
    assert _way(clean) == (True, False)
    _write(table, "bc", 2)
    layered = reading.read(spark, db, "t", where="n > 0")
    assert _way(layered) == (True, False)
    assert "row_index" in layered._jdf.queryExecution().executedPlan().toString()
    table.erase("a")
    table.put({"id": "y", "n": 5})
    overlaid = reading.read(spark, db, "t")
    assert _way(overlaid) == (True, False)
    merged = reading.read(spark, db, "t", where="n > 0.5")
    assert _way(merged) == (False, True)
    for frame, count in ((clean, 6), (layered, 6), (overlaid, 5), (merged, 5)):
        assert frame.count() == count
    assert layered.where("n = 2").count() == 2


@pytest.mark.parametrize("is_case_told", [False, True], ids=["case does not count", "case counts"])
def test_names_that_differ_by_case_alone(spark: SparkSession, db: Database, is_case_told: bool) -> None:
    """Files of a dropped or renamed column are not taken for those of one that is called nearly so."""
    table = _create(db)
    again = {"drop": ["n"]}, {"add": {"data": {"N": "int64"}}}
    taken = {"rename_columns": {"s": "text"}}, {"add": {"data": {"S": "string"}}}
    spark.conf.set("spark.sql.caseSensitive", str(is_case_told).lower())
    try:
        for changes in (again, taken):
            for change in changes:
                table = db.alter_table("t", **change)
            table.put_many([{"id": "b", "N": 7}, {"id": "d", "N": 8}])
            names = table.scan().to_arrow().column_names[1:]
            for columns in (None, *([name] for name in names)):
                frame = reading.read(spark, db, "t", columns=columns)
                assert _way(frame)[0]
                assert_same(frame, table, db.now(), columns=columns)
            asked = {"columns": names[:1], "where": f"{names[-1]} is null"}
            assert_same(reading.read(spark, db, "t", **asked), table, db.now(), **asked)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_a_frame_stays_what_it_was(spark: SparkSession, db: Database) -> None:
    table = _create(db)
    table.erase("c")
    frame, txn = reading.read(spark, db, "t"), db.now()
    before = plain_rows(frame.toArrow())
    assert len(before) == 5
    _write(table, "abcdefxyz", 9)
    table.split("b")
    table.compact(erase_now=True)
    db.alter_table("t", rename_columns={"n": "m"})
    assert plain_rows(frame.toArrow()) == before
    assert frame.where("id < 'm'").count() == 2
    assert frame.where("id >= 'm'").count() == 3
    joined = frame.alias("l").join(frame.alias("r"), "id")
    assert joined.where("l.n = r.n").count() == 5
    cached = frame.cache()
    assert cached.union(frame).count() == 10
    cached.unpersist()
    frame.createOrReplaceTempView("kept")
    assert spark.sql("SELECT sum(n) FROM kept").collect()[0][0] == 5
    assert reading.read(spark, db, "t", at=db.now()).where("m = 9").count() == 9
    assert frame.columns == ["id", "n", "s"]
    assert db.now() > txn


def test_columns_choose_columns_and_not_rows(spark: SparkSession, db: Database, tmp_path: Path) -> None:
    """Whatever is chosen where, a count is a count."""
    groups = [stelae.columns("g", {"a": "int64", "b": "int64"}), stelae.columns("h", {"c": "int64"})]
    table = db.create_table("t", key={"id": "string"}, groups=groups)
    table.put_many([{"id": key, "a": 1} for key in "pqr"])
    table.put({"id": "s", "b": 2})
    table.put({"id": "t", "c": 3})
    options = {"path": str(db.path), "table": "t"}
    for column in "abc":
        whole = reading.read(spark, db, "t").select(column)
        chosen = reading.read(spark, db, "t", columns=[column])
        source = spark.read.format("stelae").options(columns=column, **options).load()
        for frame in (whole, chosen, source):
            assert frame.count() == 5
            assert frame.where(f"{column} IS NULL").count() == {"a": 2, "b": 4, "c": 4}[column]
        nulls = reading.read(spark, db, "t", columns=["a"], where=f"{column} is null")
        assert nulls.count() == table.count(f"{column} is null") == {"a": 2, "b": 4, "c": 4}[column]
        having = reading.read(spark, db, "t", columns=[column], rows="having")
        assert having.count() == {"a": 3, "b": 1, "c": 1}[column]
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING stelae OPTIONS (path '{db.path}', table 't', columns 'a')")
    assert [tuple(row) for row in spark.sql("SELECT count(*), count(a) FROM v").collect()] == [(5, 3)]
    for rows, count in (("all", 5), ("having", 3)):
        result = stelae.spark.export(spark, db, "t", tmp_path / rows, format="csv", columns=["a"], rows=rows)
        assert result.rows == count


def test_histories_and_cells(spark: SparkSession, db: Database) -> None:
    table = _create(db, cells=True)
    _write(table, "ab", 2)
    table.put({"id": "a", "click:x": b"1", "click:y": b"2"})
    table.put({"id": "a", "click:x": b"3"})
    table.put({"id": "q"})
    at = db.now()
    for asked in ({"history": 2}, {"history": 1, "columns": ["n"]}, {"cells": "long"}, {"cells": "long", "history": 3}):
        assert assert_same(reading.read(spark, db, "t", **asked), table, at, **asked)
    for rows, count in (("all", 7), ("having", 1)):
        chosen: dict[str, Any] = {"columns": ["click:x"], "rows": rows}
        assert assert_same(reading.read(spark, db, "t", **chosen), table, at, **chosen) == count


_DECLARED = {
    "b": "bool",
    "i1": "int8",
    "i2": "int16",
    "i4": "int32",
    "f4": "float32",
    "f8": "float64",
    "d": "decimal(38, 10)",
    "s": "string",
    "x": "binary",
    "day": "date",
    "t": "timestamp",
    "w": "timestamp_ntz",
    "a": "array<array<int32>>",
    "o": "struct<p: timestamp, q: decimal(5, 2)>",
    "m": "map<string, array<float64>>",
    "v": "vector(float32, 3)",
}
_VALUES: dict[str, list[Any]] = {
    "b": [True, False],
    "i1": [-128, 127],
    "i2": [-(2**15), 2**15 - 1],
    "i4": [-(2**31), 2**31 - 1],
    "f4": [0.1, float("nan")],
    "f8": [-0.0, float("inf")],
    "d": [Decimal("-1.0000000001"), Decimal(10**27)],
    "s": ["", "\x00ü\U0001f600"],
    "x": [b"", b"\x00\xff"],
    "day": [date(1, 1, 1), date(1582, 10, 10)],
    "t": [datetime(1500, 1, 1, 12, tzinfo=UTC), datetime(2024, 3, 31, 1, 30, 0, 1, UTC)],
    "w": [datetime(1, 1, 1), datetime(2024, 3, 31, 2, 30, 0, 1)],  # noqa: DTZ001
    "a": [[[1], [], [None]], []],
    "o": [{"p": datetime(1900, 1, 1, tzinfo=UTC), "q": Decimal("1.50")}, {"p": None, "q": None}],
    "m": [{"k": [1.5, float("nan")]}, {}],
    "v": [[1.0, 2.0, 3.0], [0.0, -0.0, 0.5]],
}


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_every_type_there_and_back(
    spark: SparkSession, db: Database, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        table = db.create_table("t", key={"id": "int64"}, groups=[stelae.columns("data", _DECLARED)])
        rows = [{name: values[at] for name, values in _VALUES.items()} for at in range(2)]
        rows.append(dict.fromkeys(_VALUES))
        table.put_many([{"id": at} | row for at, row in enumerate(rows)])
        frame = reading.read(spark, db, "t")
        assert _way(frame) == (True, False)
        assert assert_same(frame, table, db.now()) == 3
        table.put_many([{"id": 1} | rows[0]])
        table.erase(2)
        overlaid = reading.read(spark, db, "t")
        assert _way(overlaid) == (True, False)
        monkeypatch.setattr(reading, "PlanLimits", lambda parts: BY_TASKS)
        merged = reading.read(spark, db, "t")
        assert _way(merged)[1]
        for each in (overlaid, merged):
            assert assert_same(each, table, db.now()) == 2
            assert each.schema == frame.schema
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_odd_names(spark: SparkSession, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a.b", "c d", "e`f", "größe", "select"]
    table = db.create_table(
        "t", key={"k.1": "string"}, groups=[stelae.columns("data", dict.fromkeys(names, "int32"))], splits=["m"]
    )
    table.put_many([{"k.1": key} | dict.fromkeys(names, 1) for key in "ax"])
    table.flush()
    table.erase("x")
    table.put({"k.1": "a", "größe": 2})
    where = "`a.b` = 1 and `e``f` > 0"
    frame = reading.read(spark, db, "t", where=where)
    assert _way(frame) == (True, False)
    assert assert_same(frame, table, db.now(), where=where) == 1
    monkeypatch.setattr(reading, "PlanLimits", lambda parts: BY_TASKS)
    assert assert_same(reading.read(spark, db, "t", where=where), table, db.now(), where=where) == 1


def test_filters_of_spark_on_floats(spark: SparkSession, db: Database) -> None:
    """Whatever the statistics and dictionaries of files leave out, NaN is above everything, and both zeros are one."""
    groups = [stelae.columns("g", {"x": "float64", "s": "struct<p: float32>", "n": "int64"})]
    table = db.create_table("f", key={"id": "int64"}, groups=groups)
    values = [math.nan, -0.0]
    table.put_many([{"id": id_, "x": values[id_ % 2], "s": {"p": values[id_ % 2]}, "n": 1} for id_ in range(100)])
    table.compact()
    frame = reading.read(spark, db, "f")
    assert _way(frame) == (True, False)
    for condition in ("x > 5", "x = double('NaN')", "x = 0", "NOT (x <= 2)", "s.p > 5", "s.p = 0"):
        assert frame.where(condition).count() == 50, condition
    plain = {stelae.col("x") > 5: 0, stelae.col("x") == 0: 50}
    for where, count in plain.items():
        assert reading.read(spark, db, "f", where=where).count() == count


def test_many_files_of_one_size_are_few_reads(spark: SparkSession, db: Database) -> None:
    """Told by their names then; and by a session that would rather use other readers."""
    splits = list(range(10, 400, 10))
    table = db.create_table("m", {"id": "int64"}, [stelae.columns("g", {"n": "int64"})], splits=splits)
    for step in (1, 5):
        table.put_many([{"id": id_, "n": step} for id_ in range(0, 400, step)])
        table.flush()
    spark.conf.set("spark.sql.sources.useV1SourceList", "")
    try:
        frame = reading.read(spark, db, "m")
        plan = frame._jdf.queryExecution().executedPlan().toString()
        assert plan.count("FileScan parquet") <= 4
        assert assert_same(frame, table, db.now()) == 400
        assert spark.conf.get("spark.sql.sources.useV1SourceList") == ""
    finally:
        spark.conf.unset("spark.sql.sources.useV1SourceList")


@pytest.mark.parametrize("is_changed", [False, True], ids=["clean", "with hidden rows"])
def test_a_missing_file_is_an_error_whatever_the_session_says(
    spark: SparkSession, db: Database, is_changed: bool
) -> None:
    table = _create(db)
    if is_changed:
        _write(table, "bc", 2)
    frame = reading.read(spark, db, "t")
    assert ("row_index" in frame._jdf.queryExecution().executedPlan().toString()) == is_changed
    held = hold(db)
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        remove_files(held)
        with pytest.raises(Exception, match=r"FILE_NOT_EXIST"):
            frame.collect()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")


def test_a_snapshot_that_was_let_go_is_told_in_words(spark: SparkSession, db: Database) -> None:
    _create(db, splits=False)
    frame = reading.read(spark, db, "t", history=2)
    assert _way(frame) == (False, True)
    held = hold(db)
    remove_files(held)
    with pytest.raises(Exception, match=r"SnapshotTooOld: table 't': the snapshot of .* has been let go"):
        frame.collect()


def test_a_spark_that_tells_no_places_is_an_error(
    spark: SparkSession, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never fewer rows, nor those that are hidden."""
    table = _create(db)
    _write(table, "bc", 2)
    monkeypatch.setattr(native, "_PLACE", "_a_column_that_nothing_fills")
    with pytest.raises(Exception, match="does not tell the places of rows"):
        reading.read(spark, db, "t").collect()


def test_no_plan_shows_which_rows_are_hidden(spark: SparkSession, db: Database) -> None:
    table = _create(db)
    _write(table, "bc", 2)
    few = reading.read(spark, db, "t")
    table.put_many([{"id": f"n{number}", "n": 1, "s": "s"} for number in range(10_000)])
    table.flush()
    table.erase_many([{"id": f"n{number}"} for number in range(0, 10_000, 100)])
    many = reading.read(spark, db, "t")
    assert many.count() == 9_906
    shown = [frame._jdf.queryExecution().explainString(_extended(spark)) for frame in (few, many)]
    assert "row_index" in shown[0]
    assert len(shown[1]) < 2 * len(shown[0])


def _extended(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.execution.ExplainMode.fromString("extended")


class _Recorder:
    """A backend that remembers which tickets it gave out."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.open: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def hold(self, *args: Any) -> Any:
        held = self._backend.hold(*args)
        self.open.add(held.ticket)
        return held

    def release(self, ticket: str) -> None:
        self._backend.release(ticket)
        self.open.remove(ticket)


@pytest.mark.parametrize(
    "asked, error, words",
    [
        ({"columns": ["m"]}, InvalidArgument, "table 't': .*'m'"),
        ({"where": "m = 1"}, InvalidArgument, "table 't': no column 'm'"),
        ({"where": "n ="}, InvalidArgument, "n ="),
        ({"history": 0}, InvalidArgument, "history="),
        ({"history": 2, "where": "history = 3"}, InvalidArgument, "history"),
        ({"cells": "short"}, InvalidArgument, "cells= is 'map' or 'long'"),
        ({"start": 5}, InvalidArgument, "start="),
        ({"at": "yesterday"}, InvalidArgument, "at= is a txn"),
        ({"at": 1 << 62}, InvalidArgument, "future"),
    ],
    ids=str,
)
def test_mistakes_leave_nothing_held(
    spark: SparkSession,
    db: Database,
    monkeypatch: pytest.MonkeyPatch,
    asked: dict[str, Any],
    error: type[Exception],
    words: str,
) -> None:
    _create(db)
    recorder = _Recorder(backend_of(db))
    monkeypatch.setattr(reading, "backend_of", lambda db: recorder)
    with pytest.raises(error, match=words):
        reading.read(spark, db, "t", **asked)
    assert not recorder.open


def test_mistakes_of_names(spark: SparkSession, db: Database) -> None:
    _create(db)
    with pytest.raises(NotFound, match="did you mean 't'"):
        reading.read(spark, db, "tt")
    with pytest.raises(InvalidArgument, match="not a database"):
        reading.read(spark, "db", "t")  # type: ignore[arg-type]


def test_a_table_without_rows(spark: SparkSession, db: Database) -> None:
    db.create_table("t", key={"id": "string"}, groups=[stelae.columns("data", {"n": "int64"})])
    frame = reading.read(spark, db, "t")
    assert frame.columns == ["id", "n"]
    assert frame.count() == 0


def test_small_stretches_and_many_ranges(spark: SparkSession, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PlanLimits", lambda parts: SMALL)
    table = _create(db)
    asked: dict[str, Any] = {"where": "row in ('a', 'c', 'y') and n >= 1", "columns": ["n"]}
    frame = reading.read(spark, db, "t", **asked)
    assert _way(frame) == (True, False)
    assert assert_same(frame, table, db.now(), **asked) == 3


@pytest.mark.parametrize("limits", [PlanLimits(), BY_TASKS], ids=["overlaid", "by tasks"])
def test_joins_are_planned_by_the_size_of_the_table(
    spark: SparkSession, db: Database, monkeypatch: pytest.MonkeyPatch, limits: PlanLimits
) -> None:
    """A small table is sent to all tasks of a join, as a small file of Parquet is, however it is read."""
    monkeypatch.setattr(reading, "PlanLimits", lambda parts: limits)
    table = _create(db)
    table.erase("a")
    table.put({"id": "y", "n": 5})
    frame = reading.read(spark, db, "t")
    assert 0 < frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes() < 1 << 20
    others = spark.range(100).selectExpr("cast(id AS STRING) AS id", "id AS other")
    plan = others.join(frame, "id")._jdf.queryExecution().executedPlan().toString()
    assert "BroadcastHashJoin" in plan
    assert "SortMergeJoin" not in plan


def test_only_the_columns_that_are_wanted_are_read(spark: SparkSession, db: Database) -> None:
    table = _create(db)
    table.put({"id": "y", "n": 5})
    plan = reading.read(spark, db, "t").where("n > 4").select("id")._jdf.queryExecution().executedPlan().toString()
    assert "`s`" not in plan
    assert "s:string" not in plan
    assert "GreaterThan(n,4)" in plan


def test_some_columns_are_taken_for_as_large_as_parquet_s(spark: SparkSession, db: Database, tmp_path: Path) -> None:
    """Spark guesses by all columns of a frame how large some are. One of the files' own that nobody asked for would
    make them look smaller, and joins would send to all tasks what is too large for that."""
    group = stelae.columns("data", {"n": "int64", "s": "string"})
    table = db.create_table("t", key={"id": "int64", "part": "string"}, groups=[group])
    table.put_many([{"id": number, "part": "p", "n": number, "s": "s"} for number in range(100)])
    frame = reading.read(spark, db, "t")
    frame.write.parquet(str(tmp_path / "parquet"))
    parquet = spark.read.parquet(str(tmp_path / "parquet"))
    shares = [_size(each.select("n")) / _size(each) for each in (frame, parquet)]
    assert shares[0] == pytest.approx(shares[1], rel=0.01)
    files = [Path(url.removeprefix("file://")).stat().st_size for url in map(unquote, frame.inputFiles())]
    assert _size(frame) == sum(files)


def _size(frame: DataFrame) -> int:
    """In bytes, as Spark's planner guesses it."""
    return int(str(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
