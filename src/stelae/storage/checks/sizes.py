"""How many bytes a value has: the same for a Python value, one that is packed in msgpack, and one in an Arrow array.

Text and binary have their own bytes, text those of its UTF-8. Of arrays, structs, maps and vectors the parts count:

| part | bytes |
|---|---|
| bool | 1 |
| intN, floatN | N / 8 |
| decimal | 16 |
| date, timestamps | 4, 8 |
| string, binary | 4, and its own |
| array, map | 4, and its parts |
| struct | its parts |
| vector | 4 for each number |
| NULL | 1 |

Numbers and times that are values by themselves have no size that anybody limits.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from stelae.format.packing import pack_value
from stelae.model import types as t
from stelae.model.arrow import compute as pc
from stelae.model.values import Value
from stelae.storage.merge.order import Flags, Ints

_LENGTH_BYTES = 4
_NULL_BYTES = 1
_ENCODER = msgspec.msgpack.Encoder()

SIZE_OF_PACKED_MAX = 8
"""A nested value has at most so many times the bytes that it is packed into: a small int64 is packed into one."""


def packed_bytes(value: Value) -> int:
    """How many bytes the value is packed into, as small blocks have it."""
    return len(_ENCODER.encode(pack_value(value)))


def text_bytes(text: str | bytes) -> int:
    return len(text) if isinstance(text, bytes) or text.isascii() else len(text.encode())


def nested_bytes(type_: t.ColumnType, value: Value) -> int:
    """The size of a canonical value of an array, struct, map or vector type; or of a part of one, None included."""
    if value is None:
        return _NULL_BYTES
    match type_:
        case t.String() | t.Binary():
            return _LENGTH_BYTES + text_bytes(value)
        case t.Array(t.Int() | t.Float() as number):
            nulls = value.count(None)
            return _LENGTH_BYTES + nulls * _NULL_BYTES + (len(value) - nulls) * _width(number)
        case t.Array(element):
            return _LENGTH_BYTES + sum(nested_bytes(element, item) for item in value)
        case t.Struct(fields):
            return sum(nested_bytes(field, value[name]) for name, field in fields)
        case t.Map(of_key, of_item):
            parts = (nested_bytes(of_key, key) + nested_bytes(of_item, item) for key, item in value.items())
            return _LENGTH_BYTES + sum(parts)
        case _:
            return _width(type_)


def _width(type_: t.ColumnType) -> int:
    match type_:
        case t.Int(bits) | t.Float(bits):
            return bits // 8
        case t.Decimal():
            return 16
        case t.Date():
            return 4
        case t.Timestamp() | t.TimestampNtz():
            return 8
        case t.Vector(length):
            return 4 * length
        case _:
            return 1


def first_oversized(type_: t.ColumnType, values: pa.Array, limit: int) -> int | None:
    """The place of the first value of more bytes than the limit; None if there is none. Values are in the Arrow form
    of their type, or of one that it widens."""
    match type_:
        case t.String() | t.Binary():
            return _first_longer(values, limit)
        case t.Array() | t.Struct() | t.Map() | t.Vector():
            return _first_larger(type_, values, limit)
        case _:
            return None


def _first_longer(texts: pa.Array, limit: int) -> int | None:
    if texts.nbytes <= limit or _longest_place(texts) <= limit:
        return None
    lengths = pc.binary_length(texts)
    return None if (pc.max(lengths).as_py() or 0) <= limit else int(pc.index(pc.greater(lengths, limit), True).as_py())


def _longest_place(texts: pa.Array) -> int:
    """The bytes of the longest value, or of what lies in the place of a null: never less than the longest has. Several
    times as quick as to ask for lengths."""
    offsets = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, 4 * texts.offset)
    return int((offsets[1:] - offsets[:-1]).max(initial=0))


def _first_larger(type_: t.ColumnType, values: pa.Array, limit: int) -> int | None:
    """By halving: where all values together are not too large, none is."""
    if _total_bytes(type_, values) <= limit:
        return None
    if len(values) == 1:
        return None if values.null_count else 0
    half = len(values) // 2
    found = _first_larger(type_, values.slice(0, half), limit)
    if found is not None:
        return found
    found = _first_larger(type_, values.slice(half), limit)
    return None if found is None else half + found


def _total_bytes(type_: t.ColumnType, values: pa.Array) -> int:
    nulls = values.null_count
    there = len(values) - nulls
    size = nulls * _NULL_BYTES
    match type_:
        case t.String() | t.Binary():
            return size + there * _LENGTH_BYTES + int(pc.sum(pc.binary_length(values)).as_py() or 0)
        case t.Array(element):
            return size + there * _LENGTH_BYTES + _total_bytes(element, values.flatten())
        case t.Struct(fields):
            # A null struct has a null for each field here, which do not count.
            parts = [_total_bytes(field, part) for (_, field), part in zip(fields, values.flatten(), strict=True)]
            return size + sum(parts) - nulls * len(fields) * _NULL_BYTES
        case t.Map(of_key, of_item):
            _, keys, items = map_entries(values)
            return size + there * _LENGTH_BYTES + _total_bytes(of_key, keys) + _total_bytes(of_item, items)
        case _:
            return size + there * _width(type_)


def map_entries(maps: pa.Array) -> tuple[Ints, pa.Array, pa.Array]:
    """Which map each entry belongs to, and all keys and items behind each other. A null map has none, whatever lies in
    its place."""
    offsets = maps.offsets.to_numpy().astype(np.int64)
    owners = np.repeat(np.arange(len(maps)), np.diff(offsets))
    parts: list[Any] = [part.slice(offsets[0], len(owners)) for part in (maps.keys, maps.items)]
    if maps.null_count:
        seen: Flags = maps.is_valid().to_numpy(zero_copy_only=False)[owners]
        if not seen.all():
            owners, parts = owners[seen], [part.filter(pa.array(seen)) for part in parts]
    keys, items = parts
    return owners, keys, items
