"""The text face: what parses, what prints, and that both agree; for texts of any kind, hostile ones too."""

from __future__ import annotations

import math
import sys
from decimal import Decimal as PyDecimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stelae.model.errors import InvalidArgument, InvalidPredicate
from stelae.model.predicate.build import col, column, history, row, time
from stelae.model.predicate.expr import DEPTH_MAX, IN_LIST_MAX, Expr, Not, combine, either
from stelae.model.predicate.literals import NUMBER_DIGITS_MAX
from stelae.model.predicate.parser import TEXT_LENGTH_MAX, parse
from stelae.model.predicate.printer import to_text
from tests.model.predicate.test_samples import exprs, moments

A, B, C = col("a") == 1, col("b") == 2, col("c") == 3
DAY, MOMENT, READING = moments()

CANONICAL: list[tuple[str, Expr]] = [
    ("age > 30", col("age") > 30),
    ("age != 30", col("age") != 30),
    ('"a" <= row < "b" and column ~= "f:" and history = 1',
     (row >= "a") & (row < "b") & column.startswith("f:") & (history == 1)),
    ("1 < a <= 2", (col("a") > 1) & (col("a") <= 2)),
    ("a < 2 and a > 1", (col("a") < 2) & (col("a") > 1)),
    ("a > 1 and b < 2", (col("a") > 1) & (col("b") < 2)),
    ("0 <= time < 10 and b = 2", (time >= 0) & (time < 10) & B),
    ("a = 1 and b = 2 or c = 3", (A & B) | C),
    ("a = 1 and (b = 2 or c = 3)", A & (B | C)),
    ("not a = 1 and b = 2", ~A & B),
    ("not (a = 1 and b = 2)", ~(A & B)),
    ("not (1 < a < 2)", ~((col("a") > 1) & (col("a") < 2))),
    ("not not a = 1", ~~A),
    ("a in (1, 2)", col("a").isin([1, 2])),
    ("a in ()", col("a").isin([])),
    ("a not in (1, 2)", ~col("a").isin([1, 2])),
    ("not a not in (1)", ~~col("a").isin([1])),
    ("a is null", col("a").is_null()),
    ("a is not null", col("a").is_not_null()),
    ("click:home = b\"1\\x00\"".replace("\\x00", "\\0"), col("click:home") == b"1\0"),
    ("`click:home page` = b\"\\xff\"", col("click:home page") == b"\xff"),
    ("`time` = 1 and `not` = 2 and `a``b` = 3", (col("time") == 1) & (col("not") == 2) & (col("a`b") == 3)),
    ("`NULL` = 1 and `True` = 2 and `History` = 3", (col("NULL") == 1) & (col("True") == 2) & (col("History") == 3)),
    ("`größe` > 1.5", col("größe") > 1.5),
    ("date = date \"2024-01-31\"", col("date") == DAY),
    ("t = timestamp \"2024-01-31T10:00:00.123456Z\"", col("t") == MOMENT),
    ("t = timestamp_ntz \"2024-01-31T10:00:00.123456\"", col("t") == READING),
    ("a = 1.50dec", col("a") == PyDecimal("1.50")),
    ("a = 1E+5dec", col("a") == PyDecimal("1E+5")),
    ("a in (1, 1.0, true, 1dec)", col("a").isin([1, 1.0, True, PyDecimal(1)])),
    ("a in (0.0, -0.0, inf, -inf, nan)", col("a").isin([0.0, -0.0, math.inf, -math.inf, math.nan])),
    ("a = \"\\\"'\\\\\\n\\t\\r\\0\\u2028\\U000e0001é\"", col("a") == "\"'\\\n\t\r\0\u2028\U000e0001é"),
]  # fmt: skip

