"""A scan of one tablet state: rows with their typed key and the columns asked for, as Arrow batches in key order.

Each group is scanned apart; where several are, their rows are put side by side. A group of cells gives one map column
for each of its families, the wildcard group one map from `family:qualifier`. Batches follow the windows of the scan,
so memory is bounded by a few blocks of each source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stelae.model.arrow import to_arrow
from stelae.model.keys.vector import decode_array
from stelae.model.predicate.expr import Expr
from stelae.model.predicate.pruning import may_match
from stelae.model.predicate.selectors import ColumnSelector, Selectors, union_selectors
from stelae.model.predicate.vector import keep, names_of
from stelae.model.ranges import RangeSet, RowRange
from stelae.model.schema import CellsGroup, Column, ColumnsGroup, TableSchema
from stelae.storage.files.fragments import Fragments
from stelae.storage.merge.in_step import Chunk, in_step
from stelae.storage.merge.order import Flags, Positions, order_records
from stelae.storage.merge.pick import gathered
from stelae.storage.read.asking import Asking
from stelae.storage.read.markers import MarkersScan
from stelae.storage.read.scans.cells import CellsChunk, CellsQuestion, CellsScan, matching
from stelae.storage.read.scans.columns import ColumnsChunk, ColumnsQuestion, ColumnsScan, default_of
from stelae.storage.read.scans.windows import Piece, block_bounds
from stelae.storage.tablet.parts import LEFT_OVER, declared
from stelae.storage.tablet.state import TabletState

CELLS_TYPE = pa.map_(pa.string(), pa.binary())
OTHERS = "*"


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """`where` is bound to the table's types. `plainly`: rows with erasures by the plain rule (for tests)."""

    rows: RangeSet
    columns: Selectors
    asking: Asking
    where: Expr | None = None
    reverse: bool = False
    plainly: bool = False


@dataclass(frozen=True, slots=True)
class RowBatch:
    """`rows` are the encoded keys of the batch's records; `covers`: all rows of it that the scan gives are here."""

    rows: pa.Array
    batch: pa.RecordBatch
    covers: RowRange


@dataclass(frozen=True, slots=True)
class _Part:
    """What one stream contributes: columns, or cells by family; the wildcard group those of all families but `named`
    ones."""

    columns: tuple[Column, ...] = ()
    families: tuple[str, ...] = ()
    is_wildcard: bool = False
    named: frozenset[str] = frozenset()
    selectors: Selectors = ()

    def has_family(self, family: str) -> bool:
        return family in self.families or (self.is_wildcard and family not in self.named)


def output_schema(schema: TableSchema, columns: Selectors) -> pa.Schema:
    """What the batches of a scan look like."""
    return _known(schema, columns).shown


def _shown(schema: TableSchema, columns: Selectors) -> pa.Schema:
    fields = [pa.field(key.name, to_arrow(key.type), nullable=False) for key in schema.key]
    for part in _parts(schema, columns).values():
        fields += [pa.field(column.name, to_arrow(column.type)) for column in part.columns]
        fields += [pa.field(family, CELLS_TYPE) for family in part.families]
        fields += [pa.field(OTHERS, CELLS_TYPE)] if part.is_wildcard else []
    return pa.schema(fields)


ReadShape: TypeAlias = tuple[tuple[str, int, str], ...]
"""Names, ids, and types with defaults, of what a scan reads."""


def fixed(schema: TableSchema, columns: Selectors) -> Selectors:
    """The same choice by the names there are now: what is added later is not part of it. Families of the wildcard group
    have no fixed names."""
    return _known(schema, columns).fixed


def _fixed(schema: TableSchema, columns: Selectors) -> Selectors:
    parts = _parts(schema, columns)
    if any(part.is_wildcard for part in parts.values()):
        return columns
    chosen = [ColumnSelector(c.name, is_prefix=False) for part in parts.values() for c in part.columns]
    for part in parts.values():
        for family in part.families:
            whole = ColumnSelector(f"{family}:", is_prefix=True)
            chosen += [s for s in columns if s.text.startswith(whole.text)] or [whole]
    return union_selectors(chosen)


