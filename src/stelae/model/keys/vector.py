"""The same rows as `scalar`, for whole Arrow arrays at once.

Fixed-width components become a matrix of bytes by numpy, strings stay where they are, and one Arrow kernel joins them.
The result is a `binary` array; a batch whose rows exceed Arrow's 2 GiB of bytes per array must be cut first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from stelae.model import types as t
from stelae.model.arrow import compute as pc
from stelae.model.arrow import to_arrow
from stelae.model.errors import InvalidArgument
from stelae.model.ids import TS_MAX, TS_MIN
from stelae.model.keys.scalar import END, ESCAPED_ZERO, TOKEN_BYTES, TOKEN_SEED, KeyCodec, decimal_bits
from stelae.model.values import days_of_date

Bytes2D = np.ndarray[Any, np.dtype[np.uint8]]

SLICE_ROWS = 65_536
"""Long arrays are encoded in slices whose scratch memory stays in the processor's cache."""

_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def with_one_zero(type_: t.ColumnType, keys: pa.Array) -> pa.Array:
    """Keys of a type as they are kept: of floats the two zeros are one key, which is 0.0."""
    return pc.add(keys, pa.scalar(0.0, keys.type)) if isinstance(type_, t.Float) else keys


def encode_arrays(codec: KeyCodec, columns: Sequence[pa.Array]) -> pa.Array:
    """The rows of key columns given in order. Every array has exactly its type's Arrow form, no null and no NaN."""
    _check(codec, columns)
    count = len(columns[0])
    if count <= SLICE_ROWS:
        return _encode(codec, columns)
    # numpy asks for huge pages, Arrow's pool does not: filling a fresh numpy buffer costs a third of its page faults.
    data = np.empty(_size_max(codec, columns), np.uint8)
    offsets = np.zeros(count + 1, np.int64)
    for at in range(0, count, SLICE_ROWS):
        rows = _encode(codec, [column.slice(at, SLICE_ROWS) for column in columns])
        bounds = np.frombuffer(rows.buffers()[1], np.int32)[rows.offset : rows.offset + len(rows) + 1]
        base, size = offsets[at], int(bounds[-1]) - int(bounds[0])
        data[base : base + size] = np.frombuffer(rows.buffers()[2], np.uint8)[bounds[0] : bounds[-1]]
        offsets[at + 1 : at + len(bounds)] = bounds[1:] + (base - bounds[0])
    if offsets[-1] >= 2**31:
        raise InvalidArgument(f"{count} keys of {offsets[-1]} bytes are too many for one array; cut the batch")
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data[: offsets[-1]])]
    )


def _size_max(codec: KeyCodec, columns: Sequence[pa.Array]) -> int:
    """No more bytes than this, even if every byte of an inner string is escaped."""
    fixed = sum(_width(type_) or len(END) for type_ in codec.types) + (TOKEN_BYTES if codec.hashed else 0)
    strings = [column for type_, column in zip(codec.types, columns, strict=True) if _width(type_) is None]
    return fixed * len(columns[0]) + 2 * sum(int(column.nbytes) for column in strings)


def _encode(codec: KeyCodec, columns: Sequence[pa.Array]) -> pa.Array:
    last = len(columns) - 1
    if last == 0 and not codec.hashed and _width(codec.types[0]) is None:
        return columns[0].cast(pa.binary())  # one string is its own row
    parts: list[pa.Array | Bytes2D] = []
    for i, (type_, column) in enumerate(zip(codec.types, columns, strict=True)):
        part = _fixed_width(type_, column)
        if part is None:
            data = column.cast(pa.binary())
            part = _even(data if i == last else _escape(data))
        if isinstance(part, np.ndarray) and parts and isinstance(parts[-1], np.ndarray):
            parts[-1] = np.hstack([parts[-1], part])
        else:
            parts.append(part)
    arrays = [_as_binary(part) if isinstance(part, np.ndarray) else part for part in parts]
    rows = _join(arrays)
    return _with_tokens(rows) if codec.hashed else rows


