"""The Python face: terms build, expressions compare, and what Python cannot overload is refused with a hint."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal as PyDecimal
from typing import Any

import numpy as np
import pytest

from stelae.model.errors import InvalidArgument
from stelae.model.predicate.build import col, column, history, row, time
from stelae.model.predicate.expr import And, ColumnRef, Comparator, Compare, Expr, Not, Or, Special, combine
from stelae.model.predicate.literals import Literal
from stelae.model.predicate.printer import to_text
from tests.model.predicate.test_samples import moments

DAY, MOMENT, READING = moments()
A, B, C = col("a") == 1, col("b") == 2, col("c") == 3


def test_comparisons_work_from_both_sides() -> None:
    age = col("age")
    for left in (30, 0.5, "x", b"x", DAY, MOMENT, PyDecimal(1), np.int64(30), np.float32(1.5)):
        number: Any = left
        assert (number < age) == (age > number)
        assert (number <= age) == (age >= number)
        assert (number > age) == (age < number)
        assert (number >= age) == (age <= number)
        assert (number == age) == (age == number)
        assert (number != age) == (age != number)
    assert (age > 30) == Compare(ColumnRef("age"), Comparator.GT, Literal(30))


def test_row_is_always_the_encoded_key() -> None:
    assert (col("row") == "a") == (row == "a") == Compare(Special.ROW, Comparator.EQ, Literal("a"))
    assert (col("ROW") == "a") == (row == "a")
    assert (col("time") == 1) != (time == 1)
    assert [to_text(each) for each in (column == "a", time == 1, history == 1)] == [
        'column = "a"',
        "time = 1",
        "history = 1",
    ]
    with pytest.raises(InvalidArgument, match="row is the encoded key"):
        ColumnRef("Row")


LITERALS: list[tuple[Any, Any]] = [
    (np.bool_(True), True),
    (np.int8(3), 3),
    (np.float32(0.5), 0.5),
    (np.str_("x"), "x"),
    (bytearray(b"x"), b"x"),
    (memoryview(b"x"), b"x"),
    (np.datetime64("2024-01-31T10:00:00.123456"), READING),
    (np.datetime64("2024-01-31T10:00:00.123456000", "ns"), READING),
    (MOMENT.astimezone(timezone(timedelta(hours=2))), MOMENT),
    (READING.replace(fold=1), READING),
]


@pytest.mark.parametrize("given, kept", LITERALS, ids=[type(given).__name__ for given, _ in LITERALS])
def test_literals_are_kept_in_one_form(given: Any, kept: Any) -> None:
    literal = (col("a") == given).literal
    assert literal == Literal(kept)
    assert type(literal.value) is type(kept)


@pytest.mark.parametrize(
    "one, other",
    [
        (1, 1.0),
        (1, True),
        (1, PyDecimal(1)),
        (1.0, True),
        (0, False),
        (0.0, -0.0),
        (PyDecimal("1.5"), PyDecimal("1.50")),
        ("a", b"a"),
        (DAY, datetime(2024, 1, 31)),  # noqa: DTZ001
        (MOMENT, READING),
    ],
)
def test_literals_of_different_kind_or_text_differ(one: Any, other: Any) -> None:
    assert (col("a") == one) != (col("a") == other)
    assert len({col("a") == one, col("a") == other}) == 2


def test_equal_expressions_are_equal_keys() -> None:
    one, other = col("a").isin([math.nan]), col("a").isin([float("nan")])
    assert one == other
    assert len({one, other, A & B, And((A, B))}) == 2


def test_and_and_or_are_flat() -> None:
    assert (A & B) & C == A & (B & C) == And((A, B, C)) == combine(A, B, C)
    assert (A | B) | C == A | (B | C) == Or((A, B, C))
    assert combine(A) == A
    assert Not(A) == ~A
    with pytest.raises(InvalidArgument, match="use combine"):
        And((A & B, C))
    with pytest.raises(InvalidArgument, match="use either"):
        Or((A,))


@pytest.mark.parametrize("expr", [A & B | ~C, col("a").isin([1, 2.0, "x"]), col("a").is_not_null()])
def test_expressions_survive_pickling(expr: Expr) -> None:
    assert pickle.loads(pickle.dumps(expr)) == expr


MISTAKES: list[tuple[Callable[[], object], str]] = [
    (lambda: bool(A), "join expressions with & | ~"),
    (lambda: not A, "join expressions with & | ~"),
    (lambda: 1 < col("a") < 3, "write a < x < b as (x > a) & (x < b)"),
    (lambda: bool(col("a")), "col('a') alone is neither true nor false"),
    (lambda: col("a") > 1 & col("b"), "put each comparison in parentheses"),
    (lambda: ~col("flag"), "col('flag') alone is neither true nor false"),
    (lambda: col("flag") | A, "col('flag') alone is neither true nor false"),
    (lambda: A & 5, "5 is no expression"),
    (lambda: True | A, "True is no expression"),
    (lambda: col("a") == None, "col('a'): nothing compares with NULL: use .is_null()"),  # noqa: E711
    (lambda: col("a").isin([1, None]), "use .is_null()"),
    (lambda: col("a").isin("abc"), "col('a').isin takes a list of values, not 'abc'"),
    (lambda: col("a").isin(5), "col('a').isin takes a list of values, not 5"),  # type: ignore[arg-type]
    (lambda: col("a") == [1], "[1] (list) cannot be compared"),
    (lambda: col("a") == col("b"), "col('a') cannot be compared with col('b')"),
    (lambda: col("a") == A, "give a value, not another expression"),
    (lambda: col("a").startswith(5), "a prefix is text or bytes, not 5 (int)"),
    (lambda: col(5), "col takes a column's name, not 5"),  # type: ignore[arg-type]
    (lambda: col(""), "'' is no column name"),
    (lambda: col("a") == "\ud800", "lone surrogate"),
    (lambda: col("a") == 10**5_000, "at most 1200 digits"),
    (lambda: col("a") == PyDecimal("1e5000"), "at most 1200 digits"),
    (lambda: col("a") == PyDecimal("NaN"), "is no decimal number"),
    (lambda: col("a") == np.datetime64("2024-01-01T00:00:00.000000001", "ns"), "nanoseconds"),
    (lambda: Literal(MOMENT.astimezone(timezone(timedelta(hours=2)))), "is not in UTC"),
]


@pytest.mark.parametrize("mistake, message", MISTAKES, ids=[message for _, message in MISTAKES])
def test_mistakes_are_answered_with_a_hint(mistake: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        mistake()
    assert message in str(caught.value)


def test_terms_are_no_keys() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(col("a"))
