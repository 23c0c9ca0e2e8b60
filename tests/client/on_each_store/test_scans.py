"""Scans: which rows, in which order, at which moment, in which form."""

from __future__ import annotations

import gc
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stelae
from stelae.client.arguments.keys import bounds_of
from stelae.client.arguments.predicates import predicate_of
from stelae.client.calls.views import TableView
from stelae.model.declare import columns, declare
from stelae.model.ranges import RangeSet, single
from tests.client.on_each_store.worlds import put_before
from tests.effort import examples

LETTERS = ["", "a", "aa", "ab", "b", "ba", "c", "g", "h", "p", "pq", "z"]


@pytest.fixture
def letters(users: stelae.Table) -> stelae.Table:
    users.put_many([{"id": key, "age": at, "name": key.upper()} for at, key in enumerate(LETTERS)])
    return users


def keys(scan: stelae.Scan) -> list[Any]:
    return [row["id"] for row in scan]


@pytest.mark.parametrize(
    "bounds, expected",
    [
        ({}, LETTERS),
        ({"start": "ab"}, LETTERS[3:]),
        ({"stop": "ab"}, LETTERS[:3]),
        ({"start": "a", "stop": "g"}, LETTERS[1:7]),
        ({"start": "g", "stop": "a"}, []),
        ({"prefix": "a"}, ["a", "aa", "ab"]),
        ({"prefix": ""}, LETTERS),
        ({"prefix": "a", "start": "aa"}, ["aa", "ab"]),
        ({"limit": 3}, LETTERS[:3]),
        ({"limit": 0}, []),
        ({"limit": 99}, LETTERS),
        ({"limit": 3, "reverse": True}, LETTERS[:-4:-1]),
        ({"start": "b", "stop": "h", "reverse": True}, ["g", "c", "ba", "b"]),
        ({"where": 'row ~= "a"'}, ["a", "aa", "ab"]),
        ({"where": '"a" <= row < "b" and age > 1'}, ["aa", "ab"]),
        ({"where": stelae.col("age").isin([2, 5])}, ["aa", "ba"]),
        ({"where": (stelae.col("age") > 3) & ~(stelae.col("name") == "C"), "stop": "g"}, ["b", "ba"]),
        ({"where": stelae.col("id") >= "h", "columns": ["id"]}, ["h", "p", "pq", "z"]),
        ({"where": stelae.col("score").is_null(), "limit": 1}, [""]),
    ],
    ids=str,
)
def test_which_rows(letters: stelae.Table, bounds: dict[str, Any], expected: list[str]) -> None:
    scan = letters.scan(**bounds)
    assert keys(scan) == expected
    assert scan.to_arrow()["id"].to_pylist() == expected
    assert keys(letters.scan(**bounds)) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        {"where": "age >"},
        {"where": stelae.col("age")},
        {"where": stelae.col("agee") > 1},
        {"where": stelae.col("age") > "x"},
        {"where": 7},
        {"where": 'column = "nope"'},
        {"start": 7},
        {"prefix": 7},
        {"start": ("a", "b")},
        {"limit": -1},
        {"limit": True},
        {"limit": 1.5},
        {"reverse": "yes"},
        {"cells": "wide"},
        {"after": "x"},
        {"after": "s1.AAAA"},
        {"after": 7},
    ],
    ids=str,
)
def test_a_scan_that_cannot_be_is_told_when_it_is_made(users: stelae.Table, arguments: dict[str, Any]) -> None:
    with pytest.raises(stelae.InvalidArgument):
        users.scan(**arguments)


def test_an_expression_is_neither_true_nor_false(users: stelae.Table) -> None:
    with pytest.raises(stelae.InvalidArgument):
        bool(stelae.col("age") > 1)


def test_conditions_on_the_key_narrow_the_rows(users: stelae.Table) -> None:
    view = TableView(users._info)
    for where, bounds in (
        (stelae.col("id") == "b", {}),
        ((stelae.col("id") >= "b") & (stelae.col("id") <= "b"), {}),
        ('row = "b" and age > 1', {"start": "a"}),
    ):
        predicate, _, _ = predicate_of(view, where, **bounds)
        assert predicate.rows == RangeSet((single(b"b"),))


