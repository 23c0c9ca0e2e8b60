"""What an expression says of every record of a batch at once, in Arrow's kernels: true, false, or unknown (NULL).

A comparison with NULL or NaN on either side is unknown, `not` of unknown is unknown, `and` and `or` are as in SQL. A
row matches only if the whole is true, so NaN matches no comparison and no negation of one. `is null` is never unknown,
and NaN is not NULL. Numbers of all kinds compare by exact value, text by code point, bytes bytewise; -0.0 equals 0.0.
Nothing else compares across kinds: bool is no number, a date is no timestamp.

A kernel compares a column only with a value of the column's own type, and nothing is cast, so nothing is rounded. A
literal that is no value of that type (300 for int8, 1.5 for int32, 0.1 for float32, a decimal with too many digits)
has a value **near** it, with no value of the type between the two: all values but the near one lie on the same side of
both, so `< x` is `<= near` or `< near`, and `= x` is false. Beyond the type's range the near value is its least or
greatest, and the same holds.

Kernels take NULL for unknown but order NaN, so a NaN in a column becomes NULL before it is compared. `is_in` knows
neither unknown nor that -0.0 equals 0.0; both are put right around it. No kernel is missing: what is done in Python is
done once for each literal, never for a record.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal as PyDecimal
from fractions import Fraction

import pyarrow as pa

from stelae.model import types as t
from stelae.model.arrow import compute as pc
from stelae.model.arrow import from_arrow, to_arrow
from stelae.model.errors import InvalidArgument
from stelae.model.keys.scalar import scaled
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
    leaves,
)
from stelae.model.predicate.literals import Literal, LiteralKind, row_bytes
from stelae.model.values import Value

_UNKNOWN = pa.scalar(None, pa.bool_())
_NUMBERS = (LiteralKind.INT, LiteralKind.FLOAT, LiteralKind.DECIMAL)
_KINDS: dict[type, tuple[LiteralKind, ...]] = {
    t.Bool: (LiteralKind.BOOL,),
    t.Int: _NUMBERS,
    t.Float: _NUMBERS,
    t.Decimal: _NUMBERS,
    t.String: (LiteralKind.STRING,),
    t.Binary: (LiteralKind.BINARY,),
    t.Date: (LiteralKind.DATE,),
    t.Timestamp: (LiteralKind.TIMESTAMP,),
    t.TimestampNtz: (LiteralKind.TIMESTAMP_NTZ,),
}
_KERNELS = {
    Comparator.EQ: "equal",
    Comparator.NE: "not_equal",
    Comparator.LT: "less",
    Comparator.LE: "less_equal",
    Comparator.GT: "greater",
    Comparator.GE: "greater_equal",
}


def matches(expr: Expr, lookup: Callable[[str], pa.Array], count: int) -> pa.BooleanArray:
    """What a bound expression says of each of `count` records, null for unknown.

    `lookup` gives a column by name in its type's one Arrow form, and the encoded keys as binary for "row". It is asked
    at most once for each name, and not at all for names that no longer matter.
    """
    return _Batch(lookup, count).truths(expr)


def keep(expr: Expr, lookup: Callable[[str], pa.Array], count: int) -> pa.BooleanArray:
    """True of the records an expression is true of, false of all others."""
    return pc.fill_null(matches(expr, lookup, count), False)


def names_of(expr: Expr) -> frozenset[str]:
    """The names that must be looked up to evaluate an expression, "row" among them."""
    return frozenset(looked_up(leaf.operand) for leaf in leaves(expr))


def looked_up(operand: Operand) -> str:
    """The name under which an operand's values are found."""
    match operand:
        case ColumnRef(name):
            return name
        case Special.ROW:
            return Special.ROW.value
        case Special.COLUMN | Special.TIME | Special.HISTORY:
            raise InvalidArgument(f"{operand.value} says what a scan reads, not which rows match: plan the scan first")


def compared_with(operand: Operand, literal: Literal) -> Literal:
    """The literal as the operand's values are: for row, text stands for its UTF-8."""
    return Literal(row_bytes(literal)) if operand is Special.ROW else literal


