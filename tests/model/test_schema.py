"""Schemas: the valid are accepted, the invalid are refused whole, with the culprit named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from stelae.model import types as t
from stelae.model.errors import InvalidArgument, InvalidSchema
from stelae.model.hybrid import TXN_MAX
from stelae.model.ids import ColumnId, GroupId, SchemaVersion, Txn
from stelae.model.limits import Limits
from stelae.model.purge import AllOf, MaxAge, MaxHistory, PastPolicy, Reigns, purging_at
from stelae.model.schema import CellsGroup, Column, ColumnsGroup, Family, GroupOptions, KeyColumn, TableSchema
from stelae.model.schema_checks import check_schema

PROFILE = ColumnsGroup(
    GroupId(2),
    "profile",
    (Column(ColumnId(3), "name", t.String()), Column(ColumnId(4), "age", t.Int(32), nullable=False, default=0)),
)
EVENTS = CellsGroup(GroupId(5), "events", (Family(ColumnId(6), "click"), Family(ColumnId(7), "view")))
USERS = TableSchema(SchemaVersion(1), (KeyColumn(ColumnId(1), "id", t.String()),), (PROFILE, EVENTS), last_id=20)


def changed(**parts: object) -> TableSchema:
    return replace(USERS, **parts)


def profile(**parts: object) -> TableSchema:
    return changed(groups=(replace(PROFILE, **parts), EVENTS))


def events(**parts: object) -> TableSchema:
    return changed(groups=(PROFILE, replace(EVENTS, **parts)))


def past(*counts: tuple[int, int]) -> GroupOptions:
    """Of so many versions, until a txn."""
    return GroupOptions(past=tuple(PastPolicy(MaxHistory(count), Txn(until)) for count, until in counts))


def columns(*columns: Column) -> TableSchema:
    return profile(columns=columns)


def key(*columns: KeyColumn) -> TableSchema:
    return changed(key=columns)


def test_a_valid_schema_is_returned() -> None:
    assert check_schema(USERS) is USERS
    check_schema(events(families=(), wildcard=True))
    assert check_schema(changed(hashed=True)).codec.hashed


def test_columns_and_families_are_found() -> None:
    assert USERS.column("age") == (PROFILE, PROFILE.columns[1])
    assert USERS.column_by_id(ColumnId(3))[1].name == "name"
    assert USERS.family_group("view") is EVENTS
    assert USERS.group(GroupId(2)) is PROFILE
    wild = CellsGroup(GroupId(8), "rest", wildcard=True)
    both = changed(groups=(PROFILE, EVENTS, wild))
    assert both.family_group("view") is EVENTS
    assert both.family_group("anything") is wild


@pytest.mark.parametrize(
    ("look", "message"),
    [
        (lambda: USERS.column("nmae"), "no column 'nmae'; did you mean 'name'?"),
        (lambda: USERS.family_group("clik"), "no family 'clik'; did you mean 'click'?"),
        (lambda: USERS.family_group(""), "no family ''"),
        (lambda: USERS.column([]), "the name of a column is text, not []"),  # type: ignore[arg-type]
        (lambda: USERS.family_group(5), "the name of a family is text, not 5"),  # type: ignore[arg-type]
        (lambda: USERS.column_by_id(ColumnId(99)), "no column with id 99"),
        (lambda: USERS.group(GroupId(99)), "no group with id 99"),
    ],
)
def test_what_is_not_there_is_named_with_the_nearest(look: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        look()
    assert message in str(caught.value)


X = Column(ColumnId(9), "x", t.Int(8))
K = KeyColumn(ColumnId(1), "id", t.String())

BAD: list[tuple[TableSchema, str]] = [
    (key(), "a key has from 1 to 32 columns, not 0"),
    (key(*(KeyColumn(ColumnId(100 + i), f"k{i}", t.Int(8)) for i in range(33))), "1 to 32 columns, not 33"),
    (key(KeyColumn(ColumnId(1), "id", t.Array(t.Int(8)))), "key column 'id': array<int8> cannot be a key"),  # type: ignore[arg-type]
    (key(KeyColumn(ColumnId(1), "id", t.Vector(3))), "key column 'id': vector(float32, 3) cannot be a key"),  # type: ignore[arg-type]
    (key(K, replace(K, id=ColumnId(9))), "key column 'id' has the same name as key column 'id'"),
    (changed(groups=()), "a table has from 1 to 100 groups, not 0"),
    (columns(), "group 'profile': has 0 columns"),
    (
        columns(*(Column(ColumnId(1000 + i), f"c{i}", t.Int(8)) for i in range(1001))),
        "group 'profile': has 1001 columns",
    ),
    (columns(X, replace(X, id=ColumnId(10))), "column 'x' of group 'profile' has the same name"),
    (
        columns(X, replace(X, id=ColumnId(10), name="X")),
        "column 'X' of group 'profile' has the same name as column 'x'",
    ),
    (columns(replace(X, name="id")), "column 'id' of group 'profile' has the same name as key column 'id'"),
    (
        columns(replace(X, name="Click")),
        "family 'click' of group 'events' has the same name as column 'Click'",
    ),
    (columns(replace(X, name="a:b")), "column 'a:b' of group 'profile': a name has no colon"),
    (columns(replace(X, name="Row")), "column 'Row' of group 'profile': 'row' is the encoded key"),
    (columns(replace(X, name="_x")), "column '_x' of group 'profile': names with a leading underscore"),
    (columns(replace(X, name="")), "column '' of group 'profile': a name has at least one character"),
    (columns(replace(X, name=" x")), "no space at its ends"),
    (columns(replace(X, name="x\n")), "printable text"),
    (columns(replace(X, name="é" * 128)), "at most 255 bytes"),
    (columns(replace(X, default="no")), "column 'x' default: 'no' (str) is not a int8"),
    (columns(replace(X, default=300)), "column 'x' default: 300 (int) is not a int8: out of range"),
    (columns(replace(X, name=5)), "column 5 of group 'profile': a name is text"),
    (key(replace(K, name=None)), "key column None: a name is text"),
    (events(families=(Family(ColumnId(6), 10**5000),)), "family <int of 16610 bits> of group"),  # type: ignore[arg-type]
    (profile(name=5), "group 5: a name is text"),
    (columns(replace(X, type=t.Array(t.Int(8)), default=[1])), "column 'x': array<int8> takes no default"),
    (columns(replace(X, type=t.Struct(()))), "column 'x': type 'struct<>'"),
    (
        columns(replace(X, type=t.Struct((("x", t.Int(8)), ("X", t.Int(8)))))),
        "column 'x': type 'struct<x: int8, X: int8>': field 'X' stands twice",
    ),
    (columns(replace(X, type="int8")), "column 'x': 'int8' is no column type"),
    (key(replace(K, type=t.Decimal(50, 2))), "key column 'id': type 'decimal(50, 2)'"),
    (profile(options=GroupOptions(purge=5)), "group 'profile': 5 is no purge policy"),  # type: ignore[arg-type]
    (
        profile(options=GroupOptions(purge=AllOf((MaxHistory(1),)))),
        "group 'profile': purge policy 'max-history=1' is not in its canonical form",
    ),
    (
        profile(options=GroupOptions(past=(PastPolicy(AllOf((MaxHistory(1),)), Txn(1)),))),
        "group 'profile': purge policy 'max-history=1' is not in its canonical form",
    ),
    (profile(options=past((1, 3), (2, 3))), "group 'profile': the past purge policies are not in the order of"),
    (profile(options=past((1, -1))), "group 'profile': the past purge policies are not in the order of their ends"),
    (profile(options=past((1, TXN_MAX))), "group 'profile': the past purge policies are not in the order of"),
    (columns(replace(X, id=ColumnId(1))), "'x' of group 'profile' has the same id 1 as key column 'id'"),
    (columns(replace(X, id=ColumnId(21))), "'x' of group 'profile': id 21 is not from 1 to the last id 20"),
    (columns(replace(X, id=ColumnId(0))), "'x' of group 'profile': id 0 is not from 1"),
    (profile(name="EVENTS"), "group 'events' has the same name as group 'EVENTS'"),
    (profile(name="a:b"), "group 'a:b': a name has no colon"),
    (
        profile(options=GroupOptions(compression="gzip")),
        "group 'profile': compression 'gzip' is not one of zstd, lz4, none",
    ),
    (profile(options=GroupOptions(block_bytes=10)), "group 'profile': block_bytes 10 is not a whole number from 4096"),
    (profile(options=GroupOptions(in_memory="yes")), "group 'profile': in_memory is 'yes'"),  # type: ignore[arg-type]
    (profile(options=GroupOptions(bloom=1)), "group 'profile': bloom is 1"),  # type: ignore[arg-type]
    (events(families=()), "group 'events': has 0 families, allowed are 1 to 1000, or '*'"),
    (events(wildcard=True), "group 'events': the wildcard stands alone, not beside family 'click'"),
    (events(families=(Family(ColumnId(6), "*"),)), "family '*' of group 'events': a name is printable text, not '*'"),
    (
        changed(groups=(EVENTS, CellsGroup(GroupId(9), "more", (Family(ColumnId(10), "view"),)))),
        "family 'view' of group 'more' has the same name as family 'view' of group 'events'",
    ),
    (
        changed(groups=(CellsGroup(GroupId(9), "a", wildcard=True), CellsGroup(GroupId(10), "b", wildcard=True))),
        "groups 'a' and 'b' are both the wildcard",
    ),
]


@pytest.mark.parametrize(("schema", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_an_invalid_schema_names_the_culprit(schema: TableSchema, message: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        check_schema(schema)
    assert message in str(caught.value)


def test_there_are_enough_bad_schemas() -> None:
    assert len(BAD) >= 25


def test_limits_are_settings() -> None:
    with pytest.raises(InvalidSchema, match="allowed are 1 to 1"):
        check_schema(USERS, Limits(columns_max=1))


def test_options_remember_the_policies_before_them() -> None:
    one, two, three = (GroupOptions(purge=MaxHistory(count)) for count in (1, 2, 3))
    assert (one.purging, purging_at(one.purging, Txn(5))) == (MaxHistory(1), MaxHistory(1))
    altered = two.after(one, Txn(5))
    assert altered.past == (PastPolicy(MaxHistory(1), Txn(5)),)
    assert altered.purging == Reigns(altered.past, MaxHistory(2))
    assert (purging_at(altered.purging, Txn(5)), purging_at(altered.purging, Txn(6))) == (
        MaxHistory(1),
        altered.purging,
    )
    again = one.after(altered, Txn(7))
    assert again == replace(one, past=(*altered.past, PastPolicy(MaxHistory(2), Txn(7))))
    check_schema(profile(options=again))
    assert three.after(again, Txn(7)).past == again.past, "a policy that judged nothing leaves no trace"
    assert two.after(again, Txn(7)) == altered, "nor does it if the one before it comes back"
    assert GroupOptions(bloom=False, purge=MaxHistory(2)).after(altered, Txn(9)).past == altered.past
    assert GroupOptions().after(GroupOptions(purge=MaxAge(1)), Txn(0)).past == (PastPolicy(MaxAge(1), Txn(0)),)
