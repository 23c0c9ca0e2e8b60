"""Reads a fragment: finds blocks by row, reads only the columns asked for, believes no byte it has not checked.

Every byte of data is verified against the checksum of its page before it is decoded; the footer and the filters are
verified against the seal. Reading goes through `Blob.read` alone, so it works on any store, and from any thread.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from stelae.format import layout
from stelae.format.checksums import crc32c
from stelae.format.fragment.bloom import Bloom, bloom_hash
from stelae.format.fragment.footer import FOOTER_KEY, FragmentFooter, FragmentSeal, decode_footer
from stelae.format.fragment.window import Window
from stelae.format.fragment.writer import point_column
from stelae.model.arrow_values import bytes_reader
from stelae.model.errors import Corruption, InvalidArgument, InvalidSchema
from stelae.model.ranges import ALL_ROWS, RowRange, single
from stelae.model.types import Binary, ColumnType, Date, Int, String, Timestamp, TimestampNtz, parse_type
from stelae.ports.blobs import Blob

_TRAILER_BYTES = 8
_MAGIC = b"PAR1"
_COALESCE_BYTES = 256 * 1024
_TAIL_GUESS_BYTES = 64 * 1024

MapBlocks = Callable[[Callable[[int], pa.Table], Iterable[int]], Iterable[pa.Table]]
"""How several blocks are read: the built-in `map` one after the other, an executor's `map` side by side."""