def read_shape(schema: TableSchema, request: ScanRequest) -> ReadShape:
    asked = names_of(request.where) if request.where is not None else frozenset[str]()
    needed = [ColumnSelector(name, is_prefix=False) for name in asked]
    ids = declared(schema)
    shape: list[tuple[str, int, str]] = []
    for part in _parts(schema, union_selectors([*request.columns, *needed])).values():
        shape += [(column.name, column.id, str(column)) for column in part.columns]
        shape += [(family, ids[family], "") for family in part.families]
        shape += [(OTHERS, 0, "")] if part.is_wildcard else []
    return tuple(sorted(shape))


_PARTS_MAX = 256
_chosen: dict[tuple[int, Selectors], _Choice] = {}


class _Choice:
    """What a choice of columns comes to, kept for the next scan. By the schema's identity: to hash one would cost more
    than to look through it."""

    def __init__(self, schema: TableSchema, columns: Selectors) -> None:
        self.schema = schema
        self._columns = columns
        self.parts = _parts_of(schema, columns)

    @cached_property
    def shown(self) -> pa.Schema:
        return _shown(self.schema, self._columns)

    @cached_property
    def fixed(self) -> Selectors:
        return _fixed(self.schema, self._columns)


def _known(schema: TableSchema, columns: Selectors) -> _Choice:
    found = _chosen.get((id(schema), columns))
    if found is None or found.schema is not schema:
        if len(_chosen) >= _PARTS_MAX:
            _chosen.clear()
        found = _chosen[(id(schema), columns)] = _Choice(schema, columns)
    return found


def _parts(schema: TableSchema, columns: Selectors) -> dict[int, _Part]:
    return _known(schema, columns).parts


def _parts_of(schema: TableSchema, columns: Selectors) -> dict[int, _Part]:
    parts: dict[int, _Part] = {}
    for group in schema.groups:
        match group:
            case ColumnsGroup():
                chosen = tuple(c for c in group.columns if any(s.matches(c.name) for s in columns))
                if chosen:
                    parts[group.id] = _Part(columns=chosen)
            case CellsGroup():
                families = tuple(f.name for f in group.families if _touches(f.name, columns))
                others = group.wildcard and any(":" in s.text or s.is_prefix for s in columns)
                if families or others:
                    named = frozenset(declared(schema))
                    parts[group.id] = _Part((), families, others, named, columns)
    return parts


def _touches(family: str, columns: Selectors) -> bool:
    name = f"{family}:"
    return any(s.text.startswith(name) or (s.is_prefix and name.startswith(s.text)) for s in columns)


