"""`format("stelae")`, from Python and SQL."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import stelae
from stelae.client.api.database import Database
from stelae.model.errors import InvalidArgument, NotFound, StelaeError
from stelae.model.schema import TableSchema
from stelae.service.jobs import TTL_S_DEFAULT
from stelae.spark.source.reader import ReadOptions, held_parts
from tests.spark.same import assert_same, plain_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "my data"


@pytest.fixture(scope="module")
def db(place: Path) -> Iterator[Database]:
    with stelae.open(place) as opened:
        groups = [stelae.columns("data", {"n": "int64", "s": "string"}), stelae.cells("events", families=["click"])]
        table = opened.create_table("t", key={"id": "string"}, groups=groups, splits=["m"])
        table.put_many([{"id": key, "n": ord(key), "s": key * 2} for key in "abcxyz"])
        table.put({"id": "a", "click:x": b"1"})
        table.erase("c")
        opened.create_table("pairs", key={"a": "string", "b": "date"}, groups=[stelae.columns("data", {"n": "int64"})])
        yield opened


def _reader(spark: SparkSession, place: Path, **options: Any) -> DataFrameReader:
    return spark.read.format("stelae").options(**({"path": str(place), "table": "t"} | options))


@pytest.mark.parametrize(
    "options, asked",
    [
        ({}, {}),
        ({"columns": "n, s", "where": "n > 97"}, {"columns": ["n", "s"], "where": "n > 97"}),
        ({"start": "b", "stop": "y"}, {"start": "b", "stop": "y"}),
        ({"prefix": "a", "columns": '["n"]'}, {"prefix": "a", "columns": ["n"]}),
        ({"history": "2"}, {"history": 2}),
        ({"cells": "long"}, {"cells": "long"}),
        ({"columns": "click:"}, {"columns": ["click:"]}),
        ({"columns": "click:", "rows": "having"}, {"columns": ["click:"], "rows": "having"}),
    ],
    ids=str,
)
def test_options_mean_what_a_scan_means(
    spark: SparkSession, place: Path, db: Database, options: dict[str, str], asked: dict[str, Any]
) -> None:
    assert assert_same(_reader(spark, place, **options).load(), db.table("t"), db.now(), **asked)


def test_sql(spark: SparkSession, place: Path, db: Database) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING stelae OPTIONS (path '{place}', table 't', columns 'n')")
    assert spark.sql("SELECT count(*), max(n) FROM v WHERE id > 'a'").collect()[0][:] == (4, 122)


def test_the_snapshot_is_that_of_the_load(spark: SparkSession, place: Path, db: Database) -> None:
    table = db.table("t")
    frame, at = _reader(spark, place).load(), db.now()
    table.put({"id": "w", "n": 1})
    try:
        assert assert_same(frame, table, at) == 5
        assert frame.alias("l").join(frame.alias("r"), "id").count() == 5
        assert _reader(spark, place, at=at).load().count() == 5
        moment = datetime.now(UTC).isoformat()
        assert _reader(spark, place).load().count() == 6
        assert _reader(spark, place, at=moment).load().count() == 6
    finally:
        table.erase("w")


def test_a_given_schema_says_which_columns_are_read(spark: SparkSession, place: Path, db: Database) -> None:
    frame = _reader(spark, place).schema("s string, id string").load()
    assert frame.columns == ["s", "id"]
    expected = db.table("t").scan(columns=["s"]).to_arrow().select(["s", "id"])
    assert plain_rows(frame.toArrow()) == plain_rows(expected)


def test_mistakes_are_told_in_words_by_spark_too(spark: SparkSession, place: Path, db: Database) -> None:
    with pytest.raises(Exception, match="InvalidArgument: table 't': no column 'm'"):
        _reader(spark, place, where="m > 1").load()


def test_a_wrong_schema_is_told(spark: SparkSession, place: Path, db: Database) -> None:
    with pytest.raises(Exception, match="column 'n' is bigint in Spark, and the frame's schema says string"):
        _reader(spark, place).schema("n string").load().collect()


# -- without Spark


def test_a_place_without_a_store_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no store in"):
        held_parts({"path": str(tmp_path / "none"), "table": "t"})
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"tabel": "t"}, InvalidArgument, "option 'tabel' is not one of format stelae"),
        ({"cluster": "h:1"}, InvalidArgument, "give option 'path' or option 'cluster', not both"),
        ({"table": "nothing"}, NotFound, "nothing"),
        ({"columns": "m"}, InvalidArgument, "table 't': .*'m'"),
        ({"where": "n >"}, InvalidArgument, "table 't'"),
        ({"at": str(1 << 62)}, InvalidArgument, "future"),
    ],
    ids=str,
)
def test_mistakes(place: Path, db: Database, options: Any, error: type[StelaeError], words: str) -> None:
    with pytest.raises(error, match=words):
        held_parts({"path": str(place), "table": "t"} | options)


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"path": "d"}, InvalidArgument, "needs option 'table'"),
        ({"table": "t"}, InvalidArgument, "CREATE TABLE and saveAsTable pass no options"),
        ({"path": "d", "table": "t", "ttl": "1us"}, InvalidArgument, "option ttl is from 1s to 30d"),
        ({"path": "d", "table": "t", "ttl": "soon"}, StelaeError, "soon"),
        ({"path": "d", "table": "t", "history": "two"}, InvalidArgument, "option history is a number"),
        ({"path": "d", "table": "t", "at": "2024-01-01"}, InvalidArgument, "2024-01-01"),
        ({"path": "d", "table": "t", "columns": "[1"}, InvalidArgument, "option columns"),
    ],
    ids=str,
)
def test_options_that_make_no_sense(options: dict[str, str], error: type[StelaeError], words: str) -> None:
    def values() -> object:
        asked = ReadOptions(options)
        return asked.ttl_s, asked.history, asked.at, asked.columns

    with pytest.raises(error, match=words):
        values()


def test_options_as_values() -> None:
    plain = ReadOptions({"path": "d", "table": "t"})
    assert (plain.ttl_s, plain.history, plain.at, plain.columns) == (TTL_S_DEFAULT, None, None, None)
    asked = ReadOptions({"path": "d", "table": "t", "ttl": "2m", "history": "3", "at": "5", "columns": " a, b:c"})
    assert (asked.ttl_s, asked.history, asked.at, asked.columns) == (120, 3, 5, ["a", "b:c"])


@pytest.mark.parametrize(
    "type_, text, value",
    [
        ("string", "5", "5"),
        ("string", "[5]", "[5]"),
        ("int64", "-5", -5),
        ("float64", "1.5", 1.5),
        ("bool", "TRUE", True),
        ("binary", "00ff", b"\x00\xff"),
        ("timestamp", "2024-01-31T10:00:00Z", datetime(2024, 1, 31, 10, tzinfo=UTC)),
    ],
)
def test_bounds_are_read_by_the_keys_type(tmp_path: Path, type_: str, text: str, value: object) -> None:
    with stelae.open(tmp_path / "db") as db:
        table = db.create_table("t", key={"k": type_}, groups=[stelae.columns("d", {"n": "int8"})])
        schema: TableSchema = table._known.view.schema
    options = {"path": "d", "table": "t", "start": text}
    assert ReadOptions(options).bounds(schema) == {"start": value, "stop": None, "prefix": None}
    if type_ != "string":
        with pytest.raises(InvalidArgument, match=f"option stop: 'zz' is no {type_}|zz"):
            ReadOptions({"path": "d", "table": "t", "stop": "zz"}).bounds(schema)


def test_bounds_of_several_columns(db: Database) -> None:
    schema: TableSchema = db.table("pairs")._known.view.schema

    def start(text: str) -> object:
        return ReadOptions({"path": "d", "table": "t", "start": text}).bounds(schema)["start"]

    assert start("x") == "x"
    assert start('["x", "2024-01-31"]') == ("x", datetime(2024, 1, 31, tzinfo=UTC).date())
    assert start('["x", "2024-01-31", 3]') == ("x", datetime(2024, 1, 31, tzinfo=UTC).date(), 3)
