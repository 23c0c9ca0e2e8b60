"""Values as words and as JSON, by their column's type.

| type | in JSON | as a word |
|---|---|---|
| bool | true, false | true, false |
| intN | number | 31 |
| floatN | number; {"$float": "NaN"}, "Infinity", "-Infinity" | 2.5, nan, inf |
| decimal | string: "1.20" (a number is taken too) | 1.20 |
| string | string | as it is |
| binary, cells | {"$binary": BASE64} (any other string is taken as its UTF-8) | the same |
| date | "2026-01-31" | the same |
| timestamp | "2026-01-31T12:00:00Z": any offset is taken, UTC is given | the same |
| timestamp_ntz | "2026-01-31T12:00:00" | the same |
| array, vector | list | JSON |
| struct | object | JSON |
| map | object; where keys are no strings, a list of [key, value] (an object of their words is taken too) | JSON |

NULL is null. What is given out reads back as the same value.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal as PyDecimal
from decimal import InvalidOperation
from typing import Any

import msgspec

import stelae
from stelae.model import types as t
from stelae.model.errors import InvalidArgument
from stelae.model.schema import WILDCARD, CellsGroup, ColumnsGroup, TableSchema
from stelae.model.values import Value, datetime_of_micros, show

BINARY = "$binary"
FLOAT = "$float"
_ODD_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_WHOLE = re.compile(r"[+-]?[0-9]{1,400}")
SAYS_BYTES = r'^\{\s*"\$binary"'
_SAYS_BYTES = re.compile(SAYS_BYTES)
_CELLS = t.Map(t.String(), t.Binary())
_EXACT = msgspec.json.Decoder(float_hook=PyDecimal)


def column_types(schema: TableSchema) -> dict[str, t.ColumnType]:
    """Key and value columns by name. What is not here is a cell."""
    types: dict[str, t.ColumnType] = {key.name: key.type for key in schema.key}
    for group in schema.groups:
        if isinstance(group, ColumnsGroup):
            types |= {column.name: column.type for column in group.columns}
    return types


def input_types(schema: TableSchema) -> dict[str, t.ColumnType]:
    """What files of rows may have: the columns, and families as maps."""
    types = column_types(schema)
    for group in schema.groups:
        if isinstance(group, CellsGroup):
            types |= {family.name: _CELLS for family in group.families}
            types |= {WILDCARD: _CELLS} if group.wildcard else {}
    return types


def says_bytes(text: str) -> bool:
    """Whether a text would be read as bytes that it says, and not as its own."""
    return _SAYS_BYTES.match(text) is not None


def type_of(types: Mapping[str, t.ColumnType], name: str) -> t.ColumnType | None:
    """Without regard to case; of a cell binary; None where the table has no such column, which the store tells best."""
    if ":" in name:
        return t.Binary()
    return types.get(name) or {known.casefold(): type_ for known, type_ in types.items()}.get(name.casefold())


# -- to JSON


def json_row(types: Mapping[str, t.ColumnType], row: Mapping[str, Value]) -> dict[str, Any]:
    return {name: json_value(types.get(name, _CELL), value) for name, value in row.items()}


_CELL = t.Binary()


def json_value(type_: t.ColumnType, value: Value) -> Any:
    """What msgspec writes as the table above says; it knows dates, moments and decimals."""
    if value is None:
        return None
    match type_:
        case t.Binary():
            return {BINARY: base64.b64encode(value).decode()}
        case t.Float():
            return _json_float(value)
        case t.Array(element):
            return [json_value(element, each) for each in value]
        case t.Vector():
            return [_json_float(each) for each in value]
        case t.Struct(fields):
            return {name: json_value(field, value[name]) for name, field in fields}
        case t.Map(t.String(), inner):
            return {key: json_value(inner, each) for key, each in value.items()}
        case t.Map(key_type, inner):
            return [[json_value(key_type, key), json_value(inner, each)] for key, each in value.items()]
        case _:
            return value


def json_versions(type_: t.ColumnType, versions: Sequence[stelae.Version]) -> list[dict[str, Any]]:
    """One object for each version, in the order they are given: newest first."""
    return [{"value": json_value(type_, v.value), "ts": datetime_of_micros(v.ts), "txn": v.txn} for v in versions]


def _json_float(value: float) -> Any:
    if math.isfinite(value):
        return value
    return {FLOAT: "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}


# -- from JSON


def decoded(text: str | bytes, where: str) -> Any:
    """JSON with its numbers exact."""
    try:
        return _EXACT.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{where}: {_cut(text)} is not JSON: {error}") from None


def _cut(text: str | bytes) -> str:
    return show(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)


def from_json(type_: t.ColumnType, given: Any, where: str) -> Value:
    """What `decoded` gave, as the column's Python value. The store still checks ranges and lengths."""
    if given is None:
        return None
    return _FROM_JSON[type(type_)](type_, given, where)


