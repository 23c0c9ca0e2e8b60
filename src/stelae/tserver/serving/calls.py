"""What a store answers to each message of a process attached to it: functions of the backend, the message and its body.

A call gives one answer, a stream its items one at a time; both may block, and run in threads. What needs more than that
(pins, writes in their order, progress) is `serving`'s own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

import pyarrow as pa

from stelae.model.errors import Closed, LargeAnswer
from stelae.model.ids import Row, TableId, Txn
from stelae.model.predicate.plan import TimeRange
from stelae.ports.transport import Frame, RequestId
from stelae.service import bodies as bodies
from stelae.service import messages as m
from stelae.service.backend import Backend, Values
from stelae.service.reports import Progress
from stelae.service.tables import TableInfo
from stelae.tserver.serving.bulk import BULK_CALLS, BULK_STREAMS
from stelae.tserver.serving.replies import DONE, Call, Reply, Stream, Watched, in_pieces
from stelae.wire.messages import WireMethod

ANSWER_BYTES_MAX = 32 * 1024 * 1024


def _txn(at: int | None) -> Txn | None:
    return None if at is None else Txn(at)


def _info(info: TableInfo) -> Reply:
    return Reply(m.InfoMessage(info.name, info.zone), bodies.table_bytes(info.table))


def _drop(backend: Backend, asked: m.DropMessage, _: bytes | memoryview) -> Reply:
    backend.drop(asked.name, if_exists=asked.if_exists)
    return DONE


def _flush(backend: Backend, asked: m.TableMessage, _: bytes | memoryview) -> Reply:
    backend.flush(TableId(asked.table))
    return DONE


def _split(backend: Backend, asked: m.SplitMessage, _: bytes | memoryview) -> Reply:
    backend.split(TableId(asked.table), None if asked.at is None else Row(asked.at), asked.tablet)
    return DONE


def _join(backend: Backend, asked: m.JoinMessage, _: bytes | memoryview) -> Reply:
    backend.join(TableId(asked.table), Row(asked.at))
    return DONE


def _newest(backend: Backend, asked: m.NewestMessage, _: bytes | memoryview) -> Reply:
    columns = bodies.taken_columns(asked.columns)
    return found_reply(backend.newest(TableId(asked.table), Row(asked.row), columns, _txn(asked.at)))


def newest_cached(backend: Backend, asked: m.NewestMessage) -> Reply:
    """For the event loop itself: NotCached instead of waiting."""
    columns = bodies.taken_columns(asked.columns)
    return found_reply(backend.newest_cached(TableId(asked.table), Row(asked.row), columns, _txn(asked.at)))


def found_reply(values: Values | None) -> Reply:
    if values is None:
        return Reply(m.FoundMessage(found=False))
    body = bodies.values_bytes(values)
    if len(body) > ANSWER_BYTES_MAX:
        raise LargeAnswer(f"a row of {len(body)} bytes is sent in pieces")
    return Reply(m.FoundMessage(found=True), body)


CALLS: dict[str, Call] = {
    m.FIND.name: lambda backend, asked, _: _info(backend.find(asked.name)),
    m.INFO.name: lambda backend, asked, _: _info(backend.info(TableId(asked.table))),
    m.CREATE.name: lambda backend, asked, body: _info(backend.create(bodies.create_from(asked, body))),
    m.ALTER.name: lambda backend, asked, _: _info(backend.alter(asked.name, asked.ask)),
    m.DROP.name: _drop,
    m.RECALL.name: lambda backend, asked, _: _info(backend.recall(asked.name, asked.new_name)),
    m.TRUNCATE.name: lambda backend, asked, _: Reply(m.TxnMessage(backend.truncate(TableId(asked.table)))),
    m.NOW.name: lambda backend, _, __: Reply(m.TxnMessage(backend.now())),
    m.NEWEST.name: _newest,
    m.FLUSH.name: _flush,
    m.SPLIT.name: _split,
    m.JOIN.name: _join,
    m.STATS.name: lambda backend, asked, _: Reply(backend.stats(TableId(asked.table))),
    **BULK_CALLS,
}


def _newest_many(backend: Backend, asked: m.ManyMessage, body: bytes | memoryview) -> Iterator[Reply]:
    columns = bodies.taken_columns(asked.columns)
    found = backend.newest_many(TableId(asked.table), bodies.rows_from(body), columns, _txn(asked.at))
    return in_pieces(bodies.many_bytes(found))


def _history(backend: Backend, asked: m.HistoryMessage, _: bytes | memoryview) -> Iterator[Reply]:
    found = backend.history(
        TableId(asked.table),
        Row(asked.row),
        bodies.taken_columns(asked.columns),
        asked.limit,
        _txn(asked.at),
        TimeRange(asked.start, asked.stop),
    )
    return in_pieces([bodies.history_bytes(found)])


def _scan(backend: Backend, asked: m.ScanMessage, body: bytes | memoryview) -> Iterator[Reply]:
    batches = backend.scan(TableId(asked.table), bodies.scan_from(asked, body))
    return _scanned(batches)


def _scanned(batches: Iterator[pa.RecordBatch]) -> Iterator[Reply]:
    try:
        yield Reply(m.ScanItem(m.ScanPart.OPENED))
        schema: pa.Schema | None = None
        for batch in batches:
            if schema is None or not batch.schema.equals(schema, check_metadata=True):
                schema = batch.schema
                yield from _cut(m.ScanPart.SCHEMA, bodies.schema_bytes(schema))
            for slice_ in bodies.batch_slices(batch):
                yield from _cut(m.ScanPart.BATCH, slice_)
    finally:
        _close(batches)


def _close(items: Iterator[Any] | None) -> None:
    """Not every iterator has something to free."""
    close = getattr(items, "close", None)
    if close is not None:
        close()


def _cut(part: m.ScanPart, data: memoryview) -> Iterator[Reply]:
    """Mostly in one item; only what is too large for a frame has more."""
    for at in range(0, len(data), ANSWER_BYTES_MAX):
        more = at + ANSWER_BYTES_MAX < len(data)
        yield Reply(m.ScanItem(part, more), data[at : at + ANSWER_BYTES_MAX])


STREAMS: dict[str, Stream] = {
    m.NAMES.name: lambda backend, _, __: in_pieces([bodies.names_bytes(backend.names())]),
    m.NEWEST_MANY.name: _newest_many,
    m.HISTORY.name: _history,
    m.SCAN.name: _scan,
    m.TABLETS.name: lambda backend, asked, _: in_pieces([bodies.tablets_bytes(backend.tablets(TableId(asked.table)))]),
    m.METRICS.name: lambda backend, _, __: in_pieces([bodies.values_bytes(backend.metrics())]),
    **BULK_STREAMS,
}


def _compact(backend: Backend, asked: m.CompactMessage, progress: Progress) -> bytes:
    backend.compact(TableId(asked.table), erase_now=asked.erase_now, progress=progress)
    return b""


WATCHED: dict[str, Watched] = {
    m.COMPACT.name: _compact,
    m.CHECK.name: lambda backend, _, progress: bodies.report_bytes(backend.check(progress)),
}

UPKEEP = frozenset(
    method.name
    for method in (m.CREATE, m.ALTER, m.DROP, m.RECALL, m.TRUNCATE, m.FLUSH, m.SPLIT, m.JOIN, m.COMPACT, m.CHECK)
) | {m.HOLD.name, m.BEGIN_LOAD.name, m.COMMIT_LOAD.name, m.BEGIN_COMPACTION.name, m.ADOPT.name}
"""May take minutes."""


class OpenStream:
    """A stream that threads pull at, one at a time, and that one of them may close meanwhile: then that waits for the
    item under way, and there is no further one."""

    def __init__(self, opened: Callable[[], Iterator[Reply]], method: WireMethod[Any, Any], request: RequestId) -> None:
        self._opened = opened
        self._method = method
        self._request = request
        self._items: Iterator[Reply] | None = None
        self._lock = Lock()
        self._is_closed = False

    def pull(self) -> Frame | None:
        """The next item as a frame; None after the last."""
        with self._lock:
            if self._is_closed:
                raise Closed("the stream was closed")
            if self._items is None:
                self._items = self._opened()
            item = next(self._items, None)
        return None if item is None else self._method.answer(self._request, item.message, item.body)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            _close(self._items)
