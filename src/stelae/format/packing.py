"""Column values inside msgpack: what msgpack has no type for travels as an extension.

| code | value | bytes |
|---|---|---|
| 1 | Decimal | its text |
| 2 | date | days since 1970, 4 bytes, big-endian, signed |
| 3 | aware datetime | microseconds since 1970 UTC, 8 bytes |
| 4 | naive datetime | the same of its wall clock |
| 5 | dict whose keys are not all text | msgpack of its [key, value] pairs |
| 6 | list of 8 or more floats | float64, little-endian |
"""

from __future__ import annotations

import struct
from array import array
from datetime import date, datetime
from decimal import Decimal as PyDecimal
from decimal import InvalidOperation
from typing import Any

import msgspec

from stelae.model.errors import InvalidArgument
from stelae.model.values import (
    Value,
    date_of_days,
    datetime_of_micros,
    days_of_date,
    micros_of_datetime,
    ntz_of_micros,
)

_DECIMAL, _DATE, _MOMENT, _READING, _PAIRS, _FLOATS = range(1, 7)
_FLOATS_MIN = 8
_DECIMAL_TEXT_MAX = 64
_FLOAT = frozenset((float,))
_PLAIN = frozenset((type(None), bool, int, float, str, bytes))


def pack_value(value: Value) -> Any:
    """A canonical value as something msgpack can encode and `unpack_extension` turns back."""
    if type(value) in _PLAIN:
        return value
    match value:
        case PyDecimal():
            return msgspec.msgpack.Ext(_DECIMAL, str(value).encode())
        case datetime(tzinfo=None):
            return msgspec.msgpack.Ext(_READING, struct.pack(">q", micros_of_datetime(value)))
        case datetime():
            return msgspec.msgpack.Ext(_MOMENT, struct.pack(">q", micros_of_datetime(value)))
        case date():
            return msgspec.msgpack.Ext(_DATE, struct.pack(">i", days_of_date(value)))
        case dict():
            return _pack_dict(value)
        case list():
            kinds = set(map(type, value))
            if len(value) >= _FLOATS_MIN and kinds == _FLOAT:
                return msgspec.msgpack.Ext(_FLOATS, array("d", value).tobytes())
            return value if kinds <= _PLAIN else [pack_value(item) for item in value]
        case _:
            raise InvalidArgument(f"{type(value).__name__} is not the kept form of any column type")


def _pack_dict(value: dict[Any, Any]) -> Any:
    if all(type(key) is str for key in value):
        return {key: pack_value(item) for key, item in value.items()}
    pairs = [[pack_value(key), pack_value(item)] for key, item in value.items()]
    return msgspec.msgpack.Ext(_PAIRS, msgspec.msgpack.encode(pairs))


def unpack_extension(code: int, data: memoryview) -> Value:
    """msgspec's hook. Bytes that are no such value raise InvalidArgument."""
    try:
        match code:
            case 1:
                return _decimal(bytes(data))
            case 2:
                return date_of_days(*struct.unpack(">i", data))
            case 3:
                return datetime_of_micros(*struct.unpack(">q", data))
            case 4:
                return ntz_of_micros(*struct.unpack(">q", data))
            case 5:
                return dict(_PAIRS_DECODER.decode(data))
            case 6:
                return list(array("d", bytes(data)))
            case _:
                raise InvalidArgument(f"no value has extension code {code}")
    except (struct.error, ValueError, OverflowError, TypeError, InvalidOperation, RecursionError) as error:
        raise InvalidArgument(f"not a value of extension code {code}: {error}") from None


def _decimal(text: bytes) -> PyDecimal:
    if len(text) > _DECIMAL_TEXT_MAX:
        raise ValueError("decimal too long")
    value = PyDecimal(text.decode("ascii"))
    if not value.is_finite():
        raise ValueError("decimal not finite")
    return value


_PAIRS_DECODER = msgspec.msgpack.Decoder(list[tuple[Any, Any]], ext_hook=unpack_extension)
