"""Tables as users say them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stelae
from stelae.model import types as t
from stelae.model.declare import GroupSpec, declare, parse_column
from stelae.model.errors import InvalidSchema
from stelae.model.ids import ColumnId
from stelae.model.purge import AllOf, MaxAge, MaxHistory
from stelae.model.schema import CellsGroup, Column, ColumnsGroup
from tests.strategies import column_types, values


def test_the_table_of_the_first_page() -> None:
    schema = declare(
        {"id": "string"},
        [
            stelae.columns(
                "profile",
                {"name": "string", "age": "int32 not null default 0", "score": "float64"},
                purge="max-history=3",
            ),
            stelae.cells("events", families=["click", "view"], purge="max-age=7d and max-history=100"),
        ],
    )
    profile, events = schema.groups
    assert isinstance(profile, ColumnsGroup)
    assert isinstance(events, CellsGroup)
    assert [(c.id, c.name, str(c)) for c in profile.columns] == [
        (3, "name", "string"),
        (4, "age", "int32 not null default 0"),
        (5, "score", "float64"),
    ]
    assert profile.options.purge == MaxHistory(3)
    assert events.options.purge == AllOf((MaxAge(7 * 86_400_000_000), MaxHistory(100)))
    assert [(f.id, f.name) for f in events.families] == [(7, "click"), (8, "view")]
    assert schema.last_id == 8


@pytest.mark.parametrize(
    ("text", "type_", "nullable", "default"),
    [
        ("int32", t.Int(32), True, None),
        ("INT32 NOT  NULL", t.Int(32), False, None),
        ("decimal(5, 2) default 1.5", t.Decimal(5, 2), True, Decimal("1.50")),
        ("float64 default -3", t.Float(64), True, -3.0),
        ("string default 'not null default 0'", t.String(), True, "not null default 0"),
        ("string not null default ''", t.String(), False, ""),
        ("binary default b'\\x00'", t.Binary(), True, b"\x00"),
        ("bool default true", t.Bool(), True, True),
        ("date default '2024-01-31'", t.Date(), True, date(2024, 1, 31)),
        ("timestamp default '2024-01-31T10:00:00Z'", t.Timestamp(), True, datetime(2024, 1, 31, 10, tzinfo=UTC)),
        ("array<int8>", t.Array(t.Int(8)), True, None),
    ],
)
def test_columns(text: str, type_: t.ColumnType, nullable: bool, default: object) -> None:
    spec = parse_column("c", text)
    assert (spec.type, spec.nullable, spec.default) == (type_, nullable, default)
    assert type(spec.default) is type(default)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int33", "column 'c': type 'int33': 'int33' is not a type"),
        ("int32 nullable", "column 'c': 'nullable' is not understood"),
        ("int32 default", "'default' is not understood"),
        ("int32 default 'x'", "column 'c': default 'x' does not fit int32"),
        ("int8 default 300", "column 'c': default 300 does not fit int8"),
        ("int8 default 1 or `x` = 2", "does not fit int8: it is not a single value"),
        ("int8 default null", "column 'c': default null does not fit int8"),
        ("decimal(3, 1) default 1.25", "does not fit decimal(3, 1)"),
        ("array<int8> default 1", "column 'c': default 1 does not fit array<int8>"),
        ("int8 default 0 not null", "column 'c': default 0 not null does not fit int8"),
        (7, "column 'c': give its type as text, not 7"),
        ("struct<a: int8, A: int8>", "column 'c': type 'struct<a: int8, A: int8>': field 'A' stands twice"),
    ],
)
def test_a_bad_column_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        parse_column("c", text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


ONE: list[GroupSpec] = [stelae.cells("all")]


@pytest.mark.parametrize(
    ("key", "groups", "message"),
    [
        ({}, ONE, "a key has from 1 to 32 columns"),
        ({"id": "array<int8>"}, ONE, "key column 'id': array<int8> cannot be a key"),
        ({"id": "int8 default 1"}, ONE, "key column 'id': a key column has no default"),
        (["id"], ONE, "give the key as a dict of column to type, not ['id']"),
        ({"id": "int8"}, [], "a table has from 1 to 100 groups"),
        ({"id": "int8"}, [stelae.cells("a"), stelae.cells("b")], "groups 'a' and 'b' are both the wildcard"),
        ({"id": "int8"}, [stelae.cells("a", ["x", "*"])], "family '*' of group 'a'"),
        ({"id": "int8"}, ONE[0], "give the groups as a list of columns(...) and cells(...), not CellsSpec("),
        ({"id": "int8"}, "ab", "give the groups as a list of columns(...) and cells(...), not 'ab'"),
        ({"id": "int8"}, None, "not None"),
        ({"id": "int8"}, ["x"], "a group is said by columns(...) or cells(...), not by 'x'"),
        ({"id": "int8"}, [*ONE, None], "not by None"),
        ({"id": 5}, ONE, "column 'id': give its type as text, not 5"),
        ({5: "int8"}, ONE, "the name of a column is text, not 5"),
    ],
)
def test_a_bad_table_says_what_is_wrong(key: dict[str, str], groups: list[GroupSpec], message: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        declare(key, groups)
    assert message in str(caught.value)


HUGE = 10**5000
any_columns: Any = stelae.columns
any_cells: Any = stelae.cells
any_declare: Any = declare


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (lambda: any_columns("a", ["x"]), "group 'a': give the columns as a dict of name to type, not ['x']"),
        (lambda: any_columns(HUGE, None), "group <int of 16610 bits>: give the columns as a dict"),
        (lambda: any_columns(5, {"x": "int8"}), "the name of a group is text, not 5"),
        (lambda: any_columns("a", {5: "int8"}), "the name of a column is text, not 5"),
        (lambda: any_columns("a", {"x": HUGE}), "column 'x': give its type as text, not <int of"),
        (lambda: any_columns("a", {"x": "int8"}, purge=5), "a purge policy is text, as in 'max-history=3', not 5"),
        (lambda: any_cells(None), "the name of a group is text, not None"),
        (lambda: any_cells("g", None), "group 'g': give the families as a list of names or as '*', not None"),
        (lambda: any_cells("g", 5), "group 'g': give the families as a list of names or as '*', not 5"),
        (lambda: any_cells("g", {"a": "binary"}), "group 'g': give the families as a list of names"),
        (lambda: any_cells("g", b"ab"), "group 'g': give the families as a list of names"),
        (lambda: any_cells("g", ["a", 5]), "group 'g': the name of a family is text, not 5"),
        (lambda: any_cells("g", purge=[]), "a purge policy is text, as in 'max-history=3', not []"),
        (lambda: any_declare({"id": "int8"}, ONE, hashed=1), "hashed is 1, not True or False"),
        (lambda: any_declare({"id": "int8"}, [any_cells("g", compression=5)]), "compression 5 is not one of"),
        (lambda: any_declare({"id": "int8"}, [any_cells("g", block_bytes=HUGE)]), "block_bytes <int of 16610 bits> is"),
        (lambda: any_declare({"id": "int8"}, [any_cells("g", bloom=HUGE)]), "bloom is <int of 16610 bits>, not True"),
    ],
)
def test_the_wrong_python_type_is_named(said: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        said()
    assert message in str(caught.value)


@st.composite
def declared_columns(draw: st.DrawFn) -> Column:
    type_ = draw(column_types)
    defaults = st.none() | values(type_) if isinstance(type_, t.KeyType) else st.none()
    return Column(ColumnId(3), "c", type_, draw(st.booleans()), draw(defaults))


@given(declared_columns())
def test_the_text_of_a_column_declares_it(column: Column) -> None:
    spec = parse_column(column.name, str(column))
    assert str(spec) == str(column)
    assert repr((spec.name, spec.type, spec.nullable, spec.default)) == repr(
        (column.name, column.type, column.nullable, column.default)
    )


@pytest.mark.parametrize(
    ("type_", "default", "text"),
    [
        ("decimal(5, 2)", Decimal("1.50"), "decimal(5, 2) default 1.50dec"),
        ("float64", float("nan"), "float64 default nan"),
        ("float64", float("-inf"), "float64 default -inf"),
        ("binary", b"\x00a", 'binary default b"\\0a"'),
        ("string", "a\"'\n", 'string default "a\\"\'\\n"'),
        ("date", date(2024, 1, 31), 'date default date "2024-01-31"'),
        ("timestamp", datetime(1, 1, 1, tzinfo=UTC), 'timestamp default timestamp "0001-01-01T00:00:00Z"'),
        ("timestamp_ntz", datetime(1, 1, 1), 'timestamp_ntz default timestamp_ntz "0001-01-01T00:00:00"'),  # noqa: DTZ001
    ],
)
def test_a_default_prints_as_a_literal(type_: str, default: object, text: str) -> None:
    assert str(Column(ColumnId(3), "c", t.parse_type(type_), default=default)) == text
    assert repr(parse_column("c", text).default) == repr(default)
