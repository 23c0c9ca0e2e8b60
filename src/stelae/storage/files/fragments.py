"""Fragments as the engine holds them: opened when first read, blocks decoded once, rows found in them.

`FragmentFile` is what a tablet's config keeps of a file: its name, its seal, what it amounts to, and the txn and time
that records take where they have none of their own (bulk loads, whose files are finished before their commit).

A `Block` is one decoded row group. Scans read past the cache, except into groups that are to be kept in memory; point
reads keep what they read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from threading import Lock
from typing import Protocol

import pyarrow as pa

from stelae.format import layout
from stelae.format.fragment.footer import FragmentFile, FragmentSpec
from stelae.format.fragment.reader import FragmentReader
from stelae.format.fragment.writer import point_column
from stelae.model.ids import ColumnId
from stelae.model.ranges import RowRange
from stelae.model.types import Binary, String, parse_type
from stelae.ports.blobs import Blob, BlobStore
from stelae.ports.executor import Executor
from stelae.storage.files.blocks import Block, BlockShape
from stelae.storage.files.cache import BlockKey, CachePriority
from stelae.storage.files.handles import Handles
from stelae.storage.merge.slab import as_bytes


class BlockCaching(Protocol):
    """What is needed of a cache: see `cache`."""

    def get(self, key: BlockKey) -> Block | None: ...

    def load(self, key: BlockKey, priority: CachePriority, read: Callable[[], tuple[Block, int]]) -> Block: ...

    def preload(self, key: BlockKey, priority: CachePriority, read: Callable[[], tuple[Block, int]]) -> bool: ...

    def grew(self, key: BlockKey, by_bytes: int) -> None: ...

    @property
    def room_bytes(self) -> int: ...


class Fragment:
    """One open file. Safe for threads."""

    def __init__(self, file: FragmentFile, reader: FragmentReader, cache: BlockCaching) -> None:
        self.file = file
        self.reader = reader
        self.spec: FragmentSpec = reader.footer.spec
        self.point = point_column(self.spec)
        """The column that a row is found by."""
        self.key_names = tuple([column.name for column in self.spec.key])
        self.starts = reader.footer.starts
        self.cache = cache
        self.columns = {column.id: (column.name, parse_type(column.type)) for column in self.spec.columns}
        places = {column.id: place for place, column in enumerate(self.spec.columns)}
        self._shape = BlockShape(file, self.spec, self.columns, places)
        self.priority = CachePriority.ON_DEMAND
        self.has_continued = any(reader.footer.continued)
        codec = reader.codec
        self._row_is_key = not layout.row_is_stored(codec) and isinstance(codec.types[0], String | Binary)

    def reopened(self, blob: Blob, cache: BlockCaching) -> Fragment:
        """The same file for others: what its footer says is known already."""
        again = copy(self)
        again.reader, again.cache = self.reader.over(blob), cache
        again.priority = CachePriority.ON_DEMAND
        return again

    def range_of(self, block: int) -> RowRange:
        """All rows of the block lie in it, and none of another block's but one that goes on from it."""
        last = block + 1 == len(self.starts)
        stop = self.reader.footer.stats.last_row + b"\0" if last else self.starts[block + 1]
        if not last and self.reader.footer.continued[block + 1]:
            stop += b"\0"
        return RowRange(self.starts[block], stop)

    def _key(self, block: int) -> BlockKey:
        """With the txn that records take from outside: blocks of a load are not those of before its commit."""
        return (self.file.name, block, self.file.txn)

    def is_continued(self, block: int) -> bool:
        """Whether a row of the block may lie in a neighbour too."""
        if not self.has_continued:
            return False
        continued = self.reader.footer.continued
        return continued[block] or (block + 1 < len(continued) and continued[block + 1])

    def cached(self, block: int, columns: tuple[str, ...]) -> Block | None:
        """The block, if it is in the cache with all of the columns."""
        file = self.file
        found = self.cache.get((file.name, block, file.txn))  # as `_key`, without a call
        if found is None or columns in found.complete_for:
            return found
        if all(name in found.columns for name in columns):
            found.complete_for.add(columns)
            return found
        return None

    def block(self, block: int, columns: Iterable[str], keep: bool) -> Block:
        """A block of the file, with at least these columns and the row."""
        key = self._key(block)
        found = self.cache.get(key)
        if found is None:
            if not keep:
                return self._read(block, columns)
            found = self.cache.load(key, self.priority, lambda: self._loaded(block, columns))
        missing = [name for name in columns if name not in found.columns]
        if missing and not keep:
            return self._read(block, columns)
        if missing:
            added = self.reader.read_block(block, missing)
            size = 0
            for name in missing:
                array = _one_chunk(added.column(name))
                found.columns[name] = array
                size += array.nbytes
            self.cache.grew(key, size)
        return found

    def preload(self, block: int, columns: tuple[str, ...]) -> bool:
        """See that the block is in the cache with these columns, though nobody asked; False if there is no room."""
        key = self._key(block)
        if self.cache.get(key) is None:
            return self.cache.preload(key, self.priority, lambda: self._loaded(block, columns))
        self.block(block, columns, keep=True)
        return True

    @property
    def room_bytes(self) -> int:
        """How much more the cache takes before something must go."""
        return self.cache.room_bytes

    def grew(self, block: int, by_bytes: int) -> None:
        """A block that is in the cache has more in it now."""
        self.cache.grew(self._key(block), by_bytes)

    def _loaded(self, block: int, columns: Iterable[str]) -> tuple[Block, int]:
        loaded = self._read(block, columns)
        return loaded, loaded.size_bytes

    def _read(self, block: int, columns: Iterable[str]) -> Block:
        point = self.point
        names = list(dict.fromkeys([*columns, point]))
        table = self.reader.read_block(block, names)
        arrays = {name: _one_chunk(table.column(name)) for name in names}
        return Block(self._shape, self._rows_of(arrays[point], point), arrays)

    def _rows_of(self, array: pa.Array, point: str) -> pa.Array:
        if self._row_is_key:
            return as_bytes(array)
        return layout.rows_of(self.reader.codec, pa.RecordBatch.from_arrays([array], [point]))

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

    def needed_marks(self, ids: Iterable[ColumnId]) -> tuple[str, ...]:
        """What must be read to know which records write these columns: their values only where nothing else tells."""
        return self.needed(ids if self.spec.nulls == "unwritten" else ())

    def needed_names(self) -> tuple[str, ...]:
        """What must be read to know which cells there are: all but their values."""
        return tuple([name for name in self.needed(()) if name != layout.VALUE])

    def names_of(self, ids: Iterable[ColumnId]) -> list[str]:
        return [self.columns[id_][0] for id_ in ids if id_ in self.columns]


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


