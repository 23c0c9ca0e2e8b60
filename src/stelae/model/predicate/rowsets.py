"""Conditions on `row` alone as sets of row ranges, and back.

A row is never NULL, so such conditions are true or false and nothing else: or is union, not is complement, and is the
complement of the union of complements, which is one sort however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable

from stelae.model.errors import InvalidArgument
from stelae.model.predicate.expr import (
    IN_LIST_MAX,
    And,
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
from stelae.model.predicate.literals import Literal, row_bytes
from stelae.model.ranges import EVERYTHING, NOTHING, RangeSet, RowRange, prefixed, single


def intersect_all(sets: Iterable[RangeSet]) -> RangeSet:
    return RangeSet.of([gap for each in sets for gap in each.complement()]).complement()


def rows_where(expr: Expr) -> RangeSet:
    """The rows a condition on `row` alone is true of."""
    match expr:
        case Compare() | Within() | IsNull():
            return rows_of_leaf(expr)
        case Not(inner):
            return rows_where(inner).complement()
        case And(parts):
            return intersect_all([rows_where(part) for part in parts])
        case Or(parts):
            return RangeSet.of([each for part in parts for each in rows_where(part)])


def rows_of_leaf(leaf: Leaf) -> RangeSet:
    if leaf.operand is not Special.ROW:
        raise InvalidArgument(f"{leaf} is no condition on row")
    match leaf:
        case IsNull():
            return NOTHING
        case Within(_, literals):
            return RangeSet.of([single(row_bytes(literal)) for literal in literals])
        case Compare(_, Comparator.NE, literal):
            return RangeSet((single(row_bytes(literal)),)).complement()
        case Compare(_, comparator, literal):
            return RangeSet.of([_range(comparator, row_bytes(literal))])


def _range(comparator: Comparator, row: bytes) -> RowRange:
    at = single(row)
    match comparator:
        case Comparator.LT:
            return RowRange(b"", at.start)
        case Comparator.LE:
            return RowRange(b"", at.stop)
        case Comparator.GT:
            return RowRange(at.stop or b"", None)
        case Comparator.GE:
            return RowRange(at.start, None)
        case Comparator.PREFIX:
            return prefixed(row)
        case Comparator.EQ | Comparator.NE:
            return at


def rows_condition(rows: RangeSet) -> Expr | None:
    """A condition that is true of exactly these rows; None if of all."""
    if rows == EVERYTHING:
        return None
    missing = rows.complement()
    if not rows.is_empty and all(_is_single(each) for each in missing):
        return combine(*[Not(each) if isinstance(each, Within) else _unequal(each) for each in _listed(missing.ranges)])
    singles = [each for each in rows if _is_single(each)]
    wider: list[Expr] = [_between(each) for each in rows if not _is_single(each)]
    return either(*wider, *_listed(tuple(singles))) if wider or singles else Within(Special.ROW, ())


def _is_single(rows: RowRange) -> bool:
    return rows == single(rows.start)


def _listed(rows: tuple[RowRange, ...]) -> list[Compare | Within]:
    if len(rows) == 1:
        return [Compare(Special.ROW, Comparator.EQ, _literal(rows[0].start))]
    return [
        Within(Special.ROW, tuple(_literal(each.start) for each in rows[i : i + IN_LIST_MAX]))
        for i in range(0, len(rows), IN_LIST_MAX)
    ]


def _unequal(equal: Compare) -> Compare:
    return Compare(equal.operand, Comparator.NE, equal.literal)


def _between(rows: RowRange) -> Expr:
    bounds = []
    if rows.start:
        bounds.append(Compare(Special.ROW, Comparator.GE, _literal(rows.start)))
    if rows.stop is not None:
        bounds.append(Compare(Special.ROW, Comparator.LT, _literal(rows.stop)))
    return combine(*bounds)


def _literal(row: bytes) -> Literal:
    """As text where it is some, because that is how people write rows."""
    try:
        return Literal(row.decode())
    except UnicodeDecodeError:
        return Literal(row)
