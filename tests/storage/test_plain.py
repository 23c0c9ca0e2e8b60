"""The rules of what a read shows, one worked example each: commits happen at 1 ms, 2 ms, 3 ms and so on (times are in
microseconds: 1000, 2000, 3000) and expected are the versions of each row, newest first, as (ts, value)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stelae.model.declare import cells, columns, declare
from stelae.model.errors import InvalidArgument
from stelae.model.hybrid import COUNTER_MAX, counter_of, micros_of, millis_of, pack
from stelae.model.ids import ColumnId, GroupId, Micros, Row, SchemaVersion, Txn
from stelae.model.mutation import Cell, Columns, Erase, EraseVersion, Mutation, Put, PutCell, WholeFamily, WholeRow
from stelae.model.predicate.plan import TimeRange
from stelae.model.purge import PastPolicy, parse_purge
from stelae.model.ranges import RangeSet, RowRange, single
from stelae.model.schema import CellsGroup, Column, ColumnsGroup, Family, Group, GroupOptions, TableSchema
from stelae.model.schema_checks import check_schema
from stelae.model.types import Int, widens
from stelae.model.values import coerce
from tests.effort import examples
from tests.storage import workloads
from tests.storage.plain import PlainRow, PlainTable, Version

NAME, AGE, CLICK, VIEW = ColumnId(3), ColumnId(4), ColumnId(6), ColumnId(7)
IDS = {"name": NAME, "age": AGE}
A, B = Row(b"a"), Row(b"b")
ROW, FAMILY, HOME = WholeRow(), WholeFamily("click"), Cell("click", "home")

Shown = dict[str, dict[str, list[tuple[int, Any]]]]


def users(purge: str | None = None, events_purge: str | None = None) -> TableSchema:
    """name and age in one group, the families click and view in another."""
    return declare(
        {"id": "string"},
        [
            columns("profile", {"name": "string", "age": "int32"}, purge=purge),
            cells("events", ["click", "view"], purge=events_purge),
        ],
    )


def wild(*named: str) -> TableSchema:
    groups = [cells("events", list(named))] if named else []
    return declare({"id": "string"}, [*groups, cells("rest")])


def put(ts: int | None = None, row: Row = A, **values: Any) -> Put:
    return Put(row, tuple((IDS[name], value) for name, value in values.items()), None if ts is None else Micros(ts))


def cell(name: str, value: bytes, ts: int | None = None, row: Row = A) -> PutCell:
    family, _, qualifier = name.partition(":")
    return PutCell(row, family, qualifier, value, None if ts is None else Micros(ts))


def erase(target: WholeRow | WholeFamily | Columns | Cell, until: int | None = None) -> Erase:
    return Erase(A, target, None if until is None else Micros(until))


def version(target: Columns | Cell, ts: int) -> EraseVersion:
    return EraseVersion(A, target, Micros(ts))


def col(*names: str) -> Columns:
    return Columns(tuple(IDS[name] for name in names))


def table_of(schema: TableSchema, commits: Sequence[Sequence[Mutation]]) -> PlainTable:
    table = PlainTable(schema)
    for ms, block in enumerate(commits, 1):
        table.commit(pack(ms), block)
    return table


def shown(rows: dict[Row, PlainRow]) -> Shown:
    return {
        row.decode("latin-1"): {name: [(v.ts, v.value) for v in versions] for name, versions in found.versions.items()}
        for row, found in rows.items()
    }


def example(
    name: str, *commits: Sequence[Mutation], sees: Shown, schema: TableSchema | None = None, at: int = 0, **read: Any
) -> Any:
    """A case: what a read at `at` ms (the last commit's unless said) sees of the commits."""
    return pytest.param(commits, schema or users(), pack(at or len(commits)), read, sees, id=name.replace(" ", "-"))


def aged(policy: str) -> TableSchema:
    return users(purge=policy)


VERSIONS = [
    example("a put has the time of its commit", [put(name="x")], sees={"a": {"name": [(1000, "x")]}}),
    example("a put has the time it names", [put(5, name="x")], sees={"a": {"name": [(5, "x")]}}),
    example("the newest by ts wins", [put(9, age=1)], [put(5, age=2)], sees={"a": {"age": [(9, 1)]}}),
    example("at one ts the later commit wins", [put(5, age=1)], [put(5, age=2)], sees={"a": {"age": [(5, 2)]}}),
    example(
        "at one ts both are versions",
        [put(5, age=1)],
        [put(5, age=2)],
        history=9,
        sees={"a": {"age": [(5, 2), (5, 1)]}},
    ),
    example("NULL is a value and hides", [put(name="x")], [put(name=None)], sees={"a": {"name": [(2000, None)]}}),
    example(
        "history is how many of each column",
        [put(name="x", age=1)],
        [put(age=2)],
        [put(age=3)],
        history=2,
        sees={"a": {"name": [(1000, "x")], "age": [(3000, 3), (2000, 2)]}},
    ),
    example(
        "a time range is taken before the history",
        [put(age=1)],
        [put(age=2)],
        [put(age=3)],
        time=TimeRange(1000, 3000),
        sees={"a": {"age": [(2000, 2)]}},
    ),
    example("nothing in the time range is no row", [put(age=1)], time=TimeRange(1001), sees={}),
    example("a snapshot sees no later commit", [put(age=1)], [put(age=2)], at=1, sees={"a": {"age": [(1000, 1)]}}),
    example("cells have versions of their own", [cell("click:home", b"1"), cell("click:shop", b"2")],
            [cell("click:home", b"3"), cell("view:home", b"4")],
            sees={"a": {"click:home": [(2000, b"3")], "click:shop": [(1000, b"2")], "view:home": [(2000, b"4")]}}),
    example("two rows", [put(age=1), put(row=B, age=2)], sees={"a": {"age": [(1000, 1)]}, "b": {"age": [(1000, 2)]}}),
    example("rows in ranges", [put(age=1), put(row=B, age=2)], rows=RangeSet.of([single(B)]),
            sees={"b": {"age": [(1000, 2)]}}),
]  # fmt: skip

APPEARANCE = [
    example("a NULL makes a row", [put(name=None)], sees={"a": {"name": [(1000, None)]}}),
    example("the key alone makes a row", [put()], sees={"a": {}}),
    example("the key alone at a time outside", [put(5)], time=TimeRange(6), sees={}),
    example("the key alone at a time inside", [put(5)], time=TimeRange(5, 6), sees={"a": {}}),
    example("a row without the column asked for", [put(age=1)], columns=["name"], sees={"a": {}}),
    example("a row having none of them", [put(age=1)], columns=["name"], having=True, sees={}),
    example("a row having NULL", [put(name=None)], columns=["name"], having=True, sees={"a": {"name": [(1000, None)]}}),
    example("the key alone has no column", [put()], having=True, sees={}),
    example("a row of another group", [cell("click:a", b"1")], columns=["name"], sees={"a": {}}),
    example("a row with one of them", [put(age=1)], columns=["name", "age"], sees={"a": {"age": [(1000, 1)]}}),
    example("the key alone whatever is asked for", [put(), put(age=1)], columns=["name"], sees={"a": {}}),
    example("asking for nothing", [put(), put(row=B, age=1)], columns=[], sees={"a": {}, "b": {}}),
    example(
        "asking for a family", [cell("click:a", b"1"), cell("view:a", b"2")], columns=["click:"],
        sees={"a": {"click:a": [(1000, b"1")]}},
    ),
    example(
        "asking for a cell", [cell("click:a", b"1"), cell("click:ab", b"2")], columns=["click:a"],
        sees={"a": {"click:a": [(1000, b"1")]}},
    ),
]  # fmt: skip

BLOCKS = [
    example("the last mention wins", [put(age=1), put(age=2)], history=9, sees={"a": {"age": [(1000, 2)]}}),
    example(
        "mentions at other times are versions",
        [put(5, age=1), put(7, age=2)],
        history=9,
        sees={"a": {"age": [(7, 2), (5, 1)]}},
    ),
    example("a later erasure removes", [put(age=1, name="x"), erase(col("age"))], sees={"a": {"name": [(1000, "x")]}}),
    example(
        "a later erasure removes up to its time",
        [put(5, age=1), put(7, age=2), erase(col("age"), 6)],
        history=9,
        sees={"a": {"age": [(7, 2)]}},
    ),
    example("a later erasure of a version", [put(5, age=1), version(col("age"), 5)], sees={}),
    example("an earlier erasure does not", [erase(ROW), put(age=1)], sees={"a": {"age": [(1000, 1)]}}),
    example("erased and put again", [put(age=1), erase(ROW), put(age=2)], sees={"a": {"age": [(1000, 2)]}}),
    example(
        "an earlier erasure still reaches older commits",
        [put(4, age=1)],
        [erase(ROW, 9), put(5, age=2)],
        history=9,
        sees={"a": {"age": [(5, 2)]}},
    ),
    example("the key outlives its columns", [put(), put(age=1), erase(col("age"))], sees={"a": {}}),
    example("the key outlives its cells", [put(), cell("click:a", b"1"), erase(FAMILY)], sees={"a": {}}),
    example("the key falls with the row", [put(), erase(ROW)], sees={}),
    example("values erased leave no key", [put(age=1), erase(col("age"))], sees={}),
]

ERASURES = [
    example("the row", [put(age=1), cell("click:home", b"1"), put()], [erase(ROW)], sees={}),
    example("the row up to a time inclusive", [put(5, age=1), put(6, name="x")], [erase(ROW, 5)],
            sees={"a": {"name": [(6, "x")]}}),
    example("the key up to a time", [put(5)], [erase(ROW, 4)], sees={"a": {}}),
    example("only the row that is named", [put(age=1), put(row=B, age=2)], [erase(ROW)],
            sees={"b": {"age": [(1000, 2)]}}),
    example("one column of two", [put(age=1, name="x")], [erase(col("age"))], sees={"a": {"name": [(1000, "x")]}}),
    example("two columns of two", [put(age=1, name="x")], [erase(col("age", "name"))], sees={}),
    example("a family", [cell("click:home", b"1"), cell("view:home", b"2")], [erase(FAMILY)],
            sees={"a": {"view:home": [(1000, b"2")]}}),
    example("a cell", [cell("click:home", b"1"), cell("click:shop", b"2")], [erase(HOME)],
            sees={"a": {"click:shop": [(1000, b"2")]}}),
    example("columns leave cells", [cell("click:a", b"1"), put(age=1)], [erase(col("age", "name"))],
            sees={"a": {"click:a": [(1000, b"1")]}}),
    example("columns leave the key", [put(), put(age=1)], [erase(col("age"))], sees={"a": {}}),
    example("one version of a column", [put(5, age=1)], [put(7, age=2)], [version(col("age"), 7)],
            sees={"a": {"age": [(5, 1)]}}),
    example("one version of a cell", [cell("click:home", b"1", 5)], [cell("click:home", b"2", 7)], [version(HOME, 5)],
            history=9, sees={"a": {"click:home": [(7, b"2")]}}),
    example("a version that is not there", [put(5, age=1)], [version(col("age"), 6)], sees={"a": {"age": [(5, 1)]}}),
    example("a version put by two commits", [put(5, age=1)], [put(5, age=2)], [version(col("age"), 5)], sees={}),
    example("not the future", [put(9000, age=1)], [erase(ROW)], sees={"a": {"age": [(9000, 1)]}}),
    example("the future if it is said", [put(9000, age=1)], [erase(ROW, 9000)], sees={}),
    example("a later write with an old ts is visible", [put(5, age=1)], [erase(ROW)], [put(4, age=2)],
            history=9, sees={"a": {"age": [(4, 2)]}}),
    example("a later key alone with an old ts", [put(5)], [erase(ROW)], [put(4)], sees={"a": {}}),
    example("before an erasure all is there", [put(5, age=1)], [erase(ROW)], at=1, sees={"a": {"age": [(5, 1)]}}),
    example("without a policy the older one shows again", [put(age=1)], [put(age=2)], [version(col("age"), 2000)],
            sees={"a": {"age": [(1000, 1)]}}),
]  # fmt: skip

AND = "max-history=1 and max-age=5ms"
OR = "max-history=1 or max-age=5ms"
PURGES = [
    example("so many newest", [put(age=1)], [put(age=2)], [put(age=3)], schema=aged("max-history=2"), history=9,
            sees={"a": {"age": [(3000, 3), (2000, 2)]}}),
    example("all of one commit at once", [put(1, age=1), put(2, age=2), put(3, age=3)], schema=aged("max-history=1"),
            history=9, sees={"a": {"age": [(3, 3)]}}),
    example("each column counts for itself", [put(age=1, name="x")], [put(age=2)], schema=aged("max-history=1"),
            history=9, sees={"a": {"age": [(2000, 2)], "name": [(1000, "x")]}}),
    example("a late write is old at once", [put(9, age=1)], [put(5, age=2)], [version(col("age"), 9)],
            schema=aged("max-history=1"), sees={}),
    example("what was pushed out does not come back", [put(age=1)], [put(age=2)], [version(col("age"), 2000)],
            schema=aged("max-history=1"), sees={}),
    example("a snapshot before the push has it", [put(age=1)], [put(age=2)], [version(col("age"), 2000)], at=1,
            schema=aged("max-history=1"), sees={"a": {"age": [(1000, 1)]}}),
    example("what was erased before pushes nothing", [put(age=1)], [put(9000, age=2)], [erase(col("age"), 9000)],
            [put(5, age=3)], schema=aged("max-history=1"), sees={"a": {"age": [(5, 3)]}}),
    example("erased and put in one commit pushes nothing", [put(9000, age=1)], [erase(ROW, 9000), put(5, age=2)],
            schema=aged("max-history=1"), history=9, sees={"a": {"age": [(5, 2)]}}),
    example("just as old as allowed", [put(age=1)], schema=aged("max-age=5ms"), at=6,
            sees={"a": {"age": [(1000, 1)]}}),
    example("older than allowed", [put(999, age=1)], schema=aged("max-age=5ms"), at=6, sees={}),
    example("ages count to the reads own time", [put(age=1)], schema=aged("max-age=5ms"), read_us=6001, sees={}),
    example("an earlier time of reading brings nothing back", [put(1, age=1)], [put(2000, name="x")], at=9,
            schema=aged("max-age=1ms"), read_us=0, sees={"a": {"name": [(2000, "x")]}}),
    example("too old when it is written", [put(-5000, age=1)], schema=aged("max-age=5ms"), read_us=-5000, sees={}),
    example("the future has no age", [put(10**15, age=1)], schema=aged("max-age=5ms"), at=999,
            sees={"a": {"age": [(10**15, 1)]}}),
    example("and keeps the young", [put(age=1)], [put(age=2)], schema=aged(AND), at=6, history=9,
            sees={"a": {"age": [(2000, 2), (1000, 1)]}}),
    example("and drops the old that has a newer", [put(age=1)], [put(age=2)], schema=aged(AND), at=7, history=9,
            sees={"a": {"age": [(2000, 2)]}}),
    example("and keeps the only one", [put(age=1)], schema=aged(AND), at=99, sees={"a": {"age": [(1000, 1)]}}),
    example("and needs both at one moment", [put(age=1)], [put(age=2)], [version(col("age"), 2000)], at=99,
            schema=aged(AND), sees={"a": {"age": [(1000, 1)]}}),
    example("or drops the young that has a newer", [put(age=1)], [put(age=2)], schema=aged(OR), history=9,
            sees={"a": {"age": [(2000, 2)]}}),
    example("or drops the only one when old", [put(age=1)], schema=aged(OR), at=7, sees={}),
    example("each group has its own", [put(age=1), cell("click:a", b"1")], [put(age=2), cell("click:a", b"2")],
            schema=users("max-history=1", None), history=9,
            sees={"a": {"age": [(2000, 2)], "click:a": [(2000, b"2"), (1000, b"1")]}}),
    example("cells are counted by cell", [cell("click:a", b"1"), cell("click:b", b"2")], [cell("click:a", b"3")],
            schema=users(None, "max-history=1"), history=9,
            sees={"a": {"click:a": [(2000, b"3")], "click:b": [(1000, b"2")]}}),
    example("the key ages as a column does", [put()], schema=aged("max-age=5ms"), at=7, sees={}),
    example("the key has the policy of the first group of columns", [put()], schema=users(None, "max-age=5ms"), at=7,
            sees={"a": {}}),
    example("also where cells come first", [put()], at=7, schema=declare({"id": "string"}, [
            cells("events", ["click"], purge="max-age=5ms"), columns("profile", {"name": "string"})]), sees={"a": {}}),
    example("the key in a table of cells has the policy of the first group", [put()], at=7,
            schema=declare({"id": "string"}, [cells("f", ["click"], purge="max-age=5ms"), cells("rest")]), sees={}),
    example("keys push each other out", [put(5)], [put(7)], [put(row=B)], schema=aged("max-history=1"),
            time=TimeRange(5, 6), sees={}),
]  # fmt: skip


@pytest.mark.parametrize("commits, schema, at, read, sees", [*VERSIONS, *APPEARANCE, *BLOCKS, *ERASURES, *PURGES])
def test_what_a_read_sees(
    commits: Sequence[Sequence[Mutation]], schema: TableSchema, at: Txn, read: dict[str, Any], sees: Shown
) -> None:
    assert shown(table_of(schema, commits).read(at, **read)) == sees


def test_the_moment_before_a_commit_counts() -> None:
    """At 8 ms the first version is 7 ms old and has a newer one; that the same commit takes the newer one away comes
    too late for it. Nobody read or wrote in between."""
    table = table_of(aged(AND), [[put(age=1)], [put(age=2)]])
    table.commit(pack(8), [version(col("age"), 2000)])
    assert shown(table.read(pack(6), history=9)) == {"a": {"age": [(2000, 2), (1000, 1)]}}
    assert table.read(pack(8)) == {}


def test_a_version_says_its_commit() -> None:
    table = table_of(users(), [[put(5, age=1)], [put(row=B)]])
    assert table.read(pack(2)) == {A: PlainRow({"age": (Version(Micros(5), pack(1), 1),)}), B: PlainRow({})}


def test_an_unknown_column_is_refused_and_the_block_has_no_effect() -> None:
    table = PlainTable(users())
    for bad in (Put(A, ((ColumnId(99), 1),)), cell("other:a", b""), erase(Columns((ColumnId(99),)))):
        with pytest.raises(InvalidArgument):
            table.commit(pack(1), [put(age=1), bad])
    for name in ("other", "click", "other:", "id"):
        with pytest.raises(InvalidArgument):
            table.read(pack(1), columns=[name])
    assert (table.rows(), table.last) == ((), 0)


def test_commits_come_in_order() -> None:
    table = table_of(users(), [[put(age=1)]])
    with pytest.raises(ValueError, match="not above"):
        table.commit(pack(1), [put(age=2)])
    with pytest.raises(ValueError, match="not above"):
        table.truncate(pack(1))


def test_truncation() -> None:
    table = table_of(users("max-history=1"), [[put(9, age=1), put()], [put(row=B, age=2)]])
    table.truncate(pack(3))
    table.commit(pack(4), [put(5, age=3)])
    table.truncate(pack(5))
    before = {"a": {"age": [(9, 1)]}, "b": {"age": [(2000, 2)]}}
    after_first: Shown = {"a": {"age": [(5, 3)]}}  # what was truncated no longer pushes it out
    expected: dict[int, Shown] = {1: {"a": before["a"]}, 2: before, 3: {}, 4: after_first, 5: {}, 6: {}}
    assert {ms: shown(table.read(pack(ms), history=9)) for ms in range(1, 7)} == expected


def test_the_last_commit_of_a_row() -> None:
    table = table_of(users(), [[put(age=1), erase(ROW)], [put(row=B)], [version(col("age"), 7)]])
    assert [table.last_txn(row) for row in (A, B, Row(b"c"))] == [pack(3), pack(2), 0]
    table.truncate(pack(4))
    table.commit(pack(5), [put(age=1)])
    assert [table.last_txn(row) for row in (A, B, Row(b"c"))] == [pack(5), pack(4), pack(4)]


def test_rows_come_in_order() -> None:
    table = table_of(users(), [[put(row=B)], [put(age=1)]])
    assert [*table.read(pack(2))] == [*table.rows()] == [A, B]


def altered(schema: TableSchema, *groups: Group) -> TableSchema:
    return check_schema(
        replace(schema, version=SchemaVersion(schema.version + 1), groups=groups, last_id=schema.last_id + 3)
    )


def profile(schema: TableSchema) -> ColumnsGroup:
    return next(group for group in schema.groups if isinstance(group, ColumnsGroup))


def events(schema: TableSchema) -> CellsGroup:
    return next(group for group in schema.groups if isinstance(group, CellsGroup))


def full() -> PlainTable:
    """Two commits on every column and family, and a row of B that is its key alone."""
    return table_of(
        users(),
        [
            [put(name=str(n), age=n), cell("click:a", bytes([n])), cell("view:a", bytes([n])), put(row=B)]
            for n in (1, 2)
        ],
    )


BOTH: dict[str, list[tuple[int, Any]]] = {
    "name": [(2000, "2"), (1000, "1")],
    "age": [(2000, 2), (1000, 1)],
    "click:a": [(2000, b"\x02"), (1000, b"\x01")],
    "view:a": [(2000, b"\x02"), (1000, b"\x01")],
}


def but(*names: str, **renamed: str) -> Shown:
    """What `full` shows, less some, and some by other names."""
    return {"a": {renamed.get(name, name): found for name, found in BOTH.items() if name not in names}, "b": {}}


def test_renamed_columns_and_families_keep_their_data() -> None:
    table = full()
    old = table.schema
    name, age = profile(old).columns
    click, view = events(old).families
    table.alter(
        altered(
            old,
            replace(profile(old), columns=(replace(name, name="age"), replace(age, name="name"))),
            replace(events(old), families=(replace(click, name="view"), replace(view, name="tap"))),
        )
    )
    renamed = {"name": "age", "age": "name", "click:a": "view:a", "view:a": "tap:a"}
    assert shown(table.read(pack(2), history=9)) == but(**renamed)
    assert shown(table.read(pack(1)))["a"]["age"] == [(1000, "1")]
    table.commit(pack(3), [put(age=3)])
    assert shown(table.read(pack(3), columns=["name"]))["a"] == {"name": [(3000, 3)]}


@pytest.mark.parametrize("again", [False, True], ids=["at-once", "after-a-while"])
def test_a_dropped_column_comes_back_empty(again: bool) -> None:
    table = full()
    old = table.schema
    name, age = profile(old).columns
    without = altered(old, replace(profile(old), columns=(name,)), events(old))
    if again:
        table.alter(without)
        assert shown(table.read(pack(2), history=9)) == but("age")
    added = replace(age, id=ColumnId(without.last_id + 1))
    table.alter(altered(without, replace(profile(old), columns=(name, added)), events(old)))
    assert shown(table.read(pack(2), history=9)) == but("age")
    assert table.last_txn(A) == pack(2)


def test_a_dropped_family_comes_back_empty() -> None:
    table = full()
    old = table.schema
    click, view = events(old).families
    table.alter(altered(old, profile(old), replace(events(old), families=(view,))))
    added = replace(click, id=ColumnId(table.schema.last_id + 1))
    table.alter(altered(table.schema, profile(old), replace(events(old), families=(view, added))))
    assert shown(table.read(pack(2), history=9)) == but("click:a")


def test_erasures_follow_their_column_by_id() -> None:
    """An erasure of what was dropped does not reach what has the name now, though written with an old ts and txn."""
    table = table_of(users(), [[put(name="x", age=1), cell("click:a", b"1")], [erase(col("age")), erase(FAMILY)]])
    old = table.schema
    name, age = profile(old).columns
    click, view = events(old).families
    table.alter(
        altered(
            old,
            replace(profile(old), columns=(replace(name, name="age"), replace(age, name="name"))),
            replace(events(old), families=(replace(view, name="click"), replace(click, name="view"))),
        )
    )
    assert shown(table.read(pack(2))) == {"a": {"age": [(1000, "x")]}}
    assert shown(table.read(pack(1))) == {"a": {"age": [(1000, "x")], "name": [(1000, 1)], "view:a": [(1000, b"1")]}}


def test_a_widened_column_reads_as_before() -> None:
    table = full()
    old = table.schema
    name, age = profile(old).columns
    table.alter(altered(old, replace(profile(old), columns=(name, replace(age, type=Int(64)))), events(old)))
    table.commit(pack(3), [put(age=2**40)])
    assert shown(table.read(pack(3), columns=["age"], history=9))["a"]["age"] == [(3000, 2**40), *BOTH["age"]]


@pytest.mark.parametrize("type_", list(workloads.VALUES), ids=str)
def test_values_of_a_type_are_values_of_the_wider_ones(type_: Any) -> None:
    """So a model that keeps Python values has nothing to convert."""
    for wider in workloads.VALUES:
        if widens(type_, wider):
            for value in workloads.VALUES[type_]:
                assert repr(coerce(wider, value, "it")) == repr(value)


def test_an_added_column_is_not_there_until_it_is_written() -> None:
    table = full()
    old = table.schema
    added = Column(ColumnId(old.last_id + 1), "level", Int(32), nullable=False, default=7)
    table.alter(altered(old, replace(profile(old), columns=(*profile(old).columns, added)), events(old)))
    assert shown(table.read(pack(2), history=9)) == but()
    assert table.read(pack(2), columns=["level"], having=True) == {}


def test_moving_changes_which_policy_applies_and_nothing_else() -> None:
    table = full()
    old = table.schema
    name, age = profile(old).columns
    click, view = events(old).families
    short = GroupOptions(purge=parse_purge("max-history=1"))
    table.alter(
        altered(
            old,
            replace(profile(old), columns=(name,)),
            replace(events(old), families=(click,)),
            ColumnsGroup(GroupId(old.last_id + 1), "c", (age,), short),
            CellsGroup(GroupId(old.last_id + 2), "f", (view,), options=short),
        )
    )
    expected = but()
    expected["a"] |= {"age": BOTH["age"][:1], "view:a": BOTH["view:a"][:1]}
    assert shown(table.read(pack(2), history=9)) == expected
    table.alter(altered(table.schema, *old.groups))
    assert shown(table.read(pack(2), history=9)) == but()


def test_dropping_groups_takes_their_data_and_not_the_row() -> None:
    table = full()
    old = table.schema
    table.alter(altered(old, events(old)))
    assert shown(table.read(pack(2), history=9)) == but("name", "age")
    table.alter(altered(table.schema, *old.groups))
    assert shown(table.read(pack(2), history=9)) == but("name", "age")


def test_a_row_that_only_dropped_columns_had_is_gone() -> None:
    table = table_of(users(), [[put(age=1)]])
    table.alter(altered(table.schema, events(table.schema)))
    assert table.read(pack(1)) == {}


def test_a_family_that_becomes_declared_keeps_its_data_and_its_erasures() -> None:
    table = table_of(
        wild(), [[cell("click:a", b"1"), cell("other:a", b"2")], [erase(FAMILY)], [cell("click:a", b"3", 5)]]
    )
    rest = events(table.schema)
    named = CellsGroup(GroupId(11), "named", (Family(ColumnId(12), "click"),))
    table.alter(check_schema(replace(table.schema, version=SchemaVersion(2), groups=(rest, named), last_id=12)))
    assert shown(table.read(pack(3), history=9)) == {"a": {"click:a": [(5, b"3")], "other:a": [(1000, b"2")]}}
    assert shown(table.read(pack(1), columns=["click:"])) == {"a": {"click:a": [(1000, b"1")]}}
    table.alter(altered(table.schema, rest))
    assert shown(table.read(pack(3), history=9)) == {"a": {"other:a": [(1000, b"2")]}}


def test_a_wildcard_has_nothing_of_the_families_declared_before() -> None:
    table = full()
    rest = CellsGroup(GroupId(table.schema.last_id + 1), "rest", wildcard=True)
    table.alter(altered(table.schema, profile(table.schema), rest))
    assert shown(table.read(pack(2), history=9)) == but("click:a", "view:a")
    table.commit(pack(3), [cell("click:a", b"9", 5)])
    assert shown(table.read(pack(3), columns=["click:"]))["a"] == {"click:a": [(5, b"9")]}
    table.alter(altered(table.schema, profile(table.schema)))
    table.alter(altered(table.schema, profile(table.schema), replace(rest, id=GroupId(table.schema.last_id + 1))))
    assert table.read(pack(3), columns=["click:"], having=True) == {}


def test_a_family_renamed_to_a_name_of_the_wildcard_takes_it_over() -> None:
    table = table_of(wild("click"), [[cell("click:a", b"1"), cell("tap:a", b"2")]])
    named, rest = table.schema.groups
    click = Family(ColumnId(3), "click")
    assert isinstance(named, CellsGroup)
    assert named.families == (click,)
    table.alter(altered(table.schema, replace(named, families=(replace(click, name="tap"),)), rest))
    assert shown(table.read(pack(1), history=9)) == {"a": {"tap:a": [(1000, b"1")]}}
    table.alter(altered(table.schema, named, rest))
    assert shown(table.read(pack(1), history=9)) == {"a": {"click:a": [(1000, b"1")]}}


def test_a_column_named_as_a_family_of_the_wildcard_is_not_it() -> None:
    schema = declare({"id": "string"}, [columns("c", {"x": "int32"}), cells("rest")])
    table = table_of(schema, [[cell("y:a", b"1")]])
    group, rest = schema.groups
    assert isinstance(group, ColumnsGroup)
    added = Column(ColumnId(schema.last_id + 1), "y", Int(32))
    table.alter(altered(schema, replace(group, columns=(*group.columns, added)), rest))
    table.commit(pack(2), [cell("y:a", b"2")])
    assert shown(table.read(pack(2), history=9)) == {"a": {"y:a": [(2000, b"2"), (1000, b"1")]}}


def test_a_policy_judges_its_own_time_and_what_is_left_of_the_time_before() -> None:
    """Loosened after the first millisecond, tightened after the third."""
    past = (
        PastPolicy(parse_purge("max-history=1"), pack(1, 9)),
        PastPolicy(parse_purge("max-history=3"), pack(3, 9)),
    )
    schema = users(purge="max-history=2")
    group = replace(profile(schema), options=replace(profile(schema).options, past=past))
    puts = [pack(1), pack(1, 1), pack(2), pack(3), pack(4)]
    table = PlainTable(altered(schema, group, events(schema)))
    for age, txn in enumerate(puts):
        table.commit(txn, [put(ts=age, age=age)])

    def ages(at: Txn) -> list[object]:
        found = table.read(at, columns=["age"], history=9)
        return [version.value for version in next(iter(found.values())).versions["age"]]

    assert [ages(txn) for txn in puts] == [[0], [1], [2, 1], [3, 2, 1], [4, 3]]
    assert [ages(at) for at in (pack(1, 9), pack(1, 10), pack(3, 9), pack(3, 10))] == [[1], [1], [3, 2, 1], [3, 2]]


def test_a_policy_is_asked_when_its_time_ends() -> None:
    """Too old by the end, and by then only: neither at the last commit, nor by the policy that follows."""
    past = (PastPolicy(parse_purge("max-age=5ms"), pack(6)),)
    schema = users()
    group = replace(profile(schema), options=replace(profile(schema).options, past=past))
    table = PlainTable(altered(schema, group, events(schema)))
    table.commit(pack(1), [put(ts=0, age=1)])
    assert [bool(table.read(at)) for at in (pack(1), pack(5), pack(6), pack(6, 1))] == [True, True, False, False]
    table.commit(pack(7), [put(ts=0, age=2)])
    assert shown(table.read(pack(9), history=9))["a"]["age"] == [(0, 2)]


Commits = list[tuple[Txn, tuple[Mutation, ...]]]


@st.composite
def stories(
    draw: st.DrawFn, times: Sequence[Micros | None] = workloads.TIMES
) -> tuple[TableSchema, list[Row], Commits]:
    schema = draw(workloads.schemas())
    rows = draw(workloads.row_sets(schema))[:3]
    txn, commits = workloads.START, []
    for _ in range(draw(st.integers(1, 8))):
        txn = draw(workloads.txns_after(txn))
        commits.append((txn, draw(workloads.blocks(schema, rows, times))))
    return schema, rows, commits


def without_policies(schema: TableSchema) -> TableSchema:
    free = tuple(replace(group, options=replace(group.options, purge=None)) for group in schema.groups)
    return replace(schema, groups=free)


def told(schema: TableSchema, commits: Commits) -> PlainTable:
    table = PlainTable(schema)
    for txn, block in commits:
        table.commit(txn, block)
    return table


@settings(max_examples=examples(100))
@given(stories())
def test_a_snapshot_never_changes(story: tuple[TableSchema, list[Row], Commits]) -> None:
    schema, _, commits = story
    table = PlainTable(schema)
    snapshots = {}
    for txn, block in commits:
        table.commit(txn, block)
        snapshots[txn] = table.read(txn, history=9)
    table.truncate(Txn(table.last + 1))
    assert {txn: table.read(txn, history=9) for txn in snapshots} == snapshots


@settings(max_examples=examples(100))
@given(stories(times=[time for time in workloads.TIMES if time is not None]))
def test_rows_know_nothing_of_each_other(story: tuple[TableSchema, list[Row], Commits]) -> None:
    """A block with a commit for each of its rows, all in one millisecond, shows the same at the same times."""
    schema, rows, commits = story
    apart, whole = PlainTable(schema), PlainTable(schema)
    for txn, block in commits:
        for number, row in enumerate(rows):
            part = [mutation for mutation in block if mutation.row == row]
            apart.commit(pack(millis_of(txn), 4 * counter_of(txn) + number), part)
        whole.commit(pack(millis_of(txn), 4 * counter_of(txn)), block)
    assert shown(apart.read(apart.last, history=9)) == shown(whole.read(whole.last, history=9))


@settings(max_examples=examples(100))
@given(stories(), st.data())
def test_commits_on_the_same_row_that_name_another_column_do_not_matter(
    story: tuple[TableSchema, list[Row], Commits], data: st.DataObject
) -> None:
    """So it does not matter at how many moments the policy is asked."""
    schema, rows, commits = story
    added = Column(ColumnId(schema.last_id + 2), "extra", Int(32))
    group = ColumnsGroup(GroupId(schema.last_id + 1), "other", (added,))
    wider = altered(schema, *schema.groups, group)
    quiet, busy = PlainTable(wider), PlainTable(wider)
    before = workloads.START
    for txn, block in commits:
        # A moment in a millisecond that has passed, after all of its commits.
        for ms in range(millis_of(before), millis_of(txn)):
            touched = data.draw(st.sets(st.sampled_from(rows)))
            busy.commit(pack(ms, COUNTER_MAX), [Put(row, ((added.id, 1),)) for row in sorted(touched)])
        quiet.commit(txn, block)
        busy.commit(txn, block)
        before = txn
    names = [c.name for g in schema.groups if isinstance(g, ColumnsGroup) for c in g.columns]
    names += [f"{family}:" for family in workloads.families_of(schema)]
    had = quiet.read(quiet.last, columns=names, history=9, having=True)
    assert had == busy.read(busy.last, columns=names, history=9, having=True)


@settings(max_examples=examples(100))
@given(stories(), st.integers(1, 3), st.data())
def test_a_narrow_read_is_a_part_of_the_whole(
    story: tuple[TableSchema, list[Row], Commits], history: int, data: st.DataObject
) -> None:
    schema, rows, commits = story
    table = told(schema, commits)
    least = data.draw(st.sampled_from(rows))
    whole = table.read(table.last, history=99)
    names = sorted({name for found in whole.values() for name in found.versions})
    wanted = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    families = {name for name in wanted if name.endswith(":")}  # as a cell without a qualifier is called, too
    time = TimeRange(micros_of(workloads.START))
    existing = table.read(table.last, columns=[], time=time)
    expected = {}
    for row, found in whole.items():
        parts = {
            name: tuple(v for v in versions if v.ts in time)[:history]
            for name, versions in found.versions.items()
            if name in wanted or f"{name.partition(':')[0]}:" in families
        }
        if row >= least and (any(parts.values()) or row in existing):
            expected[row] = PlainRow({name: part for name, part in parts.items() if part})
    assert table.read(table.last, RangeSet.of([RowRange(least)]), wanted, time, history) == expected


@settings(max_examples=examples(100))
@given(stories())
def test_a_policy_only_takes_away_and_age_only_takes_more(story: tuple[TableSchema, list[Row], Commits]) -> None:
    schema, _, commits = story
    kept = told(schema, commits)
    everything = told(without_policies(schema), commits)
    last_us = micros_of(kept.last)
    reads = [kept.read(kept.last, history=99, read_us=last_us + later_us) for later_us in (100_000, 3_000, 0)]
    sets = [_versions(read) for read in [*reads, everything.read(kept.last, history=99)]]
    assert all(small <= large for small, large in pairwise(sets))


def _versions(read: dict[Row, PlainRow]) -> set[tuple[Row, str, int, Txn]]:
    return {(row, name, v.ts, v.txn) for row, each in read.items() for name, vs in each.versions.items() for v in vs}


@settings(max_examples=examples(50))
@given(stories(), st.data())
def test_changes_that_drop_nothing_lose_nothing(
    story: tuple[TableSchema, list[Row], Commits], data: st.DataObject
) -> None:
    """Where no policy applies, all but names stays as it was."""
    schema = without_policies(story[0])
    table = told(schema, story[2])
    before = table.read(table.last, history=9)
    kinds = [kind for kind in workloads.ALTERATIONS if kind.startswith(("add", "move", "rename", "widen"))]
    for _ in range(3):
        kind, schema = data.draw(workloads.alterations(schema, kinds))
        schema = without_policies(schema)
        table.alter(schema)
        now = table.read(table.last, history=9)
        assert now == before or kind.startswith("rename")
        assert _nameless(now) == _nameless(before)
        before = now


def _nameless(read: dict[Row, PlainRow]) -> dict[Row, list[str]]:
    return {row: sorted(repr(versions) for versions in each.versions.values()) for row, each in read.items()}


def _run(seed: int) -> tuple[list[str], list[Mutation], Shown]:
    choose = random.Random(seed).choice
    schema = workloads.choose_schema(choose)
    rows = workloads.choose_rows(choose, schema)
    table, txn = PlainTable(schema), workloads.START
    kinds: list[str] = []
    mutations: list[Mutation] = []
    for _ in range(12):
        block = workloads.choose_block(choose, table.schema, rows)
        txn = workloads.later_txn(choose, txn)
        table.commit(txn, block)
        kind, schema = workloads.choose_alteration(choose, table.schema)
        assert (schema.version, kind != "none") == (table.schema.version + 1, True)
        assert schema.last_id >= table.schema.last_id
        table.alter(schema)
        kinds.append(kind)
        mutations += block
    return kinds, mutations, shown(table.read(txn, history=9))


def test_seeds_repeat_and_reach_every_shape() -> None:
    kinds, shapes, appeared = set(), set(), 0
    for seed in range(30):
        some_kinds, mutations, found = _run(seed)
        assert _run(seed) == (some_kinds, mutations, found)
        kinds |= set(some_kinds)
        shapes |= {(type(m), type(getattr(m, "target", None)), getattr(m, "values", 1) == ()) for m in mutations}
        appeared += len(found)
    assert kinds == set(workloads.ALTERATIONS)
    assert len(shapes) == 9  # puts of values, of the key and of a cell; erasures of four; of one version of two
    assert appeared > 30
