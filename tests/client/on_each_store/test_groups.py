"""Groups that come, go and are filled anew in tables with data: what was written is read as it was, wherever it lies.

Between any two steps everything may be flushed, compacted, or the store opened again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

import stelae
from tests.client.places import Place

BETWEEN = ("nothing", "flush", "compact", "reopen")


class Store:
    """A table that goes through one kind of thing after each step."""

    def __init__(self, place: Place, between: str) -> None:
        self._place = place
        self._between = between
        self.db = place.open()
        self.table = self.db.create_table(
            "t",
            {"id": "string"},
            [
                stelae.columns("data", {"a": "int32", "b": "string", "c": "int64 not null default 5"}),
                stelae.cells("events", ["click", "view"]),
            ],
            splits=["m"],
            retention="1h",
        )
        self.table.put({"id": "ann", "a": 1, "b": "x", "c": 7, "click:q": b"1", "view:q": b"2"})
        self.table.put({"id": "bob", "a": 2})
        self.table.put({"id": "zoe"})
        self.pause()

    def pause(self) -> None:
        if self._between == "flush":
            self.table.flush()
        elif self._between == "compact":
            self.table.compact()
        elif self._between == "reopen":
            self.db.close()
            self._place.restart()
            self.db = self._place.open()
            self.table = self.db.table("t")

    def alter(self, **changes: Any) -> None:
        self.db.alter_table("t", **changes)
        self.pause()

    def put(self, **row: Any) -> int:
        txn = self.table.put(row)
        self.pause()
        return txn

    def rows(self, at: int | None = None) -> list[dict[str, Any]]:
        """The same by scan, by get, and in Arrow."""
        found = [dict(row) for row in self.table.scan(at=at)]
        got = [self.table.get(row["id"], at=at) for row in found]
        assert [dict(row) for row in got if row is not None] == found
        assert [row["id"] for row in self.table.scan(at=at).to_arrow().to_pylist()] == [row["id"] for row in found]
        return found


@pytest.fixture(params=BETWEEN)
def store(request: pytest.FixtureRequest, place: Place) -> Iterator[Store]:
    made = Store(place, request.param)
    yield made
    made.db.close()


FULL = {"id": "ann", "a": 1, "b": "x", "c": 7, "click:q": b"1", "view:q": b"2"}
BOB = {"id": "bob", "a": 2, "b": None, "c": 5}
ZOE = {"id": "zoe", "a": None, "b": None, "c": 5}


def test_a_group_is_added(store: Store) -> None:
    before = store.db.now()
    store.alter(
        add_groups=[
            stelae.columns(
                "more", {"d": "int32 not null default -3", "e": "decimal(5, 2) default 1.50"}, purge="max-history=2"
            ),
            stelae.cells("tags", ["tag"], in_memory=True),
        ]
    )
    new = {"d": -3, "e": Decimal("1.50")}
    assert store.rows()[1:] == [BOB | new, ZOE | new]
    assert store.rows(before)[1:] == [BOB | new, ZOE | new], "older snapshots are read by the columns of now"
    store.put(id="bob", d=1, **{"tag:x": b"1"})
    store.put(id="new", e=2)
    assert store.table.get("bob", ["a", "d", "tag:"]) == {"id": "bob", "a": 2, "d": 1, "tag:x": b"1"}
    assert store.table.get("bob", ["a", "d", "tag:"], at=before) == {"id": "bob", "a": 2, "d": -3}
    assert store.table.get("new") is not None
    assert store.table.get("new", at=before) is None
    found = store.db.describe("t")["groups"]
    assert found["more"]["columns"] == {"d": "int32 not null default -3", "e": "decimal(5, 2) default 1.50dec"}
    assert (found["more"]["purge"], found["tags"]["families"], found["tags"]["in_memory"]) == (
        "max-history=2",
        ["tag"],
        True,
    )


def test_a_group_is_dropped_and_made_again(store: Store) -> None:
    before = store.db.now()
    store.alter(drop_groups=["events"])
    ann = {"id": "ann", "a": 1, "b": "x", "c": 7}
    assert store.rows() == store.rows(before) == [ann, BOB, ZOE]
    with pytest.raises(stelae.InvalidArgument, match="click"):
        store.table.put({"id": "ann", "click:q": b"3"})
    store.alter(add_groups=[stelae.cells("events", ["click"])])
    assert store.rows() == [ann, BOB, ZOE], "what the old group had does not come back"
    store.put(id="ann", **{"click:r": b"4"})
    assert store.rows()[0] == ann | {"click:r": b"4"}


def test_the_group_that_says_which_rows_exist_is_dropped(store: Store) -> None:
    store.alter(add_groups=[stelae.columns("more", {"d": "int32"})])
    store.put(id="bob", d=1)
    store.alter(drop_groups=["data"])
    assert store.rows() == [
        {"id": "ann", "d": None, "click:q": b"1", "view:q": b"2"},
        {"id": "bob", "d": 1},
        {"id": "zoe", "d": None},
    ]
    store.table.erase("zoe")
    store.pause()
    assert [row["id"] for row in store.rows()] == ["ann", "bob"]


def test_columns_are_moved_to_a_new_group(store: Store) -> None:
    before = store.db.now()
    rows = store.rows()
    store.alter(add_groups=[stelae.columns("document", {})], move={"document": ["b"]})
    assert list(store.db.describe("t")["groups"]["document"]["columns"]) == ["b"]
    assert store.rows() == store.rows(before) == rows
    store.put(id="ann", b="y")
    store.put(id="bob", a=3)
    assert store.rows() == [FULL | {"b": "y"}, BOB | {"a": 3}, ZOE]
    assert store.rows(before) == rows
    assert [version.value for version in store.table.history("ann", ["b"])["b"]] == ["y", "x"]


def test_columns_move_about_and_back(store: Store) -> None:
    """What is compacted in the one group is not found again, older, in the other."""
    store.alter(add_groups=[stelae.columns("document", {"d": "int8"})], move={"document": ["b"]})
    store.put(id="ann", b="y")
    store.alter(move={"data": ["b"], "document": ["a"]})
    store.put(id="ann", a=10)
    store.table.erase("bob", columns=["a"])
    store.pause()
    store.alter(move={"data": ["a", "d"]}, drop_groups=["document"])
    assert store.rows() == [
        {"id": "ann", "a": 10, "b": "y", "c": 7, "d": None, "click:q": b"1", "view:q": b"2"},
        ZOE | {"d": None},
    ]


def test_families_move_and_their_group_goes(store: Store) -> None:
    before = store.db.now()
    store.alter(add_groups=[stelae.cells("all", ["buy"])], move={"all": ["click", "view"]}, drop_groups=["events"])
    assert list(store.db.describe("t")["groups"]) == ["data", "all"]
    store.put(id="ann", **{"view:q": b"3", "buy:x": b"1"})
    assert store.rows()[0] == FULL | {"view:q": b"3", "buy:x": b"1"}
    assert store.rows(before)[0] == FULL


def test_what_a_policy_purged_does_not_come_back_by_a_move(store: Store) -> None:
    store.alter(add_groups=[stelae.columns("short", {"d": "int8"}, purge="max-history=1")])
    for move in ({"short": ["b"]}, {"data": ["d"]}):
        with pytest.raises(stelae.InvalidSchema, match="what was purged must not come back"):
            store.db.alter_table("t", move=move)


def test_options_of_a_group_are_altered(store: Store) -> None:
    options = {"in_memory": True, "bloom": False, "compression": "lz4", "block_bytes": 65_536}
    store.alter(options={"data": options, "events": {"compression": "none"}})
    found = store.db.describe("t")["groups"]
    assert {name: found["data"][name] for name in options} == options
    assert (found["events"]["compression"], found["events"]["bloom"]) == ("none", True)
    assert store.rows() == [FULL, BOB, ZOE]
    store.put(id="bob", a=9)
    assert store.rows()[1] == BOB | {"a": 9}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"add_groups": [stelae.columns("more", {})]}, "group 'more': has 0 columns"),
        ({"add_groups": [stelae.columns("more", {"x": "int8 not null"})]}, "needs a default"),
        ({"add_groups": [stelae.columns("more", {"a": "int8"})]}, "has the same name"),
        ({"add_groups": [stelae.cells("Data", ["x"])]}, "has the same name"),
        ({"add_groups": stelae.cells("x")}, "add_groups= is a list"),
        ({"add_groups": ["x"]}, "a group is said by columns"),
        ({"drop_groups": ["dat"]}, "no group 'dat'; did you mean 'data'"),
        ({"drop_groups": ["data", "events"]}, "a table has from 1 to 100 groups"),
        ({"drop_groups": "data"}, "drop_groups= is a list"),
        ({"move": {"events": ["a"]}}, "no family 'a'"),
        ({"move": {"data": ["click"]}}, "no column 'click'"),
        ({"move": {"nowhere": ["a"]}}, "no group 'nowhere'"),
        ({"move": ["a"]}, "move= is a dict"),
        ({"move": {"data": "a"}}, "move= is a list"),
        ({"options": {"data": {"in_memry": True}}}, "no option 'in_memry'.*did you mean 'in_memory'"),
        ({"options": {"data": {"purge": "max-age=1d"}}}, "a purge policy has an argument of its own"),
        ({"options": {"data": {"in_memory": 1}}}, "in_memory is 1"),
        ({"options": {"data": {"compression": "gzip"}}}, "compression 'gzip'"),
        ({"options": {"data": True}}, "is a dict by option"),
        ({"options": {"nowhere": {"bloom": True}}}, "no group 'nowhere'"),
    ],
    ids=str,
)
def test_changes_of_groups_that_cannot_be(place: Place, changes: dict[str, Any], word: str) -> None:
    store = Store(place, "nothing")
    before = dict(store.db.describe("t"))
    with pytest.raises((stelae.InvalidArgument, stelae.InvalidSchema, stelae.NotFound), match=word):
        store.db.alter_table("t", **changes)
    assert dict(store.db.describe("t")) == before
    store.db.close()


def test_an_old_handle_writes_through_changes_of_groups(db: stelae.Database, users: stelae.Table) -> None:
    users.put({"id": "ann", "name": "Ann"})
    db.alter_table("users", add_groups=[stelae.columns("more", {}, purge="max-history=5")], move={"more": ["name"]})
    users.put({"id": "ann", "name": "Anna", "age": 3, "click:z": b"1"})
    db.alter_table("users", add_groups=[stelae.cells("rest")], move={"more": ["score"]})
    users.put_many([{"id": "ann", "score": 0.5, "any:x": b"2"}])
    wanted = {"id": "ann", "name": "Anna", "age": 3, "score": 0.5, "click:z": b"1", "any:x": b"2"}
    assert users.get("ann", list(wanted)[1:]) == wanted
    assert [row["name"] for row in users.scan('score = 0.5 and name = "Anna"')] == ["Anna"]


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("how", ["add_families", "add_groups"])
@pytest.mark.parametrize(("wild", "own"), [("max-history=1", None), ("max-age=1h", None), (None, "max-history=2")])
def test_a_family_that_is_declared_keeps_the_past_it_had_under_the_wildcard(
    place: Place, between: str, how: str, wild: str | None, own: str | None
) -> None:
    """What the wildcard's policy purged does not come back, whatever was compacted by then; what is written from now on
    is judged by the group's policy, and older snapshots read as they did."""
    store = Store(place, between)
    store.alter(add_groups=[stelae.cells("wild", purge=wild)])
    if how == "add_families":
        store.alter(purge={"events": own or "none"})
    now_us = time.time_ns() // 1_000
    for value, ago_s in ((b"old", 7_200), (b"first", 20), (b"second", 10)):
        store.table.put({"id": "ann", "fa:q": value, "fb:q": value}, ts=now_us - ago_s * 1_000_000)
        store.pause()

    def shown(at: object = None) -> list[Any]:
        row, versions = store.table.get("ann", at=at), store.table.history("ann", limit=None, at=at)
        (scanned,) = [dict(each.items()) for each in store.table.scan(at=at) if each["id"] == "ann"]
        assert row == scanned
        assert row is not None
        return [row.get("fa:q"), [each.value for each in versions.get("fa:q", [])]]

    before = shown()
    assert before[1] == {"max-history=1": [b"second"], "max-age=1h": [b"second", b"first"]}.get(
        wild or "", [b"second", b"first", b"old"]
    )
    then = store.table.get("ann")
    assert then is not None
    if how == "add_families":
        store.alter(add_families={"events": ["fa"]})
    else:
        store.alter(add_groups=[stelae.cells("late", ["fa"], purge=own)])
    assert shown() == [b"second", before[1][: 2 if own else None]]
    assert shown(then.txn) == before
    store.put(id="ann", **{"fa:q": b"third"})
    assert shown() == [b"third", [b"third", *before[1]][: 2 if own else None]]
    assert [each.value for each in store.table.history("ann", limit=None)["fb:q"]] == before[1]
    store.db.close()