POINTS = [(place, at) for place in ("", "a", "a\x00", "ab", "b") for at in (-2, 0, 5)]


@pytest.mark.parametrize("partition", ["range", "hash"])
@pytest.mark.parametrize(
    "bounds, holds",
    [
        ({"start": ("a",)}, lambda key: key[:1] >= ("a",)),
        ({"start": "a"}, lambda key: key[:1] >= ("a",)),
        ({"start": ("a", 0)}, lambda key: key >= ("a", 0)),
        ({"stop": ("a",)}, lambda key: key[:1] < ("a",)),
        ({"stop": ("a", 0)}, lambda key: key < ("a", 0)),
        ({"stop": {"place": "a", "at": 0}}, lambda key: key < ("a", 0)),
        ({"prefix": ("a",)}, lambda key: key[0] == "a"),
        ({"prefix": {"place": "a"}, "start": ("a", 0)}, lambda key: key[0] == "a" and key[1] >= 0),
    ],
    ids=lambda each: str(each) if isinstance(each, dict) else "",
)
def test_bounds_of_longer_keys(db: stelae.Database, partition: str, bounds: dict[str, Any], holds: Any) -> None:
    groups = [stelae.columns("data", {"value": "int64"})]
    table = db.create_table("points", {"place": "string", "at": "int32"}, groups, partition=partition)
    table.put_many([{"place": place, "at": at} for place, at in POINTS])
    found = [(row["place"], row["at"]) for row in table.scan(ordered=True, **bounds)]
    assert found == [key for key in POINTS if holds(key)]


@pytest.mark.parametrize(
    "bounds", [{"prefix": ("a", 1)}, {"start": ()}, {"start": {"at": 1}}, {"start": ("a", 1, 2)}], ids=str
)
def test_bounds_that_cannot_be(points: stelae.Table, bounds: dict[str, Any]) -> None:
    with pytest.raises(stelae.InvalidArgument):
        points.scan(**bounds)


_PARTS = st.tuples(st.text("ab\x00", max_size=2), st.binary(max_size=2))


@settings(max_examples=examples(200))
@given(st.lists(_PARTS, max_size=30), st.none() | _PARTS, st.none() | _PARTS, st.none() | _PARTS, st.booleans())
def test_bounds_are_those_of_tuples(
    found: list[tuple[str, bytes]], start: Any, stop: Any, prefix: Any, is_short: bool
) -> None:
    schema = declare({"a": "string", "b": "binary"}, [columns("g", {"v": "int64"})])
    start, prefix = (each and (each[:1] if is_short else each) for each in (start, prefix))
    rows, _ = bounds_of(schema, start, stop, prefix)
    for key in found:
        expected = (start is None or key[: len(start)] >= start) and (stop is None or key < stop)
        if prefix is not None:
            expected = expected and key[0] == prefix[0] and (is_short or key[1].startswith(prefix[1]))
        assert (schema.codec.encode(key) in rows) == expected


def test_a_scan_is_at_the_moment_it_was_made(letters: stelae.Table) -> None:
    scan = letters.scan(columns=["age"])
    letters.put({"id": "a", "age": 99})
    letters.erase("b")
    letters.put({"id": "new"})
    letters.flush()
    letters.split("k")
    for _ in range(2):
        assert [(row["id"], row["age"]) for row in scan] == [(key, at) for at, key in enumerate(LETTERS)]
    row = next(iter(scan))
    assert row.txn == scan.txn


def test_pages(letters: stelae.Table) -> None:
    for reverse in (False, True):
        options: dict[str, Any] = {"columns": ["age"], "reverse": reverse, "where": stelae.col("age") != 3}
        pages: list[list[str]] = []
        rows, token = letters.scan(**options).page(4)
        letters.put({"id": "bbb"})
        while True:
            pages.append([row["id"] for row in rows])
            if token is None:
                break
            rows, token = letters.scan(**options, after=token).page(4)
        expected = [key for key in LETTERS if key != "ab"]
        assert [key for page in pages for key in page] == (expected[::-1] if reverse else expected)
        assert [len(page) for page in pages] == [4, 4, 3]
        letters.erase("bbb")


