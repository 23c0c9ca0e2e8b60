"""How a table is read: which rows by Spark itself, which after a merge, and in what parts the latter.

What is not read natively (see `native_plans`) is cut at the beginnings of blocks and packed, in the order of rows,
to parts of about equal size: each costs a task, however little is in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stelae.model.ranges import RangeSet, RowRange
from stelae.spark.reading.native_plans import native_reads
from stelae.spark.reading.plans import MergedPart, PlanLimits, ReadPlan, TabletPart
from stelae.spark.reading.question import Question
from stelae.spark.reading.tablets import PlannedTablet
from stelae.storage.offline.tablets import Fragments, HeldTablet


def plan_read(
    question: Question,
    held: Sequence[HeldTablet],
    fragments: Fragments,
    limits: PlanLimits,
    *,
    natively: bool = True,
) -> ReadPlan:
    """`natively` False: everything is merged."""
    tablets = [PlannedTablet(question, each, fragments) for each in held]
    tablets = [tablet for tablet in tablets if not tablet.asked.is_empty]
    native = native_reads(question, tablets, limits) if natively else ()
    return ReadPlan(native, tuple(_merged(tablets, limits)))


def _merged(tablets: Sequence[PlannedTablet], limits: PlanLimits) -> Iterator[MergedPart]:
    left = [(tablet, rows) for tablet in tablets if not (rows := tablet.merged()).is_empty]
    sizes = [tablet.size_bytes(rows) for tablet, rows in left]
    full = min(limits.part_bytes_max, max(limits.part_bytes_min, sum(sizes) // max(1, limits.parts)))
    filling: list[TabletPart] = []
    filled = 0
    for (tablet, whole), size in zip(left, sizes, strict=True):
        for rows, share in _cut(tablet, whole, size, full):
            if filling and filled + share > full * 5 // 4:
                yield MergedPart(tuple(filling))
                filling, filled = [], 0
            filling.append(_part(tablet, rows))
            filled += share
    if filling:
        yield MergedPart(tuple(filling))


def _cut(tablet: PlannedTablet, rows: RangeSet, size_bytes: int, full: int) -> Iterator[tuple[RangeSet, int]]:
    """In pieces of about equal size, none much above `full`."""
    count = -(-size_bytes // full)
    starts = tablet.cuts(rows) if size_bytes > full * 5 // 4 else []
    chosen = sorted({starts[len(starts) * at // count] for at in range(1, count)}) if starts else []
    pieces = []
    for at in chosen:
        below, rows = rows.split(at)
        pieces.append(below)
    pieces = [piece for piece in (*pieces, rows) if not piece.is_empty]
    for piece in pieces:
        yield piece, size_bytes // len(pieces)


def _part(tablet: PlannedTablet, rows: RangeSet) -> TabletPart:
    hull = RowRange(rows.ranges[0].start, rows.ranges[-1].stop)
    return TabletPart(tablet.tablet.within(hull).encode(), rows.ranges)
