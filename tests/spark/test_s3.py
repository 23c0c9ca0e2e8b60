"""Jobs on a store whose fragments lie on S3: each process finds them by their URL and its own environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import stelae
import stelae.spark
from stelae.client.api.database import Database
from stelae.model.errors import InvalidArgument
from stelae.spark.reading.native import native_root
from tests.s3 import names_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def db(tmp_path: Path, s3_url: str) -> Iterator[Database]:
    with stelae.open(tmp_path / "data", store=s3_url) as database:
        yield database


def users(spark: SparkSession, first: int, last: int, name: str) -> Any:
    return spark.range(first, last).selectExpr("id", f"concat('{name}', id) AS name")


def names(frame: Any) -> dict[int, str]:
    return {row["id"]: row["name"] for row in frame.collect()}


def test_load_read_compact_upsert_and_read_again(
    on_s3: SparkSession, db: Database, s3_url: str, s3_endpoint: str, tmp_path: Path
) -> None:
    spark, session = stelae.spark, on_s3
    spark.load(session, db, "users", users(session, 0, 500, "a"), create=True, key=["id"], tablets=2)
    expected = {number: f"a{number}" for number in range(500)}
    first = spark.read(session, db, "users")
    assert names(first) == expected
    db.table("users").erase(3)
    spark.load(session, db, "users", users(session, 400, 600, "b"), job="again")
    assert spark.compact(session, db, "users").files_after == 2
    expected = {n: f"a{n}" for n in range(400) if n != 3} | {n: f"b{n}" for n in range(400, 600)}
    again = spark.read(session, db, "users", where="id >= 390")
    assert names(again) == {number: name for number, name in expected.items() if number >= 390}
    assert names(spark.read(session, db, "users")) == expected == {r["id"]: r["name"] for r in db.table("users").scan()}
    assert names(first)[3] == "a3"  # still the snapshot that it was read at
    by_format = session.read.format("stelae").option("path", db.path).option("table", "users").load()
    assert by_format.count() == len(expected)
    assert any(name.startswith("fragments/") for name in names_in(s3_endpoint, s3_url))
    assert not any((tmp_path / "data").rglob("*.parquet"))


def test_backup_verify_restore_export_and_stats(
    on_s3: SparkSession, db: Database, s3_url: str, s3_endpoint: str, tmp_path: Path
) -> None:
    spark, session = stelae.spark, on_s3
    spark.load(session, db, "users", users(session, 0, 100, "a"), create=True, key=["id"])
    for place in (str(tmp_path / "backups"), f"{s3_url}-backups"):
        made = spark.backup(session, db, "users", place)
        assert (made.directory, made.reused) == (place, 0)
        assert spark.verify(session, db, "users", place).is_same
        name = f"restored_{len(place)}"
        assert spark.restore(session, db, place, "users", name=name).directory == place
        assert spark.verify(session, db, "users", name).is_same
    assert any(name.endswith("manifest.json") for name in names_in(s3_endpoint, f"{s3_url}-backups"))
    assert spark.export(session, db, "users", tmp_path / "out").rows == 100
    assert spark.stats(session, db, "users").rows == 100


def test_what_would_be_in_the_way_of_the_store_is_refused(on_s3: SparkSession, db: Database, s3_url: str) -> None:
    db.create_table("t", key={"id": "int64"}, groups=[stelae.columns("a", {"n": "int64"})])
    for place in (s3_url, f"{s3_url}/backups", s3_url.rpartition("/")[0], f"{db.path}/backups"):
        with pytest.raises(InvalidArgument, match="is a part of the store"):
            stelae.spark.backup(on_s3, db, "t", place)
    with pytest.raises(InvalidArgument, match="is a part of the store"):
        stelae.spark.export(on_s3, db, "t", s3_url.replace("s3://", "s3a://") + "/out")
    with pytest.raises(InvalidArgument, match="nothing is served under gs: here"):
        stelae.spark.backup(on_s3, db, "t", "gs://bucket/backups")


def test_rows_that_are_skipped_lie_beside_the_fragments(
    on_s3: SparkSession, db: Database, s3_url: str, s3_endpoint: str
) -> None:
    db.create_table("t", key={"id": "int64"}, groups=[stelae.columns("a", {"n": "int64"})])
    frame = on_s3.sql("SELECT * FROM VALUES (1L, 1L), (NULL, 2L) AS (id, n)")
    done = stelae.spark.load(on_s3, db, "t", frame, on_bad="skip")
    assert (done.rows, done.skipped) == (1, 1)
    assert done.quarantine is not None
    assert done.quarantine.startswith(f"{s3_url}/quarantine/")
    assert len(names_in(s3_endpoint, done.quarantine)) == 1


def test_few_rows_go_through_the_store(on_s3: SparkSession, db: Database) -> None:
    db.create_table("users", key={"id": "int64"}, groups=[stelae.columns("a", {"name": "string"})])
    stelae.spark.load(on_s3, db, "users", users(on_s3, 0, 10, "a"), via="mutations")
    assert db.table("users").count() == 10


def test_a_stream_is_staged_on_s3(on_s3: SparkSession, db: Database, tmp_path: Path) -> None:
    db.create_table("users", key={"id": "int64"}, groups=[stelae.columns("a", {"name": "string"})])
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    users(on_s3, 0, 20, "a").write.parquet(str(source))
    query = (
        on_s3.readStream.schema("id bigint, name string")
        .parquet(str(source))
        .writeStream.format("stelae")
        .option("path", db.path)
        .option("table", "users")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert db.table("users").count() == 20


class _Classes:
    """A session that has some classes of Java's."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self.sparkContext = SimpleNamespace(_jsc=SimpleNamespace(hadoopConfiguration=lambda: self))

    def getClassByNameOrNull(self, name: str) -> str | None:  # noqa: N802 - Hadoop's name
        return name if name in self._names else None


@pytest.mark.parametrize(
    "url, classes, root",
    [
        ("s3://bucket/a", ["org.apache.hadoop.fs.s3a.S3AFileSystem"], "s3a://bucket/a"),
        ("s3://bucket/a", [], None),
        ("s3://bucket/a*", ["org.apache.hadoop.fs.s3a.S3AFileSystem"], None),
        ("file:///a%20b", [], "file:///a b"),
        ("file:///a%5Bb", [], None),
    ],
)
def test_what_spark_reads_itself(url: str, classes: list[str], root: str | None) -> None:
    session: Any = _Classes(*classes)
    assert native_root(session, url) == root


def test_a_session_without_s3a_leaves_s3_to_the_stores_own_code(spark: SparkSession) -> None:
    assert native_root(spark, "s3://bucket/a") is None
