"""Arrow arrays fit a column exactly as single values do, or are refused with the row and the column."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from decimal import Decimal as PyDecimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.client.intake.arrays import fitted
from stelae.client.intake.values import array_of_given, fit_value
from stelae.model import types as t
from stelae.model.arrow import to_arrow
from stelae.model.arrow_values import array_of, values_of
from stelae.model.errors import InvalidArgument
from stelae.model.types import parse_type
from tests.effort import examples
from tests.strategies import column_types, values

NAN = float("nan")
DAY_MS = 86_400_000


def shown(value: object) -> str:
    """For the names of cases: of an array, its type."""
    return ascii(value.type if isinstance(value, pa.Array) else value)[:50]


def fit(text: str, array: pa.Array) -> list[Any]:
    type_ = parse_type(text)
    found = fitted(type_, array, "column 'x'", 0)
    assert found.type == to_arrow(type_)
    found.validate(full=True)
    return values_of(type_, found)


@pytest.mark.parametrize(
    "text, array, kept",
    [
        ("int32", pa.array([1.0, None, -3.0]), [1, None, -3]),
        ("int32", pa.array([1.0], pa.float16()), [1]),
        ("int64", pa.array([-(2.0**63)]), [-(2**63)]),
        ("int8", pa.array([255 - 128], pa.uint64()), [127]),
        ("int8", pa.array([None, None], pa.string()), [None, None]),
        ("string", pa.nulls(2), [None, None]),
        ("float64", pa.array([2**60, -(2**63), None]), [2.0**60, -(2.0**63), None]),
        ("float64", pa.array([2**63], pa.uint64()), [2.0**63]),
        ("float32", pa.array([0.1, NAN, float("inf")]), [0.10000000149011612, NAN, float("inf")]),
        ("float64", pa.array([0.5], pa.float32()), [0.5]),
        ("decimal(38, 30)", pa.array([10**7]), [PyDecimal("10000000." + "0" * 30)]),
        ("decimal(5, 2)", pa.array([PyDecimal("1.500")]), [PyDecimal("1.50")]),
        ("decimal(2, 2)", pa.array([0]), [PyDecimal("0.00")]),
        ("decimal(5, 2)", pa.array([PyDecimal("123.4")], pa.decimal256(60, 1)), [PyDecimal("123.40")]),
        ("decimal(9, 0)", pa.array([PyDecimal("1.2E3")], pa.decimal128(3, -2)), [PyDecimal(1200)]),
        ("decimal(6, 3)", pa.array([PyDecimal("1.005")], pa.decimal32(5, 3)), [PyDecimal("1.005")]),
        ("string", pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
        ("string", pc.run_end_encode(pa.array(["a", "a", None])), ["a", "a", None]),
        ("string", pa.array(["a"], pa.large_string()), ["a"]),
        ("string", pa.array(["a"], pa.string_view()), ["a"]),
        ("binary", pa.array([b"ab"], pa.binary(2)), [b"ab"]),
        ("binary", pa.array([b"ab"], pa.binary_view()), [b"ab"]),
        ("date", pa.array([DAY_MS], pa.date64()), [datetime(1970, 1, 2, tzinfo=UTC).date()]),
        ("timestamp", pa.array([1000], pa.timestamp("ns", "+02:00")), [datetime(1970, 1, 1, 0, 0, 0, 1, UTC)]),
        ("timestamp", pa.array([1], pa.timestamp("s", "Europe/Berlin")), [datetime(1970, 1, 1, 0, 0, 1, 0, UTC)]),
        ("array<int32>", pa.array([[1, None], None, []], pa.list_view(pa.int64())), [[1, None], None, []]),
        ("array<int32>", pa.array([[1], None], pa.list_(pa.int64(), 1)), [[1], None]),
        ("array<float32>", pa.array([[1, None], None], pa.large_list(pa.int8())), [[1.0, None], None]),
        ("vector(float32, 2)", pa.array([[1, 2], None], pa.large_list(pa.int64())), [[1.0, 2.0], None]),
        ("vector(float32, 2)", pa.array([None, [1.5, 2.0]], pa.list_(pa.float64(), 2)), [None, [1.5, 2.0]]),
        ("struct<a: int32, b: string>", pa.array([{"a": 1}, None]), [{"a": 1, "b": None}, None]),
        ("struct<a: int32, b: string>", pa.array([{"b": "x", "a": 1}]), [{"a": 1, "b": "x"}]),
        ("map<string, int32>", pa.array([[("a", 1)], None], pa.map_(pa.large_string(), pa.int64())), [{"a": 1}, None]),
        ("map<string, int32>", pa.array([[{"key": "a", "value": 1}], None]), [{"a": 1}, None]),
    ],
    ids=shown,
)
def test_good(text: str, array: pa.Array, kept: list[Any]) -> None:
    assert repr(fit(text, array)) == repr(kept)
    padded = (
        pa.concat_arrays([array, array]).slice(len(array)) if not pa.types.is_run_end_encoded(array.type) else array
    )
    assert repr(fit(text, padded)) == repr(kept)


@pytest.mark.parametrize(
    "text, array, complaint",
    [
        ("int32", pa.array([1.0, 1.5]), "row number 1: column 'x': 1.5 (float) is not a int32"),
        ("int32", pa.array([NAN]), "row number 0: column 'x': nan (float) is not a int32"),
        ("int32", pa.array([float("inf")]), "row number 0: column 'x': inf"),
        ("int64", pa.array([2.0**63]), "row number 0: column 'x': 9.223372036854776e+18 (float) is not a int64"),
        ("int8", pa.array([0, 1, 300]), "row number 2: column 'x': 300 (int) is not a int8: out of range"),
        ("int64", pa.array([2**63], pa.uint64()), "row number 0: column 'x': 9223372036854775808 (int)"),
        ("int8", pa.array([None, True]), "row number 1: column 'x': True (bool) is not a int8"),
        ("bool", pa.array([1]), "row number 0: column 'x': 1 (int) is not a bool"),
        ("float64", pa.array([1, 2**63 - 1]), "row number 1: column 'x': 9223372036854775807 (int)"),
        ("float64", pa.array([2**64 - 1], pa.uint64()), "it would be rounded"),
        ("float32", pa.array([2**24, 2**24 + 1]), "row number 1: column 'x': 16777217 (int) is not a float32"),
        ("float32", pa.array([1e300]), "row number 0: column 'x': 1e+300 (float) is not a float32: out of range"),
        ("float64", pa.array([PyDecimal("1.5")]), "row number 0: column 'x': Decimal('1.5')"),
        ("decimal(5, 2)", pa.array([1.5]), "row number 0: column 'x': 1.5 (float) is not a decimal(5, 2)"),
        ("decimal(5, 2)", pa.array([PyDecimal("1.005")]), "it would be rounded to 2 digits"),
        ("decimal(5, 2)", pa.array([0, 1000]), "row number 1: column 'x': 1000 (int) is not a decimal(5, 2): out of"),
        ("decimal(38, 30)", pa.array([10**18]), "row number 0: column 'x': 1000000000000000000 (int)"),
        ("decimal(2, 2)", pa.array([1]), "row number 0: column 'x': 1 (int) is not a decimal(2, 2): out of range"),
        ("string", pa.array([b"a"]), "row number 0: column 'x': b'a' (bytes) is not a string"),
        ("string", pa.array([1]), "row number 0: column 'x': 1 (int) is not a string"),
        ("binary", pa.array(["a"]), "row number 0: column 'x': 'a' (str) is not a binary"),
        ("date", pa.array([datetime(2020, 1, 1)]), "is not a date"),  # noqa: DTZ001 - a reading, wanted so
        ("date", pa.array([0, DAY_MS + 5], pa.date64()), "row number 1: column 'x'"),
        ("date", pa.array([0, 2**31 - 1], pa.date32()), "row number 1: column 'x': a value of Arrow's date32"),
        ("timestamp", pa.array([0, 1001], pa.timestamp("ns", "UTC")), "row number 1: column 'x'"),
        ("timestamp", pa.array([0], pa.timestamp("us")), "it has no time zone"),
        ("timestamp_ntz", pa.array([0], pa.timestamp("us", "UTC")), "it has a time zone"),
        ("timestamp_ntz", pa.array([0, 2**62], pa.timestamp("us")), "row number 1: column 'x'"),
        ("timestamp_ntz", pa.array([0, 2**50], pa.timestamp("s")), "row number 1: column 'x'"),
        ("timestamp", pa.array([0], pa.date32()), "is not a timestamp"),
        ("timestamp", pa.array([timedelta(1)]), "is not a timestamp"),
        ("binary", pa.array([time(1)]), "is not a binary"),
        ("array<int32>", pa.array([[1], [2**40]]), "row number 1: column 'x'[0]: 1099511627776 (int)"),
        ("array<int32>", pa.array([1]), "row number 0: column 'x': 1 (int) is not a array<int32>"),
        ("array<timestamp>", pa.array([[0], [2**62]], pa.list_(pa.timestamp("us", "UTC"))), "row number 1: column"),
        ("vector(float32, 2)", pa.array([[1, 2], [1]]), "row number 1: column 'x': [1] (list)"),
        ("vector(float32, 2)", pa.array([[1, 2], [1, None]]), "row number 1: column 'x'[1]: None"),
        ("vector(float32, 2)", pa.array([[1e300, 0.0]]), "row number 0: column 'x'[0]: 1e+300"),
        ("struct<a: int32>", pa.array([None, {"a": 1, "c": 2}]), "row number 1: column 'x': {'a': 1, 'c': 2}"),
        ("struct<a: int32>", pa.array([[1]]), "row number 0: column 'x': [1] (list) is not a struct"),
        ("map<string, int32>", pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())), "stands twice"),
        ("map<float64, int32>", pa.array([[(0.0, 1), (-0.0, 2)]], pa.map_(pa.float64(), pa.int8())), "stands twice"),
        ("map<float64, int32>", pa.array([[(NAN, 1)]], pa.map_(pa.float64(), pa.int8())), "cannot be a key"),
        ("map<string, int32>", pa.array([["a"]]), "row number 0: column 'x': ['a'] (list) is not a map"),
    ],
    ids=shown,
)
def test_bad(text: str, array: pa.Array, complaint: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        fit(text, array)
    assert complaint in str(caught.value)


def test_a_value_behind_a_null_does_not_count() -> None:
    """A null list, struct or map may have anything in its slot."""
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2]), pa.array([2**40, 1]), mask=pa.array([True, False]))
    assert fit("array<int32>", lists) == [None, [1]]
    assert fit("vector(float32, 1)", lists.cast(pa.large_list(pa.int64()))) == [None, [1.0]]
    structs = pa.StructArray.from_arrays([pa.array([2**40, 1])], ["a"], mask=pa.array([True, False]))
    assert fit("struct<a: int32>", structs) == [None, {"a": 1}]
    maps = pa.MapArray.from_arrays(
        pa.array([0, 2, 3], pa.int32()),
        pa.array(["a", "a", "b"]),
        pa.array([2**40, 1, 1]),
        mask=pa.array([True, False]),
    )
    assert fit("map<string, int32>", maps) == [None, {"b": 1}]


def _layouts(array: pa.Array) -> list[pa.Array]:
    """The same values, laid out in other ways."""
    given_ = array.type
    found = [array, pa.concat_arrays([array, array]).slice(len(array))]
    if pa.types.is_string(given_):
        found += [array.cast(pa.large_string()), array.cast(pa.string_view()), array.dictionary_encode()]
    if pa.types.is_binary(given_):
        found += [array.cast(pa.large_binary()), array.cast(pa.binary_view()), array.dictionary_encode()]
    if pa.types.is_integer(given_):
        found += [array.dictionary_encode(), pc.run_end_encode(array), array.cast(pa.int64())]
    if pa.types.is_list(given_):
        found += [pa.array(array.to_pylist(), pa.large_list(given_.value_type))]
    return found


@settings(max_examples=examples(150))
@given(st.data())
def test_what_has_the_type_already_stays_as_it_is(data: st.DataObject) -> None:
    type_ = data.draw(column_types)
    kept = data.draw(st.lists(st.none() | values(type_), max_size=5))
    array = array_of(type_, kept)
    for laid in _layouts(array):
        found = fitted(type_, laid, "x", 0)
        assert found.type == array.type
        found.validate(full=True)
        assert repr(values_of(type_, found)) == repr(values_of(type_, array))


def _decimals(precision: int, scale: int) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    limit = 10**precision - 1
    numbers = st.integers(-limit, limit) | st.integers(-300, 300)
    return pa.decimal128(precision, scale), numbers.map(lambda number: PyDecimal(f"{number}e-{scale}"))


NUMBERS: tuple[tuple[pa.DataType, st.SearchStrategy[Any]], ...] = (
    (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300) | st.sampled_from([2**53, 2**53 + 1])),
    (pa.uint64(), st.integers(0, 2**64 - 1) | st.integers(0, 300)),
    (pa.float64(), st.floats() | st.integers(-(2**53), 2**53).map(float) | st.sampled_from([2.0**31, -(2.0**31)])),
    (pa.float32(), st.floats(width=32) | st.integers(-(2**24), 2**24).map(float)),
    (pa.bool_(), st.booleans()),
    *(_decimals(*digits) for digits in ((5, 2), (20, 0), (28, 10), (38, 28))),
)
TARGETS: tuple[t.ColumnType, ...] = (
    *(t.Int(bits) for bits in t.INT_BITS),
    *(t.Float(bits) for bits in t.FLOAT_BITS),
    *(t.Decimal(*digits) for digits in ((5, 2), (9, 0), (20, 10), (38, 0), (38, 37))),
    t.Bool(),
)


@settings(max_examples=examples(400))
@given(st.data())
def test_numbers_fit_just_where_single_values_do(data: st.DataObject) -> None:
    source, numbers = data.draw(st.sampled_from(NUMBERS))
    type_ = data.draw(st.sampled_from(TARGETS))
    array = pa.array(data.draw(st.lists(st.none() | numbers, max_size=4)), source)
    given_ = array.to_pylist()
    try:
        expected = [None if value is None else fit_value(type_, value, "x") for value in given_]
    except InvalidArgument:
        with pytest.raises(InvalidArgument, match="row number"):
            fitted(type_, array, "x", 0)
        with pytest.raises(InvalidArgument, match="row number"):
            array_of_given(type_, given_, "x", 0)
    else:
        assert repr(fitted(type_, array, "x", 0).to_pylist()) == repr(expected)
        assert repr(array_of_given(type_, given_, "x", 0).to_pylist()) == repr(expected)


@pytest.mark.parametrize(
    "text, given_, kept",
    [
        ("int32", [1, None, 2.0, np.float32(3), np.int8(4)], [1, None, 2, 3, 4]),
        ("float64", [1, 2.5, None], [1.0, 2.5, None]),
        ("bool", [True, np.bool_(False)], [True, False]),
        ("string", ["a", None, np.str_("b")], ["a", None, "b"]),
        ("array<int8>", [np.array([1, 2]), (3,)], [[1, 2], [3]]),
        ("vector(float32, 2)", [np.array([1.0, 2.0], np.float32)], [[1.0, 2.0]]),
    ],
    ids=shown,
)
def test_python_values_fit(text: str, given_: list[Any], kept: list[Any]) -> None:
    assert array_of_given(parse_type(text), given_, "x", 0).to_pylist() == kept


@pytest.mark.parametrize(
    "text, given_, complaint",
    [
        ("int32", [1, 2**31], "row number 11: x: 2147483648 (int) is not a int32: out of range"),
        ("int32", [1, True], "row number 11: x: True (bool) is not a int32"),
        ("int32", [1.5], "row number 10: x: 1.5 (float) is not a int32"),
        ("int32", [np.longdouble(1) + np.finfo(np.longdouble).eps], "row number 10"),
        ("int32", [NAN], "row number 10: x: nan (float) is not a int32"),
        ("string", ["a", "\ud800"], "row number 11: x: '\\ud800' (str) is not a string: it has a lone surrogate"),
        ("string", ["a", b"b"], "row number 11: x: b'b' (bytes) is not a string"),
        ("float32", [1e300], "row number 10: x: 1e+300 (float) is not a float32: out of range"),
    ],
    ids=shown,
)
def test_python_values_that_do_not_fit(text: str, given_: list[Any], complaint: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        array_of_given(parse_type(text), given_, "x", 10)
    assert complaint in str(caught.value)
