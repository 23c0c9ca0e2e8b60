"""The row ranges that conditions on key columns imply.

Every row of which the expression is true lies in the ranges; rows of which it is not may lie there too, so the
expression is still evaluated. Types are checked, so literals fit the key's columns.

A key column is never NULL or NaN: a condition on it is true or false, and `not` is the complement, unless a literal is
NaN, when neither it nor its negation is ever true.

One component's values, in the bytes that stand for it in a row, are cut in two by a **cut**: a byte string that no
whole encoding is a proper prefix of, so that comparing a row's bytes from there on with the cut tells on which side the
component lies, whatever components follow. For a literal x there are two, just before and just after the encodings of
values equal to x; they are the same cut when no value equals x, as with 300 and int8, or 1.5 and int32.
- Just before a whole encoding e: e itself. Encodings of components are prefix-free, except in the last place.
- Just after e: in the last place e + 00; elsewhere the least string above all that start with e.

Equal components in the leading places make prefixes, and the first component that has no points but ranges ends it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from decimal import Decimal as PyDecimal
from fractions import Fraction
from typing import TypeAlias

import msgspec

from stelae.model import types as t
from stelae.model.errors import InvalidArgument
from stelae.model.keys.scalar import END, KeyCodec, decimal_bits, scaled, with_token
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
)
from stelae.model.predicate.literals import Literal
from stelae.model.predicate.rowsets import intersect_all, rows_of_leaf
from stelae.model.ranges import ALL_ROWS, EVERYTHING, NOTHING, RangeSet, RowRange, after_prefix, prefixed, single
from stelae.model.values import Value

KEY_RANGES_MAX = 100_000
"""What may be spent on lists, each with each, in one expression; beyond it a list counts as one range around it."""

_FLOAT32 = struct.Struct(">f")


def key_ranges(expr: Expr, codec: KeyCodec) -> RangeSet:
    """Sound ranges for a checked expression. Hashed rows are found only by whole keys."""
    return _Implied(codec).rows(expr, negated=False)


class _Values(msgspec.Struct, frozen=True):
    """Which values a component may have: some points, if it is known to be one of few, that lie in the ranges."""

    points: frozenset[bytes] | None
    ranges: RangeSet

    @property
    def is_empty(self) -> bool:
        return self.ranges.is_empty or self.points == frozenset()


_NO_VALUES = _Values(frozenset(), NOTHING)
_Signed: TypeAlias = tuple[Expr, bool]
"""An expression, and whether it stands under an odd number of nots."""


class _Component:
    """One key column in its place."""

    def __init__(self, type_: t.KeyType, is_last: bool) -> None:
        self._type = type_
        self._is_last = is_last
        self._codec = KeyCodec({"this": type_} if is_last else {"this": type_, "rest": t.Bool()})

    def values(self, leaf: Leaf, negated: bool) -> _Values:
        match leaf:
            case IsNull():
                return _Values(None, EVERYTHING) if negated else _NO_VALUES
            case Within(_, literals):
                return self._one_of(literals, negated)
            case Compare(_, Comparator.EQ, literal):
                return self._one_of((literal,), negated)
            case Compare(_, Comparator.NE, literal):
                return self._one_of((literal,), not negated)
            case Compare(_, _, literal) if literal.is_nan:
                return _NO_VALUES
            case Compare(_, comparator, literal):
                ranges = RangeSet.of([self._range(comparator, literal)])
                return _Values(None, ranges.complement() if negated else ranges)

    def _one_of(self, literals: tuple[Literal, ...], negated: bool) -> _Values:
        points = set()
        for literal in literals:
            if literal.is_nan:
                if negated:
                    return _NO_VALUES
                continue
            before, after = self._cut(literal, after=False), self._cut(literal, after=True)
            if before is not None and before != after:
                points.add(before)
        if not negated:
            return _Values(frozenset(points), EVERYTHING)
        return _Values(None, RangeSet.of([RowRange(each, self.just_after(each)) for each in points]).complement())

    def _range(self, comparator: Comparator, literal: Literal) -> RowRange:
        match comparator:
            case Comparator.LT:
                return RowRange(b"", self._cut(literal, after=False))
            case Comparator.LE:
                return RowRange(b"", self._cut(literal, after=True))
            case Comparator.GT:
                return _from(self._cut(literal, after=True))
            case Comparator.GE:
                return _from(self._cut(literal, after=False))
            case Comparator.PREFIX:
                whole = self._codec.encode_prefix([literal.value])
                return prefixed(whole if self._is_last else whole.removesuffix(END))
            case Comparator.EQ | Comparator.NE:
                raise InvalidArgument(f"{comparator} is no range")

    def just_after(self, encoded: bytes) -> bytes | None:
        return encoded + b"\x00" if self._is_last else after_prefix(encoded)

    def _cut(self, literal: Literal, after: bool) -> bytes | None:
        """Where the values below the literal end, or with `after` those up to it; None is above all values."""
        x: Value = literal.value
        near = self._near(x)
        if near is None:
            return None if x > 0 else b""
        encoded = self._codec.encode_prefix([near])
        return encoded if near > x or (near == x and not after) else self.just_after(encoded)

    def _near(self, x: Value) -> Value:
        """A value of the type with none between it and x; None if x is a number beyond all of them."""
        match self._type:
            case t.Int(bits):
                return _floor(x, 0, bits)
            case t.Decimal(_, scale):
                floor = _floor(x, scale, decimal_bits(self._type))
                return None if floor is None else scaled(floor, scale)
            case t.Float(bits):
                return _nearest_float(x, bits)
            case t.Bool() | t.String() | t.Binary() | t.Date() | t.Timestamp() | t.TimestampNtz():
                return x


def _floor(x: float | PyDecimal, scale: int, bits: int) -> int | None:
    if isinstance(x, float) and math.isinf(x):
        return None
    floor = math.floor(Fraction(x) * 10**scale)
    limit = 1 << (bits - 1)
    return floor if -limit <= floor < limit else None


def _nearest_float(x: float | PyDecimal, bits: int) -> float:
    try:
        number = float(x)
        return number if bits == 64 else float(_FLOAT32.unpack(_FLOAT32.pack(number))[0])
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def _from(start: bytes | None) -> RowRange:
    return RowRange(b"", b"") if start is None else RowRange(start, None)


class _Implied:
    def __init__(self, codec: KeyCodec) -> None:
        last = len(codec.types) - 1
        self._hashed = codec.hashed
        self._ranges_left = KEY_RANGES_MAX
        self._components = {
            name: _Component(type_, i == last)
            for i, (name, type_) in enumerate(zip(codec.names, codec.types, strict=True))
        }

    def rows(self, expr: Expr, negated: bool) -> RangeSet:
        """What must be true for all of the parts to be: the rows of each, and of all conditions on the key together."""
        rows: list[RangeSet] = []
        values: dict[str, list[_Values]] = {}
        for part, part_negated in _all_of(expr, negated):
            match part:
                case Compare(ColumnRef(name)) | Within(ColumnRef(name)) | IsNull(ColumnRef(name)):
                    if name in self._components:
                        values.setdefault(name, []).append(self._components[name].values(part, part_negated))
                case Compare() | Within() | IsNull():
                    if part.operand is Special.ROW:
                        found = rows_of_leaf(part)
                        rows.append(found.complement() if part_negated else found)
                case And() | Or() | Not():
                    rows.append(self._any(part, part_negated))
        rows.append(self._rows_with({name: _common(each) for name, each in values.items()}))
        return intersect_all(rows)

    def _any(self, expr: Expr, negated: bool) -> RangeSet:
        return RangeSet.of([each for part in _any_of(expr, negated) for each in self.rows(*part)])

    def _rows_with(self, values: Mapping[str, _Values]) -> RangeSet:
        if any(each.is_empty for each in values.values()):
            return NOTHING
        prefixes = [b""]
        for name, component in self._components.items():
            here = values.get(name)
            if here is None or here.points is None or len(prefixes) * len(here.points) > self._ranges_left:
                return EVERYTHING if self._hashed else self._spend(self._continued(prefixes, here, component))
            prefixes = [prefix + point for prefix in prefixes for point in here.points]
        return self._spend([single(with_token(row) if self._hashed else row) for row in prefixes])

    def _continued(self, prefixes: list[bytes], values: _Values | None, component: _Component) -> list[RowRange]:
        """The ranges of rows that begin with a prefix and go on with one of the values."""
        if values is None:
            ranges: tuple[RowRange, ...] = (ALL_ROWS,)
        elif values.points is None:
            ranges = values.ranges.ranges
        else:
            ranges = (RowRange(min(values.points), component.just_after(max(values.points))),)
        if len(prefixes) * len(ranges) > self._ranges_left:
            ranges = (RowRange(ranges[0].start, ranges[-1].stop),)
        return [
            RowRange(prefix + each.start, after_prefix(prefix) if each.stop is None else prefix + each.stop)
            for prefix in prefixes
            for each in ranges
        ]

    def _spend(self, ranges: list[RowRange]) -> RangeSet:
        self._ranges_left -= len(ranges)
        return RangeSet.of(ranges)


def _common(all_values: list[_Values]) -> _Values:
    ranges = intersect_all([each.ranges for each in all_values])
    points = [each.points for each in all_values if each.points is not None]
    if not points:
        return _Values(None, ranges)
    return _Values(frozenset(point for point in frozenset.intersection(*points) if point in ranges), ranges)


def _all_of(expr: Expr, negated: bool) -> Iterator[_Signed]:
    """Leaves and disjunctions that must all hold for the expression to be true."""
    match expr:
        case Not(inner):
            yield from _all_of(inner, not negated)
        case And(parts) if not negated:
            for part in parts:
                yield from _all_of(part, negated)
        case Or(parts) if negated:
            for part in parts:
                yield from _all_of(part, negated)
        case And() | Or() | Compare() | Within() | IsNull():
            yield expr, negated


def _any_of(expr: Expr, negated: bool) -> Iterator[_Signed]:
    """What a disjunction from `_all_of` is made of: one of them must hold."""
    match expr:
        case And(parts) | Or(parts):
            for part in parts:
                yield part, negated
        case Not() | Compare() | Within() | IsNull():
            yield expr, negated
