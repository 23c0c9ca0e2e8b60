"""What a store does for its clients: the one interface behind `Database` and `Table`.

It is filled by a store in the same process, which works on its tablets directly, and by a connection to the process
that owns the store. All of it is safe for threads, and blocks; only errors of `model.errors` come out. What is said
here holds for every backend, so nobody above has to know which one it is, but for `is_local`: then reads of cached
rows are plain functions that may be called from an event loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from stelae.model.ids import Row, TableId, Txn
from stelae.model.predicate.plan import ALL_TIME, TimeRange
from stelae.model.predicate.selectors import Selectors
from stelae.model.values import Value
from stelae.service.blocks import OrderedBlock
from stelae.service.jobs import BulkBackend
from stelae.service.reports import CheckReport, Progress
from stelae.service.scans import ScanAsk
from stelae.service.spaces import SpacesAsk, SpacesInfo
from stelae.service.tables import AlterAsk as AlterAsk
from stelae.service.tables import CreateAsk, TableInfo, TableStats, TabletInfo
from stelae.storage.read.asking import Version

Values: TypeAlias = dict[str, Value]
"""The newest value of each column and cell that was asked for, by name. Key columns are not among them."""


class Pin(Protocol):
    """A snapshot that stays readable until it is closed. Closing twice is no error."""

    @property
    def txn(self) -> Txn: ...

    def close(self) -> None: ...


class Backend(BulkBackend, Protocol):
    @property
    def is_local(self) -> bool: ...

    @property
    def place(self) -> str:
        """Where the store is, for messages."""
        ...

    # -- names and schemas

    def find(self, name: str) -> TableInfo:
        """By name or `namespace.name`; NotFound suggests the nearest name."""
        ...

    def info(self, table: TableId) -> TableInfo:
        """By id, as it is now; NotFound once the table is dropped."""
        ...

    def names(self) -> tuple[str, ...]:
        """The qualified names of all tables, sorted."""
        ...

    def create(self, ask: CreateAsk) -> TableInfo:
        """Returns when all tablets run."""
        ...

    def alter(self, name: str, ask: AlterAsk) -> TableInfo:
        """Returns when every tablet is at the new schema."""
        ...

    def drop(self, name: str, *, if_exists: bool = False) -> None: ...

    def recall(self, name: str, new_name: str | None = None) -> TableInfo: ...

    def truncate(self, table: TableId) -> Txn: ...

    def spaces(self) -> SpacesInfo:
        """The namespaces and zones there are."""
        ...

    def change_spaces(self, ask: SpacesAsk) -> SpacesInfo:
        """Make, alter or drop a namespace or a zone; all of them as they are then. Returns when the change counts for
        everybody. NotFound suggests the nearest name; InvalidSchema says what stands against it."""
        ...

    # -- writing

    def write(self, table: TableId, blocks: Sequence[OrderedBlock], max_txn: Txn | None = None) -> Txn:
        """Cut at tablets' bounds and written, each part atomic per row; the largest txn. All is durable when this
        returns. Waits while the store is overloaded, within its deadline.

        StaleSchema: the blocks are of another schema version than the table is at now, nothing was written of those
        from the first such on; make them anew from `info`. Conflict: see `Shard.apply`; a write with `max_txn` is one
        block of one row. PartialWrite: some rows are durable, `durable` says how many."""
        ...

    def submit(self, table: TableId, blocks: Sequence[OrderedBlock], max_txn: Txn | None = None) -> Future[Txn]:
        """As `write`, but returns at once; the future is done when all is durable, or has what `write` would raise."""
        ...

    # -- reading

    def now(self) -> Txn:
        """The newest snapshot: everything acknowledged before this call is in it."""
        ...

    @property
    def visible(self) -> Txn:
        """A snapshot that everything acknowledged so far is in, and that every read from now on is at or above."""
        ...

    def newest(self, table: TableId, row: Row, columns: Selectors, at: Txn | None = None) -> Values | None:
        """The row at a snapshot (None: now); None if it does not appear. Columns without a value have their default.
        SnapshotTooOld if history it needs may be gone."""
        ...

    def newest_cached(self, table: TableId, row: Row, columns: Selectors, at: Txn | None = None) -> Values | None:
        """As `newest`, but raises `NotCached` instead of reading from a file or waiting."""
        ...

    def newest_many(
        self, table: TableId, rows: Sequence[Row], columns: Selectors, at: Txn | None = None
    ) -> list[Values | None]:
        """All at one snapshot, in the order asked for."""
        ...

    def history(
        self,
        table: TableId,
        row: Row,
        columns: Selectors,
        limit: int,
        at: Txn | None = None,
        time: TimeRange = ALL_TIME,
    ) -> dict[str, tuple[Version, ...]] | None:
        """Up to so many visible versions of each column and cell, newest first; None if the row does not appear."""
        ...

    def scan(self, table: TableId, ask: ScanAsk) -> Iterator[pa.RecordBatch]:
        """Rows in key order as `storage.rowscan` gives them: key columns, columns, one map column per family. The
        snapshot is pinned while the iterator is open; closing it early frees everything. Hashed tables come in the
        order of their rows. `predicate.history` is not looked at."""
        ...

    def pin(self, at: Txn | None = None) -> Pin:
        """Keep a snapshot (None: now) of all tables readable. It ends with the process at the latest."""
        ...

    # -- upkeep

    def flush(self, table: TableId) -> None: ...

    def compact(self, table: TableId, *, erase_now: bool = False, progress: Progress | None = None) -> None:
        """Everything into one file per tablet and group. `erase_now`: drop history without regard to retention; pinned
        snapshots still hold it."""
        ...

    def split(self, table: TableId, at: Row | None = None, tablet: int | None = None) -> None:
        """At a row; or a tablet, or the largest one, at the row that halves it."""
        ...

    def join(self, table: TableId, at: Row) -> None:
        """The tablet that begins at the row with the one before it."""
        ...

    def tablets(self, table: TableId) -> tuple[TabletInfo, ...]: ...

    def stats(self, table: TableId) -> TableStats: ...

    def metrics(self) -> Mapping[str, Any]:
        """Numbers about the store, by name: flat, plain values."""
        ...

    def check(self, progress: Progress | None = None) -> CheckReport:
        """Read everything and say what is wrong. Changes nothing."""
        ...

    def close(self) -> None:
        """Wait for writes under way, end scans with Closed. Closing twice is no error."""
        ...
