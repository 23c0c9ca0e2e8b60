"""Fragments as the engine holds them: opened when first read, blocks decoded once, rows found in them.

`FragmentFile` is what a tablet's config keeps of a file: its name, its seal, what it amounts to, and the txn and time
that records take where they have none of their own (bulk loads, whose files are finished before their commit).

A `Block` is one decoded row group. Scans read past the cache, except into groups that are to be kept in memory; point
reads keep what they read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from stelae.format import layout
from stelae.format.fragment.footer import FragmentSeal, FragmentSpec, FragmentStats
from stelae.format.fragment.reader import FragmentReader, bounds
from stelae.format.fragment.writer import point_column
from stelae.model.arrow_values import bytes_reader, reader_of
from stelae.model.ids import ColumnId, Micros, Row, Txn
from stelae.model.ranges import RowRange
from stelae.model.record import ROW_EXISTS, Kind
from stelae.model.types import ColumnType, parse_type
from stelae.model.values import Value
from stelae.ports.blobs import BlobStore
from stelae.storage.cache import CachePriority
from stelae.storage.memory_cells import CellVersion
from stelae.storage.memory_columns import ColumnsVersion
from stelae.storage.merge.order import Flags, Ints
from stelae.storage.merge.select import RawCells, RawColumns
from stelae.storage.merge.slab import SlabColumn, as_bytes

_SAMPLE_STEP = 64
_KINDS = tuple(Kind)


class FragmentFile(msgspec.Struct, frozen=True):
    """`txn` and `ts`: what records have that bring none."""

    name: str
    seal: FragmentSeal
    stats: FragmentStats
    txn: Txn | None = None
    ts: Micros | None = None

    @property
    def txn_min(self) -> Txn:
        return self.stats.txn_min if self.txn is None else self.txn

    @property
    def txn_max(self) -> Txn:
        return self.stats.txn_max if self.txn is None else self.txn


class BlockCaching(Protocol):
    """What is needed of a cache: see `cache`."""

    def get(self, key: tuple[str, int]) -> Block | None: ...

    def load(self, key: tuple[str, int], priority: CachePriority, read: Callable[[], tuple[Block, int]]) -> Block: ...

    def grew(self, key: tuple[str, int], by_bytes: int) -> None: ...


class Fragment:
    """One open file. Safe for threads."""

    def __init__(self, file: FragmentFile, reader: FragmentReader, cache: BlockCaching) -> None:
        self.file = file
        self.reader = reader
        self.spec: FragmentSpec = reader.footer.spec
        self.starts = reader.footer.starts
        self._cache = cache
        self.columns = {column.id: (column.name, parse_type(column.type)) for column in self.spec.columns}
        self.places = {column.id: place for place, column in enumerate(self.spec.columns)}
        self.priority = CachePriority.ON_DEMAND
        self._has_continued = any(reader.footer.continued)

    def range_of(self, block: int) -> RowRange:
        """All rows of the block lie in it, and none of another block's but one that goes on from it."""
        last = block + 1 == len(self.starts)
        stop = self.reader.footer.stats.last_row + b"\0" if last else self.starts[block + 1]
        if not last and self.reader.footer.continued[block + 1]:
            stop += b"\0"
        return RowRange(self.starts[block], stop)

    def is_continued(self, block: int) -> bool:
        """Whether a row of the block may lie in a neighbour too."""
        if not self._has_continued:
            return False
        continued = self.reader.footer.continued
        return continued[block] or (block + 1 < len(continued) and continued[block + 1])

    def cached(self, block: int, columns: tuple[str, ...]) -> Block | None:
        """The block, if it is in the cache with all of the columns."""
        found = self._cache.get((self.file.name, block))
        if found is None or columns in found.complete_for:
            return found
        if all(name in found.columns for name in columns):
            found.complete_for.add(columns)
            return found
        return None

    def block(self, block: int, columns: Iterable[str], keep: bool) -> Block:
        """With at least these columns and the row."""
        key = (self.file.name, block)
        found = self._cache.get(key)
        if found is None:
            if not keep:
                return self._read(block, columns)
            found = self._cache.load(key, self.priority, lambda: self._loaded(block, columns))
        missing = [name for name in columns if name not in found.columns]
        if missing:
            added = self.reader.read_block(block, missing)
            size = 0
            for name in missing:
                array = _one_chunk(added.column(name))
                found.columns[name] = array
                size += array.nbytes
            self._cache.grew(key, size)
        return found

    def _loaded(self, block: int, columns: Iterable[str]) -> tuple[Block, int]:
        loaded = self._read(block, columns)
        return loaded, loaded.size_bytes

    def _read(self, block: int, columns: Iterable[str]) -> Block:
        point = point_column(self.spec)
        names = list(dict.fromkeys([*columns, point]))
        table = self.reader.read_block(block, names)
        arrays = {name: _one_chunk(table.column(name)) for name in names}
        batch = pa.RecordBatch.from_arrays([arrays[point]], [point])
        return Block(self, layout.rows_of(self.reader.codec, batch), arrays)

    def needed(self, ids: Iterable[ColumnId]) -> tuple[str, ...]:
        """What must be read for these columns, or for all cells: the records' own marks too, and every column where
        only all of them say whether a record is a put of the key alone."""
        present = self.reader.schema.names
        system = [name for name in (layout.TS, layout.TXN, layout.KIND, layout.MASK) if name in present]
        if self.spec.kind == "cells":
            return (layout.FAMILY, layout.QUALIFIER, layout.VALUE, *system)
        if self.spec.nulls == "unwritten" and self.file.stats.markers:
            return (*(name for name, _ in self.columns.values()), *system)
        return (*self.names_of(ids), *system)

    def names_of(self, ids: Iterable[ColumnId]) -> list[str]:
        return [self.columns[id_][0] for id_ in ids if id_ in self.columns]


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


