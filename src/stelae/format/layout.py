"""How records lie in Arrow tables: the same columns in columnar blocks, in memory and in fragments.

User columns come under their own names, with the column id as field id; system columns start with an underscore,
which no user column may:

| column | what | where |
|---|---|---|
| _row | the encoded key | where it cannot be had cheaply from the key column: see `row_is_stored` |
| _family, _qualifier, _value | the cell | `cells` groups |
| _ts | the user's time | unless all records take it from elsewhere |
| _txn | the commit's hybrid time | unless all records take it from elsewhere |
| _kind | 0 put, 1 erase version, 2 erase column, 3 erase family, 4 erase row | unless all are puts |
| _mask | bit i (least first) of byte i/8: value column i was written, or is erased | where a null may be either |

One more bit of the mask, after those of the columns, is set in a put of the key alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stelae.model import types as t
from stelae.model.errors import InvalidArgument
from stelae.model.keys.scalar import KeyCodec
from stelae.model.keys.vector import encode_arrays

ROW = "_row"
FAMILY = "_family"
QUALIFIER = "_qualifier"
VALUE = "_value"
TS = "_ts"
TXN = "_txn"
KIND = "_kind"
MASK = "_mask"

_FIELD_ID = b"PARQUET:field_id"
_SYSTEM_ID_BASE = 2_147_000_000

_TYPES: Mapping[str, pa.DataType] = {
    ROW: pa.binary(),
    FAMILY: pa.string(),
    QUALIFIER: pa.string(),
    VALUE: pa.binary(),
    TS: pa.timestamp("us", "UTC"),
    TXN: pa.int64(),
    KIND: pa.int8(),
    MASK: pa.binary(),
}
SYSTEM_NAMES = tuple(_TYPES)


def system_field(name: str) -> pa.Field:
    field_id = _SYSTEM_ID_BASE + SYSTEM_NAMES.index(name)
    return pa.field(name, _TYPES[name], nullable=name == VALUE, metadata={_FIELD_ID: str(field_id)})


def user_field(name: str, type_: pa.DataType, id_: int, nullable: bool) -> pa.Field:
    return pa.field(name, type_, nullable=nullable, metadata={_FIELD_ID: str(id_)})


def field_id(field: pa.Field) -> int | None:
    text = (field.metadata or {}).get(_FIELD_ID, b"")
    return int(text) if text.isdigit() and len(text) < 12 else None


def row_is_stored(codec: KeyCodec) -> bool:
    """Whether the row has a column of its own. A single key column whose Parquet bytes order and hash as the row does
    is enough by itself; any other key has its row beside it, so that nobody encodes it again to merge or to probe."""
    if codec.hashed or len(codec.types) > 1:
        return True
    match codec.types[0]:
        case t.String() | t.Binary() | t.Int() | t.Date() | t.Timestamp() | t.TimestampNtz():
            return False
        case t.Bool() | t.Float() | t.Decimal():
            return True


def rows_of(codec: KeyCodec, batch: pa.RecordBatch) -> pa.Array:
    """The encoded rows of a batch, from `_row` or from the key column."""
    if row_is_stored(codec):
        return batch.column(ROW)
    return encode_arrays(codec, [batch.column(name) for name in codec.names])


def mask_bytes(columns: int) -> int:
    """How long the masks of records of so many columns are."""
    return columns // 8 + 1


def flags_of(written: npt.NDArray[np.bool_] | bool, count: int) -> npt.NDArray[np.bool_]:
    """Which of so many records write a column: said of each, or of all at once."""
    return np.full(count, written, np.bool_) if isinstance(written, bool) else written


def masks_of(flags: Sequence[npt.NDArray[np.bool_]], count: int, columns: int) -> pa.Array:
    """The masks of so many records of so many columns: of each column its flags, and perhaps behind them those of puts
    of the key alone."""
    width = mask_bytes(columns)
    bits = np.zeros((count, 8 * width), np.uint8)
    for place, each in enumerate(flags):
        bits[:, place] = each
    packed = np.packbits(bits, axis=1, bitorder="little")
    offsets = (np.arange(count + 1) * width).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(packed)])


def check_batch(batch: pa.RecordBatch, expected: pa.Schema, what: str) -> None:
    """Names, order and types are exactly as expected, and nothing is null that may not be."""
    if batch.schema.names != expected.names or batch.schema.types != expected.types:
        raise InvalidArgument(f"{what}: columns are {batch.schema.names}, expected {expected.names} of the same types")
    for field, column in zip(expected, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise InvalidArgument(f"{what}: column {field.name!r} has a null")
