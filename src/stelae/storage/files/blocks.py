"""Decoded blocks of a fragment: rows found in them, records read from them, one at a time or as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from operator import eq
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from stelae.format import layout
from stelae.format.fragment.footer import FragmentFile, FragmentSpec
from stelae.model.arrow_values import reader_of, values_of
from stelae.model.ids import ColumnId, Micros, Txn
from stelae.model.ranges import RowRange
from stelae.model.record import ROW_EXISTS, Kind
from stelae.model.types import ColumnType, parse_type
from stelae.model.values import Value
from stelae.storage.files.warm import (
    WARM_HITS_MIN,
    WARM_ROWS_AT_ONCE,
    WARM_ROWS_PER_HIT,
    WARMING,
    FewRows,
    Warming,
    WarmRows,
)
from stelae.storage.memory.cells import CellVersion
from stelae.storage.memory.columns import ColumnsVersion
from stelae.storage.merge.order import Flags, Ints, extent
from stelae.storage.merge.places import RowPlaces
from stelae.storage.merge.select import RawCells, RawColumns
from stelae.storage.merge.slab import SlabColumn, as_bytes

_KINDS = tuple(Kind)


_BINARY = parse_type("binary")
_STRING = parse_type("string")


class BlockShape(msgspec.Struct, frozen=True):
    """What all blocks of a file have in common. `places`: where the value columns stand in masks."""

    file: FragmentFile
    spec: FragmentSpec
    columns: Mapping[ColumnId, tuple[str, ColumnType]]
    places: Mapping[ColumnId, int]


class Block:
    """Decoded columns of one row group. More columns may come; none ever goes or changes."""

    def __init__(self, shape: BlockShape, rows: pa.Array, columns: dict[str, pa.Array]) -> None:
        self._shape = shape
        self.rows = rows
        self.columns = columns
        self.complete_for: set[tuple[str, ...]] = set()
        self._places = RowPlaces(rows)
        self.find = self._places.find
        """Where a row's records begin and end."""
        self._readers: dict[str, Callable[[int], Value]] = {}
        self._getters: dict[tuple[ColumnId, ...], tuple[tuple[ColumnId, Callable[[int], Value]], ...]] = {}
        self._named: dict[tuple[tuple[ColumnId, str], ...], tuple[tuple[str, Callable[[int], Value]], ...]] = {}
        self._stamp: Callable[[int], tuple[Micros, Txn, Kind]] | None = None
        self._hits = 0
        self._warming: Warming | None = None
        self.warm: WarmRows | None = None

    @property
    def size_bytes(self) -> int:
        return sum(array.nbytes for array in self.columns.values()) + self.rows.nbytes

    def extent(self, rows: RowRange, *, often: bool = False) -> tuple[int, int]:
        """Where a range begins and ends. `often`: the block stays, so it pays to be prepared for such questions."""
        return self._places.extent(rows) if often or self._places.is_ready else extent(self.rows, rows)

    def reader(self, name: str, type_: ColumnType) -> Callable[[int], Value]:
        found = self._readers.get(name)
        if found is None:
            found = self._readers[name] = reader_of(type_, self.columns[name])
        return found

    def _numbers(self, name: str) -> Callable[[int], int] | None:
        """Of a system column; None if the file has no such column."""
        if name not in self.columns:
            return None
        width = pa.int8() if name == layout.KIND else pa.int64()
        values = self.columns[name].view(width).to_numpy(zero_copy_only=False)
        return memoryview(np.ascontiguousarray(values).data).__getitem__

    def stamp(self, at: int) -> tuple[Micros, Txn, Kind]:
        found = self._stamp
        if found is None:
            found = self._stamp = self._stamper()
        return found(at)

    def _stamper(self) -> Callable[[int], tuple[Micros, Txn, Kind]]:
        file = self._shape.file
        given_ts, given_txn = file.ts or Micros(0), file.txn or Txn(0)
        ts_of, txn_of, kind_of = (self._numbers(name) for name in (layout.TS, layout.TXN, layout.KIND))
        if ts_of is not None and txn_of is not None and kind_of is None:
            return lambda at: (Micros(ts_of(at)), Txn(txn_of(at)), Kind.PUT)
        return lambda at: (
            given_ts if ts_of is None else Micros(ts_of(at)),
            given_txn if txn_of is None else Txn(txn_of(at)),
            Kind.PUT if kind_of is None else _KINDS[kind_of(at)],
        )

    def _values_of(self, ids: tuple[ColumnId, ...]) -> tuple[tuple[ColumnId, Callable[[int], Value]], ...]:
        found = self._getters.get(ids)
        if found is None:
            there = [(id_, self._shape.columns[id_]) for id_ in ids if id_ in self._shape.columns]
            found = tuple((id_, self.reader(name, type_)) for id_, (name, type_) in there)
            self._getters[ids] = found
        return found

    def named(self, named: tuple[tuple[ColumnId, str], ...], at: int) -> dict[str, Value]:
        """The values of a record that writes all of these columns, by the names given."""
        found = self._named.get(named)
        if found is None:
            names = dict(named)
            found = tuple((names[id_], read) for id_, read in self._values_of(tuple(names)))
            self._named[named] = found
        return {name: read(at) for name, read in found}

    def note_read(self, named: tuple[tuple[ColumnId, str], ...], room_bytes: int) -> int:
        """Count one more read of these columns. After enough of them the rows are kept ready for the next, if there is
        room for that, some more with each read; how many bytes the block has grown by."""
        self._hits += 1
        if self._hits < max(WARM_HITS_MIN, len(self.rows) // WARM_ROWS_PER_HIT):
            return 0
        if not WARMING.acquire(blocking=False):
            return 0  # another thread does
        try:
            return self._warm_more(named, room_bytes) if self._hits > 0 else 0
        finally:
            WARMING.release()

    def _warm_more(self, named: tuple[tuple[ColumnId, str], ...], room_bytes: int) -> int:
        warming = self._warming = self._warming or Warming(named)
        there = [self._shape.columns[id_] for id_, _ in warming.named]
        grown = sum(self.columns[name].nbytes for name, _ in there) + len(self.rows) * (64 + 48 * len(there))
        if grown > room_bytes:
            self._hits, self._warming = 0, None
            return 0
        piece = slice(len(warming.rows), len(warming.rows) + WARM_ROWS_AT_ONCE)
        columns = [values_of(type_, self.columns[name][piece]) for name, type_ in there]
        goes_on = self._numbers(layout.KIND) is None and warming.take(self.rows[piece].to_pylist(), columns)
        if goes_on and len(warming.rows) < len(self.rows):
            return 0
        self._hits, self._warming = -(2**62), None
        if not goes_on:
            return 0
        txn_of = self._numbers(layout.TXN)
        count = len(self.rows)
        txns = [self._shape.file.txn or Txn(0)] if txn_of is None else [Txn(txn_of(at)) for at in range(count)]
        self.warm = warming.done((min(txns), max(txns)))
        return grown

    def between(self, rows: RowRange, count: int, named: tuple[tuple[ColumnId, str], ...]) -> FewRows | None:
        """The first so many rows of a range, of a file whose records all are puts of all of these columns; None if a
        row has several records."""
        low = self._places.place(rows.start)
        high = min(low + count, len(self.rows))
        if rows.stop is not None:
            high = max(low, min(high, self._places.place(rows.stop)))
        # One more on either side: a record of the first or last row may lie there.
        first = max(0, low - 1)
        around: list[bytes] = self.rows.slice(first, high + 1 - first).to_pylist()
        if any(map(eq, around, islice(around, 1, None))):
            return None
        there = [self._shape.columns[id_] for id_, _ in named]
        columns = [values_of(type_, self.columns[name].slice(low, high - low)) for name, type_ in there]
        return around[low - first : high - first], list(zip(*columns, strict=True))

    def columns_version(self, at: int, ids: tuple[ColumnId, ...]) -> ColumnsVersion | None:
        """One record, with those of the columns that it writes or erases. None if it is about none of them and no
        erasure of the row."""
        ts, txn, kind = self.stamp(at)
        if kind is Kind.ERASE_ROW:
            return ColumnsVersion(ts, txn, kind, {})
        nulls = self._shape.spec.nulls
        values: dict[ColumnId, Value]
        mask = b""
        if nulls == "written":
            values = {id_: read(at) for id_, read in self._values_of(ids)}
        elif nulls == "masked":
            mask = self.reader(layout.MASK, _BINARY)(at)
            places = self._shape.places
            written = [(id_, read, places[id_]) for id_, read in self._values_of(ids)]
            values = {id_: read(at) for id_, read, place in written if mask[place >> 3] >> (place & 7) & 1}
        else:
            found = ((id_, read(at)) for id_, read in self._values_of(ids))
            values = {id_: value for id_, value in found if value is not None}
        if ROW_EXISTS in ids and kind is Kind.PUT and self._is_marker(at, nulls, mask):
            values[ROW_EXISTS] = None
        return ColumnsVersion(ts, txn, kind, values) if values else None

    def _is_marker(self, at: int, nulls: str, mask: bytes) -> bool:
        if nulls == "masked":
            count = len(self._shape.places)
            return bool(mask[count >> 3] >> (count & 7) & 1)
        if nulls == "written":
            return not self._shape.places
        names = [name for name, _ in self._shape.columns.values()]
        return self._shape.file.stats.markers > 0 and all(not self.columns[name][at].is_valid for name in names)

    def cell_version(self, at: int) -> CellVersion:
        ts, txn, kind = self.stamp(at)
        return CellVersion(
            self.reader(layout.FAMILY, _STRING)(at),
            self.reader(layout.QUALIFIER, _STRING)(at),
            ts,
            txn,
            kind,
            self.reader(layout.VALUE, _BINARY)(at),
        )

    def raw_columns(self, rows: RowRange, ids: Iterable[ColumnId], *, with_values: bool = True) -> RawColumns:
        """Without values, columns say only which records write them; `Fragment.needed_marks` is all it takes."""
        low, high = self.extent(rows)
        ts, txn, kinds = self._stamps(low, high)
        written = self._written(low, high)
        columns = {}
        for id_ in ids:
            if id_ in self._shape.columns:
                name, _ = self._shape.columns[id_]
                values = self.columns[name].slice(low, high - low) if name in self.columns else None
                flags = written(self._shape.places[id_], values)
                columns[id_] = SlabColumn(values if with_values else None, flags)
        return RawColumns(self.rows.slice(low, high - low), ts, txn, kinds, columns, self._exists(low, high, kinds))

    def _stamps(self, low: int, high: int) -> tuple[Ints, Ints, np.ndarray[Any, np.dtype[np.int8]] | None]:
        file, count = self._shape.file, high - low

        def numbers(name: str, given: int | None) -> Ints:
            if name in self.columns:
                array = self.columns[name].slice(low, count)
                return array.view(pa.int64()).to_numpy(zero_copy_only=False)
            return np.full(count, given or 0, np.int64)

        kinds = None
        if layout.KIND in self.columns:
            kinds = self.columns[layout.KIND].slice(low, count).to_numpy(zero_copy_only=False)
            kinds = kinds if kinds.any() else None
        return numbers(layout.TS, file.ts), numbers(layout.TXN, file.txn), kinds

    def _masks(self, low: int, high: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bit masks of which columns each record writes: one row of bytes per record."""
        masks = self.columns[layout.MASK].slice(low, high - low)
        width = layout.mask_bytes(len(self._shape.places))
        data = masks.buffers()[2]
        start = masks.offset * width
        return np.frombuffer(data, np.uint8)[start : start + (high - low) * width].reshape(high - low, width)

    def _written(self, low: int, high: int) -> Callable[[int, pa.Array | None], Flags | bool]:
        match self._shape.spec.nulls:
            case "written":
                return lambda place, values: True  # noqa: ARG005
            case "unwritten":
                return lambda place, values: _are_there(values, high - low)  # noqa: ARG005
            case "masked":
                if low == high:
                    return lambda place, values: True  # noqa: ARG005
                masks = self._masks(low, high)

                def by_mask(place: int, values: pa.Array | None) -> Flags | bool:  # noqa: ARG001
                    flags: Flags = (masks[:, place >> 3] >> (place & 7) & 1).astype(np.bool_)
                    return True if flags.all() else flags

                return by_mask

    def _exists(self, low: int, high: int, kinds: np.ndarray[Any, np.dtype[np.int8]] | None) -> Flags | bool:
        """Which records are puts of the key alone."""
        shape = self._shape
        if low == high or (shape.file.stats.rows and not shape.file.stats.markers):
            return False
        if shape.spec.nulls == "masked":
            count = len(shape.places)
            alone: Flags = (self._masks(low, high)[:, count >> 3] >> (count & 7) & 1).astype(np.bool_)
        elif shape.spec.nulls == "unwritten":
            if not shape.file.stats.markers:
                return False
            alone = np.ones(high - low, np.bool_)
            for name, _ in shape.columns.values():
                alone &= self.columns[name].slice(low, high - low).is_null().to_numpy(zero_copy_only=False)
        else:
            return not shape.places
        return alone if kinds is None else alone & (kinds == Kind.PUT)

    def raw_cells(self, rows: RowRange) -> RawCells:
        """Without values, where they were not read."""
        low, high = self.extent(rows)
        ts, txn, kinds = self._stamps(low, high)
        count = high - low
        return RawCells(
            self.rows.slice(low, count),
            ts,
            txn,
            kinds,
            as_bytes(self.columns[layout.FAMILY].slice(low, count)),
            as_bytes(self.columns[layout.QUALIFIER].slice(low, count)),
            self.columns[layout.VALUE].slice(low, count) if layout.VALUE in self.columns else _no_values(count),
        )


def _no_values(count: int) -> pa.Array:
    return pa.nulls(count, pa.binary())


def _are_there(values: pa.Array | None, count: int) -> Flags:
    if values is None:
        return np.zeros(count, np.bool_)
    flags: Flags = values.is_valid().to_numpy(zero_copy_only=False)
    return flags