class FragmentReader:
    """An open fragment. Blocks are numbered from 0; every method may be called from any thread."""

    def __init__(self, blob: Blob, seal: FragmentSeal | None = None) -> None:
        """Without a seal the footer is taken at its word: the file can be looked at and its data verified, but nothing
        in it is decoded, since a damaged footer can make Arrow do anything."""
        self._blob = blob
        self._seal = seal
        self.name = blob.name
        tail = self._read_footer()
        self._metadata = self._parse(tail)
        described = (self._metadata.metadata or {}).get(FOOTER_KEY)
        if described is None:
            raise Corruption("a Parquet file, but not a fragment: its footer has no description", self.name)
        self.footer: FragmentFooter = decode_footer(described, self.name)
        try:
            self.codec = self.footer.spec.codec()
            self.schema: pa.Schema = self.footer.spec.arrow_schema()
        except (InvalidArgument, InvalidSchema) as error:
            raise Corruption(f"the description in the footer makes no sense: {error}", self.name) from None
        if (
            self.footer.data_end > blob.size_bytes
            or self._metadata.num_row_groups != len(self.footer.starts)
            or self._names != self.schema.names
        ):
            raise Corruption("the description in the footer contradicts the file", self.name)
        self._page_crcs = np.frombuffer(self.footer.page_crcs, "<u4")

    def over(self, blob: Blob) -> FragmentReader:
        """The same file, opened again by others: its footer is not read anew."""
        again = copy(self)
        again._blob = blob
        return again

    @property
    def block_count(self) -> int:
        return len(self.footer.starts)

    def block_records(self, block: int) -> int:
        return int(self._metadata.row_group(block).num_rows)

    def statistics(self, block: int, column: str) -> Any:
        """Parquet's own statistics of a plain column of a block; None if there are none."""
        leaves = self._leaves[column]
        return self._metadata.row_group(block).column(leaves.start).statistics if len(leaves) == 1 else None

    def blocks_of(self, rows: RowRange) -> range:
        """The blocks that can hold a row of the range: no other does. For one row, at most those it lies in."""
        starts, stats = self.footer.starts, self.footer.stats
        if rows.is_empty or not starts or rows.start > stats.last_row:
            return range(0)
        first = bisect_right(starts, rows.start) - 1
        while first > 0 and starts[first] == rows.start and self.footer.continued[first]:
            first -= 1
        stop = len(starts) if rows.stop is None else bisect_left(starts, rows.stop)
        return range(max(first, 0), stop)

    def may_contain(self, row: bytes, block: int) -> bool:
        """False only if the row is certainly not in the block."""
        self._check_sealed()
        if not self.footer.bloom:
            return True
        return self._bloom(block).may_contain(bloom_hash(self._plain(row)))

    def lookup(self, row: bytes, columns: Sequence[str] | None = None) -> pa.Table:
        """The records of one row, in order; reads only blocks that may hold it."""
        self._check_sealed()
        found = [self._cut(self._with_point(block, columns), single(row), columns) for block in self.blocks_of_row(row)]
        return pa.concat_tables(found) if found else self._pruned(columns).empty_table()

    def blocks_of_row(self, row: bytes) -> list[int]:
        """The blocks that may hold the row, by their ranges and filters: nearly always one or none."""
        return [block for block in self.blocks_of(single(row)) if self.may_contain(row, block)]

    def scan(
        self, rows: RowRange = ALL_ROWS, columns: Sequence[str] | None = None, run: MapBlocks = map
    ) -> Iterator[pa.Table]:
        """The records of a range, a block at a time, in order. `run` decides how far reading goes ahead."""
        blocks = self.blocks_of(rows)
        inner = range(blocks.start + 1, blocks.stop - 1) if rows != ALL_ROWS else blocks
        edges = set(blocks) - set(inner)

        def read(block: int) -> pa.Table:
            if block in edges:
                return self._cut(self._with_point(block, columns), rows, columns)
            return self.read_block(block, columns)

        return iter(run(read, blocks))

    def _with_point(self, block: int, columns: Sequence[str] | None) -> pa.Table:
        point = point_column(self.footer.spec)
        wanted = columns if columns is None or point in columns else [*columns, point]
        return self.read_block(block, wanted)

    def _cut(self, table: pa.Table, rows: RowRange, columns: Sequence[str] | None) -> pa.Table:
        encoded = layout.rows_of(self.codec, table.combine_chunks().to_batches()[0]) if table.num_rows else None
        low, high = (0, 0) if encoded is None else bounds(encoded, rows)
        cut = table.slice(low, high - low)
        return cut if columns is None else cut.select(list(columns))

    def read_block(self, block: int, columns: Sequence[str] | None = None) -> pa.Table:
        """One block, verified: Corruption names the file and the first bad byte's page."""
        if not 0 <= block < self.block_count:
            raise InvalidArgument(f"{self.name}: no block {block}, there are {self.block_count}")
        self._check_sealed()
        import pyarrow.parquet as pq  # not by those that read no fragment

        wanted = self._pruned(columns)
        leaves = [leaf for name in wanted.names for leaf in self._leaves[name]]
        window = Window(self._blob.size_bytes)
        page = self.footer.page_bytes
        try:
            for start, stop in self._ranges(block, leaves):
                begin, end = start // page * page, min(-(-stop // page) * page, self.footer.data_end)
                window.add(begin, self._verified(begin, end))
            file = pq.ParquetFile(pa.PythonFile(window, mode="r"), metadata=self._metadata, pre_buffer=False)
            table = file.reader.read_row_group(block, column_indices=leaves, use_threads=False).select(wanted.names)
            exact = table.schema.types == wanted.types
            return pa.Table.from_arrays(table.columns, schema=wanted) if exact else table.cast(wanted)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Corruption(f"block {block} cannot be decoded: {error}", self.name) from None

    def _pruned(self, columns: Sequence[str] | None) -> pa.Schema:
        if columns is None:
            return self.schema
        unknown = [name for name in columns if name not in self.schema.names]
        if unknown:
            raise InvalidArgument(f"{self.name}: no column {unknown[0]!r}; there are {', '.join(self.schema.names)}")
        return pa.schema([self.schema.field(name) for name in columns])

    def _ranges(self, block: int, leaves: list[int]) -> list[tuple[int, int]]:
        """Where the wanted columns lie, near ones read together."""
        group = self._metadata.row_group(block)
        ranges: list[tuple[int, int]] = []
        for leaf in sorted(leaves):
            chunk = group.column(leaf)
            start = chunk.data_page_offset
            if chunk.dictionary_page_offset is not None:
                start = min(start, chunk.dictionary_page_offset)
            stop = start + chunk.total_compressed_size
            if not 0 <= start <= stop <= self.footer.data_end:
                raise Corruption(f"block {block} lies outside the data", self.name, start)
            if ranges and start - ranges[-1][1] <= _COALESCE_BYTES:
                ranges[-1] = (ranges[-1][0], max(stop, ranges[-1][1]))
            else:
                ranges.append((start, stop))
        return ranges

    def _verified(self, begin: int, end: int) -> memoryview:
        """Bytes of whole pages, every one checked."""
        data = memoryview(self._blob.read(begin, end - begin))
        page = self.footer.page_bytes
        for at in range(0, end - begin, page):
            if crc32c(data[at : at + page]) != self._page_crcs[(begin + at) // page]:
                raise Corruption(f"the page of {page} bytes here does not have its checksum", self.name, begin + at)
        return data

    def verify(self) -> None:
        """Read the whole file once: every page of data against the footer, the filters and the footer against the
        seal. Without a seal only the data is verified."""
        step = self.footer.page_bytes * 64
        for begin in range(0, self.footer.data_end, step):
            self._verified(begin, min(begin + step, self.footer.data_end))
        if self._seal is not None:
            self._check_index()
            self._read_footer()

    def _check_index(self) -> None:
        """Read anew, not from memory."""
        self.__dict__.pop("_index", None)
        _ = self._index

    def _read_footer(self) -> bytes:
        size = self._blob.size_bytes
        if self._seal:
            if size != self._seal.size_bytes:
                raise Corruption(f"has {size} bytes instead of {self._seal.size_bytes}", self.name)
            footer = bytes(self._blob.read(self._seal.footer_start, size - self._seal.footer_start))
            if crc32c(footer) != self._seal.footer_crc:
                raise Corruption("the footer does not have its checksum", self.name, self._seal.footer_start)
            return footer
        if size < len(_MAGIC) + _TRAILER_BYTES:
            raise Corruption(f"{size} bytes are too few for a fragment", self.name)
        guess = min(size, _TAIL_GUESS_BYTES)
        tail = bytes(self._blob.read(size - guess, guess))
        length = int.from_bytes(tail[-8:-4], "little") + _TRAILER_BYTES
        if tail[-4:] != _MAGIC or length > size:
            raise Corruption("not a Parquet file", self.name)
        return tail[-length:] if length <= guess else bytes(self._blob.read(size - length, length))

    def _parse(self, footer: bytes) -> Any:
        """Parquet's own description. Without a seal it may be damaged anywhere, its names included."""
        import pyarrow.parquet as pq

        try:
            metadata = pq.read_metadata(pa.BufferReader(_MAGIC + footer))
            self._names = metadata.schema.to_arrow_schema().names
            return metadata
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Corruption(f"the Parquet footer cannot be read: {error}", self.name) from None

    @cached_property
    def _index(self) -> bytes:
        """The filters and the page index, checked against the seal."""
        begin = self.footer.data_end
        end = self._seal.footer_start if self._seal else self._blob.size_bytes
        data = bytes(self._blob.read(begin, end - begin))
        if self._seal and crc32c(data) != self._seal.index_crc:
            raise Corruption("the filters do not have their checksum", self.name, begin)
        return data

    def _check_sealed(self) -> None:
        if self._seal is None:
            raise InvalidArgument(f"{self.name} was opened without its seal: it can be looked at, but not read")

    @cached_property
    def _leaves(self) -> dict[str, range]:
        """Parquet counts leaves, of which a nested column has several. By place, since names may hold dots."""
        leaves: dict[str, range] = {}
        at = 0
        for field in self.schema:
            leaves[field.name] = range(at, at + _leaf_count(field.type))
            at = leaves[field.name].stop
        if at != self._metadata.num_columns:
            raise Corruption(f"has {self._metadata.num_columns} columns instead of {at}", self.name)
        return leaves

    @cached_property
    def _blooms(self) -> dict[int, Bloom]:
        return {}

    def _bloom(self, block: int) -> Bloom:
        bloom = self._blooms.get(block)
        if bloom is None:
            chunk = self._metadata.row_group(block).column(self._leaves[point_column(self.footer.spec)].start)
            if chunk.bloom_filter_offset is None or chunk.bloom_filter_length is None:
                raise Corruption(f"block {block} has no filter, though the footer says so", self.name)
            start = chunk.bloom_filter_offset - self.footer.data_end
            bloom = Bloom.parse(self._index[start : start + chunk.bloom_filter_length], self.name)
            self._blooms[block] = bloom
        return bloom

    def _plain(self, row: bytes) -> bytes:
        """A row as Parquet's plain encoding of the point column, which is what the filter hashed."""
        if layout.row_is_stored(self.codec):
            return row
        return plain_bytes(parse_type(self.footer.spec.key[0].type), row)


def _leaf_count(type_: pa.DataType) -> int:
    return sum(_leaf_count(type_.field(i).type) for i in range(type_.num_fields)) if type_.num_fields else 1


def plain_bytes(type_: ColumnType, row: bytes) -> bytes:
    """A row of a single key column that is not stored: sign flipped back and little-endian, at Parquet's width."""
    match type_:
        case String() | Binary():
            return row
        case Int() | Date() | Timestamp() | TimestampNtz():
            number = int.from_bytes(row, "big") - (1 << (8 * len(row) - 1))
            return number.to_bytes(max(4, len(row)), "little", signed=True)
        case _:
            raise InvalidArgument(f"a row of {type_} is stored, not derived")


def bounds(rows: pa.Array, wanted: RowRange) -> tuple[int, int]:
    """Where a range begins and ends in sorted rows."""
    if wanted == ALL_ROWS or not len(rows):
        return 0, len(rows)
    places, read = range(len(rows)), bytes_reader(rows)
    low = bisect_left(places, wanted.start, key=read)
    return low, len(rows) if wanted.stop is None else bisect_left(places, wanted.stop, lo=low, key=read)
