"""Scans of one group of cells: the newest versions of each cell, window by window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from stelae.model.arrow import compute as pc
from stelae.model.predicate.selectors import Selectors
from stelae.model.purge import GroupPurging
from stelae.model.ranges import RowRange
from stelae.storage.files.fragments import Fragments
from stelae.storage.memory.cells import MemoryOfCells
from stelae.storage.merge.alive import Judging
from stelae.storage.merge.order import Flags, Ints
from stelae.storage.merge.pick import in_order, limited, seen_versions
from stelae.storage.merge.select import WantedCells, select_cells
from stelae.storage.merge.slab import Slab
from stelae.storage.read.asking import Asking
from stelae.storage.read.scans.windows import Piece, ScanWindow, chunks_of, in_parts, plan_windows
from stelae.storage.tablet.parts import NO_FAMILY, FamilySet
from stelae.storage.tablet.state import Ref


@dataclass(frozen=True, slots=True)
class CellsChunk:
    """Cells of one window in order. `rows`: those that appear, each once; row i has the cells from `offsets[i]` to
    `offsets[i + 1]` (none, if it only exists)."""

    rows: pa.Array
    offsets: Ints
    family: pa.Array
    qualifier: pa.Array
    ts: Ints
    txn: Ints
    value: pa.Array
    covers: RowRange


@dataclass(frozen=True, slots=True)
class CellsQuestion:
    """What is asked of a group: cells whose name a selector matches, so many versions of each. Rows that have such a
    cell appear; `has_all`: those that have any cell. `exists`: rows with a put of the key alone appear too. `policy`:
    as it was at the snapshot. `limit`: no more rows may be wanted than that."""

    rows: RowRange
    selectors: Selectors
    exists: bool
    asking: Asking
    policy: GroupPurging
    history: int = 1
    plainly: bool = False
    limit: int | None = None
    has_all: bool = False

    @property
    def wanted(self) -> WantedCells:
        if self.has_all or any(":" not in selector.text for selector in self.selectors):
            return WantedCells(FamilySet(frozenset({NO_FAMILY}), others=True), self.exists)
        families = frozenset(selector.text.partition(":")[0] for selector in self.selectors)
        return WantedCells(FamilySet(families), self.exists)


class CellsScan:
    def __init__(
        self, refs: Sequence[Ref], fragments: Fragments, question: CellsQuestion, keep_blocks: bool = False
    ) -> None:
        self._refs = [ref for ref in refs if isinstance(ref.part, FamilySet)]
        self._fragments = fragments
        self._question = question
        self._keep = keep_blocks
        self._renamed = any(ref.naming.renamed for ref in self._refs)

    def chunks(self, *, reverse: bool = False) -> Iterator[CellsChunk]:
        windows = plan_windows(self._refs, self._fragments, self._question.rows, reverse=reverse)
        few = None if self._question.limit is None else lambda window: self._few(window, reverse=reverse)
        return chunks_of(windows, self._merged, self._fragments.reading, keep=self._keep, few=few)

    def _few(self, window: ScanWindow, *, reverse: bool) -> Iterator[CellsChunk]:
        for part in in_parts(window, self._question.limit or 1, _rows_of, reverse=reverse):
            chunk = self._merged(part, True)
            if chunk is not None and len(chunk.rows):
                yield chunk

    def _merged(self, window: ScanWindow, keep: bool) -> CellsChunk | None:
        question = self._question
        slabs = cell_slabs(window, question.wanted, keep=keep, with_values=bool(question.selectors))
        slabs = [slab.within(question.asking.floor, question.asking.at) for slab in slabs]
        slabs = [slab for slab in slabs if len(slab)]
        if not slabs:
            return None
        ordered = in_order(slabs, is_sorted=not self._renamed)
        judging = Judging(question.policy, question.asking.read_us, question.plainly)
        time = question.asking.time
        seen = seen_versions(ordered, judging, time.start, time.stop)[0]
        slab = ordered.slab
        cell_begins = ordered.ordering.cell_begins
        if cell_begins is None or slab.cell is None or slab.columns[0].values is None:
            return None
        seen = limited(seen, np.cumsum(cell_begins, dtype=np.int64), question.history)
        kept = np.flatnonzero(seen)
        row_ids: Ints = np.cumsum(ordered.ordering.begins, dtype=np.int64)[kept]
        places = ordered.places(kept)
        at = pa.array(places)
        family, qualifier = slab.cell[0].take(at), slab.cell[1].take(at)
        named = pc.not_equal(family, b"").to_numpy(zero_copy_only=False)
        cells = named & matching(family, qualifier, question.selectors)
        appear = np.ones(len(kept), np.bool_) if question.has_all else ~named | cells
        return _chunk(window, slab, places, row_ids, family, qualifier, cells, appear)


def _chunk(
    window: ScanWindow,
    slab: Slab,
    places: np.ndarray[tuple[int], np.dtype[np.intp]],
    row_ids: Ints,
    family: pa.Array,
    qualifier: pa.Array,
    cells: Flags,
    appear: Flags,
) -> CellsChunk:
    """`cells`: what is given out; `appear`: those, and whatever else makes its row appear."""
    appearing = row_ids[appear]
    new = np.concatenate(([True], appearing[1:] != appearing[:-1])) if len(appearing) else np.zeros(0, np.bool_)
    first = places[appear][new]
    counts = (
        np.bincount(np.cumsum(new)[cells[appear]] - 1, minlength=int(new.sum())) if len(new) else np.zeros(0, np.int64)
    )
    at = pa.array(places[cells])
    values = slab.columns[0].values
    which = pa.array(np.flatnonzero(cells))
    return CellsChunk(
        slab.rows.take(pa.array(first)),
        np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        family.take(which),
        qualifier.take(which),
        slab.ts[places[cells]],
        slab.txn[places[cells]],
        values.take(at) if values is not None else pa.nulls(len(at), pa.binary()),
        window.rows,
    )


def matching(family: pa.Array, qualifier: pa.Array, selectors: Selectors) -> Flags:
    """Which cells a selector matches by the name family:qualifier."""
    if any(selector.is_prefix and not selector.text for selector in selectors):
        return np.ones(len(family), np.bool_)
    matched = np.zeros(len(family), np.bool_)
    for selector in selectors:
        name, colon, rest = selector.text.partition(":")
        if colon:
            found = pc.equal(family, name.encode())
            of = pc.starts_with if selector.is_prefix else None
            ends = of(qualifier, pattern=rest.encode()) if of else pc.equal(qualifier, rest.encode())
            matched |= pc.and_(found, ends).to_numpy(zero_copy_only=False)
        elif selector.is_prefix:
            matched |= pc.starts_with(family, pattern=name.encode()).to_numpy(zero_copy_only=False)
    return matched


def _rows_of(piece: Piece) -> pa.Array:
    return piece.read(piece.fragment.needed(()), keep=True)[0].rows


def cell_slabs(window: ScanWindow, wanted: WantedCells, *, keep: bool, with_values: bool = True) -> list[Slab]:
    slabs = []
    for ref in window.memories:
        if isinstance(ref.source, MemoryOfCells) and isinstance(ref.part, FamilySet):
            raws = ref.source.raw(window.rows.intersect(ref.rows))
            slabs += [select_cells(raw, ref.part, ref.naming, wanted) for raw in raws]
    for piece in window.pieces:
        if isinstance(piece.ref.part, FamilySet):
            needed = piece.fragment.needed(()) if with_values else piece.fragment.needed_names()
            for block in piece.read(needed, keep=keep):
                raw = block.raw_cells(window.rows.intersect(piece.rows))
                slabs.append(select_cells(raw, piece.ref.part, piece.ref.naming, wanted))
    return slabs