def test_a_page_that_ends_with_the_rows_has_no_token(letters: stelae.Table) -> None:
    rows, token = letters.scan().page(len(LETTERS))
    assert (len(rows), token) == (len(LETTERS), None)
    rows, token = letters.scan(limit=3).page(3)
    assert (len(rows), token) == (3, None)
    assert letters.scan(start="zz").page(1) == ([], None)
    for count in (0, -1, True, "x"):
        with pytest.raises(stelae.InvalidArgument):
            letters.scan().page(count)  # type: ignore[arg-type]


def test_a_token_is_for_its_own_scan(letters: stelae.Table, points: stelae.Table) -> None:
    _, token = letters.scan().page(2)
    assert token is not None
    with pytest.raises(stelae.InvalidArgument, match="another table"):
        points.scan(after=token)
    with pytest.raises(stelae.InvalidArgument, match="reverse"):
        letters.scan(after=token, reverse=True)
    with pytest.raises(stelae.InvalidArgument, match="at="):
        letters.scan(after=token, at=1)
    with pytest.raises(stelae.InvalidArgument):
        letters.scan(after=token[:-3])


@pytest.fixture
def hashed(db: stelae.Database) -> stelae.Table:
    table = db.create_table(
        "hashed", {"id": "int64"}, [stelae.columns("g", {"v": "int64"})], partition="hash", tablets=4
    )
    table.put_many([{"id": number, "v": number % 7} for number in range(300)])
    return table


def test_rows_of_a_hashed_table_in_order(hashed: stelae.Table) -> None:
    assert len(hashed.tablets()) == 4
    assert sorted(keys(hashed.scan())) == list(range(300))
    assert keys(hashed.scan()) != list(range(300))
    assert keys(hashed.scan(ordered=True)) == list(range(300))
    assert keys(hashed.scan(ordered=True, limit=5, reverse=True)) == [299, 298, 297, 296, 295]
    assert keys(hashed.scan(stelae.col("v") == 3, ordered=True, start=10, stop=40)) == [10, 17, 24, 31, 38]
    assert hashed.scan(ordered=True, columns=["id"]).to_arrow()["id"].to_pylist() == list(range(300))


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_pages_of_a_hashed_table(hashed: stelae.Table, ordered: bool, reverse: bool) -> None:
    options = {"ordered": ordered, "reverse": reverse}
    whole = keys(hashed.scan(**options))  # type: ignore[arg-type]
    found: list[int] = []
    rows, token = hashed.scan(**options).page(70)  # type: ignore[arg-type]
    while token:
        found += [row["id"] for row in rows]
        rows, token = hashed.scan(**options, after=token).page(70)  # type: ignore[arg-type]
    assert found + [row["id"] for row in rows] == whole
    _, token = hashed.scan(**options).page(1)  # type: ignore[arg-type]
    with pytest.raises(stelae.InvalidArgument, match="ordered"):
        hashed.scan(ordered=not ordered, reverse=reverse, after=token)


def test_histories_in_scans(users: stelae.Table) -> None:
    for age in range(3):
        users.put({"id": "ann", "age": age, "click:a": bytes([age])}, ts=1_000 * (age + 1))
    users.put({"id": "bob", "name": "Bob"}, ts=5_000)
    ann, bob = users.scan("history = 2")
    assert [each.value for each in ann["age"]] == [2, 1]
    assert [each.value for each in ann["click:a"]] == [b"\x02", b"\x01"]
    assert [(each.value, each.ts) for each in bob["name"]] == [("Bob", 5_000)]
    (row,) = users.scan('column = "age" and history = 1 and row = "ann"')
    assert row.keys() == {"id", "age"}
    (row,) = users.scan("history = 9 and time < 3000 and age = 1")
    assert [each.ts for each in row["age"]] == [2_000, 1_000]
    table = users.scan("history = 2").to_arrow()
    assert [[each["value"] for each in ages] for ages in table["age"].to_pylist()] == [[2, 1], []]
    assert [dict(cells).keys() for cells in table["click"].to_pylist()] == [{"a"}, set()]
    assert [[each["ts"].microsecond for each in names] for names in table["name"].to_pylist()] == [[], [5_000]]


