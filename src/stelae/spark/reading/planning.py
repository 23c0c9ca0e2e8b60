"""How a table is read: which rows by Spark itself, which after a merge, and in what parts the latter.

What is not read natively (see `native_plans`) is cut at the beginnings of blocks and packed, in the order of rows,
to parts of about equal size: each costs a task, however little is in it. Where one group is read natively, rows that
exist without anything of it are found by merging the keys of all groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stelae.model.ids import GroupId
from stelae.model.ranges import RangeSet, RowRange
from stelae.model.schema import ColumnsGroup
from stelae.spark.reading.native_plans import native_reads
from stelae.spark.reading.overlaid import Overlays
from stelae.spark.reading.plans import MergedPart, PlanLimits, ReadPlan, TabletPart
from stelae.spark.reading.question import Question
from stelae.spark.reading.tablets import PlannedTablet
from stelae.storage.offline.tablets import Fragments, HeldTablet

_KEYS_SHARE = 8
"""About how much more a file has than its keys."""


def plan_read(
    question: Question,
    held: Sequence[HeldTablet],
    fragments: Fragments,
    limits: PlanLimits,
    *,
    natively: bool = True,
    overlays: Overlays | None = None,
) -> ReadPlan:
    """`natively` False: everything is merged by tasks. `overlays`: where rows that are merged here are written."""
    tablets = [PlannedTablet(question, each, fragments) for each in held]
    tablets = [tablet for tablet in tablets if not tablet.asked.is_empty]
    native, group = native_reads(question, tablets, limits, overlays) if natively else ((), None)
    left = [
        _Left(tablet, rows, tablet.size_bytes(rows)) for tablet in tablets if not (rows := tablet.merged()).is_empty
    ]
    if group is not None:
        left += _beside(tablets, group)
    return ReadPlan(native, tuple(_merged(left, limits)), sum(each.size_bytes for each in left))


class _Left(NamedTuple):
    """Rows of a tablet that are merged; `beside` a group, those that it has nothing of."""

    tablet: PlannedTablet
    rows: RangeSet
    size_bytes: int
    beside: GroupId | None = None


def _beside(tablets: Sequence[PlannedTablet], group: ColumnsGroup) -> Iterator[_Left]:
    """Rows of the other groups, of which only the keys are read, where the one group is read natively."""
    for tablet in tablets:
        rows, _ = tablet.beside(group, tablet.native)
        if not rows.is_empty and not tablet.is_beside_known:
            yield _Left(tablet, rows, tablet.beside_bytes(group, rows) // _KEYS_SHARE, group.id)


def _merged(left: Sequence[_Left], limits: PlanLimits) -> Iterator[MergedPart]:
    full = min(
        limits.part_bytes_max,
        max(limits.part_bytes_min, sum(each.size_bytes for each in left) // max(1, limits.parts)),
    )
    filling: list[TabletPart] = []
    filled = 0
    for each in left:
        for rows, share in _cut(each.tablet, each.rows, each.size_bytes, full):
            if filling and filled + share > full * 5 // 4:
                yield MergedPart(tuple(filling))
                filling, filled = [], 0
            filling.append(_part(each.tablet, rows, each.beside))
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


def _part(tablet: PlannedTablet, rows: RangeSet, beside: GroupId | None) -> TabletPart:
    hull = RowRange(rows.ranges[0].start, rows.ranges[-1].stop)
    return TabletPart(tablet.tablet.within(hull).encode(), rows.ranges, beside)
