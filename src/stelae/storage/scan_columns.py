"""Scans of one group of columns: the newest values of each row, window by window.

A block that no other source reaches into, and whose file is *plain* for the question asked (every row once, no
erasures, all of it inside the snapshot, nothing to purge), is passed on as it lies in the file: only the columns asked
for are read, and nothing is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stelae.format.fragment.reader import bounds
from stelae.format.fragment.writer import point_column
from stelae.model.arrow import to_arrow
from stelae.model.arrow_values import array_of
from stelae.model.ids import ColumnId
from stelae.model.purge import PurgePolicy, purges
from stelae.model.ranges import RowRange
from stelae.model.record import ROW_EXISTS
from stelae.model.schema import Column
from stelae.storage.asking import Asking
from stelae.storage.fragments import Fragments
from stelae.storage.memory_columns import MemoryOfColumns
from stelae.storage.merge.alive import Judging
from stelae.storage.merge.order import Flags
from stelae.storage.merge.pick import Ordered, first_of_each, gathered, in_order, seen_versions
from stelae.storage.merge.select import WantedColumns, select_columns
from stelae.storage.merge.slab import Slab
from stelae.storage.parts import FamilySet
from stelae.storage.state import Ref
from stelae.storage.windows import Piece, PieceReader, ScanWindow, chunks_of, plan_windows


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
    `skips`: whether a block of a plain file can be passed over."""

    rows: RowRange
    columns: tuple[Column, ...]
    exists: bool
    asking: Asking
    policy: PurgePolicy | None
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
        self._pieces = PieceReader(self._windows, keep_blocks)
        self._executor = fragments.reading
        self._defaults = [
            None if column.default is None else array_of(column.type, [column.default])[0]
            for column in question.columns
        ]

    def chunks(self, *, reverse: bool = False) -> Iterator[ColumnsChunk]:
        return chunks_of(self._windows, self._chunk, self._executor, reverse=reverse)

    def _chunk(self, window: ScanWindow) -> ColumnsChunk:
        chunk = self._plain(window) or self._merged(window)
        self._pieces.done(window)
        return chunk

    def _plain(self, window: ScanWindow) -> ColumnsChunk | None:
        if window.memories and any(not _is_empty(ref, window.rows) for ref in window.memories):
            return None
        if len(window.pieces) != 1 or len(window.pieces[0].blocks) != 1:
            return None
        piece = window.pieces[0]
        if not is_plain(piece, self._question, window):
            return None
        if self._question.skips is not None and self._question.skips(piece):
            return ColumnsChunk(pa.array([], pa.binary()), (), window.rows)
        fragment = piece.fragment
        names = fragment.names_of(self._ids)
        keys = [column.name for column in fragment.spec.key]
        columns = tuple(dict.fromkeys((*names, *keys, point_column(fragment.spec))))
        block = self._pieces.blocks(piece, columns)[0]
        low, high = bounds(block.rows, window.rows.intersect(piece.rows))
        values = []
        for (id_, type_), default in zip(self._wanted.columns, self._defaults, strict=False):
            name = fragment.columns.get(id_)
            if name is None or isinstance(piece.ref.part, FamilySet) or id_ not in piece.ref.part:
                values.append(_filled(pa.nulls(high - low, type_), default))
            else:
                array = block.columns[name[0]].slice(low, high - low)
                values.append(array if array.type == type_ else array.cast(type_))
        typed = tuple(block.columns[name].slice(low, high - low) for name in keys)
        return ColumnsChunk(block.rows.slice(low, high - low), tuple(values), window.rows, typed)

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
    ts_min, ts_max = (stats.ts_min, stats.ts_max) if file.ts is None or spec.has_ts else (file.ts, file.ts)
    if ts_min < asking.time.start or ts_max >= asking.time.stop:
        return False
    if question.policy is not None and purges(question.policy, 0, asking.read_us - ts_min):
        return False
    return (spec.nulls == "written" and _has_one(piece, question)) or _reads_all(piece, question)


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
