"""Reading and writing single rows: what is put is what is got."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

import stelae
from stelae.model.hybrid import to_datetime
from tests.client.on_each_store.worlds import put_before

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
CLOCK = datetime(2026, 5, 1, 12)  # noqa: DTZ001 - a reading of a wall clock


def test_a_row_is_its_key_and_its_values_in_the_order_of_the_schema(users: stelae.Table) -> None:
    txn = users.put({"score": 1.5, "view:b": b"2", "click:a": b"1", "name": "Ann", "id": "ann"})
    row = users.get("ann")
    assert row is not None
    assert list(row.items()) == [
        ("id", "ann"),
        ("name", "Ann"),
        ("age", 0),
        ("score", 1.5),
        ("tags", None),
        ("click:a", b"1"),
        ("view:b", b"2"),
    ]
    assert row.txn >= txn
    assert isinstance(row, stelae.Row)
    assert users.get("bob") is None


@pytest.mark.parametrize(
    "columns, expected",
    [
        (["name"], {"id": "ann", "name": "Ann"}),
        (["NAME", "Id"], {"id": "ann", "name": "Ann"}),
        (("age", "click:a"), {"id": "ann", "age": 31, "click:a": b"1"}),
        (["click:"], {"id": "ann", "click:a": b"1", "click:b": b"2"}),
        (["click"], {"id": "ann", "click:a": b"1", "click:b": b"2"}),
        (["id"], {"id": "ann"}),
        (["view:"], {"id": "ann"}),
        (["click:z"], {"id": "ann"}),
        (["score"], {"id": "ann", "score": None}),
    ],
    ids=str,
)
def test_columns_choose(users: stelae.Table, columns: list[str], expected: dict[str, Any]) -> None:
    users.put({"id": "ann", "name": "Ann", "age": 31, "click:a": b"1", "click:b": b"2"})
    assert users.get("ann", columns) == expected
    assert users.get("ann", columns) == expected
    assert users.get_many(["ann", "bob"], columns) == [expected, None]
    assert list(users.scan(columns=columns)) == [expected]
    has_any = columns == ["id"] or any(value is not None for name, value in expected.items() if name != "id")
    having = expected if has_any else None
    assert users.get("ann", columns, rows="having") == having
    assert users.get_many(["ann", "bob"], columns, rows="having") == [having, None]
    assert list(users.scan(columns=columns, rows="having")) == ([] if having is None else [having])


@pytest.mark.parametrize("columns", [["nme"], [], "name", [7], {"name": 1}, ["clik:a"], [["name"]]], ids=str)
def test_columns_that_cannot_be_are_told(users: stelae.Table, columns: Any) -> None:
    users.put({"id": "ann"})
    for read in (users.get, users.history):
        with pytest.raises(stelae.InvalidArgument):
            read("ann", columns)
    with pytest.raises(stelae.InvalidArgument):
        users.scan(columns=columns)


def test_the_nearest_column_is_suggested(users: stelae.Table) -> None:
    with pytest.raises(stelae.InvalidArgument, match=r"'nme'.*did you mean 'name'"):
        users.get("ann", ["nme"])


def test_moments_of_the_past(db: stelae.Database, users: stelae.Table) -> None:
    first = users.put({"id": "ann", "age": 1})
    with db.snapshot() as snapshot:
        users.put({"id": "ann", "age": 2})
        for at in (first, snapshot, snapshot.txn, to_datetime(first) + timedelta(milliseconds=0)):
            assert users.get("ann", at=at) is not None
        assert users.get("ann", at=first) == {**users.head()[0], "age": 1}
        assert [row["age"] for row in users.scan(at=snapshot)] == [1]
        assert int(snapshot) == snapshot.txn >= first
    assert users.get("ann", ["age"], at=db.now()) == {"id": "ann", "age": 2}
    assert users.get("ann", at=first - 1) is None
    with pytest.raises(stelae.Closed, match="snapshot"):
        users.get("ann", at=snapshot)


@pytest.mark.parametrize("at", [True, "now", 1.5, -1, CLOCK, 2**63], ids=str)
def test_what_is_no_moment(users: stelae.Table, at: Any) -> None:
    for read in (lambda: users.get("ann", at=at), lambda: users.scan(at=at), lambda: users.get_many(["ann"], at=at)):
        with pytest.raises(stelae.InvalidArgument):
            read()


@pytest.mark.parametrize(
    "text, keys",
    [
        ("bool", [False, True]),
        ("int8", [-128, 0, 127]),
        ("int64", [-(2**63), -1, 0, 2**63 - 1]),
        ("float64", [-1.5, 0.0, float("inf")]),
        ("decimal(10, 2)", [Decimal("-1.50"), Decimal("0.00"), Decimal("99999999.99")]),
        ("string", ["", "a", "a\x00b", "x" * 3_000, "ä"]),
        ("binary", [b"", b"\x00", b"\xff\xff"]),
        ("date", [date(1, 1, 1), date(2026, 1, 1)]),
        ("timestamp", [NOON, NOON + timedelta(microseconds=1)]),
        ("timestamp_ntz", [CLOCK]),
    ],
    ids=lambda each: each if isinstance(each, str) else "keys",
)
@pytest.mark.parametrize("partition", ["range", "hash"])
def test_keys_of_every_type(db: stelae.Database, text: str, keys: list[Any], partition: str) -> None:
    table = db.create_table("t", {"k": text}, [stelae.columns("g", {"v": "int64"})], partition=partition)
    for number, key in enumerate(keys):
        table.put({"k": key, "v": number})
    for number, key in enumerate(keys):
        assert table.get(key) == {"k": key, "v": number}
        assert table.get({"K": key}) == {"k": key, "v": number}
    assert [row["k"] for row in table.scan(ordered=True)] == keys
    assert [row["k"] for row in table.scan(ordered=True, reverse=True)] == keys[::-1]
    assert [row["k"] for row in table.scan(ordered=True, start=keys[1 % len(keys)])] == keys[1 % len(keys) :]
    assert [row["k"] for row in table.scan(ordered=True, stop=keys[-1])] == keys[:-1]
    table.erase(keys[0])
    assert table.get(keys[0]) is None


@pytest.mark.parametrize(
    "key", [None, 7, b"x", ("a", "b"), {"other": 1}, {}, "\ud800", ["a"], float("nan"), "x" * 5_000]
)
def test_keys_that_cannot_be(users: stelae.Table, key: Any) -> None:
    for call in (users.get, users.erase, users.exists, users.history, lambda key: users.get_many([key])):
        with pytest.raises(stelae.InvalidArgument):
            call(key)
    with pytest.raises(stelae.InvalidArgument):
        users.put({"id": key})
    assert users.count() == 0


def test_keys_of_several_columns(points: stelae.Table) -> None:
    points.put({"place": "a", "at": 2, "value": 7})
    assert points.get(("a", 2)) == points.get({"at": 2, "place": "a"}) == {"place": "a", "at": 2, "value": 7}
    assert points.get_many([("a", 1), {"place": "a", "at": 2}]) == [None, {"place": "a", "at": 2, "value": 7}]
    for key in ("a", ("a",), ("a", 2, 3), {"place": "a"}, ("a", "2"), ("a", True)):
        with pytest.raises(stelae.InvalidArgument):
            points.get(key)


def test_a_put_leaves_what_it_does_not_name_and_writes_null(users: stelae.Table) -> None:
    users.put({"id": "ann", "name": "Ann", "score": 1.0})
    users.put({"id": "ann", "name": None})
    assert users.get("ann", ["name", "score"]) == {"id": "ann", "name": None, "score": 1.0}
    users.put({"id": "bob"})
    assert users.exists("bob")
    users.put({"ID": "cay", "Click:A": b"1", "click": {"b": b"2"}})
    assert users.get("cay", ["click:"]) == {"id": "cay", "click:A": b"1", "click:b": b"2"}


@pytest.mark.parametrize(
    "row, words",
    [
        ({"id": "ann", "age": "x"}, ["'ann'", "'age'"]),
        ({"id": "ann", "age": 2**31}, ["'ann'", "'age'"]),
        ({"id": "ann", "age": None}, ["'ann'", "'age'"]),
        ({"id": "ann", "age": True}, ["'ann'", "'age'"]),
        ({"id": "ann", "nme": "x"}, ["'ann'", "'nme'", "'name'"]),
        ({"id": "ann", "click:a": "text"}, ["'ann'", "'click:a'"]),
        ({"id": "ann", "click:a": None}, ["'ann'", "'click:a'"]),
        ({"id": "ann", "name": "x" * (17 * 2**20)}, ["'ann'", "'name'"]),
        ({"name": "x"}, ["'id'"]),
        ("ann", ["dict"]),
        (None, ["dict"]),
    ],
    ids=lambda each: str(each)[:40],
)
def test_a_bad_row_is_refused_whole(users: stelae.Table, row: Any, words: list[str]) -> None:
    for write in (
        users.put,
        lambda bad: users.put(bad, if_absent=True),
        lambda bad: users.put_many([{"id": "x"}, bad]),
    ):
        with pytest.raises(stelae.InvalidArgument) as error:
            write(row)
        assert [word for word in words if word not in str(error.value) and word != "'ann'"] == []
    with pytest.raises(stelae.InvalidArgument) as error:
        users.put(row)
    assert [word for word in words if word not in str(error.value)] == []
    assert users.count() == 0


def test_times(users: stelae.Table) -> None:
    users.put({"id": "ann", "name": "new"}, ts=2_000)
    users.put({"id": "ann", "name": "old"}, ts=1_000)
    assert users.get("ann", ["name"]) == {"id": "ann", "name": "new"}
    assert [(each.value, each.ts) for each in users.history("ann")["name"]] == [("new", 2_000), ("old", 1_000)]
    for ts in (1.5, True, 2**62):
        with pytest.raises(stelae.InvalidArgument):
            users.put({"id": "ann"}, ts=ts)  # type: ignore[arg-type]


def test_histories(users: stelae.Table) -> None:
    txns = [users.put({"id": "ann", "age": age}) for age in range(3)]
    users.put({"id": "ann", "click:a": b"1"})
    found = users.history("ann")
    assert [(each.value, each.txn, each.erased) for each in found["age"]] == [
        (2, txns[2], False),
        (1, txns[1], False),
        (0, txns[0], False),
    ]
    assert list(found) == ["age", "click:a"]
    assert isinstance(found["age"][0], stelae.Version)
    assert [each.value for each in users.history("ann", ["age"], limit=2)["age"]] == [2, 1]
    assert [each.value for each in users.history("ann", ["age"], at=txns[0])["age"]] == [0]
    assert users.history("bob") == {}
    for limit in (0, -1, True, "x"):
        with pytest.raises(stelae.InvalidArgument, match="limit"):
            users.history("ann", limit=limit)  # type: ignore[arg-type]


def test_many_rows(users: stelae.Table) -> None:
    users.put_many([{"id": key, "age": at} for at, key in enumerate("azk")])
    assert [row and row["age"] for row in users.get_many(["k", "nobody", "a", "k"])] == [2, None, 0, 2]
    assert users.get_many([]) == []
    assert users.get_many(iter(["z"]))[0] == users.get("z")
    assert users.count() == 3
    assert users.count(stelae.col("age") > 0) == 2
    assert users.count(start="b", stop="l") == 1
    assert [row["id"] for row in users.head(2)] == ["a", "k"]
    for bad in ("ann", b"ann", {"id": 1}, 7):
        with pytest.raises(stelae.InvalidArgument):
            users.get_many(bad)  # type: ignore[arg-type]


def test_values_that_are_given_out_are_copies(users: stelae.Table) -> None:
    tags = ["x"]
    users.put({"id": "ann", "tags": tags})
    tags.append("y")
    for row in (users.get("ann"), users.get_many(["ann"])[0]):
        assert row is not None
        assert row["tags"] == ["x"]
        row["tags"].append("z")
    assert users.get("ann", ["tags"]) == {"id": "ann", "tags": ["x"]}


@pytest.mark.parametrize(
    "erase, left",
    [
        (lambda users: users.erase("ann"), None),
        (lambda users: users.erase("ann", ["age", "click:"]), {"id": "ann", "name": "b", "view:a": b"3"}),
        (lambda users: users.erase("ann", ["click:a"]), {"click:b": b"2"}),
        (lambda users: users.erase("ann", ["name"], ts=1_500), {"name": "b"}),
        (lambda users: users.erase("ann", ["name"], versions=[2_000]), {"name": "a"}),
        (lambda users: users.erase("nobody"), {"name": "b"}),
        (lambda users: users.erase_many(["ann", "nobody"]), None),
        (lambda users: users.erase_range("a", "b"), None),
        (lambda users: users.erase_range(prefix="an"), None),
        (lambda users: users.erase_range("b"), {"name": "b"}),
    ],
    ids=["row", "column and family", "cell", "up to", "version", "nobody", "many", "range", "prefix", "other"],
)
def test_erasures(users: stelae.Table, erase: Callable[[stelae.Table], Any], left: dict[str, Any] | None) -> None:
    users.put({"id": "ann", "name": "a"}, ts=1_000)
    users.put({"id": "ann", "name": "b", "age": 7, "click:a": b"1", "click:b": b"2", "view:a": b"3"}, ts=2_000)
    erase(users)
    row = users.get("ann")
    if left is None:
        assert row is None
    else:
        assert row is not None
        assert {**row, **left} == row


def test_an_erased_cell_is_gone_from_the_row(users: stelae.Table) -> None:
    users.put({"id": "ann", "age": 1, "click:a": b"1"})
    users.erase("ann", ["click:"])
    assert users.get("ann") == {"id": "ann", "name": None, "age": 1, "score": None, "tags": None}


def test_a_range_is_erased_over_tablets(users: stelae.Table) -> None:
    keys = sorted(f"{letter}{number}" for letter in "bhq" for number in range(50))
    users.put_many([{"id": key} for key in keys])
    assert users.erase_range("b3", "q2") == sum("b3" <= key < "q2" for key in keys)
    assert [row["id"] for row in users.scan()] == [key for key in keys if not "b3" <= key < "q2"]


def test_repeated_puts_of_cells_do_not_grow_without_end(users: stelae.Table) -> None:
    puts = users._known.view._puts
    for number in range(20_000):
        users._known.view.put_blocks({"id": "ann", f"click:{number}": b""}, None)
    assert len(puts._names._met) <= 10_000
    assert len(puts._plain._cells) <= 4_096


@pytest.mark.parametrize("reads", ["get", "get_many", "columns", "aged"])
def test_the_txn_of_a_row_is_of_the_read_itself(db: stelae.Database, reads: str) -> None:
    """Somebody writes the row after the call began, before it is read: the row shows that, and so does its txn."""
    group = stelae.columns("g", {"v": "int64"}, purge="max-age=1d" if reads == "aged" else None)
    table = db.create_table("t", key={"id": "string"}, groups=[group])
    table.put({"id": "a", "v": 1})
    failing: Any = put_before(db)
    waiting = [2]
    late = partial(_after_a_put, table, waiting)
    failing.newest, failing.newest_many = late(failing.behind.newest), late(failing.behind.newest_many)
    if (quick := failing.behind.quick) is not None:
        failing.quick = SimpleNamespace(values=late(quick.values), many=late(quick.many), few=quick.few)
    (row,) = table.get_many(["a"]) if reads == "get_many" else [table.get("a", ["v"] if reads == "columns" else None)]
    assert row == {"id": "a", "v": 1 if reads == "aged" else 2}
    assert table.get("a", at=row.txn) == row
    db._session.backend = failing.behind
    if reads != "aged":
        table.put({"id": "a", "v": 3}, if_unchanged_since=row.txn)


def _after_a_put(table: stelae.Table, waiting: list[int], read: Callable[..., Any]) -> Callable[..., Any]:
    def reading(*args: Any, **given: Any) -> Any:
        if waiting:
            table.put({"id": "a", "v": waiting.pop()})
        return read(*args, **given)

    return reading


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize(("ts", "found"), [(1_000, "many"), (3_000, "one")])
def test_the_newest_of_what_many_rows_and_single_ones_say(
    users: stelae.Table, before: bool, ts: int, found: str
) -> None:
    """The time decides, whichever was written first; so it does where one of them says only some columns."""
    many = [{"id": f"u{n:03d}", "name": "many", "age": n} for n in range(200)]
    if not before:
        users.put_many(many, ts=2_000)
    users.put({"id": "u007", "name": "one", "age": 1}, ts=ts)
    users.put({"id": "u008", "name": "one"}, ts=ts)
    if before:
        users.put_many(many, ts=2_000)
    asked = ["u007", "u008", "u009"]
    seen = [users.get(name, ["name", "age"]) for name in asked]
    assert [row and row["name"] for row in seen] == [found, found, "many"]
    assert [row and row["age"] for row in seen] == [7 if found == "many" else 1, 8, 9]
    assert users.get_many(asked, ["name", "age"]) == seen
    users.erase("u009", ts=2_000)
    assert users.get("u009") is None
    users.put({"id": "u009", "name": "again"}, ts=2_500)
    assert users.get("u009", ["name", "age"]) == {"id": "u009", "name": "again", "age": 0}  # the default
