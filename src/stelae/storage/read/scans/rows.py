"""A scan of one tablet state: rows with their typed key and the columns asked for, as Arrow batches in key order.

Each group is scanned apart (`streams` says which are); where several are, their rows are put side by side. A group of
cells gives one map column for each of its families, the wildcard group one map from `family:qualifier`. Batches follow
the windows of the scan, so memory is bounded by a few blocks of each source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from stelae.model.arrow import compute as pc
from stelae.model.ids import GroupId
from stelae.model.keys.vector import decode_array
from stelae.model.predicate.expr import Expr
from stelae.model.predicate.pruning import may_match
from stelae.model.predicate.selectors import ColumnSelector, Selectors
from stelae.model.predicate.vector import keep
from stelae.model.ranges import RangeSet, RowRange
from stelae.model.schema import ColumnsGroup
from stelae.storage.files.fragments import Fragments
from stelae.storage.merge.in_step import Chunk, in_step
from stelae.storage.merge.order import Flags, Positions, order_records
from stelae.storage.merge.overlay import overlaid
from stelae.storage.merge.pick import gathered
from stelae.storage.read.asking import Asking
from stelae.storage.read.markers import MarkersScan
from stelae.storage.read.scans.cells import CellsChunk, CellsQuestion, CellsScan, matching
from stelae.storage.read.scans.columns import ColumnsChunk, ColumnsQuestion, ColumnsScan
from stelae.storage.read.scans.shapes import CELLS_TYPE, OTHERS, ScanPart
from stelae.storage.read.scans.streams import Stream, prepared
from stelae.storage.read.scans.windows import Piece, block_bounds
from stelae.storage.tablet.state import TabletState

FEW_ROWS = 1_000
"""A limit up to which it pays to look at a little at a time."""


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """Every row that exists and `where` is true of, which is bound to the table's types. `having`: only those that have
    one of the columns; `beside`: only those that have nothing of that group, and no values of others. `plainly`: rows
    with erasures by the plain rule (for tests). `limit`: no more rows than that."""

    rows: RangeSet
    columns: Selectors
    asking: Asking
    where: Expr | None = None
    reverse: bool = False
    plainly: bool = False
    limit: int | None = None
    having: bool = False
    beside: GroupId | None = None


@dataclass(frozen=True, slots=True)
class RowBatch:
    """`rows` are the encoded keys of the batch's records."""

    rows: pa.Array
    batch: pa.RecordBatch

    def first(self, count: int) -> RowBatch:
        return RowBatch(self.rows.slice(0, count), self.batch.slice(0, count))


