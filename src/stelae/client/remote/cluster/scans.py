"""Scans of rows that several shards have: one shard's rows after another's, in key order or in reverse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from stelae.client.remote.cluster.routes import TableRoutes
from stelae.client.remote.cluster.routing import Routing, attempt
from stelae.client.remote.scans import RemoteScan
from stelae.client.remote.tablets import RemoteTablets
from stelae.model.errors import Retryable, StelaeError
from stelae.model.ids import TableId
from stelae.model.ranges import RangeSet
from stelae.service.deadlines import Deadline
from stelae.service.scans import ScanAsk

R = TypeVar("R")


class ClusterScan(Iterator[pa.RecordBatch]):
    """The first shard's part is open when this is made. The next one is opened while it is read, so that its first
    batch is there, or on its way, when the one before has ended; if there is a limit, not before it has: then it is
    known what is left of it."""

    def __init__(self, routing: Routing, table: TableId, routes: TableRoutes, ask: ScanAsk, deadline: Deadline) -> None:
        self._routing = routing
        self._table = table
        self._routes = routes
        self._ask = ask
        self._left = ask.limit
        self._parts = routes.cut_ranges(ask.predicate.rows, reverse=ask.reverse)
        self._shard = ""
        self._deadline = deadline
        self._ahead: _Ahead | None = None
        self._scan = self._open_next(deadline)

    def __next__(self) -> pa.RecordBatch:
        while (scan := self._scan) is not None:
            batch = self._ask_shard(partial(_next_of, scan))
            if batch is None:
                self._scan = self._open_next(self._deadline.anew())
                continue
            if self._left is not None:
                self._left -= batch.num_rows
            return batch
        raise StopIteration

    def close(self) -> None:
        """Closing twice is no error."""
        scan, self._scan = self._scan, None
        ahead, self._ahead = self._ahead, None
        if scan is not None:
            scan.close()
        if ahead is not None:
            ahead.opened.add_done_callback(_close_unread)

    def _open_next(self, deadline: Deadline) -> RemoteScan | None:
        ahead, self._ahead = self._ahead, None
        part = next(self._parts, None) if ahead is None else None
        if ahead is not None:
            self._shard = ahead.shard
            scan = self._explained(ahead.opened.result())
        elif part is None or self._left == 0:
            return None
        else:
            self._shard, rows = part
            scan = self._explained(self._open(self._shard, rows, deadline))
        self._open_ahead()
        return scan

    def _open_ahead(self) -> None:
        """The part behind this one, beside the caller. What it raises is raised when it is its turn."""
        part = next(self._parts, None) if self._left is None else None
        if part is not None:
            shard, rows = part
            job = partial(self._open, shard, rows, self._deadline.anew())
            self._ahead = _Ahead(shard, self._routing.shards.begin(job))

    def _open(self, shard: str, rows: RangeSet, deadline: Deadline) -> RemoteScan | StelaeError:
        ask = replace(self._ask, predicate=replace(self._ask.predicate, rows=rows), limit=self._left)
        shards = self._routing.shards
        return attempt(lambda name: shards.get(name).scan(self._table, ask, deadline=deadline), shard)

    def _explained(self, opened: RemoteScan | StelaeError) -> RemoteScan:
        if isinstance(opened, Retryable):
            raise self._routing.explain(self._table, self._routes, self._shard, opened)
        if isinstance(opened, StelaeError):
            raise opened
        return opened

    def _ask_shard(self, job: Callable[[RemoteTablets], R]) -> R:
        return self._routing.ask_shard(self._table, self._routes, self._shard, job)


class _Ahead(msgspec.Struct, frozen=True):
    """A part that is being opened before it is its turn."""

    shard: str
    opened: Future[RemoteScan | StelaeError]


def _close_unread(opened: Future[RemoteScan | StelaeError]) -> None:
    scan = opened.result()
    if isinstance(scan, RemoteScan):
        scan.close()


def _next_of(scan: RemoteScan, _: RemoteTablets) -> pa.RecordBatch | None:
    return next(scan, None)
