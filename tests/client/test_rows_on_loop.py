"""Single rows of another process's store, asked for from an event loop: when the store moves, what is under way on the
way to where it was comes to its end, and nothing on the new way is disturbed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from stelae.adapters.clock import SystemClock
from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.rng import SystemRng
from stelae.client.api.aio.table import AsyncTable
from stelae.client.calls.aio_session import AsyncSession
from stelae.client.calls.retries import Patience
from stelae.client.calls.session import Session
from stelae.model.errors import UnknownOutcome
from stelae.model.ids import Row, TableId, Txn
from stelae.model.predicate.selectors import Selectors
from stelae.service.backend import Values
from stelae.service.blocks import OrderedBlock
from stelae.service.deadlines import Deadline
from tests.client.fake_backend import FakeBackend, table_info
from tests.client.samples import USERS
from tests.effort import HANG_S

TABLE = TableId(7)


class Rows:
    """Writes wait until they are let go, and fail if the way is closed before."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun = asyncio.Event()
        self.closed = asyncio.Event()
        self.under_way = 0

    async def newest(
        self, table: TableId, row: Row, columns: Selectors, at: Txn | None, deadline: Deadline
    ) -> tuple[Txn, Values | None]:
        return Txn(3), None

    async def write(
        self, table: TableId, blocks: Sequence[OrderedBlock], max_txn: Txn | None, must_show: bool, deadline: Deadline
    ) -> Txn:
        self.begun.set()
        self.under_way += 1
        await self.go.wait()
        self.under_way -= 1
        if self.closed.is_set():
            raise UnknownOutcome("the way was closed")
        return Txn(4)

    async def retire(self) -> None:
        while self.under_way:
            await asyncio.sleep(0)
        await self.close()

    async def close(self) -> None:
        self.closed.set()


class Store(FakeBackend):
    """One that another process has."""

    def __init__(self) -> None:
        super().__init__({TABLE: table_info(USERS)}, {"now": Txn(1)}, is_local=False)
        self.ways: list[Rows] = []

    def open_rows(self) -> Rows:
        self.ways.append(Rows())
        return self.ways[-1]


def test_a_store_that_moves_takes_no_write_with_it() -> None:
    async def play() -> None:
        first, second = Store(), Store()
        executor = ThreadExecutor(2, 10)
        session = AsyncSession(Session(first, Patience(SystemClock(), SystemRng(), HANG_S)), executor)
        table = AsyncTable(session, table_info(USERS))
        writing = asyncio.create_task(table.put({"id": "ann", "age": 1}))
        while not first.ways:
            await asyncio.sleep(0)
        await first.ways[0].begun.wait()
        session.session.backend = second
        assert await table.get("bob") is None
        assert len(second.ways) == 1
        # Who still holds the old one opens no way to it, and closes none.
        assert session.rows_of(first) is None
        assert session.rows_of(second) is second.ways[0]
        assert not first.ways[0].closed.is_set()
        first.ways[0].go.set()
        assert await writing == 4
        await first.ways[0].closed.wait()
        assert not second.ways[0].closed.is_set()
        await session.close()
        assert second.ways[0].closed.is_set()
        assert (len(first.ways), len(second.ways)) == (1, 1)

    asyncio.run(play())


def test_closing_does_not_wait_for_what_is_left_on_an_old_way() -> None:
    async def play() -> None:
        first, second = Store(), Store()
        session = AsyncSession(Session(first, Patience(SystemClock(), SystemRng(), HANG_S)), ThreadExecutor(2, 10))
        table = AsyncTable(session, table_info(USERS))
        writing = asyncio.create_task(table.put({"id": "ann", "age": 1}))
        while not first.ways:
            await asyncio.sleep(0)
        await first.ways[0].begun.wait()
        session.session.backend = second
        await table.get("bob")
        await session.close()
        first.ways[0].closed.set()
        first.ways[0].go.set()
        with pytest.raises(UnknownOutcome):
            await writing

    asyncio.run(play())
