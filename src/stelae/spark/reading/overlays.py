"""Overlays as files of the store, beside the hold that they are for; and second names of files that are read in part.

They lie under `overlays/{ticket}/`: whoever serves the store deletes them when the hold ends, however it ends. The same
question about the same files has the same overlay, so what this process made for another hold is not made again. It
gets a second name for each hold that needs it (or is copied, where files have none), so that no hold depends on how
long another lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stelae.adapters.blobs.local import LocalBlobStore
from stelae.model.errors import DiskFailed, DiskFull, NotFound, PermissionDenied, StelaeError
from stelae.ports.blobs import BlobStore, BlobWriter
from stelae.service.tickets import overlay_directory
from stelae.spark.reading.holding import kept_tickets
from stelae.spark.reading.overlaid import OverlaysFull
from stelae.spark.source.parts import large_batches
from stelae.spark.stores import blobs_of

OVERLAYS_BYTES_MAX = 4 * 2**30
"""Of all overlays of one store that frames of this process may read."""

_PARQUET = {"compression": "zstd", "store_schema": False, "store_decimal_as_integer": True}
_COPY_BYTES = 8 * 2**20
_KNOWN_MAX = 256


class StoreOverlays:
    """For one held table."""

    def __init__(self, root: str, ticket: str, bytes_max: int = OVERLAYS_BYTES_MAX) -> None:
        self._root = root
        self._ticket = ticket
        self._bytes_max = bytes_max

    def file(
        self, key: str, schema: pa.Schema, make: Callable[[], Iterator[pa.RecordBatch]]
    ) -> tuple[str, int, int] | None:
        name = f"{overlay_directory(self._ticket)}/{key}.parquet"
        made = _known.find(self._root, key)
        if made is None or not self._take_over(made, name):
            made = self._write(name, schema, make())
        _known.add(self._root, key, made, self._ticket, name)
        return (name, made.size_bytes, made.rows) if made.rows else None

    def link(self, starts: Mapping[str, int], column: str) -> dict[str, str] | None:
        """Give each file a second name, in a directory that says a number of it, as Spark takes for the value of
        `column` in all of its rows: that costs a row less than to look what file it is of. By their names, the new
        ones; None where files have no second names, or the disk has no room for them."""
        key = sha256(repr(sorted(starts.items())).encode()).hexdigest()[:32]
        directory = f"{overlay_directory(self._ticket)}/{key}"
        linked = {name: f"{directory}/{column}={start}/{name.rpartition('/')[2]}" for name, start in starts.items()}
        try:
            blobs = blobs_of(self._root, writing=True)
            if not isinstance(blobs, LocalBlobStore):
                return None
            for name, second in linked.items():
                blobs.link(name, second)
        except (DiskFailed, DiskFull, PermissionDenied):
            return None
        return linked

    def _take_over(self, made: _Made, name: str) -> bool:
        """Have what was made for another hold under a name of this one's. False: it is gone, or cannot be had so."""
        if not made.rows or self._ticket in made.names:
            return True
        blobs = blobs_of(self._root, writing=True)
        for known in made.names.values():
            try:
                if isinstance(blobs, LocalBlobStore):
                    blobs.link(known, name)
                else:
                    _copy(blobs, known, name)
            except (NotFound, DiskFailed, DiskFull, PermissionDenied):
                continue  # what is wrong with the place, if that is it, is told when the overlay is made
            return True
        return False

    def _write(self, name: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> _Made:
        first = next(batches, None)
        if first is None:
            return _Made(0, 0, {})
        room_bytes = self._bytes_max - _known.kept_bytes(self._root)
        blobs: BlobStore = blobs_of(self._root, writing=True)
        sink = _BoundedSink(blobs.create(name), room_bytes)
        rows = 0
        try:
            with pq.ParquetWriter(sink, schema, **_PARQUET) as writer:
                for batch in large_batches(_from(first, batches)):
                    writer.write_batch(batch, row_group_size=batch.num_rows)
                    rows += batch.num_rows
            sink.commit()
        except BaseException as error:
            sink.abort()
            if isinstance(error, DiskFull):
                raise DiskFull(
                    f"no room for the rows that are merged before Spark reads them ({sink.size_bytes:,} bytes so far): "
                    f"make room, or compact the table, then read it again: {error}"
                ) from error
            raise
        return _Made(sink.size_bytes, rows, {})


def _from(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _copy(blobs: BlobStore, name: str, to: str) -> None:
    with closing(blobs.open(name)) as blob:
        writer = blobs.create(to)
        try:
            for start in range(0, blob.size_bytes, _COPY_BYTES):
                writer.write(blob.read(start, min(_COPY_BYTES, blob.size_bytes - start)))
            writer.commit()
        except BaseException:
            with suppress(StelaeError):
                writer.abort()
            raise


class _BoundedSink:
    """A blob in the making as Arrow's writers see it: a file that is written from its beginning to its end. More than
    there is room for is OverlaysFull."""

    def __init__(self, blob: BlobWriter, room_bytes: int) -> None:
        self._blob = blob
        self._room_bytes = room_bytes
        self.size_bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        count = len(memoryview(data).cast("B"))
        if self.size_bytes + count > self._room_bytes:
            raise OverlaysFull
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


@dataclass(frozen=True, slots=True)
class _Made:
    """An overlay, by the tickets of the holds that have it. No rows: there is no file."""

    size_bytes: int
    rows: int
    names: Mapping[str, str]


class _Known:
    """What was made in this process, by place and key. Safe for threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._made: dict[tuple[str, str], _Made] = {}

    def find(self, root: str, key: str) -> _Made | None:
        with self._lock:
            return self._made.get((root, key))

    def add(self, root: str, key: str, made: _Made, ticket: str, name: str) -> None:
        """A hold has it too, under this name. The names of holds that ended are forgotten."""
        kept = kept_tickets()
        with self._lock:
            before = self._made.pop((root, key), made)
            names = {of: each for of, each in before.names.items() if of in kept}
            self._made[root, key] = replace(made, names={ticket: name} | names)
            if len(self._made) > _KNOWN_MAX:
                del self._made[next(iter(self._made))]

    def kept_bytes(self, root: str) -> int:
        """Of all that lie in a place for holds that are kept."""
        kept = kept_tickets()
        with self._lock:
            there = [made for (place, _), made in self._made.items() if place == root]
        return sum(made.size_bytes for made in there if not kept.isdisjoint(made.names))


_known = _Known()
