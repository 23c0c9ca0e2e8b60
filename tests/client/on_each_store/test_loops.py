"""The async twin, and the plain API in places where others wait: in threads, and inside a running event loop."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest

import stelae
import stelae.aio
from stelae.model.errors import NotCached, StaleSchema
from stelae.sim.threads.thread import current_ident
from tests.client.on_each_store.worlds import FailingBackend, take_place
from tests.client.places import Place
from tests.effort import HANG_S

Test = Callable[[stelae.aio.AsyncDatabase, stelae.aio.AsyncTable], Awaitable[None]]
GROUPS = [stelae.columns("g", {"age": "int64", "name": "string"}), stelae.cells("c", families=["click"])]


def in_loop(place: Place, test: Test) -> None:
    async def main() -> None:
        async with place.open_async() as db:
            users = await db.create_table("users", {"id": "string"}, GROUPS, splits=["m"])
            await test(db, users)

    asyncio.run(main())


def put_before_async(db: stelae.aio.AsyncDatabase) -> FailingBackend:
    session = db._session.session
    failing: Any = FailingBackend(session.backend)
    take_place(session, failing)
    found: FailingBackend = failing
    return found


def test_rows(place: Place) -> None:
    async def test(db: stelae.aio.AsyncDatabase, users: stelae.aio.AsyncTable) -> None:
        txn = await users.put({"id": "ann", "age": 1, "click:a": b"1"})
        row = await users.get("ann")
        assert row == {"id": "ann", "age": 1, "name": None, "click:a": b"1"}
        assert row is not None
        assert row.txn == txn
        assert await users.get("ann", ["age"], at=txn) == {"id": "ann", "age": 1}
        assert await users.get("bob") is None
        with pytest.raises(stelae.InvalidArgument):
            await users.get(7)
        with pytest.raises(stelae.InvalidArgument):
            await users.get("ann", ["agee"])
        with pytest.raises(stelae.Conflict):
            await users.put({"id": "ann"}, if_unchanged_since=txn - 1)
        with pytest.raises(stelae.AlreadyExists):
            await users.put({"id": "ann"}, if_absent=True)
        updated = await users.update("ann", lambda row: {"age": row["age"] + 1} if row else None)
        assert updated == await users.get("ann")
        assert await users.increment("ann", {"age": 5}) == {"age": 7}
        await users.put_many([{"id": f"u{number}"} for number in range(10)])
        assert [row and row["id"] for row in await users.get_many(["u1", "x"])] == ["u1", None]
        assert (await users.history("ann", ["age"]))["age"][0].value == 7
        assert await users.count() == 11
        assert len(await users.head(3)) == 3
        await users.erase("u0")
        await users.erase_many(["u1"])
        assert await users.erase_range("u2", "u4") == 2
        assert not await users.exists("u0")
        async with users.batch(count_max=2) as batch:
            for number in range(3):
                await batch.put({"id": f"b{number}"})
            await batch.erase("u9")
        assert await users.count(prefix="b") == 3
        batch = users.batch()
        await batch.__aenter__()
        await batch.put({"id": "lost"})
        await batch.__aexit__(ZeroDivisionError, None, None)
        with pytest.raises(stelae.Closed):
            await batch.put({"id": "lost"})
        assert not await users.exists("lost")

    in_loop(place, test)


def test_scans(place: Place) -> None:
    async def test(db: stelae.aio.AsyncDatabase, users: stelae.aio.AsyncTable) -> None:
        await users.put_many([{"id": f"{letter}{number}"} for letter in "az" for number in range(5)])
        scan = users.scan(columns=["id"])
        await scan.page(1)  # over a connection it is pinned when the first of it has come
        await users.put({"id": "b"})
        for _ in range(2):
            assert [row["id"] async for row in scan] == [f"{letter}{number}" for letter in "az" for number in range(5)]
        assert sum([batch.num_rows async for batch in scan.batches()]) == 10
        assert (await scan.to_arrow()).num_rows == len(await scan.to_pandas()) == len(await scan.to_polars()) == 10
        rows, token = await scan.page(8)
        assert len(rows) == 8
        rows, token = await users.scan(columns=["id"], after=token).page(8)
        assert (len(rows), token) == (2, None)
        with pytest.raises(stelae.InvalidArgument):
            await users.scan("age >").page(1)
        async for _row in users.scan():
            break
        async with users.scan(limit=1) as one:
            assert len([row async for row in one]) == 1
        with pytest.raises(stelae.Closed):
            await one.to_arrow()
        async with db.snapshot() as snapshot:
            await users.put({"id": "c"})
            assert await users.count(at=snapshot) == 11
            assert not await users.exists("c", at=snapshot)

    in_loop(place, test)


def test_tables(place: Place) -> None:
    async def test(db: stelae.aio.AsyncDatabase, users: stelae.aio.AsyncTable) -> None:
        assert await db.tables() == ["users"]
        await users.put({"id": "ann", "age": 1})
        await db.alter_table("users", rename_columns={"age": "years"}, rename="people")
        assert await users.get("ann", ["years"]) == {"id": "ann", "years": 1}
        await users.put({"id": "ann", "years": 2})
        people = await db.table("people")
        assert people.name == "people"
        assert (await db.describe("people"))["key"] == {"id": "string"}
        await users.split("c")
        await users.split("d")
        await users.join("d")
        await users.flush()
        await users.compact()
        assert len(await users.tablets()) == 3
        assert (await users.stats()).files > 0
        assert await users.get("ann", ["years"]) == {"id": "ann", "years": 2}
        await db.truncate_table("people")
        assert await users.count() == 0
        await db.drop_table("people")
        with pytest.raises(stelae.NotFound):
            await users.get("ann")
        assert await (await db.recall_table("people")).count() == 0
        assert (await db.metrics())["tables"] == 1
        assert await db.now() > 0
        assert "s" in repr(db)
        assert "people" in repr(people)

    in_loop(place, test)


def test_many_writes_at_once_are_all_there(place: Place) -> None:
    async def test(db: stelae.aio.AsyncDatabase, users: stelae.aio.AsyncTable) -> None:
        txns = await asyncio.gather(*[users.put({"id": f"{number}", "age": number}) for number in range(32)])
        assert len(set(txns)) == 32
        assert sorted(row["age"] for row in await users.head(99)) == list(range(32))
        await asyncio.gather(*[users.increment("0", {"age": 1}) for _ in range(16)])
        assert await users.get("0", ["age"]) == {"id": "0", "age": 16}
        made = await asyncio.gather(
            *[users.put({"id": "one", "age": number}, if_absent=True) for number in range(8)], return_exceptions=True
        )
        assert sum(isinstance(each, int) for each in made) == 1
        assert sum(isinstance(each, stelae.AlreadyExists) for each in made) == 7

    in_loop(place, test)


@pytest.mark.usefixtures("unnumbered")
def test_what_is_not_cached_is_read_elsewhere(place: Place) -> None:
    async def test(db: stelae.aio.AsyncDatabase, users: stelae.aio.AsyncTable) -> None:
        await users.put({"id": "ann", "age": 1})
        failing = put_before_async(db)
        here, read_by = current_ident(), list[int]()
        newest = failing.behind.newest

        def reading(*args: Any, **given: Any) -> Any:
            read_by.append(current_ident())
            return newest(*args, **given)

        failing.newest = reading  # type: ignore[attr-defined]
        assert await users.get("ann", ["age"]) == {"id": "ann", "age": 1}
        assert read_by == []
        failing.plans["newest_cached"] = [NotCached("cold"), NotCached("cold")]
        assert await users.get("ann", ["age"]) == {"id": "ann", "age": 1}
        assert len(read_by) == 1
        assert here not in read_by
        failing.plans["submit"] = [stelae.Overloaded("full"), StaleSchema("old")]
        await users.put({"id": "ann", "age": 2})
        failing.plans["newest_cached"] = [stelae.Unavailable("away")] * 3
        assert await users.get("ann", ["age"]) == {"id": "ann", "age": 2}
        failing.plans["submit"] = [stelae.UnknownOutcome("lost")]
        with pytest.raises(stelae.UnknownOutcome):
            await users.put({"id": "ann", "age": 3})
        assert failing.plans["submit"] == []

    in_loop(place, test)


@pytest.mark.parametrize("error", [None, RuntimeError("cannot schedule new futures after interpreter shutdown")])
def test_scans_that_are_left_open_end_quietly_with_their_loop(
    place: Place, caplog: pytest.LogCaptureFixture, error: Exception | None
) -> None:
    kept: list[Any] = []

    async def test(db: stelae.aio.AsyncDatabase, users: stelae.aio.AsyncTable) -> None:
        await users.put_many([{"id": str(number), "age": number} for number in range(5)])
        scan = users.scan()
        rows, batches = aiter(scan), scan.batches()
        assert (await anext(rows))["id"] == "0"
        assert (await anext(batches)).num_rows == 5
        kept.extend([scan, rows, batches])
        async for _row in scan:
            break
        if error is not None:
            session: Any = users._session
            session.begin = Mock(side_effect=error)

    in_loop(place, test)
    kept.clear()
    gc.collect()
    assert caplog.records == []


def test_an_iterator_that_is_closed_gives_no_more(place: Place) -> None:
    async def test(db: stelae.aio.AsyncDatabase, users: stelae.aio.AsyncTable) -> None:
        await users.put_many([{"id": str(number), "age": number} for number in range(5)])
        closed: list[int] = []
        failing: Any = FailingBackend(users._session.session.backend)
        scan_of = failing.behind.scan

        def watched(table: Any, ask: Any, **given: Any) -> Any:
            try:
                yield from scan_of(table, ask, **given)
            finally:
                closed.append(current_ident())

        failing.scan = watched
        take_place(users._session.session, failing)
        rows: Any = aiter(users.scan())
        assert (await anext(rows))["id"] == "0"
        assert not closed
        for _ in range(2):
            await rows.aclose()
            assert len(closed) == 1
            with pytest.raises(StopAsyncIteration):
                await anext(rows)
        unused: Any = users.scan().batches()
        await unused.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(unused)
        forgotten: Any = aiter(users.scan())
        await anext(forgotten)
        await asyncio.sleep(0.01)  # whoever did the work has let go of it, too
        del forgotten
        while len(closed) < 2:
            await asyncio.sleep(0.001)
        assert current_ident() not in closed

    in_loop(place, test)


def test_a_cancelled_scan_leaves_the_store_usable(place: Place) -> None:
    async def test(db: stelae.aio.AsyncDatabase, users: stelae.aio.AsyncTable) -> None:
        await users.put_many([{"id": f"{letter}"} for letter in "az"])
        failing = put_before_async(db)
        scan_of = failing.behind.scan
        entered, release, ended = threading.Event(), threading.Event(), threading.Event()

        def slow(table: Any, ask: Any, **given: Any) -> Any:
            entered.set()
            try:
                release.wait(HANG_S)
                yield from scan_of(table, ask, **given)
            finally:
                ended.set()

        failing.scan = slow  # type: ignore[attr-defined]

        async def read() -> None:
            async for _row in users.scan():
                pass

        task = asyncio.create_task(read())
        assert await asyncio.to_thread(entered.wait, HANG_S)
        task.cancel()
        asyncio.get_running_loop().call_later(0.01, release.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(ended.wait, HANG_S)
        assert await users.count() == 2

    in_loop(place, test)


def test_a_cancelled_put_may_still_happen(place: Place) -> None:
    async def test(db: stelae.aio.AsyncDatabase, users: stelae.aio.AsyncTable) -> None:
        failing = put_before_async(db)
        submit, promised = failing.behind.submit, Future[Any]()
        failing.submit = lambda *_, **__: promised  # type: ignore[attr-defined]
        task = asyncio.create_task(users.put({"id": "ann"}))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not promised.cancelled()
        promised.set_exception(stelae.Unavailable("nobody looks at this"))
        failing.submit = submit  # type: ignore[attr-defined]
        await users.put({"id": "bob"})
        assert await users.exists("bob")

    in_loop(place, test)


def test_opening_and_closing(place: Place) -> None:
    async def main() -> None:
        db = await place.open_async()
        table = await db.create_table("t", {"id": "string"}, GROUPS)
        await db.close()
        await db.close()
        assert db.closed
        for call in (lambda: table.get("a"), lambda: table.put({"id": "a"}), db.tables):
            with pytest.raises(stelae.Closed):
                await call()
        with pytest.raises(stelae.Closed):
            table.scan()
        async with place.open_async() as again:
            assert await again.tables() == ["t"]

    asyncio.run(main())


def test_the_plain_api_inside_a_running_loop(db: stelae.Database, users: stelae.Table) -> None:
    async def main() -> None:
        users.put({"id": "ann", "age": 1})
        assert users.update("ann", lambda row: {"age": 2}) is not None
        assert [row["age"] for row in users.scan()] == [2]
        db.alter_table("users", add={"profile": {"x": "int8"}})
        assert users.increment("ann", {"x": 1}) == {"x": 1}

    asyncio.run(main())


def test_many_threads(db: stelae.Database, users: stelae.Table) -> None:
    users.put({"id": "sum", "age": 0})

    def work(number: int) -> int:
        for turn in range(10):
            users.put({"id": f"{number}-{turn}", "age": turn})
            users.increment("sum", {"age": 1})
            assert users.get(f"{number}-{turn}", ["age"]) == {"id": f"{number}-{turn}", "age": turn}
        return users.count(prefix=f"{number}-")

    with ThreadPoolExecutor(8) as pool:
        altered = pool.submit(db.alter_table, "users", add={"profile": {"x": "int8"}}, rename_columns={"score": "mark"})
        assert list(pool.map(work, range(6))) == [10] * 6
        altered.result()
    assert users.get("sum", ["age"]) == {"id": "sum", "age": 60}
    assert users.count() == 61
