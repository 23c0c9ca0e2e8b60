"""Records of one group, from unsorted tables or sorted runs, into one sorted stream in which each stands once.

A run is sorted at once while it fits into memory. Several sorted runs are merged a window at a time: of each run some
blocks are at hand, and all records below the least of their last rows can be put in order, since no run has more of
those. So all records of one row are always in one window, and memory is bounded by a few blocks of each run.

Records are the same if they are of one row; of one cell and time, in a group of cells. What stands twice is counted,
and of it one remains: the one with the greatest place in the frame (`_txn` until then). Where nulls are columns left
untouched, each column has its value from the latest record that writes it. A row that is both erased and put goes by
its latest mention.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from stelae.format import layout
from stelae.format.fragment.footer import FragmentSpec
from stelae.model.arrow import compute as pc
from stelae.model.record import Kind
from stelae.storage.merge.order import Flags, Ints, Ordering, Positions, order_records, shared_bytes
from stelae.storage.merge.pick import first_of_each, gathered

__all__ = [
    "SAMPLES_MAX",
    "SAYS_NOTHING",
    "Flags",
    "Ints",
    "Positions",
    "Twice",
    "first_at",
    "merged",
    "sorted_run",
    "unique",
]

SLICE_ROWS = 65_536
SAMPLES_MAX = 5

SAYS_NOTHING = Kind.ERASE_VERSION
"""Marks, until the mentions of a row are sorted out, a record that says nothing. Loads have no such erasures."""


class Twice(msgspec.Struct):
    """What stood twice so far: how often, and some of the rows."""

    count: int = 0
    rows: list[bytes] = msgspec.field(default_factory=list)

    def add(self, rows: pa.Array, positions: Positions) -> None:
        self.count += len(positions)
        room = SAMPLES_MAX - len(self.rows)
        for at in positions[:room].tolist() if room > 0 else ():
            row = rows[at].as_py()
            if row not in self.rows:
                self.rows.append(row)


def sorted_run(spec: FragmentSpec, tables: Sequence[pa.Table]) -> Iterator[pa.Table]:
    """All of the records in order, a slice at a time; what stands twice stays so."""
    whole = _whole(tables)
    positions = _positions(_ordering(spec, whole), whole.num_rows)
    for at in range(0, len(positions), SLICE_ROWS):
        yield whole.take(pa.array(positions[at : at + SLICE_ROWS]))


def merged(spec: FragmentSpec, runs: Sequence[Iterable[pa.Table]], twice: Twice) -> Iterator[pa.Table]:
    """Runs that are each in order, as one stream."""
    cursors = [_Cursor(iter(run)) for run in runs]
    while True:
        cursors = [cursor for cursor in cursors if cursor.fill()]
        if not cursors:
            return
        going_on = [cursor.last_row for cursor in cursors if not cursor.is_over]
        bound = min(going_on) if going_on else None
        parts = [part for cursor in cursors if (part := cursor.take(bound)).num_rows]
        if parts:
            yield from unique(spec, parts, twice)
        else:  # all that is at hand is of one row, which goes on
            for cursor in cursors:
                if not cursor.is_over and cursor.last_row == bound:
                    cursor.extend()


def unique(spec: FragmentSpec, tables: Sequence[pa.Table], twice: Twice) -> Iterator[pa.Table]:
    """Tables that hold all records of their rows, in order, each record once."""
    whole = _whole(tables)
    if not whole.num_rows:
        return
    ordering = _ordering(spec, whole)
    positions = _positions(ordering, whole.num_rows)
    begins = _begins(spec, whole, ordering, positions)
    if spec.has_kind:
        kept, counted = _sorted_out(whole, ordering, positions, begins)
    else:
        kept, counted = begins, ~begins
    if counted.any():
        twice.add(_array(whole, layout.ROW), positions[counted])
        if spec.kind == "columns" and spec.nulls == "unwritten":
            yield from _merged_columns(spec, whole, positions, begins)
            return
    if not kept.all():
        positions = positions[kept]
    whole = whole.drop_columns([layout.TXN])  # the place in the frame: each record stands once now
    for at in range(0, len(positions), SLICE_ROWS):
        yield whole.take(pa.array(positions[at : at + SLICE_ROWS]))


def _whole(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).combine_chunks()


def _array(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _ordering(spec: FragmentSpec, table: pa.Table) -> Ordering:
    rows = _array(table, layout.ROW)
    cell = None
    if spec.kind == "cells":
        family, qualifier = (_array(table, name).cast(pa.binary()) for name in (layout.FAMILY, layout.QUALIFIER))
        cell = family, qualifier
    ends = pc.min_max(rows).as_py()
    shared = shared_bytes([pa.array([ends["min"], ends["max"]], pa.binary())]) if table.num_rows else 0
    return order_records(rows, cell, _times(spec, table), _array(table, layout.TXN).to_numpy(), None, shared)


def _times(spec: FragmentSpec, table: pa.Table) -> Ints:
    if not spec.has_ts:
        return np.zeros(table.num_rows, np.int64)
    times: Ints = _array(table, layout.TS).view(pa.int64()).to_numpy()
    return times


def _positions(ordering: Ordering, count: int) -> Positions:
    return np.arange(count) if ordering.positions is None else ordering.positions


def _begins(spec: FragmentSpec, table: pa.Table, ordering: Ordering, positions: Positions) -> Flags:
    """Where another record begins."""
    if ordering.cell_begins is None:
        return ordering.begins
    begins = ordering.cell_begins.copy()
    if spec.has_ts:
        times = _times(spec, table)[positions]
        begins[1:] |= times[1:] != times[:-1]
    return begins


def _sorted_out(table: pa.Table, ordering: Ordering, positions: Positions, begins: Flags) -> tuple[Flags, Flags]:
    """Where rows may be erased: records that say something and that no later word on their row takes back; and those
    that count as said twice. A row's first record is the latest word on it, in a group of cells on the whole of it."""
    kinds = _array(table, layout.KIND).to_numpy()[positions]
    first = np.flatnonzero(ordering.begins)
    row = np.cumsum(ordering.begins) - 1
    erasures = kinds == Kind.ERASE_ROW
    latest_erases, any_erases = erasures[first][row], np.logical_or.reduceat(erasures, first)[row]
    kept: Flags = begins & (kinds != SAYS_NOTHING) & (ordering.begins | ~latest_erases)
    return kept, ~begins & ((kinds == Kind.PUT) | any_erases)