class _Batch:
    """The columns of one batch, each looked up once."""

    def __init__(self, lookup: Callable[[str], pa.Array], count: int) -> None:
        self._lookup = lookup
        self._count = count
        self._arrays: dict[str, pa.Array] = {}
        self._columns: dict[str, _Column] = {}

    def truths(self, expr: Expr) -> pa.BooleanArray:
        match expr:
            case Compare(operand, comparator, literal):
                return self._column(operand).compare(comparator, compared_with(operand, literal))
            case Within(_, ()):
                return pa.repeat(False, self._count)
            case Within(operand, literals):
                return self._column(operand).one_of([compared_with(operand, literal) for literal in literals])
            case IsNull(operand):
                return pc.is_null(self._array(looked_up(operand)))
            case Not(inner):
                return pc.invert(self.truths(inner))
            case And(parts):
                found = self.truths(parts[0])
                for part in parts[1:]:
                    if found.false_count == self._count:
                        break
                    found = pc.and_kleene(found, self.truths(part))
                return found
            case Or(parts):
                found = self.truths(parts[0])
                for part in parts[1:]:
                    if found.true_count == self._count:
                        break
                    found = pc.or_kleene(found, self.truths(part))
                return found

    def _column(self, operand: Operand) -> _Column:
        name = looked_up(operand)
        if name not in self._columns:
            self._columns[name] = _Column(name, self._array(name))
        return self._columns[name]

    def _array(self, name: str) -> pa.Array:
        if name not in self._arrays:
            array = self._lookup(name)
            if len(array) != self._count:
                raise InvalidArgument(f"column {name!r} has {len(array)} values for {self._count} records")
            self._arrays[name] = array
        return self._arrays[name]


class _Column:
    """One column as comparisons see it: NaN is NULL."""

    def __init__(self, name: str, array: pa.Array) -> None:
        type_ = from_arrow(array.type, name)
        if not isinstance(type_, t.KeyType):
            raise InvalidArgument(f"column {name!r} is {type_}: it can only be asked whether it is null")
        if array.type != to_arrow(type_):
            raise InvalidArgument(f"column {name!r} is {array.type} in Arrow, not the {to_arrow(type_)} of {type_}")
        self._name = name
        self._type = type_
        self._array = _without_nan(array) if isinstance(type_, t.Float) else array

    def compare(self, comparator: Comparator, literal: Literal) -> pa.BooleanArray:
        x: Value = self._checked(literal)
        if literal.is_nan:
            return pa.nulls(len(self._array), pa.bool_())
        if comparator is Comparator.PREFIX:
            return pc.starts_with(self._array, x)
        near = _near(self._type, x)
        kernel = getattr(pc, _KERNELS[comparator])
        if near != x:
            match comparator:
                case Comparator.EQ | Comparator.NE:
                    return self._known(pa.scalar(comparator is Comparator.NE))
                case Comparator.LT | Comparator.LE:
                    kernel = pc.less_equal if near < x else pc.less
                case Comparator.GT | Comparator.GE:
                    kernel = pc.greater if near < x else pc.greater_equal
        return kernel(self._array, pa.scalar(near, self._array.type))

    def one_of(self, literals: list[Literal]) -> pa.BooleanArray:
        values: list[Value] = []
        unknown = False
        for literal in literals:
            x = self._checked(literal)
            if literal.is_nan:
                unknown = True
                continue
            near = _near(self._type, x)
            if near == x:
                values.append(near)
        if isinstance(self._type, t.Float):
            values.extend([-zero for zero in values if zero == 0])
        found = pc.is_in(self._array, value_set=pa.array(values, self._array.type))
        if unknown:
            found = pc.if_else(found, True, _UNKNOWN)
        return self._known(found)

    def _known(self, truths: pa.BooleanArray | pa.BooleanScalar) -> pa.BooleanArray:
        """These truths where the column has a value, and unknown elsewhere."""
        if self._array.null_count == 0 and isinstance(truths, pa.Array):
            return truths
        return pc.if_else(self._array.is_valid(), truths, _UNKNOWN)

    def _checked(self, literal: Literal) -> Value:
        if literal.kind not in _KINDS[type(self._type)]:
            raise InvalidArgument(f"column {self._name!r} is {self._type} and cannot be compared with {literal}")
        return literal.value


def _without_nan(array: pa.Array) -> pa.Array:
    nan = pc.is_nan(array)
    return pc.if_else(nan, pa.scalar(None, array.type), array) if nan.true_count else array


def _near(type_: t.KeyType, x: Value) -> Value:
    """The value of the type at x, or else one next to it."""
    match type_:
        case t.Int(bits):
            end = 1 << (bits - 1)
            return _floor(x, 0, -end, end - 1)
        case t.Decimal(precision, scale):
            most = 10**precision - 1
            return scaled(_floor(x, scale, -most, most), scale)
        case t.Float(bits):
            # By way of the decimal, numbers beyond all floats become infinite. By way of float64, a float32 may not be
            # the nearest, but no rounding passes a value of the type.
            number = x if isinstance(x, float) else float(PyDecimal(x))
            return number if bits == 64 else pa.scalar(number, pa.float32()).as_py()
        case t.Bool() | t.String() | t.Binary() | t.Date() | t.Timestamp() | t.TimestampNtz():
            return x


def _floor(x: float | PyDecimal, scale: int, least: int, most: int) -> int:
    """The last multiple of 10**-scale up to x, counted in such units, within the limits."""
    if isinstance(x, float) and math.isinf(x):
        return most if x > 0 else least
    units = x if type(x) is int and scale == 0 else math.floor(Fraction(x) * 10**scale)
    return max(least, min(units, most))
