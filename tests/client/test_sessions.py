"""One loop repeats what failed, until the caller's deadline; what comes out then says whether anything happened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from threading import Event
from typing import Any

import pyarrow as pa
import pytest

from stelae.adapters.clock import SystemClock
from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.rng import SystemRng
from stelae.client.api.aio.table import AsyncTable
from stelae.client.api.table import Table
from stelae.client.calls.aio_session import AsyncSession
from stelae.client.calls.patient import PatientStore
from stelae.client.calls.retries import Patience
from stelae.client.calls.session import Session
from stelae.client.calls.steps import Again, Ask, Steps
from stelae.model.errors import (
    ClockTooFarAhead,
    Closed,
    Conflict,
    ConnectionLost,
    DeadlineExceeded,
    DiskFull,
    InvalidArgument,
    Overloaded,
    PartialWrite,
    Retryable,
    SnapshotTooOld,
    StelaeError,
    TabletAway,
    Unavailable,
    UnknownOutcome,
    WouldBeHidden,
)
from stelae.model.ids import Micros, Row, TableId, Txn
from stelae.model.predicate.selectors import ALL_COLUMNS, Selectors
from stelae.service.backend import Backend, Pin
from stelae.service.deadlines import Deadline
from stelae.service.jobs import TTL_S_DEFAULT
from stelae.service.tables import CreateAsk
from stelae.storage.read.asking import Version
from stelae.storage.read.scans.shapes import output_schema
from tests.client.fake_backend import READ_AT, FakeBackend, table_info
from tests.client.samples import USERS
from tests.tserver.serving.test_hostile import answers

TABLE = TableId(7)
WHOLE = {"name": "x", "age": 1, "score": None}


class TickingClock:
    """Each look at it takes a while, so that deadlines pass without anybody waiting for them."""

    def __init__(self, tick_s: float = 0.01) -> None:
        self._now_s = 0.0
        self._tick_s = tick_s

    def wall_ms(self) -> int:
        return 0

    def monotonic_s(self) -> float:
        self._now_s += self._tick_s
        return self._now_s


def whole_rows(keys: list[str]) -> pa.RecordBatch:
    """As a scan of all columns gives them."""
    schema = output_schema(USERS, ALL_COLUMNS)
    nulls = [pa.nulls(len(keys), field.type) for field in list(schema)[1:]]
    return pa.record_batch([pa.array(keys, schema.field(0).type), *nulls], schema=schema)


class Plan:
    """Answers one after the other, the last one for ever."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked = 0

    def __call__(self, *_: Any) -> Any:
        self.asked += 1
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def fake(**answers: Any) -> FakeBackend:
    return FakeBackend({TABLE: table_info(USERS)}, {"now": Txn(1), "write": Txn(2), **answers})


def session_on(backend: Backend, timeout_s: float = 0.2, **given: Any) -> Session:
    return Session(backend, Patience(TickingClock(), SystemRng(), timeout_s), **given)


