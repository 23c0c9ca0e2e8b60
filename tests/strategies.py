"""Values of every column type, for hypothesis."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal as PyDecimal
from typing import Any

from hypothesis import strategies as st

from stelae.model import types as t

KEY_TYPES: tuple[t.KeyType, ...] = (
    t.Bool(),
    t.Int(8),
    t.Int(16),
    t.Int(32),
    t.Int(64),
    t.Float(32),
    t.Float(64),
    t.Decimal(5, 2),
    t.Decimal(18, 0),
    t.Decimal(38, 10),
    t.String(),
    t.Binary(),
    t.Date(),
    t.Timestamp(),
    t.TimestampNtz(),
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["", "\x00", "a\x00", "a\x00b", "\x01", "a", "\U0010ffff", "a\x00\x01"]
)
blobs = st.binary(max_size=12) | st.sampled_from([b"", b"\x00", b"\x00\x01", b"\x00\xff", b"\xff", b"\xff\xff\x00"])


def _decimals(type_: t.Decimal) -> st.SearchStrategy[PyDecimal]:
    limit = 10**type_.precision - 1
    return st.integers(-limit, limit).map(lambda number: PyDecimal(f"{number}e-{type_.scale}"))


def key_values(type_: t.KeyType) -> st.SearchStrategy[Any]:
    """Canonical values that may be keys: no NaN."""
    match type_:
        case t.Bool():
            return st.booleans()
        case t.Int(bits):
            return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) | st.integers(-2, 2)
        case t.Float(bits):
            return st.floats(width=32 if bits == 32 else 64, allow_nan=False)
        case t.Decimal():
            return _decimals(type_)
        case t.String():
            return texts
        case t.Binary():
            return blobs
        case t.Date():
            return st.dates()
        case t.Timestamp():
            return st.datetimes(timezones=st.just(UTC)).map(lambda moment: moment.replace(fold=0))
        case t.TimestampNtz():
            return st.datetimes().map(lambda reading: reading.replace(fold=0))


def values(type_: t.ColumnType) -> st.SearchStrategy[Any]:
    """Canonical values of any type, nested nulls included."""
    match type_:
        case t.Array(element):
            return st.lists(st.none() | values(element), max_size=4)
        case t.Vector(length):
            return st.lists(st.floats(width=32, allow_nan=False), min_size=length, max_size=length)
        case t.Struct(fields):
            return st.fixed_dictionaries({name: st.none() | values(field) for name, field in fields})
        case t.Map(key, value):
            return st.dictionaries(key_values(key), st.none() | values(value), max_size=4)
        case _:
            return key_values(type_)


key_types = st.sampled_from(KEY_TYPES)
field_names = st.sampled_from(["a", "b", "C", "_d", "a b", "größe", "x.y", "1", "`", "p:q", ">"])

column_types: st.SearchStrategy[t.ColumnType] = st.recursive(
    key_types | st.integers(1, 9).map(t.Vector),
    lambda inner: st.one_of(
        inner.map(t.Array),
        st.lists(st.tuples(field_names, inner), min_size=1, max_size=3, unique_by=lambda f: f[0].casefold()).map(
            lambda fields: t.Struct(tuple(fields))
        ),
        st.tuples(key_types, inner).map(lambda kv: t.Map(*kv)),
    ),
    max_leaves=4,
)

MOMENT = datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
DAY = date(2024, 5, 6)
