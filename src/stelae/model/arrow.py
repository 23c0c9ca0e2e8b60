"""The Arrow equivalent of each column type, and back.

`to_arrow` gives the one Arrow type a column has in memory and in fragments. `from_arrow` accepts what frames bring
(large, dictionary, run-end and view layouts, unsigned and half-width numbers, any time unit) and names the column type
that holds all of its values. What it returns has a text that parses back to it.

`compute` is `pyarrow.compute`, imported when a function of it is first called. It makes a Python function of every
kernel as it is imported, which takes longer than to open a store; rows that are written and read one by one need none.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from stelae.model import types as t
from stelae.model.errors import InvalidSchema

_INTS = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_FLOATS = {32: pa.float32(), 64: pa.float64()}
_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
    pa.types.is_fixed_size_list,
)


class _Compute:
    def __getattr__(self, name: str) -> Any:
        import pyarrow.compute

        found = self.__dict__[name] = getattr(pyarrow.compute, name)
        return found


compute: Any = _Compute()


def to_arrow(type_: t.ColumnType) -> pa.DataType:
    match type_:
        case t.Bool():
            return pa.bool_()
        case t.Int(bits):
            return _INTS[bits]
        case t.Float(bits):
            return _FLOATS[bits]
        case t.Decimal(precision, scale):
            return pa.decimal128(precision, scale)
        case t.String():
            return pa.string()
        case t.Binary():
            return pa.binary()
        case t.Date():
            return pa.date32()
        case t.Timestamp():
            return pa.timestamp("us", "UTC")
        case t.TimestampNtz():
            return pa.timestamp("us")
        case t.Array(element):
            return pa.list_(pa.field("element", to_arrow(element)))
        case t.Vector(length):
            return pa.list_(pa.field("element", pa.float32(), nullable=False), length)
        case t.Struct(fields):
            return pa.struct([pa.field(name, to_arrow(field)) for name, field in fields])
        case t.Map(key, value):
            return pa.map_(to_arrow(key), to_arrow(value))


def from_arrow(arrow: pa.DataType, where: str) -> t.ColumnType:
    """Raises InvalidSchema naming the column where no type holds the values."""
    type_ = _type(arrow, where, 1)
    if isinstance(type_, t.KeyType):
        return type_
    try:
        return t.parse_type(str(type_))
    except InvalidSchema as error:
        raise InvalidSchema(f"column {where!r}: {error}") from None


def _type(arrow: pa.DataType, where: str, depth: int) -> t.ColumnType:
    types = pa.types
    if depth > t.NESTING_MAX:
        raise InvalidSchema(f"column {where!r}: types nest at most {t.NESTING_MAX} deep")
    if types.is_dictionary(arrow) or types.is_run_end_encoded(arrow):
        return _type(arrow.value_type, where, depth)
    if types.is_decimal(arrow):
        if arrow.precision > t.DECIMAL_PRECISION_MAX or not 0 <= arrow.scale <= arrow.precision:
            raise InvalidSchema(f"column {where!r}: {arrow} does not fit decimal(38, s)")
        return t.Decimal(arrow.precision, arrow.scale)
    if types.is_timestamp(arrow):
        return t.Timestamp() if arrow.tz else t.TimestampNtz()
    if types.is_fixed_size_list(arrow) and arrow.value_type == pa.float32():
        return t.Vector(arrow.list_size)
    if types.is_nested(arrow):
        return _nested(arrow, where, depth + 1)
    simple = _simple(arrow)
    if simple is None:
        raise InvalidSchema(f"column {where!r}: no column type holds Arrow's {arrow}")
    return simple


def _nested(arrow: pa.DataType, where: str, depth: int) -> t.ColumnType:
    types = pa.types
    if types.is_map(arrow):
        key = _type(arrow.key_type, where, depth)
        if not isinstance(key, t.KeyType):
            raise InvalidSchema(f"column {where!r}: the key of a map cannot be {key}")
        return t.Map(key, _type(arrow.item_type, where, depth))
    if types.is_struct(arrow):
        return t.Struct(tuple((field.name, _type(field.type, f"{where}.{field.name}", depth)) for field in arrow))
    if any(is_list(arrow) for is_list in _LISTS):
        return t.Array(_type(arrow.value_type, where, depth))
    raise InvalidSchema(f"column {where!r}: no column type holds Arrow's {arrow}")


def _simple(arrow: pa.DataType) -> t.ColumnType | None:
    types = pa.types
    rules: tuple[tuple[bool, t.ColumnType], ...] = (
        (types.is_boolean(arrow), t.Bool()),
        (types.is_int8(arrow), t.Int(8)),
        (types.is_int16(arrow) or types.is_uint8(arrow), t.Int(16)),
        (types.is_int32(arrow) or types.is_uint16(arrow), t.Int(32)),
        (types.is_int64(arrow) or types.is_uint32(arrow), t.Int(64)),
        (types.is_uint64(arrow), t.Decimal(20, 0)),
        (types.is_float32(arrow) or types.is_float16(arrow), t.Float(32)),
        (types.is_float64(arrow), t.Float(64)),
        (types.is_string(arrow) or types.is_large_string(arrow) or types.is_string_view(arrow), t.String()),
        (types.is_binary(arrow) or types.is_large_binary(arrow) or types.is_binary_view(arrow), t.Binary()),
        (types.is_fixed_size_binary(arrow), t.Binary()),
        (types.is_date(arrow), t.Date()),
    )
    return next((type_ for holds, type_ in rules if holds), None)
