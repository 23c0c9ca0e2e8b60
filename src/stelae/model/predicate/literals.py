"""Literals: the scalar on one side of a comparison, in one canonical form, each knowing its kind.

Python holds that 1 == 1.0 == True, that NaN differs from itself and that 0.0 == -0.0. None of this may leak into the
equality of expressions, so literals are equal when they are of one kind and print alike.

NULL is no literal: nothing compares with it, `is null` asks for it. Numbers are bounded, in digits and in exponent, so
that no comparison is ever expensive.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal as PyDecimal
from enum import Enum
from typing import Any, TypeAlias

import msgspec

from stelae.model import types as t
from stelae.model.errors import InvalidArgument
from stelae.model.values import Value, coerce, is_encodable, show

NUMBER_DIGITS_MAX = 1_200
"""Any float64 written out in full has fewer, and so has any decimal a column can hold."""

_INT_END = 10**NUMBER_DIGITS_MAX

Scalar: TypeAlias = bool | int | float | PyDecimal | str | bytes | date | datetime


class LiteralKind(Enum):
    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    DECIMAL = "decimal"
    STRING = "string"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMP_NTZ = "timestamp_ntz"


_KINDS: dict[type, LiteralKind] = {
    bool: LiteralKind.BOOL,
    int: LiteralKind.INT,
    float: LiteralKind.FLOAT,
    PyDecimal: LiteralKind.DECIMAL,
    str: LiteralKind.STRING,
    bytes: LiteralKind.BINARY,
    date: LiteralKind.DATE,
}


def kind_of(value: Value) -> LiteralKind:
    """The kind of a value in canonical form; InvalidArgument for what is no scalar."""
    if type(value) is datetime:
        return LiteralKind.TIMESTAMP_NTZ if value.tzinfo is None else LiteralKind.TIMESTAMP
    kind = _KINDS.get(type(value))
    if kind is None:
        raise InvalidArgument(f"{show(value)} ({type(value).__name__}) cannot be compared: it is no scalar")
    return kind


class Literal(msgspec.Struct, frozen=True, eq=False):
    """A canonical scalar. `literal_of` makes one of what users write."""

    value: Scalar

    def __post_init__(self) -> None:
        kind_of(self.value)
        refusal = _refusal(self.value)
        if refusal:
            raise InvalidArgument(refusal)

    @property
    def kind(self) -> LiteralKind:
        return kind_of(self.value)

    @property
    def is_nan(self) -> bool:
        return self.value != self.value

    def _identity(self) -> tuple[LiteralKind, Any]:
        match self.value:
            case float():
                return self.kind, repr(self.value)
            case PyDecimal():
                return self.kind, self.value.as_tuple()
            case _:
                return self.kind, self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __str__(self) -> str:
        shown = self.value.isoformat() if isinstance(self.value, date) else show(self.value)
        return f"{shown} ({self.kind.value})"


def _refusal(value: Scalar) -> str:
    """Why a scalar of the right type still cannot be a literal; empty if it can."""
    match value:
        case int() if not -_INT_END < value < _INT_END:
            return f"a number has at most {NUMBER_DIGITS_MAX} digits"
        case PyDecimal() if not value.is_finite():
            return f"{show(value)} is no decimal number; infinity and NaN are floats"
        case PyDecimal() if (
            len(value.as_tuple().digits) > NUMBER_DIGITS_MAX or abs(value.adjusted()) > NUMBER_DIGITS_MAX
        ):
            return f"a number has at most {NUMBER_DIGITS_MAX} digits"
        case str() if not is_encodable(value):
            return f"{show(value)} has a lone surrogate, which no text has"
        case datetime() if value.tzinfo not in (None, UTC) or value.fold:
            return f"{show(value)} is not in UTC"
        case _:
            return ""


def literal_of(value: object) -> Literal:
    """The literal a user's Python value stands for; InvalidArgument says why it stands for none."""
    if value is None:
        raise InvalidArgument("nothing compares with NULL: use .is_null() or .is_not_null()")
    match _plain(value):
        case bool(flag):
            return Literal(flag)
        case int(number):
            return Literal(int(number))
        case float(number):
            return Literal(float(number))
        case PyDecimal() as number:
            return Literal(PyDecimal(number))
        case str(text):
            return Literal(str.__str__(text))
        case bytes() | bytearray() | memoryview() as data:
            return Literal(bytes(data))
        case datetime() as moment:
            type_ = t.TimestampNtz() if moment.tzinfo is None else t.Timestamp()
            return Literal(coerce(type_, moment, "literal"))
        case date() as day:
            return Literal(date(day.year, day.month, day.day))
        case other:
            raise InvalidArgument(f"{show(other)} ({type(other).__name__}) cannot be compared with a column")


def _plain(value: Any) -> object:
    """A numpy scalar as the Python value it stands for."""
    if type(value).__module__ != "numpy" or getattr(value, "ndim", None) != 0:
        return value
    return coerce(t.TimestampNtz(), value, "literal") if value.dtype.kind == "M" else value.item()


def row_bytes(literal: Literal) -> bytes:
    """What `row` is compared with: bytes, or text that stands for its UTF-8."""
    match literal.value:
        case bytes(data):
            return data
        case str(text):
            return text.encode()
        case _:
            raise InvalidArgument(f"row is the encoded key: compare it with text or bytes, not with {literal}")


_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_DATE = re.compile(_DAY)
_MOMENT = re.compile(
    _DAY + r"[T ](?:[01][0-9]|2[0-3]):[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?"
)


def read_date(text: str) -> date:
    if not _DATE.fullmatch(text):
        raise InvalidArgument(f"{show(text)} is no date: write it as 2024-01-31")
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise InvalidArgument(f"{show(text)} is no date: {error}") from None


def read_timestamp(text: str) -> datetime:
    """A moment, in UTC; the text must say its zone."""
    moment = _read_moment(text, "2024-01-31T10:00:00Z")
    if moment.tzinfo is None:
        raise InvalidArgument(f"{show(text)} has no time zone: end it with Z for UTC, or with an offset as +02:00")
    try:
        checked: datetime = coerce(t.Timestamp(), moment, "timestamp")
    except InvalidArgument:
        raise InvalidArgument(f"{show(text)} is no timestamp: it lies outside the years 1 to 9999 in UTC") from None
    return checked


def read_timestamp_ntz(text: str) -> datetime:
    """A reading of a wall clock; the text must not say a zone."""
    reading = _read_moment(text, "2024-01-31T10:00:00")
    if reading.tzinfo is not None:
        raise InvalidArgument(f"{show(text)} has a time zone, and timestamp_ntz has none: leave it out")
    return reading


def _read_moment(text: str, example: str) -> datetime:
    if not _MOMENT.fullmatch(text):
        raise InvalidArgument(f"{show(text)} is no timestamp: write it as {example}, with at most 6 digits of a second")
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidArgument(f"{show(text)} is no timestamp: {error}") from None
