"""Rows that exist by a put of their key alone, where the group that kept it is of another kind now, or gone.

Such puts stay in the files they were written to, of whatever kind. Whole rows are erased in every group there is at the
time, so what became of the puts later is found in the group that keeps them now: from its sources only the erasures of
whole rows are taken. Sources of both kinds meet here as records of one column, that the row exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from stelae.model.ids import Row
from stelae.model.purge import Purging, purging_at
from stelae.model.ranges import RowRange, single
from stelae.model.record import ROW_EXISTS, Kind
from stelae.model.schema import GroupOptions
from stelae.storage.files.fragments import Fragments
from stelae.storage.memory.cells import MemoryOfCells
from stelae.storage.memory.columns import MemoryOfColumns
from stelae.storage.merge.alive import Judging
from stelae.storage.merge.pick import in_order, seen_versions
from stelae.storage.merge.rule import Erased, Written, survivors
from stelae.storage.merge.select import WantedCells, WantedColumns
from stelae.storage.merge.slab import Slab, SlabColumn
from stelae.storage.read.asking import Asking, Version
from stelae.storage.read.scans.cells import cell_slabs
from stelae.storage.read.scans.columns import ColumnsChunk, window_slabs
from stelae.storage.read.scans.windows import ScanWindow, chunks_of, plan_windows
from stelae.storage.tablet.parts import NO_FAMILIES, FamilySet
from stelae.storage.tablet.state import Ref

_COLUMN = WantedColumns(((ROW_EXISTS, pa.null()),))
_CELL = WantedCells(NO_FAMILIES, exists=True)


def _erasures_of(ref: Ref) -> Ref:
    """Of a source, nothing but the erasures of whole rows, which are in every part."""
    return replace(ref, part=NO_FAMILIES if isinstance(ref.part, FamilySet) else frozenset())


class MarkersScan:
    """Rows that exist by puts of the key alone in `kept`, as far as `erasing` has not erased them since."""

    def __init__(
        self,
        kept: Sequence[Ref],
        erasing: Sequence[Ref],
        fragments: Fragments,
        rows: RowRange,
        asking: Asking,
        options: GroupOptions,
    ) -> None:
        self._asking = asking
        self._policy = purging_at(options.keys_purging, asking.at)
        self._refs = [*kept, *(_erasures_of(ref) for ref in erasing)]
        self._fragments = fragments
        self._rows = rows

    def chunks(self, *, reverse: bool = False) -> Iterator[ColumnsChunk]:
        windows = plan_windows(self._refs, self._fragments, self._rows, reverse=reverse)
        return chunks_of(windows, self._chunk, self._fragments.reading)

    def _chunk(self, window: ScanWindow, keep: bool) -> ColumnsChunk | None:
        slabs = window_slabs(window, _COLUMN, keep=keep)
        slabs += [_as_column(slab) for slab in cell_slabs(window, _CELL, keep=keep)]
        slabs = [slab.within(self._asking.floor, self._asking.at) for slab in slabs]
        slabs = [slab for slab in slabs if len(slab)]
        if not slabs:
            return None
        ordered = in_order(slabs, is_sorted=True)
        judging = Judging(self._policy, self._asking.read_us)
        (seen,) = seen_versions(ordered, judging, self._asking.time.start, self._asking.time.stop)
        ids = np.cumsum(ordered.ordering.begins)[seen]
        first = (
            np.flatnonzero(seen)[np.concatenate(([True], ids[1:] != ids[:-1]))] if len(ids) else np.flatnonzero(seen)
        )
        return ColumnsChunk(ordered.slab.rows.take(pa.array(ordered.places(first))), (), window.rows)


def _as_column(slab: Slab) -> Slab:
    """Puts and erasures of a row without a cell: all that is left of a slab of cells when no family is wanted."""
    puts = True if slab.kinds is None else slab.kinds == Kind.PUT
    return Slab(slab.rows, slab.ts, slab.txn, slab.kinds, (SlabColumn(None, puts),))


class MarkersReader:
    """As `MarkersScan`, for one row."""

    def __init__(self, kept: Sequence[Ref], erasing: Sequence[Ref], fragments: Fragments, policy: Purging) -> None:
        self._refs = [*kept, *(_erasures_of(ref) for ref in erasing)]
        self._fragments = fragments
        self._policy = policy

    def versions(self, row: Row, asking: Asking) -> list[Version]:
        puts: list[Written] = []
        erased: list[Erased] = []
        for ref in self._refs:
            if row in ref.rows:
                for put, erasure in self._marks(ref, row):
                    mark = put or erasure
                    if mark is not None and asking.floor <= mark.txn <= asking.at:
                        puts += [put] if put is not None else []
                        erased += [erasure] if erasure is not None else []
        policy = purging_at(self._policy, asking.at)
        alive = survivors(puts, erased, policy, asking.read_us) if puts else ()
        return [Version(*put) for put in alive if put.ts in asking.time]

    def _marks(self, ref: Ref, row: Row) -> Iterator[tuple[Written | None, Erased | None]]:
        for slab in self._slabs(ref, row):
            written = slab.columns[0].flags(len(slab))
            for at in range(len(slab)):
                kind = Kind.PUT if slab.kinds is None else Kind(int(slab.kinds[at]))
                ts, txn = slab.ts[at].item(), slab.txn[at].item()
                if kind is Kind.ERASE_ROW:
                    yield None, Erased(ts, txn, is_exact=False)
                elif kind is Kind.PUT and written[at]:
                    yield Written(ts, txn, None), None

    def _slabs(self, ref: Ref, row: Row) -> list[Slab]:
        source = ref.source
        if isinstance(source, MemoryOfColumns | MemoryOfCells):
            windows = [ScanWindow(single(row), (), (ref,))]
        else:
            windows = list(plan_windows([ref], self._fragments, single(row)))
        if isinstance(ref.part, FamilySet):
            return [_as_column(slab) for window in windows for slab in cell_slabs(window, _CELL, keep=True)]
        return [slab for window in windows for slab in window_slabs(window, _COLUMN, keep=True)]
