"""Overlays as files of the store, beside the hold that they are for; and second names of files that are read in part.

They lie under `overlays/{ticket}/`: whoever serves the store deletes them when the hold ends, however it ends. The same
question about the same files has the same overlay, so frames of one process share it for as long as the hold that it
was made for is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stelae.adapters.blobs.local import LocalBlobStore
from stelae.model.errors import DiskFailed, DiskFull, PermissionDenied, StelaeError
from stelae.ports.blobs import BlobStore, BlobWriter
from stelae.service.tickets import overlay_directory
from stelae.spark.reading.holding import is_kept
from stelae.spark.stores import blobs_of

_ROW_GROUP_ROWS = 256 * 1024
_PARQUET = {"compression": "zstd", "store_schema": False, "store_decimal_as_integer": True}
_KNOWN_MAX = 256


class StoreOverlays:
    """For one held table."""

    def __init__(self, root: str, ticket: str) -> None:
        self._root = root
        self._ticket = ticket

    def file(
        self, key: str, schema: pa.Schema, make: Callable[[], Iterator[pa.RecordBatch]]
    ) -> tuple[str, int, int] | None:
        known = _known.find(self._root, key, self._ticket)
        if known is not None:
            return known[0]
        name = f"{overlay_directory(self._ticket)}/{key}.parquet"
        made = self._write(name, schema, make())
        _known.add(self._root, key, self._ticket, made)
        return made

    def link(self, starts: Mapping[str, int], column: str) -> dict[str, str] | None:
        """Give each file a second name, in a directory that says a number of it, as Spark takes for the value of
        `column` in all of its rows: that costs a row less than to look what file it is of. By their names, the new
        ones; None where files have no second names."""
        key = sha256(repr(sorted(starts.items())).encode()).hexdigest()[:32]
        directory = f"{overlay_directory(self._ticket)}/{key}"
        linked = {name: f"{directory}/{column}={start}/{name.rpartition('/')[2]}" for name, start in starts.items()}
        try:
            blobs = blobs_of(self._root, writing=True)
            if not isinstance(blobs, LocalBlobStore):
                return None
            for name, second in linked.items():
                blobs.link(name, second)
        except (DiskFailed, PermissionDenied):
            return None
        return linked

    def _write(self, name: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> tuple[str, int, int] | None:
        first = next(batches, None)
        if first is None:
            return None
        blobs: BlobStore = blobs_of(self._root, writing=True)
        sink = _CountingSink(blobs.create(name))
        try:
            with pq.ParquetWriter(sink, schema, **_PARQUET) as writer:
                rows = _write_batches(writer, first, batches)
            sink.commit()
        except BaseException as error:
            sink.abort()
            if isinstance(error, DiskFull):
                raise DiskFull(
                    f"no room for the rows that are merged before Spark reads them ({sink.size_bytes:,} bytes so far): "
                    f"make room, or compact the table, then read it again: {error}"
                ) from error
            raise
        return name, sink.size_bytes, rows


def _write_batches(writer: pq.ParquetWriter, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> int:
    """How many rows were written, in row groups of a good size."""
    waiting, held, rows = [first], first.num_rows, 0
    for batch in rest:
        waiting.append(batch)
        held += batch.num_rows
        if held >= _ROW_GROUP_ROWS:
            writer.write_table(pa.Table.from_batches(waiting), row_group_size=_ROW_GROUP_ROWS)
            waiting, rows, held = [], rows + held, 0
    if waiting:
        writer.write_table(pa.Table.from_batches(waiting), row_group_size=_ROW_GROUP_ROWS)
    return rows + held


class _CountingSink:
    """A blob in the making as Arrow's writers see it: a file that is written from its beginning to its end."""

    def __init__(self, blob: BlobWriter) -> None:
        self._blob = blob
        self.size_bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        count = len(memoryview(data).cast("B"))
        self._blob.write(data)
        self.size_bytes += count
        return count

    def tell(self) -> int:
        return self.size_bytes

    def flush(self) -> None:
        """Nothing is kept back."""

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True

    def commit(self) -> None:
        self._blob.commit()

    def abort(self) -> None:
        with suppress(StelaeError):
            self._blob.abort()


class _Known:
    """What was made in this process: by place and key, under which ticket, and the file, if there is one. Safe for
    threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._made: dict[tuple[str, str], tuple[str, tuple[str, int, int] | None]] = {}

    def find(self, root: str, key: str, ticket: str) -> tuple[tuple[str, int, int] | None] | None:
        """None: it has to be made, since the hold that it was made for may have ended."""
        with self._lock:
            found = self._made.get((root, key))
        if found is None or not (found[0] == ticket or is_kept(found[0])):
            return None
        return (found[1],)

    def add(self, root: str, key: str, ticket: str, made: tuple[str, int, int] | None) -> None:
        with self._lock:
            self._made.pop((root, key), None)
            self._made[root, key] = ticket, made
            if len(self._made) > _KNOWN_MAX:
                del self._made[next(iter(self._made))]


_known = _Known()
