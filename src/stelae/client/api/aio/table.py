"""The twin of `table` for event loops: the same calls, awaited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from stelae.client.api.aio.batch import AsyncBatch
from stelae.client.api.aio.scan import AsyncScan
from stelae.client.api.handles import OfThisProcess
from stelae.client.api.rows import Row, Version
from stelae.client.api.scan import PinnedScan, open_scan
from stelae.client.api.table import Table
from stelae.client.calls.aio_session import AsyncSession, was_refused
from stelae.client.calls.gathering import BATCH_BYTES, BATCH_COUNT, BATCH_SECONDS, Gathering
from stelae.client.calls.order import span_of
from stelae.client.calls.quick import Missed, put_on_loop, quick_get, quick_get_on_loop
from stelae.client.calls.rows import Rows, UpdateFunction
from stelae.client.calls.steps import Steps
from stelae.client.calls.views import ALL_ROWS, KnownTable
from stelae.client.calls.wakes import Wakes
from stelae.model.errors import InvalidArgument, Retryable
from stelae.model.ids import Txn
from stelae.model.public import public
from stelae.service.blocks import OrderedBlock
from stelae.service.reports import Progress
from stelae.service.tables import TableInfo, TableStats, TabletInfo


@public("AsyncTable", "stelae.aio")
class AsyncTable(OfThisProcess):
    """A table of a database opened by `stelae.aio`. Arguments, results and errors are those of `Table`.

        users = await db.table("users")
        await users.put({"id": "ann", "name": "Ann"})
        row = await users.get("ann")

    For the event loop that the database was opened in.
    """

    def __init__(self, session: AsyncSession, info: TableInfo) -> None:
        self._session = session
        self._known = KnownTable(info)
        self._rows = Rows(self._known)
        self._twin = Table(session.session, info)
        self._wakes: Wakes[Txn] = Wakes()

    @property
    def name(self) -> str:
        """The qualified name, as last seen."""
        return self._known.view.name

    # -- reading

    async def get(
        self, key: object, columns: Sequence[str] | None = None, at: object = None, *, rows: str = ALL_ROWS
    ) -> Row | None:
        """The newest values of one row, or None: see `Table.get`. What is in memory is answered without waiting."""
        backend = self._session.session.backend
        if rows == ALL_ROWS and backend.is_local:
            found = quick_get(self._known.view, backend, backend.newest_cached, key, columns, at)
            if not isinstance(found, Missed):
                return found
        elif rows == ALL_ROWS and (on_loop := self._session.rows_of(backend)) is not None:
            deadline = self._session.session.patience.deadline()
            found = await quick_get_on_loop(self._known.view, backend, on_loop, key, columns, at, deadline)
            if not isinstance(found, Missed):
                return found
            return await self._session.run(self._rows.get(key, columns, at, rows), deadline, failed=found.error)
        return await self._session.run(self._rows.get(key, columns, at, rows))

    async def get_many(
        self, keys: Iterable[object], columns: Sequence[str] | None = None, at: object = None, *, rows: str = ALL_ROWS
    ) -> list[Row | None]:
        """Many rows at one snapshot, in the order of the keys: see `Table.get_many`."""
        return await self._session.run(self._rows.get_many(keys, columns, at, rows))

    async def exists(self, key: object, at: object = None) -> bool:
        """Whether there is such a row."""
        return await self.get(key, at=at) is not None

    async def history(
        self, key: object, columns: Sequence[str] | None = None, limit: int | None = None, at: object = None
    ) -> dict[str, list[Version]]:
        """The versions of each column and cell of a row, newest first: see `Table.history`."""
        return await self._session.run(self._rows.history(key, columns, limit, at))

    async def count(self, where: object = None, **bounds: Any) -> int:
        """How many rows there are, or how many the condition is true of: see `Table.count`."""
        return await self._session.work(self._twin.count, where, **bounds)

    async def head(self, count: int = 10) -> list[Row]:
        """The first rows by key: see `Table.head`."""
        return await self._session.work(self._twin.head, count)

    def scan(self, where: object = None, **options: Any) -> AsyncScan:
        """Many rows: arguments are those of `Table.scan`, and the result is for `async for`.

        async for row in users.scan(prefix="a", columns=["name"]): ...
        """
        session = self._session.session
        if not session.backend.is_local:
            return AsyncScan(self._session, self._session.begin(open_scan, session, self._known, where, **options))
        pinned: Future[PinnedScan] = Future()
        pinned.set_result(open_scan(session, self._known, where, **options))
        return AsyncScan(self._session, pinned)

    # -- writing

    async def put(
        self,
        row: Mapping[str, Any],
        *,
        ts: int | None = None,
        if_unchanged_since: int | None = None,
        if_absent: bool = False,
    ) -> Txn:
        """Write columns and cells of one row; durable when it returns: see `Table.put`.

        await asyncio.gather(*[users.put({"id": str(n)}) for n in range(100)])   # together, in few syncs
        """
        backend, order = self._session.session.backend, self._session.order
        if if_unchanged_since is None and not if_absent and backend.is_local:
            deadline, future = self._session.session.patience.deadline(), None
            with suppress(InvalidArgument, Retryable):  # nothing was written; said again below, by a fresh view perhaps
                blocks = self._known.view.put_blocks(row, ts)
                if not order.has_turns or order.is_free(self._known.id, span_of(blocks)):
                    submitted = backend.submit(self._known.id, blocks, deadline=deadline)
                    if was_refused(submitted):
                        submitted.result()
                    order.note_let_in(self._known.id, blocks, submitted)
                    future = submitted
            if future is not None:
                return await self._wakes.watch(future, deadline)
        elif if_unchanged_since is None and not if_absent:
            return await self._put_elsewhere(row, ts)
        return await self._session.run(self._rows.put(row, ts, if_unchanged_since, if_absent=if_absent))

    async def _put_elsewhere(self, row: Mapping[str, Any], ts: int | None) -> Txn:
        """To a store that another process has."""
        session, known = self._session, self._known
        rows, deadline = session.rows_of(session.session.backend), session.session.patience.deadline()
        blocks: Sequence[OrderedBlock] = ()
        if rows is not None:
            with suppress(InvalidArgument):  # said again below, by a fresh view perhaps
                blocks = known.view.put_blocks(row, ts)
        if rows is None or len(blocks) != 1:
            return await session.run(self._steps_of_put(row, ts), deadline)
        return await put_on_loop(session, rows, known.id, blocks[0], deadline, lambda: self._steps_of_put(row, ts))

    def _steps_of_put(self, row: Mapping[str, Any], ts: int | None) -> Steps[Txn]:
        return self._rows.put(row, ts, None, if_absent=False)

    async def put_many(self, rows: Any, *, nulls: str = "write", ts: int | None = None, cells: str = "map") -> Txn:
        """Write many rows: see `Table.put_many`."""
        return await self._session.run(self._rows.put_many(rows, nulls, ts, cells))

    async def erase(
        self,
        key: object,
        columns: Sequence[str] | None = None,
        *,
        ts: int | None = None,
        versions: Sequence[int] | None = None,
    ) -> Txn:
        """Erase a row, or some of its columns, cells or families: see `Table.erase`."""
        return await self._session.run(self._rows.erase(key, columns, ts, versions))

    async def erase_many(self, keys: Any, *, ts: int | None = None) -> Txn:
        """Erase many rows: see `Table.erase_many`."""
        return await self._session.run(self._rows.erase_many(keys, ts))

    async def erase_range(self, start: object = None, stop: object = None, *, prefix: object = None) -> int:
        """Erase the rows from `start` to below `stop`, in parts; returns how many: see `Table.erase_range`."""
        return await self._session.work_in_turn(self._known.id, self._twin.erase_range, start, stop, prefix=prefix)

    async def update(self, key: object, function: UpdateFunction) -> Row | None:
        """Read, change and write back a row, again on conflict: see `Table.update`. The function is a plain one."""
        return await self._session.run(self._rows.update(key, function))

    async def increment(self, key: object, by: Mapping[str, Any]) -> dict[str, Any]:
        """Add to number columns of a row, atomically; returns the new values: see `Table.increment`."""
        return await self._session.run(self._rows.increment(key, by))

    def batch(
        self, *, count_max: int = BATCH_COUNT, bytes_max: int = BATCH_BYTES, seconds_max: float = BATCH_SECONDS
    ) -> AsyncBatch:
        """Gather many puts and erasures into large writes, with `async with`: see `Table.batch`."""
        clock = self._session.session.patience.clock
        gathering = Gathering(self._known, self._rows, clock, count_max, bytes_max, seconds_max)
        return AsyncBatch(self._session, gathering)

    # -- upkeep

    async def flush(self) -> None:
        """Write what is in memory to files."""
        await self._session.work(self._twin.flush)

    async def compact(self, *, erase_now: bool = False, progress: Progress | None = None) -> tuple[str, ...]:
        """Merge all files: see `Table.compact`. `progress` is called on another thread."""
        return await self._session.work(self._twin.compact, erase_now=erase_now, progress=progress)

    async def split(self, key: object = None) -> None:
        """Cut a tablet in two at a key."""
        await self._session.work(self._twin.split, key)

    async def join(self, key: object) -> None:
        """Join the tablet that begins at a key with the one before it: see `Table.join`."""
        await self._session.work(self._twin.join, key)

    async def tablets(self) -> tuple[TabletInfo, ...]:
        """The table's tablets, in the order of their rows."""
        return await self._session.work(self._twin.tablets)

    async def stats(self) -> TableStats:
        """How many files, records and bytes there are now."""
        return await self._session.work(self._twin.stats)

    def __repr__(self) -> str:
        return f"<AsyncTable {self.name}>"
