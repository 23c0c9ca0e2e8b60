"""A batch at once gives the answers that its records give one by one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal as PyDecimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.model import types as t
from stelae.model.arrow import to_arrow
from stelae.model.errors import InvalidArgument
from stelae.model.ids import TS_MAX, TS_MIN
from stelae.model.predicate.binding import check_types
from stelae.model.predicate.build import col, column, history, row, time
from stelae.model.predicate.expr import (
    ColumnRef,
    Comparator,
    Compare,
    Expr,
    IsNull,
    Leaf,
    Not,
    Operand,
    Special,
    Within,
    combine,
    either,
)
from stelae.model.predicate.literals import Literal
from stelae.model.predicate.parser import parse
from stelae.model.predicate.vector import keep, matches, names_of
from stelae.model.values import datetime_of_micros
from tests.effort import examples
from tests.model.evaluate import evaluate
from tests.model.predicate.test_samples import trees
from tests.strategies import KEY_TYPES, key_values, values

ORDERS = [each for each in Comparator if each is not Comparator.PREFIX]
NESTED: tuple[t.ColumnType, ...] = (
    t.Array(t.String()),
    t.Struct((("x", t.Float(64)), ("y", t.Array(t.Int(8))))),
    t.Map(t.String(), t.Int(32)),
    t.Vector(2),
)

F32_MAX = 3.4028234663852886e38
F64_MAX = 1.7976931348623157e308
NUMBERS: list[Any] = [
    0, 1, -1, 2**24 + 1, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**38, 10**400, -(10**400),
    0.0, -0.0, 0.1, 0.5, -1.5, 0.10000000149011612, 16777217.0, F32_MAX, 3.4028235677973366e38, 1e300, F64_MAX, 5e-324,
    -5e-324, 2.0**63, -(2.0**63), math.inf, -math.inf, math.nan,
    *map(PyDecimal, ["0.00", "-0.0", "0.1", "0.5", "1.005", "-1.005", "999.99", "999.991", "-999.991", "1000", "1E+400",
     "-1E+400", "1E-400", "-1E-400", "0.1000000000000000055511151231257827021181583404541015625", "9007199254740993",
     "9007199254740992.5", "9223372036854775807.5", "-9223372036854775808.5", "179769313486231580793728971405301E+277",
     "340282356779733661637539395458142568447", "340282356779733661637539395458142568448"]),
]  # fmt: skip
TEXTS = [
    "", "\0", "\0\0", "a", "a\0", "a\0b", "ab", "b", "\x7f", "\x80", "é", "\ud7ff", "\ue000", "\uffff", "\U00010000",
    "\U0001f600", "\U0010ffff", "a\U0010ffff",
]  # fmt: skip
BLOBS = [
    b"", b"\0", b"\0\0", b"\0\xff", b"a", b"a\0", b"a\0b", b"ab", b"\x7f", b"\x80", b"\xff", b"\xff\0", b"\xff\xff",
]  # fmt: skip
DATES = [date.min, date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29), date.max]
MOMENTS = [
    datetime_of_micros(micros) for micros in (TS_MIN, TS_MIN + 1, -1, 0, 1_714_979_289_123_456, 2**53 + 1, TS_MAX)
]


def edges(type_: t.KeyType) -> list[Any]:
    """Values of a type where comparisons go wrong if they do."""
    match type_:
        case t.Bool():
            return [False, True]
        case t.Int(bits):
            end = 1 << (bits - 1)
            near = [n for n in (2**24, 2**24 + 1, 2**53, 2**53 + 1, -(2**53) - 1) if -end <= n < end]
            return [-end, -end + 1, -2, -1, 0, 1, 2, *near, end - 2, end - 1]
        case t.Float(bits):
            tiny, tenth, most = (2.0**-149, 0.10000000149011612, F32_MAX) if bits == 32 else (5e-324, 0.1, F64_MAX)
            small = [-1.5, -tiny, -0.0, 0.0, tiny, tenth, 0.5]
            return [-math.inf, -most, *small, 2.0**24, 2.0**53, 2.0**63, most, math.inf, math.nan]
        case t.Decimal(precision, scale):
            units = [0, 1, -1, 50, 100, -150, 10**precision - 1, 1 - 10**precision]
            return [PyDecimal(f"{n}e-{scale}") for n in units]
        case t.String():
            return list(TEXTS)
        case t.Binary():
            return list(BLOBS)
        case t.Date():
            return list(DATES)
        case t.Timestamp():
            return list(MOMENTS)
        case t.TimestampNtz():
            return [moment.replace(tzinfo=None) for moment in MOMENTS]


def edge_literals(type_: t.KeyType) -> list[Literal]:
    """What the type compares with, values of it and others."""
    match type_:
        case t.Int() | t.Float():
            return [Literal(x) for x in [*NUMBERS, *edges(type_)]]
        case t.Decimal():
            numbers = [x for x in [*NUMBERS, *edges(type_)] if not isinstance(x, float) or math.isfinite(x)]
            return [Literal(x) for x in numbers]
        case _:
            return [Literal(x) for x in edges(type_)]


def as_array(type_: t.ColumnType, column_: Sequence[Any]) -> pa.Array:
    if isinstance(type_, t.Map):
        column_ = [None if value is None else list(value.items()) for value in column_]
    return pa.array(column_, to_arrow(type_))


def one_by_one(expr: Expr, columns: Mapping[str, Sequence[Any]], count: int) -> list[bool | None]:
    return [evaluate(expr, lambda name, i=i: columns[name][i]) for i in range(count)]  # type: ignore[misc]


A = ColumnRef("a")


@pytest.mark.parametrize("type_", KEY_TYPES, ids=str)
def test_comparisons_at_the_edges(type_: t.KeyType) -> None:
    values_ = [*edges(type_), None]
    arrays = {"a": as_array(type_, values_)}
    for literal in edge_literals(type_):
        for comparator in ORDERS:
            plain = Compare(A, comparator, literal)
            for expr in {plain, check_types(plain, {"a": type_})}:
                found = matches(expr, arrays.__getitem__, len(values_))
                assert found.to_pylist() == one_by_one(expr, {"a": values_}, len(values_)), expr


@pytest.mark.parametrize("type_", KEY_TYPES, ids=str)
def test_lists_at_the_edges(type_: t.KeyType) -> None:
    literals = edge_literals(type_)
    lists = [(), *[(each,) for each in literals], tuple(literals), tuple(x for x in literals if not x.is_nan)]
    for some in ([*edges(type_), None], [value for value in edges(type_) if value == value]):
        arrays = {"a": as_array(type_, some)}
        for listed in lists:
            expr = check_types(Within(A, listed), {"a": type_})
            found = matches(expr, arrays.__getitem__, len(some))
            assert found.to_pylist() == one_by_one(expr, {"a": some}, len(some)), expr


@pytest.mark.parametrize("operand, type_", [(A, t.String()), (A, t.Binary()), (Special.ROW, t.Binary())], ids=str)
def test_prefixes_at_the_edges(operand: Operand, type_: t.KeyType) -> None:
    values_ = [*edges(type_), *([] if operand is Special.ROW else [None])]
    name = "row" if operand is Special.ROW else "a"
    array = as_array(type_, values_)
    for prefix in edges(type_):
        expr = Compare(operand, Comparator.PREFIX, Literal(prefix))
        assert matches(expr, {name: array}.__getitem__, len(values_)).to_pylist() == one_by_one(
            expr, {name: values_}, len(values_)
        )


def test_text_for_row_is_its_bytes() -> None:
    rows = pa.array(["é".encode(), b"\xc3", b"e"])
    for expr in (row == "é", row.isin(["é", b"?"]), row.startswith("é")):
        assert matches(expr, {"row": rows}.__getitem__, 3).to_pylist() == [True, False, False]


def leaves_on(operand: Operand, type_: t.ColumnType, present: Sequence[Any]) -> st.SearchStrategy[Leaf]:
    """Leaves about one column: with values it has, values it might have, and literals of other types of number."""
    null: st.SearchStrategy[Leaf] = st.just(IsNull(operand))
    if not isinstance(type_, t.KeyType):
        return null
    there = [Literal(value) for value in present if value is not None]
    literals = st.sampled_from([*there, *edge_literals(type_)]) | key_values(type_).map(Literal)
    leaf: st.SearchStrategy[Leaf] = st.one_of(
        st.builds(Compare, st.just(operand), st.sampled_from(ORDERS), literals),
        st.builds(Within, st.just(operand), st.lists(literals, max_size=5).map(tuple)),
        null,
    )
    if not isinstance(type_, t.String | t.Binary):
        return leaf
    prefixes = literals.flatmap(
        lambda literal: st.integers(0, 3).map(lambda length: Literal(literal.value[:length]))  # type: ignore[index]
    )
    return leaf | st.builds(Compare, st.just(operand), st.just(Comparator.PREFIX), prefixes)


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[str, t.ColumnType], dict[str, list[Any]], Expr]:
    """A small table with rows and a cell, and a bound expression about it."""
    types: dict[str, t.ColumnType] = {
        "a": draw(st.sampled_from(KEY_TYPES)),
        "b": draw(st.sampled_from([*KEY_TYPES, *NESTED])),
        "f:": t.Binary(),
    }
    count = draw(st.integers(0, 6))
    columns: dict[str, list[Any]] = {"row": draw(st.lists(key_values(t.Binary()), min_size=count, max_size=count))}
    for name, type_ in types.items():
        each = values(type_)
        if isinstance(type_, t.KeyType):
            each = st.sampled_from(edges(type_)) | each
        columns["f:q" if name == "f:" else name] = draw(st.lists(st.none() | each, min_size=count, max_size=count))
    leaf = st.one_of(
        leaves_on(Special.ROW, t.Binary(), columns["row"]),
        leaves_on(ColumnRef("f:q"), t.Binary(), columns["f:q"]),
        leaves_on(A, types["a"], columns["a"]),
        leaves_on(ColumnRef("b"), types["b"], columns["b"]),
    )
    types_of_columns = {"row": t.Binary(), "a": types["a"], "b": types["b"], "f:q": t.Binary()}
    return types_of_columns, columns, check_types(draw(trees(leaf)), types)


@settings(max_examples=examples(150))
@given(tables(), st.integers(0, 2))
def test_a_batch_is_its_records(table: tuple[dict[str, t.ColumnType], dict[str, list[Any]], Expr], cut: int) -> None:
    types, columns, expr = table
    arrays = {name: as_array(types[name], column_)[cut:] for name, column_ in columns.items()}
    columns = {name: column_[cut:] for name, column_ in columns.items()}
    count = len(columns["row"])
    truths = one_by_one(expr, columns, count)
    found = matches(expr, arrays.__getitem__, count)
    assert found.type == pa.bool_()
    assert found.to_pylist() == truths
    assert keep(expr, arrays.__getitem__, count).to_pylist() == [truth is True for truth in truths]
    assert names_of(expr) <= set(columns)


NULLS: list[t.ColumnType] = [*KEY_TYPES, *NESTED]


@pytest.mark.parametrize("type_", NULLS, ids=str)
def test_null_can_be_asked_of_every_type(type_: t.ColumnType) -> None:
    array = as_array(type_, [None, None])
    expr = either(IsNull(A), Not(IsNull(A)))
    assert matches(IsNull(A), {"a": array}.__getitem__, 2).to_pylist() == [True, True]
    assert matches(Not(IsNull(A)), {"a": array}.__getitem__, 2).to_pylist() == [False, False]
    assert matches(expr, {"a": array[:0]}.__getitem__, 0).to_pylist() == []


def test_nan_is_no_null() -> None:
    array = pa.array([math.nan, None, 1.0])
    assert matches(parse("a is null or a > 0.0"), {"a": array}.__getitem__, 3).to_pylist() == [None, True, True]


TRUTHS = pa.array([1, 1, 1, 0, 0, 0, None, None, None], pa.int8())
OTHERS = pa.array([1, 0, None, 1, 0, None, 1, 0, None], pa.int8())


@pytest.mark.parametrize(
    "expr, expected",
    [
        ("a = 1 and b = 1", [True, False, None, False, False, False, None, False, None]),
        ("a = 1 or b = 1", [True, True, True, True, False, None, True, None, None]),
        ("not (a = 1 and b = 1)", [False, True, None, True, True, True, None, True, None]),
        ("not (a = 1 or b = 1)", [False, False, False, False, True, None, False, None, None]),
    ],
)
def test_three_valued_tables(expr: str, expected: list[bool | None]) -> None:
    assert matches(parse(expr), {"a": TRUTHS, "b": OTHERS}.__getitem__, 9).to_pylist() == expected


def test_columns_are_looked_up_once_and_only_while_they_matter() -> None:
    asked: list[str] = []
    arrays = {"a": pa.array([1, 2]), "b": pa.array([1.0, None])}

    def lookup(name: str) -> pa.Array:
        asked.append(name)
        return arrays[name]

    a, b = col("a"), col("b")
    assert keep((a > 0) & (b > 0) & b.is_null() & (a < 9), lookup, 2).to_pylist() == [False, False]
    assert asked == ["a", "b"]
    asked.clear()
    assert matches((a > 5) & (b > 0), lookup, 2).to_pylist() == [False, False]
    assert matches((a > 0) | (b > 0), lookup, 2).to_pylist() == [True, True]
    assert matches(b.isin([]), lookup, 2).to_pylist() == [False, False]
    assert asked == ["a", "a"]


def test_an_unknown_keeps_the_other_parts_in_play() -> None:
    arrays = {"a": pa.array([None, 0], pa.int64()), "b": pa.array([1, 1])}
    assert matches(parse("a > 5 and b > 1"), arrays.__getitem__, 2).to_pylist() == [False, False]
    assert matches(parse("a < 5 or b = 1"), arrays.__getitem__, 2).to_pylist() == [True, True]


def test_names() -> None:
    expr = combine(row > "a", Not(either(col("a") == 1, col("f:q").isin([b""]))), IsNull(A))
    assert names_of(expr) == {"row", "a", "f:q"}


@pytest.mark.parametrize("expr", [column == "a", time > 1, history == 1, column.is_null(), ~time.isin([1])], ids=str)
def test_what_a_scan_reads_is_no_condition_on_records(expr: Expr) -> None:
    with pytest.raises(InvalidArgument, match="plan the scan first"):
        matches(expr, {"a": TRUTHS}.__getitem__, 9)
    with pytest.raises(InvalidArgument, match="plan the scan first"):
        names_of(expr)


MISTAKES: list[tuple[pa.Array, str, str]] = [
    (pa.array([1]), 'a = "1"', "column 'a' is int64 and cannot be compared with '1' (string)"),
    (pa.array([1]), "a in (1, true)", "column 'a' is int64 and cannot be compared with True (bool)"),
    (pa.array([1]), 'a ~= "1"', "column 'a' is int64 and cannot be compared with '1' (string)"),
    (pa.array([True]), "a = 1", "column 'a' is bool and cannot be compared with 1 (int)"),
    (pa.array(["x"]), 'a = b"x"', "column 'a' is string and cannot be compared with b'x' (binary)"),
    (pa.array([b"x"]), 'a ~= "x"', "column 'a' is binary and cannot be compared with 'x' (string)"),
    (pa.array([[1]]), "a = 1", "column 'a' is array<int64>: it can only be asked whether it is null"),
    (pa.array([1], pa.uint8()), "a = 1", "column 'a' is uint8 in Arrow, not the int16 of int16"),
    (pa.array([1.0], pa.float16()), "a = 0.1", "column 'a' is halffloat in Arrow, not the float of float32"),
    (pa.array([1, 2]), "a = 1", "column 'a' has 2 values for 1 records"),
    (pa.array([1, 2]), "a is null", "column 'a' has 2 values for 1 records"),
]


@pytest.mark.parametrize("array, text, message", MISTAKES, ids=[f"{a.type} {text}" for a, text, _ in MISTAKES])
def test_what_does_not_compare_is_refused(array: pa.Array, text: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        matches(parse(text), {"a": array}.__getitem__, 1)
    assert str(caught.value) == message
