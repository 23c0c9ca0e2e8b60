"""What a batch must hold to be written: records that mean something, in the order that readers rely on.

Records are ordered by row, then by cell (family, qualifier) in `cells` groups, then by time and txn, newest first, then
by kind. No two are equal in all of these.
"""

from __future__ import annotations

import pyarrow as pa

from stelae.format import layout
from stelae.format.fragment.footer import FragmentSpec
from stelae.model.arrow import compute as pc
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
        width = layout.mask_bytes(len(spec.columns))
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


def check_order(spec: FragmentSpec, batch: pa.RecordBatch, rows: pa.Array, before: pa.RecordBatch | None) -> int:
    """The batch is in order, and follows the record before it, given as a batch of one. How many rows begin in it."""
    begun = 1
    if before is not None:
        codec = spec.codec()
        joined = pa.concat_batches([before, batch.slice(0, 1)])
        place, begun = _first_unordered(spec, joined, layout.rows_of(codec, joined))
        if place is not None:
            raise InvalidArgument("fragment: the first record of a batch does not follow the last one before it")
    place, inside = _first_unordered(spec, batch, rows)
    if place is not None:
        raise InvalidArgument(f"fragment: records {place} and {place + 1} of a batch are not in order")
    return begun + inside


def _first_unordered(spec: FragmentSpec, batch: pa.RecordBatch, rows: pa.Array) -> tuple[int | None, int]:
    """Where the order is broken first, and how often the row changes."""
    last = batch.num_rows - 1
    if last < 1:
        return None, 0
    before, after = rows.slice(0, last), rows.slice(1)
    ordered = pc.less(before, after)
    changes = int(ordered.true_count)
    if changes < last:
        same = pc.equal(before, after)
        ordered = pc.or_(ordered, pc.and_(same, _ordered_within_row(spec, batch, last)))
    place = None if pc.all(ordered).as_py() else int(pc.index(ordered, pa.scalar(False)).as_py())
    return place, changes


def count_markers(spec: FragmentSpec, batch: pa.RecordBatch) -> int:
    """Puts of a key alone."""
    if spec.kind == "cells":
        alone = pc.equal(batch.column(layout.FAMILY), "")
    elif spec.nulls == "masked":
        count = len(spec.columns)
        last = pc.binary_slice(batch.column(layout.MASK), count // 8, count // 8 + 1)
        alone = pc.is_in(last, pa.array([bytes([b]) for b in range(256) if b >> (count % 8) & 1], pa.binary()))
    elif spec.nulls == "unwritten":
        alone = pa.array([True] * batch.num_rows)
        for column in spec.columns:
            alone = pc.and_(alone, pc.is_null(batch.column(column.name)))
    else:
        return 0 if spec.columns else batch.num_rows
    if spec.has_kind:
        alone = pc.and_(alone, pc.equal(batch.column(layout.KIND), int(Kind.PUT)))
    return int(alone.true_count)


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
