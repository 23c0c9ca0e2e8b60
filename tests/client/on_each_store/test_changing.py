"""Conditional puts, update, increment and batches."""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import stelae
from stelae.client.api.rows import Row
from stelae.model.ids import TS_MAX
from tests.client.on_each_store.worlds import put_before


def test_a_put_if_unchanged(users: stelae.Table) -> None:
    users.put({"id": "ann", "age": 1})
    row = users.get("ann")
    assert row is not None
    users.put({"id": "bob"})
    users.put({"id": "ann", "age": 2}, if_unchanged_since=row.txn)
    with pytest.raises(stelae.Conflict, match="'ann'"):
        users.put({"id": "ann", "age": 3}, if_unchanged_since=row.txn)
    users.erase("ann")
    later = users.put({"id": "cay"})
    with pytest.raises(stelae.Conflict):
        users.put({"id": "ann"}, if_unchanged_since=row.txn)
    users.put({"id": "ann"}, if_unchanged_since=later)
    for bad in (True, "x", -1):
        with pytest.raises(stelae.InvalidArgument):
            users.put({"id": "ann"}, if_unchanged_since=bad)  # type: ignore[arg-type]


def test_a_put_if_absent(users: stelae.Table) -> None:
    users.put({"id": "ann", "age": 1}, if_absent=True)
    with pytest.raises(stelae.AlreadyExists, match="'ann'"):
        users.put({"id": "ann", "age": 2}, if_absent=True)
    users.erase("ann")
    users.put({"ID": "ann", "age": 3}, if_absent=True)
    assert users.get("ann", ["age"]) == {"id": "ann", "age": 3}
    with pytest.raises(stelae.InvalidArgument, match="both"):
        users.put({"id": "ann"}, if_absent=True, if_unchanged_since=1)


def test_an_update_gives_the_new_row(users: stelae.Table) -> None:
    users.put({"id": "ann", "age": 1, "click:a": b"1"})
    row = users.update("ann", lambda row: {"age": row["age"] + 1, "name": "Ann"} if row else None)
    assert row == users.get("ann")
    assert row is not None
    assert (row["age"], row["name"], row["click:a"]) == (2, "Ann", b"1")
    users.put({"id": "ann", "age": 5}, if_unchanged_since=row.txn)


def test_an_update_of_nobody_may_make_the_row(users: stelae.Table) -> None:
    seen: list[Any] = []
    assert users.update("ann", seen.append) is None
    assert seen == [None]
    assert users.count() == 0
    made = users.update("ann", lambda row: {"age": 1 if row is None else 2})
    assert made is not None
    assert made["age"] == 1


def test_an_update_that_returns_none_writes_nothing(users: stelae.Table) -> None:
    txn = users.put({"id": "ann", "age": 1, "tags": ["x"]})

    def look(row: Row | None) -> None:
        assert row is not None
        assert row.txn >= txn
        assert row["age"] == 1

    row = users.update("ann", look)
    assert row == users.get("ann")
    assert row is not None
    assert (row["age"], row["tags"]) == (1, ["x"])
    assert len(users.history("ann")["age"]) == 1


def test_an_update_is_tried_again_on_conflict(users: stelae.Table) -> None:
    users.put({"id": "ann", "age": 1})
    ages: list[int] = []

    def change(row: Row | None) -> dict[str, Any]:
        assert row is not None
        ages.append(row["age"])
        if len(ages) == 1:
            users.put({"id": "ann", "age": 10})
        return {"age": row["age"] + 1}

    row = users.update("ann", change)
    assert row is not None
    assert ages == [1, 10]
    assert row["age"] == 11


