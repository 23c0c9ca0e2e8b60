"""Keys as bytes that sort as the typed tuple does, one key at a time.

Each component in turn, with no separators:

| type | bytes |
|---|---|
| bool | 1: 0 or 1 |
| intN | N/8, big-endian, sign bit flipped |
| floatN | N/8, big-endian IEEE bits; sign bit flipped if positive, all bits if negative |
| decimal(p, s) | the unscaled integer as intN: 4 bytes to p = 9, 8 to 18, else 16 |
| date, timestamps | days as int32, microseconds as int64 |
| string, binary | in the last place the bytes themselves; elsewhere 00 written as 00 FF, then the end 00 01 |

So a key of one string or binary column is its own bytes, and a longer key of a leading part is a prefix scan.
The two zeros are one key: -0.0 is encoded as 0.0. NaN is refused in keys by `check_key`; the encoding still gives
every NaN one place, above +inf, so that statistics and tests have an order, and decoding that place gives NaN.

Decoding accepts exactly the bytes that encoding gives, and so does `vector`: one key has one row.

A hash-partitioned table's row is the 8-byte big-endian XXH64 (seed 42) of the encoded key, then the encoded key.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Context
from decimal import Decimal as PyDecimal
from typing import Any

import xxhash

from stelae.model import types as t
from stelae.model.errors import InvalidArgument
from stelae.model.ids import Row
from stelae.model.values import (
    Value,
    coerce,
    date_of_days,
    datetime_of_micros,
    days_of_date,
    micros_of_datetime,
    ntz_of_micros,
    show,
)

TOKEN_BYTES = 8
TOKEN_SEED = 42
END = b"\x00\x01"
ESCAPED_ZERO = b"\x00\xff"

Key = tuple[Value, ...]

_INT_FORMATS = {8: ">B", 16: ">H", 32: ">I", 64: ">Q"}
_FLOAT_FORMATS = {32: ">f", 64: ">d"}
_NAN_BITS = {32: 0x7FC00000, 64: 0x7FF8000000000000}


def decimal_bits(type_: t.Decimal) -> int:
    if type_.precision <= 9:
        return 32
    return 64 if type_.precision <= 18 else 128


class KeyCodec:
    """Encodes and decodes the keys of one table. `decode(encode(key)) == key` for every key `check` accepts."""

    def __init__(self, columns: Mapping[str, t.KeyType], hashed: bool = False) -> None:
        if not columns:
            raise InvalidArgument("a key has at least one column")
        self.names = tuple(columns)
        self.types = tuple(columns.values())
        self.hashed = hashed
        last = len(self.types) - 1
        self._encoders = tuple(_encoder(type_, i == last) for i, type_ in enumerate(self.types))
        self._decoders = tuple(_decoder(type_, i == last) for i, type_ in enumerate(self.types))

    def __reduce__(self) -> tuple[type[KeyCodec], tuple[dict[str, t.KeyType], bool]]:
        """So that schemas and descriptions of tables can be sent to other processes."""
        return KeyCodec, (dict(zip(self.names, self.types, strict=True)), self.hashed)

    def check(self, key: object) -> Key:
        """The canonical tuple of a key given as a single value, a tuple or a mapping of column to value."""
        values = self._values(key)
        checked = []
        for name, type_, value in zip(self.names, self.types, values, strict=True):
            where = f"key column {name!r}"
            if value is None:
                raise InvalidArgument(f"{where}: a key cannot be NULL")
            kept = coerce(type_, value, where)
            if kept != kept:
                raise InvalidArgument(f"{where}: a key cannot be NaN")
            checked.append(kept)
        return tuple(checked)

    def _values(self, key: object) -> Sequence[Value]:
        if isinstance(key, Mapping):
            missing = [name for name in self.names if name not in key]
            unknown = [name for name in key if name not in self.names]
            if missing or unknown:
                problem = f"no value for {missing[0]!r}" if missing else f"{unknown[0]!r} is not a key column"
                raise InvalidArgument(f"key {show(dict(key))}: {problem}; key columns are {', '.join(self.names)}")
            return [key[name] for name in self.names]
        if isinstance(key, tuple):
            if len(key) != len(self.names):
                raise InvalidArgument(
                    f"key {show(key)}: has {len(key)} parts, the key has {len(self.names)}: {', '.join(self.names)}"
                )
            return key
        if len(self.names) != 1:
            raise InvalidArgument(f"key {show(key)}: give a tuple or a dict of {', '.join(self.names)}")
        return (key,)

    def encode(self, key: Key) -> Row:
        """The row of a checked key."""
        encoded = b"".join([encode(value) for encode, value in zip(self._encoders, key, strict=True)])
        return Row(with_token(encoded)) if self.hashed else Row(encoded)

    def encode_prefix(self, values: Sequence[Value]) -> Row:
        """The bytes every row with these leading (checked, whole) components starts with. Not for hashed keys."""
        if self.hashed:
            raise InvalidArgument("rows of a hash-partitioned table are not ordered by key: no prefix can be scanned")
        if len(values) == len(self.types):
            return self.encode(tuple(values))
        return Row(b"".join([_encoder(type_, last=False)(v) for type_, v in zip(self.types, values, strict=False)]))

    def decode(self, row: Row) -> Key:
        """Raises InvalidArgument if the bytes are no row of this key: `encode(decode(row)) == row` for all others."""
        position = TOKEN_BYTES if self.hashed else 0
        values = []
        try:
            for decode in self._decoders:
                value, position = decode(row, position)
                values.append(value)
        except (struct.error, ValueError, OverflowError) as error:
            raise InvalidArgument(f"{show(bytes(row))} is no row of key ({', '.join(self.names)}): {error}") from None
        if position != len(row) or (self.hashed and with_token(row[TOKEN_BYTES:]) != row):
            raise InvalidArgument(f"{show(bytes(row))} is no row of key ({', '.join(self.names)})")
        return tuple(values)


def with_token(encoded: bytes) -> bytes:
    return xxhash.xxh64_digest(encoded, seed=TOKEN_SEED) + encoded


def escape(data: bytes) -> bytes:
    return data.replace(b"\x00", ESCAPED_ZERO) + END


_Encoder = Callable[[Any], bytes]
_Decoder = Callable[[bytes, int], tuple[Any, int]]


def _encoder(type_: t.KeyType, last: bool) -> _Encoder:
    match type_:
        case t.Bool():
            return lambda value: b"\x01" if value else b"\x00"
        case t.Int(bits):
            return _int_encoder(bits)
        case t.Float(bits):
            return _float_encoder(bits)
        case t.Decimal():
            ints, scale = _int_encoder(decimal_bits(type_)), type_.scale
            return lambda value: ints(unscaled(value, scale))
        case t.String():
            return (lambda value: value.encode()) if last else (lambda value: escape(value.encode()))
        case t.Binary():
            return (lambda value: value) if last else escape
        case t.Date():
            days = _int_encoder(32)
            return lambda value: days(days_of_date(value))
        case t.Timestamp() | t.TimestampNtz():
            micros = _int_encoder(64)
            return lambda value: micros(micros_of_datetime(value))


def _int_encoder(bits: int) -> _Encoder:
    offset = 1 << (bits - 1)
    if bits == 128:
        return lambda value: (value + offset).to_bytes(16, "big")
    pack = struct.Struct(_INT_FORMATS[bits]).pack
    return lambda value: pack(value + offset)


def _float_encoder(bits: int) -> _Encoder:
    pack_float = struct.Struct(_FLOAT_FORMATS[bits]).pack
    pack_bits = struct.Struct(_INT_FORMATS[bits]).pack
    sign, ones, nan = 1 << (bits - 1), (1 << bits) - 1, _NAN_BITS[bits]

    def encode(value: float) -> bytes:
        raw = nan if value != value else int.from_bytes(pack_float(value + 0.0), "big")
        return pack_bits(raw ^ ones if raw & sign else raw | sign)

    return encode


_UNSCALE = Context(prec=60)


def unscaled(value: PyDecimal, scale: int) -> int:
    return int(value.scaleb(scale, context=_UNSCALE))


def scaled(number: int, scale: int) -> PyDecimal:
    return PyDecimal(number).scaleb(-scale, context=_UNSCALE)


def _decoder(type_: t.KeyType, last: bool) -> _Decoder:
    match type_:
        case t.Bool():
            return _decode_bool
        case t.Int(bits):
            return _int_decoder(bits, int)
        case t.Float(bits):
            return _float_decoder(bits)
        case t.Decimal():
            return _decimal_decoder(type_)
        case t.String():
            return _bytes_decoder(last, lambda data: data.decode())
        case t.Binary():
            return _bytes_decoder(last, bytes)
        case t.Date():
            return _int_decoder(32, _day)
        case t.Timestamp():
            return _int_decoder(64, _moment)
        case t.TimestampNtz():
            return _int_decoder(64, _reading)


def _day(days: int) -> date:
    return date_of_days(days)


def _moment(micros: int) -> datetime:
    return datetime_of_micros(micros)


def _reading(micros: int) -> datetime:
    return ntz_of_micros(micros)


def _decode_bool(row: bytes, position: int) -> tuple[bool, int]:
    byte = row[position : position + 1]
    if byte not in (b"\x00", b"\x01"):
        raise ValueError(f"no bool at byte {position}")
    return byte == b"\x01", position + 1


def _fixed(row: bytes, position: int, width: int) -> bytes:
    data = row[position : position + width]
    if len(data) != width:
        raise ValueError(f"ends inside a value at byte {position}")
    return data


def _int_decoder(bits: int, of: Callable[[int], Any]) -> _Decoder:
    width, offset = bits // 8, 1 << (bits - 1)

    def decode(row: bytes, position: int) -> tuple[Any, int]:
        number = int.from_bytes(_fixed(row, position, width), "big") - offset
        return of(number), position + width

    return decode


def _decimal_decoder(type_: t.Decimal) -> _Decoder:
    limit, scale = 10**type_.precision, type_.scale

    def of(number: int) -> PyDecimal:
        if not -limit < number < limit:
            raise ValueError(f"more than {type_.precision} digits")
        return scaled(number, scale)

    return _int_decoder(decimal_bits(type_), of)


def _float_decoder(bits: int) -> _Decoder:
    width = bits // 8
    unpack = struct.Struct(_FLOAT_FORMATS[bits]).unpack
    sign, ones, nan = 1 << (bits - 1), (1 << bits) - 1, _NAN_BITS[bits]

    def decode(row: bytes, position: int) -> tuple[float, int]:
        raw = int.from_bytes(_fixed(row, position, width), "big")
        plain = raw ^ sign if raw & sign else raw ^ ones
        number = unpack(plain.to_bytes(width, "big"))[0]
        if plain == sign or (number != number and plain != nan):
            raise ValueError(f"a second form of {abs(number)} at byte {position}")
        return number, position + width

    return decode


def _bytes_decoder(last: bool, of: Callable[[bytes], Any]) -> _Decoder:
    def decode_last(row: bytes, position: int) -> tuple[Any, int]:
        return of(row[position:]), len(row)

    def decode_inner(row: bytes, position: int) -> tuple[Any, int]:
        end = row.find(END, position)
        if end < 0:
            raise ValueError(f"no end of the string that begins at byte {position}")
        plain = row[position:end].replace(ESCAPED_ZERO, b"\x00")
        after = end + len(END)
        if escape(plain) != row[position:after]:
            raise ValueError(f"bad escape in the string that begins at byte {position}")
        return of(plain), after

    return decode_last if last else decode_inner
