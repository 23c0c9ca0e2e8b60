"""Conditions and row ranges as Spark SQL that says exactly the same, or not at all.

Spark and Stelae agree on three-valued logic, on text by code point, on bytes, and on -0.0 = 0.0. They differ on NaN,
which Spark holds to be equal to itself and greater than everything: here a float that is NaN is NULL before it is
compared. Next to such a comparison stands the plain one, which it implies, so that Parquet's statistics can be used;
not for zero, of which Parquet's dictionaries hold two kinds.

Literals are written so that no setting of a session changes them: numbers as casts of their text, text and bytes as hex
where they are not plain words, moments as microseconds. What has no exact equal (a number that the column cannot hold,
the encoded key of a column that does not order as it) is None, and the rows are then read by the store's own code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal as PyDecimal

from stelae.model import types as t
from stelae.model.predicate.expr import And, Comparator, Compare, Expr, IsNull, Leaf, Not, Or, Within
from stelae.model.predicate.literals import Literal
from stelae.model.predicate.vector import compared_with, looked_up
from stelae.model.ranges import RowRange
from stelae.model.values import Value, days_of_date, micros_of_datetime

LITERALS_MAX = 1_000
"""Of a longer list of values, comparing in Spark is slower than reading in Python."""

_PLAIN_WORD = re.compile(r"[A-Za-z0-9 _.,:;/@-]*")
_INT_NAMES = {8: "TINYINT", 16: "SMALLINT", 32: "INT", 64: "BIGINT"}
_SIGNS = {
    Comparator.EQ: "=",
    Comparator.NE: "!=",
    Comparator.LT: "<",
    Comparator.LE: "<=",
    Comparator.GT: ">",
    Comparator.GE: ">=",
}
_UNKNOWN = "CAST(NULL AS BOOLEAN)"


class NotExact(Exception):
    """There is no SQL that says the same. Never seen by users."""


@dataclass(frozen=True, slots=True)
class SqlColumn:
    """What stands for a column in SQL: an expression, and the type that its values have. `is_stored`: it is a plain
    column of a file, which statistics are kept of."""

    sql: str
    type: t.ColumnType
    is_stored: bool = True


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def sql_type(type_: t.ColumnType) -> str:
    """The name of a type in Spark's SQL."""
    match type_:
        case t.Bool():
            return "BOOLEAN"
        case t.Int(bits):
            return _INT_NAMES[bits]
        case t.Float(bits):
            return "FLOAT" if bits == 32 else "DOUBLE"
        case t.Decimal(precision, scale):
            return f"DECIMAL({precision}, {scale})"
        case t.TimestampNtz():
            return "TIMESTAMP_NTZ"
        case t.String() | t.Binary() | t.Date() | t.Timestamp():
            return str(type_).upper()
        case t.Array(element):
            return f"ARRAY<{sql_type(element)}>"
        case t.Vector():
            return "ARRAY<FLOAT>"
        case t.Struct(fields):
            return f"STRUCT<{', '.join(f'{quoted(name)}: {sql_type(field)}' for name, field in fields)}>"
        case t.Map(key, value):
            return f"MAP<{sql_type(key)}, {sql_type(value)}>"


def sql_literal(type_: t.ColumnType, value: Value) -> str:
    """A value of a type, exactly; NotExact if it is none, or Spark cannot say it."""
    name = sql_type(type_)
    match type_, value:
        case _, None:
            return f"CAST(NULL AS {name})"
        case t.Bool(), bool():
            return "TRUE" if value else "FALSE"
        case t.Int(bits), int() if type(value) is int and -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            return f"CAST('{value}' AS {name})"
        case t.Float(), float():
            return f"CAST('{_float_text(value)}' AS {name})"
        case t.Decimal(precision, scale), PyDecimal() if _fits(value, precision, scale):
            return f"CAST('{value:f}' AS {name})"
        case t.String(), str():
            return f"'{value}'" if _PLAIN_WORD.fullmatch(value) else f"CAST({_hex(value.encode())} AS STRING)"
        case t.Binary(), bytes():
            return _hex(value)
        case t.Timestamp(), datetime():
            return f"timestamp_micros(CAST('{micros_of_datetime(value)}' AS BIGINT))"
        case t.TimestampNtz(), datetime():
            return f"CAST('{value.isoformat(sep=' ')}' AS TIMESTAMP_NTZ)"
        case t.Date(), date() if not isinstance(value, datetime):
            return f"date_from_unix_date(CAST('{days_of_date(value)}' AS INT))"
        case _:
            raise NotExact(f"{value!r} is no value of {type_}")


def _float_text(value: float) -> str:
    return {float("inf"): "Infinity", float("-inf"): "-Infinity"}.get(value, "NaN" if value != value else repr(value))


def _fits(value: PyDecimal, precision: int, scale: int) -> bool:
    exponent = value.as_tuple().exponent
    return isinstance(exponent, int) and -exponent <= scale and abs(value) < PyDecimal(10) ** (precision - scale)


def _hex(data: bytes) -> str:
    return f"X'{data.hex()}'"


def sql_condition(expr: Expr, columns: Mapping[str, SqlColumn]) -> str | None:
    """A bound expression, with the columns that names stand for ("row" for the encoded key); None if none is exact.
    True of exactly the same rows; false and unknown are told apart too."""
    try:
        return _Translation(columns).condition(expr)
    except NotExact:
        return None


