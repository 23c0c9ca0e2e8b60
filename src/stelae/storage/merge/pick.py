"""From slabs of one window to an answer: put in order, judged, and taken apart into columns."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa

from stelae.storage.merge.alive import Judging, alive
from stelae.storage.merge.order import Flags, Ints, Ordering, Positions, order_records, order_sorted, shared_bytes
from stelae.storage.merge.slab import Slab, SlabColumn, join, without_kinds


class Ordered(msgspec.Struct, frozen=True):
    """Records of a window. `slab` holds them as they came, `marks` in their order but without values."""

    slab: Slab
    ordering: Ordering
    marks: Slab

    def places(self, ordered: Positions) -> Positions:
        """Where the i-th records lie in the slab; -1 stays -1."""
        at = self.ordering.positions
        if at is None:
            return ordered
        return np.where(ordered < 0, ordered, at[ordered])


def in_order(slabs: Sequence[Slab], *, is_sorted: bool) -> Ordered:
    """`is_sorted`: a single slab is in order. Several are put behind each other first."""
    slab = without_kinds(join(slabs))
    if len(slabs) == 1 and is_sorted:
        ordering = order_sorted(slab.rows, slab.cell)
        return Ordered(slab, ordering, slab)
    shared = shared_bytes([each.rows for each in slabs])
    ordering = order_records(slab.rows, slab.cell, slab.ts, slab.txn, slab.kinds, shared)
    at = ordering.positions
    if at is None:
        return Ordered(slab, ordering, slab)
    marks = Slab(
        slab.rows,
        slab.ts[at],
        slab.txn[at],
        None if slab.kinds is None else slab.kinds[at],
        tuple(SlabColumn(None, c.written if isinstance(c.written, bool) else c.written[at]) for c in slab.columns),
        None if slab.cell is None else (slab.cell[0].take(pa.array(at)), slab.cell[1]),
    )
    return Ordered(slab, ordering, marks)


def seen_versions(ordered: Ordered, judging: Judging, start_us: int, stop_us: int) -> list[Flags]:
    """For each column, which ordered records hold a version that is seen, of the times asked for."""
    flags = alive(ordered.marks, ordered.ordering, judging)
    ts = ordered.marks.ts
    inside = (ts >= start_us) & (ts < stop_us)
    return flags if inside.all() else [each & inside for each in flags]


def first_of_each(ids: Ints, flags: Flags, count: int) -> Positions:
    """The first flagged place of each of so many groups, numbered from 1 in order; -1 for those without one."""
    if len(flags) == count and flags.all():
        return np.arange(count)
    first = np.full(count, -1, np.intp)
    places = np.flatnonzero(flags)
    if len(places):
        groups = ids[places]
        new = np.concatenate(([True], groups[1:] != groups[:-1]))
        first[groups[new] - 1] = places[new]
    return first


def limited(flags: Flags, ids: Ints, limit: int) -> Flags:
    """Of each group at most so many, the first."""
    seen: Ints = np.cumsum(flags) - flags
    begins = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1]))) if len(ids) else np.zeros(0, np.intp)
    before = seen[begins][ids - ids[0]] if len(ids) else seen
    return flags & (seen - before < limit)


def gathered(values: pa.Array | None, type_: pa.DataType, places: Positions) -> pa.Array:
    """Values at these places, null for -1."""
    if values is None:
        return pa.nulls(len(places), type_)
    missing = places < 0
    if missing.any():
        return values.take(pa.array(np.where(missing, 0, places), mask=missing))
    if len(places) == len(values) and _is_identity(places):
        return values
    return values.take(pa.array(places))


def _is_identity(places: Positions) -> bool:
    return bool(len(places) == 0 or (places[0] == 0 and places[-1] == len(places) - 1 and (np.diff(places) == 1).all()))