class Block:
    """Decoded columns of one row group. More columns may come; none ever goes or changes."""

    def __init__(self, fragment: Fragment, rows: pa.Array, columns: dict[str, pa.Array]) -> None:
        self._fragment = fragment
        self.rows = rows
        self.columns = columns
        self._row_at = bytes_reader(rows)
        self._sample: list[bytes] | None = None
        self._readers: dict[str, Callable[[int], Value]] = {}
        self.complete_for: set[tuple[str, ...]] = set()

    @property
    def size_bytes(self) -> int:
        return sum(array.nbytes for array in self.columns.values()) + self.rows.nbytes

    def find(self, row: Row) -> tuple[int, int]:
        """Where the row's records begin and end. Every 64th row is kept as an object: the rest is looked up in the
        buffer, a few steps away."""
        sample = self._sample
        if sample is None:
            sample = self._sample = self.rows.take(pa.array(range(0, len(self.rows), _SAMPLE_STEP))).to_pylist()
        count = len(self.rows)
        high = min(bisect_left(sample, row) * _SAMPLE_STEP, count)
        low = max(0, high - _SAMPLE_STEP)
        read = self._row_at
        while low < high:
            middle = (low + high) >> 1
            if read(middle) < row:
                low = middle + 1
            else:
                high = middle
        end = low
        while end < count and read(end) == row:
            end += 1
        return low, end

    def reader(self, name: str, type_: ColumnType) -> Callable[[int], Value]:
        found = self._readers.get(name)
        if found is None:
            found = self._readers[name] = reader_of(type_, self.columns[name])
        return found

    def _system(self, name: str) -> Callable[[int], int] | None:
        """Numbers of a system column; None if the file has no such column."""
        found = self._readers.get(name)
        if found is None and name in self.columns:
            array = self.columns[name]
            width = pa.int8() if name == layout.KIND else pa.int64()
            values = np.asarray(array.view(width)) if array.type != width else array.to_numpy(zero_copy_only=False)
            found = self._readers[name] = memoryview(np.ascontiguousarray(values).data).__getitem__
        return found

    def stamp(self, at: int) -> tuple[Micros, Txn, Kind]:
        file = self._fragment.file
        txn_of, ts_of, kind_of = self._system(layout.TXN), self._system(layout.TS), self._system(layout.KIND)
        txn = file.txn if txn_of is None else Txn(txn_of(at))
        ts = file.ts if ts_of is None else Micros(ts_of(at))
        return ts or Micros(0), txn or Txn(0), Kind.PUT if kind_of is None else _KINDS[kind_of(at)]

    def columns_version(self, at: int, ids: tuple[ColumnId, ...]) -> ColumnsVersion | None:
        """One record, with those of the columns that it writes or erases. None if it is about none of them and no
        erasure of the row."""
        fragment = self._fragment
        ts, txn, kind = self.stamp(at)
        values: dict[ColumnId, Value] = {}
        if kind is Kind.ERASE_ROW:
            return ColumnsVersion(ts, txn, kind, values)
        nulls = fragment.spec.nulls
        mask: bytes = self.reader(layout.MASK, _BINARY)(at) if nulls == "masked" else b""
        for id_ in ids:
            place = fragment.places.get(id_)
            if place is None or (mask and not mask[place >> 3] >> (place & 7) & 1):
                continue
            name, type_ = fragment.columns[id_]
            value = self.reader(name, type_)(at)
            if nulls != "unwritten" or value is not None:
                values[id_] = value
        if ROW_EXISTS in ids and kind is Kind.PUT and self._is_marker(at, nulls, mask):
            values[ROW_EXISTS] = None
        return ColumnsVersion(ts, txn, kind, values) if values else None

    def _is_marker(self, at: int, nulls: str, mask: bytes) -> bool:
        if nulls == "masked":
            count = len(self._fragment.places)
            return bool(mask[count >> 3] >> (count & 7) & 1)
        if nulls == "written":
            return not self._fragment.places
        names = [name for name, _ in self._fragment.columns.values()]
        return self._fragment.file.stats.markers > 0 and all(not self.columns[name][at].is_valid for name in names)

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

    def raw_columns(self, rows: RowRange, ids: Iterable[ColumnId]) -> RawColumns:
        low, high = bounds(self.rows, rows)
        ts, txn, kinds = self._stamps(low, high)
        written = self._written(low, high)
        columns = {}
        for id_ in ids:
            if id_ in self._fragment.columns:
                name, _ = self._fragment.columns[id_]
                values = self.columns[name].slice(low, high - low)
                columns[id_] = SlabColumn(values, written(self._fragment.places[id_], values))
        return RawColumns(self.rows.slice(low, high - low), ts, txn, kinds, columns, self._exists(low, high, kinds))

    def _stamps(self, low: int, high: int) -> tuple[Ints, Ints, np.ndarray[Any, np.dtype[np.int8]] | None]:
        file, count = self._fragment.file, high - low

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
        """One row of bytes per record."""
        masks = self.columns[layout.MASK].slice(low, high - low)
        width = layout.mask_bytes(len(self._fragment.places))
        data = masks.buffers()[2]
        start = masks.offset * width
        return np.frombuffer(data, np.uint8)[start : start + (high - low) * width].reshape(high - low, width)

    def _written(self, low: int, high: int) -> Callable[[int, pa.Array], Flags | bool]:
        match self._fragment.spec.nulls:
            case "written":
                return lambda place, values: True  # noqa: ARG005
            case "unwritten":
                return lambda place, values: values.is_valid().to_numpy(zero_copy_only=False)  # noqa: ARG005
            case "masked":
                if low == high:
                    return lambda place, values: True  # noqa: ARG005
                masks = self._masks(low, high)

                def by_mask(place: int, values: pa.Array) -> Flags | bool:  # noqa: ARG001
                    flags: Flags = (masks[:, place >> 3] >> (place & 7) & 1).astype(np.bool_)
                    return True if flags.all() else flags

                return by_mask

    def _exists(self, low: int, high: int, kinds: np.ndarray[Any, np.dtype[np.int8]] | None) -> Flags | bool:
        """Which records are puts of the key alone."""
        fragment = self._fragment
        if low == high or (fragment.file.stats.rows and not fragment.file.stats.markers):
            return False
        if fragment.spec.nulls == "masked":
            count = len(fragment.places)
            alone: Flags = (self._masks(low, high)[:, count >> 3] >> (count & 7) & 1).astype(np.bool_)
        elif fragment.spec.nulls == "unwritten":
            if not fragment.file.stats.markers:
                return False
            alone = np.ones(high - low, np.bool_)
            for name, _ in fragment.columns.values():
                alone &= self.columns[name].slice(low, high - low).is_null().to_numpy(zero_copy_only=False)
        else:
            return not fragment.places
        return alone if kinds is None else alone & (kinds == Kind.PUT)

    def raw_cells(self, rows: RowRange) -> RawCells:
        low, high = bounds(self.rows, rows)
        ts, txn, kinds = self._stamps(low, high)
        count = high - low
        return RawCells(
            self.rows.slice(low, count),
            ts,
            txn,
            kinds,
            as_bytes(self.columns[layout.FAMILY].slice(low, count)),
            as_bytes(self.columns[layout.QUALIFIER].slice(low, count)),
            self.columns[layout.VALUE].slice(low, count),
        )


_BINARY = parse_type("binary")
_STRING = parse_type("string")


class Fragments:
    """All files that are open. A file is opened once, and stays open until it is forgotten."""

    def __init__(self, blobs: BlobStore, cache: BlockCaching) -> None:
        self._blobs = blobs
        self._cache = cache
        self._open: dict[str, Fragment] = {}
        self._lock = Lock()

    def of(self, file: FragmentFile) -> Fragment:
        found = self._open.get(file.name)
        # A load may be opened before its commit gives it a txn.
        if found is None or found.file.txn != file.txn:
            opened = Fragment(file, self._reader(file), self._cache)
            with self._lock:
                found = self._open[file.name] = opened
        return found

    def _reader(self, file: FragmentFile) -> FragmentReader:
        return FragmentReader(self._blobs.open(file.name), file.seal)

    def forget(self, names: Iterable[str]) -> None:
        with self._lock:
            for name in names:
                self._open.pop(name, None)
