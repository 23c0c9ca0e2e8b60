"""An expression meets a table: its names are found, its literals fitted to the columns' types.

| column | literals | becomes |
|---|---|---|
| bool | bool | |
| intN | int, float, decimal | int, where it is one |
| floatN | int, float, decimal | float, where exactly one |
| decimal | int, float, decimal | decimal with the column's digits, where exact |
| string, binary | text, bytes | |
| date, timestamp, timestamp_ntz | the same, or its ISO text | the same |
| array, struct, map, vector | none: only `is null` and `is not null` | |

Numbers keep their exact value: 300 is legal against int8 and greater than all of them, 0.1 against float32 is the
float64 0.1 and equals no float32. A float against a decimal column is the decimal it is written as, because nobody who
writes 0.1 means 0.1000000000000000055; text against binary is refused, because bytes have no encoding of their own
(`row`, the exception, takes text as UTF-8). Text for a timestamp must say its zone, for a timestamp_ntz it must not.

Names are found in any case of letters, and become the table's spelling. The type of all cells of a family stands under
"family:", of all families of a wildcard group under "*:".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal as PyDecimal

import msgspec

from stelae.model import types as t
from stelae.model.errors import InvalidArgument, nearest
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
from stelae.model.predicate.literals import (
    Literal,
    LiteralKind,
    read_date,
    read_timestamp,
    read_timestamp_ntz,
    row_bytes,
)
from stelae.model.values import coerce

WILDCARD_CELLS = "*:"


def check_types(expr: Expr, types: Mapping[str, t.ColumnType]) -> Expr:
    """The expression with the table's names and fitted literals; InvalidArgument names the column, type and literal."""
    return _Table(types).bind(expr)


class _Column(msgspec.Struct, frozen=True):
    name: str
    type_: t.ColumnType

    def refuse(self, literal: Literal, hint: str = "") -> InvalidArgument:
        return InvalidArgument(f"column {self.name!r} is {self.type_} and cannot be compared with {literal}{hint}")


class _Table:
    def __init__(self, types: Mapping[str, t.ColumnType]) -> None:
        self._types = types
        self._spelling = {name.casefold(): name for name in types}

    def bind(self, expr: Expr) -> Expr:
        match expr:
            case Not(inner):
                return Not(self.bind(inner))
            case And(parts):
                return And(tuple([self.bind(part) for part in parts]))
            case Or(parts):
                return Or(tuple([self.bind(part) for part in parts]))
            case Compare() | Within() | IsNull():
                return self._leaf(expr)

    def _leaf(self, leaf: Leaf) -> Leaf:
        match leaf.operand:
            case ColumnRef(name):
                return _fit_leaf(self._find(name), leaf)
            case Special.ROW:
                return _row_leaf(leaf)
            case Special.COLUMN | Special.TIME | Special.HISTORY:
                return leaf

    def _find(self, name: str) -> _Column:
        found = self._spelling.get(name.casefold())
        if found is not None:
            return _Column(found, self._types[found])
        family, colon, qualifier = name.partition(":")
        if colon and qualifier:
            for cells in (family + colon, WILDCARD_CELLS):
                found = self._spelling.get(cells.casefold())
                if found is not None:
                    known_as = family + colon if found == WILDCARD_CELLS else found
                    return _Column(known_as + qualifier, self._types[found])
        raise InvalidArgument(f"no column {name!r}{nearest(name, self._types) or _special_hint(name)}")


def _special_hint(name: str) -> str:
    if name.lower() not in {special.value for special in Special}:
        return ""
    return f"; the scan's own {name.lower()} is written without backquotes, and in Python without col()"


def _row_leaf(leaf: Leaf) -> Leaf:
    match leaf:
        case IsNull():
            return leaf
        case Compare(operand, comparator, literal):
            return Compare(operand, comparator, Literal(row_bytes(literal)))
        case Within(operand, literals):
            return Within(operand, tuple([Literal(row_bytes(literal)) for literal in literals]))