class RowScan:
    def __init__(self, state: TabletState, fragments: Fragments, request: ScanRequest) -> None:
        self._state = state
        self._fragments = fragments
        self._request = request
        asked = names_of(request.where) if request.where is not None else frozenset[str]()
        self._shown = output_schema(state.schema, request.columns)
        needed = [ColumnSelector(name, is_prefix=False) for name in asked]
        self._read = union_selectors([*request.columns, *needed])
        self._parts = _parts(state.schema, self._read)
        self._asked = asked

    def batches(self) -> Iterator[RowBatch]:
        ranges = [each.intersect(self._state.rows) for each in self._request.rows]
        for rows in reversed(ranges) if self._request.reverse else ranges:
            if not rows.is_empty:
                yield from self._range(rows)

    def _range(self, rows: RowRange) -> Iterator[RowBatch]:
        streams = list(self._streams(rows))
        reverse = self._request.reverse
        joined = in_step([stream for stream, _ in streams], reverse=reverse)
        for chunks, covers in joined:
            batch = self._assembled(chunks, [part for _, part in streams], covers)
            if batch is not None:
                yield batch

    def _streams(self, rows: RowRange) -> Iterator[tuple[Iterator[Chunk], _Part]]:
        state, request = self._state, self._request
        existing = state.schema.existence_group
        for group in state.schema.groups:
            part = self._parts.get(group.id, _Part())
            exists = group is existing
            if group.id not in self._parts and not (exists and _has_markers(state)):
                continue
            refs, policy = state.refs(group.id), group.options.purging_at(request.asking.at)
            match group:
                case ColumnsGroup():
                    columns = ColumnsQuestion(
                        rows, part.columns, exists, request.asking, policy, self._skips(), request.plainly
                    )
                    scan = ColumnsScan(refs, self._fragments, columns, group.options.in_memory)
                    yield scan.chunks(reverse=request.reverse), part
                case CellsGroup():
                    cells = CellsQuestion(rows, part.selectors, exists, request.asking, policy, plainly=request.plainly)
                    cell_scan = CellsScan(refs, self._fragments, cells, group.options.in_memory)
                    yield cell_scan.chunks(reverse=request.reverse), part
        yield from self._left_over(rows)

    def _skips(self) -> Callable[[Piece], bool] | None:
        """Blocks can be passed over by their statistics where one group alone decides about a row."""
        where = self._request.where
        if where is None or len(self._state.schema.groups) > 1 or self._state.refs(LEFT_OVER):
            return None
        ids = {c.name: c.id for part in self._parts.values() for c in part.columns}
        return lambda piece: not may_match(where, lambda name: block_bounds(piece, ids.get(name)))

    def _left_over(self, rows: RowRange) -> Iterator[tuple[Iterator[Chunk], _Part]]:
        request, state = self._request, self._state
        if state.refs(LEFT_OVER):
            existing = state.schema.existence_group
            scan = MarkersScan(
                state.refs(LEFT_OVER), state.refs(existing.id), self._fragments, rows, request.asking, existing.options
            )
            yield scan.chunks(reverse=request.reverse), _Part()

    def _assembled(self, chunks: Sequence[Chunk | None], parts: Sequence[_Part], covers: RowRange) -> RowBatch | None:
        rows, places = _union([chunk.rows if chunk is not None else None for chunk in chunks])
        if not len(rows):
            return None
        codec = self._state.schema.codec
        keys = next(
            (c.keys for c in chunks if isinstance(c, ColumnsChunk) and c.keys and len(c.rows) == len(rows)), None
        )
        arrays = dict(zip(codec.names, keys or decode_array(codec, rows), strict=True))
        for chunk, part, at in zip(chunks, parts, places, strict=True):
            arrays |= _columns_of(chunk, part, at, len(rows), self._asked, self._request.columns)
        batch = pa.RecordBatch.from_arrays([arrays[f.name] for f in self._shown], schema=self._shown)
        where = self._request.where
        if where is not None:
            kept = keep(where, lambda name: rows if name == "row" else _looked_up(arrays, name, len(rows)), len(rows))
            if kept.true_count < len(rows):
                batch, rows = batch.filter(kept), rows.filter(kept)
        if self._request.reverse:
            back = pa.array(np.arange(len(rows) - 1, -1, -1))
            batch, rows = batch.take(back), rows.take(back)
        return RowBatch(rows, batch, covers) if len(rows) else None


def _looked_up(arrays: dict[str, pa.Array], name: str, count: int) -> pa.Array:
    return arrays[name] if name in arrays else pa.nulls(count, pa.binary())


def _has_markers(state: TabletState) -> bool:
    """Whether a put of the key alone may be in the group that keeps them: files say how many they have."""
    refs = state.refs(state.schema.existence_group.id)
    return any(ref.file is None or ref.file.stats.markers or not ref.file.stats.rows for ref in refs)


def _columns_of(
    chunk: Chunk | None, part: _Part, at: Positions | None, count: int, asked: frozenset[str], shown: Selectors
) -> dict[str, pa.Array]:
    """A stream's columns for all rows. `at`: where each row lies in the chunk, -1 if it does not; None: they are the
    same rows."""
    if isinstance(chunk, CellsChunk) or part.selectors:
        return _cells_of(chunk if isinstance(chunk, CellsChunk) else None, part, at, count, asked, shown)
    found: dict[str, pa.Array] = {}
    for number, column in enumerate(part.columns):
        type_, default = to_arrow(column.type), default_of(column)
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
    chunk: CellsChunk | None, part: _Part, at: Positions | None, count: int, asked: frozenset[str], shown: Selectors
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


def _map_of(chunk: CellsChunk, part: _Part, name: str, row_of: Positions, count: int, visible: Flags) -> pa.Array:
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