SAME_AS: list[tuple[str, str]] = [
    ("30 < age", "age > 30"),
    ("30 == age", "age = 30"),
    ("AGE = TRUE", "AGE = true"),
    ("a=1 AND NOT b  IS\nNOT NULL Or c In ( 1 , 2 )", "a = 1 and not b is not null or c in (1, 2)"),
    ("((a = 1))", "a = 1"),
    ("(a = 1 and b = 2) and c = 3", "a = 1 and b = 2 and c = 3"),
    ("a = 1 or (b = 2 or c = 3)", "a = 1 or b = 2 or c = 3"),
    ('"b" > row >= "a"', 'row < "b" and row >= "a"'),
    ("not 1 < a < 2", "not (1 < a < 2)"),
    ("not a in (1)", "a not in (1)"),
    ("not (a is null)", "a is not null"),
    ("a = 'it\\'s'", "a = \"it's\""),
    ("a = '\\u0041\\U00000042'", 'a = "AB"'),
    ("a = B'\\x41'", 'a = b"A"'),
    ("a = 1.0E2", "a = 100.0"),
    ("a = -INF", "a = -inf"),
    ("a = 007", "a = 7"),
    ("a = 1DEC", "a = 1dec"),
    ("`age` = 1", "age = 1"),
    ("`row` = 'x'", 'row = "x"'),
    ("ROW = 'x' and Time > 1", 'row = "x" and time > 1'),
    ("größe > 1", "`größe` > 1"),
    ("in:box = b'1'", 'in:box = b"1"'),
    ('t > timestamp "2024-01-31 12:00+02:00"', 't > timestamp "2024-01-31T10:00:00Z"'),
]  # fmt: skip


@pytest.mark.parametrize("text, expr", CANONICAL, ids=[text for text, _ in CANONICAL])
def test_canonical_text_and_python_are_one_expression(text: str, expr: Expr) -> None:
    assert parse(text) == expr
    assert to_text(expr) == text


@pytest.mark.parametrize("text, canonical", SAME_AS, ids=[text for text, _ in SAME_AS])
def test_other_spellings_have_one_canonical_text(text: str, canonical: str) -> None:
    assert to_text(parse(text)) == canonical
    assert to_text(parse(canonical)) == canonical


@given(exprs)
def test_printed_expressions_parse_back_equal(expr: Expr) -> None:
    text = to_text(expr)
    assert parse(text) == expr
    assert hash(parse(text)) == hash(expr)
    assert to_text(parse(text)) == text


@given(exprs, exprs)
def test_expressions_are_equal_exactly_when_their_texts_are(a: Expr, b: Expr) -> None:
    assert (a == b) == (to_text(a) == to_text(b))


def parses_or_says_where(text: str) -> None:
    match parsed(text):
        case InvalidPredicate() as error:
            assert 0 <= error.position <= len(text)
            assert error.text == text
            assert str(error).splitlines()[-1].strip() == "^"
        case expr:
            assert parse(to_text(expr)) == expr


def parsed(text: str) -> Expr | InvalidPredicate:
    try:
        return parse(text)
    except InvalidPredicate as error:
        return error


@given(st.text(st.characters(exclude_categories=[])))
@example("\ud800")
@example("a = '\ud800'")
@example("`\ud800` = 1")
@example("a = '\\U00110000'")
@example("a = 1e99999999999999999999dec")
def test_any_text_parses_or_says_where(text: str) -> None:
    parses_or_says_where(text)


WORDS = [
    "and", "or", "not", "in", "is", "null", "(", ")", ",", "=", "<", "<=", "~=", "!=", "a", "row", "`x", "`", '"',
    '"s"', "'", "\\", "1", "-", ".", "1.5", "dec", "date", "timestamp", 'b"', "b'x'", "true", "nan", "click:", ":",
    "\n", "&",
]  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=20), st.sampled_from(["", " "]))
def test_any_words_parse_or_say_where(words: list[str], space: str) -> None:
    parses_or_says_where(space.join(words))


@given(exprs, st.data())
def test_mutated_text_parses_or_says_where(expr: Expr, data: st.DataObject) -> None:
    text = to_text(expr)
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, min(len(text), start + 3)))
    parses_or_says_where(text[:start] + data.draw(st.sampled_from(["", *WORDS])) + text[stop:])


