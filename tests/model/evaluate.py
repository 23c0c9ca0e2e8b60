"""What an expression says of one row: true, false, or unknown (None). The plain model that every evaluator of the
package is held to; the rules are those of `stelae.model.predicate.vector`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable

from stelae.model.errors import InvalidArgument
from stelae.model.predicate.expr import (
    And,
    ColumnRef,
    Comparator,
    Compare,
    Expr,
    IsNull,
    Not,
    Operand,
    Or,
    Special,
    Within,
)
from stelae.model.predicate.literals import Literal, LiteralKind, kind_of, row_bytes
from stelae.model.values import Value, show

_NUMBERS = (LiteralKind.INT, LiteralKind.FLOAT, LiteralKind.DECIMAL)
_COMPARE: dict[Comparator, Callable[[Value, Value], bool]] = {
    Comparator.EQ: operator.eq,
    Comparator.NE: operator.ne,
    Comparator.LT: operator.lt,
    Comparator.LE: operator.le,
    Comparator.GT: operator.gt,
    Comparator.GE: operator.ge,
    Comparator.PREFIX: lambda value, prefix: value.startswith(prefix),
}


def evaluate(expr: Expr, lookup: Callable[[str], Value]) -> bool | None:
    """`lookup` gives a column's canonical value by name, None for NULL, and the encoded key's bytes for "row"."""
    match expr:
        case Compare(operand, comparator, literal):
            return _compare(_value(operand, lookup), comparator, _literal_value(operand, literal), operand)
        case Within(operand, literals):
            value = _value(operand, lookup)
            return _any(
                _compare(value, Comparator.EQ, _literal_value(operand, literal), operand) for literal in literals
            )
        case IsNull(operand):
            return _value(operand, lookup) is None
        case Not(inner):
            return _negated(evaluate(inner, lookup))
        case And(parts):
            return _negated(_any(_negated(evaluate(part, lookup)) for part in parts))
        case Or(parts):
            return _any(evaluate(part, lookup) for part in parts)


def _negated(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def _any(truths: Iterable[bool | None]) -> bool | None:
    unknown = False
    for truth in truths:
        if truth:
            return True
        unknown = unknown or truth is None
    return None if unknown else False


def _value(operand: Operand, lookup: Callable[[str], Value]) -> Value:
    match operand:
        case ColumnRef(name):
            return lookup(name)
        case Special.ROW:
            return lookup(Special.ROW.value)
        case Special.COLUMN | Special.TIME | Special.HISTORY:
            raise InvalidArgument(f"{operand.value} says what a scan reads, not which rows match: plan the scan first")


def _literal_value(operand: Operand, literal: Literal) -> Value:
    return row_bytes(literal) if operand is Special.ROW else literal.value


def _compare(value: Value, comparator: Comparator, other: Value, operand: Operand) -> bool | None:
    if value is None or value != value or other != other:
        return None
    kind, other_kind = kind_of(value), kind_of(other)
    if kind is not other_kind and not (kind in _NUMBERS and other_kind in _NUMBERS):
        name = operand.name if isinstance(operand, ColumnRef) else operand.value
        raise InvalidArgument(f"{name!r} holds {kind.value} {show(value)}, which does not compare with {show(other)}")
    return _COMPARE[comparator](value, other)
