"""A scan of a table at one snapshot, over all its tablets, whatever happens to them meanwhile.

The scanner keeps no more than its snapshot and the last row it gave out. Before each batch it asks which tablet holds
the next row: if that tablet has changed (flushed, compacted, split, joined, altered) it goes on with the new state at
the same snapshot, and the old sources can go. A file that is gone under a running read is no error either: the new
state is asked. So a scan survives everything but two things.

Its snapshot may get too old. Whoever scans holds a pin at it; nothing is pinned here. The horizon is looked at each
time after a tablet's state is taken, so a scan without a pin fails, and never gives rows that lack some history.

And a column that it reads may be changed, after which the rest would be rows of another shape than the schema says
that the request is bound to. That is an error that says so; columns added meanwhile do not concern it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

import pyarrow as pa

from stelae.model.errors import SchemaChanged
from stelae.model.ids import TableId
from stelae.model.ranges import NOTHING, RangeSet, RowRange
from stelae.model.schema import TableSchema
from stelae.storage.files.handles import MissingFile
from stelae.storage.read.asking import Asking
from stelae.storage.read.scans.rows import RowBatch, RowScan, ScanRequest
from stelae.storage.read.scans.shapes import fixed, read_shape
from stelae.storage.shard import Shard
from stelae.storage.tablet.state import TabletState

_RETRIES_MAX = 10


class TableScan:
    """Iterate once. `left` is what has not been given out yet: a scan of it goes on where this one stopped. `schema`:
    what the request is bound to."""

    def __init__(self, shard: Shard, table: TableId, schema: TableSchema, request: ScanRequest) -> None:
        self._shard = shard
        self._table = table
        self._schema = schema
        self._request = request
        self._checked = schema.version
        self._left = request.rows
        self._last: pa.Array | None = None

    @property
    def left(self) -> RangeSet:
        if self._last is not None:
            self._left = self._left.after(self._last[-1].as_py(), reverse=self._request.reverse)
            self._last = None
        return self._left

    def __iter__(self) -> Iterator[RowBatch]:
        return self.batches()

    def batches(self) -> Generator[RowBatch, None, None]:
        shard, retries, limit = self._shard, 0, self._request.limit
        left = self._left
        while left.ranges and limit != 0:
            state = self._state(left)
            if state.schema.version != self._checked:
                self._check_shape(state.schema)
            request = self._now(state, left, limit)
            try:
                for batch in RowScan(state, shard.fragments, request).batches():
                    self._last = batch.rows
                    limit = None if limit is None else limit - len(batch.rows)
                    retries = 0
                    yield batch
                    if limit == 0:
                        return
                    if shard.tablets_changed(state):
                        break
                else:
                    self._last, self._left = None, _beyond(left, state.rows, reverse=request.reverse)
            except MissingFile:
                retries += 1
                if retries > _RETRIES_MAX or not shard.tablets_changed(state):
                    raise
            left = self.left

    def _check_shape(self, now: TableSchema) -> None:
        """Columns go by the names they have in the request's schema; their ids and types must still be the same."""
        columns, where = fixed(self._schema, self._request.columns), self._request.where
        if read_shape(now, columns, where) != read_shape(self._schema, columns, where):
            raise SchemaChanged(
                f"the table's schema went from version {self._schema.version} to {now.version}, and a column that is "
                "read changed: scan again"
            )
        self._request = replace(self._request, columns=columns)
        self._checked = now.version

    def _state(self, left: RangeSet) -> TabletState:
        if not self._request.reverse:
            return self._shard.state_at(self._table, left.ranges[0].start)
        return self._shard.state_before(self._table, left.ranges[-1].stop)

    def _now(self, state: TabletState, left: RangeSet, limit: int | None) -> ScanRequest:
        """Of a state that was taken before: the horizon it was compacted to is then known."""
        request = self._request
        asking = request.asking
        self._shard.check_readable(state, asking.at)
        if state.floors:
            asking = Asking(asking.at, state.floor_at(asking.at), asking.read_us, asking.time)
        elif left is request.rows and limit == request.limit:
            return request
        return replace(request, rows=left, asking=asking, limit=limit)


def _beyond(left: RangeSet, done: RowRange, *, reverse: bool) -> RangeSet:
    """What is left behind a tablet, all of which was read."""
    if reverse:
        return left.split(done.start)[0] if done.start else NOTHING
    return left.split(done.stop)[1] if done.stop is not None else NOTHING