def nested(count: int) -> Expr:
    expr: Expr = A
    for _ in range(count):
        expr = Not(expr)
    return expr


def alternating(levels: int) -> Expr:
    expr: Expr = A
    for level in range(levels):
        expr = combine(expr, B) if level % 2 else either(expr, C)
    return expr


@pytest.mark.parametrize("expr", [nested(DEPTH_MAX), alternating(DEPTH_MAX)], ids=["nots", "and-or"])
def test_the_deepest_expressions_round_trip(expr: Expr) -> None:
    assert parse(to_text(expr)) == expr
    assert hash(expr) == hash(parse(to_text(expr)))
    assert repr(expr)


def test_deeper_expressions_are_refused_where_they_are_made() -> None:
    with pytest.raises(InvalidArgument, match="at most 100 deep"):
        nested(DEPTH_MAX + 1)
    with pytest.raises(InvalidArgument, match="at most 100 deep"):
        alternating(DEPTH_MAX + 1)


@pytest.mark.parametrize("opening, step", [("(", 1), ("not ", 4), ("(a = 1 or b = 2 and ", 20)])
@pytest.mark.parametrize("count", [101, 40_000])
def test_hostile_nesting_is_an_error_with_its_place(opening: str, step: int, count: int) -> None:
    with pytest.raises(InvalidPredicate, match="at most 100 deep") as caught:
        parse(opening * count + "a = 1" + ")" * count * opening.count("("))
    assert caught.value.position % step in (0, 1)


def test_nesting_is_counted_along_one_path_only() -> None:
    deep = "(" * DEPTH_MAX + "a = 1" + ")" * DEPTH_MAX
    assert parse(f"{deep} and {deep}") == A & A


def test_deep_texts_need_little_of_the_stack() -> None:
    text = "(" * DEPTH_MAX + "a = 1" + ")" * DEPTH_MAX
    depth, frame = 0, sys._getframe()
    while frame.f_back:
        depth, frame = depth + 1, frame.f_back
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 450)
    try:
        assert parse(text) == A
        assert to_text(nested(DEPTH_MAX)).endswith("not a = 1")
    finally:
        sys.setrecursionlimit(before)


def test_lists_are_bounded() -> None:
    full = f"a in ({', '.join(['1'] * IN_LIST_MAX)})"
    assert to_text(parse(full)) == full
    with pytest.raises(InvalidPredicate, match="at most 10000 literals") as caught:
        parse(full.replace(")", ", 2)"))
    assert caught.value.position == len(full) + 1
    with pytest.raises(InvalidArgument, match="at most 10000"):
        col("a").isin(range(IN_LIST_MAX + 1))


@pytest.mark.parametrize("suffix", ["", "dec"])
def test_numbers_are_bounded(suffix: str) -> None:
    longest = f"a = -{'9' * NUMBER_DIGITS_MAX}{suffix}"
    assert to_text(parse(longest)) == longest
    for digits in (NUMBER_DIGITS_MAX + 1, 5_000, 1_000_000):
        with pytest.raises(InvalidPredicate, match="at most 1200 digits") as caught:
            parse(f"a = {'9' * digits}{suffix}")
        assert caught.value.position == 4


def test_texts_are_bounded_when_read_and_when_printed() -> None:
    longest = f'a = "{"x" * (TEXT_LENGTH_MAX - 6)}"'
    assert to_text(parse(longest)) == longest
    with pytest.raises(InvalidPredicate, match="at most 1048576 characters") as caught:
        parse(longest + " ")
    assert caught.value.position == TEXT_LENGTH_MAX
    with pytest.raises(InvalidArgument, match="too long"):
        to_text(col("a") == "x" * TEXT_LENGTH_MAX)


def test_text_is_a_str() -> None:
    with pytest.raises(InvalidArgument, match="is a str"):
        parse(b"a = 1")  # type: ignore[arg-type]
