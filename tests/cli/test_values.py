"""Values as JSON and as words: what is given out reads back as the same value."""

from __future__ import annotations

import math
from decimal import Decimal as PyDecimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.cli.files import typed_column
from stelae.cli.outputs import csv_value
from stelae.cli.words.values import decoded, from_json, from_text, json_value, row_from_json
from stelae.model import types as t
from stelae.model.errors import InvalidArgument
from stelae.model.types import parse_type
from stelae.model.values import coerce
from tests.effort import examples
from tests.strategies import KEY_TYPES, values

NESTED = (
    "array<int32>",
    "array<float64>",
    "struct<a: binary, `b c`: timestamp>",
    "map<string, decimal(5, 2)>",
    "map<int64, array<string>>",
    "map<date, binary>",
    "vector(float32, 3)",
)
TYPES: tuple[t.ColumnType, ...] = (*KEY_TYPES, *map(parse_type, NESTED))

typed_values = st.sampled_from(TYPES).flatmap(lambda type_: st.tuples(st.just(type_), st.none() | values(type_)))


def same(one: Any, other: Any) -> bool:
    """Equal, where NaN is NaN."""
    return repr(one) == repr(other)


def canonical(type_: t.ColumnType, value: Any) -> Any:
    return None if value is None else coerce(type_, value, "it")


@settings(max_examples=examples(300))
@given(typed_values)
def test_json_reads_back(typed: tuple[t.ColumnType, Any]) -> None:
    type_, value = typed
    text = msgspec.json.encode(json_value(type_, value))
    assert same(canonical(type_, from_json(type_, decoded(text, "it"), "it")), canonical(type_, value))


@settings(max_examples=examples(300))
@given(typed_values)
def test_csv_reads_back(typed: tuple[t.ColumnType, Any]) -> None:
    type_, value = typed
    text = csv_value({"x": type_}, "x", value)
    word = text if text is None or isinstance(text, str) else str(text)
    column = typed_column({"x": type_}, "x", pa.array([word], pa.string()), str)
    assert same(column.to_pylist(), array_list(type_, value))
    if word is not None:
        assert same(canonical(type_, from_text(type_, word, "it")), canonical(type_, value))


def array_list(type_: t.ColumnType, value: Any) -> list[Any]:
    from stelae.model.arrow_values import array_of

    return list(array_of(type_, [canonical(type_, value)]).to_pylist())


@pytest.mark.parametrize(
    ("type_", "text", "message"),
    [
        ("int32", "x", "'x' is not a int32: write a whole number, as in 31"),
        ("int32", "1.0", "write a whole number"),
        ("int32", " 1", "write a whole number"),
        ("bool", "yes", "write true or false"),
        ("float64", "1,5", "write a number, as in 2.5"),
        ("float64", "1e400", "'1e400' is out of range of float64; infinity is written as inf"),
        ("float32", "-1e999", "out of range of float32"),
        ("decimal(5, 2)", "abc", "write a number, as in 1.20"),
        ("date", "31.1.2026", "write a day, as in 2026-01-31"),
        ("timestamp", "2026-01-31T12:00:00", "has no time zone"),
        ("timestamp", "noon", "2026-01-31T12:00:00Z"),
        ("timestamp_ntz", "2026-01-31T12:00:00Z", "has a time zone"),
        ("array<int32>", "[1", "is not JSON"),
        ("array<int32>", '["a"]', "it[0]: 'a' is not a int32"),
        ("array<int32>", "{}", "write a list"),
        ("struct<a: int32>", "[]", "write an object"),
        ("map<string, int32>", "[1]", "write an object, or a list of [key, value]"),
    ],
)
def test_wrong_words(type_: str, text: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        from_text(parse_type(type_), text, "it")
    assert message in str(caught.value)
    assert str(caught.value).startswith("it")


@pytest.mark.parametrize(
    ("type_", "text", "message"),
    [
        ("int32", "4.5", "4.5 is not a int32"),
        ("int32", "true", "True is not a int32"),
        ("int32", '"4"', "'4' is not a int32"),
        ("float64", '"x"', '{"$float": "NaN"}'),
        ("float64", '{"$float": "odd"}', '{"$float": "NaN"}'),
        ("float64", "1e400", "'1E+400' is out of range of float64"),
        ("array<float64>", "[1, -1e400]", "it[1]: '-1E+400' is out of range"),
        ("float64", '{"$float": []}', '{"$float": "NaN"}'),
        ("decimal(5, 2)", "true", 'write a string, as in "1.20"'),
        ("binary", '{"$binary": "?"}', "is not base64"),
        ("binary", '{"$binary": 3}', '{"$binary": "base64"}'),
        ("binary", "3", '{"$binary": "base64"}'),
        ("date", "3", 'write a string, as in "2026-01-31"'),
    ],
)
def test_wrong_json(type_: str, text: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        from_json(parse_type(type_), decoded(text, "it"), "it")
    assert message in str(caught.value)


def test_numbers_are_exact() -> None:
    given_ = decoded("0.1", "it")
    assert from_json(t.Decimal(5, 2), given_, "it") == PyDecimal("0.1")
    assert from_json(t.Float(64), given_, "it") == 0.1
    assert from_json(t.Int(64), decoded("9007199254740993", "it"), "it") == 9007199254740993
    assert math.isnan(from_json(t.Float(64), decoded('"NaN"', "it"), "it"))


def test_only_what_is_called_infinite_is() -> None:
    words = ["inf", "-Infinity", "1e308", None, "nan"]
    column = typed_column({"x": t.Float(64)}, "x", pa.array(words, pa.string()), str)
    assert same(column.to_pylist(), [math.inf, -math.inf, 1e308, None, math.nan])
    for text in ("1e400", "-1e400"):
        with pytest.raises(InvalidArgument, match=r"^row 1: column 'x'.*out of range"):
            typed_column({"x": t.Float(64)}, "x", pa.array(["inf", text]), lambda at: f"row {at}")
    with pytest.raises(InvalidArgument, match="out of range"):
        typed_column({"x": t.Float(32)}, "x", pa.array(["1e39"]), str)


def test_a_row_is_an_object() -> None:
    assert row_from_json({"ID": t.Binary()}, {"id": "a", "x:y": "b", "other": 1}, "it") == {
        "id": b"a",
        "x:y": b"b",
        "other": 1,
    }
    with pytest.raises(InvalidArgument, match="a row is a JSON object"):
        row_from_json({}, [1], "it")
