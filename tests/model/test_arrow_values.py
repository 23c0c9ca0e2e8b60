"""Values go into Arrow arrays and come back the same: whole columns, slices of them, one at a time."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal as PyDecimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.model import types as t
from stelae.model.arrow import to_arrow
from stelae.model.arrow_values import array_of, bytes_reader, reader_of, values_of
from stelae.model.types import widens
from stelae.model.values import Value
from tests.effort import examples
from tests.strategies import KEY_TYPES, column_types, key_values, values

SAMPLES: list[tuple[t.ColumnType, list[Any]]] = [
    (t.Bool(), [True, None, False]),
    (t.Int(8), [-128, None, 127]),
    (t.Int(64), [-(2**63), None, 2**63 - 1]),
    (t.Float(32), [0.5, None, -math.inf]),
    (t.Float(64), [0.1, None, 5e-324]),
    (t.Decimal(5, 2), [PyDecimal("-999.99"), None, PyDecimal("0.00")]),
    (t.Decimal(38, 10), [PyDecimal("9" * 28 + "." + "9" * 10), None, PyDecimal("0.0000000001")]),
    (t.String(), ["", None, "ä\0\U0010ffff", "a"]),
    (t.Binary(), [b"", None, b"\0\xff", b"a"]),
    (t.Date(), [date.min, None, date.max]),
    (t.Timestamp(), [datetime.min.replace(tzinfo=UTC), None, datetime.max.replace(tzinfo=UTC)]),
    (t.TimestampNtz(), [datetime.min, None, datetime.max]),  # noqa: DTZ901
    (t.Vector(2), [[0.5, -1.0], None, [math.inf, 0.0]]),
    (t.Array(t.Timestamp()), [[], None, [datetime(2024, 5, 6, tzinfo=UTC), None]]),
    (
        t.Struct((("a", t.Int(8)), ("b", t.Map(t.Date(), t.String())))),
        [{"a": 1, "b": None}, None, {"a": None, "b": {}}],
    ),
    (t.Map(t.String(), t.Array(t.Int(16))), [{}, None, {"b": [1, None], "a": None}]),
]
each_sample = pytest.mark.parametrize(("type_", "sample"), SAMPLES, ids=[str(type_) for type_, _ in SAMPLES])


@st.composite
def columns(draw: st.DrawFn) -> tuple[t.ColumnType, list[Value]]:
    type_ = draw(column_types)
    return type_, draw(st.lists(st.none() | values(type_), max_size=6))


def read_one_by_one(type_: t.ColumnType, array: pa.Array) -> list[Value]:
    read = reader_of(type_, array)
    return [read(at) for at in range(len(array))]


@given(columns(), st.data())
@settings(max_examples=examples(150))
def test_into_arrow_and_back(column: tuple[t.ColumnType, list[Value]], data: st.DataObject) -> None:
    """A slice has the buffers of the whole: all must begin where it does."""
    type_, some = column
    array = array_of(type_, some)
    assert array.type == to_arrow(type_)
    assert array.null_count == sum(value is None for value in some)
    start = data.draw(st.integers(0, len(some)))
    stop = data.draw(st.integers(start, len(some)))
    for part, expected in ((array, some), (array.slice(start, stop - start), some[start:stop])):
        assert values_of(type_, part) == expected
        assert read_one_by_one(type_, part) == expected


@each_sample
def test_every_type(type_: t.ColumnType, sample: list[Any]) -> None:
    array = array_of(type_, sample * 5)
    for start in range(len(sample) * 4):
        part = array.slice(start, len(sample))
        expected = (sample * 5)[start : start + len(sample)]
        assert values_of(type_, part) == expected
        assert read_one_by_one(type_, part) == expected
        again = array_of(type_, values_of(type_, part))
        assert again.equals(part)


@each_sample
def test_kinds_of_values_come_back_too(type_: t.ColumnType, sample: list[Any]) -> None:
    """1 is not True, 0.5 is no decimal, and a moment has UTC for its zone: equal is not enough."""
    array = array_of(type_, sample)
    for value, one, other in zip(sample, values_of(type_, array), read_one_by_one(type_, array), strict=True):
        assert shape(one) == shape(value)
        assert shape(other) == shape(value)


def shape(value: Any) -> Any:
    match value:
        case dict():
            return [(shape(key), shape(inner)) for key, inner in value.items()]
        case list():
            return [shape(inner) for inner in value]
        case PyDecimal():
            return value.as_tuple().exponent
        case datetime():
            return value.tzinfo
        case _:
            return type(value)


@pytest.mark.parametrize("type_", KEY_TYPES, ids=str)
def test_nothing_but_nulls_and_nothing_at_all(type_: t.KeyType) -> None:
    assert read_one_by_one(type_, array_of(type_, [None, None])) == [None, None]
    assert values_of(type_, array_of(type_, [None, None]).slice(1)) == [None]
    assert read_one_by_one(type_, array_of(type_, [])) == []
    assert read_one_by_one(type_, pa.nulls(3, to_arrow(type_))) == [None] * 3
    with pytest.raises(IndexError):
        reader_of(type_, array_of(type_, []))(0)


@pytest.mark.parametrize("bits", [32, 64])
def test_no_number_is_a_value(bits: int) -> None:
    array = array_of(t.Float(bits), [math.nan, None])
    for found in (values_of(t.Float(bits), array), read_one_by_one(t.Float(bits), array)):
        assert math.isnan(found[0])
        assert found[1] is None


@given(st.lists(key_values(t.Binary()), max_size=6), st.integers(0, 6), st.integers(0, 6))
def test_bytes_of_rows(rows: list[bytes], start: int, count: int) -> None:
    part = pa.array(rows, pa.binary()).slice(min(start, len(rows)), count)
    read = bytes_reader(part)
    assert [read(at) for at in range(len(part))] == rows[start : start + count]
    assert all(type(read(at)) is bytes for at in range(len(part)))


def test_text_that_comes_from_elsewhere() -> None:
    """The buffers need not begin or end where the values do."""
    offsets = pa.py_buffer(b"".join(at.to_bytes(4, "little") for at in (3, 5, 5, 8)))
    array = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer("---äxyz---".encode())])
    assert read_one_by_one(t.String(), array) == ["ä", "", "xyz"]
    assert read_one_by_one(t.String(), array.slice(2)) == ["xyz"]


@given(st.data())
@settings(max_examples=examples(60))
def test_a_wider_type_reads_the_same(data: st.DataObject) -> None:
    """What a column is cast to when it was widened since."""
    pairs: list[tuple[t.ColumnType, t.ColumnType]] = [
        (t.Int(8), t.Int(16)),
        (t.Int(32), t.Int(64)),
        (t.Float(32), t.Float(64)),
        (t.Decimal(5, 2), t.Decimal(38, 2)),
        (t.Array(t.Int(32)), t.Array(t.Int(64))),
        (t.Array(t.Array(t.Decimal(5, 2))), t.Array(t.Array(t.Decimal(18, 2)))),
    ]
    old, new = data.draw(st.sampled_from(pairs))
    assert widens(old, new)
    some = data.draw(st.lists(st.none() | values(old), max_size=5))
    wide = array_of(old, some).cast(to_arrow(new))
    assert values_of(new, wide) == some
    assert read_one_by_one(new, wide) == some