def _fit_leaf(column: _Column, leaf: Leaf) -> Leaf:
    ref = ColumnRef(column.name)
    match leaf:
        case IsNull():
            return IsNull(ref)
        case Compare(_, Comparator.PREFIX, literal):
            if not isinstance(column.type_, t.String | t.Binary):
                raise column.refuse(literal, " by ~= (startswith): only string and binary columns have prefixes")
            return Compare(ref, Comparator.PREFIX, _fit(column, literal))
        case Compare(_, comparator, literal):
            return Compare(ref, comparator, _fit(column, literal))
        case Within(_, literals):
            if not isinstance(column.type_, t.KeyType):
                raise InvalidArgument(
                    f"column {column.name!r} is {column.type_}: it can only be asked whether it is null"
                )
            return Within(ref, tuple([_fit(column, literal) for literal in literals]))


def _fit(column: _Column, literal: Literal) -> Literal:
    match column.type_:
        case t.Bool():
            return _same_kind(column, literal, LiteralKind.BOOL)
        case t.String():
            return _same_kind(column, literal, LiteralKind.STRING)
        case t.Binary():
            hint = ': write b"..."' if literal.kind is LiteralKind.STRING else ""
            return _same_kind(column, literal, LiteralKind.BINARY, hint)
        case t.Int():
            return Literal(_as_int(_number(column, literal)))
        case t.Float():
            return Literal(_as_float(_number(column, literal)))
        case t.Decimal():
            return Literal(_as_decimal(column, literal))
        case t.Date() | t.Timestamp() | t.TimestampNtz():
            return _fit_moment(column, literal)
        case t.Array() | t.Struct() | t.Map() | t.Vector():
            raise column.refuse(literal, ": it can only be asked whether it is null")


def _same_kind(column: _Column, literal: Literal, kind: LiteralKind, hint: str = "") -> Literal:
    if literal.kind is not kind:
        raise column.refuse(literal, hint)
    return literal


def _number(column: _Column, literal: Literal) -> float | PyDecimal:
    match literal.value:
        case bool():
            raise column.refuse(literal)
        case int() | float() | PyDecimal() as number:
            return number
        case str():
            raise column.refuse(literal, ": numbers are written without quotes")
        case _:
            raise column.refuse(literal)


def _as_int(number: float | PyDecimal) -> float | PyDecimal:
    if isinstance(number, float) and not math.isfinite(number):
        return number
    return int(number) if number == int(number) else number


def _as_float(number: float | PyDecimal) -> float | PyDecimal:
    try:
        nearest_float = float(number)
    except OverflowError:
        return number
    return nearest_float if nearest_float == number or isinstance(number, float) else number


def _as_decimal(column: _Column, literal: Literal) -> float | PyDecimal:
    number = _number(column, literal)
    if isinstance(number, float):
        if not math.isfinite(number):
            raise column.refuse(literal)
        number = PyDecimal(repr(number))
    try:
        fitted: PyDecimal = coerce(column.type_, number, column.name)
    except InvalidArgument:
        return number  # it has more digits than the column holds, and still has its place among those values
    return fitted


_MOMENT_KINDS = {
    t.Date: LiteralKind.DATE,
    t.Timestamp: LiteralKind.TIMESTAMP,
    t.TimestampNtz: LiteralKind.TIMESTAMP_NTZ,
}


def _fit_moment(column: _Column, literal: Literal) -> Literal:
    kind = _MOMENT_KINDS[type(column.type_)]
    if not isinstance(literal.value, str):
        return _same_kind(column, literal, kind, _moment_hint(kind, literal.kind))
    read = {
        LiteralKind.DATE: read_date,
        LiteralKind.TIMESTAMP: read_timestamp,
        LiteralKind.TIMESTAMP_NTZ: read_timestamp_ntz,
    }[kind]
    try:
        return Literal(read(literal.value))
    except InvalidArgument as error:
        raise InvalidArgument(f"column {column.name!r} is {column.type_}: {error}") from None


def _moment_hint(wanted: LiteralKind, got: LiteralKind) -> str:
    if wanted is LiteralKind.TIMESTAMP and got is LiteralKind.TIMESTAMP_NTZ:
        return ": it has no time zone"
    if wanted is LiteralKind.TIMESTAMP_NTZ and got is LiteralKind.TIMESTAMP:
        return ": it has a time zone"
    return ""
