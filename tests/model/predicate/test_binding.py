"""What each type of column compares with, what literals become, and what is said about the rest."""

from __future__ import annotations

import math
from decimal import Decimal as PyDecimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.model import types as t
from stelae.model.errors import InvalidArgument
from stelae.model.predicate.binding import check_types
from stelae.model.predicate.build import col
from stelae.model.predicate.expr import ColumnRef, Comparator, Compare
from stelae.model.predicate.literals import Literal
from stelae.model.predicate.parser import parse
from stelae.model.predicate.printer import to_text
from tests.model.evaluate import evaluate

TYPES: dict[str, t.ColumnType] = {
    "flag": t.Bool(),
    "tiny": t.Int(8),
    "Age": t.Int(32),
    "score": t.Float(64),
    "small": t.Float(32),
    "price": t.Decimal(9, 2),
    "name": t.String(),
    "raw": t.Binary(),
    "day": t.Date(),
    "seen": t.Timestamp(),
    "local": t.TimestampNtz(),
    "tags": t.Array(t.String()),
    "place": t.Struct((("x", t.Float(64)),)),
    "labels": t.Map(t.String(), t.String()),
    "embedding": t.Vector(3),
    "click:": t.Binary(),
}

FITTED: list[tuple[str, str]] = [
    ("flag = true", "flag = true"),
    ("Age = 30.0", "Age = 30"),
    ("Age = 30.00dec", "Age = 30"),
    ("Age > 30.5", "Age > 30.5"),
    ("Age < inf or Age = nan", "Age < inf or Age = nan"),
    ("tiny < 300", "tiny < 300"),
    ("tiny in (1, 2.0, 300)", "tiny in (1, 2, 300)"),
    ("score > 1", "score > 1.0"),
    ("score > 9007199254740993", "score > 9007199254740993"),
    ("score = 0.5dec", "score = 0.5"),
    ("score = 0.1dec", "score = 0.1dec"),
    ("score < 1e400dec", "score < 1E+400dec"),
    ("small = 0.1", "small = 0.1"),
    ("price = 1", "price = 1.00dec"),
    ("price = 1.5dec", "price = 1.50dec"),
    ("price = 0.1", "price = 0.10dec"),
    ("price > 1e-3", "price > 0.001dec"),
    ("price > 1.555dec", "price > 1.555dec"),
    ("price < 123456789012", "price < 123456789012"),
    ('name ~= "A" and name > "B"', 'name ~= "A" and name > "B"'),
    ('raw ~= b"\\xff"', 'raw ~= b"\\xff"'),
    ('day = "2024-01-31"', 'day = date "2024-01-31"'),
    ('day in ("2024-01-31", date "2024-02-01")', 'day in (date "2024-01-31", date "2024-02-01")'),
    ('seen > "2024-01-31T12:00+02:00"', 'seen > timestamp "2024-01-31T10:00:00Z"'),
    ('local <= "2024-01-31 10:00:00.5"', 'local <= timestamp_ntz "2024-01-31T10:00:00.500000"'),
    ("not (tags is null or place is not null)", "not (tags is null or place is not null)"),
    ("labels is null and embedding is not null", "labels is null and embedding is not null"),
    ("AGE > 1 and NAME is null", "Age > 1 and name is null"),
    ('click:home = b"1"', 'click:home = b"1"'),
    ('`CLICK:Home page` = b"1"', '`click:Home page` = b"1"'),
    ('row > "a" or Age = 1', 'row > b"a" or Age = 1'),
    ('row in ("a", b"b") and row is null', 'row in (b"a", b"b") and row is null'),
    ('column = "x" and time > 1 and history = 2', 'column = "x" and time > 1 and history = 2'),
]


@pytest.mark.parametrize("text, fitted", FITTED, ids=[text for text, _ in FITTED])
def test_literals_are_fitted_where_nothing_is_lost(text: str, fitted: str) -> None:
    assert to_text(check_types(parse(text), TYPES)) == fitted
    assert to_text(check_types(parse(fitted), TYPES)) == fitted


