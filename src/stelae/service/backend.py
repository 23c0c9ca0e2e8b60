"""What a store does for its clients: the one interface behind `Database` and `Table`.

It has two halves, as a cluster has two kinds of servers: what a master is asked (`TableService`: tables as a whole) and
what a shard is asked (`TabletService`: rows, files, snapshots). An embedded store fills both in the caller's process; a
connection fills both from afar. All of it is safe for threads, and blocks; only errors of `model.errors` come out. What
is said here holds for every backend, so nobody above has to know which one it is, but for `is_local`: then reads of
cached rows are plain functions that may be called from an event loop.

Every call that may wait takes the caller's deadline and passes it on. A store does not wait on behalf of a client for
what it cannot do now: it raises Overloaded or TabletAway at once, and the client's session tries again until the
deadline. What it waits for itself (the disk) ends at the deadline too: a read with DeadlineExceeded, a write, which may
still happen, with UnknownOutcome. Work on whole tables may take as long as it makes progress; of it, the deadline
bounds how long nothing is heard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from stelae.model.ids import Row, SchemaVersion, TableId, Txn
from stelae.model.predicate.plan import ALL_TIME, TimeRange
from stelae.model.predicate.selectors import Selectors
from stelae.model.ranges import RowRange
from stelae.model.values import Value
from stelae.service.blocks import OrderedBlock
from stelae.service.deadlines import Deadline
from stelae.service.jobs import BulkBackend
from stelae.service.reports import CheckReport, Progress
from stelae.service.scans import ScanAsk
from stelae.service.spaces import SpacesAsk, SpacesInfo
from stelae.service.tables import AlterAsk, CreateAsk, TableInfo, TableStats, TabletInfo
from stelae.storage.read.asking import Version

Values: TypeAlias = dict[str, Value]
"""The newest value of each column and cell that was asked for, by name. Key columns are not among them."""


class Pin(Protocol):
    """A snapshot that stays readable until it is closed. Closing twice is no error."""

    @property
    def txn(self) -> Txn: ...

    def close(self) -> None: ...


class TableService(Protocol):
    """What a master is asked."""

    def find(self, name: str, *, deadline: Deadline | None = None) -> TableInfo:
        """By name or `namespace.name`; NotFound suggests the nearest name."""
        ...

    def info(self, table: TableId, *, deadline: Deadline | None = None) -> TableInfo:
        """By id, as it is now; NotFound once the table is dropped."""
        ...

    def names(self, *, deadline: Deadline | None = None) -> tuple[str, ...]:
        """The qualified names of all tables, sorted."""
        ...

    def spaces(self, *, deadline: Deadline | None = None) -> SpacesInfo:
        """The namespaces and zones there are."""
        ...

    def change_spaces(self, ask: SpacesAsk, *, deadline: Deadline | None = None) -> SpacesInfo:
        """Make, alter or drop a namespace or a zone; all of them as they are then. Returns when the change counts for
        everybody. NotFound suggests the nearest name; InvalidSchema says what stands against it."""
        ...

    def create(self, ask: CreateAsk, *, deadline: Deadline | None = None) -> TableInfo:
        """Returns when all tablets run."""
        ...

    def alter(self, name: str, ask: AlterAsk, *, deadline: Deadline | None = None) -> TableInfo:
        """Returns when every tablet is at the new schema."""
        ...

    def drop(self, name: str, *, if_exists: bool = False, deadline: Deadline | None = None) -> None: ...

    def recall(self, name: str, new_name: str | None = None, *, deadline: Deadline | None = None) -> TableInfo: ...

    def split(
        self, table: TableId, at: Row | None = None, tablet: int | None = None, *, deadline: Deadline | None = None
    ) -> None:
        """At a row; or a tablet, or the largest one, at the row that halves it."""
        ...

    def join(self, table: TableId, at: Row, *, deadline: Deadline | None = None) -> None:
        """The tablet that begins at the row with the one before it."""
        ...


class TabletService(BulkBackend, Protocol):
    """What a shard is asked."""

    # -- writing

    def write(
        self,
        table: TableId,
        blocks: Sequence[OrderedBlock],
        max_txn: Txn | None = None,
        *,
        must_show: bool = False,
        deadline: Deadline | None = None,
    ) -> Txn:
        """Cut at tablets' bounds and written, each part atomic per row; the largest txn. All is durable when this
        returns. Where a block brings its own bytes (`OrderedBlock.data`), those are what the log gets.

        StaleSchema: the blocks are of another schema version than the table is at now, nothing was written of those
        from the first such on; make them anew from `info`. Conflict: see `Shard.apply`; a write with `max_txn` is one
        block of one row. WouldBeHidden: it `must_show` and might not; nothing was written. Overloaded: there is no room
        now, and nothing was written. PartialWrite: the first `durable` records or mutations of the blocks are durable,
        and nothing was written of those behind them, so the client may go on there. UnknownOutcome: the deadline passed
        while it was being made durable."""
        ...

    def submit(
        self,
        table: TableId,
        blocks: Sequence[OrderedBlock],
        max_txn: Txn | None = None,
        *,
        must_show: bool = False,
        deadline: Deadline | None = None,
    ) -> Future[Txn]:
        """As `write`, but returns at once; the future is done when all is durable, or has what `write` would raise. A
        local store has let the write in, or refused it, when this returns: so of two writes the one that was submitted
        first happens first."""
        ...

    def wait_for_room(self, seconds: float) -> None:
        """After Overloaded: wait until memory was freed, or for so long."""
        ...

    def truncate(self, table: TableId, *, deadline: Deadline | None = None) -> Txn: ...

    # -- reading

    def now(self, table: TableId | None = None, *, deadline: Deadline | None = None) -> Txn:
        """The newest snapshot: everything acknowledged before this call is in it, and nothing that is asked for after
        it. `table`: of this table alone; a store of several shards then asks only those that have rows of it."""
        ...

    def newest(
        self,
        table: TableId,
        row: Row,
        columns: Selectors,
        at: Txn | None = None,
        *,
        deadline: Deadline | None = None,
    ) -> tuple[Txn, Values | None]:
        """The snapshot it was read at, and the row; None if it does not exist. `at` None: the newest snapshot, which
        everything acknowledged so far is in. Read at that txn again, the row is the same. Columns without a value have
        their default. SnapshotTooOld if history it needs may be gone."""
        ...

    def newest_cached(
        self, table: TableId, row: Row, columns: Selectors, at: Txn | None = None
    ) -> tuple[Txn, Values | None]:
        """As `newest`, but raises `NotCached` instead of reading from a file or waiting."""
        ...

    def newest_many(
        self,
        table: TableId,
        rows: Sequence[Row],
        columns: Selectors,
        at: Txn | None = None,
        *,
        deadline: Deadline | None = None,
    ) -> tuple[Txn, list[Values | None]]:
        """The snapshot they were all read at, and the rows in the order asked for."""
        ...

    def history(
        self,
        table: TableId,
        row: Row,
        columns: Selectors,
        limit: int,
        at: Txn | None = None,
        time: TimeRange = ALL_TIME,
        *,
        deadline: Deadline | None = None,
    ) -> dict[str, tuple[Version, ...]] | None:
        """Up to so many visible versions of each column and cell, newest first; None if the row does not exist."""
        ...

    def scan(self, table: TableId, ask: ScanAsk, *, deadline: Deadline | None = None) -> Iterator[pa.RecordBatch]:
        """Rows in key order as `storage.read.scans` gives them: key columns, columns, one map column per family; not
        more than `ask.limit`. Hashed tables come in the order of their rows. `predicate.history` is not looked at. The
        deadline is for the first batch, and its length anew for each that follows.

        The caller holds a pin at `ask.at` for as long as the iterator is open: nothing is pinned here. Without one the
        scan may end with SnapshotTooOld; it never gives rows that lack history. Closed early, it reads no further."""
        ...

    def pin(self, at: Txn | None = None, table: TableId | None = None, *, deadline: Deadline | None = None) -> Pin:
        """Keep a snapshot (None: now) readable, of all tables that have its history. SnapshotTooOld if none has. It
        ends with the process at the latest. `table`: only this one will be read at it; a store of several shards then
        keeps it on those that have rows of it, and others may keep it readable, too."""
        ...

    # -- upkeep

    def flush(self, table: TableId, *, deadline: Deadline | None = None) -> None: ...

    def compact(
        self,
        table: TableId,
        *,
        erase_now: bool = False,
        progress: Progress | None = None,
        deadline: Deadline | None = None,
    ) -> tuple[str, ...]:
        """Everything into one file per tablet and group. `erase_now`: what is erased or purged is in no file and not in
        the log when this returns, without regard to retention; but for what somebody holds. Who does, in words."""
        ...

    def tablets(self, table: TableId, *, deadline: Deadline | None = None) -> tuple[TabletInfo, ...]: ...

    def stats(self, table: TableId, *, deadline: Deadline | None = None) -> TableStats: ...


Told: TypeAlias = tuple[Value, ...] | Values
"""Values of one row: alone, in the order of the columns of one version of the schema, or by name."""


class QuickReads(Protocol):
    """Reads of callers in the same process, where nothing is odd, without names and batches. They raise what the plain
    reads raise; whoever is told None asks those."""

    def values(
        self, table: TableId, row: Row, columns: Selectors, version: SchemaVersion
    ) -> tuple[Txn, Told | None] | None:
        """As `newest` without a snapshot. None: something is odd, ask `newest`."""
        ...

    def many(
        self,
        table: TableId,
        rows: Sequence[Row],
        columns: Selectors,
        version: SchemaVersion,
        at: Txn | None,
        deadline: Deadline | None,
    ) -> tuple[Txn, list[Told | None]]:
        """As `newest_many`."""
        ...

    def few(
        self, table: TableId, rows: RowRange, columns: Selectors, version: SchemaVersion, at: Txn, count: int
    ) -> tuple[list[bytes], list[tuple[Value, ...]]] | None:
        """The first so many rows of a range at a snapshot that is pinned: their keys, and their values. None: scan."""
        ...


class Backend(TableService, TabletService, Protocol):
    """A whole store: what its master and its shards can be asked, and a few things about it as a whole."""

    @property
    def is_local(self) -> bool: ...

    @property
    def quick(self) -> QuickReads | None:
        """What only a store in this process can offer."""
        ...

    @property
    def place(self) -> str:
        """Where the store is, for messages."""
        ...

    def metrics(self, *, deadline: Deadline | None = None) -> Mapping[str, Any]:
        """Numbers about the store, by name: flat, plain values."""
        ...

    def check(self, progress: Progress | None = None, *, deadline: Deadline | None = None) -> CheckReport:
        """Read everything and say what is wrong. Changes nothing."""
        ...

    def close(self) -> None:
        """Wait for writes under way, end scans with Closed. Closing twice is no error."""
        ...


class WriteUnderWay(Protocol):
    """A write that was sent. Cancelling whoever waits for it takes nothing back."""

    @property
    def is_open(self) -> bool:
        """Whether its answer may still come."""
        ...

    async def result(self) -> Txn: ...


class RowsOnLoop(Protocol):
    """Single rows for the tasks of one event loop: as `Backend`, awaited, without a thread."""

    async def newest(
        self, table: TableId, row: Row, columns: Selectors, at: Txn | None, deadline: Deadline
    ) -> tuple[Txn, Values | None]: ...

    async def write(
        self, table: TableId, blocks: Sequence[OrderedBlock], max_txn: Txn | None, must_show: bool, deadline: Deadline
    ) -> Txn: ...

    def begin_write(
        self, table: TableId, block: OrderedBlock, deadline: Deadline, ended: Callable[[], None]
    ) -> WriteUnderWay | None:
        """Send a block of one row, without a condition, here and now. None: that cannot be, or not without waiting;
        `write` says why. `ended` is called when the answer has come or cannot come any more, whether somebody waits
        for it or not."""
        ...

    async def retire(self) -> None:
        """Let what is under way come to its end, then close. Cancelled, it closes at once."""
        ...

    async def close(self) -> None:
        """Whatever is under way ends."""
        ...


@runtime_checkable
class HasRowsOnLoop(Protocol):
    """A backend that may have them."""

    def open_rows(self) -> RowsOnLoop | None:
        """For the running loop; whoever opens them closes them. None: there is no such way to the store."""
        ...
