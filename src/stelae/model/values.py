"""Python values of each column type: what is accepted, and the one form it is kept in.

`coerce` returns the canonical form or raises InvalidArgument naming the place and the rule. Nothing is silently
changed: overflow, rounding and lost nanoseconds are errors; bool is not int; a moment needs a zone and a wall-clock
reading must have none. The one exception is float32, which keeps the nearest float32 of a float, as the type says.

| type | accepted | kept as |
|---|---|---|
| bool | bool | bool |
| intN | int, never bool | int |
| floatN | float, exactly representable int | float |
| decimal | Decimal, int | Decimal with exactly `scale` digits |
| string | str without lone surrogates | str |
| binary | bytes, bytearray, memoryview | bytes |
| date | date, datetime64 of days | date |
| timestamp | aware datetime | datetime in UTC |
| timestamp_ntz | naive datetime | datetime |
| array | list, tuple, numpy array | list |
| struct | mapping with known fields, a missing one is None | dict, all fields |
| map | mapping, or pairs | dict |
| vector | n numbers | list of float |

Scalars of numpy and pandas are accepted as the Python value they stand for, subclasses (an IntEnum, a StrEnum) as the
value of their base; what is kept is always of the exact Python type. NaT and NA stand for no value: NULL is None.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal as PyDecimal
from decimal import Inexact, InvalidOperation
from typing import Any, TypeAlias, cast

from stelae.model import types as t
from stelae.model.elements import all_kept, decimal_form, kept_at_once, numbers_kept, shares
from stelae.model.errors import InvalidArgument
from stelae.model.ids import TS_MAX, TS_MIN, Micros

Value: TypeAlias = Any

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_NTZ = datetime(1970, 1, 1)  # noqa: DTZ001 - a reading of a wall clock has no zone
EPOCH_DATE = date(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_FLOAT32 = struct.Struct("<f")
_SHOWN_MAX = 60
_SHOWN_INT_BITS_MAX = 256
_MISSING = ("NaTType", "NAType")
_FLOAT = t.Float(32)
_FINER_UNITS = ("ns]", "ps]", "fs]", "as]")


def coerce(type_: t.ColumnType, value: Value, where: str) -> Value:
    """The canonical form of a value that is not None."""
    if type(value).__module__ != "builtins":
        value = _native(type_, value, where)
    return _COERCE[type(type_)](type_, value, where)


def micros_of_datetime(moment: datetime) -> Micros:
    return Micros((moment - (EPOCH_NTZ if moment.tzinfo is None else EPOCH)) // _MICROSECOND)


def datetime_of_micros(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def ntz_of_micros(micros: int) -> datetime:
    return EPOCH_NTZ + timedelta(microseconds=micros)


def days_of_date(day: date) -> int:
    return day.toordinal() - EPOCH_DATE.toordinal()


def date_of_days(days: int) -> date:
    return date.fromordinal(days + EPOCH_DATE.toordinal())


def check_ts(value: object, where: str = "ts") -> Micros:
    """A user time: whole microseconds in the years 1 to 9999."""
    if type(value) is not int or not TS_MIN <= value <= TS_MAX:
        raise InvalidArgument(
            f"{where}: {show(value)} is not a time: expected whole microseconds from {TS_MIN} to {TS_MAX}"
        )
    return Micros(value)


def show(value: object) -> str:
    """A value for a message: short, and never an error of its own, whatever the value."""
    if isinstance(value, int) and value.bit_length() > _SHOWN_INT_BITS_MAX:
        return f"<{type(value).__name__} of {value.bit_length()} bits>"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a value that cannot print itself must not hide the error that is about it
        text = f"<{type(value).__name__} that cannot be shown>"
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."


def _refuse(type_: t.ColumnType, value: object, where: str, why: str = "") -> InvalidArgument:
    reason = f": {why}" if why else ""
    return InvalidArgument(f"{where}: {show(value)} ({type(value).__name__}) is not a {type_}{reason}")


def _native(type_: t.ColumnType, value: Any, where: str) -> object:
    """The Python value that a value of a library stands for."""
    if type(value).__name__ in _MISSING:
        raise _refuse(type_, value, where, "it stands for no value; NULL is None")
    if type(value).__module__ != "numpy" or getattr(value, "ndim", None) != 0:
        return value
    match value.dtype.kind:
        case "M":
            return _from_datetime64(type_, value, where)
        case "m":  # as an item, some would be a mere number
            raise _refuse(type_, value, where)
        case _:
            return value.item()


def _from_datetime64(type_: t.ColumnType, value: Any, where: str) -> date:
    """Days become a date for a date column, midnight for any other."""
    if value != value:
        raise _refuse(type_, value, where, "it stands for no value; NULL is None")
    if value.dtype.name.endswith(_FINER_UNITS):
        micros = value.astype("datetime64[us]")
        if micros != value:
            raise _refuse(type_, value, where, "its nanoseconds would be lost")
        value = micros
    moment = value.item()
    if not isinstance(moment, date):  # numpy gives the bare count of what Python's calendar does not hold
        raise _refuse(type_, value, where, "outside the years 1 to 9999")
    if isinstance(moment, datetime) or isinstance(type_, t.Date):
        return moment
    return datetime.combine(moment, time.min)


def _bool(type_: t.Bool, value: object, where: str) -> bool:
    if type(value) is not bool:
        raise _refuse(type_, value, where)
    return value


def _int(type_: t.Int, value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _refuse(type_, value, where)
    number, limit = int.__int__(value), 1 << (type_.bits - 1)
    if not -limit <= number < limit:
        raise _refuse(type_, value, where, "out of range")
    return number


def _float(type_: t.Float, value: object, where: str) -> float:
    if isinstance(value, int) and not isinstance(value, bool):
        return _float_of_int(type_, int.__int__(value), where)
    if not isinstance(value, float):
        raise _refuse(type_, value, where)
    exact = float.__float__(value)
    if type_.bits == 64:
        return exact
    number = _float32(exact)
    if math.isinf(number) and not math.isinf(exact):
        raise _refuse(type_, value, where, "out of range")
    return number


def _float_of_int(type_: t.Float, value: int, where: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        raise _refuse(type_, value, where, "out of range") from None
    if int(number) != value or (type_.bits == 32 and _float32(number) != number):
        raise _refuse(type_, value, where, "it would be rounded")
    return number


def _float32(value: float) -> float:
    try:
        return float(_FLOAT32.unpack(_FLOAT32.pack(value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _decimal(type_: t.Decimal, value: object, where: str) -> PyDecimal:
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 160:
        raise _refuse(type_, value, where, "out of range")
    if not isinstance(value, PyDecimal | int) or isinstance(value, bool):
        raise _refuse(type_, value, where)
    number = PyDecimal(value)
    if not number.is_finite():
        raise _refuse(type_, value, where)
    exact, quantum = decimal_form(type_.precision, type_.scale)
    try:
        fixed = number.quantize(quantum, context=exact)
    except Inexact:
        raise _refuse(type_, value, where, f"it would be rounded to {type_.scale} digits") from None
    except InvalidOperation:
        raise _refuse(type_, value, where, "out of range") from None
    return fixed or abs(fixed)


def _string(type_: t.String, value: object, where: str) -> str:
    if not isinstance(value, str):
        raise _refuse(type_, value, where)
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _refuse(type_, value, where, "it has a lone surrogate") from None
    return text


def _binary(type_: t.Binary, value: object, where: str) -> bytes:
    if type(value) is bytes:
        return value
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _refuse(type_, value, where)
    try:
        return memoryview(value).tobytes()
    except ValueError as error:
        raise _refuse(type_, value, where, str(error)) from None


def _date(type_: t.Date, value: object, where: str) -> date:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise _refuse(type_, value, where)
    return date.fromordinal(date.toordinal(value))


def _timestamp(type_: t.Timestamp, value: object, where: str) -> datetime:
    moment = _datetime(type_, value, where)
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise _refuse(type_, value, where, "it has no time zone")
    micros = micros_of_datetime(moment)
    if not TS_MIN <= micros <= TS_MAX:
        raise _refuse(type_, value, where, "outside the years 1 to 9999 in UTC")
    return datetime_of_micros(micros)


def _timestamp_ntz(type_: t.TimestampNtz, value: object, where: str) -> datetime:
    reading = _datetime(type_, value, where)
    if reading.tzinfo is not None:
        raise _refuse(type_, value, where, "it has a time zone")
    return reading.replace(fold=0)


def _datetime(type_: t.ColumnType, value: object, where: str) -> datetime:
    if not isinstance(value, datetime):
        raise _refuse(type_, value, where)
    if getattr(value, "nanosecond", 0):
        raise _refuse(type_, value, where, "its nanoseconds would be lost")
    to_python = getattr(value, "to_pydatetime", None)
    try:
        moment = to_python() if to_python else value
    except ValueError:
        raise _refuse(type_, value, where, "outside the years 1 to 9999") from None
    return datetime.combine(datetime.date(moment), datetime.timetz(moment))


def _items(type_: t.ColumnType, value: Any, where: str) -> Sequence[Value]:
    if hasattr(value, "tolist") and getattr(value, "ndim", 0) == 1:
        dtype = getattr(value, "dtype", None)
        is_plain = getattr(dtype, "kind", "") in ("b", "i", "u", "f") and getattr(dtype, "itemsize", 0) <= 8
        return cast(list[Value], value.tolist()) if is_plain else list(value)
    if not isinstance(value, list | tuple):
        raise _refuse(type_, value, where)
    return value


def _array(type_: t.Array, value: object, where: str) -> list[Value]:
    numbers = numbers_kept(type_.element, value)
    if numbers is not None:
        return numbers
    items = _items(type_, value, where)
    kept = kept_at_once(type_.element, items)
    return _elements(type_.element, items, where) if kept is None else kept


def _elements(type_: t.ColumnType, items: Sequence[Value], where: str) -> list[Value]:
    """What is kept of items of which some are not in that form, or not to be kept at all."""
    kept: list[Value] = []
    for first, share in shares(items):
        some = kept_at_once(type_, share) if len(share) < len(items) else None
        if some is None:
            places = enumerate(share, first)
            some = [None if item is None else coerce(type_, item, f"{where}[{place}]") for place, item in places]
        kept += some
    return kept


def is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _vector(type_: t.Vector, value: object, where: str) -> list[float]:
    numbers = numbers_kept(_FLOAT, value)
    if numbers is not None and len(numbers) == type_.length:
        return numbers
    items = _items(type_, value, where)
    if len(items) != type_.length:
        raise _refuse(type_, value, where, f"it has {len(items)} elements")
    kept = all_kept(_FLOAT, set(map(type, items)), items)
    if kept is not None:
        return kept
    return [coerce(t.Float(32), item, f"{where}[{i}]") for i, item in enumerate(items)]


def _struct(type_: t.Struct, value: object, where: str) -> dict[str, Value]:
    if not isinstance(value, Mapping):
        raise _refuse(type_, value, where)
    known = {name for name, _ in type_.fields}
    unknown = [name for name in value if name not in known]
    if unknown:
        raise _refuse(type_, value, where, f"no field {show(unknown[0])}")
    return {
        name: None if value.get(name) is None else coerce(field, value[name], f"{where}.{name}")
        for name, field in type_.fields
    }


def _map(type_: t.Map, value: object, where: str) -> dict[Value, Value]:
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, list | tuple) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        raise _refuse(type_, value, where)
    result: dict[Value, Value] = {}
    for key, item in pairs:
        kept = None if key is None else coerce(type_.key, key, f"{where} key")
        if kept is None or kept != kept:
            raise _refuse(type_, value, where, f"{show(key)} cannot be a key")
        if kept in result:
            raise _refuse(type_, value, where, f"key {show(kept)} stands twice")
        result[kept] = None if item is None else coerce(type_.value, item, f"{where}[{show(kept)}]")
    return result


_COERCE: dict[type, Callable[[Any, Any, str], Value]] = {
    t.Bool: _bool,
    t.Int: _int,
    t.Float: _float,
    t.Decimal: _decimal,
    t.String: _string,
    t.Binary: _binary,
    t.Date: _date,
    t.Timestamp: _timestamp,
    t.TimestampNtz: _timestamp_ntz,
    t.Array: _array,
    t.Vector: _vector,
    t.Struct: _struct,
    t.Map: _map,
}
