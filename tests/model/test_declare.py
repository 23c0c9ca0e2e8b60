"""Tables as users say them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

import stelae
from stelae.model import types as t
from stelae.model.declare import GroupSpec, declare, parse_column
from stelae.model.errors import InvalidSchema
from stelae.model.purge import AllOf, MaxAge, MaxHistory
from stelae.model.schema import CellsGroup, ColumnsGroup


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
    ],
)
def test_a_bad_table_says_what_is_wrong(key: dict[str, str], groups: list[GroupSpec], message: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        declare(key, groups)
    assert message in str(caught.value)


def test_columns_are_a_dict() -> None:
    with pytest.raises(InvalidSchema, match="give the columns as a dict"):
        stelae.columns("a", ["x"])  # type: ignore[arg-type]