class SteppingClock:
    """Goes on when somebody waits, or when a try takes its time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def wall_ms(self) -> int:
        return 0

    def monotonic_s(self) -> float:
        return self.now_s

    def pause(self, _: Event, seconds: float) -> bool:
        self.now_s += seconds
        return False


@pytest.mark.parametrize(
    ("timeout_s", "took_s", "least_s"), [(30, 0.001, 0.1), (30, 0.2, 0.4), (30, 2, 4), (1, 0.1, 0.2)]
)
def test_no_try_begins_with_almost_no_time_left(timeout_s: float, took_s: float, least_s: float) -> None:
    """A write that was refused in words would end with an unknown outcome, because of a last try that had no time to
    be answered. The last one has more than the one before took."""
    clock, left_s = SteppingClock(), list[float]()

    def refuse(*_: Any) -> Any:
        left_s.append(timeout_s - clock.now_s)
        if left_s[-1] < took_s:
            raise UnknownOutcome("it was sent, and not answered in time")
        clock.now_s += took_s
        raise Unavailable("the shard has no lease now")

    session = Session(fake(write=refuse), Patience(clock, SystemRng(), timeout_s), pause=clock.pause)
    with pytest.raises(Unavailable, match="has no lease"):
        Table(session, table_info(USERS)).put({"id": "ann"})
    assert len(left_s) > 5
    assert least_s - 1e-9 <= left_s[-1] < 2 * max(least_s, took_s) + 0.75


def both(backend: Backend, timeout_s: float, call: Callable[[Any], Any], **given: Any) -> list[Any]:
    """What comes of a call of a table: plain, and awaited."""
    ends: list[Any] = []
    try:
        ends.append(call(Table(session_on(backend, timeout_s, **given), table_info(USERS))))
    except StelaeError as error:
        ends.append(error)

    async def play() -> Any:
        executor = ThreadExecutor(2, 10)
        table = AsyncTable(AsyncSession(session_on(backend, timeout_s, **given), executor), table_info(USERS))
        try:
            return await call(table)
        except StelaeError as error:
            return error
        finally:
            await asyncio.to_thread(executor.close)

    return [*ends, asyncio.run(play())]


@pytest.mark.parametrize("error", [Overloaded("full"), TabletAway("moved"), ConnectionLost("gone")], ids=repr)
def test_what_passes_is_repeated(error: StelaeError) -> None:
    for name, call in (
        ("newest", lambda table: table.get("ann")),
        ("newest_many", lambda table: table.get_many(["ann"])),
        ("write", lambda table: table.erase("ann")),
        ("write", lambda table: table.put({"id": "ann"})),
        ("write", lambda table: table.put_many([{"id": "ann"}])),
    ):
        good = {"newest": WHOLE, "newest_many": [WHOLE], "write": Txn(2)}[name]
        backend = fake(**{name: Plan(error, error, good, error, error, good)})
        backend.is_local = not isinstance(error, ConnectionLost)
        ends = both(backend, 600, call)
        assert not [end for end in ends if isinstance(end, StelaeError)]
        assert backend.answers[name].asked == 6


@pytest.mark.parametrize(
    "error", [UnknownOutcome("lost"), Conflict("changed"), InvalidArgument("no"), PartialWrite("half", 1)], ids=repr
)
def test_what_does_not_pass_is_asked_once(error: StelaeError) -> None:
    backend = fake(write=error)
    ends = both(backend, 600, lambda table: table.erase("ann"))
    assert [type(end) for end in ends] == [type(error)] * 2
    assert len(backend.calls) == 2


def test_at_the_deadline_the_error_comes_out_as_it_is() -> None:
    for end in both(fake(newest_many=Overloaded("full")), 0.2, lambda table: table.get_many(["ann"])):
        assert type(end) is Overloaded
        assert "again and again for 0.2 s" in end.__notes__[0]


def test_without_patience_the_first_error_is_the_last() -> None:
    calls: list[Callable[[Table], Any]] = [
        lambda table: table.put({"id": "ann"}),
        lambda table: table.erase("ann"),
    ]
    for call in calls:
        backend = fake(write=Plan(Overloaded("full"), Txn(2)))
        with pytest.raises(Overloaded):
            call(Table(session_on(backend, 0), table_info(USERS)))


def test_an_update_that_is_written_is_not_said_to_have_failed() -> None:
    """Reading it back fails until the deadline."""
    backend, writes = fake(), Plan(Txn(2))

    def newest(_: TableId, __: Row, columns: Selectors, ___: Txn | None) -> Any:
        if writes.asked:
            return Overloaded("full")
        return WHOLE if columns == ALL_COLUMNS else {"age": 1}

    backend.answers |= {"write": writes, "newest": newest}
    table = Table(session_on(backend), table_info(USERS))
    assert table.increment("ann", {"age": 1}) == {"age": 2}
    assert writes.asked == 1
    writes.asked = 0
    with pytest.raises(UnknownOutcome, match="the change is written, and could not be seen: full"):
        table.update("ann", lambda _: {"age": 2})
    assert writes.asked == 1


def test_a_change_behind_a_version_of_the_future_is_one_write_with_a_later_time() -> None:
    """A store that fears for a part of it says so, and has written nothing then."""
    hiding = {"age": (Version(Micros(2**50), Txn(1), 7),)}
    backend = fake(newest=WHOLE, history=hiding, write=Plan(WouldBeHidden("later"), Overloaded("full"), Txn(2)))
    table = Table(session_on(backend), table_info(USERS))
    assert table.update("ann", lambda _: {"age": 2, "name": "y"}) is not None
    writes = [call for call in backend.calls if call[0] == "write"]
    assert [call[-1] for call in writes] == ["must show", READ_AT, READ_AT]
    assert writes[1] == writes[2]


def test_a_call_that_begins_again_is_told_when_its_time_is_over() -> None:
    seen: list[StelaeError] = []

    def steps() -> Steps[str]:
        while True:
            try:
                yield Again(Conflict("changed"))
            except Conflict as error:
                seen.append(error)
                return "told"

    assert session_on(fake()).run(steps()) == "told"
    assert len(seen) == 1


def test_waiting_ends_when_the_session_is_closed() -> None:
    backend = fake()
    session = Session(backend, Patience(SystemClock(), SystemRng(), 600))

    def closing(*_: Any) -> StelaeError:
        session._ended.set()
        return ConnectionLost("gone")

    backend.answers["now"] = closing
    with pytest.raises(Closed):
        session.ask(lambda store, until: store.now(deadline=until))


class CountingFinder:
    """Finds the second store when the first is lost."""

    def __init__(self, second: Backend) -> None:
        self.asked = 0
        self._second = second

    def find_again(self, lost: Backend, deadline: Deadline) -> Backend:
        self.asked += 1
        return self._second if self.asked > 1 else lost

    def keep(self, pin: Pin, store: Backend, deadline: Deadline) -> Pin:
        return pin

    def close(self) -> None:
        return None


@pytest.mark.parametrize("error", [ConnectionLost("gone"), DeadlineExceeded("slow")], ids=repr)
def test_a_store_is_looked_for_only_when_its_connection_is_lost(error: Retryable) -> None:
    lost, found = fake(newest_many=error), fake(newest_many=[{"age": 3}])
    lost.is_local = found.is_local = False
    finder = CountingFinder(found)
    is_lost = isinstance(error, ConnectionLost)
    ends = both(lost, 0.2, lambda table: table.get_many(["ann"], columns=["age"]), finder=finder)
    assert finder.asked == (3 if is_lost else 0)
    assert ends == ([[{"id": "ann", "age": 3}]] * 2 if is_lost else [error] * 2)


class FailingFinder(CountingFinder):
    """Fails to, for a while."""

    def __init__(self, second: Backend, *failures: StelaeError) -> None:
        super().__init__(second)
        self.failures = [*failures, *failures]  # for the plain call, and for the awaited one

    def find_again(self, lost: Backend, deadline: Deadline) -> Backend:
        if self.failures:
            raise self.failures.pop()
        return self._second


def test_what_passes_while_the_store_is_looked_for_is_repeated() -> None:
    lost, found = fake(newest_many=ConnectionLost("gone")), fake(newest_many=[{"age": 3}])
    lost.is_local = found.is_local = False
    finder = FailingFinder(found, Unavailable("the files cannot be reached"), Overloaded("much to do"))
    ends = both(lost, 600, lambda table: table.get_many(["ann"], columns=["age"]), finder=finder)
    assert ends == [[{"id": "ann", "age": 3}]] * 2
    assert finder.failures == []


@pytest.mark.parametrize("error", [DiskFull("no room"), ClockTooFarAhead("an hour"), SnapshotTooOld("gone")], ids=repr)
def test_what_does_not_pass_while_the_store_is_looked_for_is_told_at_once(error: StelaeError) -> None:
    lost = fake(newest_many=ConnectionLost("gone"))
    lost.is_local = False
    ends = both(lost, 600, lambda table: table.get_many(["ann"]), finder=FailingFinder(lost, error))
    assert ends == [error] * 2


STORE_NAMES = {name for name in dir(Backend) if not name.startswith("_")}


@pytest.mark.parametrize("name", sorted(STORE_NAMES))
def test_whatever_is_asked_of_a_closed_session_is_closed(name: str) -> None:
    session = session_on(fake())
    session.close()
    with pytest.raises(Closed, match="fake is closed"):
        getattr(session.backend, name)()


JOBS: dict[str, Callable[[PatientStore], object]] = {
    "find": lambda store: store.find("x"),
    "info": lambda store: store.info(TABLE),
    "create": lambda store: store.create(CreateAsk("x", USERS)),
    "drop": lambda store: store.drop("x"),
    "hold": lambda store: store.hold(TABLE, Txn(3), 5.0),
    "renew": lambda store: store.renew("t", 5.0),
    "release": lambda store: store.release("t"),
    "begin_load": lambda store: store.begin_load(TABLE, "job", 2, 5.0),
    "commit_load": lambda store: store.commit_load("t", (), replaces=True),
    "begin_compaction": lambda store: store.begin_compaction(TABLE, full=False, erase_now=True),
    "adopt": lambda store: store.adopt("t", 1, None),
}
HEARD = {
    "find": ("x",),
    "info": (TABLE,),
    "create": (CreateAsk("x", USERS),),
    "drop": ("x", False),
    "hold": (TABLE, Txn(3), 5.0, None),
    "renew": ("t", 5.0),
    "release": ("t",),
    "begin_load": (TABLE, "job", 2, 5.0),
    "commit_load": ("t", (), True),
    "begin_compaction": (TABLE, False, True, TTL_S_DEFAULT, None),
    "adopt": ("t", 1, None),
}
"""What the store is asked then."""


def test_whatever_jobs_ask_is_tried() -> None:
    assert JOBS.keys() == {name for name in vars(PatientStore) if not name.startswith("_")}


@pytest.mark.parametrize("name", JOBS)
def test_what_jobs_ask_is_repeated_until_it_is_answered(name: str) -> None:
    backend = FakeBackend({TABLE: table_info(USERS)}, {**answers(), "info": table_info(USERS)})
    answer = backend.answers[name]
    backend.answers[name] = Plan(Overloaded("full"), TabletAway("moved"), answer)
    session = session_on(backend, 600)
    assert JOBS[name](PatientStore(session)) == answer
    assert backend.calls == [(name, *HEARD[name])] * 3
    assert all(deadline is not None for deadline in backend.deadlines)


# -- writes that were let in in part


def rows(count: int) -> list[dict[str, Any]]:
    return [{"id": f"{n:03}", "name": "x", "click:a": b"1"} for n in range(count)]


def test_a_write_of_many_rows_goes_on_behind_what_is_durable() -> None:
    said: list[tuple[bytes, ...]] = []

    def write(_: TableId, blocks: tuple[tuple[bytes, tuple[bytes, ...]], ...], __: Any) -> Any:
        """Takes five records at a time, and every second time nothing."""
        records = [row for _, names in blocks for row in names]
        if len(said) % 2:
            said.append(())
            return Overloaded("full")
        said.append(tuple(records[:5]))
        return Txn(2) if len(records) <= 5 else PartialWrite("full", 5)

    backend = fake(write=write)
    for end in both(backend, 600, lambda table: table.put_many(rows(10))):
        assert end == 2
    written = [row for part in said for row in part]
    assert len(written) == 2 * 20  # of each row a put and a cell
    assert len(set(written)) == 10
    assert written[:20] == sorted(written[:20]) == written[20:]


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (Overloaded("full"), PartialWrite, "2 of 5 rows are durable; then: full"),
        (Conflict("no"), PartialWrite, "2 of 5 rows are durable; then: no"),
        (UnknownOutcome("lost"), UnknownOutcome, "lost; 2 of 5 rows are durable, the others may be"),
    ],
    ids=["retryable", "final", "unknown"],
)
def test_if_the_rest_fails_it_says_how_many_rows_are_durable(
    error: StelaeError, kind: type[StelaeError], words: str
) -> None:
    asked = Plan(PartialWrite("full", 4), error)
    table = Table(session_on(fake(write=asked)), table_info(USERS))
    with pytest.raises(kind) as caught:
        table.put_many(rows(5))
    assert str(caught.value) == words
    assert getattr(caught.value, "durable", 2) == 2
    assert (asked.asked == 2) == (not isinstance(error, Retryable))


# -- event loops


def test_a_job_that_fails_is_not_done_again_by_the_loop() -> None:
    """What it raises was tried until its deadline already."""
    job = Plan(Overloaded("full"))

    def fail() -> None:
        raise job()

    async def play() -> None:
        executor = ThreadExecutor(1, 1)
        session = AsyncSession(Session(fake(), Patience(SystemClock(), SystemRng(), 600)), executor)
        with pytest.raises(Overloaded):
            await session.work(fail)
        await asyncio.to_thread(executor.close)

    asyncio.run(play())
    assert job.asked == 1


@pytest.mark.parametrize("queued_max", [0, 10])
def test_a_job_that_cannot_begin_in_time_never_does(queued_max: int) -> None:
    go, done = Event(), Plan(None)

    async def play() -> None:
        executor = ThreadExecutor(1, queued_max)
        session = AsyncSession(Session(fake(), Patience(SystemClock(), SystemRng(), 0.05)), executor)
        held = session.begin(go.wait)
        with pytest.raises((DeadlineExceeded, Overloaded)):
            await session.work(done)
        with pytest.raises((DeadlineExceeded, Overloaded)):
            await session.run(_ask(done))
        go.set()
        await asyncio.wrap_future(held)
        await asyncio.to_thread(executor.close)

    asyncio.run(play())
    assert done.asked == 0


def _ask(job: Callable[..., Any]) -> Steps[Any]:
    return (yield Ask(lambda _, __: job()))


def test_a_job_waits_for_room_among_the_threads() -> None:
    go = Event()

    async def play() -> str:
        executor = ThreadExecutor(1, 0)
        session = AsyncSession(Session(fake(), Patience(SystemClock(), SystemRng(), 600)), executor)
        session.begin(go.wait)
        asyncio.get_running_loop().call_later(0.01, go.set)
        found = await session.work(lambda: "done")
        await asyncio.to_thread(executor.close)
        return found

    assert asyncio.run(play()) == "done"


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.put({"id": "ann"}),
        lambda table: table.erase("ann"),
        lambda table: table.put_many([{"id": "ann"}, {"id": "bob"}]),
        lambda table: table.put({"id": "ann"}, if_unchanged_since=3),
    ],
    ids=["put", "erase", "put_many", "if_unchanged"],
)
def test_an_awaited_write_that_is_not_durable_in_time_may_still_happen(call: Callable[[AsyncTable], Any]) -> None:
    """Its place in the order is kept until it has. A busy machine may take all the time before it is let in: then it is
    tried with more."""

    async def play(timeout_s: float) -> bool:
        writing: Future[Txn] = Future()
        backend = fake(write=writing)
        executor = ThreadExecutor(2, 10)
        session = AsyncSession(Session(backend, Patience(SystemClock(), SystemRng(), timeout_s)), executor)
        try:
            with pytest.raises(UnknownOutcome, match=rf"was not durable within {timeout_s:g} s"):
                await call(AsyncTable(session, table_info(USERS)))
        except DeadlineExceeded:
            return False
        finally:
            await asyncio.to_thread(executor.close)
        assert not writing.cancelled()
        assert len(backend.calls) == 1
        writing.set_result(Txn(1))
        await asyncio.sleep(0)
        assert not session.order.has_turns
        return True

    assert any(asyncio.run(play(timeout_s)) for timeout_s in (0.02, 1, 10))


def test_a_scan_whose_store_falls_silent_ends_one_deadline_after_its_last_batch() -> None:
    """What whoever takes the batches does between them is not counted, however long."""
    clock, timeout_s, busy_s = SteppingClock(), 5.0, 60.0
    batch = whole_rows(["ann", "bob"])

    def scan(*_: Any) -> Iterator[pa.RecordBatch]:
        yield batch
        yield batch
        clock.now_s += timeout_s
        raise DeadlineExceeded("it said nothing for 5 s")

    backend = fake(scan=scan, pin=Txn(1))
    session = Session(backend, Patience(clock, SystemRng(), timeout_s), pause=clock.pause)
    batches = Table(session, table_info(USERS)).scan(at=Txn(1)).batches()
    assert next(batches).num_rows == 2
    clock.now_s += busy_s
    assert next(batches).num_rows == 2
    clock.now_s += busy_s
    last_s = clock.now_s
    with pytest.raises(DeadlineExceeded, match="it said nothing"):
        next(batches)
    assert clock.now_s - last_s == timeout_s
    assert len([call for call in backend.calls if call[0] == "scan"]) == 1


def test_a_scan_goes_on_behind_its_last_batch_until_the_deadline() -> None:
    clock, broken = SteppingClock(), 3
    left = [["ann"], ["bob"], ["cay"]]

    def scan(*_: Any) -> Iterator[pa.RecordBatch]:
        nonlocal broken
        if broken:
            broken -= 1
            yield whole_rows(left.pop(0))
            raise ConnectionLost("gone")

    session = Session(fake(scan=scan, pin=Txn(1)), Patience(clock, SystemRng(), 5.0), pause=clock.pause)
    rows = Table(session, table_info(USERS)).scan(at=Txn(1)).to_arrow()
    assert rows["id"].to_pylist() == ["ann", "bob", "cay"]
