"""A scan of a table at one snapshot, over all its tablets, whatever happens to them meanwhile.

The scanner keeps no more than its snapshot and the last row it gave out. Before each batch it asks which tablet holds
the next row: if that tablet has changed (flushed, compacted, split, joined, altered) it goes on with the new state at
the same snapshot, and the old sources can go. A file that is gone under a running read is no error either: the new
state is asked. So a scan survives everything but two things: its snapshot getting too old, which its pin prevents, and
a change of a column that it reads, after which the rest would be rows of another shape. That is an error that says so;
columns added meanwhile do not concern it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stelae.model.errors import NotFound, SchemaChanged
from stelae.model.ids import SchemaVersion, TableId
from stelae.model.ranges import RangeSet, RowRange
from stelae.storage.read.asking import Asking
from stelae.storage.read.scans.rows import ReadShape, RowBatch, RowScan, ScanRequest, fixed, read_shape
from stelae.storage.shard import Shard
from stelae.storage.tablet.state import TabletState

_RETRIES_MAX = 10


class TableScan:
    """Iterate once. `left` is what has not been given out yet: a scan of it goes on where this one stopped."""

    def __init__(self, shard: Shard, table: TableId, request: ScanRequest) -> None:
        self._shard = shard
        self._table = table
        self._request = request
        self._shape: ReadShape | None = None
        self._version: SchemaVersion | None = None
        self.left = request.rows

    def __iter__(self) -> Iterator[RowBatch]:
        with self._shard.pinned(self._request.asking.at, self._table):
            yield from self._batches()

    def _batches(self) -> Iterator[RowBatch]:
        retries = 0
        while not self.left.is_empty:
            state = self._state()
            self._check_shape(state)
            mine = self.left.intersect(RangeSet.of([state.rows]))
            request = replace(self._request, rows=mine, asking=self._asking(state))
            batches = RowScan(state, self._shard.fragments, request).batches()
            try:
                for batch in batches:
                    self._give(batch)
                    retries = 0
                    yield batch
                    if self._shard.tablets_changed(state):
                        break
                else:
                    self.left = self.left.subtract(RangeSet.of([state.rows]))
            except NotFound:
                retries += 1
                if retries > _RETRIES_MAX or not self._shard.tablets_changed(state):
                    raise

    def _check_shape(self, state: TabletState) -> None:
        """At the first tablet, the columns asked for are fixed by name; later their ids and types must be the same."""
        if state.schema.version == self._version:
            return
        if self._shape is None:
            self._request = replace(self._request, columns=fixed(state.schema, self._request.columns))
        shape = read_shape(state.schema, self._request)
        if self._shape is not None and shape != self._shape:
            raise SchemaChanged(
                f"the table's schema went from version {self._version} to {state.schema.version} while it was scanned, "
                "and a column that is read changed: scan again"
            )
        self._shape, self._version = shape, state.schema.version

    def _state(self) -> TabletState:
        if not self._request.reverse:
            return self._shard.state_at(self._table, self.left.ranges[0].start)
        last = self.left.ranges[-1]
        return self._shard.state_before(self._table, last.stop)

    def _asking(self, state: TabletState) -> Asking:
        asking = self._request.asking
        return Asking(asking.at, state.floor_at(asking.at), asking.read_us, asking.time)

    def _give(self, batch: RowBatch) -> None:
        """All up to the last row of the batch has been given out."""
        last = batch.rows[-1].as_py()
        done = RowRange(last, None) if self._request.reverse else RowRange(b"", last + b"\0")
        self.left = self.left.subtract(RangeSet.of([done]))
