"""What lies in the bodies of requests and answers, as bytes and back: values, rows, tables, scans, blocks, batches.

| what | bytes |
|---|---|
| values, versions, metrics | msgpack, column values as in `format.packing`, so each comes back as it was |
| values of a row | the snapshot's txn (8 bytes, little-endian) and, of a row that appears, its msgpack |
| values of many rows | the snapshot's txn; of each its length (4 bytes; all ones: no such row) and its msgpack |
| tables and schemas | as the catalog keeps them |
| blocks | as in the log, one after the other |
| batches of a scan | Arrow IPC messages: the schema once, then batches of bounded size |

Bytes that are not what they should be raise MessageRefused. What the owner of a store sends is trusted in so far as
Arrow's buffers are not looked through again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from stelae.catalog.objects import Table, TableProperties
from stelae.catalog.serial.version1 import CATALOG_SERIALIZERS
from stelae.format.fragment.footer import FragmentFile
from stelae.format.packing import pack_value, unpack_extension
from stelae.model.errors import InvalidArgument
from stelae.model.ids import Micros, Row, SchemaVersion, TableId, Txn
from stelae.model.limits import DEFAULT_LIMITS
from stelae.model.predicate.parser import parse
from stelae.model.predicate.plan import ScanPredicate, plan
from stelae.model.predicate.selectors import ColumnSelector, Selectors
from stelae.model.ranges import EVERYTHING, RangeSet, RowRange
from stelae.model.schema import TableSchema
from stelae.model.schema_checks import check_schema
from stelae.service.backend import Values
from stelae.service.messages import ROWS_MAX, CreateMessage, RowBytes, ScanMessage
from stelae.service.scans import ScanAsk
from stelae.service.tables import CreateAsk, TableInfo
from stelae.service.tickets import LoadedFile
from stelae.storage.read.asking import Version
from stelae.wire.faults import MessageRefused
from stelae.wire.messages import UNFIT

PIECE_BYTES = 4 * 1024 * 1024
"""Of an answer that comes in many frames, and of a batch of a scan unless a single row has more."""

RANGES_MAX = 1_000_000
FILES_MAX = 1_000_000
SCHEMA_BYTES_MAX = 4 * 1024 * 1024
_NO_ROW = 2**32 - 1
_ALIGNED_BYTES = 8

T = TypeVar("T")


class _CreateBody(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    schema: Annotated[bytes, msgspec.Meta(max_length=SCHEMA_BYTES_MAX)]
    cuts: Annotated[tuple[RowBytes, ...], msgspec.Meta(max_length=DEFAULT_LIMITS.tablets_max)]
    properties: Annotated[bytes, msgspec.Meta(max_length=64 * 1024)] | None


_Range = tuple[RowBytes, RowBytes | None]

_ENCODER = msgspec.msgpack.Encoder()
_VALUES = msgspec.msgpack.Decoder(dict[str, Any], ext_hook=unpack_extension)
_HISTORY = msgspec.msgpack.Decoder(dict[str, list[tuple[int, int, Any]]] | None, ext_hook=unpack_extension)
_ROWS = msgspec.msgpack.Decoder(Annotated[list[RowBytes], msgspec.Meta(max_length=ROWS_MAX)])
_CREATES = msgspec.msgpack.Decoder(_CreateBody)
_RANGES = msgspec.msgpack.Decoder(Annotated[list[_Range], msgspec.Meta(max_length=RANGES_MAX)])


Bytes = bytes | memoryview


class Codec(NamedTuple, Generic[T]):
    """A result as bytes, and back; what is no such bytes raises MessageRefused."""

    encode: Callable[[T], bytes]
    decode: Callable[[Bytes], T]


def read_as(what: str, decode: Callable[[Any], T], data: Bytes) -> T:
    """What the bytes hold; MessageRefused if they are something else."""
    try:
        return decode(data)
    except UNFIT as error:
        raise MessageRefused(f"not {what}: {error}") from None


def codec_of(what: str, kind: Any) -> Codec[Any]:
    """Plain values that msgpack carries as they are."""
    decoder = msgspec.msgpack.Decoder(kind)
    return Codec(_ENCODER.encode, lambda data: read_as(what, decoder.decode, data))


def values_bytes(values: Mapping[str, Any]) -> bytes:
    return _ENCODER.encode({name: pack_value(value) for name, value in values.items()})


def values_from(data: Bytes) -> Values:
    return read_as("values", _VALUES.decode, data)


def found_bytes(found: tuple[Txn, Values | None]) -> bytes:
    """The snapshot, and behind it nothing at all for a row that does not exist."""
    txn, values = found
    return _txn_bytes(txn) if values is None else _txn_bytes(txn) + values_bytes(values)


def found_from(data: Bytes) -> tuple[Txn, Values | None]:
    txn, rest = _txn_from(data)
    return txn, values_from(rest) if rest else None


def _txn_bytes(txn: Txn) -> bytes:
    return txn.to_bytes(8, "little")


def _txn_from(data: Bytes) -> tuple[Txn, memoryview]:
    if len(data) < 8:
        raise MessageRefused(f"not a snapshot: {len(data)} bytes")
    whole = memoryview(data)
    return Txn(int.from_bytes(whole[:8], "little")), whole[8:]


def history_bytes(found: Mapping[str, Sequence[Version]] | None) -> bytes:
    if found is None:
        return _ENCODER.encode(None)
    return _ENCODER.encode(
        {
            name: [(version.ts, version.txn, pack_value(version.value)) for version in versions]
            for name, versions in found.items()
        }
    )


def history_from(data: Bytes) -> dict[str, tuple[Version, ...]] | None:
    found = read_as("versions", _HISTORY.decode, data)
    if found is None:
        return None
    return {
        name: tuple([Version(Micros(ts), Txn(txn), value) for ts, txn, value in versions])
        for name, versions in found.items()
    }


def rows_bytes(rows: Sequence[Row]) -> bytes:
    return _ENCODER.encode(rows)


def rows_from(data: Bytes) -> list[Row]:
    return read_as("rows", _ROWS.decode, data)


def many_bytes(found: tuple[Txn, Iterable[Values | None]]) -> bytes:
    txn, rows = found
    parts = [_txn_bytes(txn)]
    for values in rows:
        if values is None:
            parts.append(_NO_ROW.to_bytes(4, "little"))
            continue
        data = values_bytes(values)
        if len(data) >= _NO_ROW:
            raise InvalidArgument(f"a row of {len(data)} bytes cannot be sent whole; ask for fewer columns")
        parts += (len(data).to_bytes(4, "little"), data)
    return b"".join(parts)


def many_from(data: Bytes) -> tuple[Txn, list[Values | None]]:
    (txn, rest), found = _txn_from(data), list[Values | None]()
    while len(rest) >= 4:
        size = int.from_bytes(rest[:4], "little")
        if size == _NO_ROW:
            found.append(None)
            rest = rest[4:]
            continue
        if size > len(rest) - 4:
            break
        found.append(values_from(rest[4 : 4 + size]))
        rest = rest[4 + size :]
    if rest:
        raise MessageRefused(f"values of {len(found)} rows, and {len(rest)} bytes that are none")
    return txn, found


def pieces(data: Bytes) -> Iterator[memoryview]:
    """The same bytes in pieces of a size that can be sent."""
    view = memoryview(data)
    for at in range(0, len(view), PIECE_BYTES):
        yield view[at : at + PIECE_BYTES]


def sent_columns(columns: Selectors) -> tuple[tuple[str, bool], ...]:
    return tuple([(each.text, each.is_prefix) for each in columns])


def taken_columns(columns: tuple[tuple[str, bool], ...]) -> Selectors:
    return tuple([ColumnSelector(text, is_prefix) for text, is_prefix in columns])


# -- tables


class _InfoBody(msgspec.Struct, array_like=True):
    name: str
    zone: str
    table: bytes


_INFOS = msgspec.msgpack.Decoder(_InfoBody)


def info_bytes(info: TableInfo) -> bytes:
    return _ENCODER.encode(_InfoBody(info.name, info.zone, CATALOG_SERIALIZERS.encode(info.table)))


def info_from(data: Bytes) -> TableInfo:
    body = read_as("a table", _INFOS.decode, data)
    return TableInfo(_object(Table, body.table), body.name, body.zone)


def _object(kind: type[T], data: bytes) -> T:
    value = read_as(f"a {kind.__name__}", CATALOG_SERIALIZERS.decode, data)
    if not isinstance(value, kind):
        raise MessageRefused(f"not a {kind.__name__}: a {type(value).__name__}")
    return value


def create_parts(ask: CreateAsk) -> tuple[CreateMessage, bytes]:
    encode = CATALOG_SERIALIZERS.encode
    properties = None if ask.properties is None else encode(ask.properties)
    body = _ENCODER.encode(_CreateBody(encode(ask.schema), ask.cuts, properties))
    return CreateMessage(ask.name, ask.zone, ask.if_not_exists), body


def create_from(message: CreateMessage, data: Bytes) -> CreateAsk:
    body = read_as("a new table", _CREATES.decode, data)
    return CreateAsk(
        message.name,
        check_schema(_object(TableSchema, body.schema)),
        tuple([Row(cut) for cut in body.cuts]),
        message.zone,
        None if body.properties is None else _object(TableProperties, body.properties),
        message.if_not_exists,
    )


# -- scans


def scan_parts(table: TableId, ask: ScanAsk) -> tuple[ScanMessage, bytes]:
    """Rows go by themselves: there may be very many of them, and text is slow to read."""
    rest = replace(ask.predicate, rows=EVERYTHING)
    text = None if rest == ScanPredicate() else rest.to_text()
    rows = _ENCODER.encode([(each.start, each.stop) for each in ask.predicate.rows])
    version = None if ask.binding is None else ask.binding.schema.version
    return ScanMessage(table, text, ask.at, ask.reverse, ask.limit, ask.having, version), rows


def scan_from(message: ScanMessage, data: Bytes) -> ScanAsk:
    ranges = read_as("ranges of rows", _RANGES.decode, data)
    try:
        rows = RangeSet(tuple([RowRange(start, stop) for start, stop in ranges]))
    except InvalidArgument:
        raise MessageRefused("ranges of rows that are not sorted and apart") from None
    said = ScanPredicate() if message.text is None else plan(parse(message.text))
    predicate = replace(said, rows=said.rows.intersect(rows))
    version = None if message.schema is None else SchemaVersion(message.schema)
    return ScanAsk(
        predicate, Txn(message.at), message.reverse, message.limit, having=message.having, schema_version=version
    )


def schema_bytes(schema: pa.Schema) -> memoryview:
    return memoryview(schema.serialize())


def batch_slices(batch: pa.RecordBatch) -> Iterator[memoryview]:
    """The batch in slices that are small enough to be sent, but for single rows that are not."""
    size, rows = batch.nbytes, batch.num_rows
    step = max(1, rows * PIECE_BYTES // (2 * size)) if size > PIECE_BYTES else max(1, rows)
    for start in range(0, max(1, rows), step):
        part = batch if step >= rows else batch.slice(start, step)
        yield memoryview(part.serialize())


def schema_from(data: Bytes) -> pa.Schema:
    return _arrow(lambda: pa.ipc.read_schema(pa.py_buffer(data)))


def batch_from(schema: pa.Schema, data: Bytes) -> pa.RecordBatch:
    """Shares the memory of the data, unless that lies askew."""
    buffer = pa.py_buffer(data)
    if buffer.address % _ALIGNED_BYTES:
        buffer = pa.py_buffer(bytes(data))
    return _arrow(lambda: pa.ipc.read_record_batch(buffer, schema))


def _arrow(read: Callable[[], T]) -> T:
    try:
        return read()
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise MessageRefused(f"not Arrow IPC: {error}") from None


# -- blocks


_SHARED_BYTES_MIN = 64 * 1024


def blocks_apart(sizes: tuple[int, ...], body: Bytes) -> list[Bytes]:
    """Large blocks share the body's memory, which stays as long as they do; small ones do not keep all of it."""
    if sum(sizes) != len(body):
        raise MessageRefused(f"blocks of {sum(sizes)} bytes in a body of {len(body)}")
    blocks: list[Bytes] = []
    at = 0
    for size in sizes:
        block = body[at : at + size]
        blocks.append(block if size >= _SHARED_BYTES_MIN else bytes(block))
        at += size
    return blocks


# -- files

_FILES = msgspec.msgpack.Decoder(Annotated[tuple[LoadedFile, ...], msgspec.Meta(max_length=FILES_MAX)])
_FILE = msgspec.msgpack.Decoder(FragmentFile | None)


def files_bytes(files: Sequence[LoadedFile]) -> bytes:
    return _ENCODER.encode(files)


def files_from(data: Bytes) -> tuple[LoadedFile, ...]:
    return read_as("files", _FILES.decode, data)


def file_bytes(file: FragmentFile | None) -> bytes:
    return _ENCODER.encode(file)


def file_from(data: Bytes) -> FragmentFile | None:
    return read_as("a file", _FILE.decode, data)
