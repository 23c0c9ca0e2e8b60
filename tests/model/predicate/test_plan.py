"""A planned scan means what its expression means, and its text plans to the same scan."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stelae.model.errors import InvalidArgument
from stelae.model.ids import TS_MAX, TS_MIN
from stelae.model.predicate.build import col, column, history, row, time
from stelae.model.predicate.expr import (
    And,
    ColumnRef,
    Comparator,
    Compare,
    Expr,
    IsNull,
    Leaf,
    Not,
    Or,
    Special,
    Within,
    combine,
    either,
)
from stelae.model.predicate.literals import Literal
from stelae.model.predicate.parser import parse
from stelae.model.predicate.plan import ALL_TIME, ScanPredicate, TimeRange, plan
from stelae.model.predicate.selectors import (
    ALL_COLUMNS,
    NO_COLUMNS,
    ColumnSelector,
    in_one_form,
    intersect_selectors,
    union_selectors,
)
from stelae.model.ranges import EVERYTHING, NOTHING, RangeSet, RowRange, prefixed, single
from tests.model.evaluate import evaluate
from tests.model.predicate.test_samples import trees

ROWS = [b"", b"\0", b"a", b"a\0", b"a\0\0", b"ab", b"b", b"\xc3\xa9", b"\xfe\xff", b"\xff", b"\xff\xff", b"\xff\xff\0"]
AGES: list[Any] = [None, math.nan, 0, 1, 2.5]
ORDERS = [each for each in Comparator if each is not Comparator.PREFIX]

ROW_LITERALS: list[str | bytes] = [*ROWS, "", "a", "ab", "é"]
row_literals = st.sampled_from(ROW_LITERALS).map(Literal)
row_leaves: st.SearchStrategy[Leaf] = st.one_of(
    st.builds(Compare, st.just(Special.ROW), st.sampled_from(Comparator), row_literals),
    st.builds(Within, st.just(Special.ROW), st.lists(row_literals, max_size=3).map(tuple)),
    st.just(IsNull(Special.ROW)),
)
age = ColumnRef("age")
age_literals = st.sampled_from([0, 1, 2.5, math.nan]).map(Literal)
age_leaves: st.SearchStrategy[Leaf] = st.one_of(
    st.builds(Compare, st.just(age), st.sampled_from(ORDERS), age_literals),
    st.builds(Within, st.just(age), st.lists(age_literals, max_size=3).map(tuple)),
    st.just(IsNull(age)),
)
row_and_age = trees(row_leaves | age_leaves)


@given(row_and_age)
def test_rows_and_where_together_are_the_expression(expr: Expr) -> None:
    planned = plan(expr)
    for row_ in ROWS:
        for age_ in AGES:
            lookup = {"row": row_, "age": age_}.__getitem__
            wanted = evaluate(expr, lookup) is True
            kept = row_ in planned.rows and (planned.where is None or evaluate(planned.where, lookup) is True)
            assert wanted == kept


@given(trees(row_leaves))
def test_conditions_on_row_alone_leave_nothing_to_evaluate(expr: Expr) -> None:
    assert plan(expr).where is None


column_leaves: st.SearchStrategy[Leaf] = st.one_of(
    st.builds(
        Compare,
        st.just(Special.COLUMN),
        st.sampled_from([Comparator.EQ, Comparator.PREFIX]),
        st.sampled_from(["", "a", "ab", "b", "b:", "b:x", "é"]).map(Literal),
    ),
    st.builds(
        Within,
        st.just(Special.COLUMN),
        st.lists(st.sampled_from(["a", "ab", "b:x"]).map(Literal), max_size=3).map(tuple),
    ),
)
column_conditions: st.SearchStrategy[Expr] = st.recursive(
    column_leaves.map(lambda leaf: leaf),
    lambda parts: (
        st.lists(parts, min_size=2, max_size=3).map(lambda each: combine(*each))
        | st.lists(parts, min_size=2, max_size=3).map(lambda each: either(*each))
    ),
    max_leaves=8,
)
COLUMN_NAMES = ["", "a", "ab", "abc", "b", "b:", "b:x", "b:xy", "c", "é", "é:1"]


def selects(expr: Expr, name: str) -> bool:
    """The plain model: `column` is a string that is looked at."""
    match expr:
        case Compare(_, comparator, literal):
            return evaluate(Compare(ColumnRef("c"), comparator, literal), {"c": name}.__getitem__) is True
        case Within(_, literals):
            return evaluate(Within(ColumnRef("c"), literals), {"c": name}.__getitem__) is True
        case And(parts):
            return all(selects(part, name) for part in parts)
        case Or(parts):
            return any(selects(part, name) for part in parts)
        case Not() | IsNull():
            raise AssertionError(expr)


@given(column_conditions)
def test_columns_are_those_the_conditions_name(expr: Expr) -> None:
    planned = plan(expr)
    assert planned.rows == EVERYTHING
    assert planned.where is None
    for name in COLUMN_NAMES:
        assert any(selector.matches(name) for selector in planned.columns) == selects(expr, name)


times = st.sampled_from([TS_MIN - 1, TS_MIN, TS_MIN + 1, -1, 0, 1, 2, TS_MAX - 1, TS_MAX, TS_MAX + 1, 10**40])
time_orders = [each for each in ORDERS if each is not Comparator.NE]
time_conditions = st.lists(
    st.builds(Compare, st.just(Special.TIME), st.sampled_from(time_orders), times.map(Literal)),
    min_size=1,
    max_size=3,
)


@given(time_conditions)
def test_time_is_the_range_the_conditions_allow(conditions: list[Compare]) -> None:
    planned = plan(combine(*conditions))
    for micros in (TS_MIN, TS_MIN + 1, -1, 0, 1, 2, 3, TS_MAX - 1, TS_MAX):
        allowed = all(
            evaluate(Compare(ColumnRef("t"), each.comparator, each.literal), {"t": micros}.__getitem__)
            for each in conditions
        )
        assert (micros in planned.time) == allowed


whole = st.builds(
    lambda parts: combine(*[part for group in parts for part in group]),
    st.tuples(
        st.lists(row_and_age, max_size=3),
        st.lists(column_conditions, max_size=2),
        time_conditions | st.just([]),
        st.sampled_from([[], [history == 1], [history == 7, history == 7]]),
    ).filter(any),
)


@given(whole)
@example(row != "a")
@example(row >= "")
@example(row.isin([]) & column.isin([]) & (time < 0) & (time > 0))
@example(~row.isin(["a", b"\xff"]) & (col("age") > 1) & (col("age") < 2))
def test_the_text_of_a_plan_plans_to_it(expr: Expr) -> None:
    planned = plan(expr)
    assert plan(parse(planned.to_text())) == planned
    assert plan(planned.to_expr()) == planned


AGE = col("age") > 30
CLICK = (ColumnSelector("click:", is_prefix=True),)
PLANS: list[tuple[str, ScanPredicate, str]] = [
    ('"a" <= row < "b" and column ~= "f:" and history = 1',
     ScanPredicate(RangeSet((RowRange(b"a", b"b"),)), (ColumnSelector("f:", is_prefix=True),), history=1),
     '"a" <= row < "b" and column ~= "f:" and history = 1'),
    ("age > 30", ScanPredicate(where=AGE), "age > 30"),
    ('row ~= "a" and age > 30', ScanPredicate(RangeSet((prefixed(b"a"),)), where=AGE), '"a" <= row < "b" and age > 30'),
    ('row ~= b"\\xff"', ScanPredicate(RangeSet((RowRange(b"\xff"),))), 'row >= b"\\xff"'),
    ('row in ("b", "a")', ScanPredicate(RangeSet((single(b"a"), single(b"b")))), 'row in ("a", "b")'),
    ('row = "a"', ScanPredicate(RangeSet((single(b"a"),))), 'row = "a"'),
    ('not row = "a"', ScanPredicate(RangeSet((single(b"a"),)).complement()), 'row != "a"'),
    ('row != "a" and row != "b"', ScanPredicate(RangeSet.of([single(b"a"), single(b"b")]).complement()),
     'row not in ("a", "b")'),
    ('row < "b" or row = "c" or row > "d"',
     ScanPredicate(RangeSet((RowRange(b"", b"b"), single(b"c"), RowRange(b"d\0")))),
     'row < "b" or row >= "d\\0" or row = "c"'),
    ('row < "a" and row > "b"', ScanPredicate(NOTHING), "row in ()"),
    ('row >= ""', ScanPredicate(), 'row >= ""'),
    ('row < "b" or age > 30', ScanPredicate(where=(row < "b") | AGE), 'row < "b" or age > 30'),
    ('column ~= "click:" and column in ("click:a", "view:b")',
     ScanPredicate(columns=(ColumnSelector("click:a", is_prefix=False),)), 'column = "click:a"'),
    ('(column ~= "click:" or column = "click:a") and age > 30', ScanPredicate(columns=CLICK, where=AGE),
     'column ~= "click:" and age > 30'),
    ('column = "a" and column = "b"', ScanPredicate(columns=NO_COLUMNS), "column in ()"),
    ('column ~= ""', ScanPredicate(), 'row >= ""'),
    ("10 <= time < 20", ScanPredicate(time=TimeRange(10, 20)), "10 <= time < 20"),
    ("time = 10", ScanPredicate(time=TimeRange(10, 11)), "10 <= time < 11"),
    ('time > timestamp "1970-01-01T00:00:01Z"', ScanPredicate(time=TimeRange(1_000_001)), "time >= 1000001"),
    ('time <= "1970-01-01T00:00:01Z"', ScanPredicate(time=TimeRange(stop=1_000_001)), "time < 1000001"),
    ("history = 3 and age > 30 and history = 3", ScanPredicate(history=3, where=AGE), "history = 3 and age > 30"),
    ("`time` > 30", ScanPredicate(where=col("time") > 30), "`time` > 30"),
]  # fmt: skip


@pytest.mark.parametrize("text, planned, canonical", PLANS, ids=[text for text, _, _ in PLANS])
def test_plans(text: str, planned: ScanPredicate, canonical: str) -> None:
    assert plan(parse(text)) == planned
    assert planned.to_text() == canonical


REFUSED: list[tuple[str, str]] = [
    ('column = "a" or age > 1', ("column says what is read of each row, not which rows match: it can be joined to "
     "other conditions only with and, and not stand under or or not; only conditions on column may be joined with or")),
    ('not column = "a"', "column says what is read of each row"),
    ('not (row = "a" and column = "a")', "column says what is read of each row"),
    ("time > 1 or time < 0", "time says what is read of each row"),
    ("not time > 1", "time says what is read of each row"),
    ('history = 1 or row = "a"', "history says what is read of each row"),
    ("not history = 1", "history says what is read of each row"),
    ('column > "a"', "column is compared with = ~= or in"),
    ("column is null", "column is compared with = ~= or in"),
    ("column = 1", "column is compared with names in quotes, not with 1 (int)"),
    ("column in (b\"a\")", "column is compared with names in quotes, not with b'a' (binary)"),
    ("time != 1", "time is one range"),
    ("time in (1)", "time is one range"),
    ("time is not null", "time says what is read of each row"),
    ("time > 1.5", "time is compared with microseconds or a timestamp that has a zone, not with 1.5 (float)"),
    ("time > true", "time is compared with microseconds or a timestamp that has a zone, not with True (bool)"),
    ("time > \"yesterday\"", "'yesterday' is no timestamp"),
    ("time > timestamp_ntz \"2024-01-31T10:00\"", "time is compared with microseconds or a timestamp that has a zone"),
    ("history > 1", "history is how many versions are read: history = 1"),
    ("history = 0", "history is how many versions are read: history = 1"),
    ("history = true", "history is how many versions are read: history = 1"),
    ("history = 1 and history = 2", "history is given twice, as 1 and as 2"),
    ("row = 1", "row is the encoded key: compare it with text or bytes, not with 1 (int)"),
    ("row > 1.5 or age > 1", "row is the encoded key: compare it with text or bytes, not with 1.5 (float)"),
]  # fmt: skip


@pytest.mark.parametrize("text, message", REFUSED, ids=[text for text, _ in REFUSED])
def test_what_cannot_be_planned_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        plan(parse(text))
    assert str(caught.value).startswith(message)


def test_many_conditions_on_row_are_planned() -> None:
    rows = [f"{i:06}" for i in range(25_000)]
    without = plan(combine(*[row != each for each in rows]))
    assert without.rows.complement() == RangeSet.of([single(each.encode()) for each in rows])
    assert plan(parse(without.to_text())) == without
    assert plan(either(*[row == each for each in rows])).rows == without.rows.complement()


def test_a_plan_keeps_its_rules() -> None:
    with pytest.raises(InvalidArgument, match="one form"):
        ScanPredicate(columns=(*CLICK, *ALL_COLUMNS))
    with pytest.raises(InvalidArgument, match="history"):
        ScanPredicate(history=0)
    assert TimeRange(5, 5) == TimeRange(9, 3)
    assert TimeRange(-(10**40), 10**40) == ALL_TIME


@given(st.lists(st.builds(ColumnSelector, st.text("ab:", max_size=3), st.booleans()), max_size=5))
def test_one_form_is_told_without_making_it(chosen: list[ColumnSelector]) -> None:
    assert in_one_form(tuple(chosen)) == (tuple(chosen) == union_selectors(chosen))
    assert in_one_form(union_selectors(chosen))


def test_selectors_have_one_form() -> None:
    a, a_, ab_ = ColumnSelector("a", False), ColumnSelector("a", True), ColumnSelector("ab", True)
    assert union_selectors([ab_, a, a_, a]) == (a_,)
    assert union_selectors([ab_, a]) == (a, ab_)
    assert intersect_selectors((a_,), (a, ab_)) == (a, ab_)
    assert intersect_selectors(ALL_COLUMNS, NO_COLUMNS) == NO_COLUMNS