def _join(arrays: list[pa.Array]) -> pa.Array:
    """The arrays' values put together, row by row: taken in turn from one long array, which leaves the bytes of each
    row side by side, so only the offsets change. Twice as fast as the kernel that joins with a separator."""
    if len(arrays) == 1:
        return arrays[0]
    count, parts = len(arrays[0]), len(arrays)
    turns = np.arange(count * parts, dtype=np.int32).reshape(parts, count).T.ravel()
    laid = pa.concat_arrays(arrays).take(pa.array(turns))
    offsets = np.frombuffer(laid.buffers()[1], np.int32)[laid.offset : laid.offset + len(laid) + 1 : parts]
    bounds = pa.py_buffer(np.ascontiguousarray(offsets))
    return pa.Array.from_buffers(pa.binary(), count, [None, bounds, laid.buffers()[2]])


def _check(codec: KeyCodec, columns: Sequence[pa.Array]) -> None:
    if len(columns) != len(codec.types):
        raise InvalidArgument(f"{len(columns)} key columns given, the key has {len(codec.types)}")
    for name, type_, column in zip(codec.names, codec.types, columns, strict=True):
        if column.type != to_arrow(type_):
            raise InvalidArgument(f"key column {name!r}: expected Arrow {to_arrow(type_)}, not {column.type}")
        if column.null_count:
            place = pc.index(column.is_null(), pa.scalar(True)).as_py()
            raise InvalidArgument(f"key column {name!r}: a key cannot be NULL (row {place})")
        if isinstance(type_, t.Float) and pc.any(pc.is_nan(column)).as_py():
            place = pc.index(pc.is_nan(column), pa.scalar(True)).as_py()
            raise InvalidArgument(f"key column {name!r}: a key cannot be NaN (row {place})")


def _fixed_width(type_: t.KeyType, column: pa.Array) -> Bytes2D | None:
    """One row of big-endian bytes per value; None for strings and binary."""
    match type_:
        case t.Bool():
            return column.cast(pa.uint8()).to_numpy(zero_copy_only=False).reshape(-1, 1)
        case t.Int(bits):
            return _flip(column.to_numpy(), bits)
        case t.Float(bits):
            return _floats(column.to_numpy(), bits)
        case t.Decimal():
            return _decimals(column, decimal_bits(type_))
        case t.Date():
            return _flip(column.view(pa.int32()).to_numpy(), 32)
        case t.Timestamp() | t.TimestampNtz():
            return _flip(column.view(pa.int64()).to_numpy(), 64)
        case t.String() | t.Binary():
            return None


