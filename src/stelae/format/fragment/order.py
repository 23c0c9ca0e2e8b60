"""What a batch must hold to be written: records that mean something, in the order that readers rely on.

Records are ordered by row, then by cell (family, qualifier) in `cells` groups, then by time and txn, newest first, then
by kind. No two are equal in all of these.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from stelae.format import layout
from stelae.format.fragment.footer import FragmentSpec
from stelae.model.errors import InvalidArgument
from stelae.model.hybrid import TXN_MAX
from stelae.model.keys.scalar import KeyCodec
from stelae.model.record import Kind


def check_records(spec: FragmentSpec, codec: KeyCodec, batch: pa.RecordBatch, rows: pa.Array) -> None:
    """Kinds, masks and txns are in range; at both ends of the batch the row is that of the key."""
    if spec.has_kind:
        _check_range(batch, layout.KIND, 0, max(Kind))
    if spec.has_txn:
        _check_range(batch, layout.TXN, 0, TXN_MAX)
    if layout.MASK in batch.schema.names:
        width = -(-len(spec.columns) // 8)
        lengths = pc.min_max(pc.binary_length(batch.column(layout.MASK))).as_py()
        if (lengths["min"], lengths["max"]) != (width, width):
            raise InvalidArgument(f"fragment: masks of {lengths['min']} to {lengths['max']} bytes instead of {width}")
    if layout.row_is_stored(codec):
        for place in (0, batch.num_rows - 1):
            key = codec.check(tuple(batch.column(name)[place].as_py() for name in codec.names))
            if codec.encode(key) != rows[place].as_py():
                raise InvalidArgument(f"fragment: the row of record {place} of a batch is not that of its key {key}")


def _check_range(batch: pa.RecordBatch, name: str, low: int, high: int) -> None:
    found = pc.min_max(batch.column(name)).as_py()
    if found["min"] < low or found["max"] > high:
        raise InvalidArgument(f"fragment: {name} from {found['min']} to {found['max']} is not from {low} to {high}")


def check_order(spec: FragmentSpec, batch: pa.RecordBatch, rows: pa.Array, before: pa.RecordBatch | None) -> None:
    """The batch is in order, and follows the record before it, given as a batch of one."""
    if before is not None:
        codec = spec.codec()
        joined = pa.concat_batches([before, batch.slice(0, 1)])
        place = _first_unordered(spec, joined, layout.rows_of(codec, joined))
        if place is not None:
            raise InvalidArgument("fragment: the first record of a batch does not follow the last one before it")
    place = _first_unordered(spec, batch, rows)
    if place is not None:
        raise InvalidArgument(f"fragment: records {place} and {place + 1} of a batch are not in order")


def _first_unordered(spec: FragmentSpec, batch: pa.RecordBatch, rows: pa.Array) -> int | None:
    last = batch.num_rows - 1
    if last < 1:
        return None
    before, after = rows.slice(0, last), rows.slice(1)
    ordered = pc.less(before, after)
    if not pc.all(ordered).as_py():
        same = pc.equal(before, after)
        ordered = pc.or_(ordered, pc.and_(same, _ordered_within_row(spec, batch, last)))
    return None if pc.all(ordered).as_py() else int(pc.index(ordered, pa.scalar(False)).as_py())


def _ordered_within_row(spec: FragmentSpec, batch: pa.RecordBatch, last: int) -> pa.Array:
    """Built from the last thing that counts to the first."""
    ordered = pa.array([False] * last)
    fields = [
        (layout.KIND, spec.has_kind, True),
        (layout.TXN, spec.has_txn, False),
        (layout.TS, spec.has_ts, False),
        (layout.QUALIFIER, spec.kind == "cells", True),
        (layout.FAMILY, spec.kind == "cells", True),
    ]
    for name, there, ascending in fields:
        if not there:
            continue
        column = batch.column(name)
        values = column.cast(pa.binary()) if pa.types.is_string(column.type) else column
        before, after = values.slice(0, last), values.slice(1)
        ahead = pc.less(before, after) if ascending else pc.greater(before, after)
        ordered = pc.or_(ahead, pc.and_(pc.equal(before, after), ordered))
    return ordered
