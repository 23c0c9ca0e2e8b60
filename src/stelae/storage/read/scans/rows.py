"""A scan of one tablet state: rows with their typed key and the columns asked for, as Arrow batches in key order.

Each group is scanned apart; where several are, their rows are put side by side. A group of cells gives one map column
for each of its families, the wildcard group one map from `family:qualifier`. Batches follow the windows of the scan,
so memory is bounded by a few blocks of each source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stelae.model.keys.vector import decode_array
from stelae.model.predicate.expr import Expr
from stelae.model.predicate.pruning import may_match
from stelae.model.predicate.selectors import ColumnSelector, Selectors
from stelae.model.predicate.vector import keep
from stelae.model.purge import purging_at
from stelae.model.ranges import RangeSet, RowRange
from stelae.model.schema import ColumnsGroup, Group
from stelae.storage.files.fragments import Fragments
from stelae.storage.merge.in_step import Chunk, in_step
from stelae.storage.merge.order import Flags, Positions, order_records
from stelae.storage.merge.pick import gathered
from stelae.storage.read.asking import Asking
from stelae.storage.read.markers import MarkersScan
from stelae.storage.read.points.rows import READERS_MAX
from stelae.storage.read.scans.cells import CellsChunk, CellsQuestion, CellsScan, matching
from stelae.storage.read.scans.choices import ColumnChoice
from stelae.storage.read.scans.columns import ColumnsChunk, ColumnsQuestion, ColumnsScan
from stelae.storage.read.scans.shapes import CELLS_TYPE, OTHERS, ScanPart, asked_by, output_schema, parts_of, with_asked
from stelae.storage.read.scans.windows import Piece, block_bounds
from stelae.storage.tablet.parts import LEFT_OVER
from stelae.storage.tablet.state import Ref, TabletState

FEW_ROWS = 1_000
"""A limit up to which it pays to look at a little at a time."""
_NOTHING_ASKED = frozenset[str]()


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """`where` is bound to the table's types. `plainly`: rows with erasures by the plain rule (for tests). `limit`: no
    more rows than that."""

    rows: RangeSet
    columns: Selectors
    asking: Asking
    where: Expr | None = None
    reverse: bool = False
    plainly: bool = False
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class RowBatch:
    """`rows` are the encoded keys of the batch's records."""

    rows: pa.Array
    batch: pa.RecordBatch

    def first(self, count: int) -> RowBatch:
        return RowBatch(self.rows.slice(0, count), self.batch.slice(0, count))


class _Prepared:
    """How a choice of columns is read from one state of a tablet, whatever the rows and the snapshot: kept with the
    state. `streams`: the groups that are read, and what each contributes; `alone`: what the only one does, if the
    columns that it reads are those that are shown."""

    __slots__ = ("alone", "asked", "ids", "in_one", "left_over", "shown", "streams")

    def __init__(self, state: TabletState, columns: Selectors, asked: frozenset[str]) -> None:
        schema = state.schema
        read = with_asked(columns, asked)
        parts, existing = parts_of(schema, read), schema.existence_group
        self.asked = asked
        self.shown = output_schema(schema, columns)
        self.left_over = state.refs(LEFT_OVER)
        self.streams = tuple(
            (group, parts.get(group.id, _NO_PART), state.refs(group.id))
            for group in schema.groups
            if group.id in parts or (group is existing and _has_markers(state))
        )
        self.in_one = len(schema.groups) == 1 and not self.left_over
        self.ids = {column.name: column.id for part in parts.values() for column in part.columns}
        is_alone = len(self.streams) == 1 and not self.left_over and read == columns
        self.alone = is_alone and isinstance(self.streams[0][0], ColumnsGroup)


_NO_PART = ScanPart(choice=ColumnChoice((), exists=True))
_MARKED = ScanPart()


def _prepared(state: TabletState, columns: Selectors, where: Expr | None) -> _Prepared:
    at = (columns, asked_by(where)) if where is not None else (columns, _NOTHING_ASKED)
    found = state.readers.get(at)
    if not isinstance(found, _Prepared):
        if len(state.readers) >= READERS_MAX:
            state.readers.clear()
        found = state.readers[at] = _Prepared(state, *at)
    return found


