"""Random expressions for the tests of predicates, and proof that they reach every kind of node and literal."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal as PyDecimal

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from stelae.model.predicate.expr import (
    And,
    ColumnRef,
    Comparator,
    Compare,
    Expr,
    IsNull,
    Leaf,
    Not,
    Operand,
    Or,
    Special,
    Within,
    combine,
    either,
    leaves,
)
from stelae.model.predicate.lexer import RESERVED_WORDS
from stelae.model.predicate.literals import Literal, LiteralKind

SPECIAL_FLOATS = (0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1e308, 0.1)
TRICKY_NAMES = ("age", "click:home", "date", "timestamp", "b", "a b", "`", "``x`", "größe", "a:b:c", ":", "\n", "row:x")
TRICKY_TEXTS = ("", '"', "'", "\\", "\0", "\01", "\n\t\r", "é\u2028\U0001f600\x7f", "and", "\\n")

names = (
    st.sampled_from([*TRICKY_NAMES, *sorted(RESERVED_WORDS), "NULL", "Time"]) | st.text(min_size=1, max_size=6)
).filter(lambda name: name.lower() != "row")
operands: st.SearchStrategy[Operand] = st.builds(ColumnRef, names) | st.sampled_from(Special)
decimals = st.builds(
    lambda sign, digits, exponent: PyDecimal((sign, digits, exponent)),
    st.integers(0, 1),
    st.lists(st.integers(0, 9), min_size=1, max_size=40).map(tuple),
    st.integers(-60, 60),
)
literals: st.SearchStrategy[Literal] = st.one_of(
    st.booleans(),
    st.integers() | st.integers(-(10**300), 10**300),
    st.sampled_from(SPECIAL_FLOATS) | st.floats(),
    decimals,
    st.sampled_from(TRICKY_TEXTS) | st.text(max_size=8),
    st.binary(max_size=8),
    st.dates(),
    st.datetimes(timezones=st.just(UTC)).map(lambda moment: moment.replace(fold=0)),
    st.datetimes().map(lambda reading: reading.replace(fold=0)),
).map(Literal)
prefixes = literals.filter(lambda literal: literal.kind in (LiteralKind.STRING, LiteralKind.BINARY))
_comparators = st.sampled_from([each for each in Comparator if each is not Comparator.PREFIX])
any_leaf: st.SearchStrategy[Leaf] = st.one_of(
    st.builds(Compare, operands, _comparators, literals),
    st.builds(Compare, operands, st.just(Comparator.PREFIX), prefixes),
    st.builds(Within, operands, st.lists(literals, max_size=4).map(tuple)),
    st.builds(IsNull, operands),
)


def trees(leaf: st.SearchStrategy[Leaf]) -> st.SearchStrategy[Expr]:
    """Expressions of these leaves, with a lower and an upper bound side by side now and then."""
    base: st.SearchStrategy[Expr] = leaf.map(lambda each: each)

    def join(parts: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        several = st.lists(parts, min_size=2, max_size=4)
        return parts.map(Not) | several.map(lambda each: combine(*each)) | several.map(lambda each: either(*each))

    return st.recursive(base, join, max_leaves=12)


bounds: st.SearchStrategy[Expr] = st.builds(
    lambda operand, low, least, high, most: combine(Compare(operand, low, least), Compare(operand, high, most)),
    operands,
    _comparators,
    literals,
    _comparators,
    literals,
)
exprs: st.SearchStrategy[Expr] = trees(any_leaf) | bounds | bounds.map(Not)


def test_samples_reach_every_node_and_literal() -> None:
    reached: set[object] = set()

    @settings(max_examples=300, phases=[Phase.generate], derandomize=True, database=None)
    @given(exprs)
    def look_at(expr: Expr) -> None:
        reached.update(type(node) for node in (expr, *leaves(expr)))
        reached.update(leaf.literal.kind for leaf in leaves(expr) if isinstance(leaf, Compare))

    look_at()
    assert reached == {Compare, Within, IsNull, Not, And, Or, *LiteralKind}


def moments() -> tuple[date, datetime, datetime]:
    """A date, a moment and a wall-clock reading, for tables in tests."""
    moment = datetime(2024, 1, 31, 10, 0, 0, 123456, tzinfo=UTC)
    return date(2024, 1, 31), moment, moment.replace(tzinfo=None)
