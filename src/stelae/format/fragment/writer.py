"""Writes a fragment: batches in, row groups cut by size, checksums taken on the way out.

Records come sorted by row, and within a row by cell, then newest first; a batch that is out of order, or holds kinds or
masks that mean nothing, is refused before any of it is written. That a stored row is that of its key is tried on the
ends of each batch only: encoding every key again would cost a tenth of the writing. Blocks are cut by size, between
rows where they can be, so that a point read opens one block.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pyarrow as pa

from stelae.format import layout
from stelae.format.checksums import crc32c
from stelae.format.fragment.footer import (
    FOOTER_KEY,
    FRAGMENT_VERSION,
    PAGE_BYTES,
    FragmentFooter,
    FragmentSeal,
    FragmentSpec,
    FragmentStats,
    encode_footer,
    row_columns,
)
from stelae.format.fragment.order import check_order, check_records, count_markers
from stelae.model.arrow import compute as pc
from stelae.model.errors import Closed, Overloaded
from stelae.model.hybrid import TXN_MAX
from stelae.model.ids import TS_MAX, TS_MIN, Micros, Txn
from stelae.model.record import Kind
from stelae.model.schema import GroupOptions
from stelae.ports.blobs import BlobWriter
from stelae.ports.executor import Executor

BLOCK_RECORDS_MAX = 1 << 20
BLOOM_FALSE_POSITIVES = 0.01
_RECORD_BYTES_LIKELY = 128
_SAMPLE = 2_000
_PAGE_INDEX_TRAILER = 8


class FragmentWriter:
    """`write` batches, then `close`: the sink then holds the whole file, and the caller commits or aborts it."""

    def __init__(
        self, sink: BlobWriter, spec: FragmentSpec, options: GroupOptions, encoding: Executor | None = None
    ) -> None:
        """With an executor, one block is encoded while the next is checked."""
        self._encoding = encoding
        self._under_way: tuple[Callable[[], None], Future[None]] | None = None
        self._spec = spec
        self._options = options
        self._codec = spec.codec()
        self._schema = spec.arrow_schema()
        self._sink = _ChecksummingSink(sink)
        self._parquet: Any = None
        self._pending: list[tuple[pa.RecordBatch, pa.Array]] = []
        self._pending_bytes = 0
        self._starts: list[bytes] = []
        self._continued: list[bool] = []
        self._stats = FragmentStats()
        self._last_row: bytes | None = None
        self._last: pa.RecordBatch | None = None
        self._ended = False

    def write(self, batch: pa.RecordBatch) -> None:
        """Sorted records with exactly the spec's Arrow schema, not before any written earlier. After an error of the
        sink, the writer is of no use any more."""
        self._check_usable()
        layout.check_batch(batch, self._schema, "fragment")
        if batch.num_rows == 0:
            return
        rows = layout.rows_of(self._codec, batch)
        check_records(self._spec, self._codec, batch, rows)
        begun = check_order(self._spec, batch, rows, self._last)
        self._count(batch, rows, begun)
        self._last = batch.slice(batch.num_rows - 1)
        self._pending.append((batch, rows))
        self._pending_bytes += batch.nbytes
        with self._ending_on_error():
            while self._pending_bytes >= self._options.block_bytes:
                if not self._cut_block():
                    return

    def close(self) -> tuple[FragmentFooter, FragmentSeal]:
        """Write what is left and the footer. A fragment may hold no records at all."""
        self._check_usable()
        with self._ending_on_error():
            written = self._finish()
        self._ended = True
        return written

    def _check_usable(self) -> None:
        if self._ended:
            raise Closed("this fragment writer was closed, or its sink failed")

    @contextmanager
    def _ending_on_error(self) -> Iterator[None]:
        """After an error nothing more is written, also not by the Parquet writer when it is collected."""
        try:
            yield
        except BaseException:
            self._ended = True
            with suppress(BaseException):
                self._settle()
            if self._parquet is not None:
                self._parquet.is_open = False
            raise

    def _finish(self) -> tuple[FragmentFooter, FragmentSeal]:
        while self._pending:
            self._flush(sum(batch.num_rows for batch, _ in self._pending))
        self._settle()
        parquet = self._writer(self._schema.empty_table())
        data_end = self._sink.position
        footer = FragmentFooter(
            version=FRAGMENT_VERSION,
            spec=self._spec,
            stats=self._stats,
            starts=tuple(self._starts),
            continued=tuple(self._continued),
            data_end=data_end,
            page_bytes=PAGE_BYTES,
            page_crcs=self._sink.end_pages(),
            bloom=self._options.bloom,
        )
        parquet.add_key_value_metadata({FOOTER_KEY: encode_footer(footer)})
        parquet.close()
        return footer, self._sink.seal(data_end)

    def _cut_block(self) -> bool:
        """Flush one block if a place to cut is known: the last row may go on in the next batch."""
        cut = self._row_boundary(min(self._records_in(self._options.block_bytes), BLOCK_RECORDS_MAX))
        if cut is None:
            return False
        self._flush(cut)
        return True

    def _records_in(self, size_bytes: int) -> int:
        """How many of the pending records make up so many bytes: at least one."""
        count = 0
        for batch, _ in self._pending:
            if batch.nbytes >= size_bytes:
                return count + _rows_in(batch, size_bytes)
            count += batch.num_rows
            size_bytes -= batch.nbytes
        return count

    def _row_boundary(self, wanted: int) -> int | None:
        """The first place at or after `wanted` where a new row begins; a row larger than a block is cut inside."""
        at = 0
        previous: bytes | None = None
        limit = 2 * wanted
        for _, rows in self._pending:
            if at + len(rows) >= wanted:
                for i in range(max(0, wanted - at), len(rows)):
                    row = rows[i].as_py()
                    before = rows[i - 1].as_py() if i else previous
                    if row != before or at + i >= limit:
                        return at + i
            at += len(rows)
            previous = rows[-1].as_py()
        return limit if at > limit else None

    def _flush(self, count: int) -> None:
        """The first `count` pending records as one row group."""
        count = min(count, BLOCK_RECORDS_MAX)
        taken: list[pa.RecordBatch] = []
        first = self._pending[0][1][0].as_py()
        left = count
        while left:
            batch, rows = self._pending[0]
            if batch.num_rows <= left:
                self._pending.pop(0)
                taken.append(batch)
            else:
                taken.append(batch.slice(0, left))
                self._pending[0] = (batch.slice(left), rows.slice(left))
            left -= taken[-1].num_rows
        self._pending_bytes = sum(batch.nbytes for batch, _ in self._pending)
        last = layout.rows_of(self._codec, taken[-1].slice(taken[-1].num_rows - 1))[0].as_py()
        self._continued.append(first == self._last_row)
        self._starts.append(first)
        self._last_row = last
        table = pa.Table.from_batches(taken, self._schema)
        parquet = self._writer(table)
        self._encode(lambda: parquet.write_table(table, row_group_size=count))

    def _encode(self, block: Callable[[], None]) -> None:
        self._settle()
        if self._encoding is not None:
            try:
                self._under_way = (block, self._encoding.submit(block))
                return
            except Overloaded:
                pass
        block()

    def _settle(self) -> None:
        """What no thread has begun is done here: this may be the thread it would wait for."""
        if self._under_way is not None:
            block, future = self._under_way
            self._under_way = None
            if future.cancel():
                block()
            else:
                future.result()

    def _writer(self, first: pa.Table) -> Any:
        """Made with the first block, by which its choices go: a Bloom filter for as many records as a block has, or as
        one of small records would have if this has fewer; dictionaries for columns whose values repeat."""
        if self._parquet is None:
            import pyarrow.parquet as pq  # not by those that write no fragment

            point = point_column(self._spec)
            likely = max(first.num_rows, self._options.block_bytes // _RECORD_BYTES_LIKELY) if first.num_rows else 1
            bloom = {point: {"ndv": likely, "fpp": BLOOM_FALSE_POSITIVES}} if self._options.bloom else None
            self._parquet = pq.ParquetWriter(
                pa.PythonFile(self._sink, mode="w"),
                self._schema,
                compression=self._options.compression,
                use_dictionary=[name for name in self._schema.names if name != point and _repeats(first.column(name))],
                write_page_index=True,
                write_page_checksum=True,
                bloom_filter_options=bloom,
                store_schema=False,
                # Spark decodes such integers faster than the bytes that Arrow writes otherwise (decision 15).
                store_decimal_as_integer=True,
            )
        return self._parquet

    def _count(self, batch: pa.RecordBatch, rows: pa.Array, begun: int) -> None:
        stats = self._stats
        erasures = pc.sum(pc.not_equal(batch.column(layout.KIND), int(Kind.PUT))).as_py() if self._spec.has_kind else 0
        txns = pc.min_max(batch.column(layout.TXN)).as_py() if self._spec.has_txn else {"min": TXN_MAX, "max": 0}
        times = {"min": TS_MAX, "max": TS_MIN}
        if self._spec.has_ts:
            times = pc.min_max(batch.column(layout.TS).view(pa.int64())).as_py()
        self._stats = FragmentStats(
            records=stats.records + batch.num_rows,
            rows=stats.rows + begun,
            erasures=stats.erasures + erasures,
            markers=stats.markers + count_markers(self._spec, batch),
            first_row=stats.first_row if stats.records else rows[0].as_py(),
            last_row=rows[-1].as_py(),
            txn_min=Txn(min(stats.txn_min, txns["min"])),
            txn_max=Txn(max(stats.txn_max, txns["max"])),
            ts_min=Micros(min(stats.ts_min, times["min"])),
            ts_max=Micros(max(stats.ts_max, times["max"])),
        )


def _repeats(column: pa.ChunkedArray) -> bool:
    """Whether a dictionary is likely to pay: trying one on values that are all different costs a tenth of the writing
    and of every reading. Nested columns are left to Parquet."""
    if pa.types.is_nested(column.type):
        return True
    sample = column.slice(0, _SAMPLE)
    return 2 * int(pc.count_distinct(sample).as_py()) <= max(2, len(sample))


def _rows_in(batch: pa.RecordBatch, size_bytes: int) -> int:
    """How many of its first rows make up so many bytes, within a tenth: the mean is nearly always near enough."""
    low, high = 1, batch.num_rows
    guess = max(1, int(batch.num_rows * size_bytes / batch.nbytes))
    while low < high:
        size = batch.slice(0, guess).nbytes
        if 0.9 * size_bytes <= size <= 1.1 * size_bytes:
            return guess
        low, high = (low, guess) if size > size_bytes else (guess + 1, high)
        guess = (low + high) // 2
    return low


def point_column(spec: FragmentSpec) -> str:
    """The column that a point read probes: the stored row, or the key column that stands for it."""
    stored = row_columns(spec.codec())
    return stored[0] if stored else spec.key[0].name


class _ChecksummingSink:
    """Passes bytes on, keeping a checksum of every page of data, and the tail after the data."""

    def __init__(self, sink: BlobWriter) -> None:
        self._sink = sink
        self.position = 0
        self.closed = False
        self._page_crc = 0
        self._page_crcs: list[int] = []
        self._tail: list[bytes] | None = None

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        if self._tail is None:
            self._take_pages(view)
        else:
            self._tail.append(bytes(data))
        self.position += len(view)
        self._sink.write(data)
        return len(view)

    def _take_pages(self, view: memoryview) -> None:
        at = 0
        while at < len(view):
            room = PAGE_BYTES - (self.position + at) % PAGE_BYTES
            part = view[at : at + room]
            self._page_crc = crc32c(part, self._page_crc)
            at += len(part)
            if len(part) == room:
                self._page_crcs.append(self._page_crc)
                self._page_crc = 0

    def end_pages(self) -> bytes:
        """The data is complete: its checksums. What follows is kept for the seal."""
        if self.position % PAGE_BYTES:
            self._page_crcs.append(self._page_crc)
        self._tail = []
        return np.array(self._page_crcs, "<u4").tobytes()

    def seal(self, data_end: int) -> FragmentSeal:
        tail = b"".join(self._tail or ())
        (length,) = struct.unpack_from("<I", tail, len(tail) - _PAGE_INDEX_TRAILER)
        footer_start = self.position - _PAGE_INDEX_TRAILER - length
        return FragmentSeal(
            size_bytes=self.position,
            data_end=data_end,
            index_crc=crc32c(tail[: footer_start - data_end]),
            footer_start=footer_start,
            footer_crc=crc32c(tail[footer_start - data_end :]),
        )

    def tell(self) -> int:
        return self.position

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False