def _merged_columns(spec: FragmentSpec, table: pa.Table, positions: Positions, first: Flags) -> Iterator[pa.Table]:
    """Of each row one record, each column from the latest that writes it."""
    ids = np.cumsum(first, dtype=np.int64)
    count = int(ids[-1])
    columns = {name: table.column(name).take(pa.array(positions[first])) for name in table.column_names}
    for column in spec.columns:
        values = _array(table, column.name)
        written = values.is_valid().to_numpy(zero_copy_only=False)[positions]
        places = first_of_each(ids, written, count)
        columns[column.name] = gathered(values, values.type, np.where(places < 0, -1, positions[places]))
    yield pa.table(columns)


class _Cursor:
    """What is at hand of a sorted run."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables = tables
        self._at_hand: pa.Table | None = None
        self.is_over = False

    @property
    def last_row(self) -> bytes:
        rows = self._rows()
        row: bytes = rows[len(rows) - 1].as_py()
        return row

    def _rows(self) -> pa.ChunkedArray:
        return pa.chunked_array([], pa.binary()) if self._at_hand is None else self._at_hand.column(layout.ROW)

    def fill(self) -> bool:
        """Read on until some rows are at hand; False: there are no more."""
        while not len(self._rows()) and not self.is_over:
            self.extend()
        return len(self._rows()) > 0

    def extend(self) -> None:
        more = next(self._tables, None)
        self.is_over = more is None
        if more is not None and more.num_rows:
            self._at_hand = _whole([more] if self._at_hand is None else [self._at_hand, more])

    def take(self, below: bytes | None) -> pa.Table:
        """Take the records below a row off those at hand, or all of them (None), and return them."""
        at_hand = self._at_hand
        if at_hand is None:
            return pa.table({})
        rows = _array(at_hand, layout.ROW)
        count = len(rows) if below is None else first_at(rows, below)
        self._at_hand = at_hand.slice(count)
        return at_hand.slice(0, count)


def first_at(rows: pa.Array | pa.ChunkedArray, row: bytes, low: int = 0) -> int:
    """The first place, from `low` on, where sorted rows are at or above one."""
    if not len(rows) or rows[len(rows) - 1].as_py() < row:
        return len(rows)
    high = len(rows)
    while low < high:
        middle = (low + high) // 2
        if rows[middle].as_py() < row:
            low = middle + 1
        else:
            high = middle
    return low
