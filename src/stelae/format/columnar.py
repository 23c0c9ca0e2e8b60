"""Columnar blocks: one Arrow record batch in an uncompressed IPC stream behind a small header.

    header length (4 bytes, little-endian) | header (msgpack) | IPC stream

Hostile bytes are expected here. Arrow's own reader verifies the message framing; on top of that a batch is taken only
if it is plain (no compression, which would allocate what the sender claims; no dictionaries, no foreign types), alone
in its stream, and valid in full: offsets, sizes, UTF-8, null counts.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

import msgspec
import pyarrow as pa

from stelae.format import layout
from stelae.model.arrow import compute as pc
from stelae.model.arrow import from_arrow, to_arrow
from stelae.model.errors import InvalidArgument, InvalidSchema
from stelae.model.ids import TS_MAX, TS_MIN, SchemaVersion


class ColumnarOp(IntEnum):
    """What each row of a columnar block does. The numbers are stored."""

    PUT = 1
    PUT_CELLS = 2
    ERASE_ROWS = 3


class ColumnarBlock(msgspec.Struct, frozen=True):
    """One batch with the columns of `layout`. `nulls_written`: a null is NULL, not a column left untouched."""

    schema_version: SchemaVersion
    op: ColumnarOp
    nulls_written: bool
    batch: pa.RecordBatch


class _Header(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    schema_version: int
    op: int
    nulls_written: bool


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Header)


def encode_columnar(block: ColumnarBlock, prefix: bytes) -> bytes | memoryview:
    """Copied once, into a buffer of the right size."""
    header = _ENCODER.encode(_Header(block.schema_version, int(block.op), block.nulls_written))
    begin = prefix + struct.pack("<I", len(header)) + header
    counted = pa.MockOutputStream()
    _write_batch(counted, begin, block.batch)
    buffer = pa.allocate_buffer(counted.size())
    _write_batch(pa.FixedSizeBufferWriter(buffer), begin, block.batch)
    return memoryview(buffer).cast("B").toreadonly()


def _write_batch(sink: Any, begin: bytes, batch: pa.RecordBatch) -> None:
    sink.write(begin)
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)


def decode_columnar(data: bytes | memoryview, offset: int) -> ColumnarBlock:
    """The block whose header length stands at the offset."""
    begin = offset + 4
    end = begin + int.from_bytes(data[offset:begin], "little")
    try:
        header = _DECODER.decode(memoryview(data)[begin:end])
        op = ColumnarOp(header.op)
        batch = _read_batch(pa.py_buffer(data).slice(min(end, len(data))))
    except _NOT_A_BATCH as error:
        raise InvalidArgument(f"block: {error}") from None
    _check_columns(op, batch)
    if not 0 < header.schema_version < 2**31:
        raise InvalidArgument(f"block: {header.schema_version} is no schema version")
    return ColumnarBlock(SchemaVersion(header.schema_version), op, header.nulls_written, batch)


_NOT_A_BATCH = (
    msgspec.MsgspecError,
    pa.ArrowException,
    OSError,
    ValueError,
    KeyError,
    OverflowError,
    StopIteration,
    struct.error,
)


def _read_batch(body: pa.Buffer) -> pa.RecordBatch:
    """The only batch of an IPC stream, checked in full: offsets, sizes, UTF-8, null counts."""
    source = pa.BufferReader(body)
    _refuse_compression(source)
    source.seek(0)
    options = pa.ipc.IpcReadOptions(use_threads=False)
    with pa.ipc.open_stream(source, options=options) as stream:
        _check_plain(stream.schema)
        batch = stream.read_next_batch()
        batch.validate(full=True)
        try:
            stream.read_next_batch()
        except StopIteration:
            pass
        else:
            raise InvalidArgument("block: more than one batch")
    if batch.num_rows > 8 * body.size:
        raise InvalidArgument(f"block: {batch.num_rows} rows in {body.size} bytes")
    if source.tell() != body.size:
        raise InvalidArgument(f"block: {body.size - source.tell()} bytes follow the batch")
    return batch


def _refuse_compression(source: pa.BufferReader) -> None:
    """Compressed buffers name their own plain size; a hostile one would have it allocated before anything is checked.
    A batch whose buffers are plain is no larger in memory than its body."""
    for message in pa.ipc.MessageReader.open_stream(source):
        if message.type not in ("schema", "record batch"):
            raise InvalidArgument(f"block: a {message.type} message is not allowed")
        if message.type == "record batch" and _is_compressed(bytes(message.metadata)):
            raise InvalidArgument("block: compressed batches are not allowed")


def _is_compressed(metadata: bytes) -> bool:
    """Whether the flatbuffer of a record batch message has its compression field (the fourth of RecordBatch) set."""
    (root,) = struct.unpack_from("<I", metadata, 0)
    header = _table_field(metadata, root, 2)
    if header is None:
        raise InvalidArgument("block: a batch without a header")
    (step,) = struct.unpack_from("<I", metadata, header)
    return _table_field(metadata, header + step, 3) is not None


def _table_field(data: bytes, table: int, index: int) -> int | None:
    """Where field `index` of a flatbuffer table lies; None if it is not set."""
    (back,) = struct.unpack_from("<i", data, table)
    vtable = table - back
    (size,) = struct.unpack_from("<H", data, vtable)
    if 4 + 2 * index + 2 > size:
        return None
    (place,) = struct.unpack_from("<H", data, vtable + 4 + 2 * index)
    return table + place if place else None


def _check_plain(schema: pa.Schema) -> None:
    """Every column has exactly the Arrow form of a column type or of a system column."""
    for field in schema:
        if field.name in layout.SYSTEM_NAMES:
            plain = field.type == layout.system_field(field.name).type
        else:
            try:
                exact = to_arrow(from_arrow(field.type, field.name)) == field.type
                plain = exact and 0 < (layout.field_id(field) or 0) < 2**31
            except InvalidSchema as error:
                raise InvalidArgument(f"block: {error}") from None
        if not plain:
            raise InvalidArgument(f"block: column {field.name!r} of {field.type} is not one a table can have")
    ids = [layout.field_id(field) for field in schema if field.name not in layout.SYSTEM_NAMES]
    if len(set(schema.names)) != len(schema.names) or len(set(ids)) != len(ids):
        raise InvalidArgument("block: a column stands twice")
    if not ids and layout.ROW not in schema.names:
        raise InvalidArgument("block: no column says which rows it is about")


def _check_columns(op: ColumnarOp, batch: pa.RecordBatch) -> None:
    cells = {layout.FAMILY, layout.QUALIFIER, layout.VALUE}
    needed = cells if op is ColumnarOp.PUT_CELLS else set()
    allowed = needed | {layout.ROW, layout.TS}
    system = {name for name in batch.schema.names if name in layout.SYSTEM_NAMES}
    if not needed <= system or not system <= allowed:
        raise InvalidArgument(f"block: columns {sorted(system)} do not make a columnar {op.name.lower()}")
    for name in system:
        if batch.column(name).null_count:
            raise InvalidArgument(f"block: column {name!r} has a null")
    if layout.TS in system and batch.num_rows:
        times = pc.min_max(batch.column(layout.TS).view(pa.int64())).as_py()
        if times["min"] < TS_MIN or times["max"] > TS_MAX:
            raise InvalidArgument(f"block: times from {times['min']} to {times['max']} are outside the years 1 to 9999")