class RowScan:
    def __init__(self, state: TabletState, fragments: Fragments, request: ScanRequest) -> None:
        self._state = state
        self._fragments = fragments
        self._request = request
        self._prepared = _prepared(state, request.columns, request.where)

    def batches(self) -> Iterator[RowBatch]:
        limit, reverse = self._request.limit, self._request.reverse
        low, high = self._state.rows.start, self._state.rows.stop
        ranges = self._request.rows.ranges
        for rows in reversed(ranges) if reverse else ranges:
            if rows.start < low or high is not None:
                rows = rows.intersect(self._state.rows)
                if rows.is_empty:
                    continue
            for found in self._range(rows, limit):
                if limit is not None:
                    if len(found.rows) >= limit:
                        yield found if len(found.rows) == limit else found.first(limit)
                        return
                    limit -= len(found.rows)
                yield found

    def _range(self, rows: RowRange, limit: int | None) -> Iterator[RowBatch]:
        prepared, reverse = self._prepared, self._request.reverse
        if prepared.alone:
            group, part, refs = prepared.streams[0]
            for chunk in self._columns(group, part, refs, rows, limit).chunks(reverse=reverse):
                batch = self._alone(chunk)
                if batch is not None:
                    yield batch
            return
        streams = list(self._streams(rows, limit))
        for chunks in in_step([stream for stream, _ in streams], reverse=reverse):
            batch = self._assembled(chunks, [part for _, part in streams])
            if batch is not None:
                yield batch

    def _columns(
        self, group: Group, part: ScanPart, refs: Sequence[Ref], rows: RowRange, limit: int | None
    ) -> ColumnsScan:
        request, options = self._request, group.options
        few = limit if limit is not None and limit <= FEW_ROWS else None
        policy = purging_at(options.purging, request.asking.at)
        question = ColumnsQuestion(rows, part.choice, request.asking, policy, self._skips(), request.plainly, few)
        return ColumnsScan(refs, self._fragments, question, options.in_memory)

    def _streams(self, rows: RowRange, limit: int | None) -> Iterator[tuple[Iterator[Chunk], ScanPart]]:
        request, prepared = self._request, self._prepared
        existing = self._state.schema.existence_group
        few = limit if limit is not None and limit <= FEW_ROWS else None
        for group, part, refs in prepared.streams:
            if isinstance(group, ColumnsGroup):
                yield self._columns(group, part, refs, rows, limit).chunks(reverse=request.reverse), part
            else:
                policy = group.purging_at(request.asking.at)
                exists = group is existing
                cells = CellsQuestion(
                    rows, part.selectors, exists, request.asking, policy, plainly=request.plainly, limit=few
                )
                cell_scan = CellsScan(refs, self._fragments, cells, group.options.in_memory)
                yield cell_scan.chunks(reverse=request.reverse), part
        if prepared.left_over:
            erasing = self._state.refs(existing.id)
            scan = MarkersScan(prepared.left_over, erasing, self._fragments, rows, request.asking, existing.options)
            yield scan.chunks(reverse=request.reverse), _MARKED

    def _skips(self) -> Callable[[Piece], bool] | None:
        """Blocks can be passed over by their statistics where one group alone decides about a row."""
        where, ids = self._request.where, self._prepared.ids
        if where is None or not self._prepared.in_one:
            return None
        return lambda piece: not may_match(where, lambda name: block_bounds(piece, ids.get(name)))

    def _alone(self, chunk: ColumnsChunk) -> RowBatch | None:
        """Of the only group that is read: its rows are all there are, and its columns all that is shown."""
        rows, shown = chunk.rows, self._prepared.shown
        keys = chunk.keys or decode_array(self._state.schema.codec, rows)
        batch = pa.RecordBatch.from_arrays([*keys, *chunk.values], schema=shown)
        if self._request.where is None and not self._request.reverse:
            return RowBatch(rows, batch)
        return self._finished(rows, batch, dict(zip(shown.names, batch.columns, strict=True)))

    def _assembled(self, chunks: Sequence[Chunk | None], parts: Sequence[ScanPart]) -> RowBatch | None:
        rows, places = _union([chunk.rows if chunk is not None else None for chunk in chunks])
        if not len(rows):
            return None
        codec, prepared = self._state.schema.codec, self._prepared
        keys = next(
            (c.keys for c in chunks if isinstance(c, ColumnsChunk) and c.keys and len(c.rows) == len(rows)), None
        )
        arrays = dict(zip(codec.names, keys or decode_array(codec, rows), strict=True))
        for chunk, part, at in zip(chunks, parts, places, strict=True):
            arrays |= _columns_of(chunk, part, at, len(rows), prepared.asked, self._request.columns)
        batch = pa.RecordBatch.from_arrays([arrays[name] for name in prepared.shown.names], schema=prepared.shown)
        return self._finished(rows, batch, arrays)

    def _finished(self, rows: pa.Array, batch: pa.RecordBatch, arrays: dict[str, pa.Array]) -> RowBatch | None:
        """Without the rows of which the condition is not true; in the order asked for."""
        where = self._request.where
        if where is not None:
            count = len(rows)
            kept = keep(where, lambda name: rows if name == "row" else _looked_up(arrays, name, count), count)
            if kept.true_count < len(rows):
                batch, rows = batch.filter(kept), rows.filter(kept)
        if self._request.reverse:
            back = pa.array(np.arange(len(rows) - 1, -1, -1))
            batch, rows = batch.take(back), rows.take(back)
        return RowBatch(rows, batch) if len(rows) else None


