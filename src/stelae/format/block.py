"""Blocks: the mutations of one tablet as bytes, the same on the wire and in the log.

    version (1 byte) | encoding (1 byte) | body

A *small* body (encoding 1) is msgpack: the schema version and the mutations in the order they were said. A *columnar*
body (encoding 2, see `columnar`) is many puts or erasures of the same shape, as one Arrow record batch sorted by row.

Decoding takes any bytes: what is not a block raises InvalidArgument (or UnsupportedFormat, for a version this release
does not know), whatever it is. Sizes are limited before anything is allocated: a block has at most `block_bytes_max`
bytes; a small one at most `SMALL_MUTATIONS_MAX` mutations, and at most `NESTED_BYTES_MAX` bytes of arrays, structs and
maps, because a byte of those can become a hundred in memory. What is larger goes columnar.

Nearly all blocks are a single put. Those are written and read in one pass, without the general forms: `decode_single`
leaves everything else, and whatever is wrong, to the general way, which alone says what it is.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from stelae.format.columnar import ColumnarBlock, decode_columnar, encode_columnar
from stelae.format.packing import pack_value, unpack_extension
from stelae.model.errors import InvalidArgument, UnsupportedFormat
from stelae.model.ids import TS_MAX, TS_MIN, ColumnId, Micros, Row, SchemaVersion
from stelae.model.limits import DEFAULT_LIMITS, Limits
from stelae.model.mutation import Cell, Columns, Erase, EraseVersion, Mutation, Put, PutCell, WholeFamily, WholeRow
from stelae.model.values import Value

BLOCK_VERSION = 1
SMALL_MUTATIONS_MAX = 100_000
NESTED_BYTES_MAX = 1024 * 1024
_SMALL = 1
_COLUMNAR = 2


class SmallBlock(msgspec.Struct, frozen=True):
    schema_version: SchemaVersion
    mutations: tuple[Mutation, ...]


Block: TypeAlias = SmallBlock | ColumnarBlock


_Id: TypeAlias = Annotated[int, msgspec.Meta(gt=0, lt=2**31)]
_Ids: TypeAlias = Annotated[list[_Id], msgspec.Meta(max_length=SMALL_MUTATIONS_MAX)]


class _Put(msgspec.Struct, array_like=True, tag=1, forbid_unknown_fields=True):
    row: bytes
    columns: _Ids
    values: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=SMALL_MUTATIONS_MAX)]
    ts: int | None


class _PutDecoded(msgspec.Struct, array_like=True, tag=1, forbid_unknown_fields=True):
    """The same bytes with the values decoded at once: for blocks too small to hold too many nested values."""

    row: bytes
    columns: _Ids
    values: Annotated[list[Any], msgspec.Meta(max_length=SMALL_MUTATIONS_MAX)]
    ts: int | None


class _PutCell(msgspec.Struct, array_like=True, tag=2, forbid_unknown_fields=True):
    row: bytes
    family: str
    qualifier: str
    value: bytes
    ts: int | None


class _EraseRow(msgspec.Struct, array_like=True, tag=3, forbid_unknown_fields=True):
    row: bytes
    until: int | None


class _EraseFamily(msgspec.Struct, array_like=True, tag=4, forbid_unknown_fields=True):
    row: bytes
    family: str
    until: int | None


class _EraseColumns(msgspec.Struct, array_like=True, tag=5, forbid_unknown_fields=True):
    row: bytes
    columns: _Ids
    until: int | None


class _EraseCell(msgspec.Struct, array_like=True, tag=6, forbid_unknown_fields=True):
    row: bytes
    family: str
    qualifier: str
    until: int | None


class _EraseColumnsVersion(msgspec.Struct, array_like=True, tag=7, forbid_unknown_fields=True):
    row: bytes
    columns: _Ids
    ts: int


class _EraseCellVersion(msgspec.Struct, array_like=True, tag=8, forbid_unknown_fields=True):
    row: bytes
    family: str
    qualifier: str
    ts: int


_Other: TypeAlias = (
    _PutCell | _EraseRow | _EraseFamily | _EraseColumns | _EraseCell | _EraseColumnsVersion | _EraseCellVersion
)
_Stored: TypeAlias = _Put | _Other


class _SmallBody(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    schema_version: _Id
    mutations: Annotated[list[_Stored], msgspec.Meta(max_length=SMALL_MUTATIONS_MAX)]


class _TinyBody(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    schema_version: _Id
    mutations: Annotated[list[_PutDecoded | _Other], msgspec.Meta(max_length=SMALL_MUTATIONS_MAX)]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_SmallBody)
_TINY_DECODER = msgspec.msgpack.Decoder(_TinyBody, ext_hook=unpack_extension)
_VALUE_DECODER = msgspec.msgpack.Decoder(ext_hook=unpack_extension)

_SingleBody: TypeAlias = tuple[
    _Id,
    tuple[
        tuple[Literal[1], bytes, _Ids, Annotated[list[Any], msgspec.Meta(max_length=SMALL_MUTATIONS_MAX)], int | None]
    ],
]
_SINGLE_DECODER = msgspec.msgpack.Decoder(_SingleBody, ext_hook=unpack_extension)
_PLAIN = frozenset((type(None), bool, int, float, str, bytes))
_SMALL_HEAD = bytes((BLOCK_VERSION, _SMALL))
_ONE_PUT = b"\x91\x95\x01"
"""How one mutation, of five parts, of which the first says that it is a put, begins in msgpack."""
_ONE_PUT_PLACES_END = 11
"""Before it stand the head, the start of the body, and a schema version of one to five bytes."""

_VERSION_AT = {_SMALL_HEAD: 3, bytes((BLOCK_VERSION, _COLUMNAR)): 7}
"""Where the schema version stands, the first part of the body or of its header in msgpack: behind the head, the length
of the header if there is one, and the number of parts."""
_UINT_BYTES = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_FIXINT_END = 0x80

SinglePut: TypeAlias = tuple[SchemaVersion, Row, list[ColumnId], list[Value], Micros | None]


def encode_block(block: Block) -> bytes | memoryview:
    match block:
        case SmallBlock() if len(block.mutations) == 1 and isinstance(put := block.mutations[0], Put):
            return _encode_single(block.schema_version, put)
        case SmallBlock(schema_version, mutations):
            body = _SmallBody(schema_version, [_store(mutation) for mutation in mutations])
            return bytes((BLOCK_VERSION, _SMALL)) + _ENCODER.encode(body)
        case ColumnarBlock():
            return encode_columnar(block, bytes((BLOCK_VERSION, _COLUMNAR)))


def _encode_single(schema_version: SchemaVersion, put: Put) -> bytes:
    values = [value if type(value) in _PLAIN else pack_value(value) for _, value in put.values]
    stored = 1, put.row, [id_ for id_, _ in put.values], values, put.ts
    return _SMALL_HEAD + _ENCODER.encode((schema_version, (stored,)))


def decode_single(data: bytes | memoryview) -> SinglePut | None:
    """The only put of a block; None if it is any other block, or none at all. Each column has its value."""
    head = bytes(data[:_ONE_PUT_PLACES_END])
    if _ONE_PUT not in head or not head.startswith(_SMALL_HEAD) or len(data) > NESTED_BYTES_MAX:
        return None
    try:
        version, ((_, row, columns, values, ts),) = _SINGLE_DECODER.decode(data[2:])
    except (msgspec.MsgspecError, RecursionError, TypeError, ValueError, InvalidArgument):
        return None
    if len(columns) != len(values) or not (ts is None or TS_MIN <= ts <= TS_MAX):
        return None
    return version, row, columns, values, ts


def schema_version_of(data: bytes | memoryview) -> SchemaVersion:
    """The schema version that a block names, without decoding the block. InvalidArgument if it is none."""
    at = _VERSION_AT.get(bytes(data[:2]))
    if at is not None and at < len(data):
        length = _UINT_BYTES.get(data[at])
        if length is not None:
            return SchemaVersion(int.from_bytes(data[at + 1 : at + 1 + length], "big"))
        if data[at] < _FIXINT_END:
            return SchemaVersion(data[at])
    raise InvalidArgument(f"block: {len(data)} bytes that begin with no schema version")


def decode_block(data: bytes | memoryview, limits: Limits = DEFAULT_LIMITS) -> Block:
    if not 2 <= len(data) <= limits.block_bytes_max:
        raise InvalidArgument(f"block: {len(data)} bytes; a block has from 2 to {limits.block_bytes_max}")
    if data[0] != BLOCK_VERSION:
        raise UnsupportedFormat(f"block: this release reads format version {BLOCK_VERSION}, not {data[0]}")
    if data[1] == _SMALL:
        single = decode_single(data)
        if single is None:
            return _decode_small(data)
        version, row, columns, values, ts = single
        return SmallBlock(version, (Put(row, tuple(zip(columns, values)), ts),))  # noqa: B905
    if data[1] == _COLUMNAR:
        return decode_columnar(data, 2)
    raise InvalidArgument(f"block: no encoding {data[1]}")


def _decode_small(data: bytes | memoryview) -> SmallBlock:
    try:
        body: _SmallBody | _TinyBody
        if len(data) <= NESTED_BYTES_MAX:
            body = _TINY_DECODER.decode(memoryview(data)[2:])
        else:
            body = _DECODER.decode(memoryview(data)[2:])
            _check_nested(body)
        mutations = tuple(
            [_load_put(stored) if isinstance(stored, _PutDecoded) else _load(stored) for stored in body.mutations]
        )
    except (msgspec.MsgspecError, RecursionError, TypeError, ValueError) as error:
        raise InvalidArgument(f"block: {error}") from None
    return SmallBlock(SchemaVersion(body.schema_version), mutations)


def _check_nested(body: _SmallBody) -> None:
    """InvalidArgument if a small block has too many bytes of nested values. Called before any is decoded."""
    nested = sum(
        len(memoryview(value))
        for stored in body.mutations
        if isinstance(stored, _Put)
        for value in stored.values
        if memoryview(value)[0] in _CONTAINERS
    )
    if nested > NESTED_BYTES_MAX:
        raise InvalidArgument(f"block: {nested} bytes of nested values; at most {NESTED_BYTES_MAX} in a small block")


# The first bytes of msgpack's maps and arrays, and of its extensions, which may hold pairs.
_CONTAINERS = frozenset((*range(0x80, 0xA0), *range(0xDC, 0xE0), *range(0xC7, 0xCA), *range(0xD4, 0xD9)))


def _store(mutation: Mutation) -> _Stored:
    match mutation:
        case Put(row, values, ts):
            packed = [msgspec.Raw(_ENCODER.encode(pack_value(value))) for _, value in values]
            return _Put(row, [id_ for id_, _ in values], packed, ts)
        case PutCell(row, family, qualifier, value, ts):
            return _PutCell(row, family, qualifier, value, ts)
        case Erase(row, target, until):
            return _store_erase(row, target, until)
        case EraseVersion(row, target, ts):
            match target:
                case Columns(ids):
                    return _EraseColumnsVersion(row, list(ids), ts)
                case Cell(family, qualifier):
                    return _EraseCellVersion(row, family, qualifier, ts)


def _store_erase(row: Row, target: WholeRow | WholeFamily | Columns | Cell, until: Micros | None) -> _Stored:
    match target:
        case WholeRow():
            return _EraseRow(row, until)
        case WholeFamily(family):
            return _EraseFamily(row, family, until)
        case Columns(ids):
            return _EraseColumns(row, list(ids), until)
        case Cell(family, qualifier):
            return _EraseCell(row, family, qualifier, until)


def _load_put(stored: _PutDecoded) -> Put:
    """Apart from the others: this is the loop of every replay."""
    columns, values, ts = stored.columns, stored.values, stored.ts
    if len(columns) != len(values):
        raise InvalidArgument(f"block: {len(columns)} columns with {len(values)} values")
    pairs: tuple[tuple[ColumnId, Any], ...] = tuple(zip(columns, values))  # type: ignore[arg-type]  # noqa: B905
    return Put(stored.row, pairs, ts if ts is None else Micros(_in_time(ts)))  # type: ignore[arg-type]


def _load(stored: _Stored) -> Mutation:
    match stored:
        case _Put(row, columns, values, ts):
            if len(columns) != len(values):
                raise InvalidArgument(f"block: {len(columns)} columns with {len(values)} values")
            loaded = [_VALUE_DECODER.decode(value) for value in values]
            return Put(Row(row), tuple(zip(_ids(columns), loaded, strict=True)), _ts(ts))
        case _PutCell(row, family, qualifier, value, ts):
            return PutCell(Row(row), family, qualifier, value, _ts(ts))
        case _EraseRow(row, until):
            return Erase(Row(row), WholeRow(), _ts(until))
        case _EraseFamily(row, family, until):
            return Erase(Row(row), WholeFamily(family), _ts(until))
        case _EraseColumns(row, columns, until):
            return Erase(Row(row), Columns(_ids(columns)), _ts(until))
        case _EraseCell(row, family, qualifier, until):
            return Erase(Row(row), Cell(family, qualifier), _ts(until))
        case _EraseColumnsVersion(row, columns, ts):
            return EraseVersion(Row(row), Columns(_ids(columns)), Micros(_in_time(ts)))
        case _EraseCellVersion(row, family, qualifier, ts):
            return EraseVersion(Row(row), Cell(family, qualifier), Micros(_in_time(ts)))


def _ids(columns: list[int]) -> tuple[ColumnId, ...]:
    return tuple(columns)  # type: ignore[arg-type]


def _in_time(ts: int) -> int:
    if not TS_MIN <= ts <= TS_MAX:
        raise InvalidArgument(f"block: {ts} is no time")
    return ts


def _ts(ts: int | None) -> Micros | None:
    return None if ts is None else Micros(_in_time(ts))
