"""Scans for other processes: batches as items that fit a frame, pulled one ahead of what is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock
from typing import NamedTuple

import pyarrow as pa

from stelae.model.errors import Closed
from stelae.ports.transport import Frame, RequestId
from stelae.service import bodies
from stelae.service.bodies import Bytes
from stelae.service.messages import Item, ItemKind
from stelae.service.operations import SCAN
from stelae.service.scans import close_stream

ANSWER_BYTES_MAX = 32 * 1024 * 1024


class ScanPart(NamedTuple):
    """One item of the answer."""

    item: Item
    body: Bytes = b""


def scan_parts_of(batches: Iterator[pa.RecordBatch]) -> Iterator[ScanPart]:
    """That it is open, then the schema, then the batches; the schema again where it changes."""
    try:
        yield ScanPart(Item(ItemKind.OPENED))
        schema: pa.Schema | None = None
        for batch in batches:
            if schema is None or not batch.schema.equals(schema, check_metadata=True):
                schema = batch.schema
                yield from _cut(ItemKind.SCHEMA, bodies.schema_bytes(schema))
            for part in bodies.batch_slices(batch):
                yield from _cut(ItemKind.BATCH, part)
    finally:
        close_stream(batches)


def _cut(kind: ItemKind, data: memoryview) -> Iterator[ScanPart]:
    """Mostly one item; only what is too large for a frame has more."""
    for at in range(0, len(data), ANSWER_BYTES_MAX):
        more = at + ANSWER_BYTES_MAX < len(data)
        yield ScanPart(Item(kind, more), data[at : at + ANSWER_BYTES_MAX])


class OpenStream:
    """A stream that threads pull at, one at a time, and that one of them may close meanwhile: then that waits for the
    item under way, and there is no further one."""

    def __init__(self, open_parts: Callable[[], Iterator[ScanPart]], request: RequestId) -> None:
        self._open_parts = open_parts
        self._request = request
        self._items: Iterator[ScanPart] | None = None
        self._lock = Lock()
        self._is_closed = False

    def pull(self) -> Frame | None:
        """The next item as a frame; None after the last."""
        with self._lock:
            if self._is_closed:
                raise Closed("the stream was closed")
            if self._items is None:
                self._items = self._open_parts()
            part = next(self._items, None)
        return None if part is None else SCAN.method.answer(self._request, part.item, part.body)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            close_stream(self._items)