def _looked_up(arrays: dict[str, pa.Array], name: str, count: int) -> pa.Array:
    return arrays[name] if name in arrays else pa.nulls(count, pa.binary())


def _has_markers(state: TabletState) -> bool:
    """Whether a put of the key alone may be in the group that keeps them: files say how many they have."""
    refs = state.refs(state.schema.existence_group.id)
    return any(ref.file is None or ref.file.stats.markers or not ref.file.stats.rows for ref in refs)


def _columns_of(
    chunk: Chunk | None, part: ScanPart, at: Positions | None, count: int, asked: frozenset[str], shown: Selectors
) -> dict[str, pa.Array]:
    """A stream's columns for all rows. `at`: where each row lies in the chunk, -1 if it does not; None: they are the
    same rows."""
    if isinstance(chunk, CellsChunk) or part.selectors:
        return _cells_of(chunk if isinstance(chunk, CellsChunk) else None, part, at, count, asked, shown)
    found: dict[str, pa.Array] = {}
    for number, column in enumerate(part.columns):
        type_, default = part.choice.types[number][1], part.choice.defaults[number]
        if chunk is None or at is None:
            array = pa.nulls(count, type_) if chunk is None else chunk.values[number]
            missing = np.full(count, chunk is None)
        else:
            array, missing = gathered(chunk.values[number], type_, at), at < 0
        if default is not None and missing.any():
            array = pc.if_else(pa.array(missing), default, array)
        found[column.name] = array
    return found


def _cells_of(
    chunk: CellsChunk | None, part: ScanPart, at: Positions | None, count: int, asked: frozenset[str], shown: Selectors
) -> dict[str, pa.Array]:
    """Maps hold what is `shown`; cells that are only asked for by a condition are columns of their own."""
    empty = pa.array([[]] * count, CELLS_TYPE)
    names = [*part.families, *([OTHERS] if part.is_wildcard else [])]
    if chunk is None:
        return dict.fromkeys(names, empty)
    row_of = np.repeat(np.arange(len(chunk.rows)), np.diff(chunk.offsets))
    if at is not None:
        into = np.full(len(chunk.rows), -1, np.intp)
        into[at[at >= 0]] = np.flatnonzero(at >= 0)
        row_of = into[row_of]
    visible = matching(chunk.family, chunk.qualifier, shown)
    found = {name: _map_of(chunk, part, name, row_of, count, visible) for name in names}
    for name in asked:
        family, colon, qualifier = name.partition(":")
        if colon and part.has_family(family):
            selector = (ColumnSelector(f"{family}:{qualifier}", is_prefix=False),)
            which = np.flatnonzero(matching(chunk.family, chunk.qualifier, selector))
            places = np.full(count, -1, np.intp)
            places[row_of[which]] = which
            found[name] = gathered(chunk.value, pa.binary(), places)
    return found


def _map_of(chunk: CellsChunk, part: ScanPart, name: str, row_of: Positions, count: int, visible: Flags) -> pa.Array:
    if name == OTHERS:
        named = pc.is_in(chunk.family, pa.array([f.encode() for f in part.families], pa.binary()))
        which = np.flatnonzero(visible & ~named.to_numpy(zero_copy_only=False))
    else:
        which = np.flatnonzero(visible & pc.equal(chunk.family, name.encode()).to_numpy(zero_copy_only=False))
    at = pa.array(which)
    keys = chunk.qualifier.take(at).view(pa.string())
    if name == OTHERS:
        keys = pc.binary_join_element_wise(chunk.family.take(at).view(pa.string()), keys, ":")
    offsets = np.concatenate(([0], np.cumsum(np.bincount(row_of[which], minlength=count)))).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(offsets), keys, chunk.value.take(at))


def _union(rows: Sequence[pa.Array | None]) -> tuple[pa.Array, list[Positions | None]]:
    """The rows of all, each once, in order, and where each lies in each of them (None: the same rows)."""
    there = [each for each in rows if each is not None]
    if not there:
        return pa.array([], pa.binary()), [None] * len(rows)
    if all(each.equals(there[0]) for each in there[1:]):
        return there[0], [None] * len(rows)
    joined = pa.concat_arrays(there)
    nothing = np.zeros(len(joined), np.int64)
    ordering = order_records(joined, None, nothing, nothing, None)
    order = ordering.positions if ordering.positions is not None else np.arange(len(joined))
    ids = np.cumsum(ordering.begins) - 1
    count = int(ids[-1]) + 1
    union = joined.take(pa.array(order[ordering.begins]))
    of = np.empty(len(joined), np.intp)
    of[order] = ids
    places: list[Positions | None] = []
    start = 0
    for each in rows:
        at = np.full(count, -1, np.intp)
        if each is not None:
            at[of[start : start + len(each)]] = np.arange(len(each))
            start += len(each)
        places.append(at)
    return union, places
