"""Column types as values, with a text form that parses and prints back the same.

    bool  int8 int16 int32 int64  float32 float64  decimal(p, s)  string  binary  date  timestamp  timestamp_ntz
    array<T>  struct<name: T, ...>  map<K, V>  vector(float32, n)

The names of a struct's fields stand in backquotes unless they are plain words, a backquote in one written twice:
struct<plain: int32, `größe in m`: float64>. They differ in more than case, as Spark finds fields in any.

The last four types hold whole values and are never keys. `timestamp` is a moment (UTC microseconds), `timestamp_ntz` a
reading of a wall clock without a zone.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TypeAlias

import msgspec

from stelae.model.errors import InvalidSchema
from stelae.model.public import public

DECIMAL_PRECISION_MAX = 38
VECTOR_LENGTH_MAX = 65_536
NESTING_MAX = 16
_KEPT_TYPES_MAX = 1024
FIELD_NAME_BYTES_MAX = 255


class Bool(msgspec.Struct, frozen=True):
    def __str__(self) -> str:
        return "bool"


class Int(msgspec.Struct, frozen=True):
    bits: int

    def __str__(self) -> str:
        return f"int{self.bits}"


class Float(msgspec.Struct, frozen=True):
    bits: int

    def __str__(self) -> str:
        return f"float{self.bits}"


class Decimal(msgspec.Struct, frozen=True):
    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision}, {self.scale})"


class String(msgspec.Struct, frozen=True):
    def __str__(self) -> str:
        return "string"


class Binary(msgspec.Struct, frozen=True):
    def __str__(self) -> str:
        return "binary"


class Date(msgspec.Struct, frozen=True):
    def __str__(self) -> str:
        return "date"


class Timestamp(msgspec.Struct, frozen=True):
    def __str__(self) -> str:
        return "timestamp"


class TimestampNtz(msgspec.Struct, frozen=True):
    def __str__(self) -> str:
        return "timestamp_ntz"


class Array(msgspec.Struct, frozen=True):
    element: ColumnType

    def __str__(self) -> str:
        return f"array<{self.element}>"


class Struct(msgspec.Struct, frozen=True):
    fields: tuple[tuple[str, ColumnType], ...]

    def __str__(self) -> str:
        return "struct<" + ", ".join(f"{_field_text(name)}: {type_}" for name, type_ in self.fields) + ">"


class Map(msgspec.Struct, frozen=True):
    key: KeyType
    value: ColumnType

    def __str__(self) -> str:
        return f"map<{self.key}, {self.value}>"


class Vector(msgspec.Struct, frozen=True):
    """A fixed number of float32, as embeddings are."""

    length: int

    def __str__(self) -> str:
        return f"vector(float32, {self.length})"


KeyType: TypeAlias = Bool | Int | Float | Decimal | String | Binary | Date | Timestamp | TimestampNtz
ColumnType: TypeAlias = KeyType | Array | Struct | Map | Vector

# Here, as some are made of others: the types of their fields are known by now.
for _kind in (Bool, Int, Float, Decimal, String, Binary, Date, Timestamp, TimestampNtz, Array, Struct, Map, Vector):
    public(_kind.__name__, "stelae.schema")(_kind)

INT_BITS = (8, 16, 32, 64)
FLOAT_BITS = (32, 64)

_SIMPLE: dict[str, KeyType] = {
    "bool": Bool(),
    **{f"int{bits}": Int(bits) for bits in INT_BITS},
    **{f"float{bits}": Float(bits) for bits in FLOAT_BITS},
    "string": String(),
    "binary": Binary(),
    "date": Date(),
    "timestamp": Timestamp(),
    "timestamp_ntz": TimestampNtz(),
}
_ELSEWHERE = {
    **dict.fromkeys(("int", "integer"), "int32 or int64"),
    **dict.fromkeys(("bigint", "long"), "int64"),
    **dict.fromkeys(("smallint", "short"), "int16"),
    **dict.fromkeys(("tinyint", "byte"), "int8"),
    **dict.fromkeys(("double", "float", "real"), "float64 or float32"),
    **dict.fromkeys(("text", "varchar", "char", "str"), "string"),
    **dict.fromkeys(("bytes", "blob", "bytea", "varbinary"), "binary"),
    **dict.fromkeys(("datetime", "timestamptz"), "timestamp"),
    **dict.fromkeys(("numeric", "number"), "decimal(p, s)"),
    "boolean": "bool",
    "list": "array<T>",
}
"""What other systems call them."""
TYPE_NAMES = (*_SIMPLE, "decimal(p, s)", "array<T>", "struct<name: T, ...>", "map<K, V>", "vector(float32, n)")

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(rf"\s*({_WORD.pattern}|`(?:[^`]|``)*`|\d+|[<>(),:])")


def _field_text(name: str) -> str:
    return name if _WORD.fullmatch(name) else f"`{name.replace('`', '``')}`"


def widens(old: ColumnType, new: ColumnType) -> bool:
    """Every value of old is a value of new, read without loss: int8 to int64, float32 to float64, longer decimals."""
    match old, new:
        case (Int(a), Int(b)) | (Float(a), Float(b)):
            return b >= a
        case Decimal(p, s), Decimal(q, t):
            return q >= p and t == s
        case Array(a_), Array(b_):
            return widens(a_, b_)
        case _:
            return old == new


def parse_type(text: str) -> ColumnType:
    """Raises InvalidSchema that shows the text and what was expected."""
    _check_text(text)
    return _parsed(text)


@lru_cache(_KEPT_TYPES_MAX)
def _parsed(text: str) -> ColumnType:
    """Kept: footers of files say the types of all their columns, and a read looks at many footers."""
    parser = _TypeParser(text)
    type_ = parser.type()
    parser.end()
    return type_


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise InvalidSchema(f"a type is given as text, as in 'int32', and not as {type(text).__name__}")


def parse_type_prefix(text: str) -> tuple[ColumnType, str]:
    """A type at the start of the text, and what follows it."""
    parser = _TypeParser(text)
    return parser.type(), text[parser.position :]


class _TypeParser:
    def __init__(self, text: str) -> None:
        _check_text(text)
        self._text = text
        self.position = 0
        self._depth = 0

    def type(self) -> ColumnType:
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise self._error(f"types nest at most {NESTING_MAX} deep")
        name = self._take()
        type_ = self._named(name.lower())
        self._depth -= 1
        return type_

    def _named(self, name: str) -> ColumnType:
        match name:
            case "decimal":
                return self._decimal()
            case "vector":
                return self._vector()
            case "array":
                self._expect("<")
                element = self.type()
                self._expect(">")
                return Array(element)
            case "map":
                return self._map()
            case "struct":
                return self._struct()
            case _ if name in _SIMPLE:
                return _SIMPLE[name]
            case _:
                hint = f"; say {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
                raise self._error(f"{name!r} is not a type{hint}; types are {', '.join(TYPE_NAMES)}")

    def _decimal(self) -> ColumnType:
        self._expect("(")
        precision = self._number()
        self._expect(",")
        scale = self._number()
        self._expect(")")
        if not 1 <= precision <= DECIMAL_PRECISION_MAX or not 0 <= scale <= precision:
            raise self._error(
                f"decimal({precision}, {scale}) needs a precision from 1 to {DECIMAL_PRECISION_MAX} "
                "and a scale from 0 to the precision"
            )
        return Decimal(precision, scale)

    def _vector(self) -> ColumnType:
        self._expect("(")
        element = self._take()
        if element.lower() != "float32":
            raise self._error(f"a vector is of float32, not of {element}")
        self._expect(",")
        length = self._number()
        self._expect(")")
        if not 1 <= length <= VECTOR_LENGTH_MAX:
            raise self._error(f"a vector has from 1 to {VECTOR_LENGTH_MAX} elements, not {length}")
        return Vector(length)

    def _map(self) -> ColumnType:
        self._expect("<")
        key = self.type()
        if not isinstance(key, KeyType):
            raise self._error(f"the key of a map cannot be {key}")
        self._expect(",")
        value = self.type()
        self._expect(">")
        return Map(key, value)

    def _struct(self) -> ColumnType:
        self._expect("<")
        fields: dict[str, tuple[str, ColumnType]] = {}
        while True:
            name = self._field_name()
            if name.casefold() in fields:
                raise self._error(f"field {name!r} stands twice in a struct (case does not count)")
            self._expect(":")
            fields[name.casefold()] = (name, self.type())
            if self._take_one_of(",", ">") == ">":
                return Struct(tuple(fields.values()))

    def _field_name(self) -> str:
        token = self._take()
        if _WORD.fullmatch(token):
            name = token
        elif token.startswith("`"):
            name = token[1:-1].replace("``", "`")
        else:
            raise self._error(f"{token!r} is not a field name, and a struct has at least one field")
        if not name or not name.isprintable() or len(name.encode()) > FIELD_NAME_BYTES_MAX:
            raise self._error(f"a field name is printable text of 1 to {FIELD_NAME_BYTES_MAX} bytes, not {name!r}")
        return name

    def end(self) -> None:
        if self._text[self.position :].strip():
            raise self._error(f"nothing should follow the type, not {self._text[self.position :].strip()!r}")

    def _take(self) -> str:
        match = _TOKEN.match(self._text, self.position)
        if match is None:
            rest = self._text[self.position :].strip()
            if not rest:
                raise self._error("the type ends too early")
            raise self._error(f"stray character {rest[0]!r}; a field name that is no plain word stands in backquotes")
        self.position = match.end()
        return match.group(1)

    def _take_one_of(self, *wanted: str) -> str:
        token = self._take()
        if token not in wanted:
            raise self._error(f"expected {' or '.join(repr(each) for each in wanted)}, not {token!r}")
        return token

    def _expect(self, wanted: str) -> None:
        self._take_one_of(wanted)

    def _number(self) -> int:
        token = self._take()
        if not token.isascii() or not token.isdigit() or len(token) > 9:
            raise self._error(f"expected a number, not {token!r}")
        return int(token)

    def _error(self, message: str) -> InvalidSchema:
        return InvalidSchema(f"type {self._text!r}: {message}")