def row_from_json(types: Mapping[str, t.ColumnType], given: Any, where: str) -> dict[str, Value]:
    if not isinstance(given, dict):
        raise InvalidArgument(f"{where}: a row is a JSON object of column to value, not {show(given)}")
    row: dict[str, Value] = {}
    for name, value in given.items():
        type_ = types.get(name) or type_of(types, name)
        row[name] = value if type_ is None else from_json(type_, value, f"{where}: column {name!r}")
    return row


def _refused(type_: t.ColumnType, given: object, where: str, hint: str) -> InvalidArgument:
    return InvalidArgument(f"{where}: {show(given)} is not a {type_}: write {hint}")


def _as_is(_type: t.ColumnType, given: Any, _where: str) -> Value:
    return given


def _int_from_json(type_: t.Int, given: Any, where: str) -> Value:
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    raise _refused(
        type_, given if not isinstance(given, PyDecimal) else float(given), where, "a whole number, as in 31"
    )


def _float_from_json(type_: t.Float, given: Any, where: str) -> Value:
    match given:
        case dict() if list(given) == [FLOAT] and str(given[FLOAT]) in _ODD_FLOATS:
            return _ODD_FLOATS[given[FLOAT]]
        case str() if given in _ODD_FLOATS:
            return _ODD_FLOATS[given]
        case PyDecimal():
            return _finite(type_, float(given), str(given), where)
        case int() if not isinstance(given, bool):
            return given
        case _:
            raise _refused(type_, given, where, f'a number, or {{"{FLOAT}": "NaN"}}')


def _decimal_from_json(type_: t.Decimal, given: Any, where: str) -> Value:
    if isinstance(given, PyDecimal) or (isinstance(given, int) and not isinstance(given, bool)):
        return given
    if isinstance(given, str):
        return _decimal_from_text(type_, given, where)
    raise _refused(type_, given, where, 'a string, as in "1.20"')


def _binary_from_json(type_: t.Binary, given: Any, where: str) -> Value:
    match given:
        case str() if _SAYS_BYTES.match(given):
            return _binary_from_json(type_, decoded(given, where), where)
        case str():
            return given.encode("utf-8", "surrogatepass")
        case dict() if list(given) == [BINARY] and isinstance(given[BINARY], str):
            try:
                return base64.b64decode(given[BINARY], validate=True)
            except (binascii.Error, ValueError) as error:
                raise InvalidArgument(f"{where}: {show(given[BINARY])} is not base64: {error}") from None
        case _:
            raise _refused(type_, given, where, f'{{"{BINARY}": "base64"}}, or a string for its UTF-8')


def _worded_from_json(type_: t.ColumnType, given: Any, where: str) -> Value:
    if isinstance(given, str):
        return from_text(type_, given, where)
    raise _refused(type_, given, where, f"a string, as in {_SAMPLES[type(type_)]}")


def _array_from_json(type_: t.Array | t.Vector, given: Any, where: str) -> Value:
    if not isinstance(given, list):
        raise _refused(type_, given, where, "a list")
    element = type_.element if isinstance(type_, t.Array) else t.Float(32)
    return [from_json(element, each, f"{where}[{at}]") for at, each in enumerate(given)]


def _struct_from_json(type_: t.Struct, given: Any, where: str) -> Value:
    if not isinstance(given, dict):
        raise _refused(type_, given, where, "an object")
    fields = dict(type_.fields)
    return {
        name: from_json(fields[name], each, f"{where}.{name}") if name in fields else each
        for name, each in given.items()
    }