class RowScan:
    def __init__(self, state: TabletState, fragments: Fragments, request: ScanRequest) -> None:
        self._state = state
        self._fragments = fragments
        self._request = request
        self._prepared = prepared(state, request.columns, request.where, having=request.having, beside=request.beside)

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
        ways, reverse = self._prepared, self._request.reverse
        if ways.alone:
            for chunk in self._columns(ways.streams[0], rows, limit).chunks(reverse=reverse):
                batch = self._alone(chunk)
                if batch is not None:
                    yield batch
            return
        for chunks in in_step(list(self._chunks(rows, limit)), reverse=reverse):
            batch = self._assembled(chunks)
            if batch is not None:
                yield batch

    def _columns(self, stream: Stream, rows: RowRange, limit: int | None) -> ColumnsScan:
        request, options = self._request, stream.group.options
        few = limit if limit is not None and limit <= FEW_ROWS else None
        policy = stream.group.purging_at(request.asking.at)
        choice = stream.part.choice
        question = ColumnsQuestion(rows, choice, request.asking, policy, self._skips(), request.plainly, few)
        return ColumnsScan(stream.refs, self._fragments, question, options.in_memory)

    def _chunks(self, rows: RowRange, limit: int | None) -> Iterator[Iterator[Chunk]]:
        """Of each stream; and if there are rows that only files of groups of before know of, of those."""
        request = self._request
        existing = self._state.schema.existence_group
        few = limit if limit is not None and limit <= FEW_ROWS else None
        for stream in self._prepared.streams:
            group = stream.group
            if isinstance(group, ColumnsGroup):
                yield self._columns(stream, rows, limit).chunks(reverse=request.reverse)
            else:
                cells = CellsQuestion(
                    rows,
                    stream.part.selectors,
                    stream.has_all and group is existing,
                    request.asking,
                    group.purging_at(request.asking.at),
                    plainly=request.plainly,
                    limit=few,
                    has_all=stream.has_all,
                )
                cell_scan = CellsScan(stream.refs, self._fragments, cells, group.options.in_memory)
                yield cell_scan.chunks(reverse=request.reverse)
        if self._prepared.left_over:
            erasing = self._state.refs(existing.id)
            scan = MarkersScan(
                self._prepared.left_over, erasing, self._fragments, rows, request.asking, existing.options
            )
            yield scan.chunks(reverse=request.reverse)

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

    def _assembled(self, chunks: Sequence[Chunk | None]) -> RowBatch | None:
        codec, ways = self._state.schema.codec, self._prepared
        is_plain = not self._request.having and self._request.beside is None
        found = _around_one(chunks, ways.streams) if is_plain else None
        rows, places = found or _union([chunk.rows if chunk is not None else None for chunk in chunks])
        if self._request.having:
            rows, places = _of_some(rows, places, [stream.counts for stream in ways.streams], chunks)
        if self._request.beside is not None:
            return self._blank(chunks, rows, places)
        if not len(rows):
            return None
        keys = _keys_of(chunks, ways.streams, len(rows))
        arrays = dict(zip(codec.names, keys or decode_array(codec, rows), strict=True))
        for chunk, stream, at in zip(chunks, ways.streams, places):  # noqa: B905 - rows left over have no columns
            arrays |= _columns_of(chunk, stream, at, len(rows), self._request.columns)
        batch = pa.RecordBatch.from_arrays([arrays[name] for name in ways.shown.names], schema=ways.shown)
        return self._finished(rows, batch, arrays)

    def _blank(
        self, chunks: Sequence[Chunk | None], rows: pa.Array, places: Sequence[Positions | None]
    ) -> RowBatch | None:
        """Of these rows, those that one group has nothing of, without values."""
        codec, ways = self._state.schema.codec, self._prepared
        for chunk, stream, at in zip(chunks, ways.streams, places):  # noqa: B905 - rows left over are of no group
            if stream.group.id == self._request.beside and chunk is not None:
                rows = rows.slice(0, 0) if at is None else rows.filter(pa.array(at < 0))
        if not len(rows):
            return None
        arrays = dict(zip(codec.names, decode_array(codec, rows), strict=True))
        for stream in ways.blank:
            arrays |= _columns_of(None, stream, None, len(rows), self._request.columns)
        batch = pa.RecordBatch.from_arrays([arrays[name] for name in ways.shown.names], schema=ways.shown)
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


def _keys_of(chunks: Sequence[Chunk | None], streams: Sequence[Stream], count: int) -> tuple[pa.Array, ...] | None:
    """The typed keys, from a chunk that has them of all rows."""
    for chunk, stream in zip(chunks, streams):  # noqa: B905 - rows left over have no typed keys
        if isinstance(chunk, ColumnsChunk) and chunk.keys and stream.counts and len(chunk.rows) == count:
            return chunk.keys
    return None


def _looked_up(arrays: dict[str, pa.Array], name: str, count: int) -> pa.Array:
    return arrays[name] if name in arrays else pa.nulls(count, pa.binary())


