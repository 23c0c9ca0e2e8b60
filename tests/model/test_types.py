"""Types parse, print, have one Arrow form, and widen only without loss."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given

from stelae.model import types as t
from stelae.model.arrow import from_arrow, to_arrow
from stelae.model.errors import InvalidSchema
from tests.strategies import column_types


@given(column_types)
def test_print_and_parse_back(type_: t.ColumnType) -> None:
    assert t.parse_type(str(type_)) == type_


@given(column_types)
def test_arrow_and_back(type_: t.ColumnType) -> None:
    assert from_arrow(to_arrow(type_), "c") == type_


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ends too early"),
        ("integer", "'integer' is not a type; types are bool, int8"),
        ("int33", "'int33' is not a type"),
        ("decimal", "ends too early"),
        ("decimal(39, 2)", "needs a precision from 1 to 38"),
        ("decimal(5, 6)", "a scale from 0 to the precision"),
        ("decimal(x, 6)", "expected a number, not 'x'"),
        ("array<int32", "ends too early"),
        ("array<>", "'>' is not a type"),
        ("map<array<int8>, int8>", "key of a map cannot be array<int8>"),
        ("struct<a: int8, a: int8>", "field 'a' stands twice"),
        ("struct<1: int8>", "'1' is not a field name"),
        ("vector(float64, 3)", "a vector is of float32"),
        ("vector(float32, 0)", "from 1 to 65536 elements"),
        ("int8 int8", "nothing should follow the type"),
        ("int8;", "nothing should follow the type"),
        ("array<" * 20 + "int8" + ">" * 20, "nest at most 16 deep"),
        ("decimal(²,1)", "stray character"),
    ],
)
def test_a_bad_type_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        t.parse_type(text)
    assert message in str(caught.value)
    assert repr(text) in str(caught.value)


def test_case_and_spaces_do_not_count() -> None:
    assert t.parse_type("  MAP < String ,Decimal( 5,2 ) >") == t.Map(t.String(), t.Decimal(5, 2))


@pytest.mark.parametrize(
    ("arrow", "type_"),
    [
        (pa.large_string(), t.String()),
        (pa.string_view(), t.String()),
        (pa.dictionary(pa.int8(), pa.string()), t.String()),
        (pa.binary(4), t.Binary()),
        (pa.uint8(), t.Int(16)),
        (pa.uint32(), t.Int(64)),
        (pa.uint64(), t.Decimal(20, 0)),
        (pa.float16(), t.Float(32)),
        (pa.timestamp("ns", "Europe/Berlin"), t.Timestamp()),
        (pa.timestamp("s"), t.TimestampNtz()),
        (pa.date64(), t.Date()),
        (pa.large_list(pa.int8()), t.Array(t.Int(8))),
        (pa.list_(pa.float32(), 3), t.Vector(3)),
        (pa.list_(pa.float64(), 3), t.Array(t.Float(64))),
    ],
    ids=str,
)
def test_what_frames_bring_is_held(arrow: pa.DataType, type_: t.ColumnType) -> None:
    assert from_arrow(arrow, "c") == type_


@pytest.mark.parametrize("arrow", [pa.null(), pa.time64("us"), pa.duration("s"), pa.decimal256(50, 2)], ids=str)
def test_what_no_type_holds_is_refused(arrow: pa.DataType) -> None:
    with pytest.raises(InvalidSchema, match="column 'c'"):
        from_arrow(arrow, "c")


@pytest.mark.parametrize(
    ("old", "new", "widens"),
    [
        ("int8", "int64", True),
        ("int64", "int32", False),
        ("float32", "float64", True),
        ("float64", "float32", False),
        ("int32", "float64", False),
        ("decimal(5, 2)", "decimal(9, 2)", True),
        ("decimal(5, 2)", "decimal(9, 3)", False),
        ("string", "binary", False),
        ("array<int8>", "array<int16>", True),
        ("map<string, int8>", "map<string, int16>", False),
        ("date", "date", True),
    ],
)
def test_widening(old: str, new: str, widens: bool) -> None:
    assert t.widens(t.parse_type(old), t.parse_type(new)) is widens