def _big_endian(values: np.ndarray[Any, Any], bits: int) -> Bytes2D:
    swapped = values.astype(np.dtype(_UNSIGNED[bits]).newbyteorder(">"), copy=False)
    return np.ascontiguousarray(swapped).view(np.uint8).reshape(len(values), bits // 8)


def _flip(values: np.ndarray[Any, Any], bits: int) -> Bytes2D:
    kind = _UNSIGNED[bits]
    return _big_endian(values.view(kind) ^ kind(1 << (bits - 1)), bits)


def _floats(values: np.ndarray[Any, Any], bits: int) -> Bytes2D:
    kind = _UNSIGNED[bits]
    raw = (values + values.dtype.type(0.0)).view(kind)
    sign = kind(1 << (bits - 1))
    return _big_endian(np.where(raw & sign, ~raw, raw | sign), bits)


def _decimals(column: pa.Array, bits: int) -> Bytes2D:
    little = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, 16)[column.offset : column.offset + len(column)]
    big = np.ascontiguousarray(little[:, : bits // 8][:, ::-1])
    big[:, 0] ^= np.uint8(0x80)
    return big


def _escape(data: pa.Array) -> pa.Array:
    if len(data) and pc.any(pc.match_substring(data, pattern=b"\x00")).as_py():
        data = pc.replace_substring(data, pattern=b"\x00", replacement=ESCAPED_ZERO)
    return pc.binary_join_element_wise(data, END, b"")


def _even(data: pa.Array) -> pa.Array | Bytes2D:
    """As a matrix if all strings are of one length, as ids often are: joined twice as fast as by the kernel."""
    if not len(data):
        return data
    offsets = np.frombuffer(data.buffers()[1], np.int32)[data.offset : data.offset + len(data) + 1]
    width = int(offsets[1]) - int(offsets[0])
    if width == 0 or np.any(np.diff(offsets) != width):
        return data
    return np.frombuffer(data.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].reshape(-1, width)


def _as_binary(matrix: Bytes2D) -> pa.Array:
    count, width = matrix.shape
    if count * width >= 2**31:
        raise InvalidArgument(f"{count} keys of {width} bytes are too many for one array; cut the batch")
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    data = np.ascontiguousarray(matrix)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _with_tokens(rows: pa.Array) -> pa.Array:
    bounds = np.frombuffer(rows.buffers()[1], np.int32)[rows.offset : rows.offset + len(rows) + 1]
    data = np.frombuffer(rows.buffers()[2] or b"", np.uint8)
    return _join([_as_binary(_tokens(data, bounds[:-1], bounds[1:])), rows])


def _tokens(data: Bytes2D, starts: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> Bytes2D:
    digest, plain = xxhash.xxh64_digest, data.tobytes()
    tokens = [digest(plain[start:end], TOKEN_SEED) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.frombuffer(b"".join(tokens), np.uint8).reshape(-1, TOKEN_BYTES)


def decode_array(codec: KeyCodec, rows: pa.Array) -> list[pa.Array]:
    """The key columns of rows written by `encode_arrays`, or of a NaN's place. Raises InvalidArgument if
    `KeyCodec.decode` refuses some row."""
    if rows.type != pa.binary() or rows.null_count:
        raise InvalidArgument(f"rows are Arrow binary without nulls, not {rows.type} with {rows.null_count}")
    if not len(rows):
        return [pa.array([], to_arrow(type_)) for type_ in codec.types]
    if not codec.hashed and len(codec.types) == 1 and _width(codec.types[0]) is None:
        return [_to_type(codec, codec.types[0], rows)]
    offsets = np.frombuffer(rows.buffers()[1], np.int32)[rows.offset : rows.offset + len(rows) + 1].astype(np.int64)
    data = np.frombuffer(rows.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    offsets -= offsets[0]
    starts, ends = offsets[:-1], offsets[1:]
    if codec.hashed:
        starts = starts + TOKEN_BYTES
        _require(codec, starts <= ends)
        _require(codec, np.all(_gather(data, offsets[:-1], TOKEN_BYTES) == _tokens(data, starts, ends), axis=1))
    columns = []
    for i, type_ in enumerate(codec.types):
        width = _width(type_)
        if width is not None:
            _require(codec, starts + width <= ends)
            matrix = _gather(data, starts, width)
            _require(codec, _canonical(type_, matrix))
            columns.append(_from_fixed(type_, matrix))
            starts = starts + width
        elif i == len(codec.types) - 1:
            columns.append(_to_type(codec, type_, _slices(data, starts, ends)))
            starts = ends
        else:
            stops = _ends(codec, data, starts, ends)
            plain = pc.replace_substring(_slices(data, starts, stops), pattern=ESCAPED_ZERO, replacement=b"\x00")
            columns.append(_to_type(codec, type_, plain))
            starts = stops + len(END)
    _require(codec, starts == ends)
    return columns


def _require(codec: KeyCodec, holds: np.ndarray[Any, Any]) -> None:
    if not np.all(holds):
        raise InvalidArgument(f"entry {int(np.argmin(holds))} is no row of key ({', '.join(codec.names)})")


def _to_type(codec: KeyCodec, type_: t.KeyType, data: pa.Array) -> pa.Array:
    try:
        return data.cast(to_arrow(type_))
    except pa.ArrowInvalid as error:
        raise InvalidArgument(f"not rows of key ({', '.join(codec.names)}): {error}") from None


def _width(type_: t.KeyType) -> int | None:
    match type_:
        case t.Bool():
            return 1
        case t.Int(bits) | t.Float(bits):
            return bits // 8
        case t.Decimal():
            return decimal_bits(type_) // 8
        case t.Date():
            return 4
        case t.Timestamp() | t.TimestampNtz():
            return 8
        case t.String() | t.Binary():
            return None


def _gather(data: Bytes2D, starts: np.ndarray[Any, Any], width: int) -> Bytes2D:
    return data[starts[:, None] + np.arange(width)]


def _slices(data: Bytes2D, starts: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> pa.Array:
    lengths = ends - starts
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    source = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
    return pa.Array.from_buffers(
        pa.binary(), len(lengths), [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data[source])]
    )


def _ends(
    codec: KeyCodec, data: Bytes2D, starts: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Where the escaped string at each start ends: a zero inside one is always followed by FF, so the first that is not
    begins the end, 00 01."""
    marks = np.flatnonzero((data[:-1] == 0) & (data[1:] != ESCAPED_ZERO[1]))
    stops = np.append(marks, len(data))[np.searchsorted(marks, starts)]
    _require(codec, stops + len(END) <= ends)
    _require(codec, data[stops + 1] == END[1])
    return stops


def _canonical(type_: t.KeyType, matrix: Bytes2D) -> np.ndarray[Any, Any]:
    """Which rows of bytes are those of a value. Bytes sort as values do, so bounds on the values are bounds on them."""
    match type_:
        case t.Bool():
            return matrix[:, 0] <= 1
        case t.Float(bits):
            return _canonical_floats(_unsigned(matrix, bits), bits)
        case t.Decimal(precision):
            limit = 10**precision - 1
            return _between(matrix, -limit, limit)
        case t.Date():
            return _between(matrix, days_of_date(date.min), days_of_date(date.max))
        case t.Timestamp() | t.TimestampNtz():
            return _between(matrix, TS_MIN, TS_MAX)
        case t.Int() | t.String() | t.Binary():
            return np.ones(len(matrix), bool)


def _between(matrix: Bytes2D, least: int, most: int) -> np.ndarray[Any, Any]:
    width = matrix.shape[1]
    offset = 1 << (8 * width - 1)
    low, high = ((number + offset).to_bytes(width, "big") for number in (least, most))
    if width == 16:
        numbers = np.ascontiguousarray(matrix).view("S16").ravel()
        return (numbers >= low) & (numbers <= high)
    unsigned = _unsigned(matrix, 8 * width)
    return (unsigned >= int.from_bytes(low, "big")) & (unsigned <= int.from_bytes(high, "big"))


def _canonical_floats(encoded: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """From -inf to +inf without -0.0, or the one NaN."""
    rows = KeyCodec({"x": t.Float(bits)})
    lowest, highest, zero, nan = (
        encoded.dtype.type(int.from_bytes(rows.encode((value,)), "big"))
        for value in (-math.inf, math.inf, 0.0, math.nan)
    )
    minus_zero = zero - encoded.dtype.type(1)
    return ((encoded >= lowest) & (encoded <= highest) & (encoded != minus_zero)) | (encoded == nan)


def _from_fixed(type_: t.KeyType, matrix: Bytes2D) -> pa.Array:
    match type_:
        case t.Bool():
            return pa.array(matrix[:, 0] == 1)
        case t.Int(bits):
            return pa.array(_unflip(matrix, bits))
        case t.Float(bits):
            return pa.array(_unfloat(matrix, bits))
        case t.Decimal():
            return _undecimal(type_, matrix)
        case t.Date():
            return pa.array(_unflip(matrix, 32)).view(pa.date32())
        case t.Timestamp() | t.TimestampNtz():
            return pa.array(_unflip(matrix, 64)).view(to_arrow(type_))
        case t.String() | t.Binary():
            raise InvalidArgument(f"{type_} has no fixed width")


def _unsigned(matrix: Bytes2D, bits: int) -> np.ndarray[Any, Any]:
    kind = np.dtype(_UNSIGNED[bits])
    return np.ascontiguousarray(matrix).view(kind.newbyteorder(">")).ravel().astype(kind)


def _unflip(matrix: Bytes2D, bits: int) -> np.ndarray[Any, Any]:
    raw = _unsigned(matrix, bits)
    return (raw ^ raw.dtype.type(1 << (bits - 1))).view(f"i{bits // 8}")


def _unfloat(matrix: Bytes2D, bits: int) -> np.ndarray[Any, Any]:
    raw = _unsigned(matrix, bits)
    sign = raw.dtype.type(1 << (bits - 1))
    return np.where(raw & sign, raw ^ sign, ~raw).view(f"f{bits // 8}")


def _undecimal(type_: t.Decimal, matrix: Bytes2D) -> pa.Array:
    count, width = matrix.shape
    plain = matrix.copy()
    plain[:, 0] ^= np.uint8(0x80)
    little = np.where(plain[:, :1] & 0x80, np.uint8(0xFF), np.uint8(0)).repeat(16, axis=1)
    little[:, :width] = plain[:, ::-1]
    return pa.Array.from_buffers(to_arrow(type_), count, [None, pa.py_buffer(np.ascontiguousarray(little))])
