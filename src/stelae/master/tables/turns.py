"""Who may change what at the same time: a table is changed by one at a time, and tables do not wait for each other.

A server that is slow or gone holds up only the changes of tables that it has tablets of.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stelae.model.errors import DeadlineExceeded
from stelae.model.ids import TableId
from stelae.service.deadlines import Deadline, left_of

CATALOG = TableId(-1)
"""The turn of whoever gives out ids of tables, which are the catalog's next."""


class Turns:
    """For the tasks of one event loop."""

    def __init__(self) -> None:
        self._locks: dict[TableId, asyncio.Lock] = {}
        self._users: dict[TableId, int] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @asynccontextmanager
    async def turn(self, table: TableId, deadline: Deadline | None = None) -> AsyncIterator[None]:
        """DeadlineExceeded if another change of the table is under way for so long."""
        lock = self._locks.setdefault(table, asyncio.Lock())
        self._users[table] = self._users.get(table, 0) + 1
        try:
            try:
                async with asyncio.timeout(left_of(deadline)):
                    await lock.acquire()
            except TimeoutError:
                raise DeadlineExceeded("another change of the table is still under way; try again") from None
            self._idle.clear()
            try:
                yield
            finally:
                lock.release()
        finally:
            self._users[table] -= 1
            if not self._users[table]:
                del self._users[table], self._locks[table]
            if not self._users:
                self._idle.set()

    def is_taken(self, table: TableId) -> bool:
        """Whether a change of the table is under way now, or waits."""
        return table in self._users

    async def wait_idle(self, deadline: Deadline | None = None) -> None:
        """Until no change is under way or waits: at that moment, if the caller does not wait again. DeadlineExceeded if
        one is for so long."""
        try:
            async with asyncio.timeout(left_of(deadline)):
                while self._users:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            raise DeadlineExceeded("changes of tables are still under way; try again") from None
