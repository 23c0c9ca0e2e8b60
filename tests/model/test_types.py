"""Types parse, print, have one Arrow form, and widen only without loss."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.model import types as t
from stelae.model.arrow import from_arrow, to_arrow
from stelae.model.errors import InvalidSchema
from tests.strategies import column_types

HUGE = pytest.param(10**5000, id="huge")


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
        ("integer", "'integer' is not a type; say int32 or int64; types are bool, int8"),
        ("text", "'text' is not a type; say string; types are"),
        ("int33", "'int33' is not a type"),
        ("decimal", "ends too early"),
        ("decimal(39, 2)", "needs a precision from 1 to 38"),
        ("decimal(5, 6)", "a scale from 0 to the precision"),
        ("decimal(x, 6)", "expected a number, not 'x'"),
        ("array<int32", "ends too early"),
        ("array<>", "'>' is not a type"),
        ("map<array<int8>, int8>", "key of a map cannot be array<int8>"),
        ("struct<a: int8, a: int8>", "field 'a' stands twice"),
        ("struct<a: int8, A: int8>", "field 'A' stands twice in a struct (case does not count)"),
        ("struct<größe: int8>", "stray character 'ö'; a field name that is no plain word stands in backquotes"),
        ("struct<`ß`: int8, SS: int8>", "field 'SS' stands twice"),
        ("struct<1: int8>", "'1' is not a field name"),
        ("struct<>", "'>' is not a field name, and a struct has at least one field"),
        ("struct<``: int8>", "printable text of 1 to 255 bytes, not ''"),
        ("struct<`a\n`: int8>", "printable text of 1 to 255 bytes"),
        ("struct<`\ud800`: int8>", "printable text of 1 to 255 bytes"),
        ("struct<`" + "é" * 128 + "`: int8>", "printable text of 1 to 255 bytes"),
        ("struct<`a: int8>", "stray character '`'"),
        ("`int8`", "'`int8`' is not a type"),
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


@pytest.mark.parametrize("bad", [5, None, b"int8", t.Int(8), HUGE])
def test_a_type_is_given_as_text(bad: object) -> None:
    with pytest.raises(InvalidSchema, match=f"a type is given as text, .* not as {type(bad).__name__}"):
        t.parse_type(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("struct<a_1: int8>", "a_1"),
        ("struct<_: int8>", "_"),
        ("struct<`a b`: int8>", "a b"),
        ("struct<`größe`: int8>", "größe"),
        ("struct<`a``b`: int8>", "a`b"),
        ("struct<````: int8>", "`"),
        ("struct<`1`: int8>", "1"),
    ],
)
def test_fields_of_any_name_print_quoted_only_if_needed(text: str, name: str) -> None:
    type_ = t.Struct(((name, t.Int(8)),))
    assert t.parse_type(text) == type_
    assert str(type_) == text


def test_a_plain_name_may_be_quoted() -> None:
    assert t.parse_type("struct<`a`: int8>") == t.parse_type("struct<a: int8>")


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
        (pa.list_view(pa.int8()), t.Array(t.Int(8))),
        (pa.run_end_encoded(pa.int32(), pa.int64()), t.Int(64)),
        (pa.list_(pa.run_end_encoded(pa.int32(), pa.string())), t.Array(t.String())),
        (
            pa.struct([("a b", pa.int32()), ("größe", pa.float64())]),
            t.parse_type("struct<`a b`: int32, `größe`: float64>"),
        ),
    ],
    ids=str,
)
def test_what_frames_bring_is_held(arrow: pa.DataType, type_: t.ColumnType) -> None:
    assert from_arrow(arrow, "c") == type_


@pytest.mark.parametrize("arrow", [pa.null(), pa.time64("us"), pa.duration("s"), pa.decimal256(50, 2)], ids=str)
def test_what_no_type_holds_is_refused(arrow: pa.DataType) -> None:
    with pytest.raises(InvalidSchema, match="column 'c'"):
        from_arrow(arrow, "c")


def nested(depth: int) -> pa.DataType:
    arrow = pa.int8()
    for _ in range(depth):
        arrow = pa.list_(arrow)
    return arrow


@pytest.mark.parametrize(
    ("arrow", "reason"),
    [
        (pa.struct([]), "a struct has at least one field"),
        (pa.struct([("a", pa.int8()), ("a", pa.int8())]), "field 'a' stands twice"),
        (pa.struct([("x", pa.int32()), ("X", pa.int32())]), "field 'X' stands twice"),
        (pa.list_(pa.struct([("", pa.int8())])), "a field name is printable text"),
        (pa.struct([("a\n", pa.int8())]), "a field name is printable text"),
        (pa.list_(pa.float32(), 0), "a vector has from 1 to 65536 elements, not 0"),
        (pa.list_(pa.float32(), 100_000), "a vector has from 1 to 65536 elements, not 100000"),
        (nested(16), "types nest at most 16 deep"),
        (nested(900), "types nest at most 16 deep"),
        (pa.dense_union([pa.field("a", pa.int8())]), "no column type holds"),
    ],
    ids=lambda case: str(case)[:40],
)
def test_what_has_no_text_is_refused(arrow: pa.DataType, reason: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        from_arrow(arrow, "c")
    assert str(caught.value).startswith("column 'c'")
    assert reason in str(caught.value)


def test_nesting_has_one_limit() -> None:
    assert str(from_arrow(nested(15), "c")) == "array<" * 15 + "int8" + ">" * 15


def arrow_structs(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    names = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
    return st.lists(st.tuples(names, inner), max_size=3).map(pa.struct)


arrow_types = st.recursive(
    st.sampled_from([pa.int8(), pa.large_string(), pa.list_(pa.float32(), 2)]),
    lambda inner: arrow_structs(inner) | inner.map(pa.list_) | inner.map(lambda arrow: pa.map_(pa.string(), arrow)),
    max_leaves=5,
)


@given(arrow_types)
def test_a_type_from_arrow_has_a_text_that_parses_back(arrow: pa.DataType) -> None:
    try:
        type_ = from_arrow(arrow, "c")
    except InvalidSchema as error:
        assert str(error).startswith("column 'c")
    else:
        assert t.parse_type(str(type_)) == type_


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