class Fragments:
    """What is known of all files that were read. A file is looked at once, and known until it is forgotten."""

    def __init__(self, blobs: BlobStore, cache: BlockCaching, reading: Executor | None = None) -> None:
        self.reading = reading
        self._handles = Handles(blobs)
        self._cache = cache
        self._open: dict[str, Fragment] = {}
        self._lock = Lock()

    def of(self, file: FragmentFile) -> Fragment:
        found = self._open.get(file.name)
        # A load may be opened before its commit gives it a txn.
        if found is None or found.file.txn != file.txn:
            opened = self._opened(file)
            with self._lock:
                found = self._open[file.name] = opened
        return found

    def _opened(self, file: FragmentFile) -> Fragment:
        return Fragment(file, self._reader(file), self._cache)

    def _again(self, known: Fragment, cache: BlockCaching) -> Fragment:
        """A file that was looked at before: it is opened when a block of it is read."""
        return known.reopened(self._handles.known_blob(known.file.name, known.file.seal.size_bytes), cache)

    def rank(self, name: str, priority: CachePriority) -> None:
        """How long blocks of a file that is known stay in the cache, if they are read from now on."""
        known = self._open.get(name)
        if known is not None:
            known.priority = priority

    def _reader(self, file: FragmentFile) -> FragmentReader:
        return FragmentReader(self._handles.blob(file.name), file.seal)

    def forget(self, names: Iterable[str]) -> None:
        with self._lock:
            for name in names:
                self._open.pop(name, None)
                self._handles.close(name)

    def close(self) -> None:
        self._handles.close_all()
