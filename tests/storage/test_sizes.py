"""A value has one size, whichever form it is in."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal as PyDecimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.model import types as t
from stelae.model.arrow_values import array_of
from stelae.model.types import parse_type
from stelae.storage.checks.sizes import SIZE_OF_PACKED_MAX, first_oversized, nested_bytes, packed_bytes
from tests.effort import examples
from tests.strategies import column_types, values


@pytest.mark.parametrize(
    "text, value, size",
    [
        ("array<int64>", [], 4),
        ("array<int64>", [1, None, 3], 4 + 8 + 1 + 8),
        ("array<bool>", [True, False], 4 + 2),
        ("array<string>", ["", "ä", None], 4 + 4 + (4 + 2) + 1),
        ("array<array<int8>>", [[1, 2], None], 4 + (4 + 2) + 1),
        ("array<decimal(5, 2)>", [PyDecimal("1.00")], 4 + 16),
        ("array<date>", [date(2024, 1, 1)], 4 + 4),
        ("array<timestamp>", [datetime(2024, 1, 1, tzinfo=UTC)], 4 + 8),
        ("struct<x: int32, y: binary>", {"x": 1, "y": b"abc"}, 4 + 4 + 3),
        ("struct<x: int32, y: binary>", {"x": None, "y": None}, 1 + 1),
        ("array<struct<x: int32, y: binary>>", [None], 4 + 1),
        ("map<string, float32>", {"a": 1.0, "bc": None}, 4 + (4 + 1 + 4) + (4 + 2 + 1)),
        ("vector(float32, 3)", [1.0, 2.0, 3.0], 12),
    ],
)
def test_the_parts_of_a_value_count(text: str, value: Any, size: int) -> None:
    type_ = parse_type(text)
    assert nested_bytes(type_, value) == size
    array = array_of(type_, [None, value, None])
    assert first_oversized(type_, array, size) is None
    assert first_oversized(type_, array, size - 1) == 1


@pytest.mark.parametrize(
    "array, place",
    [
        (pa.array(["a" * 10, "b" * 10]), None),
        (pa.array(["a", "b" * 11, "c" * 12]), 1),
        (pa.array(["ä" * 5, "ä" * 6]), 1),
        (pa.array([None] * 20, pa.string()), None),
    ],
    ids=["fits", "longer", "utf-8", "nulls"],
)
def test_text_has_its_own_bytes(array: pa.Array, place: int | None) -> None:
    assert first_oversized(t.String(), array, 10) == place
    assert first_oversized(t.Binary(), array.cast(pa.binary()), 10) == place


def test_bytes_under_a_null_and_beside_a_slice_do_not_count() -> None:
    offsets, data = (
        pa.py_buffer(bytes(pa.array([0, 11, 12, 22, 44], pa.int32()).buffers()[1])[:20]),
        pa.py_buffer(b"a" * 44),
    )
    array = pa.Array.from_buffers(pa.binary(), 4, [pa.py_buffer(b"\x0e"), offsets, data])
    assert array.is_valid().to_pylist() == [False, True, True, True]
    assert first_oversized(t.Binary(), array.slice(0, 3), 10) is None
    assert first_oversized(t.Binary(), array.slice(0, 3), 9) == 2
    assert first_oversized(t.Binary(), array.slice(2), 21) == 1
    assert first_oversized(t.Binary(), array.slice(2), 22) is None


def test_numbers_have_no_size() -> None:
    assert first_oversized(t.Int(64), pa.array([1, 2, 3]), 1) is None


def test_what_lies_under_a_null_does_not_count() -> None:
    maps = pa.MapArray.from_arrays(
        pa.array([0, 2, 3], pa.int32()), pa.array(["a", "b", "c"]), pa.array([1, 2, 3]), mask=pa.array([True, False])
    )
    assert first_oversized(parse_type("map<string, int64>"), maps, 17) is None
    assert first_oversized(parse_type("map<string, int64>"), maps, 16) == 1


def size_of(type_: t.ColumnType, value: Any) -> int:
    """Told by the table in `sizes`, for values of their own."""
    if isinstance(value, str | bytes):
        return len(value if isinstance(value, bytes) else value.encode())
    return 0 if value is None or isinstance(type_, t.KeyType) else nested_bytes(type_, value)


@settings(max_examples=examples(300))
@given(st.data(), st.integers(0, 60))
def test_arrays_and_python_values_agree(data: st.DataObject, limit: int) -> None:
    type_ = data.draw(column_types)
    several = data.draw(st.lists(st.none() | values(type_), min_size=1, max_size=8))
    too_large = [place for place, value in enumerate(several) if size_of(type_, value) > limit]
    array = array_of(type_, several)
    assert first_oversized(type_, array, limit) == (too_large[0] if too_large else None)
    padded = pa.concat_arrays([array, array]).slice(len(array))
    assert first_oversized(type_, padded, limit) == (too_large[0] if too_large else None)


@settings(max_examples=examples(200))
@given(st.data())
def test_what_is_packed_into_few_bytes_is_not_large(data: st.DataObject) -> None:
    type_ = data.draw(column_types.filter(lambda type_: not isinstance(type_, t.KeyType)))
    value = data.draw(values(type_))
    assert nested_bytes(type_, value) <= SIZE_OF_PACKED_MAX * packed_bytes(value)
