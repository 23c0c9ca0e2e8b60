"""Which blocks need not be read, by what is known of their columns: bounds, and how many values are NULL.

For each part of an expression two questions are asked: may it be **true** of some record, and may it be **false** of
one? `not` swaps the answers, `and` may be true if all of its parts may and false if any may, `or` the other way round.
Unknown needs no question: what is unknown stays so under `not`, and joined to other parts it makes nothing true that
they do not make true without it. So NULL and NaN, of which comparisons are unknown, count only for `is null`, and
bounds may leave NaN out. Parts are judged one by one, so a block may be read in vain, but none is left out that holds
a match.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from stelae.model.errors import InvalidArgument
from stelae.model.predicate.expr import And, Comparator, Compare, Expr, IsNull, Leaf, Not, Or, Within
from stelae.model.predicate.vector import compared_with, looked_up
from stelae.model.values import Value, show


class Bounds(msgspec.Struct, frozen=True):
    """What is known of one column in a block of `count` records; None is unknown.

    No value is below `minimum` or above `maximum`, in canonical form and leaving out NULL and NaN. If they are not
    exact, text and bytes in them may have been cut: a value that begins with `maximum` may still be in the block.
    """

    minimum: Value | None
    maximum: Value | None
    null_count: int | None
    count: int
    is_exact: bool

    def __post_init__(self) -> None:
        if self.count < 0 or (self.null_count is not None and not 0 <= self.null_count <= self.count):
            raise InvalidArgument(f"{show(self.null_count)} of {show(self.count)} values cannot be NULL")

    @property
    def may_have_null(self) -> bool:
        return self.null_count != 0

    @property
    def may_have_value(self) -> bool:
        return self.null_count is None or self.null_count < self.count


class _Possible(NamedTuple):
    true: bool
    false: bool


_NOTHING_KNOWN = Bounds(None, None, None, 0, is_exact=False)
_NEITHER = _Possible(true=False, false=False)


def may_match(expr: Expr, bounds: Callable[[str], Bounds | None]) -> bool:
    """False only if a bound expression is true of no record of a block.

    `bounds` says what is known of a column, and of the encoded keys for "row"; None is nothing.
    """
    return _possible(expr, bounds).true


def _possible(expr: Expr, bounds: Callable[[str], Bounds | None]) -> _Possible:
    match expr:
        case Compare(operand) | Within(operand) | IsNull(operand):
            return _of_leaf(expr, bounds(looked_up(operand)) or _NOTHING_KNOWN)
        case Not(inner):
            found = _possible(inner, bounds)
            return _Possible(true=found.false, false=found.true)
        case And(parts):
            each = [_possible(part, bounds) for part in parts]
            return _Possible(true=all(part.true for part in each), false=any(part.false for part in each))
        case Or(parts):
            each = [_possible(part, bounds) for part in parts]
            return _Possible(true=any(part.true for part in each), false=all(part.false for part in each))


def _of_leaf(leaf: Leaf, bounds: Bounds) -> _Possible:
    match leaf:
        case IsNull():
            return _Possible(true=bounds.may_have_null, false=bounds.may_have_value)
        case Within(_, ()):
            return _Possible(true=False, false=bounds.count > 0 or bounds.null_count is None)
        case Compare() | Within() if not bounds.may_have_value:
            return _NEITHER
        case Compare(_, _, literal) if literal.is_nan:
            return _NEITHER
        case Compare(operand, comparator, literal):
            return _Interval(bounds).compare(comparator, compared_with(operand, literal).value)
        case Within(operand, literals):
            values = [compared_with(operand, literal).value for literal in literals if not literal.is_nan]
            found = _Interval(bounds).one_of(values)
            return found if len(values) == len(literals) else _Possible(found.true, false=False)


class _Interval:
    """The values a block may hold, from `low` to `high`; None is no end, and so is a NaN."""

    def __init__(self, bounds: Bounds) -> None:
        self._low = bounds.minimum if bounds.minimum == bounds.minimum else None
        self._high = bounds.maximum if bounds.maximum == bounds.maximum else None
        self._is_cut = not bounds.is_exact and isinstance(self._high, str | bytes)

    def compare(self, comparator: Comparator, x: Value) -> _Possible:
        match comparator:
            case Comparator.LT:
                return _Possible(self._goes_below(x), self._reaches_up_to(x))
            case Comparator.LE:
                return _Possible(self._reaches_down_to(x), self._goes_above(x))
            case Comparator.GT:
                return _Possible(self._goes_above(x), self._reaches_down_to(x))
            case Comparator.GE:
                return _Possible(self._reaches_up_to(x), self._goes_below(x))
            case Comparator.EQ:
                return _Possible(self._has(x), self._has_other_than(x))
            case Comparator.NE:
                return _Possible(self._has_other_than(x), self._has(x))
            case Comparator.PREFIX:
                return self._prefix(x)

    def one_of(self, values: Sequence[Value]) -> _Possible:
        return _Possible(any(map(self._has, values)), all(map(self._has_other_than, values)))

    def _prefix(self, prefix: str | bytes) -> _Possible:
        """What begins with the prefix stands together in order, the prefix itself first."""
        low_begins = self._low is not None and self._low.startswith(prefix)
        high_begins = self._high is not None and self._high.startswith(prefix)
        return _Possible(
            true=self._reaches_up_to(prefix) and (self._reaches_down_to(prefix) or low_begins),
            false=not (low_begins and high_begins),
        )

    def _has(self, x: Value) -> bool:
        return self._reaches_down_to(x) and self._reaches_up_to(x)

    def _has_other_than(self, x: Value) -> bool:
        return self._goes_below(x) or self._goes_above(x)

    def _goes_below(self, x: Value) -> bool:
        return self._low is None or self._low < x

    def _reaches_down_to(self, x: Value) -> bool:
        return self._low is None or self._low <= x

    def _goes_above(self, x: Value) -> bool:
        return self._high is None or self._high > x or self._may_continue_past(x)

    def _reaches_up_to(self, x: Value) -> bool:
        return self._high is None or self._high >= x or self._may_continue_past(x)

    def _may_continue_past(self, x: Value) -> bool:
        """With more after `high` than was kept, some text or bytes above x begin with `high`, if x does."""
        return self._is_cut and x.startswith(self._high)
