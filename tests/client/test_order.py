"""Writes that one client begins take effect in that order for each row: on a store in this process, and over a socket.

The store refuses some, lets others in only in part, and answers when it likes; tasks are cancelled. Each call has a
number, which is the time of all it writes, or the value, where the call takes no time: what the store was told of a row
is in the order of those numbers.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from threading import Event, Lock
from typing import Any

import pytest
from msgspec.structs import replace

from stelae.adapters.clock import SystemClock
from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.rng import SystemRng
from stelae.client.api.aio.table import AsyncTable
from stelae.client.calls.aio_session import AsyncSession
from stelae.client.calls.order import ANY_ROWS, Span, WriteOrder, span_of
from stelae.client.calls.retries import Patience
from stelae.client.calls.session import Session
from stelae.client.intake.mutations import blocks_of
from stelae.format.block import SmallBlock, decode_block
from stelae.model.declare import columns, declare
from stelae.model.errors import (
    Conflict,
    DeadlineExceeded,
    NotCached,
    Overloaded,
    PartialWrite,
    StaleSchema,
    TabletAway,
    WouldBeHidden,
)
from stelae.model.ids import Row, SchemaVersion, TableId, Txn
from stelae.model.mutation import Erase, Mutation, Put
from stelae.service.backend import Backend
from stelae.service.blocks import OrderedBlock
from stelae.service.deadlines import Deadline
from tests.client.fake_backend import FakeBackend, served, table_info, until
from tests.client.samples import USERS
from tests.effort import tries

TABLE = TableId(7)
KEYS = ["ann", "bob", "cay", "dan"]


def number_of(mutation: Mutation) -> int:
    found = mutation.until if isinstance(mutation, Erase) else mutation.ts
    if found is None:
        assert isinstance(mutation, Put)
        ((_, found),) = mutation.values
    assert isinstance(found, int)
    return found


def row_of(key: str) -> Row:
    return USERS.codec.encode((key,))


def spin(turns: int) -> None:
    """Take a while."""
    for _ in range(turns):
        pass


class Restless:
    """What a store does with writes, by chance. `told`: of each row, the numbers of the calls that wrote it."""

    def __init__(self, seed: int, threads: ThreadExecutor) -> None:
        self.told: dict[Row, list[int]] = defaultdict(list)
        self.refused = self.in_part = self.in_conflict = 0
        self._chance = random.Random(seed)
        self._lock = Lock()
        self._threads = threads

    @property
    def answers(self) -> dict[str, Any]:
        """Of a backend. No row is ever there: what was written is not what is asked about here."""
        reads = {"newest": self.read, "newest_cached": self.read_cached, "history": {}}
        return {"write": self.write, "now": Txn(1), **reads}

    def read(self, *_: Any) -> Any:
        with self._lock:
            draw, turns = self._chance.random(), self._chance.randrange(2_000)
        spin(turns)
        return self._chance.choice([Overloaded("full"), TabletAway("moved")]) if draw < 0.2 else None

    def read_cached(self, *_: Any) -> Any:
        with self._lock:
            return NotCached("in a file") if self._chance.random() < 0.5 else None

    def write(
        self, _: TableId, said: tuple[tuple[bytes, Any], ...], max_txn: Txn | None, must_show: str | None = None
    ) -> Any:
        mutations: list[Mutation] = []
        for data, _rows in said:
            block = decode_block(data)
            assert isinstance(block, SmallBlock)
            mutations += block.mutations
        with self._lock:
            draw = self._chance.random()
            if draw < 0.3:
                self.refused += 1
                return self._chance.choice([Overloaded("full"), TabletAway("moved"), StaleSchema("old")])
            if max_txn is not None and draw < 0.6:
                self.in_conflict += 1
                return Conflict("changed") if must_show is None or draw < 0.5 else WouldBeHidden("later")
            count = len(mutations)
            if count > 1 and draw < 0.6:
                self.in_part += 1
                count = self._chance.randrange(1, count)
            for mutation in mutations[:count]:
                self.told[mutation.row].append(number_of(mutation))
            turns = self._chance.randrange(2_000)
        return self._later(turns, PartialWrite("full", count) if count < len(mutations) else Txn(1))

    def _later(self, turns: int, end: Any) -> Future[Txn]:
        future: Future[Txn] = Future()

        def finish() -> None:
            spin(turns)
            if isinstance(end, Exception):
                future.set_exception(end)
            else:
                future.set_result(end)

        self._threads.submit(finish)
        return future


@contextmanager
def store_of(where: str, directory: Path, backend: FakeBackend) -> Iterator[Backend]:
    if where == "local":
        yield backend
    else:
        with served(directory, backend) as world:
            yield world.attach()


@asynccontextmanager
async def table_on(store: Backend, timeout_s: float = 600) -> AsyncIterator[AsyncTable]:
    executor = ThreadExecutor(4, 10_000)
    session = AsyncSession(Session(store, Patience(SystemClock(), SystemRng(), timeout_s)), executor)
    yield AsyncTable(session, table_info(USERS))
    await asyncio.to_thread(executor.close)


def some_call(chance: random.Random, table: AsyncTable, number: int) -> tuple[list[str], Callable[[], Awaitable[Any]]]:
    """Which rows it writes, and the call."""
    keys = sorted(chance.sample(KEYS, chance.randrange(1, 4)))
    kinds = ("put", "put", "erase", "if_absent", "increment", "update", "put_many", "erase_many", "batch")
    match chance.choice(kinds):
        case "put":
            return keys[:1], lambda: table.put({"id": keys[0], "age": number}, ts=number)
        case "if_absent":
            return keys[:1], lambda: table.put({"id": keys[0], "age": number}, ts=number, if_absent=True)
        case "increment":
            return keys[:1], lambda: table.increment(keys[0], {"age": number})
        case "update":
            return keys[:1], lambda: table.update(keys[0], lambda _: {"age": number})
        case "erase":
            return keys[:1], lambda: table.erase(keys[0], ts=number)
        case "put_many":
            rows = [{"id": key, "name": str(number)} for key in keys]
            return keys, lambda: table.put_many(iter(rows), ts=number)
        case "erase_many":
            return keys, lambda: table.erase_many(keys, ts=number)
        case _:
            return keys, lambda: _put_in_batch(table, keys, number)


async def _put_in_batch(table: AsyncTable, keys: list[str], number: int) -> None:
    async with table.batch() as batch:
        for key in keys:
            await batch.put({"id": key, "age": number}, ts=number)


@pytest.mark.parametrize("where", ["local", "attached"])
def test_each_row_is_written_in_the_order_of_the_calls(where: str, tmp_path: Path) -> None:
    refused = in_part = in_conflict = 0
    for seed in range(tries(20)):
        threads = ThreadExecutor(2, 10_000)
        restless = Restless(seed, threads)
        backend = FakeBackend({TABLE: table_info(USERS)}, restless.answers)
        with store_of(where, tmp_path, backend) as store:
            expected, gone = asyncio.run(_play(random.Random(seed), store))
        threads.close()
        for key in KEYS:
            numbers = restless.told[row_of(key)]
            assert numbers == sorted(numbers), f"seed {seed}: {key} was written in another order"
            # A call whose table was altered half-way writes all of its rows anew.
            assert sorted({*numbers} - gone) == expected[key], f"seed {seed}: {key}"
        refused += restless.refused
        in_part += restless.in_part
        in_conflict += restless.in_conflict
    assert refused > 10
    assert in_part > 10
    assert in_conflict > 10


async def _play(chance: random.Random, store: Backend) -> tuple[dict[str, list[int]], set[int]]:
    """Who writes what; and who was cancelled, and may have written or not."""
    expected: dict[str, list[int]] = {key: [] for key in KEYS}
    gone: set[int] = set()
    async with table_on(store) as table:
        tasks: list[asyncio.Task[Any]] = []
        for number in range(1, 61):
            keys, call = some_call(chance, table, number)

            async def begin(call: Callable[[], Awaitable[Any]] = call) -> Any:
                return await call()

            tasks.append(asyncio.create_task(begin()))
            if chance.random() < 0.2:
                await asyncio.sleep(0)
            if chance.random() < 0.15:
                victim = chance.randrange(len(tasks))
                if tasks[victim].cancel():
                    gone.add(victim + 1)
            for key in keys:
                expected[key].append(number)
        await asyncio.wait(tasks)
        for number, task in enumerate(tasks, 1):
            assert number in gone or task.exception() is None
        # What was cancelled may still be on its way; it keeps its place until it is through.
        await table.put_many([{"id": key} for key in KEYS], ts=1_000)
    for key, numbers in expected.items():
        expected[key] = [*(number for number in numbers if number not in gone), 1_000]
    return expected, gone


def test_what_a_stale_view_refuses_keeps_its_place(tmp_path: Path) -> None:
    """The table has a column that the handle does not know yet. Until it has asked, the next write waits."""
    groups = [columns("profile", {"name": "string", "age": "int32 not null default 0", "fresh": "int32"})]
    newer = replace(declare({"id": "string"}, groups), version=SchemaVersion(USERS.version + 1))
    for where in ("local", "attached"):
        told: list[int] = []

        def write(_: TableId, said: tuple[tuple[bytes, Any], ...], __: Txn | None, told: list[int] = told) -> Txn:
            block = decode_block(said[0][0])
            assert isinstance(block, SmallBlock)
            told.append(number_of(block.mutations[0]))
            return Txn(1)

        backend = FakeBackend({TABLE: table_info(newer)}, {"write": write})

        async def play(store: Backend) -> None:
            async with table_on(store) as table:
                calls = [table.put({"id": "ann", "fresh": 1}, ts=1), table.put({"id": "ann", "age": 2}, ts=2)]
                await asyncio.gather(*calls)

        with store_of(where, tmp_path, backend) as store:
            asyncio.run(play(store))
        assert told == [1, 2], where


def test_a_row_that_is_read_first_is_in_nobody_elses_way() -> None:
    """While a row is changed, puts of other rows are let in by a local store at once, as ever."""
    go, begun = Event(), Event()

    def read(*_: Any) -> None:
        begun.set()
        go.wait()

    backend = FakeBackend({TABLE: table_info(USERS)}, {"write": Txn(1), "newest": read})

    async def play() -> None:
        async with table_on(backend) as table:
            changing = asyncio.create_task(table.increment("ann", {"age": 1}))
            await asyncio.to_thread(begun.wait)
            waiting = asyncio.create_task(table.put({"id": "ann", "age": 5}))
            await table.put({"id": "bob"})
            assert not waiting.done()
            assert [call[2][0][1][0] for call in backend.calls if call[0] == "write"] == [row_of("bob")]
            go.set()
            assert await changing == {"age": 1}
            await waiting
            assert not table._session.order.has_turns

    try:
        asyncio.run(play())
    finally:
        go.set()


def test_other_rows_do_not_wait(tmp_path: Path) -> None:
    begun, durable = Event(), Future[Txn]()

    def write(_: TableId, said: tuple[tuple[bytes, tuple[bytes, ...]], ...], __: Txn | None) -> Txn | Future[Txn]:
        if said[0][1][0] == row_of("ann"):
            begun.set()
            return durable
        return Txn(1)

    backend = FakeBackend({TABLE: table_info(USERS)}, {"write": write})

    async def play(store: Backend) -> None:
        async with table_on(store) as table:
            stuck = [asyncio.create_task(table.put({"id": "ann", "age": n})) for n in range(3)]
            await asyncio.to_thread(begun.wait)
            await asyncio.gather(*(table.put({"id": key}) for key in KEYS[1:]))
            await table.put_many([{"id": key} for key in KEYS[1:]])
            assert not any(task.done() for task in stuck)
            assert len([call for call in backend.calls if call[2][0][1][0] == row_of("ann")]) == 1
            durable.set_result(Txn(1))
            await asyncio.gather(*stuck)

    with served(tmp_path, backend) as world:
        try:
            asyncio.run(play(world.attach()))
        finally:
            if not durable.done():
                durable.set_result(Txn(1))


def test_who_waits_behind_others_gives_up_at_its_deadline(tmp_path: Path) -> None:
    go, begun = Event(), Event()

    def write(*_: Any) -> Txn:
        begun.set()
        go.wait()
        return Txn(1)

    backend = FakeBackend({TABLE: table_info(USERS)}, {"write": write})

    async def play(store: Backend) -> None:
        async with table_on(store) as first:
            stuck = asyncio.create_task(first.put({"id": "ann"}))
            await asyncio.to_thread(begun.wait)
            first._session.session.patience = Patience(SystemClock(), SystemRng(), 0.05)
            with pytest.raises(DeadlineExceeded, match="same rows"):
                await first.put({"id": "ann"})
            with pytest.raises(DeadlineExceeded, match=r"same rows|to begin with it"):
                await first.put_many([{"id": "ann"}])
            with pytest.raises(DeadlineExceeded, match="same rows"):
                await first.erase_range("a")
            assert len(backend.calls) == 1
            go.set()
            await stuck

    with served(tmp_path, backend) as world:
        try:
            asyncio.run(play(world.attach()))
        finally:
            go.set()


# -- turns


def of(*keys: str) -> Span:
    return span_of(blocks_of(USERS, [{"id": key} for key in keys]))


async def is_here(turn: Any) -> bool:
    try:
        await turn.come(Deadline(SystemClock(), 0.0))
    except DeadlineExceeded:
        return False
    return True


def test_a_turn_that_is_given_up_lets_nobody_pass() -> None:
    async def play() -> None:
        order = WriteOrder()
        first, second, third = (order.take(TABLE, of("ann")) for _ in range(3))
        assert await is_here(first)
        second.end()
        assert not await is_here(third)
        first.end()
        assert await is_here(third)
        third.end()
        assert not order.has_turns

    asyncio.run(play())


def test_a_turn_of_any_rows_stands_between_all_others_until_its_rows_are_known() -> None:
    async def play() -> None:
        order = WriteOrder()
        ann, bob = order.take(TABLE, of("ann")), order.take(TABLE, of("bob"))
        many = order.take(TABLE, ANY_ROWS)
        elsewhere = order.take(TableId(8), of("ann"))
        late_ann, late_dan = order.take(TABLE, of("ann")), order.take(TABLE, of("dan"))
        assert [await is_here(turn) for turn in (ann, bob, elsewhere)] == [True] * 3
        assert [await is_here(turn) for turn in (many, late_ann, late_dan)] == [False] * 3
        late_dan.end()
        many.narrow(of("bob", "cay"))
        assert not await is_here(many)
        bob.end()
        assert await is_here(many)
        assert not await is_here(late_ann)
        ann.end()
        assert await is_here(late_ann)
        for turn in (many, elsewhere, late_ann):
            turn.end()
        assert not order.has_turns

    asyncio.run(play())


def test_many_turns_of_one_row_pass_one_by_one() -> None:
    """Also if all of them are given up at once: no call is as deep as there are turns."""

    async def play() -> None:
        order = WriteOrder()
        turns = [order.take(TABLE, of("ann")) for _ in range(5_000)]
        for turn in turns[1:-1]:
            turn.end()
        assert not await is_here(turns[-1])
        turns[0].end()
        assert await is_here(turns[-1])
        turns[-1].end()
        assert not order.has_turns

    asyncio.run(play())


def put_of(key: str) -> list[OrderedBlock]:
    return blocks_of(USERS, [{"id": key}])


def test_what_was_let_in_is_known_until_it_can_be_read() -> None:
    """The first who asks is told of the last write, whichever row it is of."""
    order = WriteOrder()
    first, second, third = Future[Txn](), Future[Txn](), Future[Txn]()
    assert order.let_in(TABLE, row_of("ann")) is None
    order.note_let_in(TABLE, put_of("ann"), first)
    order.note_let_in(TABLE, put_of("bob"), second)
    assert order.let_in(TABLE, row_of("ann")) is first
    assert order.let_in(TableId(8), row_of("ann")) is None
    first.set_result(Txn(1))
    assert order.let_in(TABLE, row_of("ann")) is None
    other = WriteOrder()
    other.note_let_in(TABLE, put_of("ann"), second)
    other.note_let_in(TABLE, put_of("bob"), third)
    assert other.let_in(TABLE, row_of("ann")) is third


def test_not_many_that_were_let_in_are_remembered() -> None:
    order = WriteOrder()
    assert order.let_in(TABLE, row_of("ann")) is None
    slow, done, blocks = Future[Txn](), Future[Txn](), [put_of(str(number)) for number in range(5_000)]
    done.set_result(Txn(1))
    order.note_let_in(TABLE, put_of("ann"), slow)
    for each in blocks:
        order.note_let_in(TABLE, each, done)
    assert order.let_in(TABLE, row_of("ann")) is slow
    assert order._let_in is not None
    assert len(order._let_in) < 2_000


def test_the_turns_of_a_loop_that_ended_are_forgotten() -> None:
    order = WriteOrder()

    async def leave() -> None:
        order.take(TABLE, of("ann"))

    async def come() -> None:
        assert await is_here(order.take(TABLE, of("ann")))

    asyncio.run(leave())
    asyncio.run(come())


def test_a_task_that_is_cancelled_keeps_its_place(tmp_path: Path) -> None:
    """Its write was sent, and may still happen: the next one of the row waits for the answer."""
    go, begun = Event(), Event()
    said: list[bytes] = []

    def write(_: TableId, blocks: tuple[tuple[bytes, Any], ...], __: Txn | None) -> Txn:
        if not begun.is_set():
            begun.set()
            go.wait()
        said.append(blocks[0][0])
        return Txn(1)

    backend = FakeBackend({TABLE: table_info(USERS)}, {"write": write, "now": Txn(1)}, is_local=False)

    async def play(store: Backend) -> None:
        async with table_on(store) as table:
            first = asyncio.create_task(table.put({"id": "ann", "age": 1}, ts=1))
            await asyncio.to_thread(begun.wait)
            second = asyncio.create_task(table.put({"id": "ann", "age": 2}, ts=2))
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            await asyncio.to_thread(store.now)
            assert len(backend.calls) == 2  # the first write and `now`
            go.set()
            await second
            assert not table._session.order.has_turns

    with served(tmp_path, backend) as world:
        try:
            asyncio.run(play(world.attach()))
        finally:
            go.set()
        until(lambda: len(said) == 2, world.loop)
    numbers = [number_of(decode_block(data).mutations[0]) for data in said]  # type: ignore[union-attr]
    assert numbers == [1, 2]
