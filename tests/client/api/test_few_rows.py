"""Short scans that are answered at once are the scans that come in batches; many rows got at once are each row got."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stelae
from stelae.storage.files.warm import WARM_ROWS_AT_ONCE

KEYS: dict[str, tuple[dict[str, str], Callable[[int], dict[str, Any]]]] = {
    "text": ({"id": "string"}, lambda number: {"id": f"k{number:04d}é"}),
    "bytes": ({"id": "binary"}, lambda number: {"id": b"\0k%04d\xff" % number}),
    "numbers": ({"id": "int64"}, lambda number: {"id": number - 50}),
    "two columns": ({"a": "int32", "b": "string"}, lambda number: {"a": number // 10, "b": f"b{number % 10}"}),
}


def values(number: int) -> dict[str, Any]:
    return {"name": f"name {number}", "age": number, "score": None if number % 3 else number / 2}


def as_batches(scan: stelae.Scan, names: list[str]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in names} for row in scan.to_arrow().to_pylist()]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[stelae.Database]:
    with stelae.open(tmp_path / "data") as opened:
        yield opened


def make(db: stelae.Database, kind: str, **options: Any) -> tuple[stelae.Table, list[dict[str, Any]]]:
    key, key_of = KEYS[kind]
    columns = {"name": "string", "age": "int32 not null default 7", "score": "float64"}
    table = db.create_table("t", key=key, groups=[stelae.columns("g", columns)], **options)
    rows = [key_of(number) | values(number) for number in range(100)]
    table.put_many(rows)
    table.flush()
    return table, rows


def compare(table: stelae.Table, keys: list[dict[str, Any]], **how: Any) -> None:
    """At every place of a table: with a limit, with a stop, and both."""
    for place, key in ((0, None), *enumerate(keys)):
        bounds: list[dict[str, Any]] = [{"limit": 1}, {"limit": 7}, {"stop": keys[min(place + 9, len(keys) - 1)]}]
        for bound in (*bounds, {**bounds[2], "limit": 4}):
            scan = table.scan(start=key, **bound, **how)
            rows = list(scan)
            names = list(rows[0]) if rows else []
            assert [dict(row) for row in rows] == as_batches(scan, names), (key, bound)
            assert all(row.txn == scan.txn for row in rows)


def compare_gets(table: stelae.Table, keys: list[dict[str, Any]], **how: Any) -> None:
    """In any order, some twice, some that are not there."""
    asked = [*keys[::2], *reversed(keys), keys[0], {name: type(value)() for name, value in keys[0].items()}]
    at, found = how.pop("at", None), list[stelae.Row | None]()
    for _ in range(40):  # until blocks are warm
        found = table.get_many(asked, at=at, **how)
    assert [None if row is None else dict(row) for row in found] == [table.get(key, at=at, **how) for key in asked]
    assert len({row.txn for row in found if row is not None}) == 1


def keys_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of some rows, the last one among them."""
    return [{name: value for name, value in row.items() if name in ("id", "a", "b")} for row in rows][::9]


def test_blocks_that_become_warm_piece_by_piece(db: stelae.Database) -> None:
    table = db.create_table("t", key={"id": "string"}, groups=[stelae.columns("g", {"name": "string", "age": "int64"})])
    expected = {f"k{number:05}": {"name": f"n{number}", "age": number} for number in range(3 * WARM_ROWS_AT_ONCE + 7)}
    table.put_many([{"id": key} | values for key, values in expected.items()])
    expected["k00300"]["age"] = -1
    table.put({"id": "k00300", "age": -1})
    table.compact()
    keys = list(expected)
    for at in range(200):
        key = keys[at * 31 % len(keys)]
        assert table.get(key) == {"id": key} | expected[key]
        assert table.get(key, columns=["age"]) == {"id": key, "age": expected[key]["age"]}
    assert [dict(row or {}) for row in table.get_many(keys)] == [{"id": key} | expected[key] for key in keys]
    assert [dict(row) for row in table.scan(limit=500)] == [{"id": key} | expected[key] for key in keys[:500]]
    assert table.get("k00300x") is None


@pytest.mark.parametrize("kind", KEYS)
def test_of_a_file(db: stelae.Database, kind: str) -> None:
    table, rows = make(db, kind)
    compare(table, keys_of(rows))
    compare(table, keys_of(rows), columns=["score", "name"])
    compare_gets(table, keys_of(rows))
    compare_gets(table, keys_of(rows), columns=["score", "name"])
    if len(KEYS[kind][0]) == 1:
        assert table.get_many([rows[3]["id"]]) == [rows[3]]
    compare(table, keys_of(rows), columns=[next(iter(KEYS[kind][0]))])