@pytest.mark.parametrize("between", BETWEEN)
def test_a_wildcard_in_the_place_of_another_has_nothing_of_it(place: Place, between: str) -> None:
    store = Store(place, between)
    store.alter(add_groups=[stelae.cells("wild", purge="max-history=1")])
    store.put(id="ann", **{"x:q": b"1", "y:q": b"1"})
    store.put(id="ann", **{"x:q": b"2", "y:q": b"2"})
    store.alter(add_groups=[stelae.cells("other")], drop_groups=["wild"])
    assert store.rows()[0] == FULL
    store.put(id="ann", **{"x:r": b"3"})
    assert store.rows()[0] == FULL | {"x:r": b"3"}
    assert "y:q" not in store.table.history("ann")
    store.db.close()


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("how", ["add_families", "add_groups"])
def test_a_family_keeps_its_past_under_a_wildcard_that_goes_as_it_is_declared(
    place: Place, between: str, how: str
) -> None:
    store = Store(place, between)
    store.alter(add_groups=[stelae.cells("wild", purge="max-history=1")])
    for value in (b"1", b"2"):
        store.put(id="ann", **{"x:q": value, "y:q": value})
    added: dict[str, Any] = {"add_groups": [stelae.cells("late", ["x"])], "add_families": {"events": ["x"]}}
    store.alter(**{how: added[how]}, drop_groups=["wild"])
    assert store.rows()[0] == FULL | {"x:q": b"2"}
    assert [version.value for version in store.table.history("ann")["x:q"]] == [b"2"]
    store.put(id="ann", **{"x:q": b"3"})
    assert [version.value for version in store.table.history("ann")["x:q"]] == [b"3", b"2"]
    store.db.close()


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("how", ["drop the first", "add columns to cells", "drop all but cells"])
def test_a_key_that_was_purged_does_not_come_back_when_another_group_keeps_keys(
    place: Place, between: str, how: str
) -> None:
    first, second = stelae.columns("g", {"v": "int64"}, purge="max-age=1h"), stelae.columns("h", {"w": "int64"})
    cells = stelae.cells("c", ["f"], purge="max-age=1h" if how == "add columns to cells" else None)
    groups: dict[str, list[Any]] = {
        "drop the first": [first, second],
        "add columns to cells": [cells],
        "drop all but cells": [first, cells],
    }
    with place.open() as db:
        table = db.create_table("t", {"id": "string"}, groups[how], retention="1h")
        old_us = time.time_ns() // 1_000 - 2 * 3_600_000_000
        table.put({"id": "old"}, ts=old_us)
        table.put({"id": "new"})
        if between != "nothing":
            table.compact(erase_now=True) if between == "compact" else table.flush()
        now = db.now()
        changes: dict[str, Any] = {"drop_groups": ["g"]}
        db.alter_table("t", **({"add_groups": [second]} if how == "add columns to cells" else changes))
        table.put({"id": "later"}, ts=old_us)
    place.restart()
    with place.open() as db:
        table = db.table("t")
        for _ in range(2):
            assert [row["id"] for row in table.scan()] == ["later", "new"]
            assert [row["id"] for row in table.scan(at=now)] == ["new"]
            assert [table.get(key) is None for key in ("old", "new", "later")] == [True, False, False]
            table.compact()
        db.alter_table("t", add_groups=[stelae.columns("k", {"x": "int64"})], drop_groups=[table.schema.groups[0].name])
        assert [row["id"] for row in table.scan()] == ["later", "new"]
        assert table.get("old") is None
        assert table.count() == 2