def test_cells_in_the_long_form(db: stelae.Database, users: stelae.Table) -> None:
    txns = [users.put({"id": "ann", "click:a": bytes([at])}, ts=1_000 + at) for at in range(2)]
    users.put({"id": "bob", "name": "Bob"})
    users.put({"id": "cay", "view:x": b"x"}, ts=7)
    newest = users.scan(cells="long").to_arrow()
    assert newest.column_names == ["id", "family", "qualifier", "ts", "txn", "value"]
    assert newest.drop_columns(["ts", "txn"]).to_pylist() == [
        {"id": "ann", "family": "click", "qualifier": "a", "value": b"\x01"},
        {"id": "cay", "family": "view", "qualifier": "x", "value": b"x"},
    ]
    whole = users.scan("history = 5", cells="long", stop="b").to_arrow()
    assert whole["txn"].to_pylist() == txns[::-1]
    assert whole["ts"].cast(pa.int64()).to_pylist() == [1_001, 1_000]
    assert users.scan(cells="long", start="x").to_arrow().schema == newest.schema
    other = db.create_table("other", {"ts": "string"}, [stelae.cells("all")])
    other.put({"ts": "a", "f:q": b"1"})
    assert other.scan(cells="long").to_arrow().column_names == ["ts", "family", "qualifier", "_ts", "txn", "value"]
    again = db.create_table("again", {"id": "string"}, [stelae.cells("all")])
    again.put_many(whole.drop_columns(["txn"]), cells="long")
    assert len(again.history("ann")["click:a"]) == 2


def test_frames(letters: stelae.Table) -> None:
    scan = letters.scan(columns=["age", "name", "click:"], limit=3)
    table = scan.to_arrow()
    assert table.schema == scan.schema
    assert table.to_pylist() == [
        {"id": key, "name": key.upper(), "age": at, "click": []} for at, key in enumerate(LETTERS[:3])
    ]
    assert sum(batch.num_rows for batch in scan.batches()) == 3
    assert scan.to_pandas()["age"].tolist() == [0, 1, 2]
    assert scan.to_polars()["name"].to_list() == ["", "A", "AA"]
    empty = letters.scan(start="zz", columns=["age"])
    assert empty.to_arrow().schema == letters.scan(columns=["age"]).to_arrow().schema
    assert len(empty.to_pandas()) == 0


def counted_pins(db: stelae.Database) -> list[Any]:
    """Those that are held, from now on."""
    pins: list[Any] = []
    failing = put_before(db)
    take = failing.behind.pin

    class Counted:
        def __init__(self, pin: Any) -> None:
            self.txn = pin.txn
            self._pin = pin
            pins.append(self)

        def close(self) -> None:
            self._pin.close()
            pins.remove(self)

    failing.pin = lambda at=None, table=None, **given: Counted(take(at, table, **given))  # type: ignore[attr-defined]
    return pins


def test_a_scan_lets_go_of_its_snapshot(letters: stelae.Table, db: stelae.Database) -> None:
    pins = counted_pins(db)
    with letters.scan() as scan:
        assert len(pins) == 1
        list(scan)
        assert len(pins) == 1
    assert pins == []
    with pytest.raises(stelae.Closed):
        list(scan)
    scan.close()
    rows = iter(letters.scan())
    next(rows)
    gc.collect()
    assert len(pins) == 1
    del rows
    gc.collect()
    assert pins == []
    letters.count()
    letters.head()
    assert pins == []


@pytest.mark.parametrize("of", ["rows", "batches"])
def test_a_pass_over_a_scan_holds_its_snapshot(letters: stelae.Table, db: stelae.Database, of: str) -> None:
    """Also when the scan itself is closed, or forgotten, before the end."""
    letters.split("c")
    pins = counted_pins(db)
    for is_closed in (True, False):
        scan = letters.scan()
        run: Any = iter(scan) if of == "rows" else scan.batches()
        next(run)
        if is_closed:
            scan.close()
        del scan
        gc.collect()
        assert len(pins) == 1
        letters.put({"id": "z", "age": 99})
        letters.compact(erase_now=True)
        found = [each["age"] for each in run] if of == "rows" else [n for b in run for n in b["age"].to_pylist()]
        assert found[-1] == len(LETTERS) - 1
        del run
        gc.collect()
        assert pins == []
        letters.put({"id": "z", "age": len(LETTERS) - 1})


