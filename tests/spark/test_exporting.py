"""Export: plain files that hold what a scan of the snapshot shows."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import stelae
from stelae.spark.jobs.exporting import export
from tests.spark.same import plain_rows
from tests.spark.tickets import Tickets

MOMENT = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[stelae.Database]:
    with stelae.open(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def users(db: stelae.Database) -> stelae.Table:
    own = {"name": "string", "paid": "decimal(6, 2)", "seen": "timestamp", "tags": "array<string>", "photo": "binary"}
    groups = [stelae.columns("p", own), stelae.cells("e", families=["click"])]
    users = db.create_table("users", key={"id": "int64"}, groups=groups, splits=[3])
    users.put({"id": 1, "name": 'An"n,\n', "paid": Decimal("1.20"), "seen": MOMENT, "tags": ["a", "b"], "photo": b"\0"})
    users.put({"id": 2, "name": "", "click:home": b"\xff", "click:x": b"1"})
    users.flush()
    users.put({"id": 4, "name": None})
    return users


def test_parquet(spark: Any, db: stelae.Database, users: stelae.Table, tmp_path: Path) -> None:
    tickets, told = Tickets(db), list[tuple[int, int]]()
    then = db.now()
    users.erase(1)
    result = export(spark, db, "users", tmp_path / "out", at=then, progress=lambda *each: told.append(each))
    assert (result.rows, result.txn, result.format) == (3, then, "parquet")
    assert result.files > 0
    assert result.size_bytes > 0
    assert plain_rows(pq.read_table(tmp_path / "out")) == plain_rows(users.scan(at=then).to_arrow())
    assert told[-1][0] == told[-1][1] > 0
    assert tickets.out == set()
    assert str(result).startswith(f"exported table users to {tmp_path}/out\n")
    few = export(spark, db, "users", tmp_path / "few", columns=["name"], where="id > 1")
    assert few.rows == 2
    assert sorted(pq.read_table(tmp_path / "few").to_pylist(), key=lambda row: row["id"]) == [
        {"id": 2, "name": ""},
        {"id": 4, "name": None},
    ]


def test_a_store_in_a_place_that_looks_like_a_pattern(spark: Any, tmp_path: Path) -> None:
    """Spark would list each of its files twice."""
    with stelae.open(tmp_path / "a[b]") as db:
        table = db.create_table("t", key={"id": "int64"}, groups=[stelae.columns("g", {"n": "int64"})])
        table.put_many([{"id": 1, "n": 1}, {"id": 2, "n": 2}])
        table.flush()
        assert export(spark, db, "t", tmp_path / "out").rows == 2


def test_moments_without_a_zone_keep_their_microseconds(spark: Any, db: stelae.Database, tmp_path: Path) -> None:
    table = db.create_table("m", key={"id": "int64"}, groups=[stelae.columns("g", {"t": "timestamp_ntz"})])
    table.put({"id": 1, "t": MOMENT.replace(tzinfo=None, microsecond=1)})
    for form in ("csv", "json"):
        export(spark, db, "m", tmp_path / form, format=form)
        (file,) = (tmp_path / form).glob("part-*")
        assert "2026-01-31T12:00:00.000001" in file.read_text()


def test_csv(spark: Any, db: stelae.Database, users: stelae.Table, tmp_path: Path) -> None:
    export(spark, db, "users", tmp_path / "out", format="csv")
    rows: dict[str, dict[str, str]] = {}
    texts = []
    for file in (tmp_path / "out").glob("part-*.csv"):
        texts.append(file.read_text("utf-8"))
        with file.open(encoding="utf-8", newline="") as lines:
            rows |= {row["id"]: row for row in csv.DictReader(lines)}
    one, two = rows["1"], rows["2"]
    assert (one["name"], one["paid"], one["seen"]) == ('An"n,\n', "1.20", "2026-01-31T12:00:00.250000Z")
    assert (json.loads(one["tags"]), json.loads(one["photo"])) == (["a", "b"], {"$binary": "AA=="})
    assert json.loads(two["click"]) == {"home": {"$binary": "/w=="}, "x": {"$binary": "MQ=="}}
    assert any('2,""' in text for text in texts)
    assert any("4,,," in text for text in texts)


def test_json(spark: Any, db: stelae.Database, users: stelae.Table, tmp_path: Path) -> None:
    export(spark, db, "users", tmp_path / "out", format="json", columns=["name", "seen", "click:"])
    lines = [line for file in (tmp_path / "out").glob("part-*.json") for line in file.read_text("utf-8").splitlines()]
    rows = {row["id"]: row for row in map(json.loads, lines)}
    assert rows[1]["seen"] == "2026-01-31T12:00:00.250000Z"
    assert rows[2] == {
        "id": 2,
        "name": "",
        "seen": None,
        "click": {"home": {"$binary": "/w=="}, "x": {"$binary": "MQ=="}},
    }
    assert rows[4]["name"] is None


def test_modes_and_wrong_words(spark: Any, db: stelae.Database, users: stelae.Table, tmp_path: Path) -> None:
    tickets = Tickets(db)
    out = tmp_path / "out"
    export(spark, db, "users", out)
    with pytest.raises(stelae.AlreadyExists, match="is there already: say mode='overwrite' or mode='append'"):
        export(spark, db, "users", out)
    export(spark, db, "users", out, mode="append")
    assert pq.read_table(out).num_rows == 6
    export(spark, db, "users", out, mode="overwrite", where="id = 1")
    assert pq.read_table(out).num_rows == 1
    for options, message in (
        ({"format": "parket"}, "format= is one of parquet, csv, json, not 'parket'; did you mean 'parquet'"),
        ({"mode": "ignore"}, "mode= is one of error, overwrite, append, not 'ignore'"),
        ({"columns": ["nam"]}, "no column 'nam'; did you mean 'name'"),
        ({"where": "id >"}, "position"),
    ):
        with pytest.raises(stelae.InvalidArgument, match=message):
            export(spark, db, "users", tmp_path / "x", **options)
    for place in (tmp_path, tmp_path / "data", tmp_path / "data" / "fragments"):
        with pytest.raises(stelae.InvalidArgument, match="is a part of the store"):
            export(spark, db, "users", place, mode="overwrite")
    assert tickets.out == set()
    assert db.check().problems == ()


def test_an_interrupt(spark: Any, db: stelae.Database, users: stelae.Table, tmp_path: Path) -> None:
    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    tickets = Tickets(db)
    with pytest.raises(KeyboardInterrupt):
        export(spark, db, "users", tmp_path / "out", progress=interrupt)
    assert tickets.out == set()
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()
