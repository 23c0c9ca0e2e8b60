"""Canonical Python values in Arrow arrays, and back: whole columns, or one value at a time.

`reader_of` is for point reads: it looks into the array's own buffers, or for text and bytes into a copy of them, since
an Arrow scalar per value costs a microsecond. Whatever has no simple buffer goes through Arrow.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stelae.model import types as t
from stelae.model.arrow import to_arrow
from stelae.model.values import Value, date_of_days, datetime_of_micros, ntz_of_micros

_INT_CODES = {8: "b", 16: "h", 32: "i", 64: "q"}
_FLOAT_CODES = {32: "f", 64: "d"}


def array_of(type_: t.ColumnType, values: Sequence[Value]) -> pa.Array:
    """An Arrow array of canonical values, None for null."""
    if _has_map(type_):
        values = [None if value is None else _to_arrow_form(type_, value) for value in values]
    return pa.array(values, to_arrow(type_))


def values_of(type_: t.ColumnType, array: pa.Array) -> list[Value]:
    """The canonical values of an array."""
    match type_:
        case t.Timestamp() | t.TimestampNtz():
            of = datetime_of_micros if isinstance(type_, t.Timestamp) else ntz_of_micros
            return [None if micros is None else of(micros) for micros in array.view(pa.int64()).to_pylist()]
        case t.Array(t.Bool() | t.Int() | t.Float() | t.String() | t.Binary()):
            return array.to_pylist()
        case t.Array() | t.Struct() | t.Map():
            return [None if value is None else _from_arrow_form(type_, value) for value in array.to_pylist()]
        case _:
            return array.to_pylist()


def _has_map(type_: t.ColumnType) -> bool:
    match type_:
        case t.Map():
            return True
        case t.Array(element):
            return _has_map(element)
        case t.Struct(fields):
            return any(_has_map(field) for _, field in fields)
        case _:
            return False


def _to_arrow_form(type_: t.ColumnType, value: Value) -> Any:
    """Arrow takes a map as pairs."""
    if value is None:
        return None
    match type_:
        case t.Map(_, inner):
            return [(key, _to_arrow_form(inner, each)) for key, each in value.items()]
        case t.Array(element):
            return [_to_arrow_form(element, each) for each in value]
        case t.Struct(fields):
            return {name: _to_arrow_form(field, value[name]) for name, field in fields}
        case _:
            return value


def _from_arrow_form(type_: t.ColumnType, value: Any) -> Value:
    if value is None:
        return None
    match type_:
        case t.Map(key, inner):
            return {_from_arrow_form(key, k): _from_arrow_form(inner, each) for k, each in value}
        case t.Array(element):
            return [_from_arrow_form(element, each) for each in value]
        case t.Struct(fields):
            return {name: _from_arrow_form(field, value[name]) for name, field in fields}
        case t.Timestamp():
            return value.astimezone(_UTC)
        case _:
            return value


_UTC = datetime_of_micros(0).tzinfo


def reader_of(type_: t.ColumnType, array: pa.Array) -> Callable[[int], Value]:
    """Gives the canonical value at a place. The array must outlive the reader's use, and is kept by it."""
    plain = _plain_reader(type_, array)
    if plain is None:
        return lambda at: values_of(type_, array.slice(at, 1))[0]
    if array.null_count == 0:
        return plain
    valid = memoryview(array.buffers()[0]).cast("B")
    offset = array.offset

    def nullable(at: int) -> Value:
        bit = at + offset
        return plain(at) if valid[bit >> 3] >> (bit & 7) & 1 else None

    return nullable


def _plain_reader(type_: t.ColumnType, array: pa.Array) -> Callable[[int], Value] | None:
    match type_:
        case t.String():
            return _text_reader(array)
        case t.Binary():
            return bytes_reader(array)
        case t.Int(bits):
            return _numbers(array, _INT_CODES[bits]).__getitem__
        case t.Float(bits):
            return _numbers(array, _FLOAT_CODES[bits]).__getitem__
        case t.Date():
            days = _numbers(array, "i")
            return lambda at: date_of_days(days[at])
        case t.Timestamp():
            moments = _numbers(array, "q")
            return lambda at: datetime_of_micros(moments[at])
        case t.TimestampNtz():
            readings = _numbers(array, "q")
            return lambda at: ntz_of_micros(readings[at])
        case _:
            return None


def _numbers(array: pa.Array, code: str) -> memoryview:
    """The values of a fixed-width array, from its own first on."""
    buffer = array.buffers()[1]
    view = memoryview(buffer if buffer is not None else b"").cast("B")
    width = struct.calcsize(code)
    return view[array.offset * width : (array.offset + len(array)) * width].cast(code)  # type: ignore[call-overload]


def span_of(array: pa.Array) -> tuple[memoryview, bytes]:
    """Offsets, and the data they point into as bytes: slicing those is much quicker than slicing a view."""
    offsets = memoryview(array.buffers()[1]).cast("B")[array.offset * 4 : (array.offset + len(array) + 1) * 4].cast("i")
    data = array.buffers()[2]
    first, last = offsets[0], offsets[-1]
    if first:
        offsets = memoryview((np.asarray(offsets) - first).data)
    return offsets, b"" if data is None else data.slice(first, last - first).to_pybytes()


def bytes_reader(array: pa.Array) -> Callable[[int], bytes]:
    if not len(array):
        return lambda at: array[at].as_py()
    offsets, data = span_of(array)
    return lambda at: data[offsets[at] : offsets[at + 1]]


def _text_reader(array: pa.Array) -> Callable[[int], str]:
    if not len(array):
        return lambda at: array[at].as_py()
    offsets, data = span_of(array)
    return lambda at: data[offsets[at] : offsets[at + 1]].decode()