def test_a_scan_at_a_time_that_another_table_has_forgotten(letters: stelae.Table, points: stelae.Table) -> None:
    at = letters.put({"id": "b", "age": 50})
    letters.put({"id": "b", "age": 51})
    points.put({"place": "a", "at": 1})
    points.compact(erase_now=True)
    (row,) = letters.scan(start="b", stop="ba", at=at)
    assert row["age"] == 50
    with pytest.raises(stelae.SnapshotTooOld):
        list(points.scan(at=at))


def test_a_scan_that_is_left_frees_the_stream(letters: stelae.Table, db: stelae.Database) -> None:
    open_streams: list[int] = []
    failing = put_before(db)
    scan_of = failing.behind.scan

    def watched(table: Any, ask: Any, **given: Any) -> Any:
        open_streams.append(1)
        try:
            yield from scan_of(table, ask, **given)
        finally:
            open_streams.pop()

    failing.scan = watched  # type: ignore[attr-defined]
    rows: Any = iter(letters.scan())
    next(rows)
    assert open_streams == [1]
    with pytest.raises(KeyboardInterrupt):
        rows.throw(KeyboardInterrupt)
    assert open_streams == []
    assert letters.scan().page(2)[1] is not None
    assert open_streams == []
    assert letters.exists("a")


def test_a_scan_goes_on_behind_a_passing_error(letters: stelae.Table, db: stelae.Database) -> None:
    failing = put_before(db)
    scan_of = failing.behind.scan
    asked: list[Any] = []

    def breaking(table: Any, ask: Any, **given: Any) -> Any:
        asked.append(ask)
        for number, batch in enumerate(scan_of(table, ask, **given)):
            if number == 1 and len(asked) < 4:
                raise stelae.Unavailable("the line is dead")
            yield batch

    failing.scan = breaking  # type: ignore[attr-defined]
    for options in ({}, {"reverse": True}, {"limit": 9}):
        asked.clear()
        assert keys(letters.scan(**options)) == (
            LETTERS[::-1] if "reverse" in options else LETTERS[: options.get("limit")]
        )
        assert len(asked) > 1


def test_a_scan_of_a_column_that_was_changed_says_so(letters: stelae.Table, db: stelae.Database) -> None:
    scan, narrow = letters.scan(), letters.scan(columns=["age"])
    db.alter_table("users", add={"profile": {"email": "string"}})
    assert len(list(scan)) == len(LETTERS)
    assert "email" not in next(iter(scan))
    db.alter_table("users", rename_columns={"name": "full_name"})
    assert len(list(narrow)) == len(LETTERS)
    with pytest.raises(stelae.SchemaChanged, match="scan again"):
        list(scan)
    assert "full_name" in next(iter(letters.scan()))


@pytest.mark.parametrize("type_", ["string", "int32"])
@pytest.mark.parametrize("asks", [{}, {"columns": ["name"], "where": stelae.col("age") > 1}], ids=["reads", "asks for"])
def test_a_column_of_the_same_name_is_not_the_same_column(
    letters: stelae.Table, db: stelae.Database, asks: dict[str, Any], type_: str
) -> None:
    """What a scan is bound to is gone, though its name is there again."""
    scan = letters.scan(**asks)
    db.alter_table("users", drop=["age"])
    db.alter_table("users", add={"profile": {"age": type_}})
    with pytest.raises(stelae.SchemaChanged, match="scan again"):
        list(scan)
    with pytest.raises(stelae.SchemaChanged, match="scan again"):
        scan.to_arrow()


def test_a_page_asks_for_no_more_than_it_gives(letters: stelae.Table, db: stelae.Database) -> None:
    failing = put_before(db)
    scan_of, asked = failing.behind.scan, list[Any]()

    def watched(table: Any, ask: Any, **given: Any) -> Any:
        asked.append(ask.limit)
        return scan_of(table, ask, **given)

    failing.scan = watched  # type: ignore[attr-defined]
    letters.scan().page(4)
    letters.scan(limit=3).page(4)
    letters.scan(limit=9).page(4)
    assert asked == [5, 3, 5]


def test_scans_print_what_they_ask(letters: stelae.Table) -> None:
    text = repr(letters.scan(stelae.col("age") > 3, start="a", limit=7, reverse=True))
    for part in ("'users'", "age > 3", "start='a'", "limit=7", "reverse=True"):
        assert part in text
