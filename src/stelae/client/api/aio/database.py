"""The twin of `database` for event loops."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

from stelae.client.api.aio.table import AsyncTable
from stelae.client.api.database import Database
from stelae.client.api.display import Description
from stelae.client.api.handles import OfThisProcess
from stelae.client.api.snapshot import Snapshot
from stelae.client.api.table import Table
from stelae.client.calls.aio_session import AsyncSession
from stelae.client.calls.session import Session
from stelae.model.ids import Txn
from stelae.model.public import public
from stelae.ports.executor import Executor
from stelae.service.reports import CheckReport
from stelae.service.spaces import ZoneInfo


@public("AsyncDatabase", "stelae.aio")
class AsyncDatabase(OfThisProcess):
    """An open database whose calls are awaited. Arguments, results and errors are those of `Database`.

    async with stelae.aio.open("data") as db:
        users = await db.table("users")
    """

    def __init__(self, session: Session, executor: Executor) -> None:
        self._session = AsyncSession(session, executor)
        self._twin = Database(session)

    async def table(self, name: str) -> AsyncTable:
        """A table by its name: see `Database.table`."""
        return self._async(await self._session.work(self._twin.table, name))

    def _async(self, table: Table) -> AsyncTable:
        return AsyncTable(self._session, table._info)

    async def tables(self) -> list[str]:
        """The names of all tables."""
        return await self._session.work(self._twin.tables)

    async def describe(self, name: str) -> Description:
        """Everything about a table, as a dict that prints well."""
        return await self._session.work(self._twin.describe, name)

    async def create_table(
        self,
        name: str,
        key: Mapping[str, str] | Sequence[str] | str | None = None,
        groups: Sequence[Any] | None = None,
        **options: Any,
    ) -> AsyncTable:
        """Make a table: arguments are those of `Database.create_table`."""
        return self._async(await self._session.work(self._twin.create_table, name, key, groups, **options))

    async def alter_table(self, name: str, **changes: Any) -> AsyncTable:
        """Change a table: arguments are those of `Database.alter_table`."""
        return self._async(await self._session.work(self._twin.alter_table, name, **changes))

    async def drop_table(self, name: str, *, if_exists: bool = False) -> None:
        """Drop a table. For a while it can be had back by `recall_table`."""
        await self._session.work(self._twin.drop_table, name, if_exists=if_exists)

    async def recall_table(self, name: str, new_name: str | None = None) -> AsyncTable:
        """Have back the table that was dropped last under that name."""
        return self._async(await self._session.work(self._twin.recall_table, name, new_name))

    async def truncate_table(self, name: str) -> Txn:
        """Empty a table, in one step."""
        return await self._session.work(self._twin.truncate_table, name)

    async def namespaces(self) -> list[str]:
        """The names of all namespaces."""
        return await self._session.work(self._twin.namespaces)

    async def create_namespace(self, name: str, *, if_not_exists: bool = False) -> None:
        """Make a namespace: a space of names for tables."""
        await self._session.work(self._twin.create_namespace, name, if_not_exists=if_not_exists)

    async def drop_namespace(self, name: str, *, if_exists: bool = False) -> None:
        """Drop a namespace that has no tables."""
        await self._session.work(self._twin.drop_namespace, name, if_exists=if_exists)

    async def zones(self) -> dict[str, ZoneInfo]:
        """All zones by name."""
        return await self._session.work(self._twin.zones)

    async def create_zone(self, name: str, **options: Any) -> ZoneInfo:
        """Make a zone: arguments are those of `Database.create_zone`.

        await db.create_zone("small", tablet_bytes=64 * 2**20)
        """
        return await self._session.work(self._twin.create_zone, name, **options)

    async def alter_zone(self, name: str, **changes: Any) -> ZoneInfo:
        """Change a zone: arguments are those of `Database.alter_zone`."""
        return await self._session.work(self._twin.alter_zone, name, **changes)

    async def drop_zone(self, name: str, *, if_exists: bool = False) -> None:
        """Drop a zone that has no tables and is not the default one."""
        await self._session.work(self._twin.drop_zone, name, if_exists=if_exists)

    async def now(self) -> Txn:
        """The newest snapshot, as a number for `at=`."""
        if self._session.session.backend.is_local:
            return self._twin.now()
        return await self._session.work(self._twin.now)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Snapshot]:
        """The newest snapshot, held while the block runs.

        async with db.snapshot() as s:
            await users.get("ann", at=s)
        """
        snapshot = await self._session.work(self._twin.snapshot)
        try:
            yield snapshot
        finally:
            await self._session.work(snapshot.close)

    async def metrics(self) -> dict[str, Any]:
        """Numbers about the store, by name."""
        return await self._session.work(self._twin.metrics)

    async def check(self) -> CheckReport:
        """Read everything and say what is wrong: `report.problems` is empty if nothing is. Changes nothing."""
        return await self._session.work(self._twin.check)

    @property
    def path(self) -> str:
        """Where the store is."""
        return self._twin.path

    @property
    def closed(self) -> bool:
        return self._twin.closed

    async def close(self) -> None:
        """Wait for writes under way, end scans, let go of the store. Closing twice is no error."""
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncDatabase {self.path}{', closed' if self.closed else ''}>"


class Opening:
    """A database that is about to be opened: await it, or enter it with `async with`, which closes it again."""

    def __init__(self, opened: Callable[[], Coroutine[Any, Any, AsyncDatabase]]) -> None:
        self._opened = opened
        self._database: AsyncDatabase | None = None

    def __await__(self) -> Generator[Any, None, AsyncDatabase]:
        return self._opened().__await__()

    async def __aenter__(self) -> AsyncDatabase:
        self._database = await self
        return self._database

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._database is not None:
            await self._database.close()
