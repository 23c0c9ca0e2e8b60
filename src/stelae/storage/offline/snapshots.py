"""What a held tablet shows at a snapshot, written as the files of a load for another table, or the same one later.

Everything is judged at the snapshot: what was erased or purged by then is left out, and so are the erasures themselves;
what is left keeps its own times, so histories survive. Of two versions with one time only the later is left: they
differed by their txn alone, and all of a load has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from stelae.format.fragment.footer import FragmentFile, FragmentSpec, Nulls, spec_of
from stelae.model.hybrid import micros_of
from stelae.model.ids import GroupId, TableId, Txn
from stelae.model.ranges import RowRange
from stelae.model.schema import ColumnsGroup, Group
from stelae.ports.blobs import BlobStore
from stelae.storage.files.fragments import Fragments
from stelae.storage.files.writing import everything, shape_of, write_fragment
from stelae.storage.merge.order import Flags
from stelae.storage.merge.pick import first_of_each, gathered
from stelae.storage.merge.records import Keeping, merged_records
from stelae.storage.merge.slab import Slab, SlabColumn
from stelae.storage.offline.tablets import HeldTablet
from stelae.storage.read.markers import MarkersScan
from stelae.storage.tablet.parts import LEFT_OVER


class SnapshotPart(msgspec.Struct, frozen=True):
    """Some rows and one group of a tablet at a snapshot. The tablet is read as the schema of `table`, which the files
    are for."""

    tablet: HeldTablet
    group: GroupId
    rows: RowRange
    at: Txn
    table: TableId


def write_snapshot(
    part: SnapshotPart, fragments: Fragments, blobs: BlobStore, new_name: Callable[[], str]
) -> list[FragmentFile]:
    """Write what the part shows to files without a txn of their own, as loads want them; `new_name` names each."""
    schema = part.tablet.shown_schema
    group = schema.group(part.group)
    sources = [_visible(part, group, fragments)]
    if part.tablet.state.refs(LEFT_OVER) and group.id == schema.existence_group.id:
        sources.append(_left_over(part, group, fragments))
    written = [write_fragment(blobs, new_name(), spec, group, slabs) for spec, slabs in sources]
    return [file for file in written if file is not None]


def _visible(part: SnapshotPart, group: Group, fragments: Fragments) -> tuple[FragmentSpec, Iterator[Slab]]:
    """What the group shows at the snapshot, all versions of it. Policies are those of the schema it was written
    under."""
    state, at = part.tablet.state, part.at
    floor = state.floor_at(at)
    refs = [ref for ref in state.refs(group.id) if ref.file is not None and ref.rows.overlaps(part.rows)]
    policy = next((g.purging_at(at) for g in part.tablet.schema.groups if g.id == group.id), None)
    keeping = Keeping(at, floor, is_rooted=True, policy=policy)
    slabs = merged_records(refs, fragments, part.rows, everything(part.tablet.shown_schema, group), keeping)
    is_complete = shape_of(refs, group, fragments).is_complete and isinstance(group, ColumnsGroup)
    return _spec(part, group, is_complete=is_complete), map(once_each_time, (s.within(floor, at) for s in slabs))


def _spec(part: SnapshotPart, group: Group, *, is_complete: bool) -> FragmentSpec:
    nulls: Nulls = "written" if is_complete else "masked"
    return spec_of(part.table, part.tablet.shown_schema, group, nulls=nulls, has_kind=False, has_txn=False)


def once_each_time(slab: Slab) -> Slab:
    """Of the puts of one key at one time, one record: each column as the latest txn wrote it. They are in order, the
    latest first, and hold no erasures."""
    slab = replace(slab, kinds=None)
    if len(slab) < 2:
        return slab
    begins = np.ones(len(slab), np.bool_)
    begins[1:] = (slab.ts[1:] != slab.ts[:-1]) | _differs(slab.rows)
    for name in slab.cell or ():
        begins[1:] |= _differs(name)
    if begins.all():
        return slab
    ids = np.cumsum(begins, dtype=np.int64)
    starts = np.flatnonzero(begins)
    columns = []
    for column in slab.columns:
        first = first_of_each(ids, column.flags(len(slab)), len(starts))
        values = None if column.values is None else gathered(column.values, column.values.type, first)
        columns.append(SlabColumn(values, first >= 0))
    return replace(slab.take(starts), columns=tuple(columns))


def _differs(values: pa.Array) -> Flags:
    """Whether each is another than the one before it."""
    codes = values.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    flags: Flags = codes[1:] != codes[:-1]
    return flags


def _left_over(part: SnapshotPart, group: Group, fragments: Fragments) -> tuple[FragmentSpec, Iterator[Slab]]:
    """Rows that only exist, by puts in files of another kind than the group that says so now; at the snapshot's own
    time."""
    state = part.tablet.state
    kept, erasing = state.refs(LEFT_OVER), state.refs(group.id)
    asking = part.tablet.asking(part.at)
    options = next((g.options for g in part.tablet.schema.groups if g.id == group.id), group.options)
    found = MarkersScan(kept, erasing, fragments, part.rows, asking, options).chunks()
    return _spec(part, group, is_complete=False), (_markers(group, chunk.rows, part.at) for chunk in found)


def _markers(group: Group, rows: pa.Array, at: Txn) -> Slab:
    """Puts of these keys alone."""
    count = len(rows)
    ts, txn = np.full(count, micros_of(at), np.int64), np.full(count, at, np.int64)
    if isinstance(group, ColumnsGroup):
        unwritten = tuple(SlabColumn(None, written=False) for _ in group.columns)
        return Slab(rows, ts, txn, None, (*unwritten, SlabColumn(None, written=True)))
    nothing = pa.array([b""] * count, pa.binary())
    return Slab(rows, ts, txn, None, (SlabColumn(pa.nulls(count, pa.binary()), written=True),), (nothing, nothing))
