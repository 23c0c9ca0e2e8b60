"""Records of many sources as one sorted run, each key once: what flushes and compactions write.

Nothing that a snapshot at or after the horizon can see is left out. Below the floor of that snapshot nothing is seen
any more, and goes always. Where all older records of the group are among the sources (*rooted*), what is hidden or
purged at the horizon is so for all later snapshots, and goes; with it every erasure up to the horizon, since whatever
it hid is gone. Elsewhere erasures and what they hide stay: an older version outside may need them.

Records with the same key, ts, txn and kind are parts of one: they came from different sources after columns moved, or
from the log after a file already held them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from stelae.model.hybrid import TXN_MIN, micros_of
from stelae.model.ids import Txn
from stelae.model.purge import GroupPurging
from stelae.model.ranges import RowRange
from stelae.model.record import ROW_EXISTS, Kind
from stelae.storage.files.fragments import Fragments
from stelae.storage.merge.alive import Judging, alive
from stelae.storage.merge.order import Flags, Ints, Ordering
from stelae.storage.merge.pick import first_of_each, gathered, in_order
from stelae.storage.merge.select import Wanted, WantedCells, WantedColumns
from stelae.storage.merge.slab import Slab, SlabColumn
from stelae.storage.read.scans.cells import cell_slabs
from stelae.storage.read.scans.columns import window_slabs
from stelae.storage.read.scans.windows import ScanWindow, plan_windows, run_ahead
from stelae.storage.tablet.state import Ref


class Keeping(msgspec.Struct, frozen=True):
    """What may go: by default nothing. `policy`: as it was at the horizon."""

    horizon: Txn = TXN_MIN
    floor: Txn = TXN_MIN
    is_rooted: bool = False
    policy: GroupPurging = None

    @property
    def purges_below(self) -> Txn:
        """Snapshots before it may lack something afterwards; those at it or later see all that they did."""
        return max(self.horizon, self.floor) if self.is_rooted else self.floor


def merged_records(
    refs: Sequence[Ref], fragments: Fragments, rows: RowRange, wanted: Wanted, keeping: Keeping
) -> Iterator[Slab]:
    """Window by window, in order. Slabs may be empty."""
    windows = plan_windows(refs, fragments, rows)
    renamed = any(ref.naming.renamed for ref in refs)
    exists = isinstance(wanted, WantedColumns) and ROW_EXISTS in wanted.ids

    def merged(window: ScanWindow) -> Slab | None:
        if isinstance(wanted, WantedCells):
            slabs = cell_slabs(window, wanted, keep=False)
        else:
            slabs = window_slabs(window, wanted, keep=False)
        slabs = [slab for slab in slabs if len(slab)]
        return _kept(slabs, keeping, is_sorted=not renamed, exists=exists) if slabs else None

    for slab in run_ahead(windows, merged, fragments.reading):
        if slab is not None:
            yield slab


def _kept(slabs: Sequence[Slab], keeping: Keeping, *, is_sorted: bool, exists: bool) -> Slab:
    ordered = in_order(slabs, is_sorted=is_sorted)
    slab, ordering = ordered.slab, ordered.ordering
    if ordering.positions is not None:
        slab = slab.take(ordering.positions)
    begins = _begins(slab, ordering)
    flags = _keep_flags(slab, ordering, keeping, exists=exists)
    if flags is None and begins.all() and not _any_bare(slab):
        return slab
    whole = np.zeros(len(slab), np.bool_)
    if slab.kinds is not None:
        whole = (slab.kinds == Kind.ERASE_ROW) & (slab.txn >= keeping.floor)
        if keeping.is_rooted:
            whole &= slab.txn > keeping.horizon
    return _combined(slab, begins, flags or [column.flags(len(slab)) for column in slab.columns], whole)


def _any_bare(slab: Slab) -> bool:
    """Whether a record may say nothing at all, since the columns it wrote are not asked for."""
    if any(column.written is True for column in slab.columns):
        return False
    says = np.logical_or.reduce([column.flags(len(slab)) for column in slab.columns])
    if slab.kinds is not None:
        says |= slab.kinds == Kind.ERASE_ROW
    return not says.all()


def _begins(slab: Slab, ordering: Ordering) -> Flags:
    """Where another (key, ts, txn, kind) begins."""
    begins = (ordering.begins if ordering.cell_begins is None else ordering.cell_begins).copy()
    if len(begins) > 1:
        begins[1:] |= (slab.ts[1:] != slab.ts[:-1]) | (slab.txn[1:] != slab.txn[:-1])
        if slab.kinds is not None:
            begins[1:] |= slab.kinds[1:] != slab.kinds[:-1]
    return begins


def _keep_flags(slab: Slab, ordering: Ordering, keeping: Keeping, *, exists: bool) -> list[Flags] | None:
    """For each column, which records keep it; None if all keep all they have."""
    below = slab.txn < keeping.floor
    if not keeping.is_rooted:
        if not below.any():
            return None
        return [column.flags(len(slab)) & ~below for column in slab.columns]
    old = (slab.txn <= keeping.horizon) & ~below
    which = np.flatnonzero(old)
    judged = [np.zeros(len(slab), np.bool_) for _ in slab.columns]
    if len(which):
        part = Slab(
            slab.rows,
            slab.ts[which],
            slab.txn[which],
            None if slab.kinds is None else slab.kinds[which],
            tuple(SlabColumn(None, column.flags(len(slab))[which]) for column in slab.columns),
            None if slab.cell is None else (slab.cell[0].take(pa.array(which)), slab.cell[1]),
        )
        judging = Judging(keeping.policy, micros_of(keeping.horizon), exists=exists)
        seen = alive(part, _part_of(ordering, which), judging)
        for flags, some in zip(judged, seen, strict=True):
            flags[which] = some
    new = slab.txn > keeping.horizon
    kept = [column.flags(len(slab)) & new | flags for column, flags in zip(slab.columns, judged, strict=True)]
    unchanged = not below.any() and all(
        bool((flags == column.flags(len(slab))).all()) for flags, column in zip(kept, slab.columns, strict=True)
    )
    no_erasures = slab.kinds is None or not ((slab.kinds != Kind.PUT) & ~new).any()
    return None if unchanged and no_erasures else kept


def _part_of(ordering: Ordering, which: np.ndarray[tuple[int], np.dtype[np.intp]]) -> Ordering:
    def begins(flags: Flags) -> Flags:
        ids: Ints = np.cumsum(flags, dtype=np.int64)[which]
        return np.concatenate(([True], ids[1:] != ids[:-1]))

    cells = None if ordering.cell_begins is None else begins(ordering.cell_begins)
    return Ordering(None, begins(ordering.begins), cells)


def _combined(slab: Slab, begins: Flags, flags: list[Flags], whole: Flags) -> Slab:
    """One record for each key, ts, txn and kind, with the columns that any copy of it keeps; those with none are left
    out, but for erasures of whole rows that stay."""
    ids: Ints = np.cumsum(begins, dtype=np.int64)
    starts = np.flatnonzero(begins)
    first = [first_of_each(ids, each, len(starts)) for each in flags]
    used = np.logical_or.reduce([whole[starts], *(places >= 0 for places in first)])
    starts = starts[used]
    first = [places[used] for places in first]
    at = pa.array(starts)
    columns = []
    for column, places in zip(slab.columns, first, strict=True):
        written: Flags = places >= 0
        values = None if column.values is None else gathered(column.values, column.values.type, places)
        columns.append(SlabColumn(values, True if written.all() else (written if written.any() else False)))
    return Slab(
        slab.rows.take(at),
        slab.ts[starts],
        slab.txn[starts],
        None if slab.kinds is None else slab.kinds[starts],
        tuple(columns),
        None if slab.cell is None else (slab.cell[0].take(at), slab.cell[1].take(at)),
    )
