"""Scans of one group of columns: the newest values of each row, window by window.

A block that no other source reaches into, and whose file is *plain* for the question asked (every row once, no
erasures, all of it inside the snapshot, nothing to purge), is passed on as it lies in the file: only the columns asked
for are read, and nothing is compared. Memory is plain where the newest record of each of its rows says all that is
asked. Where plain sources lie over each other, each newer than the one below, the newer records take the place of the
older ones, and the rest is again passed on; everything else is merged by the rule.

Rows may appear by columns that nobody asked for (`ColumnChoice.others`). Those are looked at only for rows that have
none of the columns asked for, and only whether they are written: their values are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from stelae.model.arrow import compute as pc
from stelae.model.arrow_values import array_of
from stelae.model.ids import ColumnId, Micros
from stelae.model.predicate.plan import ALL_TIME
from stelae.model.purge import GroupPurging, purges_newest, purging_of_columns
from stelae.model.ranges import ALL_ROWS, RowRange
from stelae.model.record import ROW_EXISTS
from stelae.storage.files.fragments import Fragment, Fragments
from stelae.storage.memory.columns import ColumnsBlock, ColumnsVersion, MemoryOfColumns
from stelae.storage.merge.alive import Judging
from stelae.storage.merge.order import Flags, Positions
from stelae.storage.merge.overlay import overlaid
from stelae.storage.merge.pick import Ordered, first_of_each, gathered, in_order, seen_versions
from stelae.storage.merge.select import WantedColumns, select_columns
from stelae.storage.merge.slab import ARRAY_BYTES_MAX, Slab, join
from stelae.storage.read.asking import Asking
from stelae.storage.read.scans.choices import ColumnChoice
from stelae.storage.read.scans.windows import Piece, ScanWindow, chunks_of, in_parts, plan_windows
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
    """What is asked of a group: these columns of these rows. `policy`: as it was at the snapshot. `skips`: whether a
    block of a plain file can be passed over. `limit`: no more rows may be wanted than that."""

    rows: RowRange
    choice: ColumnChoice
    asking: Asking
    policy: GroupPurging
    skips: Callable[[Piece], bool] | None = None
    plainly: bool = False
    limit: int | None = None


_NO_ROWS = ColumnsChunk(pa.array([], pa.binary()), (), ALL_ROWS)


class _Layer(NamedTuple):
    """A plain source of a window. `whole`: all columns asked for are there. `take`: what it has."""

    txn_min: int
    txn_max: int
    ts_min: int
    ts_max: int
    whole: bool
    take: Callable[[], ColumnsChunk]

    def lies_over(self, other: _Layer) -> bool:
        """Whether a record of this one is all that is seen of its row."""
        return self.whole and self.txn_min > other.txn_max and self.ts_min >= other.ts_max


class ColumnsScan:
    def __init__(
        self, refs: Sequence[Ref], fragments: Fragments, question: ColumnsQuestion, keep_blocks: bool = False
    ) -> None:
        self._refs = [ref for ref in refs if not isinstance(ref.part, FamilySet)]
        self._fragments = fragments
        self._question = question
        self._choice = question.choice
        self._keep = keep_blocks

    def chunks(self, *, reverse: bool = False) -> Iterator[ColumnsChunk]:
        windows = plan_windows(self._refs, self._fragments, self._question.rows, reverse=reverse)
        few = None if self._question.limit is None else lambda window: self._few(window, reverse=reverse)
        return chunks_of(windows, self._chunk, self._fragments.reading, keep=self._keep, few=few)

    def _few(self, window: ScanWindow, *, reverse: bool) -> Iterator[ColumnsChunk]:
        """Nothing is gained by cutting what only has to be passed on."""
        limit = self._question.limit or 1
        is_alone = len(window.pieces) == 1 and not any(_has_any(ref, window.rows) for ref in window.memories)
        for part in [window] if is_alone else in_parts(window, limit, self._rows_of, reverse=reverse):
            chunk = self._chunk(part, True)
            if len(chunk.rows):
                yield chunk

    def _rows_of(self, piece: Piece) -> pa.Array:
        return piece.read(self._stored(piece.fragment), keep=True)[0].rows

    def _chunk(self, window: ScanWindow, keep: bool) -> ColumnsChunk:
        return self._plain(window, keep) or self._merged(window, keep)

    def _plain(self, window: ScanWindow, keep: bool) -> ColumnsChunk | None:
        """What plain sources have, the newer in place of the older; None: it has to be merged."""
        question, rows = self._question, window.rows
        for piece in window.pieces:
            if len(piece.blocks) != 1 or not is_plain(piece, question):
                return None
        layers: list[_Layer] = []
        for ref in window.memories:
            written = self._written(ref, rows)
            if written is None:
                return None
            layers += written
        if not layers and len(window.pieces) == 1:
            piece = window.pieces[0]
            if question.skips is not None and question.skips(piece):
                return _NO_ROWS
            return self._as_stored(piece, rows, keep)
        layers += [self._layer_of(piece, rows, keep) for piece in window.pieces]
        layers.sort(key=itemgetter(0))
        for old, new in pairwise(layers):
            if not new.lies_over(old):
                return None
        found = [chunk for layer in layers if len((chunk := layer.take()).rows)]
        return found[0] if len(found) == 1 else _overlaid(found, rows)

    def _stored(self, fragment: Fragment) -> tuple[str, ...]:
        """What is read of a plain file: the columns, the typed key, and what rows are found by."""
        named = [fragment.columns[id_][0] for id_, _ in self._choice.types if id_ in fragment.columns]
        return tuple(dict.fromkeys((*named, *fragment.key_names, fragment.point)))

    def _as_stored(self, piece: Piece, rows: RowRange, keep: bool) -> ColumnsChunk:
        fragment, part = piece.fragment, piece.ref.part
        block = piece.read(self._stored(fragment), keep=keep)[0]
        low, high = block.extent(rows.intersect(piece.rows), often=keep)
        count, values = high - low, list[pa.Array]()
        for (id_, type_), default in zip(self._choice.types, self._choice.defaults, strict=True):
            name = fragment.columns.get(id_)
            if name is None or isinstance(part, FamilySet) or id_ not in part:
                missing = pa.nulls(count, type_)
                values.append(missing if default is None else pc.fill_null(missing, default))
            else:
                array = block.columns[name[0]].slice(low, count)
                values.append(array if array.type == type_ else array.cast(type_))
        typed = tuple([block.columns[name].slice(low, count) for name in fragment.key_names])
        return ColumnsChunk(block.rows.slice(low, count), tuple(values), rows, typed)

    def _layer_of(self, piece: Piece, rows: RowRange, keep: bool) -> _Layer:
        file = piece.fragment.file
        whole = piece.fragment.spec.nulls == "written" and has_all(piece, self._choice.ids)
        times = times_of(piece)
        return _Layer(file.txn_min, file.txn_max, *times, whole, lambda: self._as_stored(piece, rows, keep))

    def _written(self, ref: Ref, rows: RowRange) -> list[_Layer] | None:
        """What memory has, if the newest record of each row says all that is asked; None if not."""
        memory, asking, ids = ref.source, self._question.asking, self._choice.ids
        if not isinstance(memory, MemoryOfColumns) or isinstance(ref.part, FamilySet):
            return None
        inside = rows.intersect(ref.rows)
        names, blocks = memory.rows_between(inside), memory.blocks_between(inside)
        if not names and not blocks:
            return []
        if self._question.policy is not None or asking.time is not ALL_TIME or not ids <= ref.part:
            return None
        appearing = ids or (self._choice.appearing & ref.part)
        layers: list[_Layer] = []
        records = memory.newest_records(names, ids, asking.floor, asking.at)
        if records is None or (not ids and any(appearing.isdisjoint(record.values) for _, record in records)):
            return None
        if records:
            txns, times = [record.txn for _, record in records], [record.ts for _, record in records]
            take = partial(self._of_records, memory, records, rows)
            layers.append(_Layer(min(txns), max(txns), min(times), max(times), True, take))
        for block, low, high in blocks:
            if block.txn > asking.at:
                continue
            if block.txn < asking.floor or not block.puts_all(ids) or not block.puts_any(appearing):
                return None
            first, last = int(block.ts[low:high].min()), int(block.ts[low:high].max())
            take = partial(self._of_block, block, low, high - low, rows)
            layers.append(_Layer(block.txn, block.txn, first, last, True, take))
        return layers

    def _of_records(
        self, memory: MemoryOfColumns, records: Sequence[tuple[bytes, ColumnsVersion]], rows: RowRange
    ) -> ColumnsChunk:
        values = []
        for id_, type_ in self._choice.types:
            array = array_of(memory.types[id_], [record.values[id_] for _, record in records])
            values.append(array if array.type == type_ else array.cast(type_))
        return ColumnsChunk(pa.array([row for row, _ in records], pa.binary()), tuple(values), rows)

    def _of_block(self, block: ColumnsBlock, low: int, count: int, rows: RowRange) -> ColumnsChunk:
        columns, values = dict(block.columns), list[pa.Array]()
        for id_, type_ in self._choice.types:
            array = columns[id_].values.slice(low, count)  # type: ignore[union-attr] # it puts all of them
            values.append(array if array.type == type_ else array.cast(type_))
        return ColumnsChunk(block.rows.slice(low, count), tuple(values), rows)

    def _merged(self, window: ScanWindow, keep: bool) -> ColumnsChunk:
        question = self._question
        slabs = window_slabs(window, self._choice.wanted, keep=keep)
        slabs = [slab.within(question.asking.floor, question.asking.at) for slab in slabs]
        slabs = [slab for slab in slabs if len(slab)]
        if not slabs:
            return _NO_ROWS
        ordered = in_order(slabs, is_sorted=True)
        return self._newest(window, ordered, self._seen(ordered, exists=self._choice.exists), keep)

    def _seen(self, ordered: Ordered, *, exists: bool) -> list[Flags]:
        question = self._question
        judging = Judging(question.policy, question.asking.read_us, question.plainly, exists)
        return seen_versions(ordered, judging, question.asking.time.start, question.asking.time.stop)

    def _by_others(self, window: ScanWindow, ordered: Ordered, records: Positions, keep: bool) -> pa.Array:
        """The rows of these records, of those that were ordered, that have any of the other columns."""
        asking = self._question.asking
        slabs = window_slabs(window, self._choice.others, keep=keep, with_values=False)
        slabs = [slab.within(asking.floor, asking.at) for slab in slabs]
        marks = only_distinct(join([slab for slab in slabs if len(slab)]))
        some = in_order([marks.take(ordered.places(records))], is_sorted=True)
        has_any = np.zeros(len(some.slab), np.bool_)
        for flags in self._seen(some, exists=False):
            has_any |= flags
        return some.slab.rows.filter(pa.array(has_any))

    def _newest(self, window: ScanWindow, ordered: Ordered, seen: list[Flags], keep: bool) -> ColumnsChunk:
        begins = ordered.ordering.begins
        ids = np.cumsum(begins, dtype=np.int64)
        count = int(ids[-1])
        first = [first_of_each(ids, flags, count) for flags in seen]
        appears = np.zeros(count, np.bool_)
        for places in first:
            appears |= places >= 0
        if self._choice.others.columns and not appears.all():
            records = np.flatnonzero(~appears[ids - 1])
            also = self._by_others(window, ordered, records, keep)
            if len(also):
                starts = ordered.places(np.flatnonzero(begins))
                rows = gathered(ordered.slab.rows, pa.binary(), starts)
                appears |= pc.is_in(rows, value_set=also).to_numpy(zero_copy_only=False)
        if appears.all():
            starts = np.flatnonzero(begins)
        else:
            starts = np.flatnonzero(begins)[appears]
            first = [places[appears] for places in first]
        rows = gathered(ordered.slab.rows, pa.binary(), ordered.places(starts))
        values = []
        columns = zip(self._choice.wanted.columns, ordered.slab.columns, first, strict=True)
        for at, ((id_, type_), column, places) in enumerate(columns):
            if id_ == ROW_EXISTS:
                continue
            array = gathered(column.values, type_, ordered.places(places))
            default = self._choice.defaults[at]
            if default is not None and (places < 0).any():
                array = pc.if_else(pa.array(places < 0), default, array)
            values.append(array)
        return ColumnsChunk(rows, tuple(values), window.rows)


def _has_any(ref: Ref, rows: RowRange) -> bool:
    return not isinstance(ref.source, MemoryOfColumns) or ref.source.has_any(rows.intersect(ref.rows))


def _overlaid(found: Sequence[ColumnsChunk], rows: RowRange) -> ColumnsChunk | None:
    """Each lies over the one before it. None: too much for one array, or rows that cannot be told apart quickly."""
    if not found:
        return _NO_ROWS
    columns = list(zip(*[each.values for each in found], strict=True))
    for column in columns:
        if sum([array.nbytes for array in column]) >= ARRAY_BYTES_MAX:
            return None
    overlay = overlaid([each.rows for each in found])
    if overlay is None:
        return None
    at = pa.array(overlay.places)
    values = [pa.concat_arrays(column).take(at) for column in columns]
    return ColumnsChunk(overlay.rows, tuple(values), rows, None if overlay.has_more else found[0].keys)


def is_plain(piece: Piece, question: ColumnsQuestion) -> bool:
    """Whether each record of the piece is exactly what a reader sees of its row."""
    stats = piece.fragment.file.stats
    if stats.rows != stats.records or stats.erasures or stats.markers or not is_inside(piece, question):
        return False
    if piece.fragment.spec.nulls == "written":
        return _has_one(piece, question.choice)
    return _says_all(piece, question.choice)


def is_inside(piece: Piece, question: ColumnsQuestion) -> bool:
    """Whether all records of the file are at or below the snapshot and in the times asked for, and none that is the
    newest of its row is purged."""
    file, asking = piece.fragment.file, question.asking
    if file.txn_max > asking.at or file.txn_min < asking.floor:
        return False
    ts_min, ts_max = times_of(piece)
    if ts_min < asking.time.start or ts_max >= asking.time.stop:
        return False
    if question.policy is None:
        return True
    policy = purging_of_columns(question.policy)
    return policy is None or not purges_newest(policy, Micros(ts_min), file.txn_min, asking.read_us)


def times_of(piece: Piece) -> tuple[int, int]:
    """The smallest and the largest time of the records of a piece."""
    file, stats = piece.fragment.file, piece.fragment.file.stats
    has_own = file.ts is None or piece.fragment.spec.has_ts
    return (stats.ts_min, stats.ts_max) if has_own else (file.ts, file.ts)  # type: ignore[return-value]


def lies_over(new: Piece, old: Piece, choice: ColumnChoice) -> bool:
    """Whether of two plain pieces, a record of the new one is all that is seen of its row."""
    if new.fragment.file.txn_min <= old.fragment.file.txn_max or times_of(new)[0] < times_of(old)[1]:
        return False
    return new.fragment.spec.nulls == "written" and has_all(new, choice.ids)


def has_all(piece: Piece, ids: frozenset[ColumnId]) -> bool:
    part = piece.ref.part
    return not isinstance(part, FamilySet) and ids <= part and ids <= piece.fragment.columns.keys()


def _has_one(piece: Piece, choice: ColumnChoice) -> bool:
    """Of a complete file, a record appears if any column by which rows appear is in it."""
    part = piece.ref.part
    return not isinstance(part, FamilySet) and not choice.appearing.isdisjoint(part & piece.fragment.columns.keys())


def _says_all(piece: Piece, choice: ColumnChoice) -> bool:
    """By every column of the file rows appear, so each record does. And none that is asked for has a default: a column
    not written, and NULL, read alike."""
    part, columns = piece.ref.part, piece.fragment.columns
    if isinstance(part, FamilySet) or not columns.keys() <= choice.appearing & part:
        return False
    return not any(default is not None and c.id in columns for c, default in zip(choice.columns, choice.defaults))  # noqa: B905


def only_distinct(slab: Slab) -> Slab:
    """Of columns that all records write alike, one; without those that none writes. The same rows have any of them."""
    mixed = [column for column in slab.columns if not isinstance(column.written, bool)]
    whole = [column for column in slab.columns if column.written is True]
    return replace(slab, columns=(*whole[:1], *mixed))


def window_slabs(window: ScanWindow, wanted: WantedColumns, *, keep: bool, with_values: bool = True) -> list[Slab]:
    """Without values, columns say only which records write them."""
    slabs = []
    for ref in window.memories:
        if isinstance(ref.source, MemoryOfColumns) and not isinstance(ref.part, FamilySet):
            raws = ref.source.raw(window.rows.intersect(ref.rows), with_values=with_values)
            slabs += [select_columns(raw, ref.part, wanted) for raw in raws]
    for piece in window.pieces:
        if isinstance(piece.ref.part, FamilySet):
            continue
        ids: list[ColumnId] = [id_ for id_, _ in wanted.columns if id_ in piece.ref.part]
        needed = piece.fragment.needed(ids) if with_values else piece.fragment.needed_marks(ids)
        for block in piece.read(needed, keep=keep):
            raw = block.raw_columns(window.rows.intersect(piece.rows), ids, with_values=with_values)
            slabs.append(select_columns(raw, piece.ref.part, wanted))
    return slabs
