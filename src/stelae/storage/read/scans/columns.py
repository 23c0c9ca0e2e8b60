"""Scans of one group of columns: the newest values of each row, window by window.

A block that no other source reaches into, and whose file is *plain* for the question asked (every row once, no
erasures, all of it inside the snapshot, nothing to purge), is passed on as it lies in the file: only the columns asked
for are read, and nothing is compared. Where plain files lie over each other, each newer than the one below, the newer
records take the place of the older ones, and the rest is again passed on; everything else is merged by the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stelae.model.arrow import to_arrow
from stelae.model.arrow_values import array_of
from stelae.model.ids import ColumnId, Micros
from stelae.model.purge import Purging, purges_newest
from stelae.model.ranges import RowRange
from stelae.model.record import ROW_EXISTS
from stelae.model.schema import Column
from stelae.storage.files.fragments import Fragments
from stelae.storage.memory.columns import MemoryOfColumns
from stelae.storage.merge.alive import Judging
from stelae.storage.merge.order import Flags, extent
from stelae.storage.merge.overlay import overlaid
from stelae.storage.merge.pick import Ordered, first_of_each, gathered, in_order, seen_versions
from stelae.storage.merge.select import WantedColumns, select_columns
from stelae.storage.merge.slab import ARRAY_BYTES_MAX, Slab
from stelae.storage.read.asking import Asking
from stelae.storage.read.scans.windows import SHORT_WINDOWS_MAX, Piece, PieceReader, ScanWindow, chunks_of, plan_windows
from stelae.storage.tablet.parts import FamilySet
from stelae.storage.tablet.state import Ref


@dataclass(frozen=True, slots=True)
class ColumnsChunk:
    """The rows of one window that appear, each once, in order, and their values. `keys`: the typed key, where it came
    for free. `covers`: no other chunk has a row of it."""

    rows: pa.Array
    values: tuple[pa.Array, ...]
    covers: RowRange
    keys: tuple[pa.Array, ...] | None = None


@dataclass(frozen=True, slots=True)
class ColumnsQuestion:
    """What is asked of a group: these columns of these rows; `exists`: rows with a put of the key alone count too.
    `policy`: as it was at the snapshot. `skips`: whether a block of a plain file can be passed over."""

    rows: RowRange
    columns: tuple[Column, ...]
    exists: bool
    asking: Asking
    policy: Purging
    skips: Callable[[Piece], bool] | None = None
    plainly: bool = False

    @property
    def wanted(self) -> WantedColumns:
        columns = [(column.id, to_arrow(column.type)) for column in self.columns]
        return WantedColumns((*columns, *([(ROW_EXISTS, pa.null())] if self.exists else [])))


class ColumnsScan:
    def __init__(
        self, refs: Sequence[Ref], fragments: Fragments, question: ColumnsQuestion, keep_blocks: bool = False
    ) -> None:
        self._refs = [ref for ref in refs if not isinstance(ref.part, FamilySet)]
        self._question = question
        self._wanted = question.wanted
        self._ids = [id_ for id_, _ in self._wanted.columns if id_ != ROW_EXISTS]
        self._windows = plan_windows(self._refs, fragments, question.rows)
        self._pieces = PieceReader(self._windows, keep_blocks or len(self._windows) <= SHORT_WINDOWS_MAX)
        self._executor = fragments.reading
        self._defaults = [default_of(column) for column in question.columns]

    def chunks(self, *, reverse: bool = False) -> Iterator[ColumnsChunk]:
        return chunks_of(self._windows, self._chunk, self._executor, reverse=reverse)

    def _chunk(self, window: ScanWindow) -> ColumnsChunk:
        chunk = self._plain(window) or self._merged(window)
        self._pieces.done(window)
        return chunk

    def _plain(self, window: ScanWindow) -> ColumnsChunk | None:
        """Where one plain file has rows, as they lie there; where others lie over it, with theirs in place of its
        own."""
        pieces, question = window.pieces, self._question
        if not pieces or any(len(p.blocks) != 1 or not is_plain(p, question, window) for p in pieces):
            return None
        if any(not _is_empty(ref, window.rows) for ref in window.memories):
            return None
        if len(pieces) > 1:
            pieces = tuple(sorted(pieces, key=lambda piece: piece.fragment.file.txn_min))
            if not all(lies_over(new, old, question) for old, new in pairwise(pieces)):
                return None
        elif question.skips is not None and question.skips(pieces[0]):
            return ColumnsChunk(pa.array([], pa.binary()), (), window.rows)
        found = [self._as_stored(piece, window.rows) for piece in pieces]
        found = [each for each in found if len(each.rows)]
        return found[0] if len(found) == 1 else self._overlaid(found, window.rows)

    def _as_stored(self, piece: Piece, rows: RowRange) -> ColumnsChunk:
        fragment = piece.fragment
        names = fragment.names_of(self._ids)
        keys = [column.name for column in fragment.spec.key]
        columns = tuple(dict.fromkeys((*names, *keys, fragment.point)))
        block = self._pieces.blocks(piece, columns)[0]
        low, high = extent(block.rows, rows.intersect(piece.rows))
        values = []
        for (id_, type_), default in zip(self._wanted.columns, self._defaults, strict=False):
            name = fragment.columns.get(id_)
            if name is None or isinstance(piece.ref.part, FamilySet) or id_ not in piece.ref.part:
                values.append(_filled(pa.nulls(high - low, type_), default))
            else:
                array = block.columns[name[0]].slice(low, high - low)
                values.append(array if array.type == type_ else array.cast(type_))
        typed = tuple(block.columns[name].slice(low, high - low) for name in keys)
        return ColumnsChunk(block.rows.slice(low, high - low), tuple(values), rows, typed)

    def _overlaid(self, found: Sequence[ColumnsChunk], rows: RowRange) -> ColumnsChunk | None:
        if not found:
            return ColumnsChunk(pa.array([], pa.binary()), (), rows)
        columns = list(zip(*(each.values for each in found), strict=True))
        if any(sum(array.nbytes for array in column) >= ARRAY_BYTES_MAX for column in columns):
            return None
        overlay = overlaid([each.rows for each in found])
        if overlay is None:
            return None
        at = pa.array(overlay.places)
        values = [pa.concat_arrays(column).take(at) for column in columns]
        return ColumnsChunk(overlay.rows, tuple(values), rows, None if overlay.has_more else found[0].keys)

    def _merged(self, window: ScanWindow) -> ColumnsChunk:
        question = self._question
        slabs = window_slabs(window, self._pieces, self._wanted)
        slabs = [slab.within(question.asking.floor, question.asking.at) for slab in slabs]
        slabs = [slab for slab in slabs if len(slab)]
        if not slabs:
            return ColumnsChunk(pa.array([], pa.binary()), (), window.rows)
        ordered = in_order(slabs, is_sorted=True)
        judging = Judging(question.policy, question.asking.read_us, question.plainly)
        time = question.asking.time
        return self._newest(window, ordered, seen_versions(ordered, judging, time.start, time.stop))

    def _newest(self, window: ScanWindow, ordered: Ordered, seen: list[Flags]) -> ColumnsChunk:
        begins = ordered.ordering.begins
        ids = np.cumsum(begins, dtype=np.int64)
        count = int(ids[-1])
        first = [first_of_each(ids, flags, count) for flags in seen]
        appears = np.zeros(count, np.bool_)
        for places in first:
            appears |= places >= 0
        if appears.all():
            starts = np.flatnonzero(begins)
        else:
            starts = np.flatnonzero(begins)[appears]
            first = [places[appears] for places in first]
        rows = gathered(ordered.slab.rows, pa.binary(), ordered.places(starts))
        values = []
        columns = zip(self._wanted.columns, ordered.slab.columns, first, strict=True)
        for at, ((id_, type_), column, places) in enumerate(columns):
            if id_ == ROW_EXISTS:
                continue
            array = gathered(column.values, type_, ordered.places(places))
            if self._defaults[at] is not None and (places < 0).any():
                array = pc.if_else(pa.array(places < 0), self._defaults[at], array)
            values.append(array)
        return ColumnsChunk(rows, tuple(values), window.rows)


def default_of(column: Column) -> pa.Scalar | None:
    return None if column.default is None else array_of(column.type, [column.default])[0]


def _filled(array: pa.Array, default: pa.Scalar | None) -> pa.Array:
    return array if default is None else pc.fill_null(array, default)


def _is_empty(ref: Ref, rows: RowRange) -> bool:
    return isinstance(ref.source, MemoryOfColumns) and not ref.source.has_any(rows.intersect(ref.rows))


def is_plain(piece: Piece, question: ColumnsQuestion, window: ScanWindow) -> bool:
    """Whether each record of the piece is exactly what a reader sees of its row."""
    file, asking, spec = piece.fragment.file, question.asking, piece.fragment.spec
    stats = file.stats
    if stats.rows != stats.records or stats.erasures or stats.markers:
        return False
    if file.txn_max > asking.at or file.txn_min < asking.floor or window.rows.is_empty:
        return False
    ts_min, ts_max = _times(piece)
    if ts_min < asking.time.start or ts_max >= asking.time.stop:
        return False
    if question.policy is not None and purges_newest(question.policy, Micros(ts_min), file.txn_min, asking.read_us):
        return False
    return (spec.nulls == "written" and _has_one(piece, question)) or _reads_all(piece, question)


def _times(piece: Piece) -> tuple[int, int]:
    """Of the first and of the last record."""
    file, stats = piece.fragment.file, piece.fragment.file.stats
    has_own = file.ts is None or piece.fragment.spec.has_ts
    return (stats.ts_min, stats.ts_max) if has_own else (file.ts, file.ts)  # type: ignore[return-value]


def lies_over(new: Piece, old: Piece, question: ColumnsQuestion) -> bool:
    """Whether of two plain pieces, a record of the new one is all that is seen of its row."""
    if new.fragment.file.txn_min <= old.fragment.file.txn_max or _times(new)[0] < _times(old)[1]:
        return False
    part = new.ref.part
    return new.fragment.spec.nulls == "written" and all(
        c.id in new.fragment.columns and c.id in part  # type: ignore[operator]
        for c in question.columns
    )


def _has_one(piece: Piece, question: ColumnsQuestion) -> bool:
    """Of a complete file, a record appears if any column asked for is in it."""
    part = piece.ref.part
    return any(c.id in piece.fragment.columns and c.id in part for c in question.columns)  # type: ignore[operator]


def _reads_all(piece: Piece, question: ColumnsQuestion) -> bool:
    """All columns of the file are asked for and none has a default: a column not written, and NULL, read alike."""
    asked = {column.id for column in question.columns if column.default is None}
    part = piece.ref.part
    return all(id_ in asked and id_ in part for id_ in piece.fragment.columns)  # type: ignore[operator]


def window_slabs(window: ScanWindow, pieces: PieceReader, wanted: WantedColumns) -> list[Slab]:
    slabs = []
    for ref in window.memories:
        if isinstance(ref.source, MemoryOfColumns) and not isinstance(ref.part, FamilySet):
            raws = ref.source.raw(window.rows.intersect(ref.rows))
            slabs += [select_columns(raw, ref.part, wanted) for raw in raws]
    for piece in window.pieces:
        if isinstance(piece.ref.part, FamilySet):
            continue
        ids: list[ColumnId] = [id_ for id_, _ in wanted.columns if id_ in piece.ref.part]
        for block in pieces.blocks(piece, piece.fragment.needed(ids)):
            raw = block.raw_columns(window.rows.intersect(piece.rows), ids)
            slabs.append(select_columns(raw, piece.ref.part, wanted))
    return slabs
