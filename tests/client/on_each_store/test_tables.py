"""Making, describing, altering and dropping tables, and what old handles see of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import stelae
from tests.client.places import Place

ARROW = pa.schema([pa.field("id", pa.string()), pa.field("n", pa.int32(), nullable=False), pa.field("d", pa.date32())])


def test_a_table_is_described(db: stelae.Database, users: stelae.Table) -> None:
    assert db.tables() == ["users"]
    found = db.describe("users")
    assert found["key"] == {"id": "string"}
    assert found["groups"]["profile"]["columns"]["age"] == "int32 not null default 0"
    assert found["groups"]["profile"]["purge"] == "max-history=5"
    assert found["groups"]["events"]["families"] == ["click", "view"]
    assert (found["tablets"], found["partition"], found["zone"], found["retention"]) == (3, "range", "default", "15m")
    for text in (repr(found), found._repr_html_(), repr(users), users._repr_html_()):
        for part in ("users", "id", "string", "age", "click:", "3 tablets"):
            assert part in text
    assert "1 table" in repr(db)
    assert "users" in db._repr_html_()
    assert dict(found) == found


def test_names_with_a_namespace_and_html(db: stelae.Database) -> None:
    db.create_table("a<b", {"id": "string"}, [stelae.cells("c")])
    assert "a&lt;b" in db._repr_html_()
    with pytest.raises(stelae.NotFound, match="nowhere"):
        db.table("nowhere.t")
    db.create_table("nowhere.t", {"id": "string"}, [stelae.cells("c")])
    assert db.table("nowhere.t").name == "nowhere.t"


@pytest.mark.parametrize(
    "like",
    [
        ARROW,
        pa.table({"id": ["a"], "n": pa.array([1], pa.int32()), "d": pa.array([1], pa.date32())}),
        pa.table({"id": ["a"], "n": pa.array([1], pa.int32()), "d": pa.array([1], pa.date32())}).to_batches()[0],
        pl.DataFrame({"id": ["a"], "n": [1], "d": [None]}, schema={"id": pl.String, "n": pl.Int32, "d": pl.Date}),
        pd.DataFrame(
            {"id": ["a"], "n": pd.array([1], dtype="Int32"), "d": pd.Series([pd.Timestamp(0).date()], dtype=object)}
        ),
        pd.DataFrame(
            {"n": pd.array([1], dtype="int32"), "d": [pd.Timestamp(0).date()]}, index=pd.Index(["a"], name="id")
        ),
    ],
    ids=["schema", "table", "batch", "polars", "pandas", "pandas index"],
)
@pytest.mark.parametrize("key", [["id"], "id", {"id": "string"}], ids=str)
def test_a_table_like_something(db: stelae.Database, like: Any, key: Any) -> None:
    table = db.create_table("t", key, like=like)
    found = db.describe("t")
    assert found["key"] == {"id": "string"}
    not_null = " not null" if like is ARROW else ""
    assert found["groups"].keys() == {"data"}
    assert found["groups"]["data"]["columns"] == {"n": f"int32{not_null}", "d": "date"}
    if not isinstance(like, pa.Schema):
        table.put_many(like)
        assert table.get("a", ["n"]) == {"id": "a", "n": 1}


@pytest.mark.parametrize(
    "arguments, word",
    [
        ({"key": ["id"], "like": 7}, "like="),
        ({"key": ["nope"], "like": ARROW}, "nope"),
        ({"like": ARROW}, "key="),
        ({"key": {"id": "string"}}, "groups"),
        ({"key": {"id": "string"}, "groups": [], "like": ARROW}, "both"),
        ({"key": {"id": "string"}, "groups": []}, "groups"),
        ({"key": ["id"], "groups": [stelae.cells("c")]}, "dict"),
        ({"key": {"id": "array<int8>"}, "groups": [stelae.cells("c")]}, "id"),
        ({"key": {"id": "string"}, "groups": [stelae.cells("c")], "partition": "round"}, "partition"),
        ({"key": {"id": "string"}, "groups": [stelae.cells("c")], "splits": ["b", "a"]}, "'a'"),
        ({"key": {"id": "string"}, "groups": [stelae.cells("c")], "splits": ["a", "a"]}, "ascend"),
        ({"key": {"id": "string"}, "groups": [stelae.cells("c")], "splits": [""]}, "ascend"),
        ({"key": {"id": "string"}, "groups": [stelae.cells("c")], "splits": [7]}, "7"),
        ({"key": {"id": "string"}, "groups": [stelae.cells("c")], "splits": "abc"}, "list"),
        ({"key": {"id": "string"}, "groups": [stelae.cells("c")], "splits": ["a"], "partition": "hash"}, "tablets"),
        ({"key": {"id": "string"}, "groups": [stelae.cells("c")], "tablets": 3}, "hash"),
        ({"key": {"id": "string"}, "groups": [stelae.cells("c")], "tablets": 0, "partition": "hash"}, "tablets"),
        ({"key": {"id": "string"}, "groups": [stelae.cells("c")], "zone": "moon"}, "moon"),
        ({"key": {"id": "string"}, "groups": [stelae.cells("c")], "retention": "soon"}, "soon"),
        ({"key": {"id": "string"}, "groups": [stelae.cells("c")], "retention": 5}, "retention"),
        ({"key": {"id": "string"}, "groups": [stelae.cells("c")], "comment": 5}, "comment"),
    ],
    ids=str,
)
def test_a_table_that_cannot_be(db: stelae.Database, arguments: dict[str, Any], word: str) -> None:
    with pytest.raises((stelae.InvalidArgument, stelae.InvalidSchema, stelae.NotFound), match=word):
        db.create_table("t", **arguments)
    assert db.tables() == []


def test_tablets_begin_at_splits(db: stelae.Database) -> None:
    groups = [stelae.columns("g", {"v": "int64"})]
    table = db.create_table("t", {"a": "string", "n": "int32"}, groups, splits=[("b",), ("b", 5), "c"], comment="hi")
    codec = table.schema.codec
    assert [tablet.start for tablet in table.tablets()] == [
        b"",
        codec.encode_prefix(("b",)),
        codec.encode(("b", 5)),
        codec.encode_prefix(("c",)),
    ]
    assert db.describe("t")["comment"] == "hi"
    hashed = db.create_table("h", {"a": "string"}, groups, partition="hash", tablets=8, retention="1h")
    assert [tablet.start for tablet in hashed.tablets()] == [b"", *(bytes([32 * at]) + b"\0" * 7 for at in range(1, 8))]
    assert db.describe("h")["retention"] == "1h"


def test_a_table_that_exists(db: stelae.Database, users: stelae.Table) -> None:
    users.put({"id": "ann"})
    with pytest.raises(stelae.AlreadyExists, match="users"):
        db.create_table("users", {"id": "string"}, [stelae.cells("c")])
    assert db.create_table("users", {"id": "string"}, [stelae.cells("c")], if_not_exists=True).exists("ann")


def test_the_nearest_table_is_suggested(db: stelae.Database, users: stelae.Table) -> None:
    for call in (
        db.table,
        db.describe,
        db.drop_table,
        db.truncate_table,
        lambda name: db.alter_table(name, comment="x"),
    ):
        with pytest.raises(stelae.NotFound, match="did you mean 'users'"):
            call("user")
        with pytest.raises(stelae.InvalidArgument):
            call(7)  # type: ignore[arg-type]
    db.drop_table("user", if_exists=True)


def test_dropping_and_recalling(db: stelae.Database, users: stelae.Table) -> None:
    users.put({"id": "ann"})
    db.drop_table("users")
    for call in (lambda: users.get("ann"), lambda: users.put({"id": "bob"}), users.count, users.stats):
        with pytest.raises(stelae.NotFound):
            call()
    assert "users" in repr(users)
    back = db.recall_table("users", "people")
    assert back.name == "people"
    assert back.exists("ann")
    assert users.exists("ann")


def test_truncating(db: stelae.Database, users: stelae.Table) -> None:
    before = users.put({"id": "ann"})
    txn = db.truncate_table("users")
    assert txn > before
    assert users.count() == 0
    assert users.exists("ann", at=before)
    users.put({"id": "bob"})
    assert [row["id"] for row in users.scan()] == ["bob"]


def test_an_old_handle_sees_each_alteration(db: stelae.Database, users: stelae.Table) -> None:
    users.put({"id": "ann", "name": "Ann", "age": 1, "click:a": b"1"})
    users.get("ann", ["name"])
    users.get("ann", ["click:"])
    db.alter_table("users", add={"profile": {"email": "string default 'none'"}})
    assert users.get("ann", ["email", "age"]) == {"id": "ann", "email": "none", "age": 1}
    assert list(users.get("ann") or ()) == ["id", "name", "age", "score", "tags", "email", "click:a"]
    users.put({"id": "ann", "email": "a@x"})
    db.alter_table("users", rename_columns={"name": "full_name"}, rename_families={"click": "visit"})
    assert users.get("ann", ["full_name"]) == {"id": "ann", "full_name": "Ann"}
    assert users.get("ann", ["visit:"]) == {"id": "ann", "visit:a": b"1"}
    for gone in ("name", "click:", "click:a"):
        with pytest.raises(stelae.InvalidArgument):
            users.get("ann", [gone])
        with pytest.raises(stelae.InvalidArgument):
            users.get_many(["ann"], [gone])
    users.put({"id": "ann", "full_name": "Anna", "visit:b": b"2"})
    with pytest.raises(stelae.InvalidArgument, match="'name'"):
        users.put({"id": "ann", "name": "x"})
    db.alter_table("users", drop=["score"], drop_families=["view"], widen={"age": "int64"})
    assert users.get("ann") == {
        "id": "ann",
        "full_name": "Anna",
        "age": 1,
        "tags": None,
        "email": "a@x",
        "visit:a": b"1",
        "visit:b": b"2",
    }
    users.put({"id": "ann", "age": 2**40})
    assert users.increment("ann", {"age": 1}) == {"age": 2**40 + 1}
    db.alter_table("users", drop=["full_name"], add={"profile": {"other": "int8"}})
    db.alter_table("users", add={"profile": {"full_name": "int32"}})
    assert users.get_many(["ann"], ["full_name", "other"]) == [{"id": "ann", "full_name": None, "other": None}]
    assert users.get_many(["ann"], ["full_name", "other"], rows="having") == [None]
    assert users.get("ann", ["full_name", "email"]) == {"id": "ann", "full_name": None, "email": "a@x"}
    users.put_many([{"id": "ann", "full_name": 7}])
    db.alter_table("users", rename="people", comment="all of them", retention="1h", purge={"profile": None})
    assert users.name == "people"
    assert db.table("people").get("ann") == users.get("ann")
    found = db.describe("people")
    assert (found["comment"], found["retention"], found["groups"]["profile"]["purge"]) == ("all of them", "1h", "none")
    assert users.schema.version == found["schema_version"]


@pytest.mark.parametrize("column", ["name", "click:", "click:a"])
def test_an_old_handle_does_not_take_a_changed_name_for_nothing(
    db: stelae.Database, users: stelae.Table, column: str
) -> None:
    users.put({"id": "ann", "name": "Ann", "click:a": b"1"})
    handles = [db.table("users") for _ in range(3)]
    for handle in handles:
        assert handle.get("ann", [column, "age"]) is not None
        assert handle.get("ann", [column]) is not None
    db.alter_table("users", rename_columns={"name": "full_name"}, rename_families={"click": "visit"})
    with pytest.raises(stelae.InvalidArgument):
        handles[0].get("ann", [column])
    with pytest.raises(stelae.InvalidArgument):
        handles[1].get("ann", [column, "age"])
    with pytest.raises(stelae.InvalidArgument):
        handles[2].get_many(["ann"], [column])


def test_writes_of_an_old_handle_are_made_anew(db: stelae.Database, users: stelae.Table) -> None:
    writes: tuple[Callable[[], Any], ...] = (
        lambda: users.put({"id": "ann", "age": 1}),
        lambda: users.put_many(iter([{"id": "ann", "age": 1}, {"id": "once"}])),
        lambda: users.put({"id": "new"}, if_absent=True),
        lambda: users.erase("new"),
        lambda: users.erase_many(iter(["ann"])),
        lambda: users.update("ann", lambda row: {"age": 5}),
        lambda: users.increment("ann", {"age": 1}),
    )
    for number, write in enumerate(writes):
        db.alter_table("users", add={"profile": {f"c{number}": "int8"}})
        write()
    assert users.get("ann", ["age"]) == {"id": "ann", "age": 6}
    assert users.exists("once")


@pytest.mark.parametrize(
    "changes, word",
    [
        ({}, "nothing"),
        ({"drop": "name"}, "list"),
        ({"drop": [7]}, "7"),
        ({"drop": ["nme"]}, "nme"),
        ({"add": {"profile": {"x": "int99"}}}, "int99"),
        ({"add": {"profile": {"x": 5}}}, "'x'"),
        ({"add": {"nowhere": {"x": "int8"}}}, "nowhere"),
        ({"add": ["x"]}, "add="),
        ({"widen": {"age": "int8"}}, "age"),
        ({"rename_columns": {"name": "age"}}, "age"),
        ({"purge": {"profile": "never"}}, "never"),
        ({"rename": 5}, "rename"),
        ({"retention": 5}, "retention"),
        ({"zone": "moon"}, "moon"),
    ],
    ids=str,
)
def test_alterations_that_cannot_be(
    db: stelae.Database, users: stelae.Table, changes: dict[str, Any], word: str
) -> None:
    before = dict(db.describe("users"))
    with pytest.raises((stelae.InvalidArgument, stelae.InvalidSchema, stelae.NotFound), match=word):
        db.alter_table("users", **changes)
    assert dict(db.describe("users")) == before


def test_all_changes_of_a_call_happen_or_none(db: stelae.Database, users: stelae.Table) -> None:
    with pytest.raises(stelae.InvalidSchema):
        db.alter_table("users", drop=["score"], widen={"age": "int8"})
    assert "score" in db.describe("users")["groups"]["profile"]["columns"]


def test_upkeep(db: stelae.Database, users: stelae.Table) -> None:
    users.put_many([{"id": f"{letter}{number}", "name": "x"} for letter in "ahq" for number in range(100)])
    users.flush()
    assert users.stats().files > 0
    users.split("m")
    assert len(users.tablets()) == 4
    assert db.describe("users")["tablets"] == 4
    done: list[tuple[int, int]] = []
    users.compact(progress=lambda some, whole: done.append((some, whole)))
    assert users.count() == 300
    users.erase_range("a", "b")
    users.compact(erase_now=True)
    assert users.count() == 200
    assert db.metrics()["tables"] == 1
    with pytest.raises(stelae.InvalidArgument):
        users.split(7)


def test_what_was_split_is_joined(db: stelae.Database, users: stelae.Table) -> None:
    """By the key, or as a tablet; `users` begins tablets at g and p."""
    users.put_many([{"id": letter, "name": "x"} for letter in "ahmq"])
    users.split("m")
    users.split("n")
    users.join("m")
    assert [each.start for each in users.tablets()] == [b"", b"g", b"n", b"p"]
    users.join(users.tablets()[2])
    assert [each.start for each in users.tablets()] == [b"", b"g", b"p"]
    assert users.count() == 4
    with pytest.raises(stelae.InvalidArgument, match="no tablet begins at"):
        users.join("m")
    with pytest.raises(stelae.InvalidArgument, match="before the first"):
        users.join(users.tablets()[0])
    with pytest.raises(stelae.InvalidArgument):
        users.join(7)
    pairs = db.create_table("pairs", {"a": "string", "b": "int64"}, [stelae.columns("g", {"n": "int64"})], splits=["m"])
    with pytest.raises(stelae.InvalidArgument, match="of another table"):
        pairs.join(users.tablets()[1])
    hashed = db.create_table("hashed", {"k": "int64"}, [stelae.columns("g", {"n": "int64"})], partition="hash")
    with pytest.raises(stelae.InvalidArgument, match="of a hashed table"):
        hashed.join(7)


def test_everything_is_closed_with_the_database(place: Place) -> None:
    database = place.open()
    table = database.create_table("t", {"id": "string"}, [stelae.cells("c")])
    table.put({"id": "ann"})
    scan, snapshot, batch = table.scan(), database.snapshot(), table.batch()
    batch.put({"id": "b"})
    rows = iter(table.scan())
    next(rows)
    database.close()
    database.close()
    assert database.closed
    assert "closed" in repr(database)
    assert "t" in repr(table)
    calls = (
        lambda: table.get("ann"),
        lambda: table.put({"id": "b"}),
        lambda: table.put_many([{"id": "b"}]),
        table.scan,
        lambda: list(scan),
        batch.flush,
        lambda: database.table("t"),
        database.tables,
        database.now,
        database.snapshot,
        table.stats,
    )
    for call in calls:
        with pytest.raises(stelae.Closed):
            call()
    with pytest.warns(RuntimeWarning, match="was forgotten with 1 change"):
        del calls, call, batch
    snapshot.close()
    with place.open() as again:
        assert again.table("t").exists("ann")
        assert again.path == database.path


def test_opening_for_reading_only(tmp_path: Path) -> None:
    with stelae.open(tmp_path / "s") as database:
        database.create_table("t", {"id": "string"}, [stelae.cells("c")]).put({"id": "ann"})
    with stelae.open(tmp_path / "s", read_only=True) as database:
        table = database.table("t")
        assert table.exists("ann")
        for call in (lambda: table.put({"id": "bob"}), lambda: database.drop_table("t"), lambda: table.erase("ann")):
            with pytest.raises(stelae.PermissionDenied):
                call()
        assert table.count() == 1


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(stelae.InvalidArgument, match="file"):
        stelae.open(tmp_path / "file")
    for timeout_s in (-1, "x", True):
        with pytest.raises(stelae.InvalidArgument, match="timeout_s"):
            stelae.open(tmp_path / "s", timeout_s=timeout_s)  # type: ignore[arg-type]
    with pytest.raises(stelae.InvalidArgument, match="memory_bytes"):
        stelae.open(tmp_path / "s", memory_bytes=5)
    for masters in ("localhost", "localhost:x", ":7100", "", 7100):
        with pytest.raises(stelae.InvalidArgument, match="host"):
            stelae.connect(masters)  # type: ignore[arg-type]


def test_the_public_names() -> None:
    for name in stelae.__all__:
        assert getattr(stelae, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = stelae.nothing  # type: ignore[attr-defined]
