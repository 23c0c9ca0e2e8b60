"""Single rows of another process's store, asked for from an event loop: when the store moves, what is under way on the
way to where it was comes to its end, and nothing on the new way is disturbed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from stelae.adapters.clock import SystemClock
from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.rng import SystemRng
from stelae.client.api.aio.table import AsyncTable
from stelae.client.calls.aio_session import AsyncSession
from stelae.client.calls.retries import Patience
from stelae.client.calls.session import Session
from stelae.format.block import SmallBlock
from stelae.model.errors import (
    ConnectionLost,
    InvalidArgument,
    Overloaded,
    StaleSchema,
    StelaeError,
    UnknownOutcome,
)
from stelae.model.ids import Row, TableId, Txn
from stelae.model.mutation import Put
from stelae.model.once import Once
from stelae.model.predicate.selectors import Selectors
from stelae.service.backend import Values, WriteUnderWay
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

    def begin_write(
        self, table: TableId, block: OrderedBlock, deadline: Deadline, ended: Callable[[], None]
    ) -> WriteUnderWay | None:
        return None

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


class SentWrite:
    """A `WriteUnderWay` that is answered by the test."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._answer: asyncio.Future[Txn] = asyncio.get_running_loop().create_future()
        self._ended = ended
        self.is_open = True

    def answer(self, outcome: Txn | StelaeError) -> None:
        self.is_open = False
        if not self._answer.done():
            if isinstance(outcome, StelaeError):
                self._answer.set_exception(outcome)
            else:
                self._answer.set_result(outcome)
        self._ended()

    async def result(self) -> Txn:
        return await self._answer


class SendingRows(Rows):
    """Notes what is written, in which way, and answers what was sent when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[SentWrite] = []
        self.log: list[str] = []
        self.numbers: list[Once | None] = []
        self.can_send = True

    def begin_write(
        self, table: TableId, block: OrderedBlock, deadline: Deadline, ended: Callable[[], None]
    ) -> WriteUnderWay | None:
        if not self.can_send:
            return None
        self.log.append(f"sent {value_of(block)}")
        self.numbers.append(block.once)
        self.sent.append(SentWrite(ended))
        return self.sent[-1]

    async def write(
        self, table: TableId, blocks: Sequence[OrderedBlock], max_txn: Txn | None, must_show: bool, deadline: Deadline
    ) -> Txn:
        self.log.append(f"written {value_of(blocks[0])}")
        self.numbers.append(blocks[0].once)
        return Txn(4)


def value_of(block: OrderedBlock) -> object:
    assert isinstance(block.block, SmallBlock)
    put = block.block.mutations[0]
    assert isinstance(put, Put)
    return put.values[0][1]


class SendingStore(FakeBackend):
    """One that another process has, and that can be written to at once."""

    def __init__(self, rows: SendingRows) -> None:
        super().__init__({TABLE: table_info(USERS)}, {"now": Txn(1), "info": table_info(USERS)}, is_local=False)
        self._rows = rows

    def open_rows(self) -> SendingRows:
        return self._rows


@contextmanager
def sending() -> Iterator[tuple[AsyncTable, SendingRows]]:
    rows = SendingRows()
    store = SendingStore(rows)
    session = AsyncSession(Session(store, Patience(SystemClock(), SystemRng(), HANG_S)), ThreadExecutor(2, 10))
    yield AsyncTable(session, table_info(USERS)), rows
    session.session.close()


async def settle() -> None:
    """Let all tasks come to where they wait."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_writes_of_different_rows_are_sent_at_once_and_those_of_one_row_in_turn() -> None:
    async def play() -> None:
        with sending() as (table, rows):
            puts = [asyncio.create_task(table.put({"id": key, "age": n})) for n, key in enumerate(["a", "b", "a"])]
            await settle()
            assert rows.log == ["sent 0", "sent 1"]
            rows.sent[0].answer(Txn(7))
            rows.sent[1].answer(Txn(8))
            assert await asyncio.gather(*puts) == [7, 8, 4]
            assert rows.log[2:] == ["written 2"]
            rows.can_send = False
            assert await table.put({"id": "a", "age": 3}) == 4

    asyncio.run(play())


def test_a_write_that_nobody_waits_for_keeps_its_turn_until_it_is_answered() -> None:
    async def play() -> None:
        with sending() as (table, rows):
            given_up = asyncio.create_task(table.put({"id": "a", "age": 1}))
            await settle()
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            behind = asyncio.create_task(table.put({"id": "a", "age": 2}))
            await settle()
            assert rows.log == ["sent 1"]
            rows.sent[0].answer(Txn(7))
            assert await behind == 4
            assert rows.log == ["sent 1", "written 2"]

    asyncio.run(play())


@pytest.mark.parametrize("error", [Overloaded("full"), StaleSchema("altered"), ConnectionLost("gone")])
def test_a_write_that_was_refused_is_repeated_before_those_behind_it(error: StelaeError) -> None:
    async def play() -> None:
        with sending() as (table, rows):
            refused = asyncio.create_task(table.put({"id": "a", "age": 1}))
            await settle()
            behind = asyncio.create_task(table.put({"id": "a", "age": 2}))
            await settle()
            rows.sent[0].answer(error)
            assert [await refused, await behind] == [4, 4]
            assert rows.log == ["sent 1", "written 1", "written 2"]

    asyncio.run(play())


def test_what_may_have_happened_is_sent_again_with_its_number_and_before_what_comes_next() -> None:
    async def play() -> None:
        with sending() as (table, rows):
            lost = asyncio.create_task(table.put({"id": "a", "age": 1}))
            await settle()
            behind = asyncio.create_task(table.put({"id": "a", "age": 2}))
            await settle()
            rows.sent[0].answer(UnknownOutcome("nobody knows"))
            assert [await lost, await behind] == [4, 4]
            assert rows.log == ["sent 1", "written 1", "written 2"]
            first, again, other = rows.numbers
            assert first is not None
            assert again is not None
            assert (first.client, first.sequence, first.age_ms) == (again.client, again.sequence, 0)
            assert again.age_ms > 0
            assert other is not None
            assert (other.client, other.sequence) != (first.client, first.sequence)
            assert other.age_ms == 0
            mistaken = asyncio.create_task(table.put({"id": "a", "age": 2}))
            await settle()
            rows.sent[1].answer(InvalidArgument("no"))
            with pytest.raises(InvalidArgument):
                await mistaken
            assert rows.log[3:] == ["sent 2"]

    asyncio.run(play())
