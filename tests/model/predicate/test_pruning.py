"""A block that holds a match is never left out, and in plain cases one that holds none is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal as PyDecimal
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.model import types as t
from stelae.model.errors import InvalidArgument
from stelae.model.predicate.build import col, column
from stelae.model.predicate.expr import Comparator, Compare, Expr, IsNull, Leaf, Not, Within
from stelae.model.predicate.literals import Literal
from stelae.model.predicate.parser import parse
from stelae.model.predicate.pruning import Bounds, may_match
from tests.effort import examples
from tests.model.evaluate import evaluate
from tests.model.predicate.test_vector import ORDERS, A, edges, leaves_on, one_by_one, tables
from tests.strategies import KEY_TYPES, key_values

Table = tuple[dict[str, t.ColumnType], dict[str, list[Any]], Expr]


def bounds_of(type_: t.ColumnType, values: Sequence[Any]) -> Bounds:
    """As a writer of statistics has them: NaN is left out, what has no order has no bounds."""
    there = [value for value in values if value is not None and value == value]
    has_bounds = there and isinstance(type_, t.KeyType)
    return Bounds(
        min(there) if has_bounds else None,
        max(there) if has_bounds else None,
        sum(value is None for value in values),
        len(values),
        is_exact=True,
    )


@given(tables())
@settings(max_examples=examples(150))
def test_a_match_is_never_left_out(table: Table) -> None:
    types, columns, expr = table
    known = {name: bounds_of(types[name], values) for name, values in columns.items()}
    if True in one_by_one(expr, columns, len(columns["row"])):
        assert may_match(expr, known.get)


def lowered(value: Any) -> Any:
    match value:
        case bool() | float():
            return value if isinstance(value, bool) else math.nextafter(value, -math.inf)
        case int() | PyDecimal():
            return value - 1
        case str() | bytes():
            return value[: len(value) // 2]
        case _:
            return value if value.year == 1 else value - timedelta(days=1)


def raised(value: Any) -> Any:
    match value:
        case bool() | float():
            return value if isinstance(value, bool) else math.nextafter(value, math.inf)
        case int() | PyDecimal():
            return value + 1
        case str():
            return value + "\0"
        case bytes():
            return value + b"\0"
        case _:
            return value if value.year == 9999 else value + timedelta(days=1)


def loosened(bounds: Bounds) -> st.SearchStrategy[Bounds]:
    """Bounds that say less: wider, cut, not known, or spoiled by a NaN."""
    low, high = bounds.minimum, bounds.maximum
    lows = [low, None] if low is None else [low, lowered(low), None]
    highs = [high, None] if high is None else [high, raised(high), None]
    exact = st.booleans()
    if isinstance(low, float):
        lows.append(math.nan)
        highs.append(math.nan)
    if isinstance(high, str | bytes):
        highs.extend(high[:length] for length in range(min(3, len(high))))
        exact = st.just(False)
    nulls = st.sampled_from([bounds.null_count, None])
    return st.builds(Bounds, st.sampled_from(lows), st.sampled_from(highs), nulls, st.just(bounds.count), exact)


@st.composite
def single_columns(draw: st.DrawFn) -> tuple[list[Any], Expr, Bounds]:
    """A block of one column, a condition on it or the contrary, and loose bounds."""
    type_ = draw(st.sampled_from(KEY_TYPES))
    value = st.none() | st.sampled_from(edges(type_)) | key_values(type_)
    values = draw(st.lists(value, min_size=1, max_size=3))
    leaf: Expr = draw(leaves_on(A, type_, values))
    expr = Not(leaf) if draw(st.booleans()) else leaf
    return values, expr, draw(loosened(bounds_of(type_, values)))


@given(single_columns())
@settings(max_examples=examples(600))
def test_loose_bounds_leave_no_match_out(block: tuple[list[Any], Expr, Bounds]) -> None:
    values, expr, bounds = block
    if True in one_by_one(expr, {"a": values}, len(values)):
        assert may_match(expr, {"a": bounds}.get)


@given(tables())
def test_nothing_known_leaves_no_match_out(table: Table) -> None:
    _, columns, expr = table
    if True in one_by_one(expr, columns, len(columns["row"])):
        assert may_match(expr, lambda _: None)


def leaves_with(literals: Sequence[Any]) -> list[Leaf]:
    pairs = product(literals, repeat=2)
    return [
        *[Compare(A, comparator, Literal(x)) for comparator in ORDERS for x in literals],
        *[Within(A, (Literal(x), Literal(y))) for x, y in pairs],
        Within(A, ()),
        IsNull(A),
    ]


@pytest.mark.parametrize("nulls", [0, 1, 2])
def test_exact_bounds_of_whole_numbers_decide_exactly(nulls: int) -> None:
    """The value of every record lies between the bounds, and could be any: so a block is read if one would match."""
    literals = [0, 1, 2, 3, 4, math.nan]
    for low, high in ((1, 1), (1, 2), (1, 3), (2, 3)):
        bounds = Bounds(low, high, nulls, 2, is_exact=True)
        values = [*([] if nulls == 2 else range(low, high + 1)), *([None] if nulls else [])]
        for leaf in leaves_with(literals):
            for expr in (leaf, Not(leaf)):
                if isinstance(leaf, Within) and isinstance(expr, Not) and low < high:
                    continue  # a list that covers all of an interval is not recognized
                wanted = any(evaluate(expr, {"a": value}.__getitem__) for value in values)
                assert may_match(expr, {"a": bounds}.get) is wanted, (expr, low, high)


KNOWN = {
    "age": Bounds(20, 30, 0, 100, is_exact=True),
    "score": Bounds(0.5, 2.5, 10, 100, is_exact=True),
    "price": Bounds(PyDecimal("1.00"), PyDecimal("1.00"), 1, 100, is_exact=True),
    "name": Bounds("anna", "annika", 0, 100, is_exact=True),
    "long": Bounds("aa", "ba", 0, 100, is_exact=False),
    "raw": Bounds(b"a\x00", b"a\xff", 0, 100, is_exact=True),
    "day": Bounds(date(2024, 1, 1), date(2024, 1, 31), 0, 100, is_exact=True),
    "nothing": Bounds(None, None, 100, 100, is_exact=True),
    "full": Bounds(None, None, 0, 100, is_exact=True),
    "row": Bounds(b"k1", b"k5", 0, 100, is_exact=True),
}
CASES: list[tuple[str, bool]] = [
    ("age > 30", False), ("age >= 30", True), ("age < 20", False), ("age <= 20", True), ("age = 31", False),
    ("age = 25", True), ("age != 25", True), ("not age <= 30", False), ("not age > 30", True), ("age > 29.5", True),
    ("age > 30.5dec", False), ("age in (1, 2, 40)", False), ("age in (1, 25)", True), ("age in ()", False),
    ("age not in (1)", True), ("age > nan", False), ("not age > nan", False), ("age in (nan)", False),
    ("age in (nan, 25)", True), ("age not in (nan)", False), ("age not in ()", True),
    ("age is null", False), ("age is not null", True), ("not age is not null", False),
    ("score is null", True), ("score > 2.5", False), ("not score <= 2.5", False), ("score < inf", True),
    ("price != 1.00dec", False), ("price = 1.0dec", True), ("not price = 1.00dec", False), ("not price in (1)", False),
    ('name ~= "anni"', True), ('name ~= "annz"', False), ('name ~= "am"', False), ('name ~= "annab"', True),
    ('not name ~= "ann"', False), ('not name ~= "anna"', True), ('name ~= ""', True), ('name ~= "annikas"', False),
    ('not name ~= "anni"', True), ('name > "annika"', False), ('name = "annikas"', False),
    ('long > "bazaar"', True), ('long = "bazaar"', True), ('long ~= "bazaar"', True), ('long > "bb"', False),
    ('long < "aa"', False), ('long != "ba"', True), ('not long <= "ba"', True), ('not long < "bb"', False),
    ('raw ~= b"a"', True), ('raw ~= b"b"', False), ('not raw ~= b"a"', False),
    ('day < date "2024-01-01"', False), ('day = date "2024-01-15"', True),
    ("nothing is null", True), ("nothing is not null", False), ("nothing = 1", False), ("not nothing = 1", False),
    ("nothing in (1)", False), ("nothing not in ()", True), ("nothing in ()", False),
    ("full is null", False), ("full = 1", True), ("not full = 1", True), ('full ~= "x"', True),
    ('not full ~= "x"', True), ('row < "k1"', False), ('row = "k3"', True), ('row ~= "j"', False),
    ("row is null", False), ('row > b"k5"', False), ('row in ("a", "z")', False),
    ("stranger = 1", True), ("stranger is null", True), ("stranger > nan", False),
    ("age > 30 and score < 1", False), ("age > 30 or score < 1", True), ("age > 30 or score > 3", False),
    ("not (age > 30 and score > 3)", True), ("not (age <= 30 or score > 3)", False),
    ("not (age >= 20 and age <= 30)", False), ("not (age <= 30 and score < 1)", True),
    ("age > 30 or stranger = 1", True), ("age > 30 and stranger = 1", False),
    ("not (nothing = 1 or age < 0)", False), ("nothing = 1 or age > 25", True),
]  # fmt: skip


@pytest.mark.parametrize("text, expected", CASES, ids=[text for text, _ in CASES])
def test_plain_cases(text: str, expected: bool) -> None:
    assert may_match(parse(text), KNOWN.get) is expected


@pytest.mark.parametrize("text", ["a = 1", "not a = 1", "a is null", "a is not null", "a in ()", "a not in ()"])
def test_a_block_without_records_holds_no_match(text: str) -> None:
    assert not may_match(parse(text), {"a": Bounds(None, None, 0, 0, is_exact=True)}.get)


@pytest.mark.parametrize("nulls, count", [(3, 2), (-1, 2), (None, -1), (0, -1)])
def test_counts_that_cannot_be_are_refused(nulls: int | None, count: int) -> None:
    with pytest.raises(InvalidArgument, match="cannot be NULL"):
        Bounds(None, None, nulls, count, is_exact=True)


def test_what_a_scan_reads_is_no_condition_on_blocks() -> None:
    with pytest.raises(InvalidArgument, match="plan the scan first"):
        may_match((column == "a") & (col("age") > 1), KNOWN.get)


@pytest.mark.parametrize("comparator", ORDERS, ids=str)
def test_a_bound_that_is_nan_bounds_nothing(comparator: Comparator) -> None:
    compare = Compare(A, comparator, Literal(1.0))
    for low, high in ((math.nan, 1.0), (1.0, math.nan), (math.nan, math.nan)):
        open_ended = Bounds(None if low != low else low, None if high != high else high, 0, 1, is_exact=True)
        for expr in (compare, Not(compare)):
            spoiled = may_match(expr, {"a": Bounds(low, high, 0, 1, is_exact=True)}.get)
            assert spoiled is may_match(expr, {"a": open_ended}.get), (low, high, expr)


def test_a_cut_maximum_covers_what_begins_with_it() -> None:
    """For any text above it, there is one above that begins with it if and only if that text begins with it too."""
    for x in edges(t.String()):
        for high in edges(t.String()):
            above = may_match(Compare(A, Comparator.GT, Literal(x)), {"a": Bounds("", high, 0, 1, is_exact=False)}.get)
            assert above is (high + "\U0010ffff" * 4 > x), (x, high)
