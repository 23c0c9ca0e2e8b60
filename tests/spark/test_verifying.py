"""Verify on Spark: what differs is found, counted and shown; what does not, does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stelae
from stelae.spark.jobs.backups import backup
from stelae.spark.jobs.verifying import verify
from tests.spark.tickets import Tickets, interrupting


@pytest.fixture
def db(tmp_path: Path) -> Iterator[stelae.Database]:
    with stelae.open(tmp_path / "data") as opened:
        yield opened


def made(db: stelae.Database, name: str, *, age: str = "int32", **options: Any) -> stelae.Table:
    groups = [stelae.columns("p", {"name": "string", "age": age}), stelae.cells("e", families=["click"])]
    table = db.create_table(name, key={"id": "int64"}, groups=groups, **options)
    table.put_many([{"id": i, "name": f"u{i}", "age": i, "click:a": b"1"} for i in range(100)])
    return table


def test_two_tables(spark: Any, db: stelae.Database) -> None:
    made(db, "one", splits=[30])
    two = made(db, "two", splits=[10, 60])
    tickets, told = Tickets(db), list[tuple[int, int]]()
    same = verify(spark, db, "one", "two", progress=lambda *each: told.append(each))
    assert same.is_same
    assert str(same).startswith("the same\n")
    assert (same.rows_here, same.rows_there) == (100, 100)
    assert told[-1][0] == told[-1][1] > 0
    then = db.now()
    two.erase(5)
    two.put({"id": 200, "age": 1})
    two.put({"id": 40, "name": "other", "click:b": b"2"})
    two.put({"id": 41, "name": None})
    result = verify(spark, db, "one", "two", samples=3)
    assert not result.is_same
    assert (result.only_here, result.only_there, result.different) == (1, 1, 2)
    assert dict(result.by_column) == {"name": 2, "click": 1}
    assert [sample.key["id"] for sample in result.samples] == [5, 40, 41]
    assert result.samples[1].here == {"name": "u40", "click": [("a", b"1")]}
    assert "different   2 (name: 2, click: 1)" in str(result)
    assert "such as     id=41: name 'u41' here, None there" in str(result)
    assert verify(spark, db, "one", "two", other_at=then).is_same
    assert verify(spark, db, "two", "two", at=then).different == 2
    ages = verify(spark, db, "one", "two", columns=["age"])
    assert (ages.only_here, ages.only_there, ages.different) == (1, 1, 0)
    keys = verify(spark, db, "one", "two", columns=["id"], samples=0)
    assert (keys.only_here, keys.only_there, keys.different, keys.samples) == (1, 1, 0, ())
    assert tickets.out == set()
    assert db.check().problems == ()


def test_columns_that_are_not_the_same(spark: Any, db: stelae.Database) -> None:
    made(db, "one")
    made(db, "wide", age="int64")
    assert verify(spark, db, "one", "wide").is_same
    db.alter_table("wide", add={"p": {"email": "string"}}, rename_columns={"name": "full_name"})
    result = verify(spark, db, "one", "wide")
    assert (result.columns_only_here, result.columns_only_there) == (("name",), ("full_name", "email"))
    assert not result.is_same
    assert "columns only there  full_name, email" in str(result)
    assert verify(spark, db, "one", "wide", columns=["age", "click:"]).is_same
    groups = [stelae.columns("p", {"age": "string"})]
    db.create_table("text", key={"id": "int64"}, groups=groups)
    with pytest.raises(stelae.InvalidArgument, match="column 'age' is int32 here and string there"):
        verify(spark, db, "one", "text")
    db.create_table("keyed", key={"id": "string"}, groups=groups)
    with pytest.raises(stelae.InvalidArgument, match="the keys are not the same: id int64 here, id string there"):
        verify(spark, db, "one", "keyed")
    db.create_table("hashed", key={"id": "int64"}, groups=groups, partition="hash", tablets=2)
    with pytest.raises(stelae.InvalidArgument, match="one is partitioned by hash"):
        verify(spark, db, "one", "hashed", columns=["id"])


def test_a_table_and_its_backup(spark: Any, db: stelae.Database, tmp_path: Path) -> None:
    one = made(db, "one", splits=[30])
    first = backup(spark, db, "one", tmp_path / "b")
    one.put({"id": 1, "name": "later"})
    assert verify(spark, db, "one", tmp_path / "b").is_same
    assert verify(spark, db, "one", str(tmp_path / "b"), at=first.txn).is_same
    now = verify(spark, db, "one", tmp_path / "b", at=db.now(), other_at=first.txn)
    assert [str(sample) for sample in now.samples] == ["id=1: name 'later' here, 'u1' there"]
    db.alter_table("one", rename_columns={"name": "full_name"})
    renamed = verify(spark, db, "one", tmp_path / "b", at=db.now(), other_at=first.txn)
    assert dict(renamed.by_column) == {"full_name": 1}
    made(db, "two")
    assert verify(spark, db, "two", tmp_path / "b", backup_of="one").is_same
    assert verify(spark, db, "two", tmp_path / "b", other_at=first.txn).is_same
    with pytest.raises(stelae.NotFound, match="no backup of one covers txn"):
        verify(spark, db, "two", tmp_path / "b", other_at=first.txn + 1)


def test_wrong_words_and_interrupts(spark: Any, db: stelae.Database, tmp_path: Path) -> None:
    made(db, "one", splits=[30])
    tickets = Tickets(db)
    for other in ("ones", str(tmp_path)):
        with pytest.raises(stelae.NotFound, match=f"there is no directory '{other}' with backups"):
            verify(spark, db, "one", other)
    with pytest.raises(stelae.NotFound, match="there is no backup in"):
        verify(spark, db, "one", tmp_path)
    with pytest.raises(stelae.InvalidArgument, match="no column 'nam'; did you mean 'name'"):
        verify(spark, db, "one", "one", columns=["nam"])
    with pytest.raises(stelae.InvalidArgument, match="samples= is a number of rows"):
        verify(spark, db, "one", "one", samples=-1)
    with pytest.raises(KeyboardInterrupt):
        verify(spark, db, "one", "one", progress=interrupting(1))
    assert tickets.out == set()
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()
