"""Truth, falsehood and the unknown."""

from __future__ import annotations

import math
from decimal import Decimal as PyDecimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.model.errors import InvalidArgument
from stelae.model.predicate.build import col, column, history, row, time
from stelae.model.predicate.expr import Expr
from stelae.model.predicate.parser import parse
from tests.model.evaluate import evaluate
from tests.model.predicate.test_samples import moments

DAY, MOMENT, READING = moments()
VALUES: dict[str, Any] = {
    "row": b"k\xff",
    "one": 1,
    "half": 0.5,
    "nan": math.nan,
    "none": None,
    "minus_zero": -0.0,
    "big": 2**53 + 1,
    "tenth": 0.1,
    "price": PyDecimal("0.10"),
    "yes": True,
    "name": "Ann",
    "astral": "\U0001f600",
    "raw": b"\x00\xff",
    "day": DAY,
    "moment": MOMENT,
    "reading": READING,
    "time": 7,
}


def truth(text: str) -> bool | None:
    return evaluate(parse(text), VALUES.__getitem__)


TRUTHS: list[tuple[str, bool | None]] = [
    ("one = 1", True), ("one != 1", False), ("one < 2", True), ("one <= 0", False), ("one > 0", True),
    ("one >= 2", False), ("one = 1.0", True), ("one = 1.00dec", True), ("one < 1.5", True), ("one > 0.5dec", True),
    ("minus_zero = 0", True), ("minus_zero = 0.0", True), ("minus_zero < 0.0", False),
    ("big = 9007199254740993", True), ("big = 9007199254740992.0", False), ("big > 9007199254740992.0", True),
    ("tenth = 0.1", True), ("tenth = 0.1dec", False), ("tenth > 0.1dec", True), ("price = 0.1dec", True),
    ("one < inf", True), ("one > -inf", True), ("half < 10000000000000000000000000000000000000000", True),
    ("yes = true", True), ("yes > false", True),
    ("name = \"Ann\"", True), ("name < \"Anna\"", True), ("name ~= \"An\"", True), ("name ~= \"\"", True),
    ("name ~= \"ann\"", False), ("astral > \"\\uffff\"", True),
    ("raw ~= b\"\\0\"", True), ("raw > b\"\\0\\xfe\"", True), ("raw = b\"\\0\\xff\"", True),
    ("day = date \"2024-01-31\"", True), ("moment > timestamp \"2024-01-31T11:00:00+02:00\"", True),
    ("reading < timestamp_ntz \"2024-02-01T00:00:00\"", True),
    ("row ~= \"k\"", True), ("row = b\"k\\xff\"", True), ("row > \"k\"", True), ("row in (\"k\", b\"k\\xff\")", True),
    ("row is null", False), ("`time` = 7", True),
    ("one in (1, 2)", True), ("one in (2, 3)", False), ("one in ()", False), ("none in ()", False),
    ("none not in ()", True), ("one in (nan, 1)", True), ("one in (nan, 2)", None), ("one not in (nan, 2)", None),
    ("none in (1)", None), ("none not in (1)", None), ("`nan` in (1, nan)", None),
    ("none = 1", None), ("none != 1", None), ("not none = 1", None), ("none ~= \"x\"", None),
    ("`nan` = 1.0", None), ("`nan` != 1.0", None), ("`nan` = nan", None), ("not `nan` < 1.0", None),
    ("one < nan", None), ("not one = nan", None),
    ("none is null", True), ("none is not null", False), ("one is null", False), ("`nan` is null", False),
    ("`nan` is not null", True),
]  # fmt: skip


@pytest.mark.parametrize("text, expected", TRUTHS, ids=[text for text, _ in TRUTHS])
def test_truths(text: str, expected: bool | None) -> None:
    assert truth(text) is expected


T, F, U = "one = 1", "one = 2", "none = 1"
MEANING: dict[str, bool | None] = {T: True, F: False, U: None}
AND_OR: list[tuple[str, str, bool | None, bool | None]] = [
    (T, T, True, True), (T, F, False, True), (T, U, None, True),
    (F, T, False, True), (F, F, False, False), (F, U, False, None),
    (U, T, None, True), (U, F, False, None), (U, U, None, None),
]  # fmt: skip


@pytest.mark.parametrize("a, b, both, any_", AND_OR)
def test_three_valued_tables(a: str, b: str, both: bool | None, any_: bool | None) -> None:
    assert truth(a) is MEANING[a]
    assert truth(f"{a} and {b}") is both
    assert truth(f"{a} or {b}") is any_
    assert truth(f"not ({a} and {b})") is (None if both is None else not both)
    assert truth(f"not ({a} or {b})") is (None if any_ is None else not any_)


INCOMPATIBLE = [
    "one = \"1\"", "one = true", "yes = 1", "name = b\"Ann\"", "raw = \"x\"",
    "day = timestamp_ntz \"2024-01-31T00:00\"", "moment = timestamp_ntz \"2024-01-31T00:00\"",
    "reading > timestamp \"2024-01-31T00:00Z\"", "one ~= \"1\"",
    "name in (1)", "row = 1",
]  # fmt: skip


@pytest.mark.parametrize("text", INCOMPATIBLE)
def test_other_kinds_do_not_compare(text: str) -> None:
    with pytest.raises(InvalidArgument):
        truth(text)


@pytest.mark.parametrize("expr", [column == "a", time > 1, history == 1, column.is_null()])
def test_what_a_scan_reads_is_no_condition_on_rows(expr: Expr) -> None:
    with pytest.raises(InvalidArgument, match="plan the scan first"):
        evaluate(expr, VALUES.__getitem__)


def test_arrays_are_only_null_or_not() -> None:
    assert evaluate(col("tags").is_null(), {"tags": [1]}.__getitem__) is False
    with pytest.raises(InvalidArgument, match="no scalar"):
        evaluate(col("tags") == 1, {"tags": [1]}.__getitem__)


@given(st.integers() | st.floats() | st.none(), st.integers() | st.floats(allow_nan=False))
def test_a_list_is_the_or_of_its_literals(value: float | None, literal: float) -> None:
    lookup = {"a": value}.__getitem__
    a = col("a")
    assert evaluate(a.isin([literal, 0]), lookup) is evaluate((a == literal) | (a == 0), lookup)
    assert evaluate(a != literal, lookup) is evaluate(~(a == literal), lookup)
    assert evaluate(a <= literal, lookup) is evaluate(~(a > literal), lookup)


def test_row_is_looked_up_as_bytes() -> None:
    assert evaluate(row == "é", {"row": "é".encode()}.__getitem__) is True