def _columns_of(
    chunk: Chunk | None, stream: Stream, at: Positions | None, count: int, shown: Selectors
) -> dict[str, pa.Array]:
    """A stream's columns for all rows. `at`: where each row lies in the chunk, -1 if it does not; None: they are the
    same rows."""
    part = stream.part
    if isinstance(chunk, CellsChunk) or not isinstance(stream.group, ColumnsGroup):
        return _cells_of(chunk if isinstance(chunk, CellsChunk) else None, stream, at, count, shown)
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
    chunk: CellsChunk | None, stream: Stream, at: Positions | None, count: int, shown: Selectors
) -> dict[str, pa.Array]:
    """Maps hold what is `shown`; cells that are only asked for by a condition are columns of their own."""
    part = stream.part
    names = [*part.families, *([OTHERS] if part.is_wildcard else [])]
    if not names and not stream.asked:
        return {}
    if chunk is None:
        return dict.fromkeys(names, pa.array([[]] * count, CELLS_TYPE))
    row_of = np.repeat(np.arange(len(chunk.rows)), np.diff(chunk.offsets))
    if at is not None:
        into = np.full(len(chunk.rows), -1, np.intp)
        into[at[at >= 0]] = np.flatnonzero(at >= 0)
        row_of = into[row_of]
    if len(row_of) and (row_of < 0).any():
        chunk, row_of = _without_rows(chunk, row_of)
    visible = matching(chunk.family, chunk.qualifier, shown)
    found = {name: _map_of(chunk, part, name, row_of, count, visible) for name in names}
    for name in stream.asked:
        which = np.flatnonzero(matching(chunk.family, chunk.qualifier, (ColumnSelector(name, is_prefix=False),)))
        places = np.full(count, -1, np.intp)
        places[row_of[which]] = which
        found[name] = gathered(chunk.value, pa.binary(), places)
    return found


def _without_rows(chunk: CellsChunk, row_of: Positions) -> tuple[CellsChunk, Positions]:
    """Without the cells of rows that do not appear."""
    kept = np.flatnonzero(row_of >= 0)
    at = pa.array(kept)
    family, qualifier, value = chunk.family.take(at), chunk.qualifier.take(at), chunk.value.take(at)
    return replace(chunk, family=family, qualifier=qualifier, value=value), row_of[kept]


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


def _around_one(
    chunks: Sequence[Chunk | None], streams: Sequence[Stream]
) -> tuple[pa.Array, list[Positions | None]] | None:
    """The rows of all, and where each lies in the only chunk that has values; of the others, which only say what rows
    there are, that is not asked. None: there are several such chunks, or rows that cannot be told apart quickly."""
    valued = [at for at, stream in enumerate(streams) if stream.has_values]
    there = [at for at, chunk in enumerate(chunks) if chunk is not None]
    main = valued[0] if valued else there[0] if there else 0
    if len(valued) > 1 or main not in there:
        return None
    sources = [chunk.rows for at in (main, *(each for each in there if each != main)) if (chunk := chunks[at])]
    places: list[Positions | None] = [None] * len(chunks)
    if all(each.equals(sources[0]) for each in sources[1:]):
        return sources[0], places
    overlay = overlaid(sources, keeps_first=True)
    if overlay is None:
        return None
    if overlay.has_more:
        places[main] = np.where(overlay.places < len(sources[0]), overlay.places, -1)
    return overlay.rows, places


def _of_some(
    rows: pa.Array, places: Sequence[Positions | None], counts: Sequence[bool], chunks: Sequence[Chunk | None]
) -> tuple[pa.Array, list[Positions | None]]:
    """Only the rows that appear by one of the streams that count."""
    if all(counts) or not len(rows):
        return rows, list(places)
    appears = np.zeros(len(rows), np.bool_)
    for at, does_count, chunk in zip(places, counts, chunks, strict=True):
        if does_count and chunk is not None:
            appears |= True if at is None else at >= 0
    kept = np.flatnonzero(appears)
    where = [
        (None if chunk is None else kept) if at is None else at[kept] for at, chunk in zip(places, chunks, strict=True)
    ]
    return rows.take(pa.array(kept)), where


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
