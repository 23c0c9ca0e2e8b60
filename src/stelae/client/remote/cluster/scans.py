"""Scans of rows that several shards have: one shard's rows after another's, in key order or in reverse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pyarrow as pa

from stelae.client.remote.cluster.routes import TableRoutes
from stelae.client.remote.cluster.routing import Routing
from stelae.client.remote.scans import RemoteScan
from stelae.client.remote.tablets import RemoteTablets
from stelae.model.ids import TableId
from stelae.service.deadlines import Deadline
from stelae.service.scans import ScanAsk

R = TypeVar("R")


class ClusterScan(Iterator[pa.RecordBatch]):
    """The first shard's part is open when this is made, each of the others when the one before it has ended: then it is
    known what is left of the limit."""

    def __init__(self, routing: Routing, table: TableId, routes: TableRoutes, ask: ScanAsk, deadline: Deadline) -> None:
        self._routing = routing
        self._table = table
        self._routes = routes
        self._ask = ask
        self._left = ask.limit
        self._parts = routes.cut_ranges(ask.predicate.rows, reverse=ask.reverse)
        self._shard = ""
        self._scan = self._open_next(deadline)
        self._deadline = deadline

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
        if scan is not None:
            scan.close()

    def _open_next(self, deadline: Deadline) -> RemoteScan | None:
        part = next(self._parts, None)
        if part is None or self._left == 0:
            return None
        self._shard, rows = part
        ask = replace(self._ask, predicate=replace(self._ask.predicate, rows=rows), limit=self._left)
        return self._ask_shard(lambda shard: shard.scan(self._table, ask, deadline=deadline))

    def _ask_shard(self, job: Callable[[RemoteTablets], R]) -> R:
        return self._routing.ask_shard(self._table, self._routes, self._shard, job)


def _next_of(scan: RemoteScan, _: RemoteTablets) -> pa.RecordBatch | None:
    return next(scan, None)