REFUSED: list[tuple[str, str]] = [
    ("flag = 1", "column 'flag' is bool and cannot be compared with 1 (int)"),
    ("Age = true", "column 'Age' is int32 and cannot be compared with True (bool)"),
    ('age > "30"',
     "column 'Age' is int32 and cannot be compared with '30' (string): numbers are written without quotes"),
    ("score > date \"2024-01-31\"", "column 'score' is float64 and cannot be compared with 2024-01-31 (date)"),
    ("price < inf", "column 'price' is decimal(9, 2) and cannot be compared with inf (float)"),
    ("name = 1", "column 'name' is string and cannot be compared with 1 (int)"),
    ("name in (\"a\", b\"b\")", "column 'name' is string and cannot be compared with b'b' (binary)"),
    ("raw = \"x\"", "column 'raw' is binary and cannot be compared with 'x' (string): write b\"...\""),
    ("click:home ~= \"x\"", "column 'click:home' is binary and cannot be compared with 'x' (string): write b\"...\""),
    ("Age ~= \"3\"", ("column 'Age' is int32 and cannot be compared with '3' (string) by ~= (startswith): "
     "only string and binary columns have prefixes")),
    ("day ~= \"2024\"", ("column 'day' is date and cannot be compared with '2024' (string) by ~= (startswith): "
     "only string and binary columns have prefixes")),
    ("day = \"31.1.2024\"", "column 'day' is date: '31.1.2024' is no date: write it as 2024-01-31"),
    ("day = \"2024-02-30\"", "column 'day' is date: '2024-02-30' is no date: day is out of range for month"),
    ("day = timestamp \"2024-01-31T00:00Z\"", ("column 'day' is date and cannot be compared with "
     "2024-01-31T00:00:00+00:00 (timestamp)")),
    ("seen > \"2024-01-31T10:00\"", ("column 'seen' is timestamp: '2024-01-31T10:00' has no time zone: end it with Z "
     "for UTC, or with an offset as +02:00")),
    ("seen > \"2024-01-31T10:00:00.1234567Z\"", ("column 'seen' is timestamp: '2024-01-31T10:00:00.1234567Z' is no "
     "timestamp: write it as 2024-01-31T10:00:00Z, with at most 6 digits of a second")),
    ("seen > \"0001-01-01T00:00:00+05:00\"", ("column 'seen' is timestamp: '0001-01-01T00:00:00+05:00' is no "
     "timestamp: it lies outside the years 1 to 9999 in UTC")),
    ("seen > timestamp_ntz \"2024-01-31T10:00\"", ("column 'seen' is timestamp and cannot be compared with "
     "2024-01-31T10:00:00 (timestamp_ntz): it has no time zone")),
    ("local > \"2024-01-31T10:00Z\"", ("column 'local' is timestamp_ntz: '2024-01-31T10:00Z' has a time zone, and "
     "timestamp_ntz has none: leave it out")),
    ("local > timestamp \"2024-01-31T10:00Z\"", ("column 'local' is timestamp_ntz and cannot be compared with "
     "2024-01-31T10:00:00+00:00 (timestamp): it has a time zone")),
    ("tags = \"x\"", ("column 'tags' is array<string> and cannot be compared with 'x' (string): it can only be asked "
     "whether it is null")),
    ("labels in ()", "column 'labels' is map<string, string>: it can only be asked whether it is null"),
    ("embedding > 1.0", ("column 'embedding' is vector(float32, 3) and cannot be compared with 1.0 (float): it can "
     "only be asked whether it is null")),
    ("nmae = \"Ann\"", "no column 'nmae'; did you mean 'name'?"),
    ("not (Age = 1 or zzz is null)", "no column 'zzz'"),
    ("view:home = b\"1\"", "no column 'view:home'"),
    ("`time` > 1", "no column 'time'; the scan's own time is written without backquotes, and in Python without col()"),
    ("row = 1", "row is the encoded key: compare it with text or bytes, not with 1 (int)"),
]  # fmt: skip


@pytest.mark.parametrize("text, message", REFUSED, ids=[text for text, _ in REFUSED])
def test_what_does_not_compare_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_types(parse(text), TYPES)
    assert str(caught.value) == message


def test_wildcard_families_take_any_cell() -> None:
    expr = col("any:thing") == b"1"
    assert check_types(expr, {"*:": t.Binary()}) == expr
    with pytest.raises(InvalidArgument, match="no column 'any'"):
        check_types(col("any") == b"1", {"*:": t.Binary()})


NUMBERS: list[Any] = [
    0, 1, -1, 127, 128, -128, -129, 2**24 + 1, 2**53, 2**53 + 1, -(2**53) - 1, 10**9, 10**40, 0.0, -0.0, 0.1, 0.5, 1.5,
    -1.5, 1e300, math.inf, -math.inf, math.nan, PyDecimal("0.10"), PyDecimal("0.5"), PyDecimal("1.555"),
    PyDecimal("-0"), PyDecimal("1E+50"), PyDecimal(9007199254740993),
]  # fmt: skip
VALUES: dict[t.ColumnType, list[Any]] = {
    t.Int(64): [0, 1, -1, 127, 128, -129, 2**53, 2**53 + 1, None],
    t.Float(64): [0.0, 0.1, 0.5, 1.5, -1.5, 2.0**53, math.inf, -math.inf, math.nan, None],
    t.Float(32): [0.0, 0.10000000149011612, 0.5, 16777216.0, math.inf, None],
    t.Decimal(20, 2): [PyDecimal("0.00"), PyDecimal("0.10"), PyDecimal("1.55"), PyDecimal("1.56"), None],
}


@given(st.data())
def test_fitting_changes_no_answer(data: st.DataObject) -> None:
    type_ = data.draw(st.sampled_from(list(VALUES)))
    comparator = data.draw(st.sampled_from([each for each in Comparator if each is not Comparator.PREFIX]))
    numbers = [n for n in NUMBERS if not (isinstance(type_, t.Decimal) and isinstance(n, float))]
    literal = Literal(data.draw(st.sampled_from(numbers)))
    plain = Compare(ColumnRef("a"), comparator, literal)
    fitted = check_types(plain, {"a": type_})
    for value in VALUES[type_]:
        assert evaluate(fitted, {"a": value}.__getitem__) is evaluate(plain, {"a": value}.__getitem__)