class _Translation:
    def __init__(self, columns: Mapping[str, SqlColumn]) -> None:
        self._columns = columns

    def condition(self, expr: Expr) -> str:
        """Of the outermost conjunction, each comparison of a float stands beside its plain form."""
        parts = expr.parts if isinstance(expr, And) else (expr,)
        said = [text for part in parts for text in (*self._hints(part), self.truth(part))]
        return " AND ".join(f"({text})" for text in said)

    def _hints(self, part: Expr) -> Iterable[str]:
        match part:
            case Compare(operand, comparator, literal) if comparator is not Comparator.PREFIX:
                column = self._column(looked_up(operand))
                if isinstance(column.type, t.Float) and column.is_stored and literal.value != 0 and not literal.is_nan:
                    yield f"{column.sql} {_SIGNS[comparator]} {self._number(column, literal)}"
            case _:
                return

    def truth(self, expr: Expr) -> str:
        match expr:
            case Not(inner):
                return f"NOT ({self.truth(inner)})"
            case And(parts):
                return " AND ".join(f"({self.truth(part)})" for part in parts)
            case Or(parts):
                return " OR ".join(f"({self.truth(part)})" for part in parts)
            case Compare() | Within() | IsNull():
                return self._leaf(expr)

    def _column(self, name: str) -> SqlColumn:
        found = self._columns.get(name)
        if found is None:
            raise NotExact(f"{name!r} has no equal")
        return found

    def _leaf(self, leaf: Leaf) -> str:
        column = self._column(looked_up(leaf.operand))
        match leaf:
            case IsNull():
                return f"{column.sql} IS NULL"
            case Compare(operand, comparator, literal):
                return self._compare(column, comparator, compared_with(operand, literal))
            case Within(_, ()):
                return "FALSE"
            case Within(operand, literals):
                return self._within(column, [compared_with(operand, literal) for literal in literals])

    def _compare(self, column: SqlColumn, comparator: Comparator, literal: Literal) -> str:
        if literal.is_nan:
            return _UNKNOWN
        if comparator is Comparator.PREFIX:
            return f"startswith({column.sql}, {sql_literal(column.type, literal.value)})"
        return f"{self._compared(column)} {_SIGNS[comparator]} {self._number(column, literal)}"

    def _within(self, column: SqlColumn, literals: Sequence[Literal]) -> str:
        if len(literals) > LITERALS_MAX:
            raise NotExact("too many literals")
        said = [self._number(column, literal) for literal in literals if not literal.is_nan]
        truths = [f"{self._compared(column)} IN ({', '.join(said)})"] if said else []
        if isinstance(column.type, t.Float):
            truths = [f"{self._compared(column)} = {each}" for each in said]
        if len(said) < len(literals):
            truths.append(_UNKNOWN)
        return " OR ".join(f"({each})" for each in truths)

    def _compared(self, column: SqlColumn) -> str:
        if not isinstance(column.type, t.Float):
            return column.sql
        return f"IF(isnan({column.sql}), NULL, {column.sql})"

    def _number(self, column: SqlColumn, literal: Literal) -> str:
        """Floats are compared as float64, which holds every float32: 0.1 equals none of them."""
        type_ = t.Float(64) if isinstance(column.type, t.Float) else column.type
        return sql_literal(type_, literal.value)


def row_condition(rows: Iterable[RowRange], row: SqlColumn) -> str | None:
    """That a row lies in any of the ranges; `row` is the stored row, or the key column that stands for it."""
    try:
        return " OR ".join(f"({_in_range(each, row)})" for each in rows) or "FALSE"
    except NotExact:
        return None


def _in_range(rows: RowRange, row: SqlColumn) -> str:
    said = [_from(row, rows.start)] if rows.start else []
    if rows.stop is not None:
        said.append(f"NOT ({_from(row, rows.stop)})")
    return " AND ".join(said) or "TRUE"


def _from(row: SqlColumn, bound: bytes) -> str:
    """That a row is at or after a bound, which may be any bytes."""
    match row.type:
        case t.Binary():
            return f"{row.sql} >= {_hex(bound)}"
        case t.String():
            try:
                return f"{row.sql} >= {sql_literal(row.type, bound.decode())}"
            except UnicodeDecodeError:
                return f"CAST({row.sql} AS BINARY) >= {_hex(bound)}"
        case t.Int(bits):
            return _from_number(row.sql, bound, bits // 8, f"CAST('{{}}' AS {_INT_NAMES[bits]})")
        case t.Date():
            return _from_number(row.sql, bound, 4, "date_from_unix_date(CAST('{}' AS INT))")
        case t.Timestamp():
            return _from_number(row.sql, bound, 8, "timestamp_micros(CAST('{}' AS BIGINT))")
        case _:
            raise NotExact(f"{row.type} does not order as its row")


def _from_number(sql: str, bound: bytes, width: int, literal: str) -> str:
    """Rows are numbers of a fixed width: the least one at or after any bytes is known."""
    number = int.from_bytes(bound[:width].ljust(width, b"\0"), "big") + (1 if len(bound) > width else 0)
    if number >= 1 << (8 * width):
        return "FALSE"
    return f"{sql} >= {literal.format(number - (1 << (8 * width - 1)))}"