def test_an_update_keeps_the_key(users: stelae.Table, points: stelae.Table) -> None:
    users.put({"id": "ann"})
    assert users.update("ann", lambda row: {**(row or {}), "age": 3}) is not None
    with pytest.raises(stelae.InvalidArgument, match="key"):
        users.update("ann", lambda row: {"ID": "bob"})
    with pytest.raises(stelae.InvalidArgument, match="dict"):
        users.update("ann", lambda row: 7)  # type: ignore[arg-type, return-value]
    with pytest.raises(stelae.InvalidArgument, match="function"):
        users.update("ann", {"age": 1})  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        users.update("ann", lambda row: {"age": 1 // 0})
    assert points.update(("a", 1), lambda row: {"value": 1, "at": 1}) == {"place": "a", "at": 1, "value": 1}


def test_a_conflict_that_does_not_end_is_raised(users: stelae.Table) -> None:
    users._session.patience = type(users._session.patience)(
        users._session.patience.clock, users._session.patience.rng, 0
    )
    handle = stelae.Table(users._session, users._info)

    def change(row: Row | None) -> dict[str, Any]:
        users.put({"id": "ann"})
        return {"age": 1}

    with pytest.raises(stelae.Conflict):
        handle.update("ann", change)


@pytest.fixture
def counters(db: stelae.Database) -> stelae.Table:
    columns = {
        "small": "int8",
        "big": "int64 default 100",
        "real": "float64",
        "single": "float32",
        "money": "decimal(6, 2)",
        "text": "string",
    }
    return db.create_table("counters", {"id": "int64"}, [stelae.columns("data", columns), stelae.cells("c")])


def test_a_value_that_is_too_large_is_refused(counters: stelae.Table) -> None:
    with pytest.raises(stelae.InvalidArgument, match="'text'"):
        counters.put({"id": 1, "text": "x" * (17 * 2**20)})
    assert counters.count() == 0


def test_increments(counters: stelae.Table) -> None:
    by = {"small": 1, "big": 1, "real": 0.5, "single": 0.5, "money": Decimal("0.10")}
    first = {"small": 1, "big": 101, "real": 0.5, "single": 0.5, "money": Decimal("0.10")}
    assert counters.increment(1, by) == first
    assert counters.increment(1, {"SMALL": -3, "money": 2}) == {"small": -2, "money": Decimal("2.10")}
    assert counters.get(1) == {"id": 1, **first, "small": -2, "money": Decimal("2.10"), "text": None}
    counters.put({"id": 1, "big": None})
    assert counters.increment(1, {"big": 5}) == {"big": 5}
    assert counters.increment(2, {"big": 5}) == {"big": 105}


FUTURE = TS_MAX - 10


@pytest.mark.parametrize("ts", [FUTURE, TS_MAX])
def test_an_increment_is_seen_though_the_value_before_is_of_the_future(counters: stelae.Table, ts: int) -> None:
    counters.put({"id": 1, "small": 1}, ts=ts)
    counters.put({"id": 1, "big": 1})
    assert counters.increment(1, {"small": 1, "big": 1}) == {"small": 2, "big": 2}
    assert counters.increment(1, {"small": 1, "big": 1}) == {"small": 3, "big": 3}
    assert counters.get(1, columns=["small", "big"]) == {"id": 1, "small": 3, "big": 3}
    counters.put({"id": 1, "small": 9, "big": 9})
    assert counters.get(1, columns=["small", "big"]) == {"id": 1, "small": 3, "big": 9}


def test_an_update_is_seen_though_what_was_before_is_of_the_future(counters: stelae.Table) -> None:
    counters.put({"id": 1, "small": 1, "text": "a", "c:x": b"1"}, ts=FUTURE)
    counters.put({"id": 1, "big": 1, "c:y": b"1"})
    row = counters.update(1, lambda row: {"SMALL": 2, "big": 2, "*": {"c:x": b"2", "c:y": b"2"}, "single": 0.1})
    assert row is not None
    assert row == counters.get(1)
    assert [row[name] for name in ("small", "big", "text", "c:x", "c:y")] == [2, 2, "a", b"2", b"2"]
    times = {name: versions[0].ts for name, versions in counters.history(1).items()}
    assert {name for name, ts in times.items() if ts > FUTURE} == {"small", "c:x"}
    assert {name for name, ts in times.items() if ts < FUTURE} == {"big", "c:y", "single"}


def test_a_change_is_one_commit_though_a_part_of_it_is_of_the_future(counters: stelae.Table) -> None:
    counters.put({"id": 1, "small": 0}, ts=FUTURE)
    counters.put({"id": 1, "big": 0})
    for _ in range(3):
        counters.increment(1, {"small": 1, "big": 1})
    versions = counters.history(1, columns=["small", "big"])
    small, big = ([each.txn for each in versions[name]] for name in ("small", "big"))
    assert small[:3] == big[:3], "both columns are of one commit"
    assert len(small) == len(big) == 4, "and there is no other"


@pytest.mark.parametrize("where", ["memory", "files", "columnar", "replayed"])
def test_wherever_the_future_is_kept_a_change_is_seen(tmp_path: Path, where: str) -> None:
    def make(db: stelae.Database) -> stelae.Table:
        table = db.create_table("t", {"id": "int64"}, [stelae.columns("g", {"v": "int64"}), stelae.cells("c")])
        if where == "columnar":
            table.put_many([{"id": id_, "v": 1} for id_ in range(2_000)], ts=FUTURE)
            table.put_many([{"id": id_, "f:x": b"1"} for id_ in range(2_000)], ts=FUTURE)
        else:
            table.put({"id": 1, "v": 1}, ts=FUTURE)
            table.put({"id": 1, "f:x": b"1"}, ts=FUTURE)
        if where == "files":
            table.flush()
        return table

    with stelae.open(tmp_path / "s") as db:
        table = make(db)
        if where != "replayed":
            assert table.update(1, lambda _: {"v": 2, "f:x": b"2"}) == {"id": 1, "v": 2, "f:x": b"2"}
            return
        shutil.copytree(tmp_path / "s", tmp_path / "killed", ignore=shutil.ignore_patterns("socket"))
    with stelae.open(tmp_path / "killed") as db:
        assert db.table("t").update(1, lambda _: {"v": 2, "f:x": b"2"}) == {"id": 1, "v": 2, "f:x": b"2"}


def test_an_update_of_the_future_has_all_columns_that_a_put_must_have(db: stelae.Database) -> None:
    groups = [stelae.columns("g", {"must": "int64 not null", "may": "int64"})]
    table = db.create_table("musts", {"id": "int64"}, groups)
    table.put({"id": 1, "must": 1, "may": 1}, ts=FUTURE)
    table.erase(1, columns=["must"], ts=FUTURE)
    table.put({"id": 1, "must": 1})
    assert table.update(1, lambda row: {"must": 2, "may": 2}) == {"id": 1, "must": 2, "may": 2}


def test_an_update_of_the_future_that_loses_a_race_starts_again(counters: stelae.Table, db: stelae.Database) -> None:
    counters.put({"id": 1, "small": 1}, ts=FUTURE)
    failing = put_before(db)
    plain = failing.behind.history

    def history(*args: Any, **kwargs: Any) -> Any:
        found = plain(*args, **kwargs)
        if failing.calls["history"] == 1:
            counters.put({"id": 1, "small": 10}, ts=FUTURE + 5)
        return found

    failing.behind.history = history  # type: ignore[method-assign]
    assert counters.increment(1, {"small": 1}) == {"small": 11}
    assert counters.get(1, columns=["small"]) == {"id": 1, "small": 11}


@pytest.mark.parametrize("error", [stelae.SnapshotTooOld("gone"), stelae.Closed("closed")], ids=["old", "closed"])
def test_what_is_written_is_not_called_a_failure(
    counters: stelae.Table, db: stelae.Database, error: stelae.StelaeError
) -> None:
    failing = put_before(db)
    plain = failing.behind.write

    def write(*args: Any, **given: Any) -> Any:
        failing.plans["newest"].append(error)
        return plain(*args, **given)

    failing.behind.write = write  # type: ignore[method-assign]
    assert counters.increment(1, {"small": 1}) == {"small": 1}


@pytest.mark.parametrize(
    "by, word",
    [
        ({"small": 200}, "small"),
        ({"big": 2**63}, "big"),
        ({"real": 1.7e308}, "real"),
        ({"single": 3e38}, "single"),
        ({"money": Decimal(9999)}, "money"),
        ({"money": 0.1}, "money"),
        ({"small": True}, "small"),
        ({"small": 1.0}, "small"),
        ({"text": 1}, "text"),
        ({"id": 1}, "id"),
        ({"c:x": 1}, "c:x"),
        ({"smal": 1}, "smal"),
        ({"small": 1, "SMALL": 1}, "twice"),
        ({}, "increment"),
        (7, "increment"),
    ],
    ids=str,
)
def test_increments_that_cannot_be(counters: stelae.Table, by: Any, word: str) -> None:
    start = {"id": 1, "small": 1, "big": 1, "real": 1e308, "single": 2e38, "money": Decimal("1.00")}
    counters.put(start)
    before = counters.get(1)
    with pytest.raises(stelae.InvalidArgument, match=word):
        counters.increment(1, by)
    assert counters.get(1) == before


def test_a_batch_says_what_its_calls_would(users: stelae.Table) -> None:
    users.put({"id": "bob"})
    with users.batch() as batch:
        batch.put({"id": "ann", "age": 1})
        batch.put({"id": "ann", "age": 2, "click:a": b"1"})
        batch.erase("bob")
        batch.put({"id": "cay", "age": 1})
        batch.erase("cay")
        batch.put({"id": "cay", "name": "Cay"})
        batch.erase("ann", ["click:"])
        assert users.get("ann") is None
    assert users.get("ann", ["age", "click:"]) == {"id": "ann", "age": 2}
    assert not users.exists("bob")
    assert users.get("cay") == {"id": "cay", "name": "Cay", "age": 0, "score": None, "tags": None}
    with pytest.raises(stelae.Closed):
        batch.put({"id": "dan"})
    batch.close()


@pytest.mark.parametrize("limit", [{"count_max": 3}, {"bytes_max": 250}, {"seconds_max": 1e-9}], ids=str)
def test_a_batch_is_flushed_on_the_way(users: stelae.Table, limit: dict[str, Any]) -> None:
    with users.batch(**limit) as batch:
        for number in range(4):
            batch.put({"id": f"u{number}", "name": "x" * 50})
        assert users.exists("u0")
    assert users.count() == 4


def test_a_batch_goes_to_all_tablets(users: stelae.Table) -> None:
    keys = ["z", "a", "h", "b", "q", "g"]
    with users.batch() as batch:
        for key in keys:
            batch.put({"id": key, "name": key})
    assert [row["name"] for row in users.scan()] == sorted(keys)
    assert [row and row["name"] for row in users.get_many(keys)] == keys


def test_an_exception_discards_what_is_unflushed(users: stelae.Table) -> None:
    def fail() -> None:
        with users.batch() as batch:
            batch.put({"id": "ann"})
            batch.flush()
            batch.put({"id": "bob"})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [row["id"] for row in users.scan()] == ["ann"]


def test_a_bad_row_in_a_batch_is_refused_at_once(users: stelae.Table) -> None:
    with users.batch() as batch:
        batch.put({"id": "ann"})
        with pytest.raises(stelae.InvalidArgument, match="'age'"):
            batch.put({"id": "bob", "age": "x"})
    assert users.count() == 1
    for limit in (0, -1, "x", True):
        with pytest.raises(stelae.InvalidArgument, match="count_max"):
            users.batch(count_max=limit)  # type: ignore[arg-type]


def test_a_batch_outlives_an_alteration(db: stelae.Database, users: stelae.Table) -> None:
    with users.batch() as batch:
        batch.put({"id": "ann", "name": "Ann"})
        db.alter_table("users", rename_columns={"name": "full_name"}, widen={"age": "int64"})
        batch.put({"id": "bob", "full_name": "Bob", "age": 2**40})
    assert [row["full_name"] for row in users.scan()] == ["Ann", "Bob"]


def test_a_batch_of_a_dropped_column_is_refused(db: stelae.Database, users: stelae.Table) -> None:
    def drop_meanwhile() -> None:
        with users.batch() as batch:
            batch.put({"id": "ann", "score": 1.0})
            db.alter_table("users", drop=["score"])

    with pytest.raises(stelae.InvalidArgument, match="column"):
        drop_meanwhile()


def test_large_rows_of_a_batch_stay_in_order(users: stelae.Table) -> None:
    heavy = ["x" * 1_000] * 4_000
    with users.batch(bytes_max=2**40) as batch:
        batch.put({"id": "ann", "name": "first"})
        batch.put({"id": "ann", "name": "second", "tags": heavy})
        batch.put({"id": "ann", "name": "third"})
    row = users.get("ann")
    assert row is not None
    assert row["name"] == "third"
    assert len(row["tags"]) == len(heavy)


@pytest.mark.usefixtures("unnumbered")
def test_what_a_failed_flush_left_can_be_flushed_again(db: stelae.Database, users: stelae.Table) -> None:
    failing = put_before(db)
    with users.batch() as batch:
        batch.put({"id": "ann"})
        failing.plans["write"] = [stelae.UnknownOutcome("the disk is gone")]
        with pytest.raises(stelae.UnknownOutcome):
            batch.flush()
    assert users.exists("ann")