def _map_from_json(type_: t.Map, given: Any, where: str) -> Value:
    if isinstance(given, dict):
        pairs = [(from_text(type_.key, key, f"{where} key"), each) for key, each in given.items()]
    elif isinstance(given, list) and all(isinstance(each, list) and len(each) == 2 for each in given):
        pairs = [(from_json(type_.key, key, f"{where} key"), each) for key, each in given]
    else:
        raise _refused(type_, given, where, "an object, or a list of [key, value]")
    return [(key, from_json(type_.value, each, f"{where}[{show(key)}]")) for key, each in pairs]


_FROM_JSON: dict[type, Callable[[Any, Any, str], Value]] = {
    t.Bool: _as_is,
    t.Int: _int_from_json,
    t.Float: _float_from_json,
    t.Decimal: _decimal_from_json,
    t.String: _as_is,
    t.Binary: _binary_from_json,
    t.Date: _worded_from_json,
    t.Timestamp: _worded_from_json,
    t.TimestampNtz: _worded_from_json,
    t.Array: _array_from_json,
    t.Vector: _array_from_json,
    t.Struct: _struct_from_json,
    t.Map: _map_from_json,
}

# -- from words


def from_text(type_: t.ColumnType, text: str, where: str) -> Value:
    """A word of the command line, or a field of a CSV file."""
    return _FROM_TEXT[type(type_)](type_, text, where)


def _bool_from_text(type_: t.Bool, text: str, where: str) -> Value:
    match text.lower():
        case "true" | "1":
            return True
        case "false" | "0":
            return False
        case _:
            raise _refused(type_, text, where, "true or false")


def _int_from_text(type_: t.Int, text: str, where: str) -> Value:
    if _WHOLE.fullmatch(text):
        return int(text)
    raise _refused(type_, text, where, "a whole number, as in 31")


def _float_from_text(type_: t.Float, text: str, where: str) -> Value:
    try:
        value = float(text)
    except ValueError:
        raise _refused(type_, text, where, "a number, as in 2.5 or nan") from None
    return value if "inf" in text.lower() else _finite(type_, value, text, where)


def _finite(type_: t.Float, value: float, given: str, where: str) -> float:
    """Python reads a number that is too large as infinity; who means that says so."""
    if math.isinf(value):
        raise InvalidArgument(f"{where}: {_cut(given)} is out of range of {type_}; infinity is written as inf")
    return value


def _decimal_from_text(type_: t.Decimal, text: str, where: str) -> Value:
    try:
        return PyDecimal(text)
    except InvalidOperation:
        raise _refused(type_, text, where, "a number, as in 1.20") from None


def _date_from_text(type_: t.Date, text: str, where: str) -> Value:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise _refused(type_, text, where, "a day, as in 2026-01-31") from None


def _moment_from_text(type_: t.Timestamp | t.TimestampNtz, text: str, where: str) -> Value:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _refused(type_, text, where, f"it as in {_SAMPLES[type(type_)]}") from None
    if (moment.tzinfo is None) == isinstance(type_, t.Timestamp):
        zone = "has no time zone" if moment.tzinfo is None else "has a time zone"
        raise InvalidArgument(f"{where}: {show(text)} {zone}; a {type_} is as in {_SAMPLES[type(type_)]}")
    return moment


def _nested_from_text(type_: t.ColumnType, text: str, where: str) -> Value:
    return from_json(type_, decoded(text, where), where)


_FROM_TEXT: dict[type, Callable[[Any, str, str], Value]] = {
    t.Bool: _bool_from_text,
    t.Int: _int_from_text,
    t.Float: _float_from_text,
    t.Decimal: _decimal_from_text,
    t.String: _as_is,
    t.Binary: _binary_from_json,
    t.Date: _date_from_text,
    t.Timestamp: _moment_from_text,
    t.TimestampNtz: _moment_from_text,
    t.Array: _nested_from_text,
    t.Vector: _nested_from_text,
    t.Struct: _nested_from_text,
    t.Map: _nested_from_text,
}
_SAMPLES: dict[type, str] = {
    t.Date: '"2026-01-31"',
    t.Timestamp: "2026-01-31T12:00:00Z",
    t.TimestampNtz: "2026-01-31T12:00:00",
}