def test_of_a_table_by_hash(db: stelae.Database) -> None:
    table, rows = make(db, "text", partition="hash", tablets=2)
    scan = table.scan(limit=20)
    assert [dict(row) for row in scan] == as_batches(scan, list(next(iter(scan))))
    assert len({row["id"] for row in table.scan(limit=1000)}) == 100
    compare_gets(table, keys_of(rows))


def change(table: stelae.Table, rows: list[dict[str, Any]], how: str) -> None:
    match how:
        case "rows in memory":
            table.put({**rows[30], "name": "other"})
        case "many rows in memory":
            table.put_many([{**row, "name": "other"} for row in rows[20:40]])
        case "erased in memory":
            table.erase(keys_of(rows)[3])
        case "one column in memory":
            table.put({**keys_of(rows)[3], "age": 1000})
        case "a second file":
            table.put_many([{**row, "age": 0} for row in rows[40:60]])
            table.flush()
        case "erased in a file":
            table.erase(keys_of(rows)[3])
            table.flush()
        case "several versions in one file":
            for age in (1, 2, 3):
                table.put({**rows[30], "age": age})
            table.flush()
            table.compact()
        case "split":
            table.split(rows[35]["id"])
        case "split, and both sides compacted":
            table.split(rows[35]["id"])
            table.compact()
        case _:
            raise AssertionError(how)


CHANGES = [
    "rows in memory",
    "many rows in memory",
    "erased in memory",
    "one column in memory",
    "a second file",
    "erased in a file",
    "several versions in one file",
    "split",
    "split, and both sides compacted",
]


@pytest.mark.parametrize("how", CHANGES)
def test_of_a_table_that_was_changed(db: stelae.Database, how: str) -> None:
    table, rows = make(db, "text")
    before = db.now()
    list(table.scan(limit=100))
    shown = list(table.scan(at=before))
    change(table, rows, how)
    compare(table, keys_of(rows))
    compare(table, keys_of(rows), at=before)
    compare_gets(table, keys_of(rows))
    compare_gets(table, keys_of(rows), at=before)
    assert list(table.scan(limit=1000, at=before)) == shown


def test_of_a_table_that_was_emptied(db: stelae.Database) -> None:
    table, rows = make(db, "text")
    list(table.scan(limit=100))
    db.truncate_table("t")
    assert list(table.scan(limit=5)) == []
    table.put_many(rows[10:30])
    table.flush()
    compare(table, keys_of(rows))


def test_of_columns_that_came_and_went_meanwhile(db: stelae.Database) -> None:
    table, rows = make(db, "text")
    old = table.scan(limit=5, columns=["name"])
    assert len(list(old)) == 5
    db.alter_table("t", drop=["name"])
    db.alter_table("t", add={"g": {"name": "int64"}})
    with pytest.raises(stelae.Retryable, match="scan again"):
        list(old)
    assert [row["name"] for row in table.scan(limit=5)] == [None] * 5
    compare_gets(table, keys_of(rows))
    compare(table, keys_of(rows))


def test_values_that_can_be_written_into_are_the_callers_own(db: stelae.Database) -> None:
    table = db.create_table("t", key={"id": "int64"}, groups=[stelae.columns("g", {"list": "array<int64>"})])
    table.put_many([{"id": number, "list": [number]} for number in range(10)])
    table.flush()
    for _ in range(40):
        for row in table.scan(limit=3):
            assert row["list"] == [row["id"]]
            row["list"].append(7)


def test_the_quick_way_is_taken(db: stelae.Database) -> None:
    """Else nothing above says anything about it."""
    table, rows = make(db, "text")
    quick: Any = table._session.backend.quick
    told: list[Any] = []
    tell, tell_many = quick.few, quick.many

    def few(*asked: Any) -> Any:
        told.append(tell(*asked))
        return told[-1]

    def many(*asked: Any) -> Any:
        told.append(tell_many(*asked))
        return told[-1]

    quick.few, quick.many = few, many
    list(table.scan(limit=100))
    assert [row["id"] for row in table.scan(start=rows[5]["id"], limit=3)] == [row["id"] for row in rows[5:8]]
    assert told[-1] is not None
    assert len(told[-1][0]) == 3
    rows_found, token = table.scan().page(10)
    assert rows_found == rows[:10]
    assert token is not None
    assert told[-1] is not None
    compare_gets(table, keys_of(rows))
    assert isinstance(told[-1][1][0], tuple)


@given(starts=st.lists(st.integers(0, 120), min_size=1, max_size=6), puts=st.lists(st.integers(0, 120), max_size=6))
def test_any_range_beside_any_writes(
    starts: list[int], puts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with stelae.open(tmp_path_factory.mktemp("few") / "data") as db:
        table, _ = make(db, "text")
        list(table.scan(limit=100))
        for number in puts:
            table.put({"id": f"k{number:04d}é", "name": "new", "age": number, "score": 1.0})
        compare(table, [{"id": f"k{number:04d}é"} for number in starts])
